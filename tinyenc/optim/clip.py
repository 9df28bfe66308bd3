"""The norm of all gradients together, and clipping to it."""

import math

import numpy as np

from ..backend import array_module
from .blocks import in_all_blocks
from .parameters import named_parameters


def clip_grad_norm(parameters, max_norm):
    """Multiply every gradient by max_norm / norm where norm, the length of all of them as one vector, is larger.

    parameters: a Layer, or a list of Parameters; a shared one counts once, frozen ones not at all. Returns the
    norm as it was, a float. Where it is not finite the gradients stay as they are, and no step must be taken:
    `optimizer.step(max_norm)` clips and sees to that by itself.
    """
    parameters = [p for p in named_parameters(parameters).values() if not p.frozen]
    norm = grad_norm(parameters)
    scale = clip_scale(norm, max_norm)
    if scale != 1:
        in_all_blocks((lambda g: np.multiply(g, scale, out=g), p.grad) for p in parameters if p.has_grad)
    return norm


def clip_scale(norm, max_norm):
    """min(1, max_norm / norm), and 1 where norm is not finite."""
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    return float(max_norm) / norm if max_norm < norm < math.inf else 1.0


def grad_norm(parameters):
    """sqrt(sum of all squared gradients) of a list of Parameters, a float; waits for the GPU once."""
    gradients = [p.grad for p in parameters if p.has_grad]
    norm = _length(gradients)
    if 1e-15 < norm < math.inf:
        return norm
    # Squares may have left the range of float32: once more, in units of the largest.
    largest = float(np.max([0.0] + [float(abs(g).max()) for g in gradients if g.size]))
    return largest * _length(gradients, largest) if 0 < largest < math.inf else largest


def _length(gradients, unit=1.0):
    squares = []

    def add(block):
        if unit != 1:
            block = block / unit
        squares.append(np.vdot(block, block))

    in_all_blocks((add, gradient) for gradient in gradients)
    if not squares:
        return 0.0
    squares = array_module(squares[0]).stack(squares).tolist()
    return math.sqrt(sum(sorted(squares)))  # sorted: threads finish in any order, the sum must not depend on it
