"""Attention masks: one contract.

A mask is boolean, True keeps, and broadcasts to (batch, heads, queries, keys). The functions here make masks of
that shape; `&` joins them. A query that may see nothing gets exact zeros and sends back exact zeros. Those that
depend on the distance alone are read-only views of T + S - 1 booleans.
"""

from ..backend import array_module, as_array
from ..distance import by_distance, distances


def padding_mask(lengths_or_tokens, n_keys=None):
    """Keep real tokens: (B, 1, 1, S).

    lengths_or_tokens: lengths (B,), with n_keys, the padded length (by default the longest); or (B, S), True or 1
    at real tokens, as tokenizers return it.
    """
    given = as_array(lengths_or_tokens)
    if given.ndim == 2:
        return as_mask(given)[:, None, None, :]
    if given.ndim != 1:
        raise ValueError(f"a padding mask is made from lengths (B,) or tokens (B, S), got shape {given.shape}")
    n_keys = int(given.max()) if n_keys is None else n_keys
    return (array_module(given).arange(n_keys) < given[:, None])[:, None, None, :]


def causal_mask(n_queries, n_keys=None):
    """Keep the keys up to the query: (1, 1, T, S). With more keys than queries, the last query sees all."""
    n_keys = n_queries if n_keys is None else n_keys
    return by_distance(distances(n_queries, n_keys) <= n_keys - n_queries, n_queries, n_keys)[None, None]


def window_mask(n_queries, width, n_keys=None):
    """Keep the keys within width positions of the query on either side: (1, 1, T, S)."""
    if width < 1:
        raise ValueError(f"the window width must be at least 1, got {width}")
    n_keys = n_queries if n_keys is None else n_keys
    return by_distance(abs(distances(n_queries, n_keys)) <= width, n_queries, n_keys)[None, None]


def as_mask(mask):
    """mask as booleans: zeros and ones of an integer dtype are converted, lists of either too; anything else is refused
    by name. Floats are, because for some 1 keeps, for others 0 does, and what hides is added to the score."""
    mask = as_array(mask)
    dtype = getattr(mask, "dtype", type(mask).__name__)
    kind = getattr(dtype, "kind", None)
    if kind == "b":
        return mask
    if kind not in ("i", "u"):
        raise TypeError(f"a mask is boolean (True keeps) or 0/1 integers, got {dtype}")
    if mask.size and (int(mask.min()) < 0 or int(mask.max()) > 1):
        raise ValueError(f"an integer mask holds 0 and 1, got values from {int(mask.min())} to {int(mask.max())}")
    return mask.astype(bool)


def real_tokens(mask, shape):
    """The booleans (B, T) of a padding mask, which may come as (B, T) or as (B, 1, 1, T)."""
    mask = as_mask(mask)
    tokens = mask[:, 0, 0] if mask.shape == (*shape[:1], 1, 1, *shape[1:]) else mask
    if tokens.shape != tuple(shape):
        raise ValueError(f"padding mask of shape {mask.shape} does not fit a batch of shape {tuple(shape)}")
    return tokens


def check_mask(mask, shape):
    """mask as booleans that broadcast to shape (B, H, T, S), None where it is; ValueError names both shapes where they
    cannot."""
    if mask is None:
        return None
    mask = as_mask(mask)
    fits = mask.ndim == 4 and all(m in (1, s) for m, s in zip(mask.shape, shape))
    if not fits:
        raise ValueError(f"mask of shape {mask.shape} does not broadcast to (batch, heads, queries, keys) {shape}")
    return mask
