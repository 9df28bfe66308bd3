import copy
import pickle

import numpy as np
import pytest
from support import gradients, padded_batch, random, small_classifier, small_encoder

from tinyenc import NO_TAPE, Buffer, Embedding, Layer, LayerNorm, Linear, Parameter, PostLNEncoderLayer, Tape
from tinyenc.gradcheck import GradientError, check_gradients
from tinyenc.layer import promises


class Pair(Layer):
    """Two linear maps in a list, one of which stands under a second name too."""

    def __init__(self):
        self.parts = [Linear(2, 3, rng=0), Linear(3, 2, rng=1)]
        self.again = self.parts[0]
        self.scale = 2.0
        self.missing = None


def test_names_are_the_attributes_own_and_a_shared_parameter_keeps_its_first():
    names = [name for name, _ in Pair().named_parameters()]
    assert names == ["parts.0.weight", "parts.0.bias", "parts.1.weight", "parts.1.bias"]
    assert [name for name, _ in Pair().named_layers()] == ["", "parts.0", "parts.1"]


def test_state_dict_of_an_encoder_reads_as_its_parts():
    names = list(small_encoder().state_dict())
    assert names[0] == "embed.tokens.weight"
    assert "layers.0.attn.w_q.weight" in names and "layers.1.ffn.w_2.bias" in names
    assert names[-2:] == ["norm.weight", "norm.bias"]
    assert len(names) == 1 + 2 * 16 + 2


def test_post_ln_layers_have_the_same_names_and_no_final_norm():
    pre, post = small_encoder(), small_encoder(PostLNEncoderLayer)
    assert post.norm is None
    assert set(pre.state_dict()) - set(post.state_dict()) == {"norm.weight", "norm.bias"}


def test_n_parameters_counts_a_shared_parameter_once():
    assert Pair().n_parameters == 2 * 3 + 3 + 3 * 2 + 2
    d, f, v = 16, 24, 40
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    assert small_encoder().n_parameters == v * d + 2 * layer + 2 * d


def test_state_dict_is_a_copy_and_loads_into_another_model_bit_for_bit():
    one, two = small_encoder(seed=1), small_encoder(seed=2)
    ids, mask = padded_batch([5, 3])
    state = one.state_dict()
    two.load_state_dict(state)
    assert np.array_equal(one(ids, mask), two(ids, mask))
    for array in state.values():
        array += 1
    assert np.array_equal(one(ids, mask), two(ids, mask))  # neither holds the arrays of the state
    assert not any(np.shares_memory(a.data, b.data) for a, b in zip(one.parameters(), two.parameters()))


def test_loading_keeps_the_parameters_own_dtype():
    layer = Linear(2, 3, rng=0)
    layer.load_state_dict({"weight": np.ones((2, 3), np.float64), "bias": np.arange(3)})
    assert layer.weight.data.dtype == layer.bias.data.dtype == np.float32
    assert layer.bias.data.tolist() == [0, 1, 2]


def test_loading_names_every_entry_that_does_not_fit_and_changes_nothing():
    layer = Pair()
    before = layer.state_dict()
    state = layer.state_dict()
    state["parts.0.weight"] = np.zeros((2, 3))
    state["parts.1.weight"] = np.zeros((2, 3))
    state["parts.9.bias"] = np.zeros(2)
    del state["parts.0.bias"]
    with pytest.raises(ValueError) as error:
        layer.load_state_dict(state)
    for word in ("Pair", "missing parts.0.bias", "unexpected parts.9.bias",
                 "parts.1.weight has shape (2, 3), not (3, 2)"):
        assert word in str(error.value)
    assert "parts.0.weight" not in str(error.value) and "\n" not in str(error.value)
    after = layer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_gradient_is_made_of_zeros_when_first_asked_for_in_float32_or_wider():
    for dtype, wide in (np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64):
        parameter = Parameter(np.ones((2, 3), dtype))
        assert not parameter.has_grad
        assert parameter.grad.dtype == wide and parameter.grad.shape == (2, 3) and not parameter.grad.any()
        assert parameter.has_grad


def test_inference_makes_no_gradients():
    model = small_classifier()
    model(*padded_batch([3, 2]))
    assert not any(p.has_grad for p in model.parameters())


def test_zero_grad_zeroes_every_gradient_in_place():
    model = small_classifier()
    gradients(model, *padded_batch([3, 2]), [0, 1])
    held = [p.grad for p in model.parameters()]
    assert any(g.any() for g in held)
    model.zero_grad()
    assert not any(g.any() for g in held)
    assert all(p.grad is g for p, g in zip(model.parameters(), held))


def test_backward_adds_to_the_gradient_it_finds():
    layer, x = Linear(3, 2, rng=0), random(4, 3, dtype=np.float32)
    layer.weight.grad = np.full((3, 2), 7, np.float32)
    tape = Tape()
    layer.forward(x, tape)
    layer.backward(np.zeros((4, 2), np.float32), tape)
    assert (layer.weight.grad == 7).all()


def test_astype_converts_every_parameter_and_drops_gradients():
    model = small_classifier(dtype=np.float32)
    gradients(model, *padded_batch([3, 2]), [0, 1])
    assert model.astype(np.float64) is model
    assert all(p.data.dtype == np.float64 and not p.has_grad for p in model.parameters())


def test_moving_to_the_cpu_a_model_that_is_there_changes_nothing():
    model = small_classifier()
    before = [p.data for p in model.parameters()]
    assert model.to("cpu") is model
    assert all(p.data is b for p, b in zip(model.parameters(), before))


