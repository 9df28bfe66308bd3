"""Learning rates by step: `schedule(step)` is the rate of that optimiser step, counted from 1.

The first step moves the weights (a count from 0 would waste it on a rate of 0), and step `warmup` has the peak.
With warmup 0 the first step has it, so 0 and 1 are the same.
"""

import math
from operator import index


class Schedule:
    """rate(step), with the call that made it as its repr."""

    def __init__(self, text, rate):
        self._text = text
        self._rate = rate

    def __call__(self, step):
        if step < 1:
            raise ValueError(f"steps are counted from 1, got {step}")
        return float(self._rate(step))

    def __repr__(self):
        return self._text


def constant(peak, warmup=0):
    """peak * min(1, t / warmup)."""
    peak, warmup = _check_rate("peak", peak), _check_steps("warmup", warmup)
    return Schedule(f"constant({peak}, warmup={warmup})", lambda t: peak * _rise(t, warmup))


def linear(peak, warmup, total):
    """peak * t / warmup, then peak * (total - t) / (total - warmup): up, and down to 0 at step total and after."""
    peak, warmup, total = _check_rate("peak", peak), *_check_span(warmup, total)
    return Schedule(f"linear({peak}, warmup={warmup}, total={total})",
                    lambda t: peak * min(_rise(t, warmup), 1 - _done(t, warmup, total)))


def cosine(peak, warmup, total, floor=0.0):
    """peak * t / warmup, then floor + (peak - floor) * (1 + cos(pi * done)) / 2 (Loshchilov & Hutter 2017).

    done goes from 0 at step warmup to 1 at step total, and stays there.
    """
    peak, floor, (warmup, total) = _check_rate("peak", peak), _check_rate("floor", floor), _check_span(warmup, total)
    if floor > peak:
        raise ValueError(f"floor {floor} is above peak {peak}")

    def rate(t):
        if t < warmup:
            return peak * _rise(t, warmup)
        return floor + (peak - floor) * (1 + math.cos(math.pi * _done(t, warmup, total))) / 2

    return Schedule(f"cosine({peak}, warmup={warmup}, total={total}, floor={floor})", rate)


def inverse_sqrt(peak, warmup):
    """peak * min(t / warmup, sqrt(warmup / t))."""
    peak, warmup = _check_rate("peak", peak), _check_steps("warmup", warmup)
    return Schedule(f"inverse_sqrt({peak}, warmup={warmup})",
                    lambda t: peak * min(_rise(t, warmup), math.sqrt(max(warmup, 1) / t)))


def noam(d_model, warmup, scale=1.0):
    """scale * d_model**-0.5 * min(t**-0.5, t * warmup**-1.5) (Vaswani et al. 2017, section 5.3)."""
    if d_model < 1:
        raise ValueError(f"d_model must be at least 1, got {d_model}")
    scale, warmup = _check_rate("scale", scale), _check_steps("warmup", warmup)
    rise = inverse_sqrt(scale / math.sqrt(d_model * max(warmup, 1)), warmup)
    return Schedule(f"noam({d_model}, warmup={warmup}, scale={scale})", rise)


def _rise(t, warmup):
    return min(1.0, t / max(warmup, 1))


def _done(t, warmup, total):
    """The part of the way from the peak to step total: 0 up to step warmup, 1 from step total on."""
    start = max(warmup, 1)
    if t <= start:
        return 0.0
    return 1.0 if t >= total else (t - start) / (total - start)


def _check_rate(name, value):
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number, at least 0, got {value}")
    return float(value)


def _check_steps(name, value):
    try:
        steps = index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number of steps, got {value!r}") from None
    if steps < 0:
        raise ValueError(f"{name} must be at least 0 steps, got {steps}")
    return steps


def _check_span(warmup, total):
    warmup, total = _check_steps("warmup", warmup), _check_steps("total", total)
    if total < 1:
        raise ValueError(f"total must be at least 1 step, got {total}")
    if warmup > total:
        raise ValueError(f"warmup {warmup} is longer than total {total}")
    return warmup, total
