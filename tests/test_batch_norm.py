import math
import re

import numpy as np
import pytest
from support import gradients, padded_batch, random, small_classifier

from tinyenc import BatchNorm, BatchNormEncoderLayer, CrossEntropy, Recompute, Tape, causal_mask, encoder, padding_mask
from tinyenc.optim import AdamW

IDS, TOKENS = padded_batch([5, 0, 3])
LABELS = [1, 0, 2]
PADDING = padding_mask(TOKENS)


def normed(values, axis=0):
    values = np.asarray(values, np.float64)
    return (values - values.mean(axis)) / np.sqrt(values.var(axis) + 1e-5)


def test_output_has_mean_zero_and_variance_one_over_batch_and_length():
    x = 3 + 2 * random(4, 5, 6)
    y = BatchNorm(6).forward(x, tape=Tape(seed=0))
    np.testing.assert_allclose(y, normed(x.reshape(20, 6)).reshape(4, 5, 6), rtol=1e-12)


def test_padding_does_not_count_and_packing_gives_the_same():
    x, other = random(3, 5, 4), random(3, 5, 4)
    other[TOKENS] = x[TOKENS]
    layer = BatchNorm(4).astype(np.float64)
    y = layer.forward(x, PADDING, Tape(seed=0))
    np.testing.assert_allclose(y[TOKENS], normed(x[TOKENS]), rtol=1e-12)
    np.testing.assert_allclose(layer.forward(other, PADDING.astype(int), Tape(seed=0))[TOKENS], y[TOKENS], rtol=1e-13)
    np.testing.assert_allclose(layer.forward(x[TOKENS], tape=Tape(seed=0)), y[TOKENS], rtol=1e-13)


def test_mask_per_query_does_not_tell_which_tokens_are_real():
    x, layer = random(3, 5, 4), BatchNorm(4)
    assert np.array_equal(layer.forward(x, PADDING & causal_mask(5), Tape(seed=0)), layer.forward(x, tape=Tape(seed=0)))


def test_running_statistics_move_by_the_momentum_with_the_variance_of_a_sample():
    layer = BatchNorm(2, momentum=0.1)
    layer.forward(np.array([[[1.0, 0], [3, 10]]]), tape=Tape(seed=0))
    np.testing.assert_allclose(layer.running_mean.data, [0.2, 0.5], rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.data, [0.9 + 0.1 * 2, 0.9 + 0.1 * 50], rtol=1e-6)


def test_statistics_are_used_and_left_alone_where_the_tape_has_no_seed():
    x, layer = random(2, 3, 4), BatchNorm(4).astype(np.float64)
    layer.running_mean.data[...], layer.running_var.data[...] = 2, 9
    before = layer.state_dict()
    for tape in Tape(), Tape(keep=False):
        np.testing.assert_allclose(layer.forward(x, tape=tape), (x - 2) / math.sqrt(9 + 1e-5), rtol=1e-13)
    np.testing.assert_equal(layer.state_dict(), before)


def batch_norm_classifier(dtype=np.float64, dropout=0.2):
    return small_classifier(BatchNormEncoderLayer, dtype, dropout)


def statistics(model):
    return {name: array for name, array in model.state_dict().items() if "running" in name}


def test_recomputed_layer_moves_them_once_and_gives_the_same_bits():
    plain, wrapped = batch_norm_classifier(), batch_norm_classifier()
    wrapped.encoder.layers = [Recompute(layer) for layer in wrapped.encoder.layers]
    assert len(statistics(plain)) == 8
    before = statistics(plain)
    for _ in range(2):
        results = [gradients(model, IDS, TOKENS, LABELS, seed=1) for model in (plain, wrapped)]
        np.testing.assert_equal(results[1], results[0])
    np.testing.assert_equal(statistics(wrapped), statistics(plain))
    assert not any(np.array_equal(before[name], array) for name, array in statistics(plain).items())


def test_state_carries_them_and_the_optimiser_does_not_see_them():
    model, fresh = batch_norm_classifier(), batch_norm_classifier()
    gradients(model, IDS, TOKENS, LABELS, seed=1)
    optimizer, before = AdamW(model, 0.1, weight_decay=0.5), statistics(model)
    optimizer.step()
    np.testing.assert_equal(statistics(model), before)
    assert not any("running" in name for name in optimizer.state_dict())
    assert model.n_parameters == sum(a.size for a in model.state_dict().values()) - sum(a.size for a in before.values())

    fresh.load_state_dict(model.state_dict())
    assert np.array_equal(fresh(IDS, TOKENS), model(IDS, TOKENS))
    without = model.state_dict()
    del without["encoder.layers.1.norm2.running_var"]
    with pytest.raises(ValueError, match="missing encoder.layers.1.norm2.running_var"):
        fresh.load_state_dict(without)


