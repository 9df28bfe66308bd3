import time

import numpy as np
import pytest
from support import random

from gradcheck.test_attention import KeyScale
from tinyenc import Tape
from tinyenc.attention import DotProduct, per_sequence
from tinyenc.attention.layout import Packing
from tinyenc.attention.per_sequence import PerSequence
from tinyenc.parallel import get_num_threads, set_num_threads


def results(core, arrays, mask, dy, seed=None):
    tape = Tape(seed)
    y = core.forward(*arrays, mask, tape=tape)
    return [y, *core.backward(dy, tape)]


# Few scores at a time cut the batch in many groups, many leave it whole: the numbers are the core's own.
@pytest.mark.parametrize("scores", [1, 100, 1 << 30])
@pytest.mark.parametrize("mask_shape", [(7, 1, 1, 6), (1, 1, 5, 6), (7, 2, 5, 6), None])
def test_groups_give_what_the_whole_batch_gives(scores, mask_shape, monkeypatch):
    monkeypatch.setattr(per_sequence, "SCORES", scores)
    arrays, dy = [random(7, 2, 5, 4), random(7, 2, 6, 4), random(7, 2, 6, 4)], random(7, 2, 5, 4, seed=1)
    mask = None if mask_shape is None else random(*mask_shape) > -0.5
    for a, b in zip(results(PerSequence(DotProduct()), arrays, mask, dy), results(DotProduct(), arrays, mask, dy)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scores", [1, 1 << 30])
def test_packed_sequences_attend_to_themselves_alone(scores, monkeypatch):
    monkeypatch.setattr(per_sequence, "SCORES", scores)
    tokens = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], bool)
    packing, x = Packing(tokens), [random(6, 4, 2, 3, seed=s) for s in range(4)]  # (B, T, H, K)
    packed = [packing.pack(a).swapaxes(0, 1) for a in x]  # (H, N, K)
    dense = [a.swapaxes(1, 2) for a in x]
    dense[3] = dense[3] * tokens[:, None, :, None]  # nothing comes back from queries at padding
    q, k, v, dy = packed
    for a, b in zip(results(PerSequence(DotProduct()), (q, k, v), packing, dy),
                    results(DotProduct(), dense[:3], tokens[:, None, None], dense[3])):
        np.testing.assert_allclose(packing.unpack(a.swapaxes(0, 1))[tokens], b.swapaxes(1, 2)[tokens],
                                   rtol=1e-12, atol=1e-14)


def test_dropout_and_results_do_not_depend_on_the_number_of_threads():
    arrays, dy = [random(40, 4, 48, 4, seed=s) for s in range(3)], random(40, 4, 48, 4, seed=3)
    threads, found = get_num_threads(), []
    try:
        for n in 1, 2, 4:
            set_num_threads(n)
            found.append(results(PerSequence(DotProduct(0.2)), arrays, None, dy, seed=5))
    finally:
        set_num_threads(threads)
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def test_groups_drop_different_weights():
    q, k, v = np.zeros((64, 1, 64, 64)), random(64, 1, 64, 64), np.broadcast_to(np.eye(64), (64, 1, 64, 64))
    weights = PerSequence(DotProduct(0.5)).forward(q, k, v, tape=Tape(seed=0)) != 0
    for i in range(64):
        for j in range(i):
            assert 0.4 < (weights[i] == weights[j]).mean() < 0.6


def test_error_inside_a_group_comes_out():
    class Broken(DotProduct):
        def forward(self, *args, **kwargs):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        PerSequence(Broken()).forward(*[random(40, 4, 48, 4)] * 3)


def test_sequences_of_like_length_go_together():
    q = np.zeros((4, 190, 8))
    tokens = np.arange(64) < np.array([64, 60, 40, 26])[:, None]
    shapes = [group.take(q).shape for group in per_sequence.packed_groups(q, Packing(tokens), DotProduct())]
    assert shapes == [(3, 4, 64, 8), (1, 4, 26, 8)]


def test_core_that_does_not_take_padding_sees_none():
    class Plain(DotProduct):
        takes_padding = False

        def forward(self, q, k, v, mask=None, bias=None, tape=None):
            assert mask is None
            return super().forward(q, k, v, mask, bias, tape)

    tokens = np.arange(6) < np.array([5, 6, 6, 3])[:, None]
    arrays = [random(2, 20, 4, seed=s) for s in range(4)]
    q, k, v, dy = arrays
    for a, b in zip(results(PerSequence(Plain()), (q, k, v), Packing(tokens), dy),
                    results(PerSequence(DotProduct()), (q, k, v), Packing(tokens), dy)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_nan_in_one_sequence_stays_there():
    tokens = np.arange(6) < np.array([6, 5, 4])[:, None]
    q, k, v, dy = (random(2, 15, 4, seed=s) for s in range(4))
    k[:, 6:11] = v[:, 6:11] = np.nan  # the second one
    with np.errstate(invalid="ignore"):
        found = results(PerSequence(DotProduct()), (q, k, v), Packing(tokens), dy)
    for result in found:
        assert np.isnan(result[:, 6:11]).any()
        assert np.isfinite(result[:, :6]).all() and np.isfinite(result[:, 11:]).all()


def test_core_with_parameters_gets_all_heads_and_adds_up_in_one_order(monkeypatch):
    monkeypatch.setattr(per_sequence, "SCORES", 100)
    tokens = np.arange(12) < np.array([12, 9, 7, 7, 4, 4, 4, 3, 1])[:, None]
    q, k, v, dy = (random(8, 51, 64, seed=s) for s in range(4))
    inside, overlaps = [], []

    class Watched(KeyScale):
        def backward(self, dy, tape):
            inside.append(self)
            overlaps.append(len(inside))
            time.sleep(0.001)
            result = super().backward(dy, tape)
            inside.pop()
            return result

    threads, found = get_num_threads(), []
    try:
        for n in 1, 2, 3:
            set_num_threads(n)
            core = Watched(8, 64)
            results(PerSequence(core), (q, k, v), Packing(tokens), dy)
            found.append(core.factor.grad)
    finally:
        set_num_threads(threads)
    assert max(overlaps) == 1
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    assert abs(found[0]).min() > 0  # every head got its own


@pytest.mark.parametrize("shape", [(5, 1, 1, 6), (3, 7, 1, 6), (3, 1, 1, 5), (6,)])
def test_mask_that_does_not_fit_is_refused_and_not_cut(shape):
    x = random(3, 2, 6, 4)
    with pytest.raises(ValueError, match="^mask of shape .* does not broadcast"):
        PerSequence(DotProduct()).forward(x, x, x, np.ones(shape, bool))
