import numpy as np
import pytest
from support import random

from tinyenc import GELU, FeedForward, GatedFeedForward, GELUTanh, ReLU, Sigmoid, SiLU, Tape


@pytest.mark.parametrize("activation", [ReLU(), GELU(), GELUTanh()], ids=["ReLU", "GELU", "GELUTanh"])
def test_output_is_the_papers_formula_with_the_activation_given(activation):
    ffn, x = FeedForward(4, 7, 0.0, activation, rng=0).astype(np.float64), random(2, 3, 4)
    ffn.w_1.bias.data[...], ffn.w_2.bias.data[...] = random(7), random(4)
    h = activation(x @ ffn.w_1.weight.data + ffn.w_1.bias.data)
    np.testing.assert_allclose(ffn(x), h @ ffn.w_2.weight.data + ffn.w_2.bias.data, rtol=1e-12)


def test_activation_is_the_exact_gelu_unless_another_is_given():
    assert isinstance(FeedForward(4, 8).activation, GELU)


def test_dropout_stands_between_the_two_maps_and_not_after():
    ffn, x = FeedForward(4, 8, 0.5, rng=0), random(50, 4, dtype=np.float32)
    ffn.w_2.bias.data[...] = 10  # no output is zero by itself, whatever the activation
    y = ffn.forward(x, Tape(seed=0))
    assert y.all() and not np.allclose(y, ffn(x))  # hidden units were dropped, outputs were not


def test_positions_do_not_see_each_other():
    ffn, x = FeedForward(4, 8, rng=0).astype(np.float64), random(2, 5, 4)
    changed = x.copy()
    changed[1, 2] += 1
    differs = (ffn(changed) != ffn(x)).any(axis=-1)
    assert differs[1, 2]
    np.testing.assert_allclose(np.delete(ffn(changed)[1], 2, 0), np.delete(ffn(x)[1], 2, 0), rtol=1e-12)


@pytest.mark.parametrize("activation", [GELU(), SiLU(), Sigmoid()], ids=["GEGLU", "SwiGLU", "GLU"])
def test_gated_output_is_the_papers_formula_with_the_activation_on_the_gate_alone(activation):
    ffn, x = GatedFeedForward(4, 7, 0.0, activation, rng=0).astype(np.float64), random(2, 3, 4)
    w_gate, w_1, w_2 = (layer.weight.data for layer in (ffn.w_gate, ffn.w_1, ffn.w_2))
    np.testing.assert_allclose(ffn(x), activation(x @ w_gate) * (x @ w_1) @ w_2, rtol=1e-12)


def test_gated_network_with_two_thirds_of_the_width_is_as_large_as_a_plain_one():
    plain, gated = FeedForward(96, 384, rng=0), GatedFeedForward(96, 256, rng=0)
    assert sum(p.data.size for p in gated.parameters() if p.decay) == sum(
        p.data.size for p in plain.parameters() if p.decay)


def test_gated_dropout_stands_before_the_last_map():
    ffn, x = GatedFeedForward(4, 8, 0.5, rng=0), random(50, 4, dtype=np.float32)
    y = ffn.forward(x, Tape(seed=0))
    assert y.all() and not np.allclose(y, ffn(x))
