import copy

import numpy as np
import pytest
from support import gradients, padded_batch, random, small_classifier, small_encoder

from tinyenc import (
    Dropout,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PostLNEncoderLayer,
    Recompute,
    Tape,
    causal_mask,
    padding_mask,
)
from tinyenc.attention import DotProduct, LinearAttention, SlidingWindow, Tiled
from tinyenc.layer import Layer, promises
from tinyenc.optim import AdamW
from tinyenc.positions import ALiBi, T5Buckets
from tinyenc.tape import NO_TAPE

IDS, TOKENS = padded_batch([5, 0, 3])
LABELS = [1, 0, 2]
MASKS = {"none": None, "packed": TOKENS, "holes": TOKENS & (np.arange(5) != 1),
         "causal": padding_mask(TOKENS) & causal_mask(5)}


def with_recompute(model):
    """A copy whose encoder layers are wrapped."""
    model = copy.deepcopy(model)
    model.encoder.layers = [Recompute(layer) for layer in model.encoder.layers]
    return model


@pytest.mark.parametrize("mask", ["none", "packed", "holes"])
@pytest.mark.parametrize("seed", [None, 4], ids=["dropout-off", "dropout"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("layer", [EncoderLayer, PostLNEncoderLayer])
def test_loss_and_every_gradient_equal_the_plain_models_to_the_bit(layer, mask, seed, dtype):
    plain = small_classifier(layer, dtype, dropout=0.3)
    loss, grads = gradients(plain, IDS, MASKS[mask], LABELS, seed)
    again, regrads = gradients(with_recompute(plain), IDS, MASKS[mask], LABELS, seed)
    assert loss == again
    np.testing.assert_equal(regrads, grads)


@pytest.mark.parametrize("settings", [dict(attend=Tiled(0.3, queries=2, keys=3)),
                                      dict(positions=T5Buckets(4, 8, 8, rng=0))], ids=["tiled", "t5"])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_variants_give_the_same_bits(settings, mask):
    encoder = small_encoder(dropout=0.3, **settings)
    wrapped = copy.deepcopy(encoder)
    wrapped.layers = [Recompute(layer) for layer in wrapped.layers]
    results = []
    for model in encoder, wrapped:
        tape = Tape(seed=3)
        y = model.forward(IDS, MASKS[mask], tape)
        model.backward(random(*y.shape), tape)
        results.append((y, [p.grad for p in model.parameters()]))
    np.testing.assert_equal(results[1], results[0])


def test_what_comes_after_draws_what_it_would_have_drawn():
    x = random(3, 5, 4)
    plain, wrapped = Tape(seed=1), Tape(seed=1)
    ffn = FeedForward(4, 6, 0.5, rng=0)
    ffn.forward(x, plain)
    Recompute(ffn).forward(x, wrapped)
    assert plain.next_seed() == wrapped.next_seed()


def test_wrapped_in_wrapped_gives_the_same_bits():
    x, ffn = random(3, 5, 4), FeedForward(4, 6, 0.5, rng=0).astype(np.float64)
    results = []
    for layer in ffn, Recompute(Recompute(ffn)):
        tape = Tape(seed=1)
        results.append((layer.forward(x, tape), layer.backward(x, tape)))
    np.testing.assert_equal(results[1], results[0])


def test_names_and_states_are_those_of_the_plain_model():
    plain = small_classifier()
    wrapped = with_recompute(plain)
    assert [name for name, _ in wrapped.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for parameter in wrapped.parameters():
        parameter.data += 1
    wrapped.load_state_dict(plain.state_dict())
    plain.load_state_dict(wrapped.state_dict())
    AdamW(wrapped, 0.1).load_state_dict(AdamW(plain, 0.1).state_dict())
    assert wrapped.encoder.n_heads == plain.encoder.n_heads
    assert wrapped.n_parameters == plain.n_parameters


def test_tape_holds_only_what_the_layers_take():
    encoder = small_encoder(n_layers=6, dtype=np.float32)
    ids = np.zeros((2, 32), int)
    plain, wrapped = Tape(), Tape()
    encoder.forward(ids, tape=plain)
    encoder.layers = [Recompute(layer) for layer in encoder.layers]
    encoder.forward(ids, tape=wrapped)
    one_input = 2 * 32 * 16 * 4
    held = [size for layer, size in wrapped.ledger() if isinstance(layer, Recompute)]
    assert held == [one_input] * 6
    assert wrapped.nbytes < plain.nbytes / 8


def test_without_a_tape_nothing_is_held():
    layer = Recompute(FeedForward(4, 6, 0.5, rng=0))
    x = random(3, 4, dtype=np.float32)
    assert np.array_equal(layer(x), layer.layer(x))
    assert len(NO_TAPE) == 0 and not NO_TAPE.keep


def test_tape_is_itself_again_after_an_error():
    tape = Tape()
    with pytest.raises(ValueError):
        Recompute(FeedForward(4, 6, rng=0)).forward(random(3, 5, dtype=np.float32), tape)
    assert tape.keep


def test_backward_that_forgets_a_part_is_found():
    class Forgetful(Layer):
        def __init__(self):
            self.drop = Dropout(0.5)

        def forward(self, x, tape=NO_TAPE):
            return self.drop.forward(x, tape)

        def backward(self, dy, tape):
            return dy

    layer, tape = Recompute(Forgetful()), Tape(seed=0)
    layer.forward(random(3, 4), tape)
    with pytest.raises(RuntimeError, match="1 records are left on the tape, the last one of Dropout"):
        layer.backward(random(3, 4), tape)


def test_a_wrapped_core_promises_what_the_core_does():
    for core in DotProduct(), Tiled(), SlidingWindow(2), LinearAttention():
        for promise in "takes_padding", "takes_bias":
            assert promises(Recompute(core), promise) == promises(core, promise)
        assert Recompute(core).compares_places == getattr(core, "compares_places", False)
    x = random(2, 5, 8)
    for core in DotProduct(), Tiled():
        plain, wrapped = (MultiHeadAttention(8, 2, attend=attend, positions=ALiBi(2), rng=0).astype(np.float64)
                          for attend in (core, Recompute(core)))
        assert np.array_equal(plain(x, x), wrapped(x, x))
