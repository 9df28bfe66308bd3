"""The affine map."""

from ..init import xavier_uniform, zeros
from ..layer import Layer, Parameter
from ..ops import add_weight_gradient, matmul, sum_rows
from ..tape import NO_TAPE


class Linear(Layer):
    """x weight + bias, (..., d_in) -> (..., d_out); weight is (d_in, d_out), Xavier uniform at first."""

    def __init__(self, d_in, d_out, bias=True, rng=None):
        self.weight = Parameter(xavier_uniform(d_in, d_out, rng))
        self.bias = Parameter(zeros(d_out), decay=False) if bias else None

    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        return matmul(x, self.weight.data, self.bias and self.bias.data)

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        add_weight_gradient(self.weight.grad, x, dy)
        if self.bias:
            self.bias.grad += sum_rows(dy)
        return matmul(dy, self.weight.data.T)
