"""Layers that act on each position by itself."""

import numpy as np

from tinyenc import GELU, NO_TAPE, Dropout, Embedding, FeedForward, GELUTanh, Layer, LayerNorm, Linear, ReLU, RMSNorm

from .cases import Twice, case, checks, ids, x


class FixedPadding(Layer):
    """An embedding whose padding row is a constant to whoever comes after, while its backward is not told."""

    def __init__(self, embedding):
        self.embedding = embedding
        self.row = embedding.weight.data[embedding.padding_idx].copy()

    def forward(self, ids, tape=NO_TAPE):
        rows = self.embedding.forward(ids, tape)
        return np.where((ids == self.embedding.padding_idx)[..., None], self.row, rows)

    def backward(self, dy, tape):
        return self.embedding.backward(dy, tape)


CASES = [
    case("linear", Linear(3, 5, rng=0), x(2, 4, 3)),
    case("square", Linear(4, 4, rng=0), x(2, 3, 4)),
    case("no-bias", Linear(3, 5, bias=False, rng=0), x(2, 4, 3)),
    case("matrix", Linear(3, 5, rng=0), x(4, 3)),
    case("one-row", Linear(3, 5, rng=0), x(1, 1, 3)),
    case("half-precision-input", Linear(3, 5, rng=0), x(2, 4, 3).astype(np.float16)),
    case("linear-used-twice", Twice(Linear(3, 5, rng=0)), x(2, 4, 3)),
    case("embedding", Embedding(7, 4, rng=0), ids(3, 5)),
    case("scaled", Embedding(7, 4, scale=3.0, rng=0), ids(3, 5)),
    case("padding-row", FixedPadding(Embedding(7, 4, scale=3.0, padding_idx=2, rng=0)), ids(3, 5)),
    case("layer-norm", LayerNorm(4), x(2, 3, 4)),
    case("large-mean", LayerNorm(6), 2000 + x(2, 3, 6)),
    case("small-variance", LayerNorm(6, eps=1e-5), x(2, 3, 6, scale=1e-3)),
    case("constant-row", LayerNorm(4), np.concatenate([x(2, 2, 4), np.ones((2, 1, 4))], axis=1)),
    case("large-eps", LayerNorm(4, eps=0.5), x(2, 3, 4)),
    case("blocks", LayerNorm(700), x(2, 100, 700)),
    case("norm-used-twice", Twice(LayerNorm(4)), x(2, 3, 4)),
    case("rms-norm", RMSNorm(4), x(2, 3, 4)),
    case("rms-small", RMSNorm(6, eps=1e-2), x(2, 3, 6, scale=1e-2)),
    case("rms-blocks", RMSNorm(700), x(2, 100, 700)),
    case("dropout-off", Dropout(0.3), x(2, 3, 4)),
    case("dropout-frozen", Dropout(0.3), x(2, 3, 4), seed=1),
    case("dropout-zero", Dropout(0.0), x(2, 3, 4), seed=1),
    case("used-twice-dropout", Twice(Dropout(0.3)), x(2, 3, 4), seed=1),
    case("relu", ReLU(), x(2, 3, 4)),
    case("at-zero", ReLU(), np.zeros((2, 3, 4))),
    case("gelu", GELU(), x(2, 3, 4, scale=2)),
    case("far-out", GELU(), x(2, 3, 4, scale=8)),
    case("gelu-blocks", GELU(), x(2, 100, 700)),
    case("gelu-tanh", GELUTanh(), x(2, 3, 4, scale=2)),
    case("tanh-far-out", GELUTanh(), x(2, 3, 4, scale=8)),
    case("feed-forward", FeedForward(4, 6, dropout=0.3, rng=0), x(2, 3, 4)),
    case("feed-forward-dropout", FeedForward(4, 6, dropout=0.3, rng=0), x(2, 3, 4), seed=1),
    case("feed-forward-relu", FeedForward(4, 6, dropout=0.0, activation=ReLU(), rng=0), x(2, 3, 4)),
    case("feed-forward-at-zero", FeedForward(4, 6, dropout=0.3, activation=ReLU(), rng=0), np.zeros((2, 3, 4)), seed=1),
]
test_gradients = checks(CASES)
