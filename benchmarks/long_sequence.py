"""One training step on one long sequence: the peak memory, beside what the plain form would need.

    python benchmarks/long_sequence.py [--length N] [--steps N]

The sequence is one of 16,384 tokens for an encoder of the medium size (512 wide, 8 heads, 6 layers) with dropout 0.1, a
vocabulary of 30,522 and AdamW. Tiled attention never holds the scores, and Recompute saves of each layer nothing but
its input. The peak is that of this whole process. The plain form's need is computed from shapes: it has no part in the
run. Most of it is attention weights and their dropout, 5 bytes for each pair of tokens in each head and layer.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

import numpy as np

from tinyenc import Classifier, CrossEntropy, Encoder, Recompute
from tinyenc.attention import Tiled
from tinyenc.data import Batch
from tinyenc.optim import AdamW
from tinyenc.presets import MEDIUM, needs
from tinyenc.train import train_step

VOCAB = 30522
DROPOUT = 0.1


def peak():
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384, help="tokens in the sequence (default 16384)")
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()

    at_first = peak()
    encoder = Encoder(VOCAB, *MEDIUM, args.length, DROPOUT, attend=Tiled(DROPOUT), rng=0)
    encoder.layers = [Recompute(layer) for layer in encoder.layers]
    model = Classifier(encoder, 2, rng=0)
    optimizer, loss_fn = AdamW(model, 1e-4), CrossEntropy()
    ids = np.random.default_rng(0).integers(0, VOCAB, (1, args.length))
    batch = Batch(ids, None, np.array([1]), np.array([0]))
    for step in range(args.steps):
        begin = time.perf_counter()
        loss, norm, _ = train_step(model, loss_fn, [batch], optimizer)
        print(f"step {step + 1}: loss {loss:.4f}, gradient norm {norm:.4f}, {time.perf_counter() - begin:.0f} s")
    plain = needs(MEDIUM, VOCAB, 1, args.length)
    print(f"{args.length:,} tokens: peak {peak() / 1e9:.2f} GB, of which {at_first / 1e9:.2f} GB before any model")
    print(f"the plain form would hold {plain.total / 1e9:.2f} GB: {plain.activations / 1e9:.2f} GB on the tape, "
          f"{(plain.total - plain.activations) / 1e9:.2f} GB of weights, gradients and moments")


if __name__ == "__main__":
    main()
