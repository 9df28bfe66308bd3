"""Training: one step in five lines, many steps as a loop, and `fit` for everyday use.

    for step in train(model, loss, batches, optimizer, n_epochs=3):
        ...  # evaluate, save, stop: the loop is yours

A batch has `ids`, `mask` and `labels`, as `data.Batches` makes them; a model is called as `model.forward(ids, mask,
tape)`. All randomness of step t comes from the seed and t, so a run that goes on from a saved state draws what it
would have drawn.
"""

import contextlib
import json
import math
from typing import NamedTuple


from .backend import to_host
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


def train_step(model, loss, window, optimizer, seed=0, max_norm=1.0):
    """One optimiser step on the gradients of a few batches, as if they were one; returns (loss, norm, n_targets).

    Each batch counts by its targets: the loss is the sum over all targets divided by their number, whatever batch
    they came in. max_norm: the length that longer gradients are clipped to; None for no clipping.

    FloatingPointError: the loss is not finite; then nothing was changed. Where only the gradient is not, the step is
    skipped (see Optimizer.step).
    """
    counts = [loss.count(batch.labels) for batch in window]
    n_targets = sum(counts)
    mean = 0.0
    for i, (batch, count) in enumerate(zip(window, counts)):
        share = count / max(1, n_targets)
        tape = Tape(seed=(seed << 64) + (optimizer.n_steps << 16) + i)
        logits = model.forward(batch.ids, batch.mask, tape)
        mean = mean + share * loss.forward(logits, batch.labels, tape)
        model.backward(loss.backward(share, tape), tape)
        if len(tape):
            raise RuntimeError(f"{len(tape)} records are left on the tape: a backward did not call all its parts'")
    try:
        norm = optimizer.step(math.inf if max_norm is None else max_norm)
    finally:
        model.zero_grad()
    if not math.isfinite(norm) and not math.isfinite(float(mean)):
        raise FloatingPointError(f"the loss is {float(mean)} at step {optimizer.n_steps + 1}, where the next rate is "
                                 f"{optimizer.schedule(optimizer.n_steps + 1):g}; the weights are those of the step before")
    return mean, norm, n_targets


def train(model, loss, batches, optimizer, n_epochs, seed=0, max_norm=1.0, accumulate=1):
    """Yield a Step after each optimiser step, until batches have been gone through n_epochs times in all.

    accumulate: how many batches make a step; the last step of an epoch takes what is left.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, got {accumulate}")
    while batches.epoch < n_epochs:
        epoch = batches.epoch
        for window in windows(batches, accumulate):
            mean, norm, n_targets = train_step(model, loss, window, optimizer, seed, max_norm)
            yield Step(optimizer.n_steps, epoch, mean, optimizer.lr, norm, n_targets)


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
    """The model's outputs for one pass over batches, each as a NumPy array: yields (batch, output)."""
    for batch in batches:
        yield batch, to_host(model.forward(batch.ids, batch.mask))


def evaluate(model, loss, batches):
    """{"loss", "accuracy", "n_targets"} over one pass, as Python numbers; targets that the loss ignores do not count."""
    total, right, n_targets = 0.0, 0, 0
    for batch, logits in predict(model, batches):
        count = loss.count(batch.labels)
        total += count * float(loss.forward(logits, batch.labels))
        right += int(((logits.argmax(axis=-1) == batch.labels) & (batch.labels != loss.ignore)).sum())
        n_targets += count
    return {"loss": total / max(1, n_targets), "accuracy": right / max(1, n_targets), "n_targets": n_targets}


def fit(model, loss, batches, optimizer, n_epochs, valid=None, patience=None, seed=0, max_norm=1.0, accumulate=1,
        log=None, progress=True):
    """Train for n_epochs with a progress bar; returns a list of dictionaries, one an epoch.

    valid: batches to evaluate after each epoch; the weights of the epoch with the best accuracy (the lowest loss
    among equals) are the model's at the end. patience: stop after so many epochs without a better one.
    log: a file to which a JSON line is added for each step and epoch.
    """
    if patience is not None and valid is None:
        raise ValueError(f"patience {patience} needs batches to validate on")
    from tqdm import tqdm

    rows, best, kept = [], None, None
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(log, "a", encoding="utf-8")) if log else None
        bar = stack.enter_context(tqdm(total=math.ceil(len(batches) / accumulate), disable=not progress, unit="step"))
        while batches.epoch < n_epochs:
            epoch = batches.epoch
            bar.reset()
            bar.set_description(f"epoch {epoch + 1}/{n_epochs}")
            steps = []
            for step in train(model, loss, batches, optimizer, epoch + 1, seed, max_norm, accumulate):
                steps.append(step)
                bar.update()
                if len(steps) % 10 == 1:
                    bar.set_postfix(loss=f"{float(step.loss):.4f}", refresh=False)
                write(file, step=step.number, epoch=epoch + 1, loss=step.loss, lr=step.lr, norm=step.norm)
            n_targets = sum(s.n_targets for s in steps)
            row = {"epoch": epoch + 1, "loss": sum(float(s.loss) * s.n_targets for s in steps) / max(1, n_targets),
                   "skipped": sum(s.skipped for s in steps)}
            if valid is not None:
                row |= {f"valid_{name}": value for name, value in evaluate(model, loss, valid).items()}
                score = row["valid_accuracy"], -row["valid_loss"]
                if best is None or score > best[0]:
                    best, kept = (score, epoch), model.state_dict()
            rows.append(row)
            write(file, **row)
            if patience is not None and epoch - best[1] >= patience:
                break
    if kept is not None:
        model.load_state_dict(kept)
    return rows


def write(file, **row):
    """Add a row of numbers to a JSON lines file, if there is one; null stands for what is not finite."""
    if file:
        row = {name: value if isinstance(value, int) else float(value) for name, value in row.items()}
        row = {name: value if math.isfinite(value) else None for name, value in row.items()}
        file.write(json.dumps(row) + "\n")
        file.flush()
