"""A layer at one point, in float64: its derivative as backward says it is, and by differences."""

import copy
import inspect
import math
from functools import cached_property

import numpy as np

from ..positions import NoPositions, Positions
from ..tape import Tape
from .report import and_list

EPS = float(np.finfo(np.float64).eps)
FAR = 20  # how much further out the four points of Slope.far stand than the two of Slope.near


class Probe:
    """A float64 copy (or one in another dtype) of a layer and its inputs, and a random cotangent dy for its output.

    args, kwargs: what forward takes, without the tape. Float arrays are differentiated; integers, booleans and other
    objects are handed on. An array that is given twice, as in self-attention, is one input.
    vary: constant parameters, as norms start, get random values: a factor that is 1 could be forgotten without a
    trace.
    seed: of the tape, so that every run drops the same entries; None for no dropout.
    method: the forward to check, with its own backward: `turn` has `turn_backward`.
    """

    def __init__(self, layer, args, kwargs, seed=None, rng=0, vary=True, method="forward", dtype=np.float64):
        self.rng = generator(rng)
        self.layer = copy.deepcopy(layer).astype(dtype)
        self.name = type(layer).__name__
        self.method = method
        self.seed = seed
        self.n_positional = len(args)
        names = [*argument_names(getattr(layer, method), args), *kwargs]
        self.given = dict(zip(names, own_copies([*args, *kwargs.values()], dtype)))
        self.differentiated = [name for name, value in self.given.items() if is_float(value)]
        self.inputs = {and_list(self.names_of(self.given[name])): self.given[name] for name in self.differentiated}
        self.parameters = dict(self.layer.named_parameters())
        for parameter in self.parameters.values() if vary else ():
            vary_if_constant(parameter, self.rng)

    def in_float32(self):
        """The same in single precision."""
        args, kwargs = self.arguments(list(self.given.values()))
        return Probe(self.layer, args, kwargs, self.seed, vary=False, method=self.method, dtype=np.float32)

    def arguments(self, values):
        """args and kwargs of forward, from a value for each that is given."""
        n = self.n_positional
        return values[:n], dict(zip(list(self.given)[n:], values[n:]))

    @cached_property
    def dy(self):
        return np.asarray(self.rng.standard_normal(np.shape(self.y)))

    @cached_property
    def y(self):
        return copy.copy(self.forward())  # an identity returns its input, which the differences move

    @cached_property
    def rounding(self):
        """How far rounding may throw <dy, y>."""
        return 4 * EPS * float(abs(self.dy * self.y).sum())

    def names_of(self, array):
        """The arguments in which this array is given."""
        return [name for name in self.differentiated if self.given[name] is array]

    def forward(self, tape=None, change=None, given=None):
        """The output at the point, or with change(x) for every input x, or with other values for what `given` names;
        a tape of the probe's seed by default."""
        values = list({**self.given, **(given or {})}.values())
        if change:
            changed = {id(x): change(x) for x in self.inputs.values()}
            values = [changed.get(id(value), value) for value in values]
        args, kwargs = self.arguments(values)
        forward = getattr(self.layer, self.method)
        return forward(*args, **kwargs, tape=Tape(self.seed) if tape is None else tape)

    def backward(self, dy, tape):
        """What the layer's backward returns, as a tuple."""
        backward = "backward" if self.method == "forward" else f"{self.method}_backward"
        gradients = getattr(self.layer, backward)(dy, tape)
        return () if gradients is None else gradients if isinstance(gradients, tuple) else (gradients,)

    def analytic(self, scattered=False, between=False):
        """{name: gradient} by backward, for every float input and parameter.

        scattered: inputs and dy lie scattered in memory. between: the layer runs forward and backward on other
        inputs between the forward and the backward that count, as a layer does that is used twice.
        """
        layout = in_scattered_memory if scattered else np.copy
        self.clear_gradients()
        tape = Tape(self.seed)
        self.forward(tape, layout)
        if between:
            self.forward(tape, self.elsewhere)
            self.backward(0.5 * self.dy, tape)
        before = {name: p.grad.copy() for name, p in self.parameters.items()}
        dinputs = dict(zip(self.differentiated, self.backward(layout(self.dy), tape)))
        gradients = {name: sum(dinputs[given] for given in self.names_of(x)) for name, x in self.inputs.items()}
        gradients.update({name: p.grad - before[name] for name, p in self.parameters.items()})
        return gradients

    @cached_property
    def elsewhere(self):
        """A change of the inputs to others that forward makes numbers of: shrunk by up to a half, or else by little."""
        def shrink(least):
            return lambda x: x * generator(x.size).uniform(least, 1, x.shape)

        with np.errstate(all="ignore"):
            return shrink(0.5 if np.isfinite(self.forward(change=shrink(0.5))).all() else 0.99)

    def clear_gradients(self):
        for parameter in self.parameters.values():
            parameter.grad = None

    def array(self, name):
        """The array that is differentiated under this name."""
        return self.inputs[name] if name in self.inputs else self.parameters[name].data

    def along(self, name, direction, t):
        """The output with t * direction added to one array."""
        array = self.array(name)
        kept = array.copy()
        array += t * direction
        try:
            return copy.copy(self.forward())
        finally:
            array[...] = kept

    def hiding(self):
        """{name: mask} of the masks that hide something."""
        return {name: value for name, value in self.given.items() if is_mask(name, value) and not value.all()}

    def unheeded(self):
        """Names of masks that hide something, of positions and of the seed, where the output is the same without."""
        masks = [name for name, mask in self.hiding().items() if self.is_same(given={name: np.ones_like(mask)})]
        seed = ["seed"] if self.seed is not None and self.is_same(Tape()) else []
        return (*masks, *self.unheeded_positions(), *seed)

    def unheeded_positions(self):
        """The first name of each object of positions that does nothing in any of the places where it stands."""
        owners = {}
        for path, layer in self.layer.named_layers():
            for name, part in vars(layer).items():
                if isinstance(part, Positions) and not isinstance(part, NoPositions):
                    owners.setdefault(part, []).append((layer, name, f"{path}.{name}" if path else name))
        for part, places in owners.items():
            for layer, name, _ in places:
                setattr(layer, name, NoPositions())
            if self.is_same():
                yield places[0][2]
            for layer, name, _ in places:
                setattr(layer, name, part)

    def is_same(self, tape=None, given=None):
        """Whether forward gives this output again with something changed; where it fails, it does not."""
        try:
            with np.errstate(all="ignore"):
                y = self.forward(tape, given=given)
        except Exception:
            return False
        return y.shape == self.y.shape and np.allclose(y, self.y, 0, self.rounding)

    def step(self, name):
        """A step for two-sided differences: where their error, as step^2, equals that of rounding, as 1 / step.

        It is scaled to how much the array's entries differ, and larger where rounding is: at a large mean.
        """
        array = self.array(name)
        spread = float(array.std()) or float(abs(array).max(initial=0)) or 1.0
        return spread * math.cbrt(EPS * max(1.0, float(abs(array).max(initial=0)) / spread))


