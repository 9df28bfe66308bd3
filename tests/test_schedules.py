import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyenc.schedules import constant, cosine, inverse_sqrt, linear, noam


def rates(schedule, n):
    return [schedule(step) for step in range(1, n + 1)]


def every_schedule(peak, warmup, total):
    return [constant(peak, warmup), linear(peak, warmup, total), cosine(peak, warmup, total, floor=peak / 10),
            inverse_sqrt(peak, warmup), noam(64, warmup, scale=peak * math.sqrt(64 * max(warmup, 1)))]


def test_linear_rises_to_its_peak_and_falls_to_zero():
    expected = [.25, .5, .75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    assert rates(linear(1, warmup=4, total=10), 12) == pytest.approx([*expected, 0, 0], abs=1e-15)


def test_cosine_falls_by_half_a_period_to_its_floor():
    fall = [0.1 + 0.9 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(5)]
    assert rates(cosine(1, warmup=2, total=6, floor=0.1), 7) == pytest.approx([0.5, *fall, 0.1])


def test_noam_is_the_formula_of_the_paper():
    paper = [512**-0.5 * min(t**-0.5, t * 4000**-1.5) for t in (1, 100, 4000, 4001, 100_000)]
    assert [noam(512, 4000)(t) for t in (1, 100, 4000, 4001, 100_000)] == pytest.approx(paper, rel=1e-12)
    assert noam(512, 4000, scale=2)(17) == pytest.approx(2 * noam(512, 4000)(17))


def test_inverse_sqrt_halves_in_four_times_the_steps():
    assert rates(inverse_sqrt(1, warmup=2), 2) == [0.5, 1]
    assert inverse_sqrt(1, warmup=2)(8) == pytest.approx(0.5)


def test_constant_stays_at_its_peak():
    assert rates(constant(0.3, warmup=3), 5) == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])


@given(peak=st.floats(1e-6, 10), warmup=st.integers(0, 50), rest=st.integers(0, 50))
def test_every_schedule_has_its_peak_at_step_warmup_rising_before_and_falling_after(peak, warmup, rest):
    at = max(warmup, 1)
    for schedule in every_schedule(peak, warmup, at + rest):
        values = rates(schedule, at + rest + 5)
        assert values[at - 1] == pytest.approx(peak)
        assert values[:at] == pytest.approx([peak * t / at for t in range(1, at + 1)]), schedule
        assert all(0 <= later <= earlier for earlier, later in zip(values[at - 1:], values[at:])), schedule


@pytest.mark.parametrize("schedule", every_schedule(0.5, 0, 10), ids=repr)
def test_without_warmup_the_first_step_has_the_peak(schedule):
    assert schedule(1) == pytest.approx(0.5)


def test_the_rate_is_a_python_float_whatever_the_settings_are():
    for schedule in every_schedule(np.float64(0.5), np.int64(2), np.int64(10)):
        assert all(type(schedule(step)) is float for step in (1, np.int64(2), 7))


def test_the_smallest_settings_are_possible():
    assert rates(cosine(1, warmup=1, total=1, floor=1), 3) == [1, 1, 1]
    assert rates(linear(0, warmup=0, total=1), 2) == [0, 0]
    assert noam(1, warmup=1)(1) == 1


@pytest.mark.parametrize("schedule, text", [
    (constant(0.1), "constant(0.1, warmup=0)"),
    (linear(3e-4, 100, 1000), "linear(0.0003, warmup=100, total=1000)"),
    (linear(1, 0, 5), "linear(1.0, warmup=0, total=5)"),
    (cosine(1, 2, 3), "cosine(1.0, warmup=2, total=3, floor=0.0)"),
    (inverse_sqrt(1, 4), "inverse_sqrt(1.0, warmup=4)"),
    (noam(512, 4000, 2), "noam(512, warmup=4000, scale=2.0)"),
])
def test_repr_is_the_call_that_made_it(schedule, text):
    assert repr(schedule) == text


@pytest.mark.parametrize("make, message", [
    (lambda: linear(1, warmup=11, total=10), "warmup 11 is longer than total 10"),
    (lambda: cosine(1, warmup=11, total=10), "warmup 11 is longer than total 10"),
    (lambda: linear(1, warmup=-1, total=10), "warmup must be at least 0, got -1"),
    (lambda: linear(1, warmup=0, total=0), "total must be at least 1 step, got 0"),
    (lambda: linear(1, warmup=0.1, total=10), "warmup must be a whole number of steps, got 0.1"),
    (lambda: constant(-0.1), "peak must be a finite number, at least 0, got -0.1"),
    (lambda: linear(math.inf, 1, 10), "peak must be a finite number, at least 0, got inf"),
    (lambda: inverse_sqrt(math.nan, 4), "peak must be a finite number, at least 0, got nan"),
    (lambda: cosine(1, 2, 3, floor=2), "floor 2.0 is above peak 1.0"),
    (lambda: noam(0, 4000), "d_model must be at least 1, got 0"),
    (lambda: constant(1)(0), "steps are counted from 1, got 0"),
])
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
