"""From the hidden states of a sequence to one vector: (B, T, D) and the real tokens (B, T) -> (B, D).

mask, (B, T) or (B, 1, 1, T), is True (or 1) at real tokens; None means that all are. A sequence without any gives
zeros and no gradient.
"""

import math

import numpy as np

from ..attention.masks import real_tokens
from ..backend import array_module, like, wide
from ..layer import Layer
from ..ops import product
from ..tape import NO_TAPE


class FirstPool(Layer):
    """The state of the first real token: [CLS], where the tokenizer puts one."""

    def forward(self, states, mask=None, tape=NO_TAPE):
        real = where_real(states, mask)
        first = real.argmax(axis=1)
        rows = array_module(states).arange(states.shape[0])
        tape.push(self, states, real, first, rows)
        return states[rows, first] * real[rows, first][:, None]

    def backward(self, dy, tape):
        states, real, first, rows = tape.pop(self)
        dstates = array_module(dy).zeros_like(states)
        dstates[rows, first] = dy * real[rows, first][:, None]
        return dstates


class MeanPool(Layer):
    """The mean of the states of the real tokens, summed in float32 or wider."""

    def forward(self, states, mask=None, tape=NO_TAPE):
        real = where_real(states, mask)[:, None]  # (B, 1, T)
        count = real.sum(axis=2).clip(1).astype(wide(states.dtype))  # (B, 1)
        tape.push(self, real, count)
        total = product(real.astype(count.dtype), states)[:, 0]
        return (total / count).astype(states.dtype, copy=False)

    def backward(self, dy, tape):
        real, count = tape.pop(self)
        shared = (dy / count)[:, None]  # (B, 1, D)
        return product(real.mT.astype(count.dtype), shared).astype(dy.dtype, copy=False)


class MaxPool(Layer):
    """The largest state over the real tokens, entry by entry; a tie sends the gradient to the first."""

    def forward(self, states, mask=None, tape=NO_TAPE):
        real = where_real(states, mask)[..., None]  # (B, T, 1)
        at = np.where(real, states, -math.inf).argmax(axis=1)[:, None]  # (B, 1, D)
        some = real.any(axis=1)  # (B, 1)
        tape.push(self, states, at, some)
        return array_module(states).take_along_axis(states, at, axis=1)[:, 0] * some

    def backward(self, dy, tape):
        states, at, some = tape.pop(self)
        places = array_module(dy).arange(states.shape[1])[:, None]
        return (places == at) * (dy * some)[:, None]


def where_real(states, mask):
    """mask as booleans (B, T), where the states are."""
    if mask is None:
        return array_module(states).ones(states.shape[:2], bool)
    return like(real_tokens(mask, states.shape[:2]), states)
