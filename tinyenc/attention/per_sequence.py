"""Runs an attention core sequence by sequence, on all cores of the CPU."""

from ..backend import array_module, on_host
from ..layer import Layer
from ..parallel import run_each
from ..tape import NO_TAPE
from .layout import Packing

SCORES = 1 << 17  # scores looked at together: short sequences go in groups, so that NumPy's calls stay few


class PerSequence(Layer):
    """core applied to a few sequences at a time, each group with a tape of its own.

    The sequences of a batch do not look at each other, nor do heads, so the result is the core's own, with its
    scores in cache and nothing computed at padding where the batch comes packed. A long sequence goes a few heads
    at a time. On the GPU the core takes the whole batch at once.
    """

    def __init__(self, core):
        self.core = core

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        """q: (B, H, T, K), k and v: (B, H, S, K), mask an array; or all (H, N, K) and mask their Packing."""
        if not on_host(q):
            return self.core.forward(q, k, v, mask, bias, tape)
        y = heads_like(q)
        groups = list(packed_groups(q, mask, bias) if isinstance(mask, Packing) else dense_groups(q, k, mask, bias))
        tapes = [tape.fork() for _ in groups]

        def task(i):
            part, _, part_mask, part_bias = groups[i]
            part(y)[...] = self.core.forward(part(q), part(k), part(v), part_mask, part_bias, tapes[i])

        run_each(task, range(len(groups)))
        tape.push(self, groups, tapes, q, k, bias)
        return y

    def backward(self, dy, tape):
        if not on_host(dy):
            return self.core.backward(dy, tape)
        groups, tapes, q, k, bias = tape.pop(self)
        dq, dk, dv = heads_like(q), heads_like(k), heads_like(k)

        def task(i):
            part = groups[i][0]
            part(dq)[...], part(dk)[...], part(dv)[...] = self.core.backward(part(dy), tapes[i])

        run_each(task, range(len(groups)))
        if bias is not None and bias.learnt:
            for _, heads, _, part_bias in groups:  # in this order, whichever was done first
                bias.add_part(part_bias, heads)
        return dq, dk, dv


def dense_groups(q, k, mask, bias):
    """(view of a few sequences and heads, those heads, their mask, their bias) for q, k of shape (B, H, T or S, K)."""
    b, h, t, _ = q.shape
    for few, heads in shares(b, h, t * k.shape[2]):
        part_mask = mask
        if mask is not None:
            part_mask = mask[few if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]
        yield (lambda x, few=few, heads=heads: x[few, heads]), heads, part_mask, bias and bias.part(heads, t)


def packed_groups(q, packing, bias):
    """The same for packed q of shape (H, N, K), whose views are (few, heads, length, K)."""
    h = q.shape[0]
    for start, count, length in packing.runs:
        for few, heads in shares(count, h, length * length):
            tokens = slice(start + few.start * length, start + few.stop * length)

            def part(x, heads=heads, tokens=tokens, length=length):
                x = x[heads, tokens]  # (heads, few * length, K)
                return x.reshape(x.shape[0], -1, length, x.shape[-1]).swapaxes(0, 1)

            yield part, heads, None, bias and bias.part(heads, length)


def shares(n_sequences, n_heads, scores):
    """(some sequences, some heads), two slices, over all of both: about SCORES scores each, `scores` for one head."""
    few = max(1, SCORES // max(1, n_heads * scores))
    heads = n_heads if few > 1 else min(n_heads, max(1, SCORES // max(1, scores)))
    for i in range(0, n_sequences, few):
        for j in range(0, n_heads, heads):
            yield slice(i, min(i + few, n_sequences)), slice(j, min(j + heads, n_heads))


def heads_like(x):
    """An empty array of x's shape (..., H, T, K), in memory (..., T, H, K), so that merging heads copies nothing."""
    *lead, h, t, width = x.shape
    return array_module(x).empty((*lead, t, h, width), x.dtype).swapaxes(-2, -3)
