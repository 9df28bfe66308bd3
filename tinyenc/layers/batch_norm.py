"""Normalisation over a batch, for comparison: LayerNorm is what Transformers use, and this shows why."""

import numpy as np

from ..attention.masks import as_mask
from ..backend import array_module, wide
from ..init import ones, zeros
from ..layer import Buffer, Layer, Parameter
from ..ops import sum_rows
from ..tape import NO_TAPE


class BatchNorm(Layer):
    """weight * (x - mean) / sqrt(var + eps) + bias, mean and var over the real tokens (Ioffe & Szegedy 2015).

    In training, that is where the tape has a seed, they are those of the batch, and each forward that is recorded moves
    the running ones towards them by the share `momentum`. Otherwise they are the running ones, and a sentence no longer
    depends on its neighbours.

    x: (B, T, D), and mask (B, 1, 1, T) True at real tokens; or (N, D), packed, all real. Any other mask does not tell
    which tokens are real, and all count. Statistics are in float32 or wider; those of a batch without a real token, or
    that are not finite, move nothing.
    """

    def __init__(self, d_model, eps=1e-5, momentum=0.1):
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must be in (0, 1], got {momentum}")
        self.weight = Parameter(ones(d_model), decay=False)
        self.bias = Parameter(zeros(d_model), decay=False)
        self.running_mean = Buffer(zeros(d_model))
        self.running_var = Buffer(ones(d_model))
        self.eps = eps
        self.momentum = momentum

    def forward(self, x, mask=None, tape=NO_TAPE):
        if tape.training:
            real = where_real(x, mask)
            mean, var = moments(x, real)
            if tape.keep:
                self.move_running(mean, var, real)
        else:
            real = None  # the statistics are constants
            mean, var = self.running_mean.data, self.running_var.data
        rstd = 1 / np.sqrt(var + self.eps)
        normed = ((x - mean) * rstd).astype(x.dtype, copy=False)
        tape.push(self, normed, rstd, real)
        return normed * self.weight.data + self.bias.data

    def backward(self, dy, tape):
        normed, rstd, real = tape.pop(self)
        self.weight.grad += sum_rows(dy * normed)
        self.bias.grad += sum_rows(dy)
        dnormed = dy * self.weight.data
        if real is None:
            return (dnormed * rstd).astype(dy.dtype, copy=False)
        n = real.sum(dtype=rstd.dtype).clip(1)
        through_mean = sum_rows(dnormed) / n
        through_var = normed * (sum_rows(dnormed * normed) / n)
        return ((dnormed - real * (through_mean + through_var)) * rstd).astype(dy.dtype, copy=False)

    def move_running(self, mean, var, real):
        """Move the running statistics towards a batch's, its variance taken as that of a sample: times n / (n - 1)."""
        n = real.sum(dtype=mean.dtype)
        for running, found in (self.running_mean, mean), (self.running_var, var * (n / (n - 1).clip(1))):
            step = self.momentum * (found - running.data)
            running.data = running.data + np.where(np.isfinite(step) & (n > 0), step, 0).astype(running.data.dtype)


def where_real(x, mask):
    """Which tokens are real, (..., 1)."""
    shape = (*x.shape[:-1], 1)
    if x.ndim == 2 or mask is None:
        return array_module(x).ones(shape, bool)
    mask = as_mask(mask)
    if mask.ndim != 4 or not (mask.shape[0] in (1, len(x)) and mask.shape[3] in (1, x.shape[1])):
        raise ValueError(f"mask of shape {mask.shape} does not broadcast to (batch, heads, queries, keys) of a batch "
                         f"{x.shape}")
    if mask.shape[1:3] != (1, 1):
        return array_module(x).ones(shape, bool)
    return array_module(x).broadcast_to(mask[:, 0, 0, :, None], shape)


def moments(x, real):
    """Mean and variance of x over the tokens that are real, (D,); both 0 where none is."""
    n = real.sum(dtype=wide(x.dtype)).clip(1)
    mean = sum_rows(x * real) / n
    centred = (x - mean) * real
    return mean, sum_rows(centred * centred) / n
