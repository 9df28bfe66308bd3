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


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def forward(self, x, tape=NO_TAPE):
        y = ops.sigmoid(x)
        tape.push(self, y)
        return y

    def backward(self, dy, tape):
        (y,) = tape.pop(self)
        return ops.sigmoid_backward(dy, y)


class SiLU(Layer):
    """x sigmoid(x) (Elfwing et al. 2018): "silu" and "swish" in configs."""

    def forward(self, x, tape=NO_TAPE):
        y, s = ops.silu(x)
        tape.push(self, x, s)
        return y

    def backward(self, dy, tape):
        x, s = tape.pop(self)
        return ops.silu_backward(dy, x, s)
