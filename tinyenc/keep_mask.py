"""What dropout keeps."""

import math

import numpy as np

from .backend import on_host
from .parallel import rowwise, run_each

CHUNK = 1 << 18  # entries drawn from one generator; fixed, so that the mask depends on the seed alone


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


@rowwise
def keep_scaled(x, kept, gain):
    """x * kept * gain."""
    return x * kept * gain


def draw(shape, p, seed):
    """A boolean array, True with probability 1 - p."""
    kept = np.empty(math.prod(shape), bool)
    threshold = min(round(p * 65536), 65535)

    def task(start):
        part = kept[start:start + CHUNK]
        generator = np.random.Generator(np.random.SFC64([seed, start // CHUNK]))
        words = generator.integers(0, 2**64, -(-part.size // 4), dtype=np.uint64)  # four 16-bit draws in each
        np.greater_equal(words.view(np.uint16)[:part.size], threshold, out=part)

    run_each(task, range(0, kept.size, CHUNK))
    return kept.reshape(shape)
