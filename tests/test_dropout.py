import numpy as np
import pytest
from support import random

from tinyenc import NO_TAPE, Dropout, FeedForward, Tape
from tinyenc.attention import DotProduct
from tinyenc.keep_mask import draw, draw_runs


# E01
def test_kept_entries_are_scaled_and_the_others_exactly_zero():
    x = random(1000, 1000) + 10
    y = Dropout(0.1).forward(x, Tape(seed=0))
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] * 1.1111111111111112, rtol=1e-15)
    assert abs(kept.mean() - 0.9) < 0.0015  # five standard deviations
    assert y.mean() == pytest.approx(x.mean(), rel=0.002)


# E01
@pytest.mark.parametrize("p", [0.003, 0.5, 0.97])
def test_keep_rate_is_right_for_any_probability(p):
    y = Dropout(p).forward(np.ones((1000, 500)), Tape(seed=3))
    assert abs((y != 0).mean() - (1 - p)) < 5 * (p * (1 - p) / y.size) ** 0.5


# E01
def test_backward_multiplies_by_what_forward_multiplied_by():
    drop, tape = Dropout(0.3), Tape(seed=1)
    multiplier = drop.forward(np.ones((300, 1000)), tape)  # larger than one block
    assert np.array_equal(drop.backward(np.ones((300, 1000)), tape), multiplier)


# E01
def test_without_a_seed_dropout_is_the_identity_and_draws_nothing():
    drop, x, dy = Dropout(0.5), random(4, 6), random(4, 6, seed=1)
    for tape in Tape(), Tape(keep=False), NO_TAPE:
        assert np.array_equal(drop.forward(x, tape), x)
    tape = Tape()
    drop.forward(x, tape)
    assert np.array_equal(drop.backward(dy, tape), dy)


# E01: the state of the generator is not advanced
def test_probability_zero_is_the_identity_and_draws_nothing():
    tape, fresh, x = Tape(seed=1), Tape(seed=1), random(4, 6)
    assert np.array_equal(Dropout(0.0).forward(x, tape), x)
    assert tape.next_seed() == fresh.next_seed()


# D09: independent masks for every row, and for every call
def test_rows_of_one_batch_and_calls_in_a_row_drop_different_entries():
    drop, tape, p = Dropout(0.1), Tape(seed=2), 0.1
    one = drop.forward(np.ones((2, 50, 1000)), tape) != 0
    two = drop.forward(np.ones((2, 50, 1000)), tape) != 0
    for a, b in (one[0], one[1]), (one, two), (one[0, 0], one[0, 1]), (one[..., 0], one[..., 1]):
        agreement = (a == b).mean()
        assert abs(agreement - (p**2 + (1 - p) ** 2)) < 5 * (0.25 / a.size) ** 0.5


# D09
def test_two_layers_on_one_tape_drop_different_entries():
    tape = Tape(seed=2)
    a = Dropout(0.5).forward(np.ones((20, 30)), tape)
    b = Dropout(0.5).forward(np.ones((20, 30)), tape)
    assert not np.array_equal(a, b)


# K08: reproducible
def test_same_seed_drops_the_same_entries_whatever_the_number_of_threads():
    from tinyenc.parallel import get_num_threads, set_num_threads
    threads = get_num_threads()
    try:
        results = []
        for n in 1, 2, 3:
            set_num_threads(n)
            results.append(Dropout(0.2).forward(np.ones((900, 1000)), Tape(seed=9)))
    finally:
        set_num_threads(threads)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("n", [3, 1 << 18, (1 << 18) + 1, 600_002, 1_200_003])
def test_mask_drawn_in_parts_is_that_of_one_run(n):
    whole = np.empty((1, n), bool)
    draw_runs(whole, [0], 0.3, 7)  # parts begin at any place, also inside a word of four draws
    assert np.array_equal(draw((n,), 0.3, 7), whole[0])


def test_one_mask_does_not_repeat_itself_along_a_large_array():
    kept = (Dropout(0.5).forward(np.ones((8, 1 << 18)), Tape(seed=0)) != 0)
    for i in range(8):
        for j in range(i):
            assert abs((kept[i] == kept[j]).mean() - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dropout_keeps_the_dtype(dtype):
    drop, tape, x = Dropout(0.1), Tape(seed=0), np.ones((40, 10), dtype)
    y = drop.forward(x, tape)
    assert y.dtype == dtype and drop.backward(y, tape).dtype == dtype


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_probability_outside_zero_to_one_is_refused_by_every_layer_that_drops(p):
    for make in Dropout, DotProduct, lambda p: FeedForward(4, 8, p):
        with pytest.raises(ValueError, match=rf"\[0, 1\), got {p}"):
            make(p)


def test_empty_array_can_be_dropped():
    assert Dropout(0.5).forward(np.zeros((0, 3)), Tape(seed=0)).shape == (0, 3)
