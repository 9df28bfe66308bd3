"""Training, a step at a time: the loop is yours. For everyday use there is `fit`.

    for step in train(model, loss, batches, optimizer, n_epochs=3):
        ...  # evaluate, save, stop

A batch has `ids`, `mask` and `labels`, as `data.Batches` makes them; a model is called as `model.forward(ids, mask,
tape)`. All randomness of step t comes from the seed and t, so a run that goes on from a saved state draws what it
would have drawn.
"""

import math
from numbers import Integral
from operator import index
from typing import NamedTuple

import numpy as np

from .backend import to_host
from .data.batching import Batches
from .tape import Tape


class Step(NamedTuple):
    """What one optimiser step did. loss is the mean over its targets, before the step; norm is that of the gradient.

    On the GPU loss is a 0-d array that float() waits for.
    """

    number: int
    epoch: int
    loss: float
    lr: float
    norm: float
    n_targets: int

    @property
    def skipped(self):
        """Whether the gradient was not finite, and so nothing was changed."""
        return not math.isfinite(self.norm)


def train_step(model, loss, window, optimizer, seed=0, max_norm=1.0, loss_scale=None):
    """One optimiser step on the gradients of a few batches, as if they were one; returns (loss, norm, n_targets).

    Each batch counts by its targets: the loss is the sum over all targets divided by their number, whatever batch
    they came in. max_norm: the length that longer gradients are clipped to; None for no clipping. loss_scale: a
    LossScale, for half precision.

    FloatingPointError: the loss is not finite; then nothing was changed. Where only the gradient is not, the step is
    skipped (see Optimizer.step).
    """
    counts = [int(loss.count(batch.labels)) for batch in window]
    n_targets = sum(counts)
    mean = 0.0
    factor = loss_scale.factor if loss_scale else 1.0
    max_norm = math.inf if max_norm is None else max_norm
    try:
        for i, (batch, count) in enumerate(zip(window, counts)):
            share = count / max(1, n_targets)
            tape = Tape(seed=(index(seed) << 64) + (optimizer.n_steps << 16) + i)
            with np.errstate(over="ignore", invalid="ignore"):  # it shows in the loss and in the norm
                logits = model.forward(batch.ids, batch.mask, tape)
                mean = mean + share * loss.forward(logits, batch.labels, tape)
                model.backward(loss.backward(share * factor, tape), tape)
            tape.check_empty()
        norm = loss_scale.step(optimizer, max_norm) if loss_scale else optimizer.step(max_norm)
    finally:
        model.zero_grad()  # also where the step was broken off: the next must not add to half of this one
    if not math.isfinite(norm) and not math.isfinite(float(mean)):
        step = optimizer.n_steps + 1
        raise FloatingPointError(f"the loss is {float(mean)} at step {step}, whose learning rate is "
                                 f"{optimizer.schedule(step):g}; the weights are as they were before it")
    return mean, norm, n_targets


def train(model, loss, batches, optimizer, n_epochs, seed=0, max_norm=1.0, accumulate=1, loss_scale=None):
    """Yield a Step after each optimiser step, until batches have been gone through n_epochs times in all.

    accumulate: how many batches make a step; the last step of an epoch takes what is left.
    """
    check_count("accumulate", accumulate)
    while batches.epoch < n_epochs:
        epoch = batches.epoch
        for window in windows(batches, accumulate):
            number = optimizer.n_steps + 1
            mean, norm, n_targets = train_step(model, loss, window, optimizer, seed, max_norm, loss_scale)
            yield Step(number, epoch, mean, optimizer.schedule(number), norm, n_targets)


def check_count(name, value):
    """ValueError unless value is a whole number of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value}")


def windows(batches, size):
    """Lists of size batches, a shorter one last."""
    window = []
    for batch in batches:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def predict(model, batches):
    """The model's outputs for one pass over batches, each as a NumPy array: yields (batch, output).

    Batches are gone through from the start of their epoch, and their own place stays where it is.
    """
    if isinstance(batches, Batches):
        batches = batches.afresh()
    for batch in batches:
        yield batch, to_host(model.forward(batch.ids, batch.mask))


def evaluate(model, loss, batches):
    """{"loss", "accuracy", "n_targets"} over one pass, as Python numbers; ignored targets do not count."""
    total, right, n_targets = 0.0, 0, 0
    for batch, logits in predict(model, batches):
        count = loss.count(batch.labels)
        total += count * float(loss.forward(logits, batch.labels))
        right += int(((logits.argmax(axis=-1) == batch.labels) & (batch.labels != loss.ignore)).sum())
        n_targets += count
    return {"loss": total / max(1, n_targets), "accuracy": right / max(1, n_targets), "n_targets": n_targets}
