"""Masked softmax with dropout on the GPU, in one pass over memory: checks and launches `masked_softmax.cu`.

A kernel checks nothing itself, so everything is checked here, before the launch: arrays of another device, dtype or
shape raise, views and Fortran order are copied into C order first, and empty arrays come back empty.
"""

import math

import numpy as np

from .compiler import BLOCK, STORAGE, compiled, source

SOURCE = source("masked_softmax.cu")
NULL = np.uintp(0)

# The kernels' structures.
ROWS = np.dtype([("count", "u4"), ("keys", "u4")])
MASK = np.dtype([("batch", "i8"), ("head", "i8"), ("query", "i8"), ("key", "i8"),
                 ("heads", "u4"), ("queries", "u4"), ("packed", "u4")], align=True)


def forward(scores, mask=None, scale=1.0, p=0.0, seed=None):
    """weights = softmax(scale * scores) over the keys kept, and weights after dropout: (weights, dropped).

    scores: (B, H, T, S), or fewer axes with the keys last; float16, bfloat16 or float32 (arithmetic is float32), or
    float64. mask: boolean, True keeps, broadcastable to the scores, and never copied to their size; a row with no
    key kept gets zeros. scale: above 0. Without a seed nothing is dropped, and `dropped` is `weights` itself.
    """
    import cupy

    scores = _checked("scores", scores)
    if not 1 <= scores.ndim <= 4:
        raise ValueError(f"scores {scores.shape} must have 1 to 4 axes")
    mask = _broadcast(mask, scores)
    scale, dropout = _scale(scale, scores), _dropout(p, seed, scores)
    weights = cupy.empty_like(scores)
    dropped = cupy.empty_like(scores) if dropout["threshold"] else weights
    if scores.size:
        width = _width(scores.shape[-1], scores)
        kernel, blocks, rows = _over_rows("softmax_forward", scores, width)
        kernel((blocks,), (BLOCK,), (
            scores, NULL if mask is None else mask, weights, NULL if dropped is weights else dropped,
            rows, _layout(mask, scores.shape, width), scale, dropout))
    return weights, dropped


def backward(ddropped, weights, scale=1.0, p=0.0, seed=None):
    """dscores = scale * weights * (dweights - sum(dweights * weights)), dweights = ddropped after the same dropout.

    weights: what `forward` returned first; scale, p and seed: what it was given, so that the same entries are dropped.
    """
    import cupy

    weights = _checked("weights", weights)
    ddropped = _checked("ddropped", ddropped, like=weights)
    scale, dropout = _scale(scale, weights), _dropout(p, seed, weights)
    dscores = cupy.empty_like(weights)
    if weights.size:
        width = _width(weights.shape[-1], weights, ddropped)
        kernel, blocks, rows = _over_rows("softmax_backward", weights, width)
        kernel((blocks,), (BLOCK,), (ddropped, weights, dscores, rows, scale, dropout))
    return dscores


