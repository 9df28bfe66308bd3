import numpy as np
import pytest
from support import random

from tinyenc.attention.layout import Dense, Packing, Padded

RAGGED = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], bool)


@pytest.mark.parametrize("layout", [Packing, Padded])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3), (6, 4, 2, 3)])
def test_unpack_gives_back_the_real_tokens_and_zeros_elsewhere(layout, shape):
    layout, x = layout(RAGGED), random(*shape, dtype=np.float32)
    back = layout.unpack(layout.pack(x))
    assert back.shape == shape and back.dtype == x.dtype
    assert np.array_equal(back[RAGGED], x[RAGGED])
    assert not back[~RAGGED].any()


@pytest.mark.parametrize("layout", [Packing, Padded])
def test_pack_and_unpack_are_adjoint(layout):
    layout, x = layout(RAGGED), random(6, 4, 3)
    packed = layout.pack(x)
    y = random(*packed.shape, seed=1)
    assert (packed * y).sum() == pytest.approx((x * layout.unpack(y)).sum(), rel=1e-12)


def test_packing_holds_as_many_tokens_as_are_real_and_keeps_each_sequence_together():
    packing = Packing(RAGGED)
    places = packing.pack(np.arange(24).reshape(6, 4))
    assert places.shape == (RAGGED.sum(),)
    assert sum(packing.longest_first) == RAGGED.sum()
    start = 0
    for length in packing.longest_first:
        rows = places[start:start + length] // 4
        assert len(set(rows)) == 1 and RAGGED[rows[0]].sum() == length
        start += length


def test_packing_begins_with_the_longest_sequences():
    assert Packing(RAGGED).longest_first == [4, 3, 3, 2, 1] and Packing(RAGGED).longest == 4
    assert Packing(RAGGED[[1]]).longest == 1  # of nothing: a length that arrays can have


def test_positions_are_the_places_in_the_padded_batch():
    packing = Packing(RAGGED)
    columns = np.broadcast_to(np.arange(4), RAGGED.shape)
    assert np.array_equal(packing.positions, packing.pack(columns))


def test_packing_of_nothing_but_padding_is_empty():
    packing = Packing(np.zeros((3, 5), bool))
    assert packing.pack(np.ones((3, 5, 2))).shape == (0, 2)
    assert packing.unpack(np.ones((0, 2))).tolist() == np.zeros((3, 5, 2)).tolist()
    assert packing.longest_first == []


def test_dense_layout_is_the_batch_itself():
    x = random(2, 3, 4)
    layout = Dense((2, 3), None)
    assert layout.pack(x) is x and layout.unpack(x) is x and layout.mask is None
    assert layout.positions.tolist() == [0, 1, 2]
