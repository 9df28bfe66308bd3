"""How a model learns the order of its tokens: one object, given to the encoder.

There are three places to say it: on the embeddings (sinusoidal, learned), on the queries and keys (rotary), and
on the scores (T5's buckets, ALiBi). `Positions` has a hook for each, which does nothing; a kind of positions
fills in the one it uses.
"""

import functools
import math

import numpy as np

from .backend import array_module, like, wide
from .distance import RelativeBias, distances
from .init import normal
from .layer import Layer, Parameter, promises
from .tape import NO_TAPE


class Positions(Layer):
    """The three hooks, each doing nothing."""

    max_len = math.inf  # the longest sequence it can place
    compares_places = False  # whether it works within one sequence only, not in cross-attention

    def check(self, n_heads, head_width, core):
        """Raise ValueError unless it works with such heads and this attention core. Called at construction."""

    def forward(self, x, index, tape=NO_TAPE):
        """On the embeddings: x with the places told. index: the place of each token, (T,) for x (B, T, D), or (N,)
        for packed tokens (N, D)."""
        return x

    def backward(self, dy, tape):
        return dy

    def turn(self, x, index, tape=NO_TAPE):
        """On queries and keys, (..., H, T, K)."""
        return x

    def turn_backward(self, dy, tape):
        return dy

    def bias(self, n_tokens, q, tape=NO_TAPE):
        """On the scores: a RelativeBias in the dtype and on the device of q, or None. Cores add up its gradient."""
        return None

    def bias_backward(self, tape):
        """Take the gradient that the cores added up."""


class NoPositions(Positions):
    """Nothing tells the order: the encoder sees a bag of tokens."""


class SinusoidalPositions(Positions):
    """x + table[index], with table[p, 2i] = sin(p / 10000^(2i / D)) and table[p, 2i + 1] = cos of the same.

    Vaswani et al. (2017, section 3.5). Any width, odd ones too.
    """

    def __init__(self, d_model, max_len=5000):
        self.d_model = d_model
        self.max_len = max_len

    def forward(self, x, index, tape=NO_TAPE):
        length = int(index.max(initial=0)) + 1
        check_length(length, self.max_len)
        table = sinusoids(1 << (length - 1).bit_length(), self.d_model)
        return x + array_module(x).asarray(table[index], x.dtype)


class LearnedPositions(Positions):
    """x + weight[index], a vector learnt for each of max_len places (Gehring et al. 2017; BERT's).

    A longer sequence is refused, unless the table was grown: `grow_copying`, `grow_interpolating` or `grow_fresh`.
    Each takes the optimiser too, and grows the moments it keeps for the table in the same way.
    std: of the first vectors. 0.02 is BERT's, whose tokens start as small; beside the tokens of unit variance that
    Encoder makes, such positions are learnt late, or never.
    """

    def __init__(self, d_model, max_len=512, std=0.02, rng=None):
        if max_len < 1:
            raise ValueError(f"max_len must be at least 1, got {max_len}")
        self.weight = Parameter(normal((max_len, d_model), std, rng), decay=False)
        self.std = std

    @property
    def max_len(self):
        return self.weight.shape[0]

    def forward(self, x, index, tape=NO_TAPE):
        check_length(int(index.max(initial=0)) + 1, self.max_len)
        tape.push(self, index)
        return x + self.weight.data[index]

    def backward(self, dy, tape):
        (index,) = tape.pop(self)
        rows = dy.sum(axis=0, dtype=wide(dy.dtype)) if dy.ndim == 3 else dy
        array_module(dy).add.at(self.weight.grad, index, rows)
        return dy

    def grow_copying(self, max_len, optimizer=None):
        """Repeat the table: place p gets the vector of p mod the old max_len (Longformer, Beltagy et al. 2020)."""
        self._grow(max_len, lambda rows: rows[array_module(rows).arange(max_len) % len(rows)], optimizer)

    def grow_interpolating(self, max_len, optimizer=None):
        """Stretch the table over the new places, along straight lines between the old vectors."""
        self._grow(max_len, lambda rows: stretched(rows, max_len), optimizer)

    def grow_fresh(self, max_len, optimizer=None, rng=None):
        """Keep the table, and begin the new places as the first ones began; their moments are zero."""
        old = self.max_len
        self._grow(max_len, lambda rows: lengthened(rows, max_len), optimizer)
        new = normal((max_len - old, self.weight.shape[1]), self.std, rng)
        self.weight.data[old:] = like(new, self.weight.data)

    def _grow(self, max_len, change, optimizer):
        if max_len <= self.max_len:
            raise ValueError(f"max_len {max_len} is not more than the {self.max_len} places there are")
        if optimizer:
            optimizer.reshape(self.weight, change)
        self.weight.data = change(self.weight.data)
        self.weight.grad = None


def stretched(rows, n):
    """n rows evenly spaced along the lines through the given ones, the first and last being the same."""
    at = array_module(rows).linspace(0, len(rows) - 1, n)
    low = at.astype(int).clip(0, max(0, len(rows) - 2))
    high = (low + 1).clip(0, len(rows) - 1)
    share = (at - low)[:, None].astype(rows.dtype)
    return rows[low] * (1 - share) + rows[high] * share


def lengthened(rows, n):
    """rows, and zeros below them, n in all."""
    return np.concatenate([rows, array_module(rows).zeros((n - len(rows), rows.shape[1]), rows.dtype)])


