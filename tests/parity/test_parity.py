"""Outputs, losses and every gradient against PyTorch's, to 1e-9 relative in float64.

First against fixtures.npz, which make_fixtures.py wrote with PyTorch; then, where PyTorch is installed, against
PyTorch itself on other numbers.
"""

import functools
import pathlib

import numpy as np
import pytest

from tinyenc import (
    GELU,
    Classifier,
    CrossEntropy,
    Embedding,
    Encoder,
    EncoderLayer,
    GELUTanh,
    LayerNorm,
    MultiHeadAttention,
    PostLNEncoderLayer,
    Tape,
)
from tinyenc.attention import DotProduct
from tinyenc.attention.per_sequence import PerSequence
from tinyenc.optim import SGD, Adam, AdamW
from tinyenc.schedules import linear

FIXTURES = pathlib.Path(__file__).with_name("fixtures.npz")


def loaded(layer, case):
    """layer in float64, with the weights of the case."""
    weights = {key.removeprefix("weight "): a for key, a in case.items() if key.startswith("weight ")}
    layer.astype(np.float64).load_state_dict(weights)
    return layer


def grads(layer):
    return {f"grad {name}": p.grad for name, p in layer.named_parameters()}


def attention(case, core):
    tape = Tape()
    y = core.forward(case["q"], case["k"], case["v"], case["mask"], tape=tape)
    dq, dk, dv = core.backward(case["dy"], tape)
    return dict(y=y, dq=dq, dk=dk, dv=dv)


def multi_head(case):
    layer, tape = loaded(MultiHeadAttention(8, 2), case), Tape()
    memory = case.get("memory", case["x"])
    y = layer.forward(case["x"], memory, case["mask"], tape)
    dquery, dmemory = layer.backward(case["dy"], tape)
    back = dict(dx=dquery, dmemory=dmemory) if "memory" in case else dict(dx=dquery + dmemory)
    return dict(y=y) | back | grads(layer)


def unary(case, layer):
    layer, tape = loaded(layer, case), Tape()
    y = layer.forward(case["x"], *[case[key] for key in ("mask",) if key in case], tape=tape)
    return dict(y=y, dx=layer.backward(case["dy"], tape)) | grads(layer)


def layer_norm(case):
    return unary(case, LayerNorm(8, float(case["eps"])))


def embedding(case):
    layer, tape = Embedding(6, 8, padding_idx=2).astype(np.float64), Tape()
    layer.load_state_dict({"weight": case["weight"]})
    y = layer.forward(case["ids"], tape)
    layer.backward(case["dy"], tape)
    return dict(y=y, grad=layer.weight.grad)


def cross_entropy(case):
    loss_fn, tape = CrossEntropy(float(case["smoothing"])), Tape()
    loss = loss_fn.forward(case["logits"], case["targets"], tape)
    return dict(loss=loss, dlogits=loss_fn.backward(float(case["weight"]), tape))


def model_of(case, layer=EncoderLayer):
    encoder = Encoder(20, d_model=8, n_heads=2, d_ff=12, n_layers=2, dropout=0.0, layer=layer, padding_idx=0)
    return loaded(Classifier(encoder, 3, dropout=0.0), case)


def classifier(case, layer):
    model, loss_fn, tape = model_of(case, layer), CrossEntropy(label_smoothing=0.1), Tape()
    logits = model.forward(case["ids"], case["mask"], tape)
    loss = loss_fn.forward(logits, case["labels"], tape)
    model.backward(loss_fn.backward(1.0, tape), tape)
    return dict(states=model.encoder(case["ids"], case["mask"]), logits=logits, loss=loss) | grads(model)


