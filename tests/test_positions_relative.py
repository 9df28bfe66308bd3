"""Positions told inside attention: rotary, ALiBi, T5's buckets; and none."""

import numpy as np
import pytest
from support import padded_batch, random, small_encoder

from tinyenc import Tape
from tinyenc.attention import SlidingWindow, Tiled
from tinyenc.positions import ALiBi, LearnedPositions, NoPositions, Rotary, T5Buckets, alibi_slopes

KINDS = {
    "none": NoPositions,
    "learned": lambda: LearnedPositions(16, 64, rng=0),
    "rotary": Rotary,
    "alibi": lambda: ALiBi(4),
    "t5": lambda: T5Buckets(4, 8, 6, rng=0),
}


def encode(encoder, ids, mask, dy, seed=None):
    """The states, and {name: gradient} for the gradient dy of the states."""
    encoder.zero_grad()
    tape = Tape(seed)
    states = encoder.forward(ids, mask, tape)
    encoder.backward(dy, tape)
    assert len(tape) == 0
    return states, {name: p.grad.copy() for name, p in encoder.named_parameters()}


def assert_same(one, other, atol=1e-12):
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_and_those_with_holes_are_what_a_mask_makes_of_the_padded_ones(kind):
    encoder = small_encoder(positions=KINDS[kind]())
    ids, tokens = padded_batch([9, 4, 6, 0, 9])
    holes = tokens.copy()
    holes[0, 3] = False
    for real in tokens, tokens[:, ::-1], holes:
        dy = random(5, 9, 16) * real[..., None]
        mask = np.broadcast_to(real[:, None, None], (5, 1, 9, 9))
        states, gradients = encode(encoder, ids, real, dy)
        plain, plain_gradients = encode(encoder, ids, mask, dy)
        np.testing.assert_allclose(states, plain * real[..., None], rtol=0, atol=1e-12)
        assert_same(gradients, plain_gradients)


@pytest.mark.parametrize("core", [Tiled(0.3, queries=4, keys=3), SlidingWindow(99, dropout=0.3)],
                         ids=lambda core: type(core).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_core_gives_the_same_encoder(kind, core):
    encoder = small_encoder(positions=KINDS[kind](), dropout=0.3)
    other = small_encoder(positions=KINDS[kind](), dropout=0.3, attend=core)
    ids, tokens = padded_batch([9, 4, 6])
    for mask in None, tokens:
        states, gradients = encode(encoder, ids, mask, random(3, 9, 16), seed=1)
        same, same_gradients = encode(other, ids, mask, random(3, 9, 16), seed=1)
        np.testing.assert_allclose(states, same, rtol=0, atol=1e-12)
        assert_same(gradients, same_gradients)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "t5", "none"])
def test_padding_on_the_left_changes_nothing_where_only_differences_of_places_count(kind):
    encoder = small_encoder(positions=KINDS[kind]())
    ids, tokens = padded_batch([7, 4], width=9)
    right = encoder(ids, tokens)
    left = encoder(np.array([np.roll(row, 9 - n) for row, n in zip(ids, tokens.sum(1))]), tokens[:, ::-1])
    for row, n in enumerate(tokens.sum(1)):
        np.testing.assert_allclose(left[row, 9 - n:], right[row, :n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_the_tokens_matters_unless_there_are_no_positions(kind):
    encoder = small_encoder(positions=KINDS[kind]())
    ids = padded_batch([6])[0]
    order = [0, 2, 1, 3, 4, 5]
    assert (abs(encoder(ids)[:, order] - encoder(ids[:, order])).max() < 1e-12) == (kind == "none")


def test_rotary_turns_pairs_as_complex_numbers_and_keeps_lengths():
    x, places = random(2, 3, 7, 6), np.array([0, 1, 2, 5, 9, 100, 4000])
    angle = places[:, None] / 10000.0 ** (np.arange(3) / 3)
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angle)
    y = Rotary().turn(x, places)
    np.testing.assert_allclose(y, np.concatenate([turned.real, turned.imag], axis=-1), rtol=0, atol=1e-12)
    assert np.array_equal(y[:, :, 0], x[:, :, 0])


def test_rotary_turns_half_precision_by_exact_angles():
    x, places = random(1, 1, 3, 4, dtype=np.float16), np.array([0, 2049, 4095])
    y = Rotary().turn(x, places)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, Rotary().turn(x.astype(np.float64), places), rtol=0, atol=2e-3)


