"""Activations."""

from ..layer import Layer
from ..ops import gelu, gelu_tanh, relu, relu_backward, sigmoid, sigmoid_backward, silu
from ..tape import NO_TAPE


class ReLU(Layer):
    """max(x, 0); its derivative at 0 is 0."""

    def forward(self, x, tape=NO_TAPE):
        y = relu(x)
        tape.push(self, y)
        return y

    def backward(self, dy, tape):
        (y,) = tape.pop(self)
        return relu_backward(dy, y)


class GELU(Layer):
    """x Phi(x), with the exact normal distribution (Hendrycks & Gimpel 2016): "gelu" in BERT's configs."""

    def forward(self, x, tape=NO_TAPE):
        if not tape.keep:
            return gelu(x)
        y, slope = gelu(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope


class GELUTanh(Layer):
    """GELU's tanh approximation, a different function by up to 4.7e-4: "gelu_new", "gelu_pytorch_tanh"."""

    def forward(self, x, tape=NO_TAPE):
        if not tape.keep:
            return gelu_tanh(x)
        y, slope = gelu_tanh(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def forward(self, x, tape=NO_TAPE):
        y = sigmoid(x)
        tape.push(self, y)
        return y

    def backward(self, dy, tape):
        (y,) = tape.pop(self)
        return sigmoid_backward(dy, y)


class SiLU(Layer):
    """x sigmoid(x) (Elfwing et al. 2018): "silu" and "swish" in configs."""

    def forward(self, x, tape=NO_TAPE):
        if not tape.keep:
            return silu(x)
        y, slope = silu(x, with_slope=True)
        tape.push(self, slope)
        return y

    def backward(self, dy, tape):
        (slope,) = tape.pop(self)
        return dy * slope
