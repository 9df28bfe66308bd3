"""Training for everyday use: progress bar, validation, the best epoch kept, a log, and a run that survives a stop."""

import contextlib
import json
import math
from operator import index
from pathlib import Path

import numpy as np

from . import checkpoint
from .backend import on_host
from .data.batching import IGNORE, Batches
from .tape import NO_TAPE
from .train import check_count, evaluate, train


def fit(model, loss, batches, optimizer, n_epochs, valid=None, patience=None, seed=0, max_norm=1.0, accumulate=1,
        loss_scale=None, log=None, save_to=None, save_every=100, progress=True):
    """Train until n_epochs have been gone through; returns a list of dictionaries, one an epoch.

    valid: batches to evaluate after each epoch; the weights of the epoch with the best accuracy (the lowest loss among
    equals) are the model's at the end. patience: stop after so many epochs without a better one.
    seed, max_norm, accumulate, loss_scale: as in `train`.
    log: a file to which a JSON line is added for each step and each epoch; on a GPU each waits for its loss. A run that
    was killed adds the steps since its last checkpoint once more.
    save_to: the file of a checkpoint, written every save_every steps and after each epoch. Where it exists, the run
    goes on from it and ends bit for bit as if it had never stopped.

    Examples that the model or the loss refuses (too long, an id or a label that it does not have) are an error before
    any work, where batches and valid are `Batches` (and not a subclass): those with the longest text and with the
    smallest and largest id and label go through the model once, without a tape.
    """
    if not hasattr(batches, "epoch"):
        raise TypeError(f"batches must be data.Batches, which know their epoch, got a {type(batches).__name__}")
    if patience is not None:
        check_count("patience", patience)
        if valid is None:
            raise ValueError(f"patience {patience} needs batches to validate on")
    check_count("accumulate", accumulate)
    check_count("save_every", save_every)
    if save_to is not None:
        checkpoint.check_place(save_to)
    for some in batches, valid:
        try_extremes(model, loss, some)
    from tqdm import tqdm

    run = Run(model, optimizer, batches, index(seed), loss_scale, save_to)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(log, "a", encoding="utf-8")) if log else None
        bar = stack.enter_context(tqdm(disable=not progress, unit="step"))
        while batches.epoch < n_epochs and not (patience and run.epochs_since_best >= patience):
            epoch = batches.epoch + 1
            bar.reset(math.ceil(len(batches) / accumulate))
            bar.update(math.ceil(batches.position / accumulate))
            bar.set_description(f"epoch {epoch}/{n_epochs}")
            for step in train(model, loss, batches, optimizer, epoch, seed, max_norm, accumulate, loss_scale):
                run.add(step)
                write(file, step=step.number, epoch=epoch, loss=step.loss, lr=step.lr, norm=step.norm)
                if step.number % 10 == 0 and not bar.disable:  # reading the loss waits for a GPU
                    bar.set_postfix(loss=f"{run.mean_loss:.4f}", refresh=False)
                bar.update()
                if step.number % save_every == 0 and batches.epoch < epoch:
                    run.save()
            write(file, **run.end_epoch(epoch, evaluate(model, loss, valid) if valid is not None else {}))
            run.save()
    if run.best is not None:
        model.load_state_dict(run.best)
    return run.rows


def try_extremes(model, loss, batches):
    """Put the batches with extreme examples through model and loss: what they refuse is an error before any work."""
    if type(batches) is Batches:  # a subclass may hand out others than it plans
        for batch in batches.extremes(getattr(loss, "ignore", IGNORE)):
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    loss.forward(model.forward(batch.ids, batch.mask, NO_TAPE), batch.labels, NO_TAPE)
            except (IndexError, TypeError, ValueError) as error:
                error.add_note(f"in the batch of examples {batch.index.tolist()}")
                raise


class Run:
    """What a run knows beside its model, optimiser and place in the data; it is saved and comes back with them."""

    def __init__(self, model, optimizer, batches, seed, loss_scale, path):
        self.model, self.optimizer, self.batches, self.seed = model, optimizer, batches, seed
        self.loss_scale, self.path = loss_scale, path
        self.rows = []
        self.best = None  # the weights of the best epoch
        self.best_row = None
        self.start_epoch()
        if path is not None and Path(path).exists():
            self.restore(checkpoint.load(path))

    def start_epoch(self):
        self.loss_sum, self.n_targets, self.skipped = 0.0, 0, 0

    def add(self, step):
        loss = float(step.loss) if on_host(step.loss) else step.loss
        self.loss_sum = self.loss_sum + loss * step.n_targets
        self.n_targets += step.n_targets
        self.skipped += step.skipped

    @property
    def mean_loss(self):
        return float(self.loss_sum) / max(1, self.n_targets)

    def end_epoch(self, epoch, scores):
        """The row of an epoch, whose weights are kept where they are the best so far."""
        row = {"epoch": epoch, "loss": self.mean_loss, "skipped": self.skipped}
        row |= {f"valid_{name}": value for name, value in scores.items()}
        if scores and (self.best_row is None or _score(row) > _score(self.best_row)):
            self.best, self.best_row = self.model.state_dict(), row
        self.rows.append(row)
        self.start_epoch()
        return row

    @property
    def epochs_since_best(self):
        return self.rows[-1]["epoch"] - self.best_row["epoch"] if self.best_row else 0

    def save(self):
        if self.path is not None:
            info = {"rows": self.rows, "best_row": self.best_row, "loss_sum": float(self.loss_sum),
                    "n_targets": self.n_targets, "skipped": self.skipped}
            checkpoint.save(self.path, self.model, self.optimizer, self.batches, self.seed, self.best, info,
                            self.loss_scale)

    def restore(self, saved):
        if saved.seed is not None and saved.seed != self.seed:
            raise checkpoint.CheckpointError(f"{self.path}: the run has seed {saved.seed}, not {self.seed}")
        try:
            self.rows, self.best_row = saved.info["rows"], saved.info["best_row"]
            self.loss_sum, self.n_targets, self.skipped = (saved.info[n] for n in ("loss_sum", "n_targets", "skipped"))
        except KeyError as error:
            raise checkpoint.CheckpointError(f"{self.path}: not a checkpoint of fit, it has no {error}") from None
        saved.restore(self.model, self.optimizer, self.batches, self.loss_scale)
        self.best = saved.best


def _score(row):
    return row["valid_accuracy"], -row["valid_loss"]


def write(file, **row):
    """Add a row of numbers to a JSON lines file, if there is one; null stands for what is not finite."""
    if file:
        row = {name: value if isinstance(value, int) else float(value) for name, value in row.items()}
        row = {name: value if math.isfinite(value) else None for name, value in row.items()}
        file.write(json.dumps(row) + "\n")
        file.flush()
