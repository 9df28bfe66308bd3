"""Slips in a formula, told from what forward saved: what a wrong gradient lacks along its rows, or in their sum."""

import inspect
import re

import numpy as np

from ..tape import Tape
from .probe import Slope, is_float

CLOSE = 1e-6  # relative: two numbers that agree so well do not agree by chance
LOOKED_AT = 128  # numbers, in whole rows, that are compared one by one
WIDEST = 256  # longer rows would take too many runs of forward


def by_rows(check, name):
    """How the right gradient follows from backward's along the last axis, in words; "" where unclear."""
    probe, shape = check.probe, check.gradients[name].shape
    if shape != probe.dy.shape or len(shape) < 2 or shape[-1] > WIDEST:
        return ""
    width = shape[-1]
    n = min(probe.dy.size // width, max(2, LOOKED_AT // width))
    saved = saved_by(probe)

    def rows(array):
        return array.reshape(-1, array.shape[-1])[:n]

    numbers = {word: rows(a.reshape(*shape[:-1], 1)) for word, a in saved.items()
               if a.shape in (shape[:-1], (*shape[:-1], 1))}
    arrays = {word: rows(a) for word, a in {**saved, **probe.inputs}.items() if a.shape == shape}
    dys = {"dy": rows(probe.dy), **{f"dy * {word}": rows(probe.dy * p.data) for word, p in probe.parameters.items()
                                    if p.data.shape == (width,)}}
    said, right = rows(check.gradients[name]), right_rows(probe, name, n)
    if abs(right - said).max() <= CLOSE * abs(right).max():  # what is wrong is in other rows
        return ""
    return ratio(said, right, numbers, arrays) or lack(right - said, numbers, arrays, dys)


def sums_over_rows(probe):
    """{words: sum over all axes but the last} of dy and of its products with what forward saved and was given."""
    dy = probe.dy
    arrays = {word: a for word, a in {**saved_by(probe), **probe.inputs}.items() if a.shape == dy.shape}
    products = {"dy": dy, **{f"dy * {word}": dy * array for word, array in arrays.items()}}
    return {words: array.sum(axis=tuple(range(dy.ndim - 1))) for words, array in products.items()}


def ratio(said, right, numbers, arrays):
    """In words, what backward's rows are to be multiplied with; "" where that is nothing simple."""
    for word, array in {**numbers, **arrays}.items():
        for verb, k in (("times", multiple(right, said * array)), ("divided by", multiple(right * array, said))):
            if k:
                return f"the right gradient is {times(k)}backward's {verb} {word}" + (
                    ", row by row" if word in numbers else ", entry by entry")
    factors = row_multiples(right, said)
    return "" if factors is None else (
        "the right gradient is backward's times a number of its own in each row, from "
        f"{factors.min():.4g} to {factors.max():.4g}: such a factor is missing, or one too many")


def lack(lacking, numbers, arrays, dys):
    """In words, what is missing from backward's rows: a term that forward's arrays and dy make; "" where unclear."""
    products = {f"{dy} * {word}": d * array for dy, d in dys.items() for word, array in arrays.items()}
    unclear = ""
    for term, array in {"": np.ones_like(lacking), **dys, **arrays, **products}.items():
        factors = row_multiples(lacking, array)
        if factors is None:
            continue
        means = {} if term in dys or term in products else {
            f"{dy} * {term}" if term else dy: (d * array).mean(axis=-1, keepdims=True) for dy, d in dys.items()}
        for inner, mean in {"": 1.0, **means}.items():
            for word, number in {"": 1.0, **numbers}.items():
                k = multiple(factors, mean * number * np.ones_like(factors))
                if k:
                    return "what backward's gradient lacks is " + formula(k, lacking.shape[-1], term, inner, word)
        unclear = unclear or (f"what backward's gradient lacks is {term or 'the same number all along a row'}"
                              + (", times a number of its own in each row" if term else ""))
    return unclear


def formula(k, width, term, inner, word):
    """k * term * mean(inner) * word, and which slips leave such a k. A sum stands for the mean where k shows one."""
    summed = inner and any(near(abs(k), n * width) for n in (1, 2))
    k = k / width if summed else k
    text = " * ".join(filter(None, [term, inner and f"{'sum' if summed else 'mean'}({inner})", word])) or "1"
    slips = [slip for n, slip in (
        (1, "this term is forgotten, or there once too often"), (2, "its sign is turned"),
        (width - 1 if inner and not summed else 0, "a sum along the row stands for a mean, or a mean for a sum"))
        if near(abs(k), n)]
    return f"{times(k)}{text}" + (f": {', or '.join(slips)}" if slips else "")


def right_rows(probe, name, n):
    """The first n rows of the gradient, by differences."""
    shape = probe.array(name).shape
    found = np.zeros(n * shape[-1])
    for i in range(found.size):
        direction = np.zeros(shape)
        direction.flat[i] = 1
        found[i] = Slope(probe, name, direction).far
    return found.reshape(n, -1)


def saved_by(probe):
    """{name: array} of the floats that the layer itself has on the tape, named as its backward does that pops them."""
    tape = Tape(probe.seed)
    probe.forward(tape)
    saved = next((saved for layer, saved in reversed(tape._records) if layer is probe.layer), ())
    names = names_in_backward(probe)
    if len(names) != len(saved):
        names = [f"saved array {i}" for i in range(1, len(saved) + 1)]
    return {name: array for name, array in zip(names, saved) if is_float(array)}


def names_in_backward(probe):
    """a and b for `a, b = tape.pop(self)` in the layer's backward; none where there is no source to read."""
    try:
        source = inspect.getsource(type(probe.layer).backward) if probe.method == "forward" else ""
    except (OSError, TypeError):
        source = ""
    line = re.search(r"^\s*(.+?) = tape\.pop\(self\)", source, re.MULTILINE)
    return re.findall(r"\w+", line[1]) if line else []


def multiple(a, b):
    """k where a is k * b everywhere, else None."""
    k = float((a * b).sum() / (b * b).sum()) if b.any() else 0.0
    return k if k and abs(a - k * b).max() <= CLOSE * abs(a).max() else None


def row_multiples(a, b):
    """k, one a row, where a is k * b, else None: also where the rows are too few or too empty to tell."""
    squares = (b * b).sum(axis=-1, keepdims=True)
    k = (a * b).sum(axis=-1, keepdims=True) / np.where(squares, squares, 1)
    told = np.count_nonzero(b) - len(b) > 2 and abs(a - k * b).max() <= CLOSE * abs(a).max()
    return k if told else None


def near(a, b):
    """Whether a and b are the same but for the error of differences."""
    return abs(a - b) < CLOSE


def times(factor):
    """"c times ", and nothing for a factor of 1."""
    return "" if near(factor, 1) else f"{factor:.7g} times "
