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
        if not tape.keep:
            return ops.gelu(x)
        y, slope = ops.gelu(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope


class GELUTanh(Layer):
    """GELU's tanh approximation, a different function by up to 4.7e-4: "gelu_new", "gelu_pytorch_tanh"."""

    def forward(self, x, tape=NO_TAPE):
        if not tape.keep:
            return ops.gelu_tanh(x)
        y, slope = ops.gelu_tanh(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope


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
        if not tape.keep:
            return ops.silu(x)
        y, slope = ops.silu(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope
