import numpy as np
from support import random

from tinyenc import Linear, Tape


# J02: a square matrix hides a missing transpose
def test_weights_are_stored_input_by_output():
    layer, x = Linear(2, 2), np.array([[1, 2]], np.float32)
    layer.weight.data[...] = [[1, 2], [3, 4]]
    assert layer(x).tolist() == [[7, 10]]  # as a TensorFlow "kernel" of these numbers
    layer.weight.data[...] = np.array([[1, 2], [3, 4]]).T  # and as a PyTorch weight, which is (out, in), loads
    assert layer(x).tolist() == [[5, 11]]


def test_output_and_gradients_are_those_of_the_formula():
    layer, x, dy = Linear(3, 2, rng=0).astype(np.float64), random(4, 5, 3), random(4, 5, 2)
    layer.bias.data[...] = [0.5, -2]
    tape = Tape()
    y = layer.forward(x, tape)
    dx = layer.backward(dy, tape)
    for b in range(4):
        for t in range(5):
            np.testing.assert_allclose(y[b, t], layer.weight.data.T @ x[b, t] + layer.bias.data, rtol=1e-12)
            np.testing.assert_allclose(dx[b, t], layer.weight.data @ dy[b, t], rtol=1e-12)
    np.testing.assert_allclose(layer.weight.grad, np.einsum("bti,btj->ij", x, dy), rtol=1e-12)
    np.testing.assert_allclose(layer.bias.grad, dy.sum(axis=(0, 1)), rtol=1e-12)


def test_without_bias_it_is_a_linear_map():
    layer, x, tape = Linear(3, 2, bias=False, rng=0).astype(np.float64), random(4, 3), Tape()
    np.testing.assert_allclose(layer.forward(x, tape), x @ layer.weight.data, rtol=1e-13)
    layer.backward(random(4, 2), tape)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


def test_bias_gradient_of_many_half_precision_rows_is_summed_in_float32():
    layer, tape = Linear(1, 1, rng=0).astype(np.float16), Tape()
    x = np.ones((5000, 1), np.float16)
    layer.forward(x, tape)
    layer.backward(x, tape)
    assert layer.bias.grad.dtype == np.float32 and layer.bias.grad.tolist() == [5000]
    assert layer.weight.grad.dtype == np.float32


def test_half_precision_gradient_of_the_weight_is_summed_in_float32_beyond_the_range_of_half():
    layer, tape = Linear(2, 2, rng=0).astype(np.float16), Tape()
    x = np.full((1000, 2), 30.0, np.float16)
    x[0] += 1
    y = layer.forward(x, tape)
    layer.backward(np.full_like(y, 30), tape)
    assert (layer.weight.grad == 900030).all() and layer.weight.grad.dtype == np.float32
