"""Activations."""

from .. import ops
from ..layer import Layer
from ..tape import NO_TAPE


class ReLU(Layer):
    """max(x, 0); its derivative at 0 is 0."""

    def forward(self, x, tape=NO_TAPE):
        y = ops.relu(x)
        tape.push(self, y)
        return y

    def backward(self, dy, tape):
        (y,) = tape.pop(self)
        return ops.relu_backward(dy, y)


class GELU(Layer):
    """x Phi(x), with the exact normal distribution (Hendrycks & Gimpel 2016): "gelu" in BERT's configs."""

    def forward(self, x, tape=NO_TAPE):
        y, cdf = ops.gelu(x)
        tape.push(self, x, cdf)
        return y

    def backward(self, dy, tape):
        x, cdf = tape.pop(self)
        return ops.gelu_backward(dy, x, cdf)


class GELUTanh(Layer):
    """GELU's tanh approximation, a different function by up to 4.7e-4: "gelu_new", "gelu_pytorch_tanh"."""

    def forward(self, x, tape=NO_TAPE):
        y, t = ops.gelu_tanh(x)
        tape.push(self, x, t)
        return y

    def backward(self, dy, tape):
        x, t = tape.pop(self)
        return ops.gelu_tanh_backward(dy, x, t)
