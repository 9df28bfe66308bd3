import math

import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc import ops


# B01
def test_softmax_of_large_scores_does_not_overflow():
    x = np.array([[1.0, -10, 1000]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        weights = ops.softmax(x)
        logp = ops.log_softmax(x)
        dx = ops.softmax_backward(np.array([[1.0, 2, 3]]), weights)
    assert weights.tolist() == [[0, 0, 1]]
    assert logp.tolist() == [[-999, -1010, 0]]
    assert np.isfinite(dx).all() and not dx.any()  # saturated


# B01
def test_softmax_takes_the_maximum_of_each_row_by_itself():
    x = np.zeros((2, 1, 2, 2), np.float32)
    x[0, 0], x[1, 0] = [[0, 1], [1000, 1001]], [[-1000, -999], [5, 6]]
    weights = ops.softmax(x)
    assert weights.dtype == np.float32
    expected = np.broadcast_to([0.2689414213699951, 0.7310585786300049], x.shape)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(ops.log_softmax(x)), expected, rtol=1e-6)


# A01
def test_softmax_of_a_row_that_keeps_nothing_is_exactly_zero():
    mask = np.array([[True, False, True], [False, False, False]])
    with no_float_trouble():
        weights = ops.softmax(random(2, 3), mask)
        dscores = ops.softmax_backward(random(2, 3, seed=1), weights)
    assert not weights[1].any() and not dscores[1].any()
    assert weights[0, 1] == 0 and dscores[0, 1] == 0
    assert weights[0].sum() == pytest.approx(1)


def test_softmax_over_no_keys_at_all_is_empty():
    assert ops.softmax(np.zeros((2, 3, 0))).shape == (2, 3, 0)


def test_softmax_of_half_precision_is_computed_in_float32():
    x = np.array([[0, 8, 8.01]], np.float16)
    np.testing.assert_allclose(ops.softmax(x), ops.softmax(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("there", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 1, 4, 5), (2, 3, 4, 5)])
def test_softmax_does_not_see_what_stands_at_masked_keys(shape, there):
    scores, mask = random(2, 3, 4, 5), random(*shape, seed=1) > 0
    mask[0, 0, 0] = False  # nothing kept
    expected = np.exp(scores) * mask
    total = expected.sum(axis=-1, keepdims=True)
    hidden = np.moveaxis(np.moveaxis(np.where(mask, scores, there), -1, 0).copy(), 0, -1)  # keys first in memory
    weights = ops.softmax(hidden, mask)
    np.testing.assert_allclose(weights, expected / np.where(total == 0, 1, total), rtol=1e-12)
    assert weights.strides == hidden.strides


def test_nan_at_a_key_that_is_kept_stays_in_its_row_and_warns_of_nothing():
    scores, mask = random(2, 3, 4, 5), np.array([True, True, False, True, True])
    scores[0, 1, 2, 1] = np.nan
    with np.errstate(all="raise"):
        weights = ops.softmax(scores, mask)
    bad = np.isnan(weights).any(axis=-1)
    assert np.argwhere(bad).tolist() == [[0, 1, 2]]


# B08: the far tails, where 1 - Phi would lose every digit
@pytest.mark.parametrize(("dtype", "relative", "absolute"), [(np.float64, 5e-14, 0), (np.float32, 0, 1e-7)])
def test_normal_distribution_is_right_in_both_tails(dtype, relative, absolute):
    x = np.linspace(-9, 9, 3601).astype(dtype)
    exact = np.array([0.5 * math.erfc(-float(a) / math.sqrt(2)) for a in x])
    cdf = ops.normal_cdf(x)
    assert cdf.dtype == dtype
    np.testing.assert_allclose(cdf, exact, rtol=relative, atol=absolute)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normal_distribution_ends_at_0_and_1_without_a_warning(dtype):
    far = np.array([-np.finfo(dtype).max, -np.inf, np.finfo(dtype).max, np.inf], dtype)
    assert ops.normal_cdf(far[[1, 3]]).tolist() == [0, 1]
    with np.errstate(over="ignore"):  # the square, in float64
        assert ops.normal_cdf(far).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (2, 3, 4), (0, 4), (700, 300), (3, 500, 300)])
def test_matrix_product_and_the_gradient_of_its_weight_take_any_leading_shape(shape):
    x, w, b, dy = random(*shape), random(shape[-1], 5), random(5), random(*shape[:-1], 5, seed=1)
    np.testing.assert_allclose(ops.matmul(x, w), x @ w, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ops.matmul(x, w, b), x @ w + b, rtol=1e-12, atol=1e-14)
    dw = random(*w.shape, seed=2)
    outer = x[..., :, None] * dy[..., None, :]
    expected = dw + outer.sum(axis=tuple(range(x.ndim - 1)))
    ops.add_weight_gradient(dw, x, dy)
    np.testing.assert_allclose(dw, expected, rtol=1e-12, atol=1e-13)


def test_sums_over_many_half_precision_rows_do_not_stop_growing():
    x = np.ones((5000, 2), np.float16)  # counting by ones in float16 stops at 2048
    assert ops.sum_rows(x).tolist() == [5000, 5000]


# The formulas run in blocks over large arrays: same numbers as the plain formula on a row at a time.
@pytest.mark.parametrize("name", ["normalise", "relu", "gelu", "gelu_tanh", "normal_cdf", "softmax", "log_softmax"])
def test_large_array_gives_what_its_rows_give_one_by_one(name):
    x = random(1501, 130)  # 1.6 MB: a block of 751 rows, and one that is not full
    formula = getattr(ops, name)
    extra = (1e-5,) if name == "normalise" else ()
    whole = formula(x, *extra)
    for row in 0, 750, 751, 1500:
        alone = formula(x[row:row + 1], *extra)
        for a, b in zip(whole, alone) if isinstance(whole, tuple) else [(whole, alone)]:
            np.testing.assert_allclose(a[row], b[0], rtol=1e-13, atol=1e-15)
