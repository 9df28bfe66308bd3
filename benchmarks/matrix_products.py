"""The matrix products of a step, alone: what is left of its time when everything else is free."""

import math

import numpy as np

from tinyenc.ops import matmul, matmul_backward
from tinyenc.parallel import run_each


def products_of_a_step(preset, lengths, task):
    """A function that runs the matrix products of one training step or one inference, and nothing else.

    lengths: of the sequences of the batch.
    """
    rng = np.random.default_rng(0)
    d, n = preset.d_model, sum(lengths)

    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    linears = [(random(n, i), random(i, o), random(n, o)) for i, o in [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]]
    heads = [(random(preset.n_heads, t, t), random(preset.n_heads, t, d // preset.n_heads)) for t in lengths]

    def linear(x, weight, dy):
        matmul(x, weight)
        if task == "train":
            matmul_backward(dy, x, weight)

    def attend(square, long):
        long @ long.mT
        square @ long
        if task == "train":
            square.mT @ long
            long @ long.mT
            square @ long
            square.mT @ long

    def run():
        for _ in range(preset.n_layers):
            for operands in linears:
                linear(*operands)
            run_each(lambda operands: attend(*operands), heads)

    return run


def work_of_a_step(preset, lengths, task):
    """Floating-point operations of those products."""
    d, n = preset.d_model, sum(lengths)
    once = 2 * n * (4 * d * d + 8 * d * d) + sum(4 * t * t * d for t in lengths)
    return math.prod([preset.n_layers, once, 3 if task == "train" else 1])
