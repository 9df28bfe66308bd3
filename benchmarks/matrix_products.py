"""The matrix products of a step, alone: what is left of its time when everything else is free."""

import numpy as np

from tinyenc.ops import add_weight_gradient, matmul
from tinyenc.parallel import run_each


def products_of_a_step(preset, lengths, task):
    """A function that runs the matrix products of one training step or one inference, and nothing else.

    lengths: of the sequences of the batch.
    """
    rng = np.random.default_rng(0)
    d, n = preset.d_model, sum(lengths)

    def random(*shape):
        return rng.standard_normal(shape, np.float32)

    shapes = [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]
    linears = [(random(n, i), random(i, o), random(n, o), random(i, o)) for i, o in shapes]
    heads = [(random(preset.n_heads, t, t), random(preset.n_heads, t, d // preset.n_heads)) for t in lengths]

    def linear(x, weight, dy, dweight):
        matmul(x, weight)
        if task == "train":
            matmul(dy, weight.T)
            add_weight_gradient(dweight, x, dy)

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
