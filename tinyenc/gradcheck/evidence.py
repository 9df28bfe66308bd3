"""What a wrong gradient has to do with the right one, and when it is right after all."""

import copy
import math

import numpy as np

from .report import and_list
from .rows import CLOSE, by_rows, multiple, sums_over_rows, times


def evidence(check, wrong):
    """Findings about the gradients named, from the numbers at hand and from runs with one thing changed."""
    terms = {"dy": check.probe.dy, **check.probe.inputs, **gradients_inside(check.probe)}
    relations = {}
    for name in wrong:
        relations.setdefault(relation(check, name, terms), []).append(name)
    found = [f"{and_list(names)}: {text}" for text, names in relations.items() if text]
    return found + conditions(check, wrong) or [
        f"{and_list(wrong)}: no simple relation to the right gradient, and no simpler case in which it is right"]


def relation(check, name, terms):
    """How backward's gradient differs from the right one at every place looked at, in words; "" where unclear.

    terms: {words: array}, what may have been forgotten or added once too often.
    """
    gradient = check.gradients[name]
    slopes = [slope for slope in check.slopes(name) if not slope.kinked]
    true = np.array([slope.far for slope in slopes])

    def along(array):
        return np.array([float((array * slope.direction).sum()) for slope in slopes])

    def agree(a, b):
        return abs(a - b).max(initial=0) <= CLOSE * abs(true).max(initial=0)

    said = along(gradient)
    if not said.any():
        return "backward's gradient is zero everywhere: it is never computed, or never added"
    if slopes and all(slope.flat for slope in slopes):
        return "it has no effect on this forward, so the right gradient is zero"
    if len(slopes) > 1 and abs(true).max() > 0:
        ratio = float(said @ true / (true @ true))
        if agree(said, ratio * true):
            return (f"backward's gradient is the right one times {ratio:.7g} everywhere{named(ratio, check)}"
                    if abs(ratio + 1) > CLOSE else "backward's gradient is the right one with the sign turned")
    for i in range(gradient.ndim):
        for j in range(i):
            if gradient.shape[i] == gradient.shape[j] and agree(along(gradient.swapaxes(i, j)), true):
                return f"backward's gradient is the right one transposed (axes {j} and {i} swapped)"
    for other, array in check.gradients.items():
        if other != name and array.shape == gradient.shape and len(slopes) > 1 and agree(along(array), true):
            return f"the right gradient is what backward gives for {other}"
    for what, array in terms.items():
        if np.shape(array) == gradient.shape and len(slopes) > 1:
            term = along(array)
            factor = float((true - said) @ term / (term @ term)) if term.any() else 0.0
            if agree(said + factor * term, true):
                return (f"backward's gradient holds {what} once too often" if abs(factor + 1) < CLOSE else
                        f"what backward's gradient lacks is exactly {times(factor)}{what}")
    if name in check.probe.inputs:
        return by_rows(check, name)
    for what, array in sums_over_rows(check.probe).items():
        k = multiple(true, along(array)) if array.shape == gradient.shape and len(slopes) > 1 else None
        if k:
            return f"the right gradient is {times(k)}{what}, summed over the rows"
    return ""


def gradients_inside(probe):
    """{words: array} for what the backward of each layer inside is given, and what it returns."""
    found = {}
    inside = list(probe.layer.named_layers())[1:]

    def listen(name, layer):
        backward = layer.backward

        def recorded(dy, tape):
            dx = backward(dy, tape)
            found[f"what {name}.backward is given"] = dy
            for i, gradient in enumerate(dx if isinstance(dx, tuple) else (dx,)):
                found[f"what {name}.backward returns" + (f" ({i + 1})" if isinstance(dx, tuple) else "")] = gradient
            return dx
        layer.backward = recorded

    for name, layer in inside:
        listen(name, layer)
    try:
        probe.analytic()
    finally:
        for _, layer in inside:
            del layer.backward
    return {words: gradient.copy() for words, gradient in found.items() if isinstance(gradient, np.ndarray)}


def named(ratio, check):
    """What a ratio may be: ", which is 1/3 (3: axis 0 of x)"; "" where nothing fits."""
    fits = {}
    for value, formula, source in constants(check.probe):
        if abs(value - ratio) <= CLOSE * abs(ratio):
            fits.setdefault(formula, source)
    return f", which is {' or '.join(f'{formula} ({source})' for formula, source in fits.items())}" if fits else ""


def constants(probe):
    """(value, formula, where its number comes from) for what gets forgotten in derivatives: sizes, dropout, scales."""
    for number, source in numbers(probe):
        n = f"{number:.7g}"
        of_n = f"{n}: {source}"
        root = math.sqrt(number)
        yield from ((number, n, source), (1 / number, f"1/{n}", of_n),
                    (root, f"sqrt({n})", of_n), (1 / root, f"1/sqrt({n})", of_n))
        if number < 1:
            yield from ((1 - number, f"1 - {n}", of_n), (1 / (1 - number), f"1/(1 - {n})", of_n))
    yield from ((2.0, "2", "as in a square"), (0.5, "1/2", "as in a square"))


def numbers(probe):
    """(number, where it comes from): the sizes of the inputs, and attributes of the layer and those inside it."""
    for name, array in probe.given.items():
        if isinstance(array, np.ndarray):
            yield from ((float(size), f"axis {i} of {name}") for i, size in enumerate(array.shape) if size > 1)
            if array.ndim > 2:
                yield float(array.size // array.shape[-1]), f"the rows of {name}"
    for path, layer in probe.layer.named_layers():
        for attribute, value in vars(layer).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and value != 1:
                yield float(value), f"{path}{'.' if path else ''}{attribute}"


def conditions(check, wrong):
    """Findings from the layer in simpler cases: where the wrong gradients are right, what is left out is to blame."""
    found = []
    for text, simpler in simpler_checks(check):
        try:
            rows = [row for row in simpler.rows() if row.name in wrong]
        except Exception:  # the layer does not take what was made simpler: no evidence
            continue
        if all(row.right for row in rows) and any(row.numeric for row in rows):  # zero is too easily right
            found.append(f"{and_list(wrong)}: {text}")
    return found


def simpler_checks(check):
    """(what it would mean for the wrong gradients to be right, a Check) with one thing made simpler in each."""
    probe = check.probe
    given = probe.given
    if probe.seed is not None:
        yield "right without dropout, wrong with it", check.like(dropout=False)
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.dtype == bool and not value.all():
            yield (f"right when {name} is True everywhere, wrong where it hides something",
                   check.like(given={name: np.ones_like(value)}))
    sizes = {x.shape[0] for x in probe.inputs.values() if x.ndim > 1}
    if len(sizes) == 1 and sizes != {1} and all(value is None or hasattr(value, "shape") for value in given.values()):
        (b,) = sizes
        first = {id(value): value[:1] for value in given.values() if value is not None and value.shape[:1] == (b,)}
        yield (f"right for a batch of 1, wrong for one of {b}",
               check.like(given={name: first.get(id(value), value) for name, value in given.items()}))
    for name, parameter in probe.parameters.items():
        if parameter.data.ndim < 2:
            yield (f"right when {name} is 1 everywhere: a factor of {name} is missing, or one too many",
                   with_constant(check, name, 1))
            yield f"right when {name} is 0 everywhere", with_constant(check, name, 0)


def with_constant(check, name, value):
    """The check of a copy of the layer, one parameter of which is `value` everywhere."""
    layer = copy.deepcopy(check.probe.layer)
    dict(layer.named_parameters())[name].data.fill(value)
    return check.like(layer=layer)
