"""Compares the gradients that backward computes with differences."""

from typing import NamedTuple

import numpy as np

from .probe import FAR, Probe, Slope, generator
from .report import and_list
from .structure import GradientError, check_single_precision, check_structure

SMALL = 32  # arrays of up to so many numbers are checked number by number
DIRECTIONS = 3  # larger ones along so many random directions


class Checked(NamedTuple):
    """What a check that found nothing wrong has looked at."""

    error: float  # the largest relative error
    arrays: int  # inputs and parameters
    slopes: int  # derivatives compared
    kinks: int  # of them left out, on a kink, and checked again a little beside it
    silent: tuple = ()  # names of arrays that the output does not depend on here: a gradient of zero says little
    unheeded: tuple = ()  # names of what is no such array and changes nothing here: masks, positions, the seed

    def __str__(self):
        text = (f"{self.arrays - len(self.silent)} gradients right: {self.slopes} derivatives, largest relative error "
                f"{self.error:.1e}, {self.kinks} on a kink")
        idle = self.silent + self.unheeded
        has = "has" if len(idle) == 1 else "have"
        return text + (f"; {and_list(idle)} {has} no effect on this forward" if idle else "")


class Row(NamedTuple):
    """What the comparison says about one array: the numbers where backward and differences are furthest apart."""

    name: str
    shape: tuple
    analytic: float
    numeric: float
    error: float
    at: str
    kinks: int
    right: bool
    silent: bool = False  # whether the output stays as it is, moved either way along every direction


class Check:
    """Compares what backward says with differences, which are computed once and kept."""

    def __init__(self, probe, tol=1e-7, small=SMALL):
        self.probe = probe
        self.tol = tol
        self.small = small
        self.beside = None  # the check a little beside the point, where that is on a kink
        self._slopes = {}

    def result(self):
        """What was Checked, or None where something is wrong; GradientError where a promise is broken."""
        if not self.holds():
            return None
        check_single_precision(self.probe)
        rows = self.rows()
        beside = self.beside.rows() if self.beside else []
        return Checked(max((row.error for row in rows + beside), default=0.0), len(rows),
                       sum(map(len, self._slopes.values())), sum(row.kinks for row in rows),
                       tuple(row.name for row in rows if row.silent), self.probe.unheeded())

    def holds(self):
        """Whether all is right; stops at the first thing that is wrong. GradientError where a promise is broken."""
        check_structure(self.probe)
        self.gradients = self.probe.analytic()
        rows = []
        for name, gradient in self.gradients.items():
            rows.append(self.row(name, gradient))
            if not rows[-1].right:
                return False
        if self.mode_errors():
            return False
        if any(row.kinks for row in rows):
            self.beside = self.beside or self.moved()
            rows = self.beside.rows()
            self.beside.check_smooth(rows)
            return all(row.right for row in rows)
        return True

    def check_smooth(self, rows):
        """GradientError where an array has a kink wherever it is looked at: then nothing of it was compared."""
        jumpy = [row.name for row in rows if row.kinks and row.kinks == len(self.slopes(row.name))]
        if jumpy:
            raise GradientError(f"{self.probe.name}.forward jumps wherever it is looked at, so that no derivative in "
                                f"{and_list(jumpy)} can be measured: is something inside computed in float32?")

    def rows(self):
        """A Row for every float input and parameter."""
        self.gradients = self.probe.analytic()
        return [self.row(name, gradient) for name, gradient in self.gradients.items()]

    def row(self, name, gradient):
        largest = abs(gradient).max(initial=0)
        visible = 1e-300 + self.probe.rounding / (FAR * self.probe.step(name)) / self.tol  # less drowns in rounding
        worst = Row(name, gradient.shape, 0.0, 0.0, 0.0, "", 0, True)
        kinks = 0
        for slope in self.slopes(name):
            analytic = float((gradient * slope.direction).sum())
            numeric = slope.closest(analytic, 0.1 * self.tol * max(largest, visible))
            error = float(abs(numeric - analytic) / max(abs(numeric), abs(analytic), largest, visible))
            if error > self.tol and slope.kinked:
                kinks += 1
            elif error >= worst.error:
                worst = Row(name, gradient.shape, analytic, numeric, error, where(slope), 0, bool(error <= self.tol))
        return worst._replace(kinks=kinks, silent=all(slope.flat for slope in self.slopes(name)))

    def slopes(self, name):
        """The derivatives in one array that are compared."""
        if name not in self._slopes:
            array = self.probe.array(name)
            rng = generator(array.size)
            directions = (unit_directions(array) if array.size <= self.small else
                          [rng.standard_normal(array.shape) for _ in range(DIRECTIONS)])
            self._slopes[name] = [Slope(self.probe, name, v) for v in directions]
        return self._slopes[name]

    def mode_errors(self):
        """{mode: [names whose gradient is another one]} for a layer used twice, and for scattered inputs."""
        found = {}
        for mode in ("between", "scattered"):
            gradients = self.probe.analytic(**{mode: True})
            least = 1e-3 * max((float(abs(g).max(initial=0)) for g in self.gradients.values()), default=0.0)
            names = [name for name, g in gradients.items() if not same(g, self.gradients[name], least)]
            if names:
                found[mode] = names
        return found

    def moved(self):
        """The same check with every input and parameter moved a little, to where there is no kink."""
        moved = self.like(change=lambda x: x + 0.01 * generator(x.size).standard_normal(x.shape), small=self.small)
        for parameter in moved.probe.parameters.values():
            size = float(parameter.data.std()) or 1.0
            parameter.data += 0.01 * size * generator(parameter.data.size).standard_normal(parameter.shape)
        return moved

    def like(self, change=None, given=None, layer=None, dropout=True, small=0):
        """A check of the same layer with something changed; along random directions only, where small is 0.

        change: applied to every input. given: values for some arguments. dropout: False for none.
        """
        probe = self.probe
        values = {**probe.given, **(given or {})}
        if change:
            changed = {id(x): change(x) for x in probe.inputs.values()}
            values = {name: changed.get(id(value), value) for name, value in values.items()}
        args, kwargs = probe.arguments(list(values.values()))
        return Check(Probe(layer or probe.layer, args, kwargs, probe.seed if dropout else None, vary=False,
                           method=probe.method), self.tol, small)


def unit_directions(array):
    """A direction along each coordinate of an array."""
    for i in range(array.size):
        direction = np.zeros(array.size)
        direction[i] = 1
        yield direction.reshape(array.shape)


def where(slope):
    """The place of a slope along one coordinate; "" for one along a random direction."""
    places = np.argwhere(slope.direction)
    return str(places[0].tolist()) if len(places) == 1 else "along v"


def same(a, b, least=0.0):
    """Whether two gradients differ by no more than rounding, least being the smallest scale that matters."""
    return abs(a - b).max(initial=0) <= 1e-9 * max(least, float(abs(b).max(initial=0)))
