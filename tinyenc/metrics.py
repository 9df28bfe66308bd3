"""How well predicted classes agree with the labels. Predictions and labels are class ids of one shape, NumPy,
CuPy or lists; positions labelled IGNORE (-100) do not count; results are Python numbers or host arrays."""

import numpy as np

from .backend import to_host
from .data import IGNORE


def accuracy(predicted, labels):
    """The share of positions where the prediction is the label."""
    predicted, labels = _counted(predicted, labels)
    return float(np.mean(predicted == labels))


def confusion(predicted, labels, n_classes=None):
    """How often each class was taken for each: (C, C) int64, a row for each label, a column for each prediction.

    C is `n_classes`, or one more than the highest class that occurs. IndexError: a class outside 0 .. C - 1.
    """
    predicted, labels = _counted(predicted, labels)
    n = _number_of_classes(predicted, labels, n_classes)
    return np.bincount(labels * n + predicted, minlength=n * n).reshape(n, n)


def f1_macro(predicted, labels):
    """The mean over classes of 2 tp / (2 tp + fp + fn): rare classes weigh as much as common ones.

    The classes are those that occur, in the labels or in the predictions.
    """
    right, wrong = _right_and_wrong(predicted, labels)
    occurs = right + wrong > 0
    return float(np.mean(2 * right[occurs] / (2 * right + wrong)[occurs]))


def f1_micro(predicted, labels, classes=None):
    """2 tp / (2 tp + fp + fn), each summed over `classes`, all by default; 0.0 where none of them occurs.

    Over all classes it is the accuracy; leave out the one that says "nothing here" (`O` in tagging) to see
    how well the others are found.
    """
    right, wrong = _right_and_wrong(predicted, labels)
    if classes is not None:
        chosen = np.isin(np.arange(len(right)), list(classes))
        right, wrong = right[chosen], wrong[chosen]
    return float(2 * right.sum() / max(2 * right.sum() + wrong.sum(), 1))


def _right_and_wrong(predicted, labels):
    """For each class tp and fp + fn, two arrays (C,)."""
    predicted, labels = _counted(predicted, labels)
    n = _number_of_classes(predicted, labels)
    right = np.bincount(labels[predicted == labels], minlength=n)
    return right, np.bincount(predicted, minlength=n) + np.bincount(labels, minlength=n) - 2 * right


def _number_of_classes(predicted, labels, n_classes=None):
    """n_classes, or one more than the highest class that occurs; IndexError where one is outside."""
    lowest, highest = min(predicted.min(), labels.min()), max(predicted.max(), labels.max())
    n = highest + 1 if n_classes is None else n_classes
    if lowest < 0 or highest >= n:
        raise IndexError(f"class {lowest if lowest < 0 else highest} is not in 0 .. {n - 1}")
    return n


def _counted(predicted, labels):
    """Predictions and labels on the host, flat, without the positions that do not count."""
    predicted, labels = (np.asarray(to_host(x) if hasattr(x, "dtype") else x) for x in (predicted, labels))
    if predicted.shape != labels.shape:
        raise ValueError(f"predicted has shape {predicted.shape}, labels have {labels.shape}")
    counts = labels != IGNORE
    if not np.any(counts):
        raise ValueError("nothing to score: no labels, or every one is -100")
    for name, x in ("predicted", predicted), ("labels", labels):
        if x.dtype.kind not in "iu":
            raise ValueError(f"{name} must be class ids, not {x.dtype} (of logits: logits.argmax(-1))")
    return predicted[counts].astype(np.int64), labels[counts].astype(np.int64)
