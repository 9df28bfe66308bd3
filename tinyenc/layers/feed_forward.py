"""Position-wise feed-forward networks."""

from ..layer import Layer
from ..tape import NO_TAPE
from .activation import GELU
from .dropout import Dropout
from .linear import Linear


class FeedForward(Layer):
    """w_2(drop(activation(w_1(x)))), (..., d_model) -> (..., d_model) (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, d_model, d_ff, dropout=0.1, activation=None, rng=None):
        self.w_1 = Linear(d_model, d_ff, rng=rng)
        self.activation = activation or GELU()
        self.drop = Dropout(dropout)
        self.w_2 = Linear(d_ff, d_model, rng=rng)

    def forward(self, x, tape=NO_TAPE):
        h = self.w_1.forward(x, tape)  # (..., F)
        h = self.activation.forward(h, tape)
        h = self.drop.forward(h, tape)
        return self.w_2.forward(h, tape)

    def backward(self, dy, tape):
        dh = self.w_2.backward(dy, tape)
        dh = self.drop.backward(dh, tape)
        dh = self.activation.backward(dh, tape)
        return self.w_1.backward(dh, tape)


class GatedFeedForward(Layer):
    """w_2(drop(activation(w_gate(x)) * w_1(x))), (..., d_model) -> (..., d_model) (Shazeer 2020).

    activation: GELU() makes it GEGLU, SiLU() SwiGLU, ReLU() ReGLU, Sigmoid() the GLU of Dauphin et al. (2017).
    It has three matrices: with two thirds of the d_ff it is as large as a FeedForward.
    """

    def __init__(self, d_model, d_ff, dropout=0.1, activation=None, rng=None):
        self.w_gate = Linear(d_model, d_ff, rng=rng)
        self.activation = activation or GELU()
        self.w_1 = Linear(d_model, d_ff, rng=rng)
        self.drop = Dropout(dropout)
        self.w_2 = Linear(d_ff, d_model, rng=rng)

    def forward(self, x, tape=NO_TAPE):
        gate = self.w_gate.forward(x, tape)  # (..., F)
        gate = self.activation.forward(gate, tape)
        h = self.w_1.forward(x, tape)  # (..., F)
        tape.push(self, gate, h)
        h = self.drop.forward(gate * h, tape)
        return self.w_2.forward(h, tape)

    def backward(self, dy, tape):
        dh = self.w_2.backward(dy, tape)
        dh = self.drop.backward(dh, tape)
        gate, h = tape.pop(self)
        dx = self.w_1.backward(dh * gate, tape)
        dgate = self.activation.backward(dh * h, tape)
        return dx + self.w_gate.backward(dgate, tape)
