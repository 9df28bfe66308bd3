"""Losses: layers whose forward returns one number."""

import numpy as np

from .backend import array_module, as_array, like
from .layer import Layer
from .ops import log_softmax, rows
from .tape import NO_TAPE


class CrossEntropy(Layer):
    """The mean over the targets that count of -sum of q log softmax(logits), computed in float32 or wider.

    q puts 1 - label_smoothing on the target and spreads label_smoothing evenly over all V classes, the target's
    own included (Szegedy et al. 2016; PyTorch's rule). Targets equal to ignore do not count; where none does, the
    loss and its gradients are exactly 0.

    logits: (..., V); targets: (...) integers. The loss is a 0-d array where the logits are; float(loss) reads it.
    """

    def __init__(self, label_smoothing=0.0, ignore=-100):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing
        self.ignore = ignore

    def forward(self, logits, targets, tape=NO_TAPE):
        targets = as_array(targets)
        check_targets(targets, logits.shape, self.ignore)
        targets = like(targets, logits)
        counted = targets != self.ignore
        at = np.where(counted, targets, 0)[..., None]
        logp = log_softmax(logits)
        losses = array_module(logp).take_along_axis(logp, at, axis=-1)[..., 0] * -(1 - self.label_smoothing)
        if self.label_smoothing:
            losses -= logp.mean(axis=-1) * self.label_smoothing
        n = counted.sum().clip(1).astype(logp.dtype)
        tape.push(self, logp, at, counted, n, logits.dtype)
        return np.where(counted, losses, 0).sum() / n

    def backward(self, dloss, tape):
        """softmax(logits) - q, for each target that counts."""
        logp, at, counted, n, dtype = tape.pop(self)
        dlogits = rows(np.exp(logp))
        dlogits -= self.label_smoothing / logp.shape[-1]
        dlogits[array_module(logp).arange(len(dlogits)), at.ravel()] -= 1 - self.label_smoothing
        dlogits *= (counted * (dloss / n)).reshape(-1, 1)
        return dlogits.reshape(logp.shape).astype(dtype, copy=False)

    def count(self, targets):
        """How many targets count, as an int."""
        return int((as_array(targets) != self.ignore).sum())


def check_targets(targets, logits_shape, ignore):
    """Raise unless targets are integers, of the logits' leading shape, each a class or ignore."""
    *lead, n_classes = logits_shape
    if targets.dtype.kind not in "iu":
        raise TypeError(f"targets must be integers, got {targets.dtype}")
    if targets.shape != tuple(lead):
        raise ValueError(f"targets of shape {targets.shape} do not fit logits of shape {tuple(logits_shape)}")
    wrong = targets[(targets != ignore) & ((targets < 0) | (targets >= n_classes))]
    if wrong.size:
        raise IndexError(f"target {int(wrong.flat[0])} is not one of {n_classes} classes, nor {ignore}, to ignore")
