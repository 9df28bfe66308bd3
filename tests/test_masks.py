import numpy as np
import pytest

from tinyenc import causal_mask, padding_mask, window_mask
from tinyenc.attention.masks import as_mask, check_mask, real_tokens


def test_padding_mask_of_lengths_keeps_the_first_tokens():
    mask = padding_mask(np.array([2, 0, 3]))
    assert mask.shape == (3, 1, 1, 3) and mask.dtype == bool
    assert mask[:, 0, 0].tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert padding_mask([1, 2], 4)[:, 0, 0].astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_padding_mask_of_tokens_keeps_the_tokens_given_holes_and_left_padding_too():
    given = np.array([[1, 0, 1], [0, 1, 1]])
    assert padding_mask(given)[:, 0, 0].astype(int).tolist() == given.tolist()


def test_causal_mask_keeps_keys_up_to_the_query():
    assert causal_mask(3)[0, 0].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(3).shape == (1, 1, 3, 3)


def test_causal_mask_with_more_keys_lets_the_last_query_see_all():
    assert causal_mask(2, 4)[0, 0].astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_window_mask_keeps_neighbours_on_either_side():
    assert window_mask(4, 1)[0, 0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert window_mask(2, 1, 3)[0, 0].astype(int).tolist() == [[1, 1, 0], [1, 1, 1]]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        window_mask(4, 0)


def test_masks_join_by_and():
    mask = padding_mask([2, 3]) & causal_mask(3)
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.int64])
def test_zeros_and_ones_of_any_integer_dtype_are_a_mask(dtype):
    given = np.array([[1, 0]], dtype)
    mask = as_mask(given)
    assert mask.dtype == bool and mask.tolist() == [[True, False]]
    assert given.dtype == dtype


# A04: a float mask means different things to different libraries
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, object])
def test_mask_of_another_dtype_is_refused_by_name(dtype):
    with pytest.raises(TypeError, match=rf"boolean \(True keeps\) or 0/1 integers, got {np.dtype(dtype)}"):
        as_mask(np.array([[1, 0]], dtype))


@pytest.mark.parametrize(("values", "said"), [([0, 2], "from 0 to 2"), ([-1, 1], "from -1 to 1"),
                                              ([-10000, 0], "-10000")])
def test_integer_mask_with_other_values_is_refused_with_them(values, said):
    with pytest.raises(ValueError, match=said):
        as_mask(np.array([values]))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 1, 1, 5), (1, 3, 4, 1)])
def test_mask_that_broadcasts_is_accepted(shape):
    assert check_mask(np.ones(shape, bool), (2, 3, 4, 5)).shape == shape


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 1), (5,), (4, 5), (2, 4, 5),
                                   (3, 3, 4, 5), (2, 2, 4, 5), (2, 3, 5, 4), (2, 1, 1, 4)])
def test_mask_that_does_not_broadcast_is_refused_with_both_shapes(shape):
    with pytest.raises(ValueError) as error:
        check_mask(np.ones(shape, bool), (2, 3, 4, 5))
    assert str(shape) in str(error.value) and "(2, 3, 4, 5)" in str(error.value)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_padding_mask_is_made_from_one_or_two_axes(shape):
    with pytest.raises(ValueError, match="lengths"):
        padding_mask(np.ones(shape, int))


# A04: the same mask object can be given to every entry point
@pytest.mark.parametrize("given", [[[1, 1, 0], [1, 0, 0]], padding_mask([2, 1], 3), np.array([[1, 1, 0], [1, 0, 0]])],
                         ids=["list", "(B, 1, 1, T)", "(B, T)"])
def test_real_tokens_are_read_from_every_form_of_a_padding_mask(given):
    assert real_tokens(given, (2, 3)).tolist() == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize("shape", [(3, 2), (2, 4), (3,), (2, 1, 3, 3), (1, 1, 1, 3)])
def test_padding_mask_that_does_not_fit_the_batch_is_refused_with_both_shapes(shape):
    with pytest.raises(ValueError) as error:
        real_tokens(np.ones(shape, bool), (2, 3))
    assert str(shape) in str(error.value) and "(2, 3)" in str(error.value)