def training(case, make):
    model, loss_fn, losses, norms = model_of(case), CrossEntropy(), [], []
    optimizer = make(model, lr=linear(0.05, warmup=3, total=12))
    for step in range(10):
        tape, i = Tape(), step % 2
        logits = model.forward(case[f"ids {i}"], case[f"mask {i}"], tape)
        losses.append(loss_fn.forward(logits, case[f"labels {i}"], tape))
        model.backward(loss_fn.backward(1.0, tape), tape)
        norms.append(optimizer.step(max_norm=1.0))
        model.zero_grad()
    return dict(losses=losses, norms=norms) | {f"after {name}": p.data for name, p in model.named_parameters()}


CORES = [functools.partial(attention, core=core) for core in (DotProduct(), PerSequence(DotProduct()))]
OURS = {
    "attention_random_mask": CORES,
    "attention_padded_memory": CORES,
    "attention_causal": CORES,
    "self_attention_padded": [multi_head],
    "cross_attention_masked": [multi_head],
    "layer_norm_small_eps": [layer_norm],
    "layer_norm_large_eps": [layer_norm],
    "gelu_erf": [lambda case: unary(case, GELU())],
    "gelu_tanh": [lambda case: unary(case, GELUTanh())],
    "embedding": [embedding],
    "cross_entropy_plain": [cross_entropy],
    "cross_entropy_ignored": [cross_entropy],
    "cross_entropy_smoothed_ignored": [cross_entropy],
    "encoder_layer_pre": [lambda case: unary(case, EncoderLayer(8, 2, 12, 0.0))],
    "encoder_layer_post": [lambda case: unary(case, PostLNEncoderLayer(8, 2, 12, 0.0))],
    "classifier_pre": [lambda case: classifier(case, EncoderLayer)],
    "classifier_post": [lambda case: classifier(case, PostLNEncoderLayer)],
    "train_sgd": [lambda case: training(case, functools.partial(SGD, momentum=0.9, weight_decay=0.01))],
    "train_adam": [lambda case: training(case, functools.partial(Adam, betas=(0.8, 0.99)))],
    "train_adamw": [lambda case: training(case, functools.partial(AdamW, weight_decay=0.1))],
}
CASES = pytest.mark.parametrize("name", OURS)


def case_of(found, name):
    return {key.partition("/")[2]: array for key, array in found.items() if key.startswith(f"{name}/")}


def assert_equal_to_torch(name, case):
    expected = {key.removeprefix("expected "): a for key, a in case.items() if key.startswith("expected ")}
    for ours in OURS[name]:
        actual = ours(case)
        assert actual.keys() == expected.keys()
        for key in expected:
            if name.startswith("train_adam") and key.endswith("w_k.bias"):
                continue  # softmax cancels it: its gradient is rounding noise, which Adam brings to its own size
            largest = abs(expected[key]).max()
            np.testing.assert_allclose(actual[key], expected[key], rtol=1e-9, atol=1e-10 * largest + 1e-14, err_msg=key)


@functools.cache
def fixtures():
    with np.load(FIXTURES, allow_pickle=False) as file:
        return dict(file)


@functools.cache
def live(seed):
    torch_reference = pytest.importorskip("torch_reference", reason="PyTorch is not installed",
                                          exc_type=ModuleNotFoundError)
    return torch_reference.compute(seed)


@CASES
def test_result_and_every_gradient_are_those_torch_gave(name):
    assert_equal_to_torch(name, case_of(fixtures(), name))


@CASES
def test_result_and_every_gradient_are_those_torch_gives_now_on_other_numbers(name):
    assert_equal_to_torch(name, case_of(live(seed=1), name))


def test_fixtures_are_what_the_script_writes():
    now, then = live(seed=0), fixtures()
    assert now.keys() == then.keys() - {"torch_version"}
    for key, array in now.items():
        if not key.startswith("train_adam"):  # noise of Adam, see above
            np.testing.assert_allclose(then[key], array, rtol=1e-9, atol=1e-10, err_msg=key)


def test_fixtures_are_small_and_hold_every_case():
    assert FIXTURES.stat().st_size < 500_000
    assert {key.partition("/")[0] for key in fixtures()} == {*OURS, "torch_version"}
