"""Block formulas over many arrays at once."""

from functools import partial

import numpy as np

from .. import parallel
from ..backend import on_host


def in_all_blocks(work):
    """parallel.in_blocks(update, *arrays) for every (update, *arrays) in work, the blocks of all side by side.

    Most arrays of a model are of a block or two: one array after the other would leave all cores but one idle.
    """
    calls = []
    for update, *arrays in work:
        if not on_host(arrays[0]):
            from ..kernels.fuse import fused
            fused(update, arrays)  # one kernel
            continue
        if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
            update(*arrays)
            continue
        flat = [a.reshape(-1) for a in arrays]
        step = parallel.BLOCK_BYTES // max(a.itemsize for a in arrays)
        calls += [partial(update, *[a[i:i + step] for a in flat]) for i in range(0, flat[0].size, step)]
    parallel.run_each(lambda call: call(), calls)
