"""The look-up table of tokens."""

import numpy as np

from ..backend import as_array, on_host
from ..init import normal
from ..layer import Layer, Parameter
from ..ops import add_rows
from ..tape import NO_TAPE


class Embedding(Layer):
    """scale * weight[ids], (...) -> (..., d_model).

    scale: what Vaswani et al. (2017, section 3.4) set to sqrt(d_model); the table then starts with deviation
    1 / scale, so that the vectors have unit variance, and with 0.02 where there is no scale.
    padding_idx: a row that starts as zeros and never gets a gradient. Loading may set it to other values.
    The table is not decayed, so rows that a batch does not name stay as they are.
    """

    def __init__(self, n_tokens, d_model, scale=1.0, padding_idx=None, rng=None):
        self.weight = Parameter(normal((n_tokens, d_model), 0.02 if scale == 1 else 1 / scale, rng), decay=False)
        self.scale = float(scale)
        self.padding_idx = padding_idx
        if padding_idx is not None:
            check_ids(np.asarray(padding_idx), n_tokens)
            self.weight.data[padding_idx] = 0

    def forward(self, ids, tape=NO_TAPE):
        ids = as_array(ids)
        if on_host(ids):  # else the host would wait for the GPU; the encoder looks before it moves them there
            check_ids(ids, self.weight.shape[0])
        tape.push(self, ids)
        return self.weight.data[ids] * self.scale

    def backward(self, dy, tape):
        """Adds to the gradient of the table; ids have none."""
        (ids,) = tape.pop(self)
        drows = dy.astype(self.weight.grad.dtype, copy=False) * self.scale  # half precision could overflow
        if self.padding_idx is not None:
            drows = drows * (ids != self.padding_idx)[..., None]
        add_rows(self.weight.grad, ids, drows)


def check_ids(ids, n, what="token"):
    """Raise TypeError unless ids are integers, IndexError unless all are in [0, n).

    Both ends are checked: NumPy counts negative ids from the end, and CuPy wraps ids that are too large.
    """
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{what} ids must be integers, got {ids.dtype}")
    if ids.size and not (0 <= int(ids.min()) and int(ids.max()) < n):
        low, high = int(ids.min()), int(ids.max())
        raise IndexError(f"{what} id {low if low < 0 else high} is outside the table of {n} {what}s (0 to {n - 1})")
