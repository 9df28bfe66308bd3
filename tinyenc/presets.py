"""Encoders of three sizes, and what one needs, told before it is made.

    print(needs(BASE, vocab_size=30522, batch=32, length=128))
    encoder = base(vocab_size=30522)
"""

from typing import NamedTuple

import numpy as np

from .backend import wide
from .encoder import Encoder


class Size(NamedTuple):
    """The sizes of an Encoder, in the order in which it takes them: Encoder(vocab_size, *SMALL, ...)."""

    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int


SMALL = Size(256, 4, 1024, 4)
MEDIUM = Size(512, 8, 2048, 6)  # the base model of Vaswani et al. (2017)
BASE = Size(768, 12, 3072, 12)  # that of Devlin et al. (2019)


def small(vocab_size, max_len=5000, dropout=0.1, rng=None):
    """4 layers of 4 heads, 256 wide: 3.2 million parameters and the table of tokens."""
    return Encoder(vocab_size, *SMALL, max_len, dropout, rng=rng)


def medium(vocab_size, max_len=5000, dropout=0.1, rng=None):
    """6 layers of 8 heads, 512 wide: 18.9 million parameters and the table of tokens."""
    return Encoder(vocab_size, *MEDIUM, max_len, dropout, rng=rng)


def base(vocab_size, max_len=5000, dropout=0.1, rng=None):
    """12 layers of 12 heads, 768 wide: 85.1 million parameters and the table of tokens."""
    return Encoder(vocab_size, *BASE, max_len, dropout, rng=rng)


class Needs(NamedTuple):
    """Numbers learnt, and bytes. moments: AdamW's two, and the float32 master where weights are half precision.

    activations: what the tape holds between forward and backward. The arrays that come and go meanwhile are not in it.
    """

    n_parameters: int
    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self):
        """Bytes in all."""
        return sum(self[1:])

    def __str__(self):
        lines = [f"{'parameters':12}{self.n_parameters:>14,}"]
        lines += [f"{name:12}{size / 1e6:>14,.1f} MB" for name, size in [*zip(self._fields[1:], self[1:]),
                                                                        ("total", self.total)]]
        return "\n".join(lines)


def needs(size, vocab_size, batch, length, dropout=True, dtype=np.float32):
    """What it takes to train Encoder(vocab_size, *size) on (batch, length) tokens, without padding, with AdamW."""
    d, h, f, n_layers = size
    dtype = np.dtype(dtype)
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d  # attention, feed-forward network, two norms
    n_parameters = vocab_size * d + n_layers * layer + 2 * d
    half = dtype != wide(dtype)

    norm = d * dtype.itemsize + wide(dtype).itemsize  # normed, rstd
    attention = (6 * d + h * length) * dtype.itemsize  # input, q, q scaled, k, v, weights, output
    feed_forward = (d + 2 * f) * dtype.itemsize  # input, slope of the activation, hidden
    dropped = 2 * d + f + h * length if dropout else 0  # a byte each
    embedding = 8 + (d if dropout else 0)  # id, what dropout keeps
    token = embedding + n_layers * (2 * norm + attention + feed_forward + dropped) + norm
    return Needs(n_parameters, n_parameters * dtype.itemsize, n_parameters * wide(dtype).itemsize,
                 n_parameters * wide(dtype).itemsize * (3 if half else 2), batch * length * token)