class Slope:
    """The derivative of <dy, forward> along one direction in one array, by differences.

    Two points near by come first; what costs more is computed when it is asked for.
    """

    def __init__(self, probe, name, direction):
        self.probe = probe
        self.name = name
        self.direction = direction
        self.h = probe.step(name)

    @cached_property
    def flat(self):
        """Whether the output stays as it is, but for rounding, one step to either side."""
        return all(abs(self.across(h, 0)) <= self.probe.rounding for h in (self.h, -self.h))

    @cached_property
    def near(self):
        """Two-sided difference, with an error of order h^2."""
        return self.across(self.h, -self.h) / (2 * self.h)

    @cached_property
    def far(self):
        """Four points further out: an error of order h^4, and less of it from rounding."""
        h = FAR * self.h
        return (8 * self.across(h, -h) - self.across(2 * h, -2 * h)) / (12 * h)

    @cached_property
    def nearer(self):
        """Two-sided, so close that a kink beside the point is left out."""
        h = self.h / 64
        return self.across(h, -h) / (2 * h)

    @cached_property
    def own(self):
        """Two-sided, with the step that suits the one number moved, where the others of its array are far larger."""
        moved = abs(self.probe.array(self.name)[self.direction != 0])
        h = min(self.h, math.cbrt(EPS) * float(moved[0])) if moved.size == 1 and moved[0] else self.h
        return self.across(h, -h) / (2 * h)

    @cached_property
    def kinked(self):
        """Whether the point lies on a kink: the one-sided differences disagree, however small the step."""
        gaps = [abs(self.across(h, 0) + self.across(-h, 0)) / h for h in (self.h, self.h / 8, self.h / 32)]
        seen = 100 * self.probe.rounding / (self.h / 32) + 1e-6 * abs(self.near)
        return gaps[2] > seen and gaps[2] > gaps[1] / 2 and gaps[1] > gaps[0] / 2

    def across(self, a, b):
        """<dy, forward at a - forward at b>."""
        probe = self.probe
        ya, yb = (probe.along(self.name, self.direction, t) if t else probe.y for t in (a, b))
        return float((probe.dy * (ya - yb)).sum())

    def closest(self, analytic, enough):
        """The difference that agrees best with analytic; the first one where they agree well enough."""
        best = self.near
        for estimate in ("far", "nearer", "own"):
            if abs(best - analytic) <= enough:
                break
            best = min(best, getattr(self, estimate), key=lambda value: abs(value - analytic))
        return best


def argument_names(forward, args):
    """The names that forward gives to its positional arguments."""
    parameters = [p for p in inspect.signature(forward).parameters.values() if p.name != "tape"]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:len(args)]
    return names + [f"input {i}" for i in range(len(names), len(args))]


def is_float(value):
    """Whether value is an array that is differentiated."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def is_mask(name, value):
    """Whether value is a mask: booleans, or integers by that name."""
    return isinstance(value, np.ndarray) and value.dtype.kind in ("biu" if name == "mask" else "b")


def own_copies(values, dtype):
    """Copies of the arrays among values, floats in the dtype given; one that is there twice is copied once."""
    copies = {id(value): np.array(value, dtype if is_float(value) else value.dtype, order="C")
              for value in values if isinstance(value, np.ndarray)}
    return [copies.get(id(value), value) for value in values]


def in_scattered_memory(x):
    """The same values, axes the other way round in memory and every second place left out."""
    if x.ndim == 0:
        return x.copy()
    view = np.full((2 * x.shape[-1], *x.shape[-2::-1]), np.nan).T[..., ::2]
    view[...] = x
    return view


def vary_if_constant(parameter, rng):
    """Random values of the same sign and size in place of equal ones."""
    data = parameter.data
    if data.size and (data == data.flat[0]).all():
        value = float(data.flat[0])
        data[...] = value * rng.uniform(0.5, 1.5, data.shape) if value else rng.uniform(-0.5, 0.5, data.shape)


def generator(seed):
    """A stream of its own for each seed, not the one by which a caller with the same seed drew the inputs."""
    return np.random.default_rng((seed, 1743))
