"""What holds for every layer: arguments stay as they were, memory layouts do not matter, dtypes stay, gradients add."""

import numpy as np
import pytest
from support import SeenTape, padded_batch, random, shaken, small_classifier, small_encoder, watch

import tinyenc
from tinyenc import (
    GELU,
    BatchNorm,
    BatchNormEncoderLayer,
    CrossEntropy,
    Dropout,
    Embedding,
    EncoderLayer,
    FeedForward,
    FirstPool,
    GatedFeedForward,
    GELUTanh,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    MeanPool,
    MultiHeadAttention,
    PostLNEncoderLayer,
    Recompute,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    SinusoidalPositions,
    Tape,
    causal_mask,
    padding_mask,
)
from tinyenc.attention import CausalLinearAttention, DotProduct, LinearAttention, SlidingWindow, Tiled
from tinyenc.attention.per_sequence import PerSequence
from tinyenc.optim import AdamW
from tinyenc.positions import ALiBi, LearnedPositions, Rotary, T5Buckets

IDS, TOKENS = padded_batch([5, 0, 3])
MASK = padding_mask(TOKENS) & causal_mask(5)
X = random(3, 5, 16)
HEADS = [random(3, 4, 5, 4, seed=s) for s in range(3)]
BIG = random(14, 128, 80)  # 1.1 MB: formulas cut it into blocks
LABELS = np.array([[0, 2, -100, 1, 1], [-100] * 5, [1, 1, 0, -100, -100]])

CASES = {  # name: (layer, arguments of forward)
    "Linear": (Linear(16, 7, rng=0), [X]),
    "Linear, no bias": (Linear(16, 7, bias=False, rng=0), [X]),
    "Embedding": (Embedding(40, 16, 4.0, padding_idx=0, rng=0), [IDS]),
    "LayerNorm": (LayerNorm(80), [BIG]),
    "ReLU": (ReLU(), [BIG]),
    "GELU": (GELU(), [BIG]),
    "GELUTanh": (GELUTanh(), [BIG]),
    "Dropout": (Dropout(0.3), [BIG]),
    "FeedForward": (FeedForward(16, 24, 0.2, rng=0), [X]),
    "GatedFeedForward": (GatedFeedForward(16, 24, 0.2, SiLU(), rng=0), [X]),
    "SiLU": (SiLU(), [BIG]),
    "Sigmoid": (Sigmoid(), [BIG]),
    "RMSNorm": (RMSNorm(80), [BIG]),
    "BatchNorm": (BatchNorm(16), [X, MASK]),
    "SinusoidalPositions": (SinusoidalPositions(16), [X, np.arange(5)]),
    "DotProduct": (DotProduct(0.2), [*HEADS, MASK]),
    "Tiled": (Tiled(0.2, queries=2, keys=3), [*HEADS, MASK]),
    "SlidingWindow": (SlidingWindow(1, n_global=1, dropout=0.2), [*HEADS, padding_mask(TOKENS)]),
    "LinearAttention": (LinearAttention(), [*HEADS, padding_mask(TOKENS)]),
    "CausalLinearAttention": (CausalLinearAttention(chunk=2), [*HEADS, padding_mask(TOKENS)]),
    "PerSequence": (PerSequence(DotProduct(0.2)),
                    [random(3, 4, 5, 4), random(3, 4, 7, 4), random(3, 4, 7, 4, seed=2), random(3, 4, 5, 7) > 0]),
    "MultiHeadAttention": (MultiHeadAttention(16, 4, 0.2, rng=0), [X, X, MASK]),
    "MultiHeadAttention, cross": (MultiHeadAttention(16, 4, 0.2, rng=0),
                                  [X, random(3, 7, 16), padding_mask([7, 0, 2]).astype(np.int64)]),
    "LearnedPositions": (LearnedPositions(16, 7, rng=0), [X, np.arange(5)]),
    "EncoderLayer": (EncoderLayer(16, 4, 24, 0.2, rng=0), [X, MASK]),
    "EncoderLayer, rotary": (EncoderLayer(16, 4, 24, 0.2, positions=Rotary(), rng=0), [X, MASK]),
    "EncoderLayer, ALiBi": (EncoderLayer(16, 4, 24, 0.2, positions=ALiBi(4), rng=0), [X, MASK]),
    "EncoderLayer, T5": (EncoderLayer(16, 4, 24, positions=T5Buckets(4, 8, 8, rng=0), rng=0), [X, MASK]),
    "PostLNEncoderLayer": (PostLNEncoderLayer(16, 4, 24, 0.2, rng=0), [X, MASK]),
    "BatchNormEncoderLayer": (BatchNormEncoderLayer(16, 4, 24, 0.2, rng=0), [X, MASK]),
    "Recompute": (Recompute(EncoderLayer(16, 4, 24, 0.2, rng=0)), [X, MASK]),
    "FirstPool": (FirstPool(), [X, TOKENS]),
    "MeanPool": (MeanPool(), [X, TOKENS.astype(np.int64)]),
    "MaxPool": (MaxPool(), [X, TOKENS]),
    "CrossEntropy": (CrossEntropy(0.1), [random(3, 5, 3), LABELS]),
    "Encoder, packed": (small_encoder(dropout=0.2, padding_idx=0), [IDS, TOKENS]),
    "Encoder, masked": (small_encoder(PostLNEncoderLayer, dropout=0.2), [IDS, MASK]),
    "Classifier": (small_classifier(dropout=0.2), [IDS, TOKENS.astype(np.int64)]),
}
for layer, _ in CASES.values():
    shaken(layer).astype(np.float64)
