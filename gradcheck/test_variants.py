"""Feed-forwards and norms to swap for the usual ones, and recomputation."""

import numpy as np

from tinyenc import (
    BatchNorm,
    BatchNormEncoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    Recompute,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
)

from .cases import CAUSAL, PACKED, PADDING, TOKENS, Twice, case, checks, ids, x

ALL_PADDING = np.zeros((3, 1, 1, 5), bool)


def batch_norm_layer():
    return settled(BatchNormEncoderLayer(8, 2, 6, 0.3, rng=0))


def settled(layer):
    """layer, its running statistics away from where they start."""
    for _, array in layer.named_arrays():
        if not hasattr(array, "grad"):
            array.data = array.data + x(*array.shape) ** 2
    return layer



CASES = [
    case("sigmoid", Sigmoid(), x(2, 3, 4, scale=2)),
    case("sigmoid-far-out", Sigmoid(), x(2, 3, 4, scale=20)),
    case("silu", SiLU(), x(2, 3, 4, scale=2)),
    case("silu-far-out", SiLU(), x(2, 3, 4, scale=20)),
    case("silu-blocks", SiLU(), x(2, 100, 700)),
    case("gated", GatedFeedForward(4, 6, dropout=0.3, rng=0), x(2, 3, 4)),
    case("gated-dropout", GatedFeedForward(4, 6, dropout=0.3, activation=SiLU(), rng=0), x(2, 3, 4), seed=1),
    case("gated-relu", GatedFeedForward(4, 6, dropout=0.0, activation=ReLU(), rng=0), x(2, 3, 4)),
    case("gated-used-twice", Twice(GatedFeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4), seed=1),
    case("batch-norm", settled(BatchNorm(4)), x(2, 3, 4)),
    case("batch-norm-masked", settled(BatchNorm(4)), x(3, 5, 4), mask=PADDING),
    case("batch-norm-batch", settled(BatchNorm(4)), x(2, 3, 4), seed=1),
    case("batch-norm-batch-masked", settled(BatchNorm(4)), x(3, 5, 4), mask=PADDING, seed=1),
    case("batch-norm-per-query", settled(BatchNorm(4)), x(3, 5, 4), mask=CAUSAL, seed=1),
    case("batch-norm-packed", settled(BatchNorm(4)), x(9, 4), mask=PACKED, seed=1),
    case("batch-norm-all-padding", settled(BatchNorm(4)), x(3, 5, 4), mask=ALL_PADDING, seed=1),
    case("batch-norm-large-mean", BatchNorm(4, eps=0.1), 100 + x(2, 3, 4), seed=1),
    case("batch-norm-used-twice", Twice(settled(BatchNorm(4))), x(3, 5, 4), mask=PADDING, seed=1),
    case("batch-norm-layer", batch_norm_layer(), x(3, 5, 8)),
    case("batch-norm-layer-masked", batch_norm_layer(), x(3, 5, 8), mask=PADDING, seed=1),
    case("batch-norm-layer-causal", batch_norm_layer(), x(3, 5, 8), mask=CAUSAL),
    case("batch-norm-layer-packed", batch_norm_layer(), x(9, 8), mask=PACKED, seed=1),
    case("encoder-batch-norm", Encoder(7, 4, 2, 5, 1, layer=BatchNormEncoderLayer, rng=0), ids(3, 5),
         mask=TOKENS, seed=1),
    case("encoder-rms-gated", Encoder(7, 4, 2, 5, 2, norm=RMSNorm, ffn=GatedFeedForward, activation=SiLU(), rng=0),
         ids(3, 5), mask=TOKENS, seed=1),
    case("recompute", Recompute(FeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4)),
    case("recompute-dropout", Recompute(FeedForward(4, 6, dropout=0.3, rng=0)), x(2, 3, 4), seed=1),
    case("recompute-causal-dropout", Recompute(EncoderLayer(8, 2, 6, 0.3, rng=0)), x(3, 5, 8), mask=CAUSAL, seed=1),
    case("recompute-packed", Twice(Recompute(EncoderLayer(8, 2, 6, 0.3, rng=0))), x(9, 8), mask=PACKED, seed=1),
]
test_gradients = checks(CASES)
