"""Multi-head attention."""

import numpy as np

from ..layer import Layer
from ..layers.linear import Linear
from ..positions import NoPositions, check_takes_bias
from ..tape import NO_TAPE
from .dot_product import DotProduct
from .layout import Packing
from .masks import check_mask
from .per_sequence import PerSequence


class MultiHeadAttention(Layer):
    """merge(attend(split(query w_q), split(memory w_k), split(memory w_v))) w_o (Vaswani et al. 2017, section 3.2.2).

    query: (B, T, D); memory: (B, S, D), query itself in self-attention; mask as in `masks`. Returns (B, T, D).
    Packed, all are (N, D) and mask is the Packing.
    attend: the attention core, by default DotProduct(dropout).
    positions: positions told inside attention (Rotary, ALiBi, T5Buckets), in self-attention only.
    """

    def __init__(self, d_model, n_heads, dropout=0.0, attend=None, positions=None, rng=None):
        if n_heads < 1 or d_model % n_heads:
            raise ValueError(f"d_model {d_model} is not a multiple of n_heads {n_heads}")
        if not isinstance(attend, Layer | None):
            raise TypeError(f"attend must be an attention core, as DotProduct() is one, got {attend!r}")
        self.n_heads = n_heads
        self.w_q = Linear(d_model, d_model, rng=rng)
        self.w_k = Linear(d_model, d_model, rng=rng)
        self.w_v = Linear(d_model, d_model, rng=rng)
        self.attend = PerSequence(attend or DotProduct(dropout))
        self.positions = positions or NoPositions()
        self.positions.check(n_heads, d_model // n_heads, self.attend.core)
        self.w_o = Linear(d_model, d_model, rng=rng)

    def forward(self, query, memory, mask=None, tape=NO_TAPE):
        mask = self.check(query, memory, mask)
        places, length = self.places(query, mask)
        q = self.split(self.w_q.forward(query, tape))  # (B, H, T, K)
        k = self.split(self.w_k.forward(memory, tape))  # (B, H, S, K)
        v = self.split(self.w_v.forward(memory, tape))  # (B, H, S, K)
        q = self.positions.turn(q, places, tape)
        k = self.positions.turn(k, places, tape)
        bias = self.positions.bias(length, q, tape)  # (H, T, T) or None
        if bias is not None:
            check_takes_bias(self.positions, self.attend.core)
        heads = self.attend.forward(q, k, v, mask, bias, tape)  # (B, H, T, K)
        return self.w_o.forward(self.merge(heads), tape)  # (B, T, D)

    def backward(self, dy, tape):
        """dquery and dmemory; in self-attention their sum is the gradient."""
        dheads = self.split(self.w_o.backward(dy, tape))  # split and merge are adjoint
        dq, dk, dv = self.attend.backward(dheads, tape)
        self.positions.bias_backward(tape)
        dk = self.positions.turn_backward(dk, tape)
        dq = self.positions.turn_backward(dq, tape)
        dmemory = self.w_v.backward(self.merge(dv), tape)
        dmemory += self.w_k.backward(self.merge(dk), tape)
        dquery = self.w_q.backward(self.merge(dq), tape)
        return dquery, dmemory

    def check(self, query, memory, mask):
        """The mask as booleans, or the Packing; ValueError where query, memory and mask do not fit together."""
        for part in (self.positions, self.attend.core):
            if memory is not query and getattr(part, "compares_places", False):
                raise ValueError(f"{type(part).__name__} compares places in one sequence, and has no meaning in "
                                 "cross-attention")
        if isinstance(mask, Packing):
            if not len(query) == len(memory) == len(mask.positions):
                raise ValueError(f"{len(query)} queries and {len(memory)} keys, packed, do not fit a Packing of "
                                 f"{len(mask.positions)} tokens")
            return mask
        if query.shape[:-2] != memory.shape[:-2]:
            raise ValueError(f"query {query.shape} and memory {memory.shape} are not batches of one size")
        return check_mask(mask, (query.shape[0], self.n_heads, query.shape[1], memory.shape[1]))

    def places(self, query, mask):
        """The place of each query, and the length of the longest sequence."""
        if isinstance(mask, Packing):
            return mask.positions, mask.longest
        return np.arange(query.shape[1]), query.shape[1]

    def split(self, x):
        """(..., T, D) -> (..., H, T, K), a view."""
        *lead, d_model = x.shape
        return x.reshape(*lead, self.n_heads, d_model // self.n_heads).swapaxes(-2, -3)

    def merge(self, x):
        """(..., H, T, K) -> (..., T, D)."""
        x = x.swapaxes(-2, -3)
        *lead, h, width = x.shape
        return x.reshape(*lead, h * width)
