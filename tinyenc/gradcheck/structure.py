"""What must hold before numbers are worth comparing: each broken promise is named as itself."""

import numpy as np

from ..tape import NO_TAPE, Tape
from .probe import is_float
from .report import and_list


class GradientError(AssertionError):
    """A layer whose backward is not the derivative of its forward, or that breaks a promise all layers make."""


def check_structure(probe):
    """Run forward and backward once and raise GradientError on the first promise broken.

    The promises: the same output under the same seed, float64 for float64, finite numbers, one gradient of the right
    shape and dtype for each float input, an empty tape at the end, and no array changed that was the caller's.
    """
    before = snapshot(probe)
    probe.forward()
    check_unchanged(probe, before, "forward")
    check_output(probe)
    tape = WatchedTape(probe.seed)
    dy = probe.dy.copy()
    probe.clear_gradients()

    probe.forward(tape)
    gradients = probe.backward(dy, tape)
    if len(tape):
        left = ", ".join(reversed([type(layer).__name__ for layer, _ in tape.pushed]))
        raise GradientError(f"{probe.name}.backward leaves {len(tape)} on the tape of what forward pushed, the last "
                            f"one first: {left}. A backward was not called, or its pop")
    if not np.array_equal(dy, probe.dy):
        raise GradientError(f"{probe.name}.backward changes dy in place; it is the caller's, who may need it again")
    check_unchanged(probe, before, "backward")
    if tape.damaged:
        raise GradientError(f"{tape.damaged[0]} in place between its forward and its backward, by {probe.name} or a "
                            "layer inside. What is on the tape is frozen")
    check_gradient_arrays(probe, gradients)


def check_output(probe):
    """GradientError unless forward returns one finite float64 array, the same in every run."""
    y = probe.y
    if not isinstance(y, (np.ndarray, np.floating)):
        raise GradientError(f"{probe.name}.forward returns a {type(y).__name__}, not one array")
    if y.dtype != np.float64:
        raise GradientError(f"{probe.name}.forward returns {y.dtype} where inputs and parameters are float64")
    check_finite(f"{probe.name}.forward returns", y)
    check_blind_queries(probe, y)
    again = probe.forward()
    if again.shape != y.shape or not np.allclose(again, y, 1e-10, 1e-10 * abs(y).max(initial=0)):
        raise GradientError(f"{probe.name}.forward is not deterministic: two runs with "
                            f"Tape(seed={probe.seed}) differ. Random numbers must come from tape.next_seed()")
    if probe.seed is None:
        without = probe.forward(NO_TAPE)
        if not np.allclose(without, y, 1e-10, 1e-10 * abs(y).max(initial=0)):
            raise GradientError(f"{probe.name}.forward returns something else without a tape than with one")


def check_blind_queries(probe, y):
    """GradientError unless an attention core returns zeros for queries that the mask lets see nothing."""
    mask, qkv = probe.given.get("mask"), [probe.given.get(name) for name in "qkv"]
    is_core = all(np.ndim(x) == 4 for x in (*qkv, mask, y)) and y.shape[:3] == qkv[0].shape[:3]
    if not is_core:
        return
    blind = np.broadcast_to(~mask.astype(bool).any(axis=-1), y.shape[:-1])
    if y[blind].any():
        place = np.argwhere(blind & y.any(axis=-1))[0].tolist()
        raise GradientError(f"{probe.name}.forward returns {float(abs(y[tuple(place)]).max()):.3g} for the query at "
                            f"{place}, which may see nothing: it must be 0")


def check_gradient_arrays(probe, gradients):
    """GradientError unless each float input and parameter has a gradient of its shape and dtype, and finite."""
    inputs = probe.differentiated
    if len(gradients) != len(inputs):
        raise GradientError(f"{probe.name}.backward returns {len(gradients)} gradients for {len(inputs)} float inputs"
                            + (f" ({', '.join(inputs)})" if inputs else ""))
    named = [(f"{probe.name}.backward returns, for {name},", gradient, probe.given[name])
             for name, gradient in zip(inputs, gradients)]
    named += [(f"{probe.name}.backward leaves in {name}.grad", p.grad, p.data)
              for name, p in probe.parameters.items()]
    for says, gradient, array in named:
        if not isinstance(gradient, (np.ndarray, np.floating)):
            raise GradientError(f"{says} a {type(gradient).__name__}, not an array")
        if gradient.shape != array.shape:
            turned = array.ndim > 1 and gradient.shape == array.shape[::-1]
            raise GradientError(f"{says} a gradient of shape {gradient.shape} for an array of shape {array.shape}"
                                + (": transposed" if turned else ""))
        if gradient.dtype != np.float64:
            raise GradientError(f"{says} {gradient.dtype} where inputs and parameters are float64")
        check_finite(says, gradient)