def drop(x, p, seed):
    """x / (1 - p), or 0 with probability p: as the kernels above for the same seed, by position in C order.

    x: any shape. Without a seed, or with p = 0, x itself.
    """
    import cupy

    x = _checked("x", x)
    dropout = _dropout(p, seed, x)
    if not dropout["threshold"]:
        return x
    y = cupy.empty_like(x)
    if x.size:
        width = _width(x.size, x)
        blocks = -(-x.size // (BLOCK * width))
        if blocks >= 2**31:
            raise ValueError(f"x {x.shape} has too many elements for one launch")
        kernel = compiled(SOURCE, f"drop<{STORAGE[x.dtype.name]}, {width}>", x.device.id)
        kernel((blocks,), (BLOCK,), (x, y, np.uint64(x.size), dropout))
    return y


def variant(name, dtype, keys, width):
    """The kernel for rows of `keys` elements that are moved `width` at a time, and the rows that a block of it takes.

    A thread holds at most 32 elements, in at most 8 packs (2 of float64), so that they fit into its registers. A row
    is shared by 8 or 32 threads, or by a whole block, which may have to go over it in chunks.
    """
    most = 2 if dtype == np.float64 else min(8, 32 // width)
    packs = -(-keys // width)
    lanes = next((n for n in (8, 32) if packs <= n * most), BLOCK)
    held = min(most, 1 << (-(-packs // lanes) - 1).bit_length())  # a power of two: fewer variants to compile
    long = "true" if packs > lanes * held else "false"
    return f"{name}<{STORAGE[dtype.name]}, {width}, {lanes}, {held}, {long}>", BLOCK // lanes


def _over_rows(name, array, width):
    """A kernel for the rows of an array, the number of its blocks, and the kernels' `Rows`."""
    keys = array.shape[-1]
    count = array.size // keys
    if count >= 2**31 or keys >= 2**31:
        raise ValueError(f"{array.shape}: the kernel takes fewer than 2**31 rows, of fewer than 2**31 keys")
    name, rows_in_block = variant(name, array.dtype, keys, width)
    return compiled(SOURCE, name, array.device.id), -(-count // rows_in_block), np.array((count, keys), ROWS)


def _width(length, *arrays):
    """How many elements one access can move: at most 16 bytes, aligned in every row of `length`."""
    width = 16 // arrays[0].itemsize
    while length % width or any(a.data.ptr % (width * a.itemsize) for a in arrays):
        width //= 2
    return width


def _layout(mask, shape, width):
    """The kernels' `Mask`: the strides of a mask already broadcast to the scores' shape."""
    if mask is None:
        return np.zeros((), MASK)
    _, heads, queries, _ = (1,) * (4 - len(shape)) + shape
    strides = (0,) * (4 - len(shape)) + mask.strides
    packed = strides[-1] == 1 and not any(n % width for n in (mask.data.ptr, *strides[:-1]))
    return np.array((*strides, heads, queries, packed), MASK)


def _checked(name, array, like=None):
    """The array in C order, if it is one that the kernels can take."""
    import cupy

    if not isinstance(array, cupy.ndarray):
        raise TypeError(f"{name} is a {type(array).__module__}.{type(array).__name__}, not a CuPy array")
    if array.dtype.name not in STORAGE:
        raise TypeError(f"{name} is {array.dtype}; the kernels take {', '.join(STORAGE)}")
    if like is not None and (array.shape, array.dtype, array.device) != (like.shape, like.dtype, like.device):
        raise ValueError(f"{name} is {array.dtype} {array.shape} on {array.device}, where "
                         f"{like.dtype} {like.shape} on {like.device} is needed")
    return cupy.ascontiguousarray(array)


def _broadcast(mask, scores):
    """A view of the mask in the scores' shape."""
    import cupy

    if mask is None:
        return None
    if not isinstance(mask, cupy.ndarray) or mask.device != scores.device:
        raise TypeError(f"mask is a {type(mask).__module__}.{type(mask).__name__}, not a CuPy array on {scores.device}")
    if mask.dtype != bool:
        raise TypeError(f"mask is {mask.dtype}, not bool")
    try:
        return cupy.broadcast_to(mask, scores.shape)
    except ValueError:
        raise ValueError(f"mask {mask.shape} does not broadcast to scores {scores.shape}") from None


def _scale(scale, array):
    if not 0 < scale < math.inf:
        raise ValueError(f"scale {scale} must be above 0 and finite")
    return _real(array).type(scale)


def _dropout(p, seed, array):
    """The kernels' `Dropout`, with threshold 0 for none."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout probability {p} must be at least 0 and below 1")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} must be a 64-bit number")
    layout = np.dtype([("seed", "u8"), ("threshold", "u4"), ("gain", _real(array))], align=True)
    if seed is None:
        return np.zeros((), layout)
    return np.array((seed, min(round(p * 2**32), 2**32 - 1), 1 / (1 - p)), layout)


def _real(array):
    """The dtype of arithmetic."""
    return np.dtype(np.float64 if array.dtype == np.float64 else np.float32)
