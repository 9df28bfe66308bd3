"""Runs an attention core sequence by sequence, on all cores of the CPU."""

import numpy as np

from ..backend import array_module, on_host
from ..layer import Layer, promises
from ..parallel import run_each
from ..tape import NO_TAPE
from .layout import Packing
from .masks import check_mask

SCORES = 1 << 17  # scores looked at together: short sequences go in groups, so that NumPy's calls stay few
WASTED = 1 << 14  # scores at padding that are cheaper than the calls of a group more


class PerSequence(Layer):
    """core applied to a few sequences at a time, each group with a tape of its own.

    The sequences of a batch do not look at each other, nor do heads, so the result is the core's own, with its
    scores in cache. Of a packed batch a core gets sequences of one length and sees no padding; one whose class says
    `takes_padding = True`, and so heeds its mask, also gets those of like length together, for fewer calls. A long
    sequence goes a few heads at a time. A core with parameters gets all heads, and its backwards run one after the
    other, so that gradients add up in one order. On the GPU the core takes the whole batch at once.
    """

    def __init__(self, core):
        self.core = core

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        """q: (B, H, T, K), k and v: (B, H, S, K), mask an array; or all (H, N, K) and mask their Packing."""
        if not isinstance(mask, Packing):
            mask = check_mask(mask, (*q.shape[:3], k.shape[2]))
        if not on_host(q):
            return self.core.forward(q, k, v, mask, bias, tape)
        y = heads_like(q)
        cut = packed_groups(q, mask, self.core) if isinstance(mask, Packing) else dense_groups(q, k, mask, self.core)
        groups = list(cut)
        biases = [bias and bias.part(group.heads, group.length) for group in groups]
        tapes = [tape.fork() for _ in groups]

        def task(i):
            take = groups[i].take
            groups[i].put(y, self.core.forward(take(q), take(k), take(v), groups[i].mask, biases[i], tapes[i]))

        run_each(task, range(len(groups)))
        tape.push(self, groups, biases, tapes, q, k, bias)
        return y

    def backward(self, dy, tape):
        if not on_host(dy):
            return self.core.backward(dy, tape)
        groups, biases, tapes, q, k, bias = tape.pop(self)
        gradients = heads_like(q), heads_like(k), heads_like(k)

        def task(i):
            for whole, part in zip(gradients, self.core.backward(groups[i].take(dy), tapes[i])):
                groups[i].put(whole, part)
            tapes[i].check_empty()

        self.each(task, range(len(groups)))
        if bias is not None and bias.learnt:
            for group, part in zip(groups, biases):  # in this order, whichever was done first
                bias.add_part(part, group.heads)
        return gradients

    def each(self, task, items):
        """task(item) for all items: side by side, or one after the other where the core's gradients add up."""
        if not self.core.parameters():
            run_each(task, items)
            return
        for item in items:
            task(item)


class DenseGroup:
    """A few sequences and heads of arrays (B, H, T or S, K), all given as slices, and their part of the mask."""

    def __init__(self, few, heads, length, mask):
        self.few, self.heads, self.length = few, heads, length
        self.mask = mask
        if mask is not None:
            self.mask = mask[few if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]

    def take(self, x):
        return x[self.few, self.heads]

    def put(self, y, part):
        y[self.few, self.heads] = part


class PackedGroup:
    """A few sequences that follow one another in packed arrays (H, N, K), and a few heads: (few, heads, length, K).

    Where their lengths differ, the shorter ones get zeros behind them, and a mask.
    """

    def __init__(self, start, lengths, heads):
        self.tokens, self.heads, self.length = slice(start, start + sum(lengths)), heads, lengths[0]
        self.shape = len(lengths), self.length
        self.mask = None
        if lengths[-1] < self.length:
            real = np.arange(self.length) < np.array(lengths)[:, None]  # which tokens of (few, length) are there
            self.mask = real[:, None, None]
            self.places = np.flatnonzero(real)
            self.padding = np.flatnonzero(~real)
            self.source = (real.cumsum() - 1).reshape(self.shape)  # the token for each place; at padding the last one

    def take(self, x):
        tokens = x[self.heads, self.tokens].swapaxes(0, 1)  # (n, heads, K)
        if self.mask is None:
            return tokens.reshape(*self.shape, *tokens.shape[1:]).swapaxes(1, 2)
        padded = tokens.take(self.source, axis=0)
        padded.reshape(-1, *tokens.shape[1:])[self.padding] = 0
        return padded.swapaxes(1, 2)

    def put(self, y, part):
        if self.mask is None:
            self.take(y)[...] = part
        else:
            part = part.swapaxes(1, 2)
            part = part.reshape(-1, *part.shape[2:]).take(self.places, axis=0)
            y[self.heads, self.tokens].swapaxes(0, 1)[...] = part


def dense_groups(q, k, mask, core):
    """The groups of a batch, q (B, H, T, K) and k (B, H, S, K)."""
    b, h, t, _ = q.shape
    for few, heads in shares(b, h, t * k.shape[2], core):
        yield DenseGroup(few, heads, t, mask)


def packed_groups(q, packing, core):
    """The groups of a packed batch, q (H, N, K): of equal lengths, or of like ones where the core takes padding."""
    h, start = q.shape[0], 0
    wasted = WASTED if promises(core, "takes_padding") else 0
    for lengths in alike(packing.longest_first, h, wasted):
        for few, heads in shares(len(lengths), h, lengths[0] ** 2, core):
            first = start + sum(lengths[:few.start])
            yield PackedGroup(first, lengths[few], heads)
        start += sum(lengths)


def alike(lengths, n_heads, wasted):
    """Falling lengths cut into lists, each with at most `wasted` scores at padding.

    Lists that have such stay below SCORES in all.
    """
    group, padding = [], 0
    for length in lengths:
        more = n_heads * (group[0] ** 2 - length**2) if group else 0
        full = more and n_heads * group[0] ** 2 * (len(group) + 1) > SCORES
        if padding + more > wasted or full:
            yield group
            group, padding, more = [], 0, 0
        group.append(length)
        padding += more
    if group:
        yield group


def shares(n_sequences, n_heads, scores, core):
    """(some sequences, some heads), two slices, over all of both: about SCORES scores each, `scores` for one head."""
    few = max(1, SCORES // max(1, n_heads * scores))
    heads = n_heads if few > 1 or core.parameters() else min(n_heads, max(1, SCORES // max(1, scores)))
    for i in range(0, n_sequences, few):
        for j in range(0, n_heads, heads):
            yield slice(i, min(i + few, n_sequences)), slice(j, min(j + heads, n_heads))


def heads_like(x):
    """An empty array of x's shape (..., H, T, K), in memory (..., T, H, K), so that merging heads copies nothing."""
    *lead, h, t, width = x.shape
    return array_module(x).empty((*lead, t, h, width), x.dtype).swapaxes(-2, -3)