EVERY = pytest.mark.parametrize(("layer", "args"), CASES.values(), ids=CASES)


def run(layer, args, dy=None, seed=3):
    """forward and backward: (y, what backward returns, as a list), with dy random where not given."""
    tape = Tape(seed)
    y = layer.forward(*args, tape=tape)
    dy = random(*y.shape, seed=9, dtype=y.dtype) if dy is None else dy
    back = layer.backward(dy, tape)
    assert len(tape) == 0
    return y, [] if back is None else list(back) if isinstance(back, tuple) else [back]


def fresh_gradients(layer):
    found = {name: p.grad.copy() for name, p in layer.named_parameters()}
    layer.zero_grad()
    return found


def test_every_layer_stands_here():
    here = {type(part) for layer, _ in CASES.values() for _, part in layer.named_layers()}
    classes = [value for value in vars(tinyenc).values() if isinstance(value, type) and issubclass(value, Layer)]
    missing = {layer.__name__ for layer in classes if layer not in here | {Layer}}
    assert not missing, f"no line in CASES for {missing}"


# F04
@EVERY
def test_arguments_and_dy_are_bit_identical_after_forward_and_backward(layer, args):
    layer.zero_grad()
    y, _ = run(layer, args)
    dy = random(*y.shape, seed=9)
    frozen = [a.copy() for a in (*args, dy)]
    for array in frozen:
        array.flags.writeable = False  # writing raises where it happens
    weights = [p.data.copy() for p in layer.parameters()]
    run(layer, frozen[:-1], frozen[-1])
    assert all(np.array_equal(a, b) for a, b in zip(frozen, (*args, dy)))
    assert all(np.array_equal(before, p.data) for before, p in zip(weights, layer.parameters()))
    layer.zero_grad()


# F04
@EVERY
def test_output_is_the_same_with_and_without_a_tape_and_belongs_to_the_caller(layer, args):
    y = layer.forward(*args, tape=Tape())
    assert np.array_equal(y, layer.forward(*args))
    weights = layer.state_dict()
    tape = Tape()
    y = layer.forward(*args, tape=tape)
    back = layer.backward(np.ones_like(y), tape)
    for array in [y] if back is None else [y, *(back if isinstance(back, tuple) else (back,))]:
        assert not any(np.shares_memory(array, p.data) or np.shares_memory(array, p.grad) for p in layer.parameters())
    assert all(np.array_equal(weights[name], a) for name, a in layer.state_dict().items())
    layer.zero_grad()


