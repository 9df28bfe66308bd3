import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc import LayerNorm, Tape


def test_output_is_the_formula():
    norm, x = LayerNorm(6).astype(np.float64), random(2, 3, 6)
    norm.weight.data[...], norm.bias.data[...] = random(6), random(6, seed=1)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(x), norm.weight.data * expected + norm.bias.data, rtol=1e-12)


# B03
def test_large_mean_does_not_swallow_the_variance():
    y = LayerNorm(4)(np.array([[40000, 40001, 40002, 40003]], np.float32))
    np.testing.assert_allclose(y, [[-1.34163542, -0.44721181, 0.44721181, 1.34163542]], atol=1e-4)


# B03
def test_small_steps_on_a_large_mean_are_seen():
    x = (10000 + np.arange(16) * 1e-3).astype(np.float32)[None]
    exact = LayerNorm(16).astype(np.float64)(x.astype(np.float64))
    y = LayerNorm(16)(x)
    assert y[0, 0] == pytest.approx(-1.3313, abs=1e-3)
    np.testing.assert_allclose(y, exact, atol=1e-3)


# B03
def test_gradient_at_mean_2000_is_the_one_at_mean_0():
    norm, x, dy = LayerNorm(8), random(5, 8, dtype=np.float32), random(5, 8, seed=1, dtype=np.float32)
    results = []
    for shift in 0, 2000:
        tape = Tape()
        norm.forward((x * 64).round() / 64 + np.float32(shift), tape)  # exact in float32 at both means
        results.append(norm.backward(dy, tape))
    np.testing.assert_allclose(results[0], results[1], atol=2e-6)


# B05
def test_half_precision_squares_do_not_overflow():
    norm, tape = LayerNorm(16).astype(np.float16), Tape()
    x = np.array([[-300, 300] * 8] * 3, np.float16)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = norm.forward(x, tape)
        dx = norm.backward(np.full_like(x, 2), tape)
    assert y.dtype == dx.dtype == np.float16
    np.testing.assert_allclose(y, np.sign(x), atol=2e-3)
    assert np.isfinite(dx).all()
    assert norm.weight.grad.dtype == norm.bias.grad.dtype == np.float32


# B05
def test_half_precision_weight_and_bias_gradients_are_summed_in_float32():
    norm, tape = LayerNorm(2).astype(np.float16), Tape()
    x = np.tile(np.array([-100, 100], np.float16), (5000, 1))
    norm.forward(x, tape)
    norm.backward(np.ones_like(x), tape)
    assert norm.bias.grad.tolist() == [5000, 5000]  # counting in float16 stops at 2048
    np.testing.assert_allclose(norm.weight.grad, [-5000, 5000], rtol=2e-3)


# B07
@pytest.mark.parametrize(("eps", "expected"), [
    (1e-12, (-1.341640249843881, -0.44721341661462705)),
    (1e-6, (-1, -1 / 3)),
    (1e-5, (-0.4472135954999579, -0.14907119849998596)),
])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_eps_is_the_one_given(eps, expected, dtype, tolerance):
    a, b = expected
    y = LayerNorm(4, eps).astype(dtype)(np.array([[1e-3, 2e-3, 3e-3, 4e-3]], dtype))
    np.testing.assert_allclose(y, [[a, b, -b, -a]], rtol=tolerance)


def test_constant_row_gives_the_bias_and_a_finite_gradient():
    norm, tape = LayerNorm(4).astype(np.float64), Tape()
    norm.bias.data[...] = [1, 2, 3, 4]
    with no_float_trouble():
        y = norm.forward(np.full((2, 4), 7.7), tape)
        dx = norm.backward(random(2, 4), tape)
    np.testing.assert_allclose(y, [[1, 2, 3, 4]] * 2, atol=1e-12)
    assert np.isfinite(dx).all()


def test_gradient_has_no_part_along_a_shift_or_a_stretch_of_the_row():
    norm, tape, x = LayerNorm(6, eps=1e-12).astype(np.float64), Tape(), random(4, 6)
    norm.weight.data[...] = random(6)
    norm.forward(x, tape)
    dx = norm.backward(random(4, 6, seed=1), tape)
    assert abs(dx).max() > 0.1
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-12)  # a shift changes nothing
    np.testing.assert_allclose((dx * x).sum(axis=-1), 0, atol=1e-9)  # nor does a stretch, but for eps


@pytest.mark.parametrize("eps", [0, -1e-5, float("nan")])
def test_eps_must_be_positive(eps):
    with pytest.raises(ValueError, match=f"eps must be positive, got {eps}"):
        LayerNorm(4, eps)


def test_backward_is_the_slope_of_forward():
    norm, tape, x, dy, h = LayerNorm(6).astype(np.float64), Tape(), random(4, 6), random(4, 6, seed=1), 1e-6
    norm.weight.data[...] = random(6)
    norm.forward(x, tape)
    dx, direction = norm.backward(dy, tape), random(4, 6, seed=2)
    slope = ((norm(x + h * direction) - norm(x - h * direction)) * dy).sum() / (2 * h)
    assert slope == pytest.approx((dx * direction).sum(), rel=1e-7)
