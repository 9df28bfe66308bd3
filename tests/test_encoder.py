import math

import numpy as np
import pytest
from support import gradients, no_float_trouble, padded_batch, random, shaken, small_classifier, small_encoder

from tinyenc import (
    Encoder,
    EncoderLayer,
    FirstPool,
    GatedFeedForward,
    MaxPool,
    MeanPool,
    PostLNEncoderLayer,
    RMSNorm,
    SiLU,
    Tape,
    causal_mask,
    padding_mask,
)
from tinyenc.attention import layout
from tinyenc.parallel import get_num_threads, set_num_threads
from tinyenc.positions import ALiBi, LearnedPositions, Rotary, T5Buckets

KINDS = pytest.mark.parametrize("layer", [EncoderLayer, PostLNEncoderLayer], ids=["pre", "post"])
POOLS = pytest.mark.parametrize("pool", [MeanPool, FirstPool, MaxPool])
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])


def assert_same(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name in expected:
        scale = max(1, abs(expected[name]).max())
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=tolerance * scale, err_msg=name)


# A11
@PRECISIONS
@KINDS
@POOLS
def test_sentence_is_the_same_however_much_padding_and_whoever_its_neighbours(pool, layer, dtype, tolerance):
    model = small_classifier(layer, dtype, pool=pool())
    sentence = np.array([[7, 3, 21, 9, 3]])
    full = np.random.default_rng(0).integers(0, 40, (1, 64))

    def everything(ids, mask, labels):
        states = model.encoder(ids, mask)
        loss, grads = gradients(model, ids, mask, labels)
        return {"states": states[:1, :5], "pooled": model.pool(states, mask)[:1], "logits": model(ids, mask)[:1],
                "loss": np.array(loss)} | grads

    alone = everything(sentence, None, [1])
    assert abs(alone["encoder.embed.tokens.weight"]).max() > 0.01
    assert_same(everything(sentence, np.ones((1, 5), bool), [1]), alone, tolerance)
    for width in 8, 64:
        ids = np.zeros((1, width), int)
        ids[:, :5] = sentence
        mask = np.arange(width)[None] < 5
        assert_same(everything(ids, mask, [1]), alone, tolerance)
        assert_same(everything(ids, padding_mask(mask), [1]), alone, tolerance)
    both, mask = np.concatenate([ids, full]), np.concatenate([mask, np.ones((1, 64), bool)])
    assert_same(everything(both, mask, [1, -100]), alone, tolerance)
    assert_same(everything(both[::-1][1:], mask[::-1][1:], [1]), alone, tolerance)


