import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc.ops import log_softmax
from tinyenc.scores import softmax, softmax_backward


# B01
def test_softmax_of_large_scores_does_not_overflow():
    x = np.array([[1.0, -10, 1000]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        weights = softmax(x)
        logp = log_softmax(x)
        dx = softmax_backward(np.array([[1.0, 2, 3]]), weights)
    assert weights.tolist() == [[0, 0, 1]]
    assert logp.tolist() == [[-999, -1010, 0]]
    assert np.isfinite(dx).all() and not dx.any()  # saturated


# B01
def test_softmax_takes_the_maximum_of_each_row_by_itself():
    x = np.zeros((2, 1, 2, 2), np.float32)
    x[0, 0], x[1, 0] = [[0, 1], [1000, 1001]], [[-1000, -999], [5, 6]]
    weights = softmax(x)
    assert weights.dtype == np.float32
    expected = np.broadcast_to([0.2689414213699951, 0.7310585786300049], x.shape)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(log_softmax(x)), expected, rtol=1e-6)


# A01
def test_softmax_of_a_row_that_keeps_nothing_is_exactly_zero():
    mask = np.array([[True, False, True], [False, False, False]])
    with no_float_trouble():
        weights = softmax(random(2, 3), mask)
        dscores = softmax_backward(random(2, 3, seed=1), weights)
    assert not weights[1].any() and not dscores[1].any()
    assert weights[0, 1] == 0 and dscores[0, 1] == 0
    assert weights[0].sum() == pytest.approx(1)


def test_softmax_over_no_keys_at_all_is_empty():
    assert softmax(np.zeros((2, 3, 0))).shape == (2, 3, 0)


def test_softmax_of_half_precision_is_computed_in_float32():
    x = np.array([[0, 8, 8.01]], np.float16)
    np.testing.assert_allclose(softmax(x), softmax(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("there", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 1, 4, 5), (2, 3, 4, 5)])
def test_softmax_does_not_see_what_stands_at_masked_keys(shape, there):
    scores, mask = random(2, 3, 4, 5), random(*shape, seed=1) > 0
    mask[0, 0, 0] = False  # nothing kept
    expected = np.exp(scores) * mask
    total = expected.sum(axis=-1, keepdims=True)
    hidden = np.moveaxis(np.moveaxis(np.where(mask, scores, there), -1, 0).copy(), 0, -1)  # keys first in memory
    weights = softmax(hidden, mask)
    np.testing.assert_allclose(weights, expected / np.where(total == 0, 1, total), rtol=1e-12)
    assert weights.strides == hidden.strides


def test_nan_at_a_key_that_is_kept_stays_in_its_row_and_warns_of_nothing():
    scores, mask = random(2, 3, 4, 5), np.array([True, True, False, True, True])
    scores[0, 1, 2, 1] = np.nan
    with np.errstate(all="raise"):
        weights = softmax(scores, mask)
    bad = np.isnan(weights).any(axis=-1)
    assert np.argwhere(bad).tolist() == [[0, 1, 2]]


def test_softmax_of_a_large_array_gives_what_its_rows_give_one_by_one():
    x = random(1501, 130)
    whole = softmax(x)
    for row in 0, 750, 751, 1500:
        np.testing.assert_allclose(whole[row], softmax(x[row:row + 1])[0], rtol=1e-13, atol=1e-15)
