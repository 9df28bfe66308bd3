"""Attention: cores, and the heads around them."""

from tinyenc import MultiHeadAttention, Parameter
from tinyenc.attention import DotProduct
from tinyenc.attention.per_sequence import PerSequence
from tinyenc.positions import ALiBi, NoPositions, RelativeBias, Rotary, T5Buckets
from tinyenc.tape import NO_TAPE

from .cases import CAUSAL, MEMORY, PACKED, PADDING, case, checks, x

Q = x(3, 2, 5, 4)  # B, H, T, K
K = x(3, 2, 5, 4, seed=1)
V = x(3, 2, 5, 4, seed=2)
CROSS_K = x(3, 2, 6, 4)
CROSS_V = x(3, 2, 6, 4, seed=1)
H_Q = x(2, 9, 4)  # H, N, K: packed
H_K = x(2, 9, 4, seed=1)
H_V = x(2, 9, 4, seed=2)
BIAS = RelativeBias(x(2, 9))
SELF = x(3, 5, 8)
FLAT = x(9, 8)  # packed
MANY = x(3, 190, 4)  # more scores than are looked at together


class EqualLengths(DotProduct):
    """Gets sequences of one length together, and no padding, as a core that says nothing of it."""

    takes_padding = False


class KeyScale(DotProduct):
    """A core with a parameter: a factor for each head and place of the keys."""

    def __init__(self, n_heads, width):
        super().__init__()
        self.factor = Parameter(x(n_heads, 1, width))

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        tape.push(self, k)
        return super().forward(q, k * self.factor.data, v, mask, bias, tape)

    def backward(self, dy, tape):
        dq, dk, dv = super().backward(dy, tape)
        (k,) = tape.pop(self)
        self.factor.grad += (dk * k).sum(axis=(0, 2))[:, None]
        return dq, dk * self.factor.data, dv


def attention(dropout=0.0, positions=None, attend=None):
    return MultiHeadAttention(8, 2, dropout, attend, positions, rng=0)


CASES = [
    case("core", DotProduct(), Q, K, V),
    case("core-cross", DotProduct(), Q, CROSS_K, CROSS_V),
    case("core-wide-values", DotProduct(), Q, CROSS_K, x(3, 2, 6, 3)),
    case("core-masked", DotProduct(), Q, K, V, mask=PADDING),
    case("core-causal", DotProduct(), Q, K, V, mask=CAUSAL),
    case("core-masked-dropout", DotProduct(0.3), Q, K, V, mask=CAUSAL, seed=1),
    case("core-dropout-off", DotProduct(0.3), Q, K, V, mask=CAUSAL),
    case("core-bias", DotProduct(0.3), Q, K, V, PADDING, BIAS, seed=1),
    case("core-used-twice", DotProduct(0.3), Q, Q, V, mask=PADDING, seed=1),
    case("parts", PerSequence(DotProduct(0.3)), Q, K, V),
    case("parts-masked", PerSequence(DotProduct(0.3)), Q, K, V, mask=CAUSAL),
    case("parts-dropout", PerSequence(DotProduct(0.3)), Q, K, V, mask=PADDING, seed=1),
    case("parts-packed", PerSequence(DotProduct(0.3)), H_Q, H_K, H_V, mask=PACKED, seed=1),
    case("parts-bias", PerSequence(DotProduct()), Q, K, V, PADDING, BIAS),
    case("parts-with-parameters", PerSequence(KeyScale(2, 4)), H_Q, H_K, H_V, mask=PACKED),
    case("self", attention(), SELF, SELF),
    case("self-apart", attention(), SELF, x(3, 5, 8, seed=1)),
    case("cross", attention(), SELF, x(3, 6, 8)),
    case("cross-masked", attention(), SELF, x(3, 6, 8), mask=MEMORY),
    case("cross-masked-dropout", attention(0.3), SELF, x(3, 6, 8), mask=MEMORY, seed=1),
    case("dropout-off", attention(0.3), SELF, SELF, mask=PADDING),
    case("causal-dropout", attention(0.3), SELF, SELF, mask=CAUSAL, seed=1),
    case("packed", attention(), x(9, 8), x(9, 8, seed=1), mask=PACKED),
    case("packed-dropout", attention(0.3), x(9, 8), x(9, 8, seed=1), mask=PACKED, seed=1),
    case("many-parts", MultiHeadAttention(4, 2, rng=0), MANY, x(3, 190, 4, seed=1)),
    case("no-positions", attention(positions=NoPositions()), SELF, SELF),
    case("rotary", attention(positions=Rotary()), SELF, SELF, mask=PADDING),
    case("rotary-packed-dropout", attention(0.3, Rotary(100.0)), FLAT, FLAT, mask=PACKED, seed=1),
    case("alibi", attention(positions=ALiBi(2)), SELF, SELF, mask=CAUSAL),
    case("alibi-packed", attention(0.3, ALiBi(2)), FLAT, FLAT, mask=PACKED, seed=1),
    case("t5", attention(0.3, T5Buckets(2, 8, 6, rng=0)), SELF, SELF, mask=PADDING, seed=1),
    case("t5-packed", attention(0.3, T5Buckets(2, 8, 6, rng=0)), FLAT, FLAT, mask=PACKED, seed=1),
    case("t5-packed-equal-lengths", attention(0.0, T5Buckets(2, 8, 6, rng=0), EqualLengths()), FLAT, FLAT, mask=PACKED),
    case("t5-causal", attention(0.0, T5Buckets(2, 4, 6, both_sides=False, rng=0)), SELF, SELF, mask=CAUSAL),
    case("t5-many-parts", MultiHeadAttention(4, 2, positions=T5Buckets(2, rng=0), rng=0), MANY, MANY),
]
test_gradients = checks(CASES)