# F04
@EVERY
def test_two_backwards_add_up_to_twice_the_gradient(layer, args):
    layer.zero_grad()
    run(layer, args)
    once = {name: p.grad.copy() for name, p in layer.named_parameters()}
    run(layer, args)
    twice = fresh_gradients(layer)
    for name in once:
        # Exactly, but in tables: rows of repeated ids are added one by one, and rounded each time.
        tolerance = 1e-14 if name.endswith(("tokens.weight", "positions.weight")) or name == "weight" else 0
        np.testing.assert_allclose(twice[name], 2 * once[name], rtol=0, atol=tolerance)
    assert all(g.any() for name, g in once.items() if not name.endswith("w_k.bias"))  # which softmax cancels


# F04
@EVERY
def test_gradients_share_no_memory_with_each_other_or_with_dy(layer, args):
    tape = Tape(3)
    y = layer.forward(*args, tape=tape)
    dy = random(*y.shape, seed=9)
    layer.backward(dy, tape)
    grads = [p.grad for p in layer.parameters()]
    for i, a in enumerate(grads):
        assert not np.shares_memory(a, dy)
        assert not any(np.shares_memory(a, b) for b in grads[:i])
    layer.zero_grad()


def transposed(a):
    return np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1) if a.ndim > 1 else a


def strided(a):
    return np.repeat(a, 2, axis=-1)[..., ::2]


def backwards(a):
    return np.ascontiguousarray(a[::-1])[::-1]


def offset(a):
    return np.concatenate([a[:1], a])[1:]


# K03
@EVERY
@pytest.mark.parametrize("view", [transposed, strided, backwards, offset, np.asfortranarray], ids=lambda f: f.__name__)
def test_views_give_what_contiguous_arrays_give(layer, args, view):
    layer.zero_grad()
    y, back = run(layer, args)
    grads = fresh_gradients(layer)
    dy = random(*y.shape, seed=9)
    y2, back2 = run(layer, [view(a) for a in args], view(dy) if dy.ndim else dy)
    grads2 = fresh_gradients(layer)
    for a, b in [(y2, y), *zip(back2, back), *((grads2[name], grads[name]) for name in grads)]:
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


# K03
@EVERY
def test_broadcast_views_give_what_copies_give(layer, args):
    spread = [np.broadcast_to(a[:1], a.shape) for a in args]  # stride 0, read-only
    y, back = run(layer, [a.copy() for a in spread])
    dy = np.broadcast_to(random(*y.shape, seed=9)[:1], y.shape) if y.ndim else np.float64(1)
    layer.zero_grad()
    y, back = run(layer, [a.copy() for a in spread], dy.copy())
    grads = fresh_gradients(layer)
    y2, back2 = run(layer, spread, dy)
    grads2 = fresh_gradients(layer)
    for a, b in [(y2, y), *zip(back2, back), *((grads2[name], grads[name]) for name in grads)]:
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


# K08
@EVERY
def test_same_seed_gives_the_same_bits_and_no_layer_touches_numpys_global_generator(layer, args):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    layer.zero_grad()
    y, back = run(layer, args)
    grads = fresh_gradients(layer)
    y2, back2 = run(layer, args)
    grads2 = fresh_gradients(layer)
    assert np.array_equal(y, y2) and all(np.array_equal(a, b) for a, b in zip(back, back2))
    assert all(np.array_equal(grads[name], grads2[name]) for name in grads)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