def check_single_precision(probe):
    """Run a float32 copy once and raise GradientError where what comes out is not float32.

    Where an object that is given holds arrays of float64, as a bias may, that is its giver's choice: nothing is said.
    """
    if any(is_float(array) and array.dtype == np.float64
           for value in probe.given.values() for array in getattr(value, "__dict__", {}).values()):
        return
    single = probe.in_float32()
    single.clear_gradients()
    tape = Tape(single.seed)
    with np.errstate(all="ignore"):  # numbers made for float64 may be too large or too small
        y = single.forward(tape)
        gradients = single.backward(np.asarray(probe.dy, np.float32), tape)
    named = [(f"{probe.name}.forward turns float32 into", y)]
    named += [(f"{probe.name}.backward turns float32, for {name}, into", gradient)
              for name, gradient in zip(single.differentiated, gradients)]
    named += [(f"{probe.name}.backward leaves in {name}.grad, where all is float32,", p.grad)
              for name, p in single.parameters.items()]
    for says, array in named:
        if array.dtype != np.float32:
            raise GradientError(f"{says} {array.dtype}: an array, or a NumPy scalar, of that dtype takes part. Scalars "
                                "are best Python's or math's, and arrays made in it get the dtype of what they meet")


def check_finite(says, array):
    """GradientError where an array holds infinity or NaN."""
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        at = tuple(bad[0].tolist())
        raise GradientError(f"{says} {array[at]} at {list(at)}, and {len(bad)} of {array.size} numbers are not finite")


def snapshot(probe):
    """Copies of every array that a layer must leave as it is."""
    arrays = {name: value for name, value in probe.given.items() if isinstance(value, np.ndarray)}
    arrays.update({name: p.data for name, p in probe.parameters.items()})
    return {name: (array, array.copy()) for name, array in arrays.items()}


def check_unchanged(probe, before, method):
    """GradientError where a method changed what it was given: before holds each array and a copy."""
    for name, (array, copy) in before.items():
        if not np.array_equal(array, copy, equal_nan=is_float(array)):
            raise GradientError(f"{probe.name}.{method} changes {name} in place; it is the caller's"
                                if name in probe.given else
                                f"{probe.name}.{method} changes the parameter {name}; only an optimiser may")


def out_of_order(layer, pushed, error):
    """What is wrong where layer pops and another one's record is on top: whose are above its own, or that it has none.

    pushed: (layer, its arrays) for each record held.
    """
    name = type(layer).__name__
    places = [i for i, (owner, _) in enumerate(pushed) if owner is layer]
    if not places:
        return f"{name}.backward pops what its forward has not pushed, or pops twice: {error}"
    above = and_list(dict.fromkeys(type(owner).__name__ for owner, _ in reversed(pushed[places[-1] + 1:])))
    return (f"{above} pushed a record that nothing popped before {name}.backward pops its own: its backward does not "
            f"pop it, was left out, or comes too late ({error})")


class WatchedTape(Tape):
    """A tape that notices when an array it holds is changed, and says which layer pops out of order."""

    def __init__(self, seed=None, keep=True):
        super().__init__(seed, keep)
        self.pushed = []  # (layer, [(array, its copy)])
        self.damaged = []

    def push(self, layer, *saved):
        super().push(layer, *saved)
        self.pushed.append((layer, [(a, a.copy()) for a in saved if isinstance(a, np.ndarray)]))

    def pop(self, layer):
        try:
            saved = super().pop(layer)
        except RuntimeError as error:
            raise GradientError(out_of_order(layer, self.pushed, error)) from None
        _, arrays = self.pushed.pop()
        for i, (array, copy) in enumerate(arrays):
            if not np.array_equal(array, copy, equal_nan=is_float(array)):
                self.damaged.append(f"array {i} that {type(layer).__name__} saved is changed")
        return saved

    def fork(self):
        tape = WatchedTape(self.next_seed(), self.keep)
        tape.damaged = self.damaged
        return tape
