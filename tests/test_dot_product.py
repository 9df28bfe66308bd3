import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc import Tape
from tinyenc.attention import CausalLinearAttention, DotProduct, LinearAttention, SlidingWindow, Tiled
from tinyenc.attention.per_sequence import PerSequence

Q = np.array([[[[1.0, 0], [0, 1], [1, 1]]]])
K = np.array([[[[1.0, 0], [0, 1], [1, -1]]]])
V = np.array([[[[1.0, 2], [3, 4], [5, 6]]]])
CORES = pytest.mark.parametrize("core", [DotProduct(), PerSequence(DotProduct()), Tiled(queries=2, keys=3)],
                                ids=["DotProduct", "PerSequence", "Tiled"])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)


# A01
@CORES
def test_query_that_may_see_nothing_gets_exact_zeros_and_sends_back_exact_zeros(core):
    mask = np.array([[[[1, 1, 0], [0, 0, 0], [1, 0, 0]]]], bool)
    tape = Tape()
    with no_float_trouble():
        y = core.forward(Q, K, V, mask, tape=tape)
        dq, dk, dv = core.backward(np.ones_like(y), tape)
    close(y[0, 0], [[1.660476901346686, 2.660476901346686], [0, 0], [1, 2]])
    assert not y[0, 0, 1].any()
    close(dq[0, 0], [[-0.6255943861804412, 0.6255943861804418], [0, 0], [0, 0]])
    close(dk[0, 0], [[-0.6255943861804412, 0], [0.6255943861804418, 0], [0, 0]])
    close(dv[0, 0], [[1.6697615493266569] * 2, [0.3302384506733431] * 2, [0, 0]])
    assert not dq[0, 0, 1].any() and not dk[0, 0, 2].any() and not dv[0, 0, 2].any()


# A04
@CORES
def test_true_keeps_and_false_hides(core):
    mask = np.array([True, True, False]).reshape(1, 1, 1, 3)
    close(core.forward(Q, K, V, mask)[0, 0],
          [[1.6604769013466862, 2.6604769013466862], [2.3395230986533138, 3.3395230986533138], [2, 3]])
    close(core.forward(Q, K, V, ~mask)[0, 0], [[5, 6]] * 3)
    close(core.forward(Q, K, V)[0, 0, :, 0], [3, 2.712067670604236, 2.5933274439212846])


# A01: batch entries, heads and rows of every kind at once, against one query at a time
@CORES
@pytest.mark.parametrize("mask_shape", [(3, 2, 4, 5), (1, 1, 4, 5), (3, 1, 1, 5), (1, 2, 1, 5), (3, 1, 4, 1), None])
def test_masked_attention_is_attention_over_the_keys_kept(core, mask_shape):
    q, k, v = random(3, 2, 4, 6), random(3, 2, 5, 6), random(3, 2, 5, 6, seed=1)
    mask = None if mask_shape is None else random(*mask_shape, seed=4) > -0.3
    if mask is not None:
        mask[0, 0, 0] = False
    y = core.forward(q, k, v, mask)
    kept = np.broadcast_to(True if mask is None else mask, (3, 2, 4, 5))
    assert y.shape == q.shape
    for b, h, t in np.ndindex(3, 2, 4):
        keys = kept[b, h, t]
        scores = np.exp(k[b, h][keys] @ q[b, h, t] / np.sqrt(6))
        close(y[b, h, t], (scores / scores.sum()) @ v[b, h][keys] if keys.any() else np.zeros(6))


@CORES
def test_hidden_keys_and_values_may_hold_anything_finite_and_get_zero_gradients(core):
    q, k, v = random(2, 2, 3, 4), random(2, 2, 5, 4), random(2, 2, 5, 4)
    mask = np.array([1, 1, 0, 1, 0], bool).reshape(1, 1, 1, 5)
    y = core.forward(q, k, v, mask)
    k[:, :, [2, 4]], v[:, :, [2, 4]] = 1e6, -1e6
    tape = Tape()
    assert np.array_equal(core.forward(q, k, v, mask, tape=tape), y)
    _, dk, dv = core.backward(random(2, 2, 3, 4), tape)
    assert not dk[:, :, [2, 4]].any() and not dv[:, :, [2, 4]].any()
    assert dk[:, :, [0, 1, 3]].all() and dv[:, :, [0, 1, 3]].all()


# A07
@CORES
def test_half_precision_scores_are_scaled_before_they_can_overflow(core):
    q = np.full((1, 1, 1, 64), 48, np.float16)
    k = np.stack([np.full(64, 48), np.full(64, 47)]).astype(np.float16)[None, None]
    v = np.stack([np.full(64, 1), np.full(64, 2)]).astype(np.float16)[None, None]
    tape = Tape()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = core.forward(q, k, v, tape=tape)
        gradients = core.backward(np.ones_like(y), tape)
    assert (y == 1).all()  # its weights are 1 and 1.7e-167
    assert all(np.isfinite(g).all() for g in gradients)


