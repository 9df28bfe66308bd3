"""Scores of attention and their softmax, beside its backward.

On the CPU scores (B, H, T, S) lie in memory keys first, (S, B, H, T): a maximum or a sum over keys then runs along
rows as long as all the rest. On the GPU the softmax is one kernel each way.
"""

import math

import numpy as np

from .backend import on_host, wide
from .ops import product


def dot_products(x, y):
    """x y^T, of each row of x (B, H, T, K) with each of y (B, H, S, K): (B, H, T, S), half precision in float32."""
    if not on_host(x):
        return product(x, y.mT)
    *lead, s, _ = y.shape
    scores = np.empty((s, *lead, x.shape[-2]), wide(np.result_type(x, y)))
    return product(x, y.mT, out=np.moveaxis(scores, 0, -1))


def masked_softmax(scores, mask=None, drop=None):
    """exp(score) / sum of exp(score) over the keys that mask keeps, and the same after dropout.

    scores: (B, H, T, S). mask: boolean, broadcast to scores, True keeps; a row with no key kept gets zeros.
    drop: a KeepMask, or None, which makes the second result the first itself.
    """
    if not on_host(scores):
        from .kernels import masked_softmax as kernel
        p, seed = (drop.p, drop.seed) if drop else (0.0, None)
        return kernel.forward(scores, mask, 1.0, p, seed)
    weights = softmax(scores, mask)
    return weights, drop.apply(weights) if drop else weights


def masked_softmax_backward(ddropped, weights, drop=None):
    """dscores, given the gradient of what masked_softmax returned second; masked keys have weight, and so get, 0."""
    if not on_host(weights):
        from .kernels import masked_softmax as kernel
        p, seed = (drop.p, drop.seed) if drop else (0.0, None)
        return kernel.backward(ddropped, weights, 1.0, p, seed)
    return softmax_backward(drop.apply(ddropped) if drop else ddropped, weights)


def softmax(scores, mask=None):
    """exp(score) / sum of exp(score) over the last axis, where mask keeps; zeros where it keeps nothing."""
    scores = scores.astype(wide(scores.dtype), copy=False)
    if mask is not None:
        scores = masked(scores, mask)
    top = scores.max(axis=-1, keepdims=True, initial=-math.inf)
    top = np.where(top == -math.inf, 0, top)  # a row with nothing kept: exp(-inf - 0) is the zero wanted
    weights = scores - top
    np.exp(weights, out=weights)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    return weights


def softmax_backward(dweights, weights):
    """weights * (dweights - sum of dweights * weights)."""
    dscores = dweights * weights
    dscores -= weights * dscores.sum(axis=-1, keepdims=True)
    return dscores


def masked(scores, mask):
    """scores where mask keeps and -inf elsewhere, in memory as scores are. In half the time of where."""
    limit = np.where(mask, math.nan, -math.inf).astype(scores.dtype)
    return np.fmin(scores, limit, out=np.empty_like(scores))  # the one that is not NaN
