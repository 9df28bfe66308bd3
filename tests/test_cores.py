"""Attention cores against the plain one, and against the formulas they stand for."""

import tracemalloc

import numpy as np
import pytest
from support import random

from tinyenc import NO_TAPE, MultiHeadAttention, Tape, causal_mask, window_mask
from tinyenc.attention import CausalLinearAttention, DotProduct, LinearAttention, SlidingWindow, Tiled
from tinyenc.attention.per_sequence import PerSequence
from tinyenc.distance import RelativeBias, by_distance
from tinyenc.keep_mask import KeepBlocks, KeepScores
from tinyenc.positions import ALiBi, Rotary, T5Buckets

B, H, T, K = 2, 3, 23, 4
MASKS = {
    "none": lambda t, s: None,
    "causal": causal_mask,
    "padding": lambda t, s: np.arange(s) < np.array([s, s // 2])[:, None, None, None],
    "pairs": lambda t, s: random(B, H, t, s, seed=5) > 0.5,
    "empty-rows": lambda t, s: (np.arange(t) % 3 > 0)[None, None, :, None],
    "all-hidden": lambda t, s: np.zeros((1, 1, 1, s), bool),
}


def inputs(t=T, s=T, dtype=np.float64):
    """q, k, v and the gradient that comes back."""
    return [random(B, H, n, K, seed=i, dtype=dtype) for i, n in enumerate((t, s, s, t))]


def run(core, q, k, v, dy, mask=None, diagonals=None, seed=None):
    """The output and every gradient, that of the bias last."""
    bias = None if diagonals is None else RelativeBias(diagonals, learnt=True)
    tape = Tape(seed)
    y = core.forward(q, k, v, mask, bias, tape)
    gradients = core.backward(dy, tape)
    assert len(tape) == 0
    return [y, *gradients] + ([] if bias is None else [bias.grad])


def assert_same(got, wanted, atol=1e-12):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("tile", [(1, 1), (5, 4), (8, 64), (64, 7)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("s", [T, 31])
def test_tiled_is_the_plain_core_in_outputs_and_gradients(s, mask, tile, dropout):
    mask = MASKS[mask](T, s)
    diagonals = random(H, 2 * T - 1) if s == T else None
    arguments = *inputs(T, s), mask, diagonals, 7
    assert_same(run(Tiled(dropout, *tile), *arguments), run(DotProduct(dropout), *arguments))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("n_global", [0, 1, 4, 99])
@pytest.mark.parametrize("width", [1, 6, 40])
@pytest.mark.parametrize("mask", MASKS)
def test_sliding_window_is_the_plain_core_with_a_window_mask(mask, width, n_global, dropout):
    mask = MASKS[mask](T, T)
    first = np.arange(T) < n_global
    window = window_mask(T, width) | first | first[:, None]
    core = SlidingWindow(width, n_global, dropout)
    core.queries, core.keys = 5, 4
    arguments = inputs()
    diagonals = random(H, 2 * T - 1)
    plain = run(DotProduct(dropout), *arguments, window if mask is None else window & mask, diagonals, 7)
    assert_same(run(core, *arguments, mask, diagonals, 7), plain)


@pytest.mark.parametrize("mask", ["none", "padding", "all-hidden"])
@pytest.mark.parametrize("core, s", [(LinearAttention(), T), (LinearAttention(), 31), (CausalLinearAttention(1), T),
                                     (CausalLinearAttention(5), T), (CausalLinearAttention(64), T)],
                         ids=["all", "cross", "causal-1", "causal-5", "causal-64"])
def test_linear_attention_weighs_by_the_product_of_features(core, s, mask):
    q, k, v, _ = inputs(T, s)
    mask = MASKS[mask](T, s)
    weights = np.where(q > 0, q + 1, np.exp(q)) @ np.where(k > 0, k + 1, np.exp(k)).mT
    if isinstance(core, CausalLinearAttention):
        weights = np.where(causal_mask(T), weights, 0)
    if mask is not None:
        weights = weights * mask
    total = weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(core(q, k, v, mask), weights / np.where(total == 0, 1, total) @ v, rtol=0, atol=1e-13)


def test_causal_linear_attention_sends_nothing_to_later_tokens():
    q, k, v, dy = inputs()
    dy[:, :, 10:] = 0
    for gradient in run(CausalLinearAttention(4), q, k, v, dy)[1:]:
        assert not gradient[:, :, 10:].any() and gradient[:, :, :10].any()


@pytest.mark.parametrize("core", [Tiled(queries=4, keys=8), SlidingWindow(4), LinearAttention(),
                                  CausalLinearAttention(4)], ids=lambda core: type(core).__name__)
def test_half_precision_comes_back_near_the_float64_result(core):
    half = inputs(dtype=np.float16)
    got = run(core, *half)
    assert all(array.dtype == np.float16 for array in got)
    assert_same(got, run(core, *(x.astype(np.float64) for x in half)), atol=4e-3)


def test_blocks_of_a_dropout_mask_are_those_of_the_whole():
    whole = KeepScores(0.3, 2**63, np.empty((2, 3, 11, 13))).kept
    blocks = KeepBlocks(0.3, 2**63, whole.shape)
    for queries in slice(0, 11), slice(3, 4), slice(2, 9):
        for keys in slice(0, 13), slice(5, 12), slice(12, 13):
            assert np.array_equal(blocks.block(queries, keys), whole[:, :, queries, keys])


def test_tile_that_the_mask_hides_is_not_looked_at():
    q, k, v, dy = inputs()
    mask = np.broadcast_to(np.arange(T) < 8, (1, 1, T, T))
    wanted = run(DotProduct(), q, k, v, dy, mask)
    k[:, :, 8:] = v[:, :, 8:] = np.nan
    assert_same(run(Tiled(queries=5, keys=8), q, k, v, dy, mask), wanted)


@pytest.mark.parametrize("core, most", [
    (DotProduct(), 4.2), (Tiled(queries=32, keys=32), 2.2), (SlidingWindow(32), 2.2), (LinearAttention(), 2.2),
    (CausalLinearAttention(32), 2.2)], ids=lambda value: type(value).__name__)
def test_memory_is_linear_in_the_length_but_for_the_plain_core(core, most):
    def peak(n):
        x = [random(1, 1, n, K, seed=i) for i in range(4)]
        tracemalloc.start()
        run(core, *x, causal_mask(n) if isinstance(core, Tiled) else None)
        largest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return largest

    peak(64)  # what is made once
    assert most - 0.7 < peak(4096) / peak(2048) < most


def test_masks_of_distance_take_no_memory():
    for mask in causal_mask(300, 400), window_mask(300, 5, 400):
        while mask.base is not None:
            mask = mask.base
        assert mask.nbytes == 300 + 400 - 1


def test_by_distance_puts_each_diagonal_in_its_place():
    assert np.array_equal(by_distance(np.arange(6), 3, 4), [[2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]])


def test_long_sequence_goes_a_few_heads_at_a_time_and_short_ones_together():
    seen = []

    class Watched(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=None):
            seen.append(q.shape[:2])
            return super().forward(q, k, v, mask, bias, tape)

    for b, t in (1, 600), (4, 16):
        q, k, v = (random(b, 2, t, K, seed=i) for i in range(3))
        np.testing.assert_allclose(PerSequence(Watched())(q, k, v), DotProduct()(q, k, v), rtol=0, atol=1e-13)
    assert seen == [(1, 1), (1, 1), (4, 2)]


def test_core_that_does_not_say_that_it_takes_a_bias_is_refused_with_one():
    class Mine(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            return super().forward(q, k, v, mask, None, tape)

    class Willing(Mine):
        takes_bias = True

    for positions in ALiBi(2), T5Buckets(2):
        with pytest.raises(ValueError, match=f"^{type(positions).__name__} is a bias on the scores, and Mine does not"):
            MultiHeadAttention(8, 2, attend=Mine(), positions=positions)
        MultiHeadAttention(8, 2, attend=Willing(), positions=positions)
    MultiHeadAttention(8, 2, attend=Mine(), positions=Rotary())


REFUSALS = {
    "the window width must be at least 1, got 0": lambda: SlidingWindow(0),
    "n_global must be at least 0, got -1": lambda: SlidingWindow(3, -1),
    "a tile has at least 1 query and 1 key, got 4 and 0": lambda: Tiled(queries=4, keys=0),
    "a chunk has at least 1 token, got 0": lambda: CausalLinearAttention(0),
    "a sliding window is for one sequence, got 23 queries and 5 keys":
        lambda: SlidingWindow(3)(*inputs(T, 5)[:3]),
    "causal linear attention is for one sequence, got 23 queries and 5 keys":
        lambda: CausalLinearAttention()(*inputs(T, 5)[:3]),
    "LinearAttention cannot hide keys from single queries, as a mask of shape .1, 1, 23, 23. asks; causal attention is "
    "CausalLinearAttention": lambda: LinearAttention()(*inputs()[:3], causal_mask(T)),
    "LinearAttention has no scores to add a bias to":
        lambda: LinearAttention()(*inputs()[:3], None, RelativeBias(random(H, 2 * T - 1))),
    "the diagonals of a bias are .heads, 2 T - 1., got shape .3, 8.": lambda: RelativeBias(random(H, 8)),
    "ALiBi is a bias on the scores, and CausalLinearAttention does not say that it takes one. A core that adds "
    "bias.values to its scores, and in its backward calls bias.add_grad where bias.learnt, says takes_bias = True in "
    "its class, beside its forward":
        lambda: MultiHeadAttention(8, 2, attend=CausalLinearAttention(), positions=ALiBi(2)),
    "ALiBi was made for 4 heads, the attention has 2": lambda: MultiHeadAttention(8, 2, positions=ALiBi(4)),
    "T5Buckets was made for 4 heads, the attention has 2": lambda: MultiHeadAttention(8, 2, positions=T5Buckets(4)),
    "rotary positions turn pairs of entries: a head width of 5 is odd":
        lambda: MultiHeadAttention(10, 2, positions=Rotary()),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_a_core_or_positions_cannot_do_is_refused_by_name(message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        REFUSALS[message]()


@pytest.mark.parametrize("settings", [dict(positions=Rotary()), dict(positions=ALiBi(2)), dict(positions=T5Buckets(2)),
                                      dict(attend=SlidingWindow(2)), dict(attend=CausalLinearAttention())],
                         ids=lambda settings: type(*settings.values()).__name__)
def test_what_compares_places_is_refused_in_cross_attention(settings):
    attention = MultiHeadAttention(8, 2, **settings, rng=0)
    x = random(1, 5, 8, dtype=np.float32)
    assert attention(x, x).shape == x.shape
    name = type(*settings.values()).__name__
    with pytest.raises(ValueError, match=f"^{name} compares places in one sequence, and has no meaning in cross-"):
        attention(x, x.copy())