def test_unknown_device_is_named():
    with pytest.raises(ValueError, match='"cpu", "gpu" or "auto", got \'tpu\''):
        Linear(2, 2).to("tpu")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
                         ids=["deepcopy", "pickle"])
def test_copied_model_is_the_same_and_stands_alone(copied):
    model = small_classifier(dropout=0.1)
    ids, mask = padded_batch([5, 3])
    loss, grads = gradients(model, ids, mask, [0, 1], seed=1)
    other = copied(model)
    assert [name for name, _ in other.named_parameters()] == list(grads)
    for p in model.parameters():
        p.data += 1
    other_loss, other_grads = gradients(other, ids, mask, [0, 1], seed=1)
    assert other_loss == loss and all(np.array_equal(other_grads[name], grads[name]) for name in grads)


def test_copy_keeps_a_shared_parameter_shared():
    pair = Pair()
    pair.parts[1].weight = pair.parts[0].weight
    pair = copy.deepcopy(pair)
    assert pair.parts[1].weight is pair.parts[0].weight and pair.again is pair.parts[0]


def test_calling_a_layer_is_forward_without_a_tape():
    layer, x = Linear(3, 2, rng=0), random(4, 3, dtype=np.float32)
    assert np.array_equal(layer(x), layer.forward(x))


# G02's other half: what weight decay must leave alone
def test_weight_matrices_decay_and_biases_norms_and_embeddings_do_not():
    decays = {name: p.decay for name, p in small_classifier().named_parameters()}
    assert {name for name, decay in decays.items() if decay} == {
        name for name in decays if name.endswith(".weight") and "norm" not in name and "tokens" not in name}
    assert Linear(2, 2).weight.decay and not Linear(2, 2).bias.decay
    assert not LayerNorm(2).weight.decay and not Embedding(3, 2).weight.decay


class SumOfSquares(Layer):
    """The sum of x**2, times a factor, which should be 1."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x, tape=NO_TAPE):
        tape.push(self, x)
        return (x * x).sum()

    def backward(self, dy, tape):
        (x,) = tape.pop(self)
        return dy * 2 * x * self.factor


# F02
def test_gradient_of_a_float32_sum_over_1000_is_checked_in_float64():
    x = np.linspace(0, 1, 1000, dtype=np.float32)[None]  # differences in float32 would be off by a fifth
    assert check_gradients(SumOfSquares(1.0), x).error < 1e-7
    with pytest.raises(GradientError):
        check_gradients(SumOfSquares(1 + 1e-6), x)


def test_number_beyond_the_range_of_half_precision_is_refused_by_name_and_nothing_is_changed():
    layer = Linear(2, 2, rng=0)
    layer.bias.data[1] = -70000
    before = layer.state_dict()
    with pytest.raises(ValueError, match="^bias holds a number beyond the range of float16: its largest is 70000$"):
        layer.astype(np.float16)
    assert layer.weight.data.dtype == np.float32
    np.testing.assert_equal(layer.state_dict(), before)

    half = Linear(2, 2, rng=0).astype(np.float16)
    kept = half.state_dict()
    with pytest.raises(ValueError, match="bias holds a number beyond the range of float16"):
        half.load_state_dict(before)
    np.testing.assert_equal(half.state_dict(), kept)


def test_buffers_are_saved_and_loaded_and_stay_in_float32_beside_half_precision():
    class Counting(Layer):
        def __init__(self):
            self.weight = Parameter(np.ones(2, np.float32))
            self.seen = Buffer(np.zeros(2, np.float32))

    layer, other = Counting(), Counting().astype(np.float16)
    layer.seen.data[...] = 70001
    other.load_state_dict(layer.state_dict())
    assert (other.seen.data == 70001).all() and other.seen.data.dtype == np.float32
    assert other.astype(np.float64).seen.data.dtype == np.float64
    assert [name for name, _ in layer.named_parameters()] == ["weight"] and layer.n_parameters == 2


def test_subclass_with_a_forward_of_its_own_promises_anew():
    class Careful(Layer):
        takes_padding = True

        def forward(self, x, tape=NO_TAPE):
            return x

    class Same(Careful):
        pass

    class Careless(Careful):
        def forward(self, x, tape=NO_TAPE):
            return -x

    class CarefulAgain(Careless):
        takes_padding = True

    class Denied(Careful):
        takes_padding = False

    kinds = Careful, Same, Careless, CarefulAgain, Denied, Linear
    found = [promises(kind(1, 1) if kind is Linear else kind(), "takes_padding") for kind in kinds]
    assert found == [True, True, False, True, False, False]


@pytest.mark.parametrize("wrong", [1.0, [1.0], None])
def test_parameter_that_is_no_array_is_refused(wrong):
    with pytest.raises(TypeError, match="^a Parameter takes an array, got "):
        Parameter(wrong)


def test_astype_leaves_buffers_of_integers_as_they_are():
    class Permute(Layer):
        def __init__(self):
            self.order = Buffer(np.array([2, 0, 1]))

        def forward(self, x, tape=NO_TAPE):
            tape.push(self)
            return x[..., self.order.data]

        def backward(self, dy, tape):
            tape.pop(self)
            return dy[..., np.argsort(self.order.data)]

    layer = Permute().astype(np.float16)
    assert layer.order.data.dtype == np.int64
    assert check_gradients(layer, np.arange(12.0).reshape(4, 3)).arrays == 1


@pytest.mark.parametrize("dtype", [int, bool, np.uint8, complex, str])
def test_astype_refuses_what_is_no_float(dtype):
    layer = Linear(2, 2, rng=0)
    with pytest.raises(ValueError, match="^a model computes with floats, not with "):
        layer.astype(dtype)
    assert layer.weight.data.dtype == np.float32
