"""Why does a model not learn a few sentences by heart? Measured, in the order that finds faults fastest."""

import math

import numpy as np

from .backend import to_host
from .data.batching import pad
from .gradcheck import GradientError, check_gradients
from .tape import Tape

LOOK = "LOOK HERE"
TIE = 1e-4  # how far padding may move a float32 logit, relative to the largest


def diagnose(model, loss, batch, steps, examples):
    """Findings about a run that did not learn its examples: a list of sentences, the first to be looked at first.

    batch: one of data.Batches; steps: the run's train.Step records; examples: its (ids, label) pairs. A finding is
    marked "LOOK HERE" where what was measured is wrong or suspicious, and "fine" where it is as it should be.
    """
    findings = [_labels(examples), _mask(model, examples), _gradients(model, batch), _layers(model, loss, batch)]
    faults = [finding for finding in findings if LOOK in finding]
    return [*findings, _rate(steps, faults)]


def _finding(subject, wrong, fine):
    return f"{subject}: " + (f"{LOOK}, {wrong}" if wrong else f"fine, {fine}")


def _labels(examples):
    """Can anything learn these labels? Not where equal tokens have different ones."""
    seen = {}
    clashes = []
    for i, (ids, label) in enumerate(examples):
        first, known = seen.setdefault(tuple(ids), (i, label))
        if known != label:
            clashes.append((first + 1, i + 1))
    wrong = clashes and (f"rows {clashes[0][0]} and {clashes[0][1]} have the same tokens and different labels"
                         + (f", and {len(clashes) - 1} more such pairs" if len(clashes) > 1 else ""))
    return _finding("labels", wrong, f"no two of the {len(examples)} rows have the same tokens and different labels")


def _mask(model, examples):
    """A sentence must not notice the padding behind it."""
    ids, mask = pad([examples[0][0]])
    padded = np.pad(ids, ((0, 0), (0, 8))), np.pad(mask, ((0, 0), (0, 8)))
    alone, beside = (to_host(model.forward(*args)) for args in ((ids, mask), padded))
    gap, size = float(abs(alone - beside).max()), float(abs(alone).max())
    wrong = not gap <= TIE * size and f"8 more padding tokens move the logits of row 1 by {gap:.2g} (of {size:.2g})"
    return _finding("mask", wrong, f"8 more padding tokens move the logits of row 1 by {gap:.1g} (of {size:.2g})")


def _gradients(model, batch):
    """Is every backward the derivative of its forward?"""
    try:
        checked = check_gradients(model, batch.ids[:2], mask=batch.mask[:2])
    except GradientError as error:
        return _finding("gradients", f"a backward is wrong:\n{error}", "")
    return _finding("gradients", None, f"they agree with finite differences to {checked.error:.1g}")


def _layers(model, loss, batch):
    """Does the gradient reach every parameter, at like sizes?"""
    tape = Tape()
    loss.forward(model.forward(batch.ids, batch.mask, tape), batch.labels, tape)
    model.zero_grad()
    model.backward(loss.backward(1.0, tape), tape)
    size = {name: float(np.sqrt((to_host(p.grad).astype(float) ** 2).mean())) for name, p in model.named_parameters()}
    model.zero_grad()
    bad = [name for name, value in size.items() if not math.isfinite(value)]
    none = [name for name, value in size.items() if value == 0]
    small, large = min(size, key=size.get), max(size, key=size.get)
    wrong = (f"the gradient of {bad[0]} is not finite" if bad else
             f"no gradient reaches {', '.join(none[:4])}{' ...' if len(none) > 4 else ''}" if none else None)
    return _finding("layers", wrong, f"a gradient reaches each of the {len(size)} parameters, from {size[small]:.1g} a "
                    f"number in {small} to {size[large]:.1g} in {large}")


def _rate(steps, faults):
    """Did the loss rise, stand still, or only need more steps? Where there are faults, they come first."""
    losses = [float(step.loss) for step in steps]
    quarter = max(1, len(losses) // 4)
    first, before, last = losses[0], np.mean(losses[-2 * quarter:-quarter] or losses[:1]), np.mean(losses[-quarter:])
    clipped = sum(step.norm > 1 for step in steps)
    peak = max(step.lr for step in steps)
    told = (f"peak {peak:g}: the loss went from {first:.3f} to {last:.3f} in {len(steps)} steps, with its lowest at "
            f"{min(losses):.3f}; {clipped} gradients were longer than 1")
    if faults:
        return f"learning rate: {told}. What is wrong above comes first"
    if last > 1.2 * first:
        advice = "It rose: a lower rate, or a longer warm-up"
    elif last < 0.9 * before:
        advice = f"It still fell by {1 - last / before:.0%} in the last quarter: more steps"
    else:
        advice = "It stood still: a higher rate, or a lower one where it jumps; or a larger model"
    return _finding("learning rate", f"{told}. {advice}", "")
