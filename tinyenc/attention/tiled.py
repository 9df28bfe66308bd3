"""Attention with memory linear in the length of the sequences: scores exist a tile at a time."""

import math

import numpy as np

from ..backend import array_module, like, wide
from ..distance import by_distance, distances
from ..keep_mask import KeepBlocks
from ..layer import Layer
from ..layers.dropout import Dropout
from ..scores import dot_products, masked
from ..tape import NO_TAPE
from .masks import check_mask


class Tiled(Layer):
    """softmax(q k^T / sqrt(K)) v, and the (T, S) scores are never there: FlashAttention (Dao et al. 2022).

    Forward goes over tiles of scores with a running softmax; backward computes each tile again. Equal to DotProduct,
    dropout included. A tile that the mask hides is skipped, and `causal_mask` takes no memory.

    q: (B, H, T, K); k, v: (B, H, S, K); mask as in `masks`; bias: a RelativeBias or None. Returns (B, H, T, K).
    queries, keys: the size of a tile.
    """

    takes_padding = True
    takes_bias = True

    def __init__(self, dropout=0.0, queries=512, keys=512):
        if queries < 1 or keys < 1:
            raise ValueError(f"a tile has at least 1 query and 1 key, got {queries} and {keys}")
        self.dropout = Dropout(dropout)
        self.queries = queries
        self.keys = keys

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        mask = check_mask(mask, (*q.shape[:3], k.shape[2]))
        seed = tape.next_seed() if self.dropout.p else None
        tiles = Tiles(self, q, k, v, mask, bias, seed)
        y = array_module(q).empty((*q.shape[:3], v.shape[3]), q.dtype)
        log_total = array_module(q).empty((*q.shape[:3], 1), tiles.q.dtype)
        ones = array_module(q).ones((self.keys, 1), tiles.q.dtype)
        for queries, spans in self.plan(q.shape[2], k.shape[2]):
            top = array_module(q).full_like(log_total[:, :, queries], -math.inf)  # the largest score so far
            total = array_module(q).zeros_like(top)  # sum of exp(score - top)
            mixed = 0  # sum of exp(score - top) v
            for keys, scores, kept in tiles.along(queries, spans, tiles.q[:, :, queries], tiles.k):
                new_top = np.maximum(top, scores.max(axis=-1, keepdims=True))
                base = np.where(new_top == -math.inf, 0, new_top)  # where nothing is kept yet, exp(-inf - 0) is 0
                shrink = np.exp(top - base)
                scores -= base
                weights = np.exp(scores, out=scores)
                total = total * shrink + weights @ ones[:scores.shape[3]]  # faster than sum
                if kept is not None:
                    weights *= kept
                mixed = mixed * shrink + weights @ tiles.v[:, :, keys]
                top = new_top
            some = total > 0
            total = np.where(some, total, 1)
            y[:, :, queries] = mixed * (tiles.gain / total)
            log_total[:, :, queries] = np.where(some, top, 0) + np.log(total)
        tape.push(self, q, k, v, mask, bias, seed, y, log_total)
        return y

    def backward(self, dy, tape):
        *inputs, y, log_total = tape.pop(self)
        tiles = Tiles(self, *inputs)
        # One more column makes the product subtract: (q, -log_total) (k, 1)^T = q k^T - log_total
        q1, k1, v1 = append(tiles.q, -log_total), append(tiles.k, 1), append(tiles.v, 1)
        dq, dk, dv = (array_module(dy).zeros_like(x) for x in (tiles.q, tiles.k, tiles.v))
        for queries, spans in self.plan(dq.shape[2], dk.shape[2]):
            dy_rows = dy[:, :, queries].astype(dq.dtype, copy=False)
            mean = (dy_rows * y[:, :, queries]).sum(axis=-1, keepdims=True)  # of dweights, each by its weight
            dy_rows = dy_rows * tiles.gain
            dy1 = append(dy_rows, -mean)
            for keys, scores, kept in tiles.along(queries, spans, q1[:, :, queries], k1):
                weights = np.exp(scores, out=scores)
                if kept is None:
                    dscores = dot_products(dy1, v1[:, :, keys])
                    dscores *= weights
                else:
                    dscores = dot_products(dy_rows, tiles.v[:, :, keys])
                    dscores *= kept
                    dscores -= mean
                    dscores *= weights
                    weights *= kept
                dv[:, :, keys] += weights.mT @ dy_rows
                if tiles.bias is not None and tiles.bias.learnt:
                    tiles.bias.add_grad(dscores, queries.start, keys.start)
                dq[:, :, queries] += dscores @ tiles.k[:, :, keys]
                dk[:, :, keys] += dscores.mT @ tiles.q[:, :, queries]
        dq *= tiles.scale
        return tuple(dx.astype(dy.dtype, copy=False) for dx in (dq, dk, dv))

    def plan(self, n_queries, n_keys):
        """(some queries, the spans of keys that they may see), all slices, for every query once."""
        for queries in slices(0, n_queries, self.queries):
            yield queries, [slice(0, n_keys)]

    def sees(self, queries, keys):
        """Which of the keys each of the queries may see, (t, s), apart from the mask; None for all."""
        return None


