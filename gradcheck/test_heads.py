"""Pooling, and the heads."""

import numpy as np

from tinyenc import Classifier, Encoder, FirstPool, MaxPool, MeanPool

from .cases import PADDING, TOKENS, case, checks, ids, x

STATES = x(3, 5, 4)
LEFT = np.array([[0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]])  # padding on the left, as 0/1 integers


def classifier(pool=None):
    return Classifier(Encoder(7, 4, 2, 5, 1, dropout=0.3, rng=0), 3, pool, dropout=0.3, rng=0)


CASES = [
    *(case(kind, pool, STATES, mask=mask)
      for pool in (FirstPool(), MeanPool(), MaxPool())
      for kind, mask in {"plain": None, "masked": TOKENS, "left": LEFT, "four-axes": PADDING}.items()),
    case("ties", MaxPool(), np.ones((3, 5, 4))),
    case("classifier", classifier(), ids(3, 5)),
    case("classifier-masked", classifier(), ids(3, 5), mask=TOKENS),
    case("classifier-masked-dropout", classifier(), ids(3, 5), mask=TOKENS, seed=1),
    case("classifier-first", classifier(FirstPool()), ids(3, 5), mask=TOKENS, seed=1),
    case("classifier-max", classifier(MaxPool()), ids(3, 5), mask=PADDING, seed=1),
]
test_gradients = checks(CASES)
