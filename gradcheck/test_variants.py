"""Norms and feed-forwards to swap for the usual ones."""

from tinyenc import GatedFeedForward, ReLU, Sigmoid, SiLU

from .cases import Twice, case, checks, x

CASES = [
    case("sigmoid", Sigmoid(), x(2, 3, 4, scale=2)),
    case("sigmoid-far-out", Sigmoid(), x(2, 3, 4, scale=20)),
    case("silu", SiLU(), x(2, 3, 4, scale=2)),
    case("silu-far-out", SiLU(), x(2, 3, 4, scale=20)),
    case("silu-blocks", SiLU(), x(2, 60, 700)),
    case("gated", GatedFeedForward(4, 6, dropout=0.3, rng=0), x(2, 3, 4)),
    case("gated-dropout", GatedFeedForward(4, 6, dropout=0.3, activation=SiLU(), rng=0), x(2, 3, 4), seed=1),
    case("gated-relu", GatedFeedForward(4, 6, dropout=0.0, activation=ReLU(), rng=0), x(2, 3, 4)),
    case("gated-used-twice", Twice(GatedFeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4), seed=1),
]
test_gradients = checks(CASES)
