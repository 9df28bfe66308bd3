"""The learnt table of positions, and how it grows."""

import numpy as np
import pytest
from support import small_encoder

from tinyenc import Tape
from tinyenc.optim import AdamW
from tinyenc.positions import LearnedPositions

GROW = ["grow_copying", "grow_interpolating", "grow_fresh"]


def train(encoder, optimizer, length, steps=2):
    for _ in range(steps):
        tape = Tape()
        states = encoder.forward(np.arange(2 * length).reshape(2, length) % 40, None, tape)
        encoder.backward(states, tape)
        optimizer.step()
        encoder.zero_grad()


def trained(max_len=6, dtype=np.float32):
    encoder = small_encoder(positions=LearnedPositions(16, max_len, rng=0), dtype=dtype)
    optimizer = AdamW(encoder, 1e-2)
    train(encoder, optimizer, max_len)
    return encoder, optimizer


def table(encoder):
    return encoder.embed.positions.weight.data.copy()


def moments(optimizer):
    return [array for name, array in optimizer.state_dict().items()
            if name.startswith("embed.positions.") and array.ndim == 2]


def test_repeated_places_add_up_in_the_gradient():
    positions, tape, dy = LearnedPositions(2, 3), Tape(), np.arange(12.0).reshape(2, 3, 2)
    positions.forward(np.zeros((2, 3, 2)), np.array([0, 2, 2]), tape)
    positions.backward(dy, tape)
    assert positions.weight.grad.tolist() == [[6, 8], [0, 0], [2 + 4 + 8 + 10, 3 + 5 + 9 + 11]]


def test_copying_repeats_the_table_and_its_moments():
    encoder, optimizer = trained()
    before = [table(encoder), *moments(optimizer)]
    encoder.embed.positions.grow_copying(14, optimizer)
    after = [table(encoder), *moments(optimizer)]
    assert len(before) == 3
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(new, np.concatenate([old, old, old[:2]]))


def test_interpolating_draws_straight_lines_between_the_old_places():
    encoder, optimizer = trained()
    before = [table(encoder), *moments(optimizer)]
    encoder.embed.positions.grow_interpolating(11, optimizer)
    after = [table(encoder), *moments(optimizer)]
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(new[::2], old)
        np.testing.assert_allclose(new[1::2], (old[1:] + old[:-1]) / 2, rtol=1e-6)


def test_fresh_places_are_drawn_and_have_no_moments():
    encoder, optimizer = trained()
    before = [table(encoder), *moments(optimizer)]
    encoder.embed.positions.grow_fresh(600, optimizer, rng=1)
    after = [table(encoder), *moments(optimizer)]
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(new[:6], old)
    assert 0.018 < after[0][6:].std() < 0.022
    assert not after[1][6:].any() and not after[2][6:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("how", GROW)
def test_grown_encoder_trains_on_at_the_new_length(how, dtype):
    encoder, optimizer = trained(dtype=dtype)
    getattr(encoder.embed.positions, how)(11, optimizer)
    before = table(encoder)
    train(encoder, optimizer, 11)
    assert np.isfinite(table(encoder)).all() and (table(encoder) != before).any(axis=1).all()
    assert table(encoder).dtype == dtype
    with pytest.raises(ValueError, match="^sequence length 12 is more than max_len 11$"):
        encoder(np.ones((1, 12), int))


@pytest.mark.parametrize("how", GROW)
def test_growing_from_a_single_place_and_without_an_optimiser_works(how):
    positions = LearnedPositions(4, 1, rng=0)
    first = positions.weight.data.copy()
    getattr(positions, how)(3)
    assert positions.weight.shape == (3, 4) and np.array_equal(positions.weight.data[:1], first)


@pytest.mark.parametrize("how", GROW)
def test_what_cannot_be_grown_is_refused_and_stays(how):
    encoder, optimizer = trained()
    other = LearnedPositions(16, 6, rng=0)
    before = other.weight.data.copy()
    with pytest.raises(ValueError, match="^max_len 6 is not more than the 6 places there are$"):
        getattr(encoder.embed.positions, how)(6, optimizer)
    with pytest.raises(ValueError, match=r"^Parameter\(6, 16\) float32 is not among the optimiser's parameters$"):
        getattr(other, how)(9, optimizer)
    assert np.array_equal(other.weight.data, before)


def test_table_without_places_is_refused():
    with pytest.raises(ValueError, match="^max_len must be at least 1, got 0$"):
        LearnedPositions(4, 0)
