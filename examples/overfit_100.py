"""Learn 100 real sentences to the last one: the first thing to run, and to run again after every change.

A model whose forward, backward and optimiser are right drives the loss of a hundred sentences to nearly zero. One
that does not is wrong somewhere, and this script then measures where to look first.

    python examples/overfit_100.py                       100 English film reviews
    python examples/overfit_100.py --data zh             100 Chinese shop reviews
    python examples/overfit_100.py --data my.tsv         your own: a label, a tab and a text on each line
"""

import argparse
import sys
import time
from pathlib import Path

from tqdm import tqdm

from tinyenc import Classifier, CrossEntropy, Encoder, EncoderLayer, PostLNEncoderLayer
from tinyenc.data import Batches, DataError, Vocab, read_tsv
from tinyenc.diagnosis import diagnose
from tinyenc.optim import SGD, AdamW
from tinyenc.schedules import linear
from tinyenc.train import evaluate, train

DATA = Path(__file__).parent / "data"
SENTENCES = {"en": DATA / "en_reviews/overfit100.tsv", "zh": DATA / "zh_reviews/overfit100.tsv"}
NORMS = {"pre": EncoderLayer, "post": PostLNEncoderLayer}
BATCH_SIZE = 20
WARMUP = 0.1  # of all steps
RATES = {"adamw": 1e-3, "sgd": 0.1}
MOMENTUM = 0.9
LOSS_WANTED = 0.01
PICTURE = "overfit_100.png"


def main():
    options = parse()
    rows = read_tsv(SENTENCES.get(options.data, options.data))
    classes = sorted({label for label, _ in rows})
    vocab = Vocab.from_texts(text for _, text in rows)
    examples = [(vocab.encode(text), classes.index(label)) for label, text in rows]

    encoder = Encoder(len(vocab), options.d_model, options.heads, 4 * options.d_model, options.layers,
                      dropout=0.0, layer=NORMS[options.norm], rng=options.seed)
    model = Classifier(encoder, len(classes), dropout=0.0, rng=options.seed).to(options.device)
    loss = CrossEntropy()
    batches = Batches(examples, BATCH_SIZE, seed=options.seed)
    rate = linear(RATES[options.optimizer], int(WARMUP * options.steps), options.steps)
    optimizer = AdamW(model, rate) if options.optimizer == "adamw" else SGD(model, rate, MOMENTUM)

    print(f"{len(rows)} sentences, {len(classes)} classes, a vocabulary of {len(vocab)}, "
          f"{model.n_parameters:,} parameters")
    start = time.perf_counter()
    steps = []
    n_epochs = -(-options.steps // len(batches))
    with tqdm(total=options.steps, unit="step") as bar:
        for step in train(model, loss, batches, optimizer, n_epochs, options.seed):
            steps.append(step)
            bar.set_postfix(loss=f"{float(step.loss):.4f}", refresh=False)
            bar.update()
            if len(steps) == options.steps:
                break
    in_order = Batches(examples, BATCH_SIZE, shuffle=False)
    end = evaluate(model, loss, in_order)
    seconds = time.perf_counter() - start
    draw([float(step.loss) for step in steps])

    right = round(end["accuracy"] * len(rows))
    learnt = right == len(rows) and end["loss"] < LOSS_WANTED
    if not learnt:
        print(f"\nNot learnt: the loss should be below {LOSS_WANTED}, with every sentence right. Look at, in order:")
        for n, finding in enumerate(diagnose(model, loss, next(iter(in_order)), steps, examples), start=1):
            print(f"{n}. {finding}")
    print(f"loss {end['loss']:.4f}  accuracy {right}/{len(rows)}  {seconds:.1f} s")
    return 0 if learnt else 1


def draw(losses):
    """The loss by step as a picture, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print('(no picture: pip install "tinyenc[plot]" draws the loss)')
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.figure(figsize=(6, 3.5), layout="tight")
    pyplot.semilogy(losses, linewidth=1)
    pyplot.axhline(LOSS_WANTED, color="grey", linestyle=":", linewidth=1)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(PICTURE, dpi=120)
    print(f"the loss by step is drawn in {PICTURE}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="en", help="en, zh, or a file of label<TAB>text lines")
    parser.add_argument("--optimizer", choices=RATES, default="adamw")
    parser.add_argument("--norm", choices=NORMS, default="pre")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "gpu", "auto"), default="cpu")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DataError, ValueError, RuntimeError) as error:
        print(f"overfit_100.py: {error}", file=sys.stderr)
        sys.exit(2)
