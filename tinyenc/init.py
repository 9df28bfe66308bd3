"""Initial values, drawn on the CPU from an explicit generator so that every device starts from the same bits.

rng is what `numpy.random.default_rng` takes: a Generator (shared by the layers of a model), an int, or None
for a fresh one. NumPy's global random state is neither read nor changed. UNSET, in place of rng, leaves what was
in memory: for weights that are loaded right away.
"""

import math

import numpy as np

UNSET = object()


def xavier_uniform(d_in, d_out, rng=None):
    """Uniform in +-sqrt(6 / (d_in + d_out)), (d_in, d_out) float32 (Glorot & Bengio 2010)."""
    if rng is UNSET:
        return np.empty((d_in, d_out), np.float32)
    limit = math.sqrt(6 / (d_in + d_out))
    return np.random.default_rng(rng).uniform(-limit, limit, (d_in, d_out)).astype(np.float32)


def normal(shape, std=0.02, rng=None):
    """Gaussian with mean 0 and the given deviation, float32; 0.02 is BERT's (Devlin et al. 2019)."""
    if rng is UNSET:
        return np.empty(shape, np.float32)
    return np.random.default_rng(rng).standard_normal(shape, np.float32) * np.float32(std)


def zeros(*shape):
    """Zeros, float32."""
    return np.zeros(shape, np.float32)


def ones(*shape):
    """Ones, float32."""
    return np.ones(shape, np.float32)
