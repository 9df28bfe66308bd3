import numpy as np
import pytest
from support import no_float_trouble, random

from tinyenc import FirstPool, MaxPool, MeanPool, Tape, padding_mask

POOLS = pytest.mark.parametrize("pool", [MeanPool(), FirstPool(), MaxPool()], ids=["mean", "first", "max"])
STATES = np.array([[[1.0, 0], [1, 0], [0, 2], [0, 2]]])


def both_ways(pool, states, mask, dy):
    tape = Tape()
    return pool.forward(states, mask, tape), pool.backward(dy, tape)


# I09
def test_mean_is_over_real_tokens():
    y, dx = both_ways(MeanPool(), STATES, np.array([[1, 1, 0, 0]]), np.array([[1.0, 0]]))
    assert y.tolist() == [[1, 0]]
    assert dx.tolist() == [[[0.5, 0], [0.5, 0], [0, 0], [0, 0]]]
    assert MeanPool()(STATES).tolist() == [[0.5, 1]]


def test_first_is_the_first_real_token():
    y, dx = both_ways(FirstPool(), STATES, np.array([[0, 0, 1, 1]]), np.array([[1.0, 3]]))
    assert y.tolist() == [[0, 2]]
    assert dx.tolist() == [[[0, 0], [0, 0], [1, 3], [0, 0]]]
    assert FirstPool()(STATES).tolist() == [[1, 0]]


def test_max_is_over_real_tokens_and_a_tie_goes_to_the_first():
    states = np.array([[[-3.0, -1], [-2, -1], [5, 5]]])
    y, dx = both_ways(MaxPool(), states, np.array([[1, 1, 0]]), np.array([[7.0, 8]]))
    assert y.tolist() == [[-2, -1]]
    assert dx.tolist() == [[[0, 8], [7, 0], [0, 0]]]
    assert MaxPool()(states).tolist() == [[5, 5]]


# I09
@POOLS
def test_sequence_without_tokens_gives_zeros_and_no_gradient(pool):
    with no_float_trouble():
        y, dx = both_ways(pool, random(2, 3, 4), np.array([[0, 0, 0], [1, 1, 0]]), random(2, 4))
    assert not y[0].any() and not dx[0].any()
    assert y[1].all() and dx[1].any()


# I09, B11
@POOLS
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("mask_dtype", [bool, np.int32, np.int64])
def test_dtype_is_the_states_own_whatever_the_masks(pool, dtype, mask_dtype):
    states = random(2, 3, 4, dtype=dtype)
    y, dx = both_ways(pool, states, np.array([[1, 1, 0], [1, 1, 1]], mask_dtype), random(2, 4, dtype=dtype))
    assert y.dtype == dx.dtype == dtype


# I09
def test_half_precision_mean_of_many_tokens_is_exact():
    states, mask = np.ones((1, 5000, 2), np.float16), np.ones((1, 5000), int)
    mask[0, 4097:] = 0  # float16 counts 2048, 2050, ...
    y, dx = both_ways(MeanPool(), states, mask, np.full((1, 2), 4097, np.float32))
    assert y.tolist() == [[1, 1]]
    np.testing.assert_allclose(dx.sum(axis=1, dtype=float), [[4097, 4097]], rtol=1e-3)


@POOLS
def test_backward_is_the_adjoint_of_a_small_change(pool):
    states, dy, h = random(3, 5, 4), random(3, 4), 1e-6
    mask = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]])
    _, dx = both_ways(pool, states, mask, dy)
    direction = random(3, 5, 4, seed=1)
    slope = ((pool(states + h * direction, mask) - pool(states - h * direction, mask)) * dy).sum() / (2 * h)
    assert slope == pytest.approx((dx * direction).sum(), rel=1e-7)


# A04: the same polarity, and the same mask object
@POOLS
def test_every_form_of_a_padding_mask_means_the_same(pool):
    states, tokens = random(2, 4, 3), np.array([[1, 1, 1, 0], [1, 0, 0, 0]])
    expected = np.stack([pool(states[:1, :3])[0], pool(states[1:, :1])[0]])
    for mask in tokens, tokens.astype(bool), padding_mask(tokens), padding_mask([3, 1], 4), tokens.tolist():
        np.testing.assert_allclose(pool(states, mask), expected, rtol=1e-14)


@POOLS
@pytest.mark.parametrize("shape", [(2, 3), (3, 4), (4,), (2, 1, 4, 4)])
def test_mask_that_does_not_fit_the_states_is_refused_with_both_shapes(pool, shape):
    with pytest.raises(ValueError) as error:
        pool(random(2, 4, 3), np.ones(shape, bool))
    assert str(shape) in str(error.value) and "(2, 4)" in str(error.value)


@POOLS
def test_float_mask_is_refused(pool):
    with pytest.raises(TypeError, match="got float64"):
        pool(random(2, 4, 3), np.ones((2, 4)))
