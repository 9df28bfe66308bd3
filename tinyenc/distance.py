"""What depends on the distance between key and query alone: T + S - 1 numbers stand for (T, S)."""

import numpy as np

from .backend import array_module


def distances(n_queries, n_keys):
    """key - query on each diagonal of (T, S): 1 - T ... S - 1."""
    return np.arange(1 - n_queries, n_keys)


def by_distance(diagonals, n_queries, n_keys):
    """(..., T, S) with diagonals[..., j - i + T - 1] at [i, j]: a read-only view that takes no memory."""
    windows = array_module(diagonals).lib.stride_tricks.sliding_window_view(diagonals, n_keys, axis=-1)
    return windows[..., n_queries - 1::-1, :]


class RelativeBias:
    """What is added to a score by how far the key stands from the query: bias[h, i, j] = diagonals[h, j - i + T - 1].

    diagonals: (H, 2T - 1). `values` shows them as (H, T, T), which takes no memory. learnt: whether there is a grad,
    like diagonals, to which the backward of attention adds.
    """

    def __init__(self, diagonals, learnt=False):
        if diagonals.ndim != 2 or diagonals.shape[1] % 2 == 0:
            raise ValueError(f"the diagonals of a bias are (heads, 2 T - 1), got shape {diagonals.shape}")
        self.diagonals = diagonals
        self._grad = array_module(diagonals).zeros_like(diagonals) if learnt else None

    @property
    def learnt(self):
        return self._grad is not None

    @property
    def grad(self):
        """The gradient of diagonals. RuntimeError where nothing is learnt."""
        if not self.learnt:
            raise RuntimeError("this RelativeBias has no grad: where its diagonals come from a parameter, make it with "
                               "learnt=True")
        return self._grad

    @property
    def n_tokens(self):
        return (self.diagonals.shape[1] + 1) // 2

    @property
    def values(self):
        """(H, T, T), a read-only view."""
        return by_distance(self.diagonals, self.n_tokens, self.n_tokens)

    def part(self, heads, n_tokens):
        """The bias of some of the heads (a slice) in a shorter sequence, with a gradient of its own."""
        return RelativeBias(self._diagonals_of(self.diagonals, heads, n_tokens), self.learnt)

    def add_part(self, part, heads):
        """Add the gradient of a part to this one's."""
        self._diagonals_of(self.grad, heads, part.n_tokens)[...] += part.grad

    def _diagonals_of(self, array, heads, n_tokens):
        cut = self.n_tokens - n_tokens
        return array[heads, cut:array.shape[1] - cut]

    def add_grad(self, dscores, first_query=0, first_key=0):
        """Add dscores (B, H, t, s), a block of the gradient of the scores, along its diagonals."""
        _, h, t, s = dscores.shape
        sheared = array_module(dscores).zeros((h, t, s + t), self.grad.dtype)
        dscores.sum(axis=0, out=sheared[:, ::-1, :s])
        sheared = sheared.reshape(h, -1)[:, :t * (s + t - 1)].reshape(h, t, s + t - 1)  # rows one shorter: they slide
        first = first_key - (first_query + t - 1) + self.n_tokens - 1
        self.grad[:, first:first + s + t - 1] += sheared.sum(axis=1)
