"""Dropout."""

from ..keep_mask import KeepMask
from ..layer import Layer
from ..tape import NO_TAPE


class Dropout(Layer):
    """x / (1 - p) with probability 1 - p, else 0, entry by entry (Srivastava et al. 2014).

    Active exactly when the tape has a seed; otherwise x itself comes back and no random number is drawn.
    """

    def __init__(self, p):
        if not 0 <= p < 1:
            raise ValueError(f"the dropout probability must be in [0, 1), got {p}")
        self.p = p

    def forward(self, x, tape=NO_TAPE):
        mask = self.draw(x, tape)
        tape.push(self, mask)
        return mask.apply(x) if mask else x

    def backward(self, dy, tape):
        (mask,) = tape.pop(self)
        return mask.apply(dy) if mask else dy

    def draw(self, x, tape, kind=KeepMask):
        """A fresh mask for an array like x, or None where nothing is dropped."""
        seed = tape.next_seed() if self.p else None
        return None if seed is None else kind(self.p, seed, x)
