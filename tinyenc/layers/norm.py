"""Normalisation."""

from ..init import ones, zeros
from ..layer import Layer, Parameter
from ..ops import (
    layer_norm,
    layer_norm_backward,
    rms_normalise,
    rms_normalise_backward,
    sum_rows,
    sum_rows_of_product,
)
from ..tape import NO_TAPE


class LayerNorm(Layer):
    """weight * (x - mean) / sqrt(var + eps) + bias over the last axis (Ba et al. 2016).

    The statistics are taken in float32 or wider, so that half precision and large means come out right.
    bias: may be set to None, for none (ModernBERT).
    """

    def __init__(self, d_model, eps=1e-5):
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        self.weight = Parameter(ones(d_model), decay=False)
        self.bias = Parameter(zeros(d_model), decay=False)
        self.eps = eps

    def forward(self, x, tape=NO_TAPE):
        y, normed, rstd = layer_norm(x, self.weight.data, self.bias.data if self.bias else 0, self.eps)
        tape.push(self, normed, rstd)
        return y

    def backward(self, dy, tape):
        normed, rstd = tape.pop(self)
        self.weight.grad += sum_rows_of_product(dy, normed)
        if self.bias:
            self.bias.grad += sum_rows(dy)
        return layer_norm_backward(dy, self.weight.data, normed, rstd)


class RMSNorm(Layer):
    """weight * x / sqrt(mean of x^2 + eps) over the last axis (Zhang & Sennrich 2019)."""

    def __init__(self, d_model, eps=1e-6):
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        self.weight = Parameter(ones(d_model), decay=False)
        self.eps = eps

    def forward(self, x, tape=NO_TAPE):
        normed, rrms = rms_normalise(x, self.eps)
        tape.push(self, normed, rrms)
        return normed * self.weight.data

    def backward(self, dy, tape):
        normed, rrms = tape.pop(self)
        self.weight.grad += sum_rows_of_product(dy, normed)
        return rms_normalise_backward(dy * self.weight.data, normed, rrms)
