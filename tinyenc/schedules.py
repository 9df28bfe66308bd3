"""Learning rates by step: `schedule(step)` is the rate of that optimiser step, counted from 1.

The first step has a rate above 0 (a count from 0 would waste it), and step `warmup` has the peak. warmup 0
starts at the peak, as warmup 1 does.
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
    peak = not_negative("peak", peak)
    up = _steps("warmup", warmup)
    return Schedule(f"constant({peak}, warmup={warmup})", lambda t: peak * _rise(t, up))


def linear(peak, warmup, total):
    """peak * t / warmup, then peak * (total - t) / (total - warmup); 0 from step total on."""
    peak = not_negative("peak", peak)
    up, end = _span(warmup, total)
    return Schedule(f"linear({peak}, warmup={warmup}, total={total})",
                    lambda t: peak * min(_rise(t, up), 1 - _fall(t, up, end)))


def cosine(peak, warmup, total, floor=0.0):
    """peak * t / warmup, then floor + (peak - floor) * (1 + cos(pi * (t - warmup) / (total - warmup))) / 2.

    From step total on it is floor. Loshchilov & Hutter 2017, one period.
    """
    peak, floor = not_negative("peak", peak), not_negative("floor", floor)
    up, end = _span(warmup, total)
    if floor > peak:
        raise ValueError(f"floor {floor} is above peak {peak}")

    def rate(t):
        if t < up:
            return peak * _rise(t, up)
        return floor + (peak - floor) * (1 + math.cos(math.pi * _fall(t, up, end))) / 2

    return Schedule(f"cosine({peak}, warmup={warmup}, total={total}, floor={floor})", rate)


def inverse_sqrt(peak, warmup):
    """peak * min(t / warmup, sqrt(warmup / t))."""
    peak = not_negative("peak", peak)
    up = _steps("warmup", warmup)
    return Schedule(f"inverse_sqrt({peak}, warmup={warmup})", lambda t: peak * min(t / up, math.sqrt(up / t)))


def noam(d_model, warmup, scale=1.0):
    """scale * d_model**-0.5 * min(t**-0.5, t * warmup**-1.5) (Vaswani et al. 2017, section 5.3)."""
    if not d_model >= 1:
        raise ValueError(f"d_model must be at least 1, got {d_model}")
    scale = not_negative("scale", scale)
    peak = scale / math.sqrt(d_model * _steps("warmup", warmup))
    return Schedule(f"noam({d_model}, warmup={warmup}, scale={scale})", inverse_sqrt(peak, warmup))


def _rise(t, warmup):
    return min(1.0, t / warmup)


def _fall(t, warmup, total):
    """How much of the way down is done: 0 up to step warmup, 1 from step total on."""
    if t <= warmup:
        return 0.0
    return 1.0 if t >= total else (t - warmup) / (total - warmup)


def _steps(name, value):
    """value as a count of at least 1 step, where 0 stands for 1."""
    try:
        steps = index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number of steps, got {value!r}") from None
    if steps < 0:
        raise ValueError(f"{name} must be at least 0, got {steps}")
    return max(steps, 1)


def _span(warmup, total):
    up, end = _steps("warmup", warmup), _steps("total", total)
    if total == 0:
        raise ValueError("total must be at least 1 step, got 0")
    if up > end:
        raise ValueError(f"warmup {warmup} is longer than total {total}")
    return up, end


def not_negative(name, value):
    """value as a float; ValueError unless it is finite and at least 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number, at least 0, got {value}")
    return float(value)
