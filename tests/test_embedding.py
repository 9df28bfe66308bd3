import tracemalloc

import numpy as np
import pytest
from support import random

from tinyenc import Embedding, Tape

IDS = np.array([[1, 1, 3], [1, 0, 3]])
DY = np.arange(12, dtype=np.float64).reshape(2, 3, 2)


def backward(layer, ids, dy):
    tape = Tape()
    layer.forward(ids, tape)
    layer.backward(dy, tape)
    return layer.weight.grad


def test_forward_looks_up_rows_and_scales_them():
    layer = Embedding(5, 2, scale=3.0, rng=0)
    y = layer(IDS)
    assert y.shape == (2, 3, 2) and y.dtype == np.float32
    np.testing.assert_allclose(y[1, 2], layer.weight.data[3] * 3, rtol=1e-6)


# C01
def test_repeated_ids_add_up_in_backward():
    layer = Embedding(5, 2).astype(np.float64)
    assert backward(layer, IDS, DY).tolist() == [[8, 9], [8, 11], [0, 0], [14, 16], [0, 0]]
    assert backward(layer, IDS, DY).tolist() == [[16, 18], [16, 22], [0, 0], [28, 32], [0, 0]]  # not zeroed: double


def test_backward_scales_as_forward_does():
    layer = Embedding(5, 2, scale=2.5).astype(np.float64)
    assert backward(layer, IDS, DY)[3].tolist() == [35, 40]


# C02
@pytest.mark.parametrize("ids", [[[1, 10]], [[2**31, 0]], [[0, -1]], [[-2**40, 3]]])
def test_id_outside_the_table_is_named(ids):
    layer, ids = Embedding(10, 4, rng=0), np.array(ids, np.int64)
    before, tape = ids.copy(), Tape()
    wrong = max(ids.flat, key=lambda i: max(-i, i - 9))
    with pytest.raises(IndexError, match=rf"token id {wrong} is outside the table of 10 tokens \(0 to 9\)"):
        layer.forward(ids, tape)
    assert np.array_equal(ids, before) and len(tape) == 0


# C02
@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool, object, str])
def test_ids_that_are_not_integers_are_refused_by_dtype(dtype):
    ids = np.array([[1, 0]]).astype(dtype)
    with pytest.raises(TypeError, match=f"must be integers, got {ids.dtype}"):
        Embedding(10, 4, rng=0).forward(ids)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_every_integer_dtype_is_an_id(dtype):
    layer = Embedding(10, 4, rng=0)
    assert np.array_equal(layer(np.array([9, 0], dtype)), layer(np.array([9, 0])))


# C02
def test_ids_are_not_changed_by_forward_and_backward():
    ids = IDS.copy()
    ids.flags.writeable = False
    backward(Embedding(5, 2).astype(np.float64), ids, DY)
    assert np.array_equal(ids, IDS)


# C04
def test_padding_row_starts_as_zeros_and_gets_no_gradient():
    layer = Embedding(5, 2, padding_idx=1, rng=0).astype(np.float64)
    assert not layer.weight.data[1].any() and layer.weight.data[[0, 2, 3, 4]].all()
    assert backward(layer, IDS, DY).tolist() == [[8, 9], [0, 0], [0, 0], [14, 16], [0, 0]]


# C04
def test_loading_may_set_the_padding_row_which_still_gets_no_gradient():
    layer = Embedding(5, 2, padding_idx=1, rng=0).astype(np.float64)
    layer.load_state_dict({"weight": np.full((5, 2), 3.0)})
    assert layer(np.array([1])).tolist() == [[3, 3]]
    assert not backward(layer, IDS, DY)[1].any()


# C04
def test_weight_decay_does_not_move_the_padding_row():
    from tinyenc.optim import AdamW
    layer = Embedding(5, 2, padding_idx=1, rng=0).astype(np.float64)
    layer.load_state_dict({"weight": np.full((5, 2), 3.0)})
    backward(layer, IDS, DY)
    AdamW(layer, lr=0.1, weight_decay=0.5).step()
    assert layer.weight.data[1].tolist() == [3, 3]
    assert (layer.weight.data[[0, 3]] != 3).all()


@pytest.mark.parametrize("padding_idx", [-1, 5])
def test_padding_row_outside_the_table_is_refused(padding_idx):
    with pytest.raises(IndexError, match=f"token id {padding_idx} is outside the table of 5 tokens"):
        Embedding(5, 2, padding_idx=padding_idx)


# L02
def test_large_table_is_updated_exactly_and_without_a_dense_one_hot_matrix():
    layer, n, d = Embedding(30522, 96, rng=0), 4096, 96
    ids = np.random.default_rng(0).zipf(1.3, n).clip(max=30521).reshape(16, 256)  # words repeat as words do
    dy = random(16, 256, d, dtype=np.float32)
    expected = np.zeros((30522, d), np.float32)
    for i, row in zip(ids.ravel(), dy.reshape(-1, d)):
        expected[i] += row
    tape = Tape()
    layer.forward(ids, tape)
    layer.weight.grad  # noqa: B018 (made here, so that only backward's own memory is measured)
    tracemalloc.start()
    layer.backward(dy, tape)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert abs(layer.weight.grad - expected).max() < 1e-4
    assert peak < 100e6  # the one-hot matrix would be 500 MB


def test_half_precision_gradients_add_up_in_float32():
    layer = Embedding(2, 1).astype(np.float16)
    grad = backward(layer, np.zeros(5000, int), np.ones((5000, 1), np.float16))
    assert grad.dtype == np.float32 and grad.tolist() == [[5000], [0]]


def test_half_precision_gradient_is_scaled_and_summed_in_float32_beyond_the_range_of_half():
    table, tape = Embedding(4, 2, scale=16.0, rng=0).astype(np.float16), Tape()
    table.forward(np.array([[1, 1]]), tape)
    table.backward(np.full((1, 2, 2), 30000, np.float16), tape)
    assert (table.weight.grad[1] == 960000).all() and table.weight.grad.dtype == np.float32
