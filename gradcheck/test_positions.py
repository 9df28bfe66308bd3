"""Positions told on the embeddings; those told inside attention are in test_attention.py."""

import numpy as np

from tinyenc.positions import LearnedPositions, Positions, SinusoidalPositions

from .cases import PACKED, case, checks, x

PLACES = np.arange(5)

CASES = [
    case("none", Positions(), x(3, 5, 4), PLACES),
    case("sinusoids", SinusoidalPositions(4), x(3, 5, 4), PLACES),
    case("sinusoids-packed", SinusoidalPositions(4), x(9, 4), PACKED.positions),
    case("learned", LearnedPositions(4, 6, rng=0), x(3, 5, 4), PLACES),
    case("learned-packed", LearnedPositions(4, 6, rng=0), x(9, 4), PACKED.positions),
]
test_gradients = checks(CASES)
