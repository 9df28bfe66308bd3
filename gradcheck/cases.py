"""Cases: a layer and the inputs at which its derivative is checked.

To add one, put a line into CASES of the test_*.py for the layer's module (or of a new one, with the two lines every
such file ends in):

    case("rms-norm", RMSNorm(4), x(2, 3, 4)),
    case("masked-dropout", MyAttention(8, 2, dropout=0.3), x(3, 4, 8), mask=PADDING, seed=1),

    test_gradients = checks(CASES)

Every layer of tinyenc needs cases that leave nothing out; test_completeness.py says what is missing. Its backward is
then edited one fault at a time by planted_faults.py, and the cases must catch every one of them.
"""

from typing import NamedTuple

import numpy as np
import pytest

from tinyenc import NO_TAPE, Layer, causal_mask, padding_mask
from tinyenc.attention.layout import Packing
from tinyenc.gradcheck.check import check_gradients, checker

LENGTHS = (5, 0, 2)  # a full sequence, an empty one, a short one
TOKENS = padding_mask(LENGTHS, 5)[:, 0, 0]  # (3, 5)
PADDING = padding_mask(LENGTHS, 5)  # (3, 1, 1, 5): the second query row sees nothing
CAUSAL = PADDING & causal_mask(5)  # (3, 1, 5, 5)
MEMORY = padding_mask((0, 6, 3), 6)  # (3, 1, 1, 6), for cross-attention
PACKED = Packing(padding_mask((2, 0, 5, 2), 5)[:, 0, 0])  # 9 tokens in three sequences

RESULTS = {}  # what was Checked, by case


class Case(NamedTuple):
    """A layer, what its forward takes, and the seed of the tape."""

    name: str
    layer: Layer
    inputs: tuple
    mask: object
    named: dict | None
    seed: int | None

    def check(self):
        __tracebackhide__ = True
        return check_gradients(self.layer, *self.inputs, mask=self.mask, named=self.named, seed=self.seed)

    def checker(self):
        return checker(self.layer, *self.inputs, mask=self.mask, named=self.named, seed=self.seed)


def case(name, layer, *inputs, mask=None, named=None, seed=None):
    """A Case. named: what forward takes by name only; seed: with one, dropout is on, the same in every run."""
    return Case(name, layer, inputs, mask, named, seed)


def checks(cases):
    """A test function that checks every case."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case.name)
    def test_gradients(case):
        RESULTS[type(case.layer).__name__, case.name] = case.check()

    return test_gradients


def x(*shape, scale=1.0, seed=0):
    """Normal numbers, the same for the same arguments."""
    return scale * np.random.default_rng((*shape, seed)).standard_normal(shape)


def ids(*shape, n=7):
    """Token ids below n, the same for the same arguments; some stand more than once."""
    return np.random.default_rng(shape).integers(0, n, shape)


class Twice(Layer):
    """layer(x) * layer(2 x), entry by entry: one layer that is used twice before its backward."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x, mask=None, tape=NO_TAPE):
        extra = () if mask is None else (mask,)
        a = self.layer.forward(x, *extra, tape=tape)
        b = self.layer.forward(2 * x if x.dtype.kind == "f" else x, *extra, tape=tape)
        tape.push(self, a, b, x.dtype.kind == "f")
        return a * b

    def backward(self, dy, tape):
        a, b, is_float = tape.pop(self)
        second = self.layer.backward(dy * a, tape)
        first = self.layer.backward(dy * b, tape)
        return first + 2 * second if is_float else None
