"""Attention cores beside DotProduct, alone and inside the heads."""

import numpy as np

from tinyenc import MultiHeadAttention
from tinyenc.attention import CausalLinearAttention, LinearAttention, SlidingWindow, Tiled
from tinyenc.distance import RelativeBias
from tinyenc.positions import ALiBi, T5Buckets

from .cases import CAUSAL, PACKED, PADDING, case, checks, x

Q = x(3, 2, 5, 4)  # B, H, T, K
K = x(3, 2, 5, 4, seed=1)
V = x(3, 2, 5, 4, seed=2)
CROSS_K = x(3, 2, 7, 4)
CROSS_V = x(3, 2, 7, 4, seed=1)
HIDDEN = np.arange(7) % 3 > 0  # keys hidden in the middle
BIAS = RelativeBias(x(2, 9))
SELF = x(3, 5, 8)
FLAT = x(9, 8)  # packed


def tiled(dropout=0.0):
    return Tiled(dropout, queries=2, keys=3)  # tiles that do not fill 5 x 5 or 5 x 7


def sliding(width, n_global=0, dropout=0.0):
    core = SlidingWindow(width, n_global, dropout)
    core.queries, core.keys = 2, 3  # several tiles, in a short sequence
    return core


def heads(core, positions=None):
    return MultiHeadAttention(8, 2, attend=core, positions=positions, rng=0)


CASES = [
    case("tiled", tiled(), Q, K, V),
    case("tiled-cross", tiled(), Q, CROSS_K, CROSS_V),
    case("tiled-cross-masked-dropout", tiled(0.3), Q, CROSS_K, CROSS_V, mask=HIDDEN[None, None, None], seed=1),
    case("tiled-masked", tiled(0.3), Q, K, V, mask=PADDING),
    case("tiled-causal", tiled(), Q, K, V, mask=CAUSAL),
    case("tiled-causal-dropout", tiled(0.3), Q, K, V, mask=CAUSAL, seed=1),
    case("tiled-bias", tiled(0.3), Q, K, V, PADDING, BIAS, seed=1),
    case("tiled-packed", heads(tiled(0.3)), FLAT, FLAT, mask=PACKED, seed=1),
    case("tiled-t5", heads(tiled(0.3), T5Buckets(2, 8, 6, rng=0)), SELF, SELF, mask=CAUSAL, seed=1),
    case("sliding", sliding(1), Q, K, V),
    case("sliding-masked", sliding(2), Q, K, V, mask=PADDING),
    case("sliding-causal-dropout", sliding(2, 0, 0.3), Q, K, V, mask=CAUSAL, seed=1),
    case("sliding-global", sliding(1, 1), Q, K, V),
    case("sliding-global-dropout", sliding(1, 2, 0.3), Q, K, V, mask=PADDING, seed=1),
    case("sliding-global-all", sliding(1, 9), Q, K, V),
    case("sliding-bias-dropout-off", sliding(1, 1, 0.3), Q, K, V, PADDING, BIAS),
    case("sliding-alibi", heads(sliding(1, 1, 0.3), ALiBi(2)), SELF, SELF, mask=PADDING, seed=1),
    case("sliding-t5", heads(sliding(2, 1), T5Buckets(2, 8, 6, rng=0)), SELF, SELF),
    case("sliding-packed", heads(sliding(1, 1, 0.3)), FLAT, FLAT, mask=PACKED, seed=1),
    case("linear", LinearAttention(), Q, K, V),
    case("linear-cross", LinearAttention(), Q, CROSS_K, CROSS_V),
    case("linear-masked", LinearAttention(), Q, K, V, mask=PADDING),
    case("linear-packed", heads(LinearAttention()), FLAT, FLAT, mask=PACKED),
    case("linear-causal", CausalLinearAttention(chunk=2), Q, K, V),
    case("linear-causal-masked", CausalLinearAttention(chunk=2), Q, K, V, mask=PADDING),
    case("linear-causal-one-chunk", CausalLinearAttention(), Q, K, V),
    case("linear-causal-packed", heads(CausalLinearAttention(chunk=2)), FLAT, FLAT, mask=PACKED),
]
test_gradients = checks(CASES)
