"""The parts that only pretrained models have."""

import numpy as np

from tinyenc import Encoder, EncoderLayer, LayerNorm, ReLU
from tinyenc.positions import LearnedPositions, NoPositions
from tinyenc.pretrained.embedding import BertEmbedding
from tinyenc.pretrained.head import MaskedTokenHead
from tinyenc.pretrained.modernbert import NoNorm

from .cases import PADDING, TOKENS, case, checks, ids, x

IDS = ids(3, 5)
TYPES = ids(3, 5, n=2)
PLACES = np.arange(5)


def embedding(dropout=0.3, positions=None, **options):
    return BertEmbedding(7, 4, positions or LearnedPositions(4, 8, rng=0), dropout=dropout, rng=0, **options)


def encoder(**options):
    return Encoder.from_parts(embedding(**options), [EncoderLayer(4, 2, 5, 0.3, rng=0)])


def without_bias(norm):
    norm.bias = None
    return norm


CASES = [
    case("norm-without-bias", without_bias(LayerNorm(4)), x(2, 3, 4)),
    case("no-norm", NoNorm(), x(2, 3, 4)),
    case("bert", embedding(), IDS, PLACES),
    case("bert-types", embedding(), IDS, PLACES, named={"types": TYPES}),
    case("bert-types-dropout", embedding(), IDS, PLACES, named={"types": TYPES}, seed=1),
    case("bert-no-types", embedding(n_types=0), IDS, PLACES, seed=1),
    case("bert-no-positions", embedding(positions=NoPositions()), IDS, PLACES, seed=1),
    case("bert-first-place", embedding(first_place=2), IDS, PLACES),
    case("bert-project", embedding(d_model=6), IDS, PLACES, named={"types": TYPES}, seed=1),
    case("encoder-types", encoder(), IDS, mask=TOKENS, named={"types": TYPES}, seed=1),
    case("encoder-types-four-axes", encoder(), IDS, mask=PADDING, named={"types": TYPES}),
    case("masked-tokens", MaskedTokenHead(Encoder(7, 4, 2, 5, 1, rng=0), rng=0), x(3, 5, 4)),
    case("masked-tokens-other-width", MaskedTokenHead(encoder(d_model=6, padding_idx=0), ReLU(), rng=0), x(3, 5, 6)),
]
test_gradients = checks(CASES)
