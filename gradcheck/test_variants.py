"""Feed-forwards and norms to swap for the usual ones, and recomputation."""

from tinyenc import EncoderLayer, FeedForward, GatedFeedForward, Recompute, ReLU, Sigmoid, SiLU

from .cases import CAUSAL, PACKED, Twice, case, checks, x

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
    case("recompute", Recompute(FeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4)),
    case("recompute-dropout", Recompute(FeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4), seed=1),
    case("recompute-causal-dropout", Recompute(EncoderLayer(8, 2, 6, 0.3, rng=0)), x(3, 5, 8), mask=CAUSAL, seed=1),
    case("recompute-packed", Twice(Recompute(EncoderLayer(8, 2, 6, 0.3, rng=0))), x(9, 8), mask=PACKED, seed=1),
]
test_gradients = checks(CASES)
