import math

import numpy as np
import pytest
from support import random

from tinyenc import ops


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
@pytest.mark.parametrize("name", ["normalise", "relu", "gelu", "gelu_tanh", "normal_cdf", "log_softmax"])
def test_large_array_gives_what_its_rows_give_one_by_one(name):
    x = random(1501, 130)  # 1.6 MB: a block of 751 rows, and one that is not full
    formula = getattr(ops, name)
    extra = (1e-5,) if name == "normalise" else ()
    whole = formula(x, *extra)
    for row in 0, 750, 751, 1500:
        alone = formula(x[row:row + 1], *extra)
        for a, b in zip(whole, alone) if isinstance(whole, tuple) else [(whole, alone)]:
            np.testing.assert_allclose(a[row], b[0], rtol=1e-13, atol=1e-15)