# Press et al. (2022), and their code where the number of heads is no power of two
def test_alibi_slopes_are_the_known_ones():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(1) == [1 / 256]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


def test_alibi_takes_slope_times_distance_from_the_scores():
    bias = ALiBi(2).bias(4, np.zeros((1, 2, 4, 3), np.float32))
    assert bias.values.dtype == np.float32 and not bias.learnt
    distance = abs(np.arange(4)[:, None] - np.arange(4))
    assert np.array_equal(bias.values, [-distance / 16, -distance / 256])


# 32 buckets up to 128: 8 distances have their own, then each bucket is sqrt(2) times as wide as the one before
def test_t5_buckets_are_the_known_ones():
    t5 = T5Buckets(4)
    ends = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91, 10**6]
    for bucket, (first, end) in enumerate(zip(ends, ends[1:])):
        away = np.array([first, end - 1])
        assert t5.bucket(-away).tolist() == [bucket, bucket]
        assert t5.bucket(away[away > 0]).tolist() == [16 + bucket] * np.count_nonzero(away)


def test_t5_buckets_of_one_side_put_every_later_key_in_the_first():
    t5 = T5Buckets(4, both_sides=False)
    assert t5.bucket(np.array([0, 1, 50])).tolist() == [0, 0, 0]
    assert t5.bucket(-np.array([0, 1, 15, 16, 18, 19, 112, 113, 999])).tolist() == [0, 1, 15, 16, 16, 17, 30, 31, 31]


def test_t5_adds_the_number_of_the_bucket_to_the_score():
    t5 = T5Buckets(2, 8, 6, rng=0)
    values = t5.bias(20, np.zeros((1, 2, 20, 3), np.float32)).values
    for i in range(20):
        for j in range(20):
            assert np.array_equal(values[:, i, j], t5.weight.data[t5.bucket(np.array(j - i))])


def test_layers_share_one_t5_table_and_its_gradient_is_the_sum_of_theirs():
    shared = small_encoder(positions=T5Buckets(4, 8, 6, rng=0))
    names = [name for name, p in shared.named_parameters() if p is shared.embed.positions.weight]
    assert names == ["embed.positions.weight"]
    apart = small_encoder(positions=T5Buckets(4, 8, 6, rng=0))
    for layer in apart.layers:
        layer.attn.positions = T5Buckets(4, 8, 6, rng=0).astype(np.float64)
    ids, tokens = padded_batch([9, 4, 6])
    gradients = encode(shared, ids, tokens, random(3, 9, 16))[1]
    each = encode(apart, ids, tokens, random(3, 9, 16))[1]
    total = each["layers.0.attn.positions.weight"] + each["layers.1.attn.positions.weight"]
    np.testing.assert_allclose(gradients["embed.positions.weight"], total, rtol=0, atol=1e-12)
    assert np.count_nonzero(total.any(axis=1)) == 7  # no key is after its query by 0


@pytest.mark.parametrize("settings, message", [
    (dict(n_buckets=3), "^3 buckets, 0 of them for one distance each, do not reach to a max_distance of 128$"),
    (dict(max_distance=8), "^32 buckets, 8 of them for one distance each, do not reach to a max_distance of 8$"),
])
def test_buckets_that_reach_nowhere_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        T5Buckets(4, **settings)


def test_rotary_base_of_one_is_refused():
    with pytest.raises(ValueError, match="^the base of rotary positions must be above 1, got 1$"):
        Rotary(1)
