"""How a batch lies in memory while the layers work on it.

Layers that act on each position take tokens of any leading shape; only attention must know where sequences begin.
"""

import numpy as np

from ..backend import array_module
from ..parallel import free_threads

PART = 1024  # tokens whose activations stay in cache


class Dense:
    """A batch as it came, (B, T, D), with an attention mask or None."""

    def __init__(self, shape, mask):
        self.lengths = np.full(*shape)
        self.positions = np.arange(shape[1])
        self.mask = mask

    def part(self, some):
        """The layout of some sequences, an array of their places in the batch."""
        mask = self.mask
        return Dense((len(some), len(self.positions)), mask if mask is None or mask.shape[0] == 1 else mask[some])

    def pack(self, x):
        return x

    def unpack(self, x):
        return x


class Padded:
    """A batch (B, T, D) of which tokens (B, T) are real; the others are computed, then set to zero. For the GPU."""

    def __init__(self, tokens):
        self.lengths = np.full(*tokens.shape)
        self.positions = np.arange(tokens.shape[1])
        self.mask = tokens[:, None, None, :]
        self.tokens = tokens

    def part(self, some):
        """The layout of some sequences, an array of their places in the batch."""
        return Padded(self.tokens[some])

    def pack(self, x):
        return x * self.tokens.reshape(*self.tokens.shape, *[1] * (x.ndim - 2))

    unpack = pack


class Packing:
    """The real tokens of a padded batch, laid end to end, (N, D): padding costs nothing.

    Attention takes the Packing itself where it would take a mask, and looks at one sequence at a time. Longest
    sequences stand first, so that those of equal length are neighbours.

    tokens: (B, T) boolean NumPy array, True at real tokens.
    """

    def __init__(self, tokens):
        self.tokens = tokens
        self.lengths = lengths = tokens.sum(axis=1)
        order = np.argsort(-lengths, kind="stable")
        places = np.arange(tokens.size).reshape(tokens.shape)
        self.index = np.concatenate([places[b][tokens[b]] for b in order])  # where in (B * T,) each packed token was
        self.positions = self.index % tokens.shape[1]
        self.longest_first = [n for n in lengths[order].tolist() if n]  # the lengths, as the sequences stand here

    def part(self, some):
        """The layout of some sequences, an array of their places in the batch."""
        return Packing(self.tokens[some])

    @property
    def mask(self):
        return self

    @property
    def longest(self):
        """The length of the longest sequence; 1 where all are empty."""
        return self.longest_first[0] if self.longest_first else 1

    def pack(self, x):
        """(B, T, ...) -> (N, ...)."""
        return x.reshape(-1, *x.shape[2:])[self.index]

    def unpack(self, x):
        """(N, ...) -> (B, T, ...), zeros at padding. Adjoint to pack."""
        y = array_module(x).zeros((self.tokens.size, *x.shape[1:]), x.dtype)
        y[self.index] = x
        return y.reshape(*self.tokens.shape, *x.shape[1:])


def even_parts(lengths):
    """The places of sequences of such lengths in parts of about PART tokens, as many parts for each thread; none where
    some thread would have much less to do."""
    n_tokens, threads = int(lengths.sum()), free_threads()
    wanted = threads * max(1, n_tokens // (threads * PART))
    sizes = np.zeros(min(wanted, len(lengths)), int)
    parts = [[] for _ in sizes]
    for place in np.argsort(-lengths, kind="stable"):  # the longest first, each to the smallest part
        part = sizes.argmin()
        sizes[part] += lengths[place]
        parts[part].append(place)
    if n_tokens == 0 or sizes.max() * wanted > 1.2 * n_tokens:
        return []
    return [np.array(part) for part in parts if part]  # empty sequences may all have gone to one part
