"""How well predicted classes agree with the labels. Predictions and labels are class ids of one shape, NumPy,
CuPy or lists; positions labelled IGNORE (-100) do not count; results are Python numbers or host arrays."""

from operator import index

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
    lowest, highest = int(min(predicted.min(), labels.min())), int(max(predicted.max(), labels.max()))
    n = highest + 1 if n_classes is None else index(n_classes)
    if lowest < 0 or highest >= n:
        raise IndexError(f"class {lowest if lowest < 0 else highest} is not in 0 .. {n - 1}")
    return np.bincount(labels * n + predicted, minlength=n * n).reshape(n, n)


def f1_macro(predicted, labels):
    """The mean over classes of 2 tp / (2 tp + fp + fn): rare classes weigh as much as common ones.

    The classes are those that occur, in the labels or in the predictions.
    """
    _, right, wrong = _right_and_wrong(predicted, labels)
    return float(np.mean(2 * right / (2 * right + wrong)))


def f1_micro(predicted, labels, classes=None):
    """2 tp / (2 tp + fp + fn), each summed over `classes`, all by default; 0.0 where none of them occurs.

    Over all classes it is the accuracy; leave out the one that says "nothing here" (`O` in tagging) to see
    how well the others are found.
    """
    occurring, right, wrong = _right_and_wrong(predicted, labels)
    if classes is not None:
        classes = np.asarray(list(classes))
        if classes.size and classes.dtype.kind not in "iu":
            raise ValueError(f"classes must be class ids, not {classes.dtype}")
        chosen = np.isin(occurring, classes)
        right, wrong = right[chosen], wrong[chosen]
    return float(2 * right.sum() / max(2 * right.sum() + wrong.sum(), 1))


def _right_and_wrong(predicted, labels):
    """The classes that occur, and for each tp and fp + fn, three arrays (C,). IndexError: a class below 0."""
    predicted, labels = _counted(predicted, labels)
    classes, both = np.unique([predicted, labels], return_inverse=True)
    if classes[0] < 0:
        raise IndexError(f"class {classes[0]} is below 0")
    predicted, labels = both.reshape(2, -1)  # which of the classes each is
    right, taken, true = (np.bincount(x, minlength=len(classes))
                          for x in (labels[predicted == labels], predicted, labels))
    return classes, right, taken + true - 2 * right


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
