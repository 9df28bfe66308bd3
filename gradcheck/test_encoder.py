"""Encoder layers, the embedding, and the whole encoder."""

import numpy as np

from tinyenc import Embedding, Encoder, EncoderLayer, PostLNEncoderLayer, ReLU, SinusoidalPositions, TokenEmbedding
from tinyenc.positions import LearnedPositions, Rotary, T5Buckets

from .cases import CAUSAL, PACKED, PADDING, TOKENS, Twice, case, checks, ids, x

X = x(3, 5, 8)
IDS = ids(3, 5)


def encoder(layer=EncoderLayer, dropout=0.3, n_layers=1, **options):
    return Encoder(7, 4, 2, 5, n_layers, dropout=dropout, layer=layer, rng=0, **options)


def pre(dropout=0.3, **options):
    return EncoderLayer(8, 2, 6, dropout, rng=0, **options)


def post(dropout=0.3, **options):
    return PostLNEncoderLayer(8, 2, 6, dropout, rng=0, **options)


CASES = [
    case("pre", pre(), X),
    case("pre-masked", pre(), X, mask=PADDING),
    case("pre-causal-dropout", pre(), X, mask=CAUSAL, seed=1),
    case("pre-packed-dropout", pre(), x(9, 8), mask=PACKED, seed=1),
    case("pre-relu", pre(activation=ReLU()), X, seed=1),
    case("pre-used-twice", Twice(pre()), X, mask=PADDING, seed=1),
    case("post", post(), X),
    case("post-masked", post(), X, mask=PADDING),
    case("post-causal-dropout", post(), X, mask=CAUSAL, seed=1),
    case("post-packed-dropout", post(), x(9, 8), mask=PACKED, seed=1),
    case("post-used-twice", Twice(post()), X, mask=PADDING, seed=1),
    case("embed", TokenEmbedding(Embedding(7, 4, 2.0, rng=0), SinusoidalPositions(4), 0.3), IDS, np.arange(5)),
    case("embed-dropout", TokenEmbedding(Embedding(7, 4, 2.0, rng=0), SinusoidalPositions(4), 0.3), IDS,
         np.arange(5), seed=1),
    case("encoder", encoder(), IDS),
    case("encoder-two-layers-dropout", encoder(n_layers=2), IDS, mask=TOKENS, seed=1),
    case("encoder-padded", encoder(), IDS, mask=TOKENS),
    case("encoder-causal-dropout", encoder(), IDS, mask=CAUSAL, seed=1),
    case("encoder-holes", encoder(), IDS, mask=np.array([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]), seed=1),
    case("encoder-padding-row", encoder(padding_idx=6), IDS % 6, mask=TOKENS, seed=1),
    case("encoder-used-twice", Twice(encoder()), IDS, mask=TOKENS, seed=1),
    case("encoder-post-dropout", encoder(PostLNEncoderLayer, n_layers=2), IDS, mask=TOKENS, seed=1),
    case("encoder-learned", encoder(positions=LearnedPositions(4, 6, rng=0)), IDS, mask=TOKENS, seed=1),
    case("encoder-rotary", encoder(positions=Rotary()), IDS, mask=TOKENS, seed=1),
    case("encoder-t5", encoder(n_layers=2, positions=T5Buckets(2, 8, 6, rng=0)), IDS, mask=TOKENS, seed=1),
]
test_gradients = checks(CASES)
