import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc import GELU, GELUTanh, ReLU, Sigmoid, SiLU, Tape
from tinyenc.gradcheck import check_gradients


def value_and_slope(layer, x):
    x, tape = np.atleast_2d(np.asarray(x, np.float64)), Tape()
    y = layer.forward(x, tape)
    return y[0], layer.backward(np.ones_like(x), tape)[0]


# B08
def test_gelu_is_the_exact_one():
    y, slope = value_and_slope(GELU(), [-3, -1, 0.5, 1, 3, 0])
    np.testing.assert_allclose(y, [-0.00404969409489031, -0.15865525393145707, 0.34573123063700656,
                                   0.8413447460685429, 2.99595030590511, 0], rtol=1e-12)
    np.testing.assert_allclose(slope[[1, 5, 3]], [-0.08331547058768635, 0.5, 1.0833154705876864], rtol=1e-12)


# B08
def test_gelu_tanh_is_the_approximation():
    y, slope = value_and_slope(GELUTanh(), [-3, -1, 0.5, 1])
    np.testing.assert_allclose(y, [-0.0036373920817729943, -0.15880800939172324, 0.34571400982514394,
                                   0.8411919906082768], rtol=1e-12)
    assert slope[3] == pytest.approx(1.0829640838457826, rel=1e-12)


# B08
def test_the_two_gelus_differ_by_at_most_4_7e_4():
    x = np.linspace(-6, 6, 120001)[None]
    gap = abs(GELU()(x) - GELUTanh()(x))
    assert gap.max() == pytest.approx(4.732355e-4, rel=1e-6)
    assert abs(x.flat[gap.argmax()]) == pytest.approx(2.699, abs=1e-3)


# B08: each backward belongs to its own forward
@pytest.mark.parametrize("layer", [GELU(), GELUTanh(), ReLU(), SiLU(), Sigmoid()], ids=lambda a: type(a).__name__)
def test_backward_is_the_slope_of_this_layers_own_forward(layer):
    x, h = random(1, 200) * 3, 1e-6
    x = x[:, abs(x[0]) > 1e-3]  # away from ReLU's kink
    _, slope = value_and_slope(layer, x)
    two_sided = (layer(x + h) - layer(x - h))[0] / (2 * h)
    np.testing.assert_allclose(slope, two_sided, atol=1e-8)  # the GELUs' slopes differ by 1e-3


# F01
def test_relus_slope_at_zero_is_zero_for_both_zeros():
    y, slope = value_and_slope(ReLU(), [0.0, -0.0, 1e-300, -1e-300, 5])
    assert y.tolist() == [0, 0, 1e-300, 0, 5]
    assert slope.tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("layer", [GELU(), GELUTanh(), ReLU(), SiLU()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_far_tails_are_finite_and_keep_the_dtype(layer, dtype):
    x, tape = np.array([[-1000, -200, -40, -12, 12, 40, 200, 1000]], dtype), Tape()  # 1000^2 is inf in float16
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = layer.forward(x, tape)
        dx = layer.backward(np.ones_like(x), tape)
    assert y.dtype == dx.dtype == dtype
    atol = 1e-4 if isinstance(layer, SiLU) else 1e-12  # its tails are those of exp(x), not of exp(-x^2)
    np.testing.assert_allclose(y, np.maximum(x, 0), atol=atol)
    np.testing.assert_allclose(dx, x > 0, atol=atol)


def test_sigmoid_and_silu_are_the_published_functions():
    y, slope = value_and_slope(Sigmoid(), [0, 1, -1, 800, -800])
    np.testing.assert_allclose(y, [0.5, 0.7310585786300049, 0.2689414213699951, 1, 0], rtol=1e-15)
    np.testing.assert_allclose(slope, [0.25, 0.19661193324148185, 0.19661193324148185, 0, 0], rtol=1e-14)
    y, slope = value_and_slope(SiLU(), [0, 1, -1, 20])
    np.testing.assert_allclose(y, [0, 0.7310585786300049, -0.2689414213699951, 19.999999958776928], rtol=1e-14)
    np.testing.assert_allclose(slope, [0.5, 0.9276705118714869, 0.07232948812851325, 1.0000000391619185], rtol=1e-14)


@pytest.mark.parametrize("layer", [GELU(), GELUTanh(), SiLU(), Sigmoid()], ids=lambda a: type(a).__name__)
def test_half_precision_is_the_float64_result_rounded(layer):
    x, tape = np.linspace(-4, 4, 801, dtype=np.float16)[None], Tape()
    y = layer.forward(x, tape)[0]
    slope = layer.backward(np.ones_like(x), tape)[0]
    exact_y, exact_slope = value_and_slope(layer, x)
    np.testing.assert_allclose(y, exact_y, rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(slope, exact_slope, rtol=2e-3, atol=2e-3)  # the tanh saved is rounded too


def test_activations_make_no_float_trouble_on_ordinary_numbers():
    for layer in GELU(), GELUTanh(), ReLU(), SiLU(), Sigmoid():
        with no_float_trouble():
            tape = Tape()
            layer.backward(layer.forward(random(20, 30) * 4, tape), tape)


# F01: on the kink there is no derivative to compare with; the check says so and looks beside it
def test_gradient_check_of_relu_passes_on_zeros():
    found = check_gradients(ReLU(), np.zeros((3, 4)))
    assert found.kinks > 0
    assert check_gradients(GELU(), np.zeros((3, 4))).kinks == 0
