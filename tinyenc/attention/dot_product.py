"""Scaled dot-product attention."""

import math

from ..keep_mask import KeepScores
from ..layer import Layer
from ..layers.dropout import Dropout
from ..ops import product
from ..scores import dot_products, masked_softmax, masked_softmax_backward
from ..tape import NO_TAPE
from .masks import check_mask


class DotProduct(Layer):
    """softmax(q k^T / sqrt(K)) v, head by head (Vaswani et al. 2017, section 3.2.1); dropout on the weights.

    q: (B, H, T, K); k, v: (B, H, S, K); mask as in `masks`; bias: a RelativeBias to add to the scores, or None.
    Returns (B, H, T, K).
    """

    takes_padding = True  # it may get short sequences together, padded, with a mask
    takes_bias = True  # it adds a bias to its scores

    def __init__(self, dropout=0.0):
        self.dropout = Dropout(dropout)

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        mask = check_mask(mask, (*q.shape[:3], k.shape[2]))
        q = q / math.sqrt(q.shape[-1])  # scaled before the product, which could overflow half precision
        scores = dot_products(q, k)  # (B, H, T, S)
        if bias is not None:
            scores = scores + bias.values
        drop = self.dropout.draw(scores, tape, KeepScores)
        weights, dropped = masked_softmax(scores, mask, drop)
        tape.push(self, q, k, v, bias, weights.astype(q.dtype, copy=False), drop)
        return product(dropped, v).astype(q.dtype, copy=False)

    def backward(self, dy, tape):
        q, k, v, bias, weights, drop = tape.pop(self)
        dropped = drop.apply(weights) if drop else weights
        dv = product(dropped.mT, dy)
        dscores = masked_softmax_backward(dot_products(dy, v), weights, drop)
        if bias is not None and bias.learnt:
            bias.add_grad(dscores)
        dq = product(dscores, k) / math.sqrt(q.shape[-1])
        dk = product(dscores.mT, q)
        return tuple(dx.astype(dy.dtype, copy=False) for dx in (dq, dk, dv))
