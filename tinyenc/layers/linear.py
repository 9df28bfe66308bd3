"""The affine map."""

from .. import init
from ..layer import Layer, Parameter
from ..ops import matmul, matmul_backward, sum_rows
from ..tape import NO_TAPE


class Linear(Layer):
    """x weight + bias, (..., d_in) -> (..., d_out); weight is (d_in, d_out), Xavier uniform at first."""

    def __init__(self, d_in, d_out, bias=True, rng=None):
        self.weight = Parameter(init.xavier_uniform(d_in, d_out, rng))
        self.bias = Parameter(init.zeros(d_out), decay=False) if bias else None

    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        y = matmul(x, self.weight.data)
        if self.bias:
            y += self.bias.data
        return y

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        dx, dweight = matmul_backward(dy, x, self.weight.data)
        self.weight.grad += dweight
        if self.bias:
            self.bias.grad += sum_rows(dy)
        return dx
