"""What dropout keeps."""

import math

import numpy as np

from .backend import on_host
from .parallel import even_step, rowwise, run_each

CHUNK = 1 << 18  # the most entries drawn by one thread at a time


class KeepMask:
    """Which entries of an array dropout keeps: each on its own with probability 1 - p, decided by the seed.

    On the CPU the mask is drawn once, a byte an entry; p is rounded to 1/65536. On the GPU it is a function of
    the seed and the entry's place, and never stored.
    """

    def __init__(self, p, seed, x):
        self.p = p
        self.seed = seed
        self.kept = draw(x.shape, p, seed) if on_host(x) else None

    def apply(self, x):
        """x / (1 - p) where kept, 0 elsewhere. Its own adjoint: backward applies it to dy."""
        if self.kept is None:
            from .kernels import masked_softmax
            return masked_softmax.drop(x, self.p, self.seed)
        return keep_scaled(x, self.kept, 1 / (1 - self.p))

    def saved_arrays(self):
        """What a tape that holds this mask holds."""
        return () if self.kept is None else (self.kept,)


class KeepScores(KeepMask):
    """The KeepMask of scores (B, H, T, S); on the CPU it lies in memory as they do, (S, B, H, T)."""

    def __init__(self, p, seed, scores):
        super().__init__(p, seed, scores)
        if self.kept is not None:
            self.kept = np.moveaxis(np.moveaxis(self.kept, -1, 0).copy(), 0, -1)


@rowwise
def keep_scaled(x, kept, gain, out=None):
    """x * kept * gain, kept as numbers: NumPy is slow where it must convert while it multiplies."""
    factor = kept.astype(x.dtype)
    factor *= gain
    return np.multiply(x, factor, out=out)


def draw(shape, p, seed):
    """A boolean array, True with probability 1 - p."""
    kept = np.empty(math.prod(shape), bool)
    step = even_step(kept.size, CHUNK)
    run_each(lambda start: draw_runs(kept[None, start:start + step], [start], p, seed), range(0, kept.size, step))
    return kept.reshape(shape)


def draw_runs(kept, starts, p, seed):
    """Fill each row of kept (R, n) with what `draw` draws at places start ... start + n of the flattened array."""
    threshold = min(round(p * 65536), 65535)
    bits = np.random.PCG64DXSM(seed)
    here = 0
    for row, start in zip(kept, starts):
        word, skip = divmod(start, 4)  # four 16-bit draws in each word
        words = bits.advance(word - here).random_raw(-(-(skip + row.size) // 4))
        here = word + words.size
        np.greater_equal(words.view(np.uint16)[skip:skip + row.size], threshold, out=row)


class KeepBlocks:
    """The KeepMask of scores (B, H, T, S) that are never there as a whole, drawn block by block."""

    def __init__(self, p, seed, shape):
        self.p = p
        self.seed = seed
        self.shape = shape

    def block(self, queries, keys):
        """(B, H, t, s): which entries of a block, given by two slices, are kept."""
        b, h, t, s = self.shape
        n_queries, n_keys = queries.stop - queries.start, keys.stop - keys.start
        kept = np.empty((b, h, n_queries, n_keys), bool)
        starts = np.arange(b * h)[:, None] * t + np.arange(queries.start, queries.stop)
        starts = starts.ravel() * s + keys.start
        if n_keys == s:  # the rows of a head follow one another: one run
            starts = starts[::n_queries]
        draw_runs(kept.reshape(starts.size, -1), starts.tolist(), self.p, self.seed)
        return kept
