"""Runs an array formula on the GPU as one kernel, instead of one for each operator.

A formula treats the rows of its first array, along the last axis, one by one. Where it takes sums, means or maxima
over rows, a warp (or a block, where rows are long) goes over its row once for each of these, and once for the results.
"""

import weakref

import numpy as np

from .compiler import BLOCK, compiled
from .trace import ITEMS, Array, Trace, Unknown

LONG = 1024  # longer rows are for a whole block

_programs = {}  # what formulas were found to do: a Program, or None for those that cannot be one kernel


def fused(formula, args, kwargs=None):
    """formula(*args, **kwargs) as one kernel; operator by operator where that cannot be."""
    kwargs = kwargs or {}
    arrays = {id(x): x for x in args if is_array(x)}
    places = list(arrays)
    given = [Array(places.index(id(x)), kind_of(x, args[0]), x.dtype) if is_array(x) else x for x in args]
    try:
        key = identity(formula), *map(typed, given), *map(typed, kwargs.values())
        program = _programs[key] if key in _programs else _programs.setdefault(key, written(formula, given, kwargs))
    except (TypeError, AttributeError):  # something has no hash, or the formula no code
        program = None
    return launch(program, list(arrays.values())) if program else formula(*args, **kwargs)


def written(formula, given, kwargs):
    """The Program of a formula, or None."""
    if len(_programs) >= 1000:
        _programs.clear()
    try:
        return Trace().program(formula, given, kwargs)
    except (Unknown, TypeError):  # TypeError: what NumPy does not do either
        return None


def is_array(x):
    """Whether x is an array on the GPU."""
    return hasattr(x, "__cuda_array_interface__")


def kind_of(x, first):
    """What an array has one element for: "element", each of the first array; "column", each row, (..., 1); "vector",
    each column, (D,); "number"; None where it is laid out in another way."""
    shapes = {(): "number", first.shape[-1:]: "vector", (*first.shape[:-1], 1): "column", first.shape: "element"}
    return shapes.get(x.shape) if x.flags.c_contiguous and first.ndim else None


def identity(formula):
    """A key that is equal for functions that do the same: of one code, with equal values and the same objects in it."""
    return formula.__code__, *(typed(cell.cell_contents) for cell in formula.__closure__ or ())


def typed(x):
    """A key for a value. 1, 1.0 and float32(1) are equal, and not the same in a formula."""
    return (type(x), x) if isinstance(x, (int, float, str, tuple, np.generic, np.dtype, type(None))) else weakref.ref(x)


def launch(program, arrays):
    """The results of a formula for these arrays, the first of which has the rows."""
    import cupy

    first = arrays[0]
    shapes = {"element": first.shape, "column": (*first.shape[:-1], 1)}
    new = [cupy.empty(shapes[out[0]], out[1]) for out in program.outs if isinstance(out, tuple)]
    if first.size:
        width = first.shape[-1]
        rows = first.size // width
        lanes = 32 if width <= LONG else BLOCK
        if program.by_rows:
            blocks, sizes = -(-rows // (BLOCK // lanes)), (np.uint32(rows), np.uint32(width))
        else:
            blocks, sizes = -(-first.size // (BLOCK * ITEMS)), (np.uint64(first.size),)
        kernel = compiled(program.code, f"fused<{lanes}>", first.device.id)
        kernel((blocks,), (BLOCK,), (*arrays, *new, *sizes, *program.constants))
    made = iter(new)
    results = tuple(next(made) if isinstance(out, tuple) else arrays[out] for out in program.outs)
    return results if program.several else results[0] if results else None
