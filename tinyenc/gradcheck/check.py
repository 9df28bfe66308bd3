"""check_gradients: is backward the derivative of forward?"""

import inspect

from ..backend import as_array
from .compare import Check
from .diagnose import blame_structure, diagnose
from .probe import Probe
from .structure import GradientError


def check_gradients(layer, *inputs, mask=None, named=None, seed=None, tol=1e-7, rng=0):
    """Raise GradientError unless layer.backward is the derivative of layer.forward; return what was Checked.

    inputs: what forward takes before the mask and the tape. Float arrays are differentiated, integer and boolean
    arrays and other objects are not. mask: forward's. named: {name: value} of what else forward takes by name.
    seed: the tape's, so that dropout is on, with the same entries dropped in every run; None for no dropout.
    tol: the largest error allowed, relative to the largest entry of the gradient.
    rng: an integer; decides the cotangent dy and the values of constant parameters.

    The layer and the inputs are copied to float64 and stay as they were. The derivative of <dy, forward>, dy random, is
    compared with two-sided differences for every input and parameter, number by number in small arrays and along
    random directions in large ones. Where the point is on a kink, as max(x, 0) at 0, there is no derivative: such
    places are counted, and everything is checked once more a little beside them. Layers whose forward and backward
    are each right must be right, too, when they are used twice on one tape, and on inputs scattered in memory, and
    must turn float32 into float32. What has no effect on this forward is named in the result: its zero says little.
    """
    __tracebackhide__ = True  # pytest shows the message, not these lines
    check = checker(layer, *inputs, mask=mask, named=named, seed=seed, tol=tol, rng=rng)
    try:
        result = check.result()
    except GradientError as error:
        raise GradientError(blame_structure(check, error)) from None
    if result is None:
        raise GradientError(diagnose(check))
    return result


def checker(layer, *inputs, mask=None, named=None, seed=None, tol=1e-7, rng=0):
    """The Check that check_gradients makes."""
    if "tape" not in inspect.signature(layer.forward).parameters:
        raise TypeError(f"{type(layer).__name__}.forward must take tape=NO_TAPE, as every layer's does")
    named = {**({} if mask is None else {"mask": as_array(mask)}), **(named or {})}
    return Check(Probe(layer, inputs, named, seed, rng), tol)