# B11
@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_array_has_the_dtype_of_the_parameters(layer, args, dtype):
    state = layer.state_dict()
    layer.astype(dtype)
    tape = SeenTape(3)
    y = layer.forward(*[a.astype(dtype) if a.dtype.kind == "f" else a for a in args], tape=tape)
    back = layer.backward(np.full(y.shape, 0.5, dtype) if y.ndim else 1.0, tape)
    arrays = [("y", y), *tape.seen, *(("gradient", p.grad) for p in layer.parameters())]
    arrays += [("backward", b) for b in (back if isinstance(back, tuple) else (back,)) if b is not None]
    wrong = [(where, a.dtype) for where, a in arrays if a.dtype.kind == "f" and a.dtype != dtype]
    assert wrong == []
    layer.astype(np.float64)
    layer.load_state_dict(state)


# B11
@EVERY
def test_half_precision_is_kept_between_layers_with_gradients_in_float32(layer, args):
    state = layer.state_dict()
    layer.astype(np.float16)
    tape = SeenTape(3)
    y = layer.forward(*[a.astype(np.float16) if a.dtype.kind == "f" else a for a in args], tape=tape)
    loss = isinstance(layer, CrossEntropy)
    assert y.dtype == (np.float32 if loss else np.float16)
    back = layer.backward(1.0 if loss else np.ones_like(y), tape)
    for a in back if isinstance(back, tuple) else (back,):
        assert a is None or np.isfinite(a).all()
        assert a is None or a.dtype == np.float16
    assert all(p.grad.dtype == np.float32 and np.isfinite(p.grad).all() for p in layer.parameters())
    assert not any(a.dtype == np.float64 for _, a in tape.seen)
    layer.astype(np.float64)
    layer.load_state_dict(state)


# B11: the whole of it, three steps long
@pytest.mark.parametrize("integers", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_float32_model_with_integer_ids_masks_and_labels_never_meets_float64(integers, smoothing):
    model, loss_fn, seen = small_classifier(dtype=np.float32, dropout=0.1, padding_idx=0), CrossEntropy(smoothing), []
    watch(model, seen)
    optimizer = AdamW(model, lr=np.float64(1e-3), weight_decay=np.float64(0.1))
    for step in range(3):
        tape = SeenTape(seed=step)
        ids, mask, labels = (a.astype(integers) for a in (IDS, TOKENS, np.array([1, 0, 2])))
        loss = loss_fn.forward(model.forward(ids, mask, tape), labels, tape)
        dlogits = loss_fn.backward(np.float64(0.5), tape)
        model.backward(dlogits, tape)
        optimizer.step(max_norm=np.float64(1.0))
        seen += [("loss", loss), ("dlogits", dlogits), *tape.seen]
        seen += [(f"gradient of {name}", p.grad) for name, p in model.named_parameters()]
        seen += [(name, p.data) for name, p in model.named_parameters()]
        model.zero_grad()
    seen += list(optimizer.state_dict().items())
    floats = [(where, a.dtype) for where, a in seen if a.dtype.kind == "f"]
    assert len(floats) > 500
    assert [item for item in floats if item[1] != np.float32] == []


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("layer", [Linear(16, 7, rng=0), LayerNorm(16), GELU(), FeedForward(16, 24, rng=0)],
                         ids=lambda layer: type(layer).__name__)
def test_layers_on_positions_take_any_leading_shape(layer, shape):
    layer.astype(np.float64)
    x, tape = random(*shape, 16), Tape()
    y = layer.forward(x, tape)
    dy = random(*y.shape, seed=9)
    dx = layer.backward(dy, tape)
    grads = fresh_gradients(layer)
    assert y.shape[:-1] == shape and dx.shape == x.shape
    for place in np.ndindex(shape):
        tape = Tape()
        np.testing.assert_allclose(y[place], layer.forward(x[place][None], tape)[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(dx[place], layer.backward(dy[place][None], tape)[0], rtol=1e-12, atol=1e-14)
    for name, gradient in fresh_gradients(layer).items():
        np.testing.assert_allclose(grads[name], gradient, rtol=1e-12, atol=1e-13)