class Rotary(Positions):
    """Turns query and key by angles p / base^(2i / K) at place p, so that scores see differences of places alone
    (RoPE, Su et al. 2021).

    Entries i and i + K/2 of a head are a pair (the layout of GPT-NeoX and Llama; the paper pairs 2i and 2i + 1, the
    same up to the order of the columns of w_q and w_k).
    """

    compares_places = True

    def __init__(self, base=10000.0):
        if base <= 1:
            raise ValueError(f"the base of rotary positions must be above 1, got {base}")
        self.base = base

    def check(self, n_heads, head_width, core):
        if head_width % 2:
            raise ValueError(f"rotary positions turn pairs of entries: a head width of {head_width} is odd")

    def turn(self, x, index, tape=NO_TAPE):
        cos, sin = self.circle(index, x)
        tape.push(self, cos, sin)
        return rotate(x, cos, sin)

    def turn_backward(self, dy, tape):
        cos, sin = tape.pop(self)
        return rotate(dy, cos, -sin)  # the adjoint of a turn is the turn back

    def circle(self, index, x):
        """cos and sin of each angle, (T, K / 2), like x."""
        half = x.shape[-1] // 2
        angle = np.asarray(index)[:, None] / self.base ** (np.arange(half) / half)
        dtype = wide(x.dtype)
        return like(np.cos(angle).astype(dtype), x), like(np.sin(angle).astype(dtype), x)


def rotate(x, cos, sin):
    """Each pair (a, b) of entries i and i + K/2 turned to (a cos - b sin, b cos + a sin)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    y = array_module(x).empty_like(x)  # keeps the order of the axes in memory, so that heads merge without a copy
    y[..., :half] = a * cos - b * sin
    y[..., half:] = b * cos + a * sin
    return y


class ALiBi(Positions):
    """Adds -slope |i - j| to the score of query i and key j, with a slope for each head (Press et al. 2022).

    Slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8 for a power of two; for other numbers of heads those of the next lower
    power, then every other one of its double. Nothing is learnt.
    """

    compares_places = True

    def __init__(self, n_heads):
        self.n_heads = n_heads

    def check(self, n_heads, head_width, core):
        check_bias(self, self.n_heads, n_heads, core)

    def bias(self, n_tokens, q, tape=NO_TAPE):
        slopes = np.array(alibi_slopes(self.n_heads))[:, None]
        return RelativeBias(like((-slopes * abs(distances(n_tokens, n_tokens))).astype(wide(q.dtype)), q))


def alibi_slopes(n_heads):
    """The slope of each head, a list."""
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes if power == n_heads else slopes + alibi_slopes(2 * power)[::2][:n_heads - power]


class T5Buckets(Positions):
    """Adds weight[bucket(j - i)] to the score of query i and key j, a number for each head (Raffel et al. 2020).

    Near distances have a bucket each, far ones share buckets that grow logarithmically up to max_distance. Half of
    the buckets are for keys after the query; none are with both_sides=False, for causal attention. All layers of
    an encoder share the table.
    """

    compares_places = True

    def __init__(self, n_heads, n_buckets=32, max_distance=128, both_sides=True, rng=None):
        exact = n_buckets // (4 if both_sides else 2)
        if exact < 1 or max_distance <= exact:
            raise ValueError(f"{n_buckets} buckets, {exact} of them for one distance each, do not reach to a "
                             f"max_distance of {max_distance}")
        self.weight = Parameter(normal((n_buckets, n_heads), rng=rng), decay=False)
        self.max_distance = max_distance
        self.both_sides = both_sides

    def check(self, n_heads, head_width, core):
        check_bias(self, self.weight.shape[1], n_heads, core)

    def bias(self, n_tokens, q, tape=NO_TAPE):
        bucket = like(self.bucket(distances(n_tokens, n_tokens)), q)
        bias = RelativeBias(self.weight.data.astype(wide(q.dtype), copy=False)[bucket].T, learnt=True)
        tape.push(self, bucket, bias)
        return bias

    def bias_backward(self, tape):
        bucket, bias = tape.pop(self)
        array_module(bucket).add.at(self.weight.grad, bucket, bias.grad.T)

    def bucket(self, distance):
        """The bucket of each distance key - query."""
        n = self.weight.shape[0]
        if self.both_sides:
            n //= 2
            side = np.where(distance > 0, n, 0)
            away = abs(distance)
        else:
            side = 0
            away = np.maximum(-distance, 0)
        exact = n // 2
        grown = np.log(np.maximum(away, exact) / exact) / math.log(self.max_distance / exact) * (n - exact)
        return side + np.where(away < exact, away, np.minimum(exact + grown.astype(int), n - 1))


def check_bias(positions, bias_heads, n_heads, core):
    """ValueError unless a bias made for bias_heads fits, and the core says that it adds one to its scores."""
    if bias_heads != n_heads:
        raise ValueError(f"{type(positions).__name__} was made for {bias_heads} heads, the attention has {n_heads}")
    check_takes_bias(positions, core)


def check_takes_bias(positions, core):
    """ValueError unless the core says that it adds a bias to its scores."""
    if not promises(core, "takes_bias"):
        raise ValueError(f"{type(positions).__name__} is a bias on the scores, and {type(core).__name__} does not say "
                         "that it takes one. A core that adds bias.values to its scores, and in its backward calls "
                         "bias.add_grad where bias.learnt, says takes_bias = True in its class, beside its forward")


@functools.lru_cache(maxsize=8)
def sinusoids(n_positions, d_model):
    """The table of sinusoids, (n_positions, d_model) float64, read-only."""
    even = np.arange(d_model) // 2 * 2
    angle = np.arange(n_positions)[:, None] / 10000 ** (even / d_model)
    table = np.where(np.arange(d_model) % 2 == 0, np.sin(angle), np.cos(angle))
    table.flags.writeable = False
    return table


def check_length(length, max_len):
    """ValueError where a sequence is longer than the positions go."""
    if length > max_len:
        raise ValueError(f"sequence length {length} is more than max_len {max_len}")
