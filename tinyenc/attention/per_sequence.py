"""Runs an attention core sequence by sequence, on all cores of the CPU."""

from ..backend import array_module, on_host
from ..layer import Layer
from ..parallel import run_each
from ..tape import NO_TAPE
from .layout import Packing

SCORES = 1 << 17  # scores looked at together: short sequences go in groups, so that NumPy's calls stay few


class PerSequence(Layer):
    """core applied to a few sequences at a time, each group with a tape of its own.

    The sequences of a batch do not look at each other, so the result is the core's own, with its scores in
    cache and nothing computed at padding where the batch comes packed. On the GPU the core takes the whole
    batch at once.
    """

    def __init__(self, core):
        self.core = core

    def forward(self, q, k, v, mask=None, tape=NO_TAPE):
        """q: (B, H, T, K), k and v: (B, H, S, K), mask an array; or all (H, N, K) and mask their Packing."""
        if not on_host(q):
            y = self.core.forward(q, k, v, mask, tape)
            tape.push(self, None)
            return y
        y = heads_like(q)
        groups = list(packed_groups(q, mask) if isinstance(mask, Packing) else dense_groups(q, k, mask))
        tapes = [tape.fork() for _ in groups]

        def task(i):
            part, part_mask = groups[i]
            part(y)[...] = self.core.forward(part(q), part(k), part(v), part_mask, tapes[i])

        run_each(task, range(len(groups)))
        tape.push(self, groups, tapes, q, k)
        return y

    def backward(self, dy, tape):
        groups, *rest = tape.pop(self)
        if groups is None:
            return self.core.backward(dy, tape)
        tapes, q, k = rest
        dq, dk, dv = heads_like(q), heads_like(k), heads_like(k)

        def task(i):
            part, _ = groups[i]
            part(dq)[...], part(dk)[...], part(dv)[...] = self.core.backward(part(dy), tapes[i])

        run_each(task, range(len(groups)))
        return dq, dk, dv


def dense_groups(q, k, mask):
    """(view of a few sequences, their mask) for q, k of shape (B, H, T or S, K)."""
    b, h, t, _ = q.shape
    step = max(1, SCORES // max(1, h * t * k.shape[2]))
    for start in range(0, b, step):
        few = slice(start, start + step)
        yield (lambda x, few=few: x[few]), mask if mask is None or mask.shape[0] == 1 else mask[few]


def packed_groups(q, packing):
    """(view of a few sequences of one length as (few, H, length, K), None) for packed q of shape (H, N, K)."""
    h = q.shape[0]
    for start, count, length in packing.runs:
        step = max(1, SCORES // (h * length * length))
        for i in range(0, count, step):
            few = min(step, count - i)
            first = start + i * length

            def part(x, first=first, few=few, length=length):
                heads = x[:, first:first + few * length]  # (H, few * length, K)
                return heads.reshape(x.shape[0], few, length, x.shape[-1]).swapaxes(0, 1)

            yield part, None


def heads_like(x):
    """An empty array of x's shape (..., H, T, K) whose memory is (..., T, H, K), so that merging heads copies nothing."""
    *lead, h, t, width = x.shape
    return array_module(x).empty((*lead, t, h, width), x.dtype).swapaxes(-2, -3)