@pytest.mark.parametrize("seed", [None, 3], ids=["inference", "training"])
def test_encoder_gives_the_same_whether_the_batch_is_packed_or_padded(seed, monkeypatch):
    results = []
    for padded in False, True:
        monkeypatch.setattr(encoder, "has_holes", lambda tokens, padded=padded: padded)
        model = batch_norm_classifier(dropout=0)
        results.append((*gradients(model, IDS, TOKENS, LABELS, seed), statistics(model)))
    (loss, grads, found), (loss2, grads2, found2) = results
    assert loss == pytest.approx(loss2, rel=1e-12)
    for ours, theirs in (grads, grads2), (found, found2):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_sentence_depends_on_its_neighbours_in_training_and_not_in_inference():
    model, alone = batch_norm_classifier(dropout=0), IDS[:1]
    assert not np.allclose(model.forward(IDS, TOKENS, Tape(0))[:1], model.forward(alone, TOKENS[:1], Tape(0)))
    np.testing.assert_allclose(model(IDS, TOKENS)[:1], model(alone, TOKENS[:1]), rtol=1e-12)


@pytest.mark.parametrize("x, mask", [(np.full((2, 3, 4), np.inf), None), (np.full((2, 3, 4), np.nan), None),
                                     (np.ones((2, 3, 4)), np.zeros((2, 1, 1, 3), bool)), (np.ones((0, 4)), None)],
                         ids=["infinite", "nan", "all-padding", "empty"])
def test_batch_that_tells_nothing_moves_nothing(x, mask):
    layer = BatchNorm(4)
    before = layer.state_dict()
    with np.errstate(invalid="ignore"):
        y = layer.forward(x, mask, Tape(seed=0))
    np.testing.assert_equal(layer.state_dict(), before)
    assert np.isfinite(y).all() or not np.isfinite(x).all()


def test_one_token_gives_its_bias():
    layer = BatchNorm(4)
    layer.bias.data[...] = 3
    assert (layer.forward(random(1, 1, 4, dtype=np.float32), tape=Tape(seed=0)) == 3).all()
    assert np.isfinite(layer.running_var.data).all()


def test_half_precision_keeps_its_dtype_and_statistics_in_float32():
    layer, tape = BatchNorm(2).astype(np.float16), Tape(seed=0)
    x = np.tile(np.array([[-300, 300]], np.float16), (8, 1)) * np.array([[1], [-1]] * 4, np.float16)
    y = layer.forward(x, tape=tape)  # 300^2 is inf in float16
    assert y.dtype == np.float16 and np.array_equal(abs(y), np.ones_like(y))
    assert layer.running_var.data.dtype == layer.weight.grad.dtype == np.float32
    assert layer.running_var.data == pytest.approx(0.9 + 0.1 * 300**2 * 8 / 7, rel=1e-6)
    assert layer.backward(np.ones_like(y), tape).dtype == np.float16


def test_model_with_it_learns():
    model = batch_norm_classifier(np.float32, dropout=0)
    ids, tokens = padded_batch([5, 3, 7, 4, 6, 2])
    optimizer, loss_fn, labels = AdamW(model, 3e-3), CrossEntropy(), np.array([0, 1, 2, 0, 1, 2])
    for step in range(60):
        tape = Tape(seed=step)
        loss_fn.forward(model.forward(ids, tokens, tape), labels, tape)
        model.backward(loss_fn.backward(1.0, tape), tape)
        optimizer.step()
        model.zero_grad()
    assert loss_fn(model.forward(ids, tokens, Tape(0)), labels) < 0.05
    assert loss_fn(model(ids, tokens), labels) < 0.2  # with the running statistics


def test_bad_settings_and_masks_are_refused():
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        BatchNorm(4, eps=0)
    with pytest.raises(ValueError, match=r"momentum must be in \(0, 1\], got 0"):
        BatchNorm(4, momentum=0)
    with pytest.raises(ValueError, match=r"mask of shape \(3, 5\) does not broadcast"):
        BatchNorm(4).forward(random(3, 5, 4), TOKENS, Tape(seed=0))
    for shape in (2, 1, 1, 5), (3, 1, 1, 4), (3, 1, 1, 0):
        with pytest.raises(ValueError, match=rf"mask of shape {re.escape(str(shape))} does not broadcast"):
            BatchNorm(4).forward(random(3, 5, 4), np.ones(shape, bool), Tape(seed=0))
