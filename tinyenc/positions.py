"""Positions."""

import functools

import numpy as np

from .backend import array_module
from .layer import Layer
from .tape import NO_TAPE


class SinusoidalPositions(Layer):
    """x + table[index]; table[p, 2i] = sin(p / 10000^(2i / D)), table[p, 2i + 1] = cos of the same (Vaswani et al. 2017).

    Any width, odd ones too. index: the place of each token, (T,) for x (B, T, D) or (N,) for packed tokens (N, D).
    """

    def __init__(self, d_model, max_len=5000):
        self.d_model = d_model
        self.max_len = max_len

    def forward(self, x, index, tape=NO_TAPE):
        length = int(index.max(initial=0)) + 1
        check_length(length, self.max_len)
        tape.push(self)
        table = sinusoids(1 << (length - 1).bit_length(), self.d_model)
        return x + array_module(x).asarray(table[index], x.dtype)

    def backward(self, dy, tape):
        tape.pop(self)
        return dy


@functools.lru_cache(maxsize=8)
def sinusoids(n_positions, d_model):
    """The table of sinusoids, (n_positions, d_model) float64, read-only."""
    even = np.arange(d_model) // 2 * 2
    angle = np.arange(n_positions)[:, None] / 10000 ** (even / d_model)
    table = np.where(np.arange(d_model) % 2 == 0, np.sin(angle), np.cos(angle))
    table.flags.writeable = False
    return table


def check_length(length, max_len):
    """ValueError where a sequence is longer than the positions go."""
    if length > max_len:
        raise ValueError(f"sequence length {length} is more than max_len {max_len}")
