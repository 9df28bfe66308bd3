"""Slips of many kinds in the backward of three small layers, for the tests of gradcheck: `python tests/slips.py` prints
what it says about each."""

import inspect
import math
from typing import NamedTuple

import numpy as np

from tinyenc import NO_TAPE, Dropout, Layer, Parameter, causal_mask
from tinyenc.gradcheck import GradientError, check_gradients
from tinyenc.scores import softmax


class Norm(Layer):
    def __init__(self, d_model):
        self.weight = Parameter(np.ones(d_model, np.float32))

    def forward(self, x, tape=NO_TAPE):
        rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        normed = (x - x.mean(axis=-1, keepdims=True)) * rstd
        tape.push(self, normed, rstd)
        return normed * self.weight.data

    def backward(self, dy, tape):
        normed, rstd = tape.pop(self)
        flat = (dy * normed).reshape(-1, dy.shape[-1])
        self.weight.grad += flat.sum(axis=0)
        dnormed = dy * self.weight.data
        dx = dnormed - dnormed.mean(axis=-1, keepdims=True)
        dx -= normed * (dnormed * normed).mean(axis=-1, keepdims=True)
        return dx * rstd


class Attention(Layer):
    def __init__(self, dropout):
        self.drop = Dropout(dropout)

    def forward(self, q, k, v, mask, tape=NO_TAPE):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = softmax(scores, mask)
        dropped = self.drop.forward(weights, tape)
        tape.push(self, q, k, v, mask, scores, dropped)
        return dropped @ v

    def backward(self, dy, tape):
        q, k, v, mask, scores, dropped = tape.pop(self)
        weights = softmax(scores, mask)
        dv = dropped.mT @ dy
        dweights = self.drop.backward(dy @ v.mT, tape)
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        dq = dscores @ k / math.sqrt(q.shape[-1])
        dk = dscores.mT @ q / math.sqrt(q.shape[-1])
        return dq, dk, dv


class Block(Layer):
    def __init__(self, d_model, dropout):
        self.norm = Norm(d_model)
        self.attn = Attention(dropout)
        self.weight = Parameter(np.random.default_rng(1).standard_normal((d_model, d_model)))
        self.drop = Dropout(dropout)

    def forward(self, x, mask, tape=NO_TAPE):
        h = self.norm.forward(x, tape)
        h = self.attn.forward(h, h, h, mask, tape)
        tape.push(self, h)
        h = h @ self.weight.data
        return x + self.drop.forward(h, tape)

    def backward(self, dy, tape):
        dh = self.drop.backward(dy, tape)
        (h,) = tape.pop(self)
        dweight = (h.mT @ dh).sum(axis=0)
        self.weight.grad += dweight
        dh = dh @ self.weight.data.T
        dq, dk, dv = self.attn.backward(dh, tape)
        return dy + self.norm.backward(dq + dk + dv, tape)


X = np.random.default_rng(2).standard_normal((2, 3, 4))
QKV = np.random.default_rng(3).standard_normal((3, 2, 3, 4))
CAUSAL = causal_mask(3)[0]


def check_norm(cls):
    return check_gradients(cls(4), X)


def check_attention(cls):
    return check_gradients(cls(0.3), *QKV, CAUSAL, seed=1)


def check_block(cls):
    return check_gradients(cls(4, 0.3), X, CAUSAL, seed=1)


class Slip(NamedTuple):
    """A text in the source of a layer, what stands there instead, and what the check must say."""

    kind: str
    layer: type
    right: str
    wrong: str
    says: str


