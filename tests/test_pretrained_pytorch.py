"""State dicts of PyTorch's own layers, to and from."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the extra `pretrained` is not installed")
from safetensors.numpy import load_file  # noqa: E402

from tinyenc import (  # noqa: E402
    GELU,
    Embedding,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PostLNEncoderLayer,
    Tape,
    padding_mask,
)
from tinyenc.pretrained import load_pytorch, to_pytorch  # noqa: E402

HERE = Path(__file__).parent / "pretrained" / "pytorch"
KINDS = [pytest.param(PostLNEncoderLayer, "norm_last", id="post"), pytest.param(EncoderLayer, "norm_first", id="pre")]


def read(name):
    return load_file(HERE / name / "state.safetensors"), load_file(HERE / name / "expected.safetensors")


def make_encoder(layer):
    return Encoder(5, 16, 4, 24, 2, layer=layer, activation=GELU(), dropout=0, rng=0)


@pytest.mark.parametrize("layer, name", KINDS)
def test_output_and_every_gradient_are_those_of_pytorch(layer, name):
    state, expected = read(name)
    encoder = make_encoder(layer)
    load_pytorch(encoder, state)
    encoder.astype(np.float64)
    tape, x, mask = Tape(), expected["x"], padding_mask(expected["mask"])
    for part in encoder.layers:
        x = part.forward(x, mask, tape)
    x = encoder.norm.forward(x, tape) if encoder.norm else x
    np.testing.assert_allclose(x * expected["mask"][..., None], expected["y"], atol=1e-9)

    dx = encoder.norm.backward(expected["dy"], tape) if encoder.norm else expected["dy"]
    for part in reversed(encoder.layers):
        dx = part.backward(dx, tape)
    for parameter in encoder.parameters():
        parameter.data = parameter.grad  # to_pytorch reads data
    for parameter, gradient in to_pytorch(encoder).items():
        theirs = expected[f"grad.{parameter}"]
        assert abs(gradient - theirs).max() < 1e-6 * max(1, abs(theirs).max()), parameter


@pytest.mark.parametrize("layer, name", KINDS)
def test_state_comes_back_as_it_was(layer, name):
    state, _ = read(name)
    encoder = make_encoder(layer)
    load_pytorch(encoder, state)
    back = to_pytorch(encoder)
    assert back.keys() == state.keys()
    for key, tensor in state.items():
        np.testing.assert_array_equal(back[key], tensor, err_msg=key)


def test_a_single_layer_and_its_attention_take_their_part_of_the_state():
    state, _ = read("norm_last")
    layer = PostLNEncoderLayer(16, 4, 24)
    load_pytorch(layer, {key.removeprefix("layers.1."): t for key, t in state.items() if key.startswith("layers.1.")})
    attention = MultiHeadAttention(16, 4)
    prefix = "layers.1.self_attn."
    load_pytorch(attention, {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)})
    for ours, its in zip(attention.parameters(), layer.attn.parameters()):
        np.testing.assert_array_equal(ours.data, its.data)
    np.testing.assert_array_equal(attention.w_k.weight.data, state[prefix + "in_proj_weight"][16:32].T)


def test_torch_loads_what_we_give_and_shares_no_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    ours = MultiHeadAttention(16, 4, rng=0)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in to_pytorch(ours).items()})
    x = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    expected = theirs(*[torch.from_numpy(x)] * 3)[0].detach().numpy()
    np.testing.assert_allclose(ours(x, x), expected, atol=1e-5)

    load_pytorch(ours, theirs.state_dict())
    for parameter in ours.parameters():
        parameter.data += 1
    np.testing.assert_array_equal(theirs(*[torch.from_numpy(x)] * 3)[0].detach().numpy(), expected)


def test_state_that_does_not_fit_is_refused_by_name_and_changes_nothing():
    state, _ = read("norm_first")
    encoder = make_encoder(EncoderLayer)
    before = encoder.state_dict()
    for spoilt, message in [
        ({key: t for key, t in state.items() if key != "norm.bias"}, "missing norm.bias"),
        (state | {"layers.2.norm1.weight": np.ones(16)}, "no place in Encoder for layers.2.norm1.weight"),
        (state | {"layers.0.linear1.weight": np.ones((16, 24))}, r"linear1.weight has shape \(16, 24\), not"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_pytorch(encoder, spoilt)
    for name, tensor in encoder.state_dict().items():
        np.testing.assert_array_equal(tensor, before[name])
    with pytest.raises(TypeError, match="Embedding has no counterpart"):
        to_pytorch(Embedding(3, 4))