class SlidingWindow(Tiled):
    """Tiled attention to the keys within width places of the query on either side: time linear in the length.

    Equal to DotProduct with `window_mask`. The first n_global tokens see all, and are seen by all (Longformer, Beltagy
    et al. 2020). Within one sequence only: a window has no meaning in cross-attention.
    """

    compares_places = True

    def __init__(self, width, n_global=0, dropout=0.0):
        if width < 1:
            raise ValueError(f"the window width must be at least 1, got {width}")
        if n_global < 0:
            raise ValueError(f"n_global must be at least 0, got {n_global}")
        super().__init__(dropout, queries=min(max(width, 64), 256))
        self.width = width
        self.n_global = n_global

    def plan(self, n_queries, n_keys):
        if n_queries != n_keys:
            raise ValueError(f"a sliding window is for one sequence, got {n_queries} queries and {n_keys} keys")
        n_global = min(self.n_global, n_keys)
        for queries in slices(0, n_global, self.queries):
            yield queries, [slice(0, n_keys)]
        for queries in slices(n_global, n_queries, self.queries):
            window = slice(max(n_global, queries.start - self.width), min(n_keys, queries.stop + self.width))
            yield queries, [slice(0, n_global), window] if n_global else [window]

    def sees(self, queries, keys):
        if queries.start < self.n_global or keys.start < self.n_global:
            return None
        shape = queries.stop - queries.start, keys.stop - keys.start
        return by_distance(abs(distances(*shape) + keys.start - queries.start) <= self.width, *shape)


class Tiles:
    """The tiles of scores that a Tiled core looks at, one after the other; half precision in float32."""

    def __init__(self, core, q, k, v, mask, bias, seed):
        self.core = core
        self.scale = 1 / math.sqrt(q.shape[-1])
        dtype = wide(q.dtype)
        self.q = q.astype(dtype, copy=False) * self.scale
        self.k = k.astype(dtype, copy=False)
        self.v = v.astype(dtype, copy=False)
        self.mask = mask
        self.bias = bias
        p = core.dropout.p
        self.drop = None if seed is None else KeepBlocks(p, seed, (*q.shape[:3], k.shape[2]))
        self.gain = 1.0 if seed is None else 1 / (1 - p)

    def along(self, queries, spans, q, k):
        """(keys, scores, kept) of each tile of these queries that is not all hidden. scores: q k^T, a new array
        (B, H, t, s); kept: 1 where dropout keeps one, 0 elsewhere, None for all."""
        for span in spans:
            kept = None
            if self.drop:
                kept = like(self.drop.block(queries, span), self.q)
            for keys in slices(span.start, span.stop, self.core.keys):
                keep = self.keep(queries, keys)
                if keep is not None and not keep.any():
                    continue
                scores = dot_products(q, k[:, :, keys])
                if self.bias is not None:
                    scores += self.bias.values[:, queries, keys]
                if keep is not None and not keep.all():
                    scores = masked(scores, keep)
                here = slice(keys.start - span.start, keys.stop - span.start)
                yield keys, scores, None if kept is None else in_order_of(scores, kept[..., here])

    def keep(self, queries, keys):
        """What mask and core let these queries see of these keys, broadcast to (B, H, t, s); None for all."""
        sees = self.core.sees(queries, keys)
        if sees is not None:
            sees = like(sees, self.q)
        if self.mask is None:
            return sees
        mask = self.mask[:, :, queries if self.mask.shape[2] > 1 else slice(None),
                         keys if self.mask.shape[3] > 1 else slice(None)]
        return mask if sees is None else mask & sees


def in_order_of(x, kept):
    """kept as numbers of x's dtype, in memory as x is."""
    y = np.empty_like(x)
    y[...] = kept
    return y


def append(x, column):
    """x with a column more, (..., N, K) -> (..., N, K + 1)."""
    y = array_module(x).empty((*x.shape[:-1], x.shape[-1] + 1), x.dtype)
    y[..., :-1] = x
    y[..., -1:] = column
    return y


def slices(start, stop, step):
    """start ... stop cut into slices of step."""
    for i in range(start, stop, step):
        yield slice(i, min(i + step, stop))