@CORES
def test_half_precision_is_near_the_float64_result(core):
    q, k, v, dy = (random(2, 2, 5, 8, seed=s) for s in range(4))
    exact, half = Tape(), Tape()
    expected = [core.forward(q, k, v, tape=exact), *core.backward(dy, exact)]
    q, k, v, dy = (a.astype(np.float16) for a in (q, k, v, dy))
    results = [core.forward(q, k, v, tape=half), *core.backward(dy, half)]
    for a, b in zip(results, expected):
        if not isinstance(core, DotProduct):
            assert a.dtype == np.float16
        np.testing.assert_allclose(a, b, atol=5e-3)


@CORES
def test_large_scores_saturate_without_trouble(core):
    q, k, tape = Q * 1e4, K * 1e4, Tape()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = core.forward(q, k, V, tape=tape)
        gradients = core.backward(np.ones_like(y), tape)
    close(y[0, 0], [[3, 4], [3, 4], [2, 3]])
    assert all(np.isfinite(g).all() for g in gradients)


@CORES
@pytest.mark.parametrize(("b", "t", "s"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_no_sequences_no_queries_and_no_keys_are_all_right(core, b, t, s):
    q, k, v, tape = random(b, 2, t, 4), random(b, 2, s, 4), random(b, 2, s, 4), Tape()
    y = core.forward(q, k, v, tape=tape)
    dq, dk, dv = core.backward(np.ones((b, 2, t, 4)), tape)
    assert y.shape == (b, 2, t, 4) and not y.any()
    assert dq.shape == q.shape and dk.shape == k.shape and dv.shape == v.shape
    assert not dq.any() and not dk.any() and not dv.any()


def test_dropout_falls_on_the_weights_after_the_softmax():
    core, tape, s = DotProduct(0.5), Tape(seed=1), 200
    q, k, v = np.zeros((1, 1, 4, 2)), random(1, 1, s, 2), np.eye(s)[None, None]
    weights = core.forward(q, k, v, tape=tape)  # uniform attention over a unit matrix shows the weights
    assert set(np.unique(weights * s).round(9)) == {0, 2}
    assert 0.4 < (weights == 0).mean() < 0.6


def test_half_precision_is_multiplied_and_summed_in_float32():
    q, k, v = (random(1, 1, 3000, 8, seed=s) * 0.1 for s in range(3))
    half = [a.astype(np.float16) for a in (q, k, v)]
    exact = DotProduct()(*(a.astype(np.float64) for a in half))
    y = DotProduct()(*half)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, exact, atol=3e-6)  # sums of 3000 weights of 1/3000, which float16 spaces by 2e-7


CORES = [DotProduct(), Tiled(), LinearAttention(), CausalLinearAttention(), SlidingWindow(1)]


@pytest.mark.parametrize("core", CORES, ids=lambda core: type(core).__name__)
def test_mask_means_the_same_to_every_core_alone_whatever_it_is_made_of(core):
    keep = np.array([True, True, False])[None, None, None]
    expected = core(Q, K, V, keep)
    assert not np.array_equal(expected, core(Q, K, V))
    for same in keep.astype(int), keep.astype(np.uint8), keep.tolist():
        assert np.array_equal(core(Q, K, V, same), expected)


@pytest.mark.parametrize("core", CORES, ids=lambda core: type(core).__name__)
@pytest.mark.parametrize("mask, error, message", [
    (np.array([0, 0, -1e9]), TypeError, "^a mask is boolean .* got float64$"),
    (np.array(["a", "b", "c"]), TypeError, "^a mask is boolean .* got <U1$"),
    (np.array([1, 2, 0]), ValueError, "^an integer mask holds 0 and 1, got values from 0 to 2$"),
    (np.array([True, True]), ValueError, r"^mask of shape \(1, 1, 1, 2\) does not broadcast to .* \(1, 1, 3, 3\)$"),
    (np.ones((4, 0), bool), ValueError, r"^mask of shape \(1, 1, 4, 0\) does not broadcast"),
], ids=str)
def test_mask_that_no_core_takes(core, mask, error, message):
    with pytest.raises(error, match=message):
        core(Q, K, V, np.atleast_2d(mask)[None, None])


@pytest.mark.parametrize("core", CORES, ids=lambda core: type(core).__name__)
@pytest.mark.parametrize("mask", ["keys", np.True_, np.ones(3, bool), np.ones((3, 3), bool)], ids=np.shape)
def test_mask_without_four_axes_is_refused(core, mask):
    with pytest.raises((TypeError, ValueError), match="^(a mask is boolean|mask of shape)"):
        core(Q, K, V, mask)


def test_tiles_beyond_a_mask_that_is_too_short_are_not_taken_for_hidden():
    q = random(1, 1, 1024, 4, seed=0)
    with pytest.raises(ValueError, match=r"^mask of shape \(1, 1, 1, 512\) does not broadcast"):
        Tiled()(q, q, q, np.ones((1, 1, 1, 512), bool))
