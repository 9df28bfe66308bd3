"""Train on short sequences, test on long ones: which positions carry over to lengths that were never seen?

The task: say of every token whether the same token stands within REACH places of it. What matters is how far, not
where, and it matters: without positions it cannot be learnt. Learned positions end where training ended, so their
table must be grown first, in each of the three ways.

    python examples/extrapolate.py

prints the accuracy of each kind of positions at each length, and draws the curves (with matplotlib).
"""

import argparse
import copy
import sys

import numpy as np
from tqdm import tqdm

from tinyenc import CrossEntropy, Encoder, Layer, Linear, SinusoidalPositions, Tape
from tinyenc.backend import to_host
from tinyenc.optim import AdamW
from tinyenc.positions import ALiBi, LearnedPositions, NoPositions, Rotary, T5Buckets
from tinyenc.schedules import linear
from tinyenc.tape import NO_TAPE

TRAINED, TESTED = 32, [16, 32, 64, 128, 256, 512]
REACH = 3
VOCAB = 9  # about half of the tokens have their like within reach
D_MODEL, HEADS, LAYERS = 64, 4, 2
BATCH, STEPS, RATE = 32, 600, 2e-3
TEST_TOKENS = 16384
PICTURE = "extrapolate.png"

KINDS = {
    "none": NoPositions,
    "sinusoidal": lambda: SinusoidalPositions(D_MODEL),
    "learned": lambda: LearnedPositions(D_MODEL, TRAINED, std=1.0, rng=0),
    "rotary": Rotary,
    "ALiBi": lambda: ALiBi(HEADS),
    "T5 buckets": lambda: T5Buckets(HEADS, rng=0),
}
GROWTH = {
    "learned, copied": LearnedPositions.grow_copying,
    "learned, interpolated": LearnedPositions.grow_interpolating,
    "learned, fresh": LearnedPositions.grow_fresh,
}


class Tagger(Layer):
    """out(encoder(ids)): two logits for each token, (B, T) -> (B, T, 2)."""

    def __init__(self, positions):
        self.encoder = Encoder(VOCAB, D_MODEL, HEADS, 2 * D_MODEL, LAYERS, dropout=0.0, positions=positions, rng=0)
        self.out = Linear(D_MODEL, 2, rng=0)

    def forward(self, ids, tape=NO_TAPE):
        return self.out.forward(self.encoder.forward(ids, None, tape), tape)

    def backward(self, dlogits, tape):
        self.encoder.backward(self.out.backward(dlogits, tape), tape)


def make_batch(n, length, rng):
    """Random tokens (n, length), and 1 where the same one stands within REACH places, else 0."""
    ids = rng.integers(0, VOCAB, (n, length))
    near = np.zeros(ids.shape, int)
    for distance in range(1, REACH + 1):
        same = ids[:, distance:] == ids[:, :-distance]
        near[:, distance:] |= same
        near[:, :-distance] |= same
    return ids, near


def trained(positions, name, device):
    model, loss_fn, rng = Tagger(positions).to(device), CrossEntropy(), np.random.default_rng(1)
    optimizer = AdamW(model, linear(RATE, STEPS // 10, STEPS))
    for _ in tqdm(range(STEPS), desc=name, unit="step", leave=False):
        ids, near = make_batch(BATCH, TRAINED, rng)
        tape = Tape()
        loss_fn.forward(model.forward(ids, tape), near, tape)
        model.backward(loss_fn.backward(1.0, tape), tape)
        optimizer.step(max_norm=1.0)
        model.zero_grad()
    return model


def accuracy(model, length):
    ids, near = make_batch(TEST_TOKENS // length, length, np.random.default_rng(2))
    return (to_host(model(ids)).argmax(axis=-1) == near).mean()


def grown(model, grow, length):
    """A copy of the model whose table of positions reaches to length."""
    model = copy.deepcopy(model)
    if length > TRAINED:
        grow(model.encoder.embed.positions, length)
    return model


def main(device):
    print(f"trained on {TRAINED} tokens; right at" + "".join(f"{length:7}" for length in TESTED))
    curves = {}
    for name, make in KINDS.items():
        model = trained(make(), name, device)
        if name == "learned":
            found = {way: [accuracy(grown(model, grow, n), n) for n in TESTED] for way, grow in GROWTH.items()}
        else:
            found = {name: [accuracy(model, n) for n in TESTED]}
        for each, row in found.items():
            print(f"{each:29}" + "".join(f"{right:7.1%}" for right in row), flush=True)
        curves |= found
    draw(curves)


def draw(curves):
    """The accuracy by length as a picture, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print('(no picture: pip install "tinyenc[plot]" draws the curves)')
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, row in curves.items():
        plt.plot(TESTED, row, marker="o", label=name)
    plt.axvline(TRAINED, color="grey", linestyle=":", label="trained")
    plt.xscale("log")
    plt.xticks(TESTED, TESTED)
    plt.minorticks_off()
    plt.xlabel("tokens")
    plt.ylabel("accuracy")
    plt.legend()
    plt.savefig(PICTURE, dpi=120)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu", "auto"), default="cpu")
    try:
        main(parser.parse_args().device)
    except RuntimeError as error:
        print(f"extrapolate.py: {error}", file=sys.stderr)
        sys.exit(2)