# A11
def test_ids_at_padding_change_nothing():
    model = small_classifier()
    ids, mask = padded_batch([5, 8, 2, 0])
    results = [gradients(model, np.where(mask, ids, pad), mask, [0, 1, 2, -100]) for pad in (0, 39)]
    states = [model.encoder(np.where(mask, ids, pad), mask) for pad in (0, 39)]
    assert np.array_equal(states[0], states[1])
    assert results[0][0] == results[1][0]
    assert all(np.array_equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


def test_states_at_padding_are_zeros_and_gradients_that_arrive_there_are_dropped():
    encoder, dy = small_encoder(), random(2, 4, 16)
    ids, mask = padded_batch([4, 2])
    found = []
    for noise in 0, 100:
        tape = Tape()
        states = encoder.forward(ids, mask, tape)
        encoder.backward(dy + noise * ~mask[..., None], tape)
        found.append({name: p.grad.copy() for name, p in encoder.named_parameters()})
        encoder.zero_grad()
    assert not states[~mask].any() and states[mask].all()
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


# Left padding, holes, an empty row: packed or not, the padding mask means what the full attention mask means.
@KINDS
@pytest.mark.parametrize("tokens", [
    [[1, 1, 1, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [0, 1, 1, 1]], [[1, 0, 1, 1], [1, 1, 0, 1]],
    [[0, 1, 0, 1], [0, 0, 0, 0]],
], ids=["right", "left", "holes", "holes and empty"])
def test_padding_mask_is_the_full_attention_mask_at_real_tokens(layer, tokens):
    encoder, tokens = small_encoder(layer), np.array(tokens, bool)
    ids = np.random.default_rng(0).integers(0, 40, tokens.shape)
    dy = random(2, 4, 16) * tokens[..., None]
    found = []
    for mask in tokens, tokens.astype(np.int32), np.broadcast_to(tokens[:, None, None], (2, 4, 4, 4)):
        tape = Tape()
        states = encoder.forward(ids, mask, tape)[tokens]
        encoder.backward(dy, tape)
        found.append({"states": states} | {name: p.grad.copy() for name, p in encoder.named_parameters()})
        encoder.zero_grad()
    assert_same(found[1], found[0], 0)
    assert_same(found[2], found[0], 1e-12)


@pytest.mark.parametrize("positions", [Rotary(), ALiBi(4), T5Buckets(4, 8, 8, rng=0)], ids=lambda p: type(p).__name__)
def test_tokens_on_either_side_of_a_hole_keep_their_distance(positions):
    encoder, tokens = small_encoder(positions=positions), np.array([[1, 0, 1, 1, 1], [1, 1, 0, 0, 1]], bool)
    ids = np.random.default_rng(0).integers(0, 40, tokens.shape)
    full = np.broadcast_to(tokens[:, None, None], (2, 4, 5, 5))
    np.testing.assert_allclose(encoder(ids, tokens)[tokens], encoder(ids, full)[tokens], rtol=1e-11)


# A01
@KINDS
@POOLS
def test_empty_sequence_in_a_batch_does_no_harm(pool, layer):
    model = small_classifier(layer, pool=pool())
    ids, mask = padded_batch([5, 0, 3])
    with no_float_trouble():
        loss, with_label = gradients(model, ids, mask, [0, 1, 2])
        zero_weight = gradients(model, ids, mask, [0, -100, 2])
        without = gradients(model, ids[::2], mask[::2], [0, 2])
    assert math.isfinite(loss) and all(np.isfinite(g).all() for g in with_label.values())
    assert zero_weight[0] == pytest.approx(without[0], rel=1e-14)
    assert_same(zero_weight[1], without[1], 1e-14)
    # Its label, where it has one, teaches the bias of the head alone: the mean is over 3 targets instead of 2.
    bias = with_label.pop("out.bias")
    assert_same({name: g * 3 / 2 for name, g in with_label.items()},
                {name: g for name, g in without[1].items() if name != "out.bias"}, 1e-13)
    assert not np.allclose(bias * 3 / 2, without[1]["out.bias"])


# A01
@KINDS
@POOLS
def test_batch_of_empty_sequences_gives_the_bias_of_the_head_and_gradients_of_zero(pool, layer):
    model = small_classifier(layer, pool=pool(), dropout=0.1)
    ids, mask = padded_batch([0, 0], width=3)
    with no_float_trouble():
        assert np.array_equal(model(ids, mask), [model.out.bias.data] * 2)
        assert not model.encoder(ids, mask).any()
        loss, grads = gradients(model, ids, mask, [0, 1], seed=1)
    assert math.isfinite(loss)
    assert [name for name, g in grads.items() if g.any()] == ["out.bias"]


# A01
@pytest.mark.parametrize("positions", [LearnedPositions(16, 8), Rotary(), ALiBi(4), T5Buckets(4)],
                         ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("lengths", [[0, 0], [4, 0]])
def test_empty_sequences_do_no_harm_to_any_kind_of_positions(positions, lengths):
    encoder, tape = small_encoder(positions=positions), Tape(seed=0)
    ids, mask = padded_batch(lengths, width=4)
    with no_float_trouble():
        states = encoder.forward(ids, mask, tape)
        encoder.backward(random(2, 4, 16), tape)
    assert not states[~mask].any() and np.isfinite(states).all()
    assert all(p.grad.any() == mask.any() for name, p in encoder.named_parameters() if "attn.w_k.bias" not in name)


# A01: with a causal mask, left padding hides every key from some queries
@KINDS
def test_causal_mask_and_left_padding_together_are_finite(layer):
    encoder, tokens, tape = small_encoder(layer), np.array([[0, 0, 1, 1], [1, 1, 1, 1]]), Tape()
    with no_float_trouble():
        states = encoder.forward(np.ones((2, 4), int), padding_mask(tokens) & causal_mask(4), tape)
        encoder.backward(random(2, 4, 16), tape)
    assert np.isfinite(states).all()
    assert all(np.isfinite(p.grad).all() for p in encoder.parameters())


# A13
@KINDS
def test_every_position_sees_every_other_unless_a_causal_mask_says_otherwise(layer):
    encoder = small_encoder(layer)
    ids, _ = padded_batch([6])
    changed = ids.copy()
    changed[0, 5] += 1
    assert (encoder(ids) != encoder(changed)).any(axis=-1).all()
    causal = [encoder(i, causal_mask(6)) for i in (ids, changed)]
    assert np.array_equal(causal[0][:, :5], causal[1][:, :5])
    assert (causal[0][0, 5] != causal[1][0, 5]).any()


# J06
@pytest.mark.parametrize(("layer", "expected"), [
    (PostLNEncoderLayer, [1.7052824204, -0.8160991198, -0.5684274735, -0.3207558271]),
    (EncoderLayer, [11, 2, 3, 4]),
])
def test_norm_stands_where_the_kind_of_layer_says(layer, expected):
    layer = layer(4, 2, 8, eps=1e-12, rng=0).astype(np.float64)
    for part in layer.attn.w_o, layer.ffn.w_2:
        part.weight.data[...] = 0
    layer.ffn.w_2.bias.data[...] = [10, 0, 0, 0]
    np.testing.assert_allclose(layer(np.array([[[1.0, 2, 3, 4]]]))[0, 0], expected, rtol=1e-9)


# J06
def test_pre_ln_encoder_ends_with_a_norm():
    from tinyenc import LayerNorm
    norm = LayerNorm(4, 1e-12).astype(np.float64)
    np.testing.assert_allclose(norm(np.array([[11.0, 2, 3, 4]]))[0],
                               [1.6970562749, -0.8485281374, -0.5656854249, -0.2828427125], rtol=1e-9)
    assert small_encoder().norm is not None and small_encoder(PostLNEncoderLayer).norm is None
    encoder = small_encoder(n_layers=1)
    x = encoder.embed(np.array([[1, 2]]), np.arange(2))
    np.testing.assert_allclose(encoder(np.array([[1, 2]])), encoder.norm(encoder.layers[0](x)), rtol=1e-13)


def test_embeddings_are_scaled_by_the_root_of_the_width_before_positions_are_added():
    encoder = small_encoder()
    x = encoder.embed(np.array([[4, 9]]), np.arange(2))
    table = encoder.embed.positions(np.zeros((1, 2, 16)), np.arange(2))
    np.testing.assert_allclose(x - table, encoder.embed.tokens.weight.data[[[4, 9]]] * 4, rtol=1e-12, atol=1e-15)


def test_arguments_and_defaults_are_the_papers_base_model():
    import inspect
    arguments = {name: p.default for name, p in inspect.signature(Encoder).parameters.items()}
    expected = dict(d_model=512, n_heads=8, d_ff=2048, n_layers=6, max_len=5000, dropout=0.1)
    assert list(arguments)[:7] == ["vocab_size", *expected]
    assert {name: arguments[name] for name in expected} == expected


def test_encoder_of_parts_is_the_encoder_they_came_from():
    one = small_encoder()
    two = Encoder.from_parts(one.embed, one.layers, one.norm)
    ids, mask = padded_batch([4, 2])
    assert np.array_equal(one(ids, mask), two(ids, mask))
    assert not np.array_equal(one(ids, mask), Encoder.from_parts(one.embed, one.layers)(ids, mask))


def test_ids_and_mask_may_be_lists():
    encoder = small_encoder()
    ids, mask = padded_batch([4, 2])
    assert np.array_equal(encoder(ids.tolist(), mask.astype(int).tolist()), encoder(ids, mask))


@KINDS
def test_dropout_acts_with_a_seeded_tape_alone_and_the_same_seed_repeats_it(layer):
    encoder = small_encoder(layer, dropout=0.2)
    ids, mask = padded_batch([5, 3])
    plain = small_encoder(layer)
    assert np.array_equal(encoder(ids, mask), plain(ids, mask))
    assert np.array_equal(encoder.forward(ids, mask, Tape()), plain(ids, mask))
    one, two, other = (encoder.forward(ids, mask, Tape(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.allclose(one, other) and not np.allclose(one, plain(ids, mask))


# D09
@KINDS
def test_sentence_twice_in_one_batch_drops_different_entries(layer):
    encoder = small_encoder(layer, dropout=0.1)
    ids = np.array([[3, 4, 5, 6]] * 2)
    eval_mode = encoder(ids)
    train_mode = encoder.forward(ids, np.ones((2, 4), bool), Tape(seed=0))
    assert np.array_equal(eval_mode[0], eval_mode[1])
    assert not np.allclose(train_mode[0], train_mode[1])


def test_norm_weights_away_from_one_reach_the_output():
    encoder = shaken(small_encoder())
    ids, _ = padded_batch([4])
    before = encoder(ids)
    encoder.norm.weight.data *= 2
    encoder.norm.bias.data *= 2
    np.testing.assert_allclose(encoder(ids), 2 * before, rtol=1e-13)


@pytest.mark.parametrize("name", ["vocab_size", "d_model", "d_ff", "n_layers", "max_len"])
def test_sizes_below_one_are_refused_by_name(name):
    sizes = dict(vocab_size=10, d_model=8, n_heads=2, d_ff=8, n_layers=1, max_len=8)
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
        Encoder(**sizes | {name: 0})


@KINDS
def test_norm_and_feed_forward_are_swapped_in_every_layer_by_one_argument_each(layer):
    encoder = small_encoder(layer, norm=RMSNorm, ffn=GatedFeedForward, activation=SiLU())
    for part in encoder.layers:
        assert type(part.norm1) is type(part.norm2) is RMSNorm
        assert type(part.ffn) is GatedFeedForward and type(part.ffn.activation) is SiLU
    assert type(encoder.norm) is (type(None) if layer.output_is_normed else RMSNorm)
    assert len({id(part) for layer in encoder.layers for part in (layer.norm1, layer.norm2, layer.ffn)}) == 6


REAL = np.array([9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 2, 1, 0])[:, None] > np.arange(9)


# In inference the batch goes through in parts, one for each thread; with a tape that keeps, as a whole.
@pytest.mark.parametrize("mask", [
    None, REAL, REAL[:, ::-1], random(13, 9) > -1, causal_mask(9), random(13, 2, 9, 9) > 0, random(1, 2, 9, 9) > 0,
    REAL[:, None, None]],
    ids=["none", "right", "left", "holes", "causal", "each", "one-for-all", "4-d"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_inference_in_parts_gives_what_the_whole_batch_gives(mask, threads, monkeypatch):
    monkeypatch.setattr(layout, "PART", 30)
    encoder = Encoder(20, 8, 2, 16, 2, positions=T5Buckets(2, rng=0), rng=0).astype(np.float64)
    ids, before = np.random.default_rng(0).integers(0, 20, (13, 9)), get_num_threads()
    seen = []
    run = encoder.run
    encoder.run = lambda *args: seen.append(len(args[0])) or run(*args)
    try:
        set_num_threads(threads)
        parts = encoder.forward(ids, mask)
        assert len(seen) > 1 and len(seen) % threads == 0 and sum(seen) == 13
        whole = encoder.forward(ids, mask, Tape())
    finally:
        set_num_threads(before)
    assert seen[-1] == 13
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-13)


def test_parts_of_a_batch_are_about_equal_or_there_are_none():
    before = get_num_threads()
    try:
        set_num_threads(2)
        assert layout.even_parts(np.array([400, 10, 10])) == []
        assert [part.tolist() for part in layout.even_parts(np.array([10, 40, 50, 20]))] == [[2, 0], [1, 3]]
        assert len(layout.even_parts(np.full(64, 128))) == 8  # of 1,024 tokens
        assert layout.even_parts(np.array([0, 0, 0])) == []
        parts = layout.even_parts(np.array([1300] * 10 + [0, 0]))  # 12 are wanted, and the empty ones go together
        assert [part.tolist() for part in parts] == [[i] for i in range(10)] + [[10, 11]]
        for n in 1, 2, 7, 8, 15, 40:
            for threads in 1, 2, 8, 16:
                set_num_threads(threads)
                for lengths in np.full(n, 12), np.full(n, 1100), np.arange(n) + 90, np.arange(n) % 4 * 1100:
                    parts = layout.even_parts(lengths)
                    assert all(len(part) for part in parts) and len(parts) <= n
                    assert sorted(np.concatenate(parts or [np.arange(n)])) == list(range(n))
                    assert not parts or len(parts) >= 0.8 * threads
    finally:
        set_num_threads(before)
