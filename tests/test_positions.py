import numpy as np
import pytest
from support import random, small_encoder

from tinyenc import SinusoidalPositions, Tape
from tinyenc.positions import LearnedPositions


def table(d_model, n, dtype=np.float64):
    return SinusoidalPositions(d_model)(np.zeros((1, n, d_model), dtype), np.arange(n))[0]


# C06
def test_odd_widths_have_a_last_sine_without_its_cosine():
    np.testing.assert_allclose(table(5, 3), [
        [0, 1, 0, 1, 0],
        [0.8414709848078965, 0.5403023058681398, 0.025116222909773774, 0.9996845379152098, 0.0006309573026154198],
        [0.9092974268256817, -0.4161468365471424, 0.050216599387465206, 0.9987383506934931, 0.0012619143540422216],
    ], rtol=1e-13)


# C06
def test_even_widths_and_width_one_are_right():
    np.testing.assert_allclose(
        table(4, 2)[1], [0.8414709848078965, 0.5403023058681398, 0.00999983333416666, 0.9999500004166653], rtol=1e-13)
    np.testing.assert_allclose(table(1, 50)[:, 0], np.sin(np.arange(50)), rtol=1e-13)


# C06: float16 cannot count to 2049
def test_half_precision_table_is_the_exact_one_rounded():
    half, places = table(6, 3000, np.float16), np.arange(3000)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half[:, 0], np.sin(places), atol=3e-4)  # a rounding of float16
    np.testing.assert_allclose(half[:, 3], np.cos(places / 10000 ** (2 / 6)), atol=3e-4)


def test_value_at_a_place_does_not_depend_on_how_long_the_sequence_is():
    assert np.array_equal(table(8, 100)[:7], table(8, 7))


def test_packed_tokens_get_the_vector_of_their_place():
    x, index = random(5, 6), np.array([0, 1, 2, 0, 1])
    y = SinusoidalPositions(6)(x, index)
    np.testing.assert_allclose(y - x, table(6, 3)[index], atol=1e-15)


def test_gradient_passes_unchanged():
    positions, x, tape = SinusoidalPositions(6), random(2, 3, 6), Tape()
    positions.forward(x, np.arange(3), tape)
    assert np.array_equal(positions.backward(x, tape), x)
    assert len(tape) == 0


# C07
@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_sequence_longer_than_max_len_is_refused_by_both_numbers(kind):
    encoder = small_encoder(positions=kind(16, 512))
    ids, tape = np.ones((1, 513), int), Tape()
    assert encoder(ids[:, :512]).shape == (1, 512, 16)
    for mask in None, ids, ids * 0:  # whatever is padding: the width counts
        with pytest.raises(ValueError, match="^sequence length 513 is more than max_len 512$"):
            encoder.forward(ids, mask, tape)
    assert len(tape) == 0
    with pytest.raises(ValueError, match="513 is more than max_len 512"):
        encoder.embed.positions.forward(np.zeros((1, 513, 16)), np.arange(513))
