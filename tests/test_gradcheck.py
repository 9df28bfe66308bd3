"""The harness that checks derivatives: it finds what is wrong, says what it is, and touches nothing."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
from slips import SLIPS, Norm, message, with_slip

from tinyenc import (
    GELU,
    NO_TAPE,
    CrossEntropy,
    Dropout,
    Embedding,
    Encoder,
    EncoderLayer,
    FeedForward,
    GELUTanh,
    Layer,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    Parameter,
    ReLU,
    RMSNorm,
    Tape,
    causal_mask,
    padding_mask,
)
from tinyenc.attention import DotProduct
from tinyenc.distance import RelativeBias, distances
from tinyenc.gradcheck import GradientError, check_gradients
from tinyenc.gradcheck.check import checker
from tinyenc.gradcheck.probe import Probe, Slope, in_scattered_memory
from tinyenc.ops import rms_normalise_backward
from tinyenc.positions import ALiBi, LearnedPositions, NoPositions, Positions, Rotary

X = np.random.default_rng(0).standard_normal((2, 3, 4))


def words(text):
    """The text on one line, with single spaces."""
    return " ".join(text.split())


# What is wrong is found and named


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.kind.replace(" ", "-"))
def test_slip_is_found_and_named(slip):
    assert words(slip.says) in words(message(slip))


def test_slips_are_of_twelve_kinds_or_more_in_three_layers():
    assert len({slip.kind for slip in SLIPS}) == len(SLIPS) >= 12
    assert len({slip.layer for slip in SLIPS}) == 3


def test_failure_is_a_table_of_every_gradient_with_the_worst_place():
    lines = message(SLIPS[3]).splitlines()
    assert lines[0] == "Norm: 1 of 2 gradients is wrong"
    assert lines[2].split() == "gradient of shape by backward by differences error worst at".split()
    assert lines[3].split()[:4] == ["x", "(2,", "3,", "4)"]
    weight = lines[4].split()
    assert weight[0] == "weight" and weight[-3:] == ["[2]", "<-", "wrong"]
    backward, differences, error = map(float, weight[2:5])
    assert differences == pytest.approx(6 * backward, rel=1e-7) and error == pytest.approx(5 / 6, rel=0.01)


def test_a_long_table_shows_the_wrong_gradients_and_counts_the_right_ones():
    class Halved(Linear):
        def backward(self, dy, tape):
            return 0.5 * super().backward(dy, tape)

    layer = EncoderLayer(4, 2, 6, rng=0)
    layer.ffn.w_2 = Halved(6, 4, rng=0)
    title, _, head, *lines = message_of(layer, X).splitlines()
    wrong = int(title.split()[1])
    assert 0 < wrong < 17 and title == f"EncoderLayer: {wrong} of 17 gradients are wrong"
    assert all(line.endswith("<- wrong") for line in lines[:wrong])
    assert lines[wrong:wrong + 2] == [f"  and {17 - wrong} right ones", ""]
    assert lines[wrong + 2].startswith("  * ffn.w_2 (Halved) is the first layer in backward order that is wrong")


def test_error_is_an_assertion_error():
    assert issubclass(GradientError, AssertionError)


class Faulty(Layer):
    """3 x + weight, whose forward and backward are given."""

    def __init__(self, forward=lambda self, x: 3 * x + self.weight.data, backward=lambda self, dy, x: 3 * dy):
        self.weight = Parameter(np.ones(4, np.float32))
        self.run_forward = forward
        self.run_backward = backward

    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        return self.run_forward(self, x)

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        self.weight.grad += dy.sum(axis=(0, 1))
        return self.run_backward(self, dy, x)


def message_of(layer, *inputs, **options):
    with pytest.raises(GradientError) as caught:
        check_gradients(layer, *(inputs or (X,)), **options)
    return str(caught.value)


def says(layer, *inputs, **options):
    return words(message_of(layer, *inputs, **options))


def test_a_right_layer_passes():
    assert check_gradients(Faulty(), X).error < 1e-9


def change_x(self, x):
    x += 1
    return 3 * x


def change_weight(self, x):
    self.weight.data += 1
    return 3 * x + self.weight.data


@pytest.mark.parametrize("forward, text", [
    (lambda self, x: (x, x), "Faulty.forward returns a tuple, not one array"),
    (lambda self, x: np.float32(x), "Faulty.forward returns float32 where inputs and parameters are float64"),
    (lambda self, x: np.where(x == x[1, 2, 0], np.inf, x), "returns inf at [1, 2, 0], and 1 of 24 numbers"),
    (change_x, "Faulty.forward changes x in place; it is the caller's"),
    (change_weight, "Faulty.forward changes the parameter weight; only an optimiser may"),
], ids=["tuple", "float32", "infinity", "changes-x", "changes-weight"])
def test_broken_forward_is_named_as_itself(forward, text):
    assert text in says(Faulty(forward))


@pytest.mark.parametrize("backward, text", [
    (lambda self, dy, x: (dy, dy), "Faulty.backward returns 2 gradients for 1 float inputs (x)"),
    (lambda self, dy, x: None, "Faulty.backward returns 0 gradients for 1 float inputs (x)"),
    (lambda self, dy, x: 3.0, "Faulty.backward returns, for x, a float, not an array"),
    (lambda self, dy, x: 3 * dy[:1], "for x, a gradient of shape (1, 3, 4) for an array of shape (2, 3, 4)"),
    (lambda self, dy, x: 3 * dy.T, "a gradient of shape (4, 3, 2) for an array of shape (2, 3, 4): transposed"),
    (lambda self, dy, x: (3 * dy).astype(np.float32), "for x, float32 where inputs and parameters are float64"),
    (lambda self, dy, x: 3 * dy * np.where(x == x[1, 0, 2], np.nan, 1),
     "Faulty.backward returns, for x, nan at [1, 0, 2], and 1 of 24 numbers are not finite"),
    (lambda self, dy, x: dy.__imul__(3), "Faulty.backward changes dy in place"),
    (lambda self, dy, x: x.__imul__(0) + 3 * dy, "Faulty.backward changes x in place"),
], ids=["two", "none", "number", "shape", "transposed", "float32", "nan", "changes-dy", "changes-x"])
def test_broken_backward_is_named_as_itself(backward, text):
    assert text in says(Faulty(backward=backward))


class Leaky(Linear):
    """Linear, with a float64 scalar on its way."""

    output = dx = grad = 1.0

    def forward(self, x, tape=NO_TAPE):
        return super().forward(x, tape) * self.output

    def backward(self, dy, tape):
        dx = super().backward(dy, tape)
        self.weight.grad = self.weight.grad * self.grad
        return dx * self.dx


@pytest.mark.parametrize("where, text", [
    ("output", "Leaky.forward turns float32 into float64: an array, or a NumPy scalar, of that dtype takes part"),
    ("dx", "Leaky.backward turns float32, for x, into float64"),
    ("grad", "Leaky.backward leaves in weight.grad, where all is float32, float64"),
])
def test_a_leak_of_float64_is_named(where, text):
    layer = Leaky(4, 5, rng=0)
    assert check_gradients(layer, X).error < 1e-7
    setattr(layer, where, np.sqrt(np.float64(1.0)))
    assert says(layer).startswith(text)
    assert "* layers.0: " + text in says(InARow(layer, ReLU()))


def test_float64_in_an_object_that_is_given_is_its_givers_choice():
    class AddBias(Layer):
        def forward(self, x, bias, tape=NO_TAPE):
            return x + bias.values

        def backward(self, dy, tape):
            return dy

    x = np.random.default_rng(1).standard_normal((2, 3, 3))
    assert check_gradients(AddBias(), x, RelativeBias(np.ones((2, 5)))).error < 1e-7


def test_a_gradient_of_a_parameter_of_the_wrong_shape_is_named():
    class Wrong(Faulty):
        def backward(self, dy, tape):
            tape.pop(self)
            self.weight.grad = dy.sum(axis=0)
            return 3 * dy

    assert "leaves in weight.grad a gradient of shape (3, 4) for an array of shape (4,)" in says(Wrong())


def test_random_numbers_beside_the_tape_are_named():
    class Noise(Layer):
        def forward(self, x, tape=NO_TAPE):
            return x + np.random.default_rng().standard_normal(x.shape)

        def backward(self, dy, tape):
            return dy

    assert "Noise.forward is not deterministic: two runs with Tape(seed=None) differ" in says(Noise())
    assert "two runs with Tape(seed=5) differ" in says(Noise(), X, seed=5)


def test_a_layer_that_behaves_otherwise_without_a_tape_is_named():
    class Shy(Layer):
        def forward(self, x, tape=NO_TAPE):
            return x * 2 if tape.keep else x * 3

        def backward(self, dy, tape):
            return dy * 2

    assert "Shy.forward returns something else without a tape than with one" in says(Shy())


def test_a_forward_without_a_tape_is_refused():
    class Old(Layer):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match="Old.forward must take tape=NO_TAPE"):
        check_gradients(Old(), X)


def test_a_saved_array_changed_by_a_layer_inside_is_named():
    class Careless(Layer):
        def __init__(self):
            self.relu = ReLU()

        def forward(self, x, tape=NO_TAPE):
            y = self.relu.forward(x, tape)
            y *= 2  # what ReLU has saved
            y -= 1
            return y

        def backward(self, dy, tape):
            return self.relu.backward(2 * dy, tape)

    assert "that ReLU saved is changed in place between its forward and its backward" in says(Careless(), X)


def test_a_wrong_layer_deep_inside_is_named():
    encoder = Encoder(7, 8, 2, 6, 2, rng=0)
    norm = encoder.layers[1].norm2
    encoder.layers[1].norm2 = with_slip(SLIPS[0])(8)
    encoder.layers[1].norm2.weight = norm.weight
    text = says(encoder, np.arange(10).reshape(2, 5) % 7, mask=padding_mask([5, 3]))
    assert "layers.1.norm2 (Norm) is the first layer in backward order that is wrong by itself" in text
    assert "layers.1.norm2: x: right when weight is 1 everywhere" in text


def test_a_wrong_composite_of_right_layers_is_named_itself():
    class Forgetful(EncoderLayer):
        def backward(self, dy, tape):
            dh = self.drop2.backward(dy, tape)
            dh = self.ffn.backward(dh, tape)
            dx = dy + self.norm2.backward(dh, tape)
            dh = self.drop1.backward(dx, tape)
            dquery, dmemory = self.attn.backward(dh, tape)
            return self.norm1.backward(dquery + dmemory, tape)

    text = says(Forgetful(8, 2, 6, rng=0), np.random.default_rng(1).standard_normal((2, 5, 8)))
    assert "the mistake is in Forgetful.backward itself" in text
    assert "x: what backward's gradient lacks is exactly what drop1.backward is given" in text


def mean(a):
    return a.mean(axis=-1, keepdims=True)


RMS_SLIPS = {
    "sum for mean": (lambda dy, normed, rrms: (dy - normed * (dy * normed).sum(axis=-1, keepdims=True)) * rrms,
                     "x: what backward's gradient lacks is 3 times normed * mean(dy * weight * normed) * rrms: a sum "
                     "along the row stands for a mean, or a mean for a sum"),
    "no second term": (lambda dy, normed, rrms: dy * rrms,
                       "x: what backward's gradient lacks is -1 times normed * mean(dy * weight * normed) * rrms: "
                       "this term is forgotten, or there once too often"),
    "no rrms": (lambda dy, normed, rrms: dy - normed * mean(dy * normed),
                "x: the right gradient is backward's times rrms, row by row"),
    "plus": (lambda dy, normed, rrms: (dy + normed * mean(dy * normed)) * rrms,
             "x: what backward's gradient lacks is -2 times normed * mean(dy * weight * normed) * rrms: its sign is "
             "turned"),
    "rrms twice": (lambda dy, normed, rrms: (dy - normed * mean(dy * normed)) * rrms**2,
                   "x: the right gradient is backward's divided by rrms, row by row"),
    "rrms of another row": (lambda dy, normed, rrms: (dy - normed * mean(dy * normed)) * rrms[::-1],
                            "x: the right gradient is backward's times a number of its own in each row, from "),
    "dy for normed": (lambda dy, normed, rrms: (dy - dy * mean(dy * normed)) * rrms,
                      "x: no simple relation to the right gradient, and no simpler case in which it is right"),
}


@pytest.mark.parametrize("dx, text", RMS_SLIPS.values(), ids=RMS_SLIPS)
def test_slip_in_a_formula_is_told_in_the_words_of_its_backward(dx, text):
    class Slipped(RMSNorm):
        def backward(self, dy, tape):
            normed, rrms = tape.pop(self)
            self.weight.grad += (dy * normed).sum(axis=(0, 1))
            return dx(dy * self.weight.data, normed, rrms)

    assert text in says(Slipped(4), X)
    assert "layers.1: " + text.replace("3 times", "9 times") in says(
        InARow(Linear(4, 10, rng=0), Slipped(10)), np.random.default_rng(4).standard_normal((5, 6, 4)))


@pytest.mark.parametrize("d_model", [4, 40])
@pytest.mark.parametrize("dweight", [lambda dy, normed, weight: dy, lambda dy, normed, weight: dy * weight * normed,
                                     lambda dy, normed, weight: dy * normed**3],
                         ids=["no normed", "a factor too many", "another power"])
def test_what_should_have_been_summed_is_told(dweight, d_model):
    class Slipped(RMSNorm):
        def backward(self, dy, tape):
            normed, rrms = tape.pop(self)
            self.weight.grad += dweight(dy, normed, self.weight.data).sum(axis=(0, 1))
            return rms_normalise_backward(dy * self.weight.data, normed, rrms)

    text = says(Slipped(d_model), np.random.default_rng(5).standard_normal((2, 3, d_model)))
    assert "weight: the right gradient is dy * normed, summed over the rows" in text


def test_forgotten_factor_of_each_entry_is_named():
    class Exp(Layer):
        def forward(self, x, tape=NO_TAPE):
            y = np.exp(x)
            tape.push(self, y)
            return y

        def backward(self, dy, tape):
            (y,) = tape.pop(self)
            return dy

    assert "x: the right gradient is backward's times y, entry by entry" in says(Exp(), X)


def test_the_erf_forward_with_the_tanh_backward_fails():
    class Mixed(Layer):
        def forward(self, x, tape=NO_TAPE):
            GELUTanh().forward(x, inner := Tape())
            tape.push(self, inner)
            return GELU().forward(x)

        def backward(self, dy, tape):
            (inner,) = tape.pop(self)
            return GELUTanh.backward(inner._records[-1][0], dy, inner)

    assert "Mixed: 1 of 1 gradients is wrong" in says(Mixed(), X)


class NoPop(Layer):
    """x + 1, with a record that its backward does not pop."""

    def forward(self, x, tape=NO_TAPE):
        tape.push(self)
        return x + 1

    def backward(self, dy, tape):
        return dy


class InARow(Layer):
    def __init__(self, *layers):
        self.layers = list(layers)

    def forward(self, x, tape=NO_TAPE):
        for layer in self.layers:
            x = layer.forward(x, tape)
        return x

    def backward(self, dy, tape):
        for layer in reversed(self.layers):
            dy = layer.backward(dy, tape)
        return dy


def test_a_forgotten_pop_is_blamed_on_the_layer_that_forgot_it():
    text = says(InARow(LayerNorm(4), NoPop()), X)
    assert text.startswith("NoPop pushed a record that nothing popped before LayerNorm.backward pops its own")
    assert "* layers.1: NoPop.backward leaves 1 on the tape" in text
    layer, tape = InARow(LayerNorm(4), NoPop()), Tape()
    with pytest.raises(RuntimeError, match="next is NoPop, not LayerNorm; nothing has popped what NoPop pushed"):
        layer.backward(layer.forward(X, tape), tape)


def test_a_pop_without_a_push_is_blamed_on_the_layer_that_pops():
    class NoRecord(NoPop):
        def forward(self, x, tape=NO_TAPE):
            return x + 1

        def backward(self, dy, tape):
            tape.pop(self)
            return dy

    assert says(InARow(ReLU(), NoRecord()), X).startswith(
        "NoRecord.backward pops what its forward has not pushed, or pops twice: backward runs forward's calls in "
        "reverse: next is ReLU, not NoRecord, which has nothing on this tape")


class LearnedALiBi(Positions):
    """Adds -slope |i - j| to the score of query i and key j, the slope of each head learnt."""

    def __init__(self, n_heads, learnt=True):
        self.slope = Parameter(np.full((n_heads, 1), 0.5, np.float32))
        self.learnt = learnt

    def bias(self, n_tokens, q, tape=NO_TAPE):
        away = abs(distances(n_tokens, n_tokens)).astype(q.dtype)
        bias = RelativeBias(-self.slope.data * away, self.learnt)
        tape.push(self, away, bias)
        return bias

    def bias_backward(self, tape):
        away, bias = tape.pop(self)
        self.slope.grad -= (bias.grad * away).sum(axis=1, keepdims=True)


def test_a_learnt_bias_passes_and_one_not_told_so_is_named():
    assert check_gradients(MultiHeadAttention(4, 2, positions=LearnedALiBi(2), rng=0), X, X).error < 1e-7
    with pytest.raises(RuntimeError, match="this RelativeBias has no grad: .* make it with learnt=True"):
        check_gradients(MultiHeadAttention(4, 2, positions=LearnedALiBi(2, learnt=False), rng=0), X, X)


# What is right passes


def test_embedding_and_losses_have_integer_inputs():
    assert check_gradients(Embedding(5, 3, rng=0), np.array([[1, 1, 3], [0, 4, 1]])).arrays == 1
    assert check_gradients(CrossEntropy(0.1), X, np.array([[0, 3, -100], [1, 1, 2]])).arrays == 1


def test_any_number_of_inputs_and_a_parameter_that_is_one_number():
    class WeightedSum(Layer):
        def __init__(self):
            self.gain = Parameter(np.array(0.5, np.float32))

        def forward(self, *xs, tape=NO_TAPE):
            total = sum(xs)
            tape.push(self, total, len(xs))
            return self.gain.data * total

        def backward(self, dy, tape):
            total, n = tape.pop(self)
            self.gain.grad += (dy * total).sum()
            return (self.gain.data * dy,) * n

    assert check_gradients(WeightedSum(), X, X[::-1], 2 * X).arrays == 4


def test_an_array_given_twice_is_one_input():
    attention = MultiHeadAttention(4, 2, rng=0)
    assert check_gradients(attention, X, X).arrays == 9
    assert check_gradients(attention, X, X.copy()).arrays == 10
    assert "query and memory" in checker(attention, X, X).probe.inputs


def test_masks_and_dropout_are_held_fixed():
    result = check_gradients(MultiHeadAttention(4, 2, 0.5, rng=0), X, X[:, ::-1], mask=padding_mask([0, 2], 3), seed=3)
    assert result.error < 1e-7


def test_half_and_single_precision_layers_are_checked_in_double():
    layer = Linear(4, 5, rng=0).astype(np.float16)
    assert check_gradients(layer, X.astype(np.float16)).error < 1e-8
    assert layer.weight.data.dtype == np.float16


def test_nothing_of_the_callers_is_changed():
    layer = FeedForward(4, 6, 0.3, rng=0)
    layer.w_1.bias.grad += 7
    before = copy.deepcopy(layer)
    x, mask_before = X.astype(np.float32), X.astype(np.float32)
    check_gradients(layer, x, seed=1)
    with pytest.raises(GradientError):
        check_gradients(Faulty(backward=lambda self, dy, x: dy), x)
    assert np.array_equal(x, mask_before) and x.dtype == np.float32
    for (name, p), (_, q) in zip(layer.named_parameters(), before.named_parameters()):
        assert p.data.dtype == np.float32 and np.array_equal(p.data, q.data), name
        assert p.has_grad == q.has_grad and np.array_equal(p.grad, q.grad), name


def test_a_read_only_input_is_no_trouble():
    x = X.copy()
    x.flags.writeable = False
    assert check_gradients(LayerNorm(4), x).error < 1e-8
    assert check_gradients(LayerNorm(4), np.broadcast_to(X[:1], (3, 3, 4))).error < 1e-8


# Kinks


def test_zeros_in_relu_are_counted_and_not_failed():
    result = check_gradients(ReLU(), np.zeros((2, 3)))
    assert result.kinks == 6
    assert result.error < 1e-9


def test_a_kink_does_not_hide_a_wrong_derivative():
    class Wrong(ReLU):
        def backward(self, dy, tape):
            return 1.001 * super().backward(dy, tape)

    assert "right only on the kink where it was given; wrong a little beside it" in says(Wrong(), np.zeros((2, 3)))
    assert "1.001 everywhere" in says(Wrong(), X)


def test_a_kink_close_by_is_stepped_around():
    x = np.array([[1e-8, -1e-8, 1e-7, -3e-7, 2.0, -1.0]])
    result = check_gradients(ReLU(), x)
    assert result.error < 1e-7


def test_a_curve_is_not_taken_for_a_kink():
    probe = Probe(GELU(), [30 * X], {})
    slope = Slope(probe, "x", np.ones_like(X))
    assert not slope.kinked
    at_zero = Slope(Probe(ReLU(), [np.zeros(3)], {}), "x", np.array([0.0, 1, 0]))
    assert at_zero.kinked


# Precision


class SumOfSquares(Layer):
    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        return (x * x).sum()

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        return 2 * dy * x


def test_a_float32_layer_is_checked_far_beyond_float32():
    """A float32 difference with a step of 1e-4 would be off by a fifth here."""
    x = np.linspace(0, 1, 1000, dtype=np.float32)
    x[500] = 0.5015015
    assert check_gradients(SumOfSquares(), x).error < 1e-9
    probe = Probe(SumOfSquares(), [x], {})
    direction = np.zeros(1000)
    direction[500] = 1
    assert Slope(probe, "x", direction).near / float(probe.dy) == pytest.approx(1.003003, rel=1e-7)


@pytest.mark.parametrize("scale, offset", [(1e-6, 0), (1, 0), (1e6, 0), (1, 2000), (1e-3, 1)])
def test_the_step_fits_the_size_of_the_array(scale, offset):
    assert check_gradients(LayerNorm(4, eps=1e-12 * scale**2), offset + scale * X).error < 1e-7


def test_a_factor_of_a_millionth_is_found():
    class Almost(Linear):
        def backward(self, dy, tape):
            return super().backward(dy, tape) * (1 + 1e-6)

    assert "times 1.000001 everywhere" in says(Almost(4, 5, rng=0))
    large = np.random.default_rng(1).standard_normal((20, 30, 4))
    assert "times 1.000001 everywhere" in says(Almost(4, 5, rng=0), large)


def test_one_wrong_number_in_a_large_gradient_is_found():
    class OneOff(Linear):
        def backward(self, dy, tape):
            dx = super().backward(dy, tape)
            dx[7, 3, 2] *= 1.001
            return dx

    text = says(OneOff(4, 4, rng=0), np.ones((20, 30, 4)))
    assert "OneOff: 1 of 3 gradients is wrong" in text
    assert text.endswith("x: no simple relation to the right gradient, and no simpler case in which it is right")


def test_a_gradient_checked_against_a_plain_sum_would_miss_a_softmax_without_backward():
    """The cotangent is random: against a sum of the outputs, zero is the right gradient of a softmax."""
    from tinyenc.scores import softmax, softmax_backward

    class Softmax(Layer):
        scale = 0.0

        def forward(self, x, tape=NO_TAPE):
            y = softmax(x)
            tape.push(self, y)
            return y

        def backward(self, dy, tape):
            (y,) = tape.pop(self)
            return self.scale * softmax_backward(dy, y)

    assert "backward's gradient is zero everywhere" in says(Softmax())
    Softmax.scale = 1.0
    assert check_gradients(Softmax(), X).error < 1e-8


# Pieces


def test_scattered_memory_holds_the_same_values():
    y = in_scattered_memory(X)
    assert np.array_equal(y, X)
    assert not y.flags.c_contiguous and not y.flags.f_contiguous
    assert in_scattered_memory(np.float64(3) + np.zeros(())) == 3


def test_parameters_that_are_constant_get_random_values_in_the_copy():
    layer = LayerNorm(4)
    probe = Probe(layer, [X], {})
    assert len(set(probe.parameters["weight"].data)) == len(set(probe.parameters["bias"].data)) == 4
    assert (layer.weight.data == 1).all() and (layer.bias.data == 0).all()


def test_dropout_with_every_entry_kept_is_the_identity():
    assert check_gradients(Dropout(0.0), X, seed=1).error < 1e-9


def test_readme_shows_what_is_printed(capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "print(check_gradients(" in b]
    exec(block, {})
    printed = re.sub("error .*?,", "error 1.0e-10,", capsys.readouterr().out)  # rounding differs between machines
    assert printed in re.sub("relative error .*?,", "relative error 1.0e-10,", readme)
    assert words(RMS_SLIPS["sum for mean"][1]) in words(readme)


def test_what_has_no_effect_is_named_and_not_counted_as_right():
    def checked(x):
        return check_gradients(MultiHeadAttention(4, 2, positions=LearnedALiBi(2), rng=0), x, x)

    assert checked(X).silent == ("w_k.bias",)  # which shifts a row of scores: softmax does not see it
    alone = checked(X[:, :1])  # no distance but 0, and one key has all the weight whatever the scores
    assert alone.silent == ("w_q.weight", "w_q.bias", "w_k.weight", "w_k.bias", "positions.slope")
    assert str(alone).startswith("5 gradients right: ")
    assert alone.unheeded == ("positions",)
    assert str(alone).endswith("; w_q.weight, w_q.bias, w_k.weight, w_k.bias, positions.slope and positions have no "
                               "effect on this forward")
    assert str(checked(X)).endswith("; w_k.bias has no effect on this forward")


def test_mask_that_hides_something_and_changes_nothing_is_named():
    class Forgetful(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            return super().forward(q, k, v, None, bias, tape)

    q, k, v = (np.random.default_rng(i).standard_normal((2, 2, 3, 4)) for i in range(3))
    hides, hides_nothing = np.array([[1, 1, 0], [1, 0, 0]])[:, None, None], np.ones((2, 1, 1, 3), bool)
    for core, mask, unheeded in ((Forgetful(), hides, ("mask",)), (Forgetful(), hides == 1, ("mask",)),
                                 (Forgetful(), hides.tolist(), ("mask",)),
                                 (Forgetful(), hides_nothing, ()), (DotProduct(), hides == 1, ())):
        assert check_gradients(core, q, k, v, mask=mask).unheeded == unheeded
    found = str(check_gradients(Forgetful(), q, k, v, mask=hides))
    assert found.startswith("3 gradients right: ") and found.endswith("; mask has no effect on this forward")


def test_positions_and_a_seed_that_change_nothing_are_named():
    class Deaf(DotProduct):
        takes_bias = True

        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            return super().forward(q, k, v, mask, None, tape)

    def unheeded(core, positions, seed=None):
        return check_gradients(MultiHeadAttention(4, 2, attend=core, positions=positions, rng=0), X, X,
                               seed=seed).unheeded

    assert unheeded(Deaf(), ALiBi(2)) == ("positions",)
    assert unheeded(DotProduct(), ALiBi(2)) == unheeded(DotProduct(), NoPositions()) == ()
    assert unheeded(Deaf(), Rotary()) == ()
    assert unheeded(DotProduct(), Rotary(), seed=1) == ("seed",)
    assert unheeded(DotProduct(0.3), Rotary(), seed=1) == ()


@pytest.mark.parametrize("positions", [None, LearnedPositions(4, 6, rng=0), Rotary(), ALiBi(2)],
                         ids=lambda positions: type(positions).__name__)
def test_positions_of_an_encoder_work_in_one_place_of_all_where_they_stand(positions):
    encoder = Encoder(9, 4, 2, 6, 2, dropout=0, positions=positions, rng=0)
    ids = np.random.default_rng(0).integers(0, 9, (2, 6))
    assert check_gradients(encoder, ids).unheeded == ()


def test_other_booleans_than_masks_are_no_mistake():
    class Pick(Layer):
        def forward(self, x, picked, tape=NO_TAPE):
            tape.push(self, x.shape, picked)
            return 1.0 * x[picked]

        def backward(self, dy, tape):
            shape, picked = tape.pop(self)
            dx = np.zeros(shape, dy.dtype)
            dx[picked] = dy
            return dx

    class MeanOfOthers(Layer):
        def forward(self, x, hidden, tape=NO_TAPE):
            if hidden.all():
                raise ValueError("all hidden")
            shares = ~hidden / (~hidden).sum(axis=1, keepdims=True, dtype=x.dtype)
            tape.push(self, shares)
            return np.einsum("btd,bt->bd", x, shares)

        def backward(self, dy, tape):
            (shares,) = tape.pop(self)
            return dy[:, None] * shares[..., None]

    picked = np.array([[True, False, False], [False, True, True]])
    for layer in Pick(), MeanOfOthers():
        assert check_gradients(layer, X, picked).unheeded == ()


def test_core_that_gives_something_to_a_query_that_sees_nothing_is_named():
    class MinusMuch(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            y = super().forward(q, k, v, mask, bias, tape)
            return y + np.broadcast_to(~mask.any(axis=-1, keepdims=True), (*y.shape[:3], 1))

    q = np.random.default_rng(0).standard_normal((2, 2, 3, 4))
    for mask in padding_mask([3, 0]), padding_mask([3, 0]) & np.ones((2, 1, 3, 3), bool):
        with pytest.raises(GradientError, match=r"returns 1 for the query at \[1, 0, 0\], which may see nothing"):
            check_gradients(MinusMuch(), q, q + 1, q + 2, mask=mask)
    assert check_gradients(MinusMuch(), q, q + 1, q + 2, mask=padding_mask([3, 1])).error < 1e-7
    class NoCore(Layer):
        def __init__(self):
            self.attention = MultiHeadAttention(4, 2, rng=0)

        def forward(self, q, k, v, mask=None, tape=NO_TAPE):
            return self.attention.forward(q, k, mask, tape) + v

        def backward(self, dy, tape):
            return (*self.attention.backward(dy, tape), dy)

    assert check_gradients(NoCore(), X, X + 1, X + 2, mask=padding_mask([3, 0])).error < 1e-7

    class TokensFirst(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            return super().forward(q, k, v, mask, bias, tape).swapaxes(1, 2)

        def backward(self, dy, tape):
            return super().backward(dy.swapaxes(1, 2), tape)

    assert check_gradients(TokensFirst(), q, q + 1, q + 2, mask=causal_mask(3)).error < 1e-7
    assert check_gradients(DotProduct(), q, q + 1, q + 2, mask=padding_mask([3, 0])).error < 1e-7


@pytest.mark.parametrize("function, derivative", [
    (lambda x: x * x, lambda x: 2 * x), (abs, np.sign), (lambda x: 1e-6 * x, lambda x: np.full_like(x, 1e-6))],
    ids=["flat at 0", "kink at 0", "small"])
def test_an_effect_without_a_derivative_or_with_a_small_one_is_an_effect(function, derivative):
    class Plain(Layer):
        def forward(self, x, tape=NO_TAPE):
            tape.push(self, x)
            return function(x)

        def backward(self, dy, tape):
            (x,) = tape.pop(self)
            return dy * derivative(x)

    assert check_gradients(Plain(), np.zeros((2, 3))).silent == ()


def test_a_gradient_of_what_has_no_effect_is_wrong_where_it_is_not_zero():
    faulty = Faulty(lambda self, x: 3 * x)
    assert "weight: it has no effect on this forward, so the right gradient is zero" in says(faulty)
    (line,) = [line for line in message_of(faulty, X).splitlines() if line.startswith("  weight ")]
    assert line.endswith("<- wrong")


def test_what_has_no_effect_is_marked_in_a_failed_table():
    layer = MultiHeadAttention(4, 2, rng=0)
    layer.w_o = Leaky(4, 4, rng=0)
    layer.w_o.dx = 2.0
    (line,) = [line for line in message_of(layer, X, X).splitlines() if line.startswith("  w_k.bias ")]
    assert line.endswith("no effect on this forward")


def test_an_argument_after_any_number_of_inputs_is_one_more():
    class MaskedSum(Layer):
        def forward(self, *xs, mask=None, tape=NO_TAPE):
            tape.push(self, len(xs), mask)
            return sum(xs) * mask

        def backward(self, dy, tape):
            n, mask = tape.pop(self)
            return (dy * mask,) * n

    result = check_gradients(MaskedSum(), X, 2 * X, mask=np.array([True, False, True, True]))
    assert result.arrays == 2 and not result.silent


@pytest.mark.parametrize("seed", range(5))
def test_a_decision_kept_outside_the_tape_is_found(seed):
    class Clip(Layer):
        def forward(self, x, tape=NO_TAPE):
            self.inside = abs(x) < 1
            tape.push(self)
            return np.clip(x, -1, 1)

        def backward(self, dy, tape):
            tape.pop(self)
            return dy * self.inside

    with pytest.raises(GradientError, match="kept outside the tape"):
        check_gradients(Clip(), np.random.default_rng(seed).standard_normal((3, 6, 8)))


def test_layer_that_is_used_twice_stays_where_its_formula_holds():
    class LogAboveOne(Layer):
        def __init__(self):
            self.weight = Parameter(np.array([0.5, 1.5, -2.0]))

        def forward(self, x, tape=NO_TAPE):
            tape.push(self, x)
            return self.weight.data * np.log(x - 1)

        def backward(self, dy, tape):
            (x,) = tape.pop(self)
            self.weight.grad += dy * np.log(x - 1)
            return dy * self.weight.data / (x - 1)

    assert check_gradients(LogAboveOne(), np.array([1.2, 1.4, 1.7])).arrays == 2


def test_result_reads_as_a_sentence():
    text = str(check_gradients(Norm(4), X))
    assert text.startswith("2 gradients right: 28 derivatives, largest relative error ")
    assert text.endswith(", 0 on a kink")


class Elementwise(Layer):
    """y = f(x), with the derivative that it is given."""

    def __init__(self, f, df):
        self.f, self.df = f, df

    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        return self.f(x)

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        return dy * self.df(x)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sign", [1, -1], ids=["right", "wrong"])
def test_layer_that_rounds_to_float32_inside_is_not_passed(sign, seed):
    """Its steps look like kinks, at the point and beside it: nothing could be compared."""
    layer = Elementwise(lambda x: np.tanh(x.astype(np.float32)).astype(x.dtype), lambda x: sign / np.cosh(x) ** 2)
    x = np.random.default_rng(seed).standard_normal((8, 16))
    with pytest.raises(GradientError):
        check_gradients(layer, x)


@pytest.mark.parametrize("f, df, x", [
    (np.log, lambda x: 1 / x, [0.01, 1.0, 100.0]),
    (lambda x: 1 / x, lambda x: -1 / x**2, [1e-3, 1.0, 100.0]),
    (lambda x: 1 / x, lambda x: -1 / x**2, [1e-3, 1.0, 100.0, 1e4]),
    (np.tanh, lambda x: 1 - np.tanh(x) ** 2, [0.3, 1e5, 1.0, -0.5]),
], ids=["log", "inverse", "inverse-far", "tanh"])
def test_numbers_of_very_different_size_in_one_array_are_right(f, df, x):
    with np.errstate(invalid="ignore"):  # a step may leave the domain of log
        assert check_gradients(Elementwise(f, df), np.array([x])).error <= 1e-7
