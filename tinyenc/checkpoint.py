"""A run on disk: model, optimiser, place in the data and whatever else it takes to go on, in one safetensors file.

One file, because a file can be replaced in one motion: at every moment the path holds a whole checkpoint, the old
one or the new one. It holds plain arrays and JSON, so reading it executes nothing; arrays come from the CPU, so one
written from the GPU is read without CuPy. Needs the extra "checkpoint" (safetensors).
"""

import json
from operator import index
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .data.files import beside, write_atomically

PARTS = ("model", "optimizer", "best")
TRAINING = ("optimizer", "batches", "seed")  # what a run needs, all of it, to go on as if it had not stopped


class CheckpointError(ValueError):
    """A file is not a checkpoint that fits; the message begins with its name."""


class Checkpoint(NamedTuple):
    """What `save` was given. model, optimizer and best are state dicts; None stands for what was not saved."""

    path: str
    model: dict
    optimizer: dict | None
    best: dict | None
    batches: dict | None
    seed: int | None
    loss_scale: dict | None
    info: dict

    def restore(self, model, optimizer=None, batches=None, loss_scale=None):
        """Put the states back; CheckpointError names what is missing or does not fit, and then nothing was changed."""
        if optimizer is not None or batches is not None:
            needed = TRAINING if loss_scale is None else (*TRAINING, "loss_scale")
            missing = [name for name in needed if getattr(self, name) is None]
            if missing:
                raise CheckpointError(f"{self.path}: cannot go on from it, it lacks {', '.join(missing)}")
            if loss_scale is None and self.loss_scale is not None:
                raise CheckpointError(f"{self.path}: its run has a loss scale, and this one has none")
        targets = [("model", model), ("optimizer", optimizer), ("batches", batches), ("loss_scale", loss_scale)]
        targets = [(name, target, target.state_dict()) for name, target in targets if target is not None]
        try:
            for name, target, _ in targets:
                target.load_state_dict(getattr(self, name))
        except (ValueError, TypeError, KeyError) as error:
            for _, target, before in targets:
                target.load_state_dict(before)
            raise CheckpointError(f"{self.path}: {error}") from None


def save(path, model, optimizer=None, batches=None, seed=None, best=None, info=None, loss_scale=None):
    """Write a checkpoint to path, whole or not at all.

    To go on training from it, give the optimiser, the batches, the seed and, where it has one, the loss scale of the
    run. best: a state dict to keep beside the model's. info: a dict that JSON can hold (the configuration, the
    vocabulary, ...).
    """
    safetensors = _safetensors()
    if not isinstance(info, dict | None):
        raise TypeError(f"info must be a dict, got {info!r}"[:200])
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else None, "best": best}
    tensors = {f"{part}/{name}": np.asarray(array, order="C")
               for part, state in states.items() if state is not None for name, array in state.items()}
    plain = {"parts": [part for part in PARTS if states[part] is not None],
             "batches": batches.state_dict() if batches else None,
             "seed": seed if seed is None else index(seed),
             "loss_scale": loss_scale.state_dict() if loss_scale else None, "info": info or {}}
    write_atomically(path, safetensors.numpy.save(tensors, metadata={"tinyenc": json.dumps(plain)}))


def load(path):
    """Read a checkpoint; CheckpointError where the file cannot be read, is not whole, or is something else."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="np") as file:
            plain = json.loads((file.metadata() or {})["tinyenc"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        parts, *others = (plain[name] for name in ("parts", "batches", "seed", "loss_scale", "info"))
        batches, _, loss_scale, info = others
        if not (isinstance(parts, list) and isinstance(info, dict)
                and all(isinstance(state, dict | None) for state in (batches, loss_scale))):
            raise ValueError("its plain values are not those of a checkpoint")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except KeyError as error:
        raise CheckpointError(f"{path}: not a tinyenc checkpoint, it has no {error}") from None
    except (safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a checkpoint, or damaged: {error}") from None
    states = {part: {} if part in parts else None for part in PARTS}
    for name, array in tensors.items():
        part, _, rest = name.partition("/")
        if states.get(part) is None:
            raise CheckpointError(f"{path}: unexpected entry {name}")
        states[part][rest] = array
    if states["model"] is None:
        raise CheckpointError(f"{path}: it has no model")
    return Checkpoint(str(path), states["model"], states["optimizer"], states["best"], *others)


def check_place(path):
    """Raise, before any work, where no checkpoint could be saved to path or read from it."""
    _safetensors()
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise CheckpointError(f"{path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise CheckpointError(f"{path}: is a folder")
    part = beside(Path(path).resolve())
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None


def _safetensors():
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        raise RuntimeError('checkpoints need the safetensors library: pip install "tinyenc[checkpoint]"') from None
    return safetensors
