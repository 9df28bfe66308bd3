"""Losses."""

import numpy as np

from tinyenc import CrossEntropy

from .cases import case, checks, x

LOGITS = x(3, 4, 5)
TARGETS = np.array([[0, 4, -100, 2], [1, 1, 0, -100], [-100, 3, 2, 2]])

CASES = [
    case("cross-entropy", CrossEntropy(), LOGITS, np.where(TARGETS < 0, 1, TARGETS)),
    case("ignored", CrossEntropy(), LOGITS, TARGETS),
    case("smoothed", CrossEntropy(label_smoothing=0.1), LOGITS, TARGETS),
    case("another-ignored", CrossEntropy(ignore=2), LOGITS, np.where(TARGETS < 0, 1, TARGETS)),
    case("all-ignored", CrossEntropy(0.1), LOGITS, np.full((3, 4), -100)),
    case("large-logits", CrossEntropy(0.1), x(3, 4, 5, scale=30), TARGETS),
    case("one-axis", CrossEntropy(0.1), x(4, 5), TARGETS[0]),
    case("blocks", CrossEntropy(0.1), x(200, 700), np.arange(200)),
]
test_gradients = checks(CASES)
