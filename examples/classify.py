"""Sort film-review sentences into praise and blame, next to a bag-of-words logistic regression.

    python examples/classify.py                          train, validate, keep the best, test
    python examples/classify.py "a lovely, odd film"     what the trained model says of a sentence
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from tinyenc import NO_TAPE, Classifier, CrossEntropy, Embedding, Encoder, Layer, Parameter, checkpoint, init
from tinyenc.backend import like
from tinyenc.data import SPECIALS, Batches, Vocab, read_tsv
from tinyenc.fit import fit
from tinyenc.ops import sum_rows
from tinyenc.optim import AdamW
from tinyenc.schedules import linear
from tinyenc.train import evaluate

DATA = Path(__file__).parent / "data/en_reviews"
SAVED = Path("runs/classify.safetensors")
CLASSES = ["negative", "positive"]
SHAPE = dict(d_model=128, n_heads=4, d_ff=256, n_layers=2, max_len=64, dropout=0.3)
MIN_COUNT = 2  # rarer words are unknown
BATCH_SIZE = 64
EPOCHS, RATE, WARMUP = 8, 5e-4, 100
BAG_EPOCHS, BAG_RATE = 12, 3e-3
SEED = 0


class BagOfWords(Layer):
    """Logistic regression on words: the sum of weight[id] over the tokens of a sentence, plus bias."""

    def __init__(self, n_tokens, n_classes):
        self.words = Embedding(n_tokens, n_classes, rng=SEED)
        self.bias = Parameter(init.zeros(n_classes))

    def forward(self, ids, mask, tape=NO_TAPE):
        ids, mask = like(ids, self.bias.data), like(mask, self.bias.data)
        weights = self.words.forward(ids, tape) * mask[..., None]  # (B, T, classes)
        tape.push(self, mask)
        return weights.sum(axis=1) + self.bias.data

    def backward(self, dy, tape):
        (mask,) = tape.pop(self)
        self.bias.grad += sum_rows(dy)
        self.words.backward(dy[:, None] * mask[..., None], tape)


def main(device):
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.check_place(SAVED)
    vocab, splits = load()
    train, valid, test = (Batches(split, BATCH_SIZE, seed=SEED) for split in splits)
    loss = CrossEntropy()

    bag = BagOfWords(len(vocab), len(CLASSES)).to(device)
    fit(bag, loss, train, AdamW(bag, BAG_RATE), BAG_EPOCHS, valid, seed=SEED)

    train = Batches(splits[0], BATCH_SIZE, seed=SEED)
    model = build(len(vocab)).to(device)
    print(f"{len(splits[0])} sentences, a vocabulary of {len(vocab)}, {model.n_parameters:,} parameters")
    rate = linear(RATE, WARMUP, EPOCHS * len(train))
    rows = fit(model, loss, train, AdamW(model, rate, weight_decay=0.05), EPOCHS, valid, seed=SEED)
    for row in rows:
        print(f"epoch {row['epoch']}  loss {row['loss']:.3f}  valid: loss {row['valid_loss']:.3f}  "
              f"accuracy {row['valid_accuracy']:.1%}")
    for name, what in (("bag of words", bag), ("encoder", model)):
        print(f"test accuracy, {name}: {evaluate(what, loss, test)['accuracy']:.1%}")
    checkpoint.save(SAVED, model, info={"tokens": vocab.tokens[len(SPECIALS):]})


def load():
    """The vocabulary of the training sentences, and train, valid and test as lists of (ids, class)."""
    rows = {name: read_tsv(DATA / f"{name}.tsv.gz") for name in ("train", "valid", "test")}
    vocab = Vocab.from_texts((text for _, text in rows["train"]), min_count=MIN_COUNT)
    return vocab, [[(vocab.encode(text, SHAPE["max_len"]), int(label)) for label, text in split]
                   for split in rows.values()]


def build(n_tokens):
    return Classifier(Encoder(n_tokens, **SHAPE, rng=SEED), len(CLASSES), dropout=SHAPE["dropout"], rng=SEED)


def predict(sentence):
    """Print what the saved model says of a sentence."""
    if not SAVED.exists():
        raise FileNotFoundError(f"{SAVED} is not there yet: `python examples/classify.py` trains a model and saves it")
    saved = checkpoint.load(SAVED)
    vocab = Vocab(saved.info["tokens"])
    model = build(len(vocab))
    saved.restore(model)
    (logits,) = model(np.array([vocab.encode(sentence, SHAPE["max_len"])]))
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    print(f"{CLASSES[chances.argmax()]} ({chances.max():.0%})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence", nargs="*", help="what the trained model is asked about; without one, train")
    parser.add_argument("--device", choices=("cpu", "gpu", "auto"), default="cpu")
    options = parser.parse_args()
    try:
        predict(" ".join(options.sentence)) if options.sentence else main(options.device)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"classify.py: {error}", file=sys.stderr)
        sys.exit(2)