SLIPS = [
    Slip("a factor is forgotten", Norm, "dnormed = dy * self.weight.data", "dnormed = dy",
         "x: right when weight is 1 everywhere"),
    Slip("a gradient is set, not added to", Norm, "self.weight.grad +=", "self.weight.grad =",
         "weight: overwritten, not added to"),
    Slip("the caller's dy is changed", Norm, "dnormed = dy * self.weight.data",
         "dnormed = dy; dnormed *= self.weight.data", "Norm.backward changes dy in place"),
    Slip("a mean stands for a sum", Norm, "flat.sum(axis=0)", "flat.mean(axis=0)",
         "weight: backward's gradient is the right one times 0.1666667 everywhere, which is 1/6 (6: the rows of x)"),
    Slip("memory is taken to be contiguous", Norm, "dy * normed).reshape(", "dy.ravel('K').reshape(dy.shape) * "
         "normed).reshape(", "weight: wrong only for inputs, or a dy, that are not contiguous"),
    Slip("what forward saves is kept in an attribute", Norm, "normed, rstd = tape.pop(self)",
         "tape.pop(self); normed, rstd = self.saved",
         "x and weight: wrong only when the layer is used twice before its backward"),
    Slip("a term is dropped", Norm, "dx = dnormed - dnormed.mean(axis=-1, keepdims=True)", "dx = dnormed.copy()",
         "x: what backward's gradient lacks is -1 times mean(dy * weight) * saved array 2: this term is forgotten"),
    Slip("the scale is forgotten", Attention, "dq = dscores @ k / math.sqrt(q.shape[-1])", "dq = dscores @ k",
         "q: backward's gradient is the right one times 2 everywhere, which is 2 (axis 0 of q) or "
         "sqrt(4) (4: axis 2 of q)"),
    Slip("the undropped weights are used", Attention, "dv = dropped.mT @ dy", "dv = weights.mT @ dy",
         "v: right without dropout, wrong with it"),
    Slip("the mask is forgotten", Attention, "weights = softmax(scores, mask)\n        dv",
         "weights = softmax(scores)\n        dv",
         "q and k: right when mask is True everywhere, wrong where it hides something"),
    Slip("a sign is turned", Attention, "return dq, dk, dv", "return dq, -dk, dv",
         "k: backward's gradient is the right one with the sign turned"),
    Slip("two gradients change places", Attention, "return dq, dk, dv", "return dk, dq, dv",
         "q: the right gradient is what backward gives for k"),
    Slip("a saved array is changed", Attention, "dv = dropped.mT @ dy", "dv = dropped.mT @ dy; q *= 2",
         "changes q in place"),
    Slip("the branch past the residual is forgotten", Block, "return dy + self.norm", "return self.norm",
         "x: what backward's gradient lacks is exactly dy"),
    Slip("a weight's gradient is transposed", Block, "dweight = (h.mT @ dh).sum(axis=0)",
         "dweight = (h.mT @ dh).sum(axis=0).T", "weight: backward's gradient is the right one transposed"),
    Slip("a layer inside is wrong", Block, "self.norm = Norm(d_model)", "self.norm = NormWithoutFactor(d_model)",
         "norm (NormWithoutFactor) is the first layer in backward order that is wrong by itself"),
    Slip("a backward is left out", Block, "dh = self.drop.backward(dy, tape)\n        (h,) = tape.pop(self)",
         "dh = dy\n        (h,) = tape.pop(self)", "next is Dropout, not Block"),
    Slip("a backward comes too late", Block, "dh = self.drop.backward(dy, tape)\n        (h,) = tape.pop(self)",
         "(h,) = tape.pop(self)\n        dh = self.drop.backward(dy, tape)", "next is Dropout, not Block"),
    Slip("the last backward is not called", Block, "dy + self.norm.backward(dq + dk + dv, tape)", "dy + dq + dk + dv",
         "leaves 1 on the tape of what forward pushed, the last one first: Norm."),
]
CHECKS = {Norm: check_norm, Attention: check_attention, Block: check_block}


class NormWithoutFactor(Norm):
    def backward(self, dy, tape):
        factor, self.weight.data = self.weight.data, np.ones_like(self.weight.data)
        dx = super().backward(dy, tape)
        self.weight.data = factor
        return dx


def with_slip(slip):
    """A copy of the layer's class with the slip in its source."""
    source = inspect.getsource(slip.layer)
    assert source.count(slip.right) == 1, slip
    source = source.replace(slip.right, slip.wrong)
    if "self.saved" in slip.wrong:
        source = source.replace("tape.push(self, ", "self.saved = normed, rstd\n        tape.push(self, ")
    space = dict(globals())
    exec(source, space)
    return space[slip.layer.__name__]


def message(slip):
    """What check_gradients says about the slip."""
    try:
        return f"not found: {CHECKS[slip.layer](with_slip(slip))}"
    except GradientError as error:
        return str(error)


if __name__ == "__main__":
    for number, slip in enumerate(SLIPS, 1):
        print(f"{number}. {slip.kind}, in {slip.layer.__name__}: {slip.right!r} -> {slip.wrong!r}\n")
        print("    " + message(slip).replace("\n", "\n    ") + "\n")
