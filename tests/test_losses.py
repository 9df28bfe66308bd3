import math

import numpy as np
import pytest
from support import no_float_trouble, padded_batch, random, small_encoder

from tinyenc import CrossEntropy, Embedding, Layer, Linear, Tape
from tinyenc.optim import SGD, Adam, clip_grad_norm

LOGITS = np.array([[2.0, 1, 0, -1], [0, 1, 2, 3], [1, 1, 1, 1], [3, 0, 0, 0]])
TARGETS = np.array([0, -100, 2, -100])


def both_ways(loss_fn, logits, targets, weight=1.0):
    tape = Tape()
    return loss_fn.forward(logits, targets, tape), loss_fn.backward(weight, tape)


# D02
def test_ignored_targets_count_neither_in_the_loss_nor_in_the_smoothing():
    loss, _ = both_ways(CrossEntropy(), LOGITS, TARGETS)
    assert loss == pytest.approx(0.9132420298405429, rel=1e-13)
    loss, dlogits = both_ways(CrossEntropy(label_smoothing=0.1), LOGITS, TARGETS)
    assert loss == pytest.approx(0.9882420298405429, rel=1e-13)
    np.testing.assert_allclose(dlogits[0], [-0.14054287005601385, 0.10594140904495508, 0.031072159371016286,
                                            0.0035293016400424933], rtol=1e-12)
    np.testing.assert_allclose(dlogits[2], [0.1125, 0.1125, -0.3375, 0.1125], rtol=1e-12)
    assert not dlogits[[1, 3]].any()


# D02: the sum over targets, for a mean taken over several batches
def test_count_tells_how_many_targets_the_mean_is_over():
    loss_fn = CrossEntropy(label_smoothing=0.1)
    assert loss_fn.count(TARGETS) == loss_fn.count(TARGETS.tolist()) == loss_fn.count(tuple(TARGETS)) == 2
    assert float(loss_fn(LOGITS, TARGETS)) * 2 == pytest.approx(1.976484059681086, rel=1e-13)


# D01
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_without_a_single_target_is_exactly_zero(smoothing):
    loss_fn = CrossEntropy(smoothing)
    with no_float_trouble():
        loss, dlogits = both_ways(loss_fn, LOGITS, np.full(4, -100))
    assert loss == 0 and not dlogits.any() and dlogits.shape == LOGITS.shape
    assert loss_fn.count(np.full(4, -100)) == 0


# D01, G03
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_step_after_a_batch_without_targets_changes_nothing(optimizer):
    layer, tape, loss_fn, x = Linear(3, 4, rng=0), Tape(), CrossEntropy(), random(4, 3, dtype=np.float32)
    before = layer.state_dict()
    loss_fn.forward(layer.forward(x, tape), np.full(4, -100), tape)
    layer.backward(loss_fn.backward(1.0, tape), tape)
    optimizer(layer, lr=0.1).step(max_norm=1.0)
    assert all(np.array_equal(before[name], a) for name, a in layer.state_dict().items())


# D02
def test_another_number_may_mean_ignore():
    targets = np.where(TARGETS == -100, 3, TARGETS)
    assert both_ways(CrossEntropy(ignore=3), LOGITS, targets)[0] == pytest.approx(0.9132420298405429, rel=1e-13)


# B01
def test_huge_logits_give_a_finite_loss_and_gradient():
    loss_fn, logits = CrossEntropy(), np.array([[1, -10, 1000], [1e30, -1e30, 0]], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        loss, dlogits = both_ways(loss_fn, logits, np.array([0, 0]))
    assert loss == pytest.approx(999 / 2)
    np.testing.assert_allclose(dlogits, [[-0.5, 0, 0.5], [0, 0, 0]], atol=1e-7)


def test_class_ruled_out_by_minus_infinity_gets_no_gradient():
    logits = np.array([[1, -np.inf, 2, 0], [-np.inf, -np.inf, 3, -np.inf]])
    with no_float_trouble():
        loss, dlogits = both_ways(CrossEntropy(), logits, np.array([0, 2]))
    assert loss == pytest.approx(np.log(np.exp([0, 1, -1]).sum()) / 2, rel=1e-14)
    assert not dlogits[~np.isfinite(logits)].any() and dlogits[0, [0, 2, 3]].all()


def test_tape_holds_one_array_of_the_logits_size():
    logits, tape = random(200, 300, dtype=np.float32), Tape()
    CrossEntropy(0.1).forward(logits, np.zeros(200, int), tape)
    assert tape.nbytes < 1.1 * logits.nbytes


def test_mean_is_over_all_leading_axes():
    logits, targets = random(2, 3, 5), np.array([[0, 4, -100], [2, -100, -100]])
    loss, dlogits = both_ways(CrossEntropy(), logits, targets)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert loss == pytest.approx(-(logp[0, 0, 0] + logp[0, 1, 4] + logp[1, 0, 2]) / 3, rel=1e-13)
    assert dlogits.shape == logits.shape and not dlogits[targets == -100].any()


def test_gradient_is_scaled_by_the_number_given_to_backward():
    (_, one), (_, three) = (both_ways(CrossEntropy(0.1), LOGITS, TARGETS, w) for w in (1.0, 3.0))
    np.testing.assert_allclose(three, 3 * one, rtol=1e-14)


def test_smoothed_gradient_of_each_row_sums_to_zero_and_is_its_slope():
    loss_fn, logits, h = CrossEntropy(0.2), random(3, 5), 1e-6
    targets, direction = np.array([0, 3, -100]), random(3, 5, seed=1)
    _, dlogits = both_ways(loss_fn, logits, targets)
    np.testing.assert_allclose(dlogits.sum(axis=-1), 0, atol=1e-15)
    slope = (loss_fn(logits + h * direction, targets) - loss_fn(logits - h * direction, targets)) / (2 * h)
    assert slope == pytest.approx((dlogits * direction).sum(), rel=1e-7)


def test_half_precision_loss_is_computed_in_float32():
    logits = (random(400, 7) * 5).astype(np.float16)
    targets = np.arange(400) % 7
    loss, dlogits = both_ways(CrossEntropy(0.1), logits, targets)
    exact, exact_d = both_ways(CrossEntropy(0.1), logits.astype(np.float64), targets)
    assert loss.dtype == np.float32 and dlogits.dtype == np.float16
    assert loss == pytest.approx(exact, rel=1e-6)
    np.testing.assert_allclose(dlogits, exact_d, rtol=1e-3, atol=1e-6)


def test_targets_may_be_a_list_or_any_integer_dtype():
    expected = CrossEntropy()(LOGITS, TARGETS)
    assert CrossEntropy()(LOGITS, TARGETS.tolist()) == expected
    assert CrossEntropy()(LOGITS, TARGETS.astype(np.int8)) == expected
    assert CrossEntropy(ignore=255)(LOGITS, np.array([0, 255, 2, 255], np.uint8)) == expected


class Tagger(Layer):
    """A class for every token: a model whose batches hold different numbers of targets."""

    def __init__(self):
        self.encoder = small_encoder()
        self.out = Linear(16, 5, rng=1).astype(np.float64)

    def forward(self, ids, mask, tape):
        return self.out.forward(self.encoder.forward(ids, mask, tape), tape)

    def backward(self, dy, tape):
        self.encoder.backward(self.out.backward(dy, tape), tape)


def accumulated(parts):
    """Loss, gradients and parameters after one clipped SGD step, with the batch of four cut into parts."""
    ids, mask = padded_batch([6, 3, 5, 2])
    labels = np.where(mask, ids % 5, -100)
    labels[3] = -100  # one sequence has nothing to say
    model, loss_fn, total = Tagger(), CrossEntropy(0.1), 0.0
    n = loss_fn.count(labels[sorted(i for part in parts for i in part)])
    for part in parts:
        tape, share = Tape(), loss_fn.count(labels[part]) / n
        total += share * float(loss_fn.forward(model.forward(ids[part], mask[part], tape), labels[part], tape))
        model.backward(loss_fn.backward(share, tape), tape)
    grads = np.concatenate([p.grad.ravel() for p in model.parameters()])
    clip_grad_norm(model, 0.5)
    SGD(model, lr=0.1).step()
    return total, grads, np.concatenate([p.data.ravel() for p in model.parameters()])


# D07
@pytest.mark.parametrize("parts", [[[0, 1, 2], [3]], [[0], [1], [2], [3]], [[2], [0, 3], [1]], [[3], [2, 1, 0]]])
def test_accumulated_gradients_are_those_of_one_batch_however_it_is_cut(parts):
    for actual, expected in zip(accumulated(parts), accumulated([[0, 1, 2, 3]])):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


# D07
def test_mean_over_batches_counts_targets_and_not_batches():
    token_losses = [np.array([1.0, 2, 3]), np.array([10.0])]
    loss_fn, total, n = CrossEntropy(), 0.0, 4
    for losses in token_losses:
        logits = np.stack([np.zeros_like(losses), np.log(np.expm1(losses))], axis=-1)  # -log p(class 0) is the loss
        targets = np.zeros(len(losses), int)
        assert float(loss_fn(logits, targets)) == pytest.approx(losses.mean())
        total += loss_fn.count(targets) / n * float(loss_fn(logits, targets))
    assert total == pytest.approx(4.0, rel=1e-12)  # and not 6


class TiedOut(Layer):
    """h weight^T, with the weight of an embedding."""

    def __init__(self, weight):
        self.weight = weight

    def forward(self, h, tape):
        tape.push(self, h)
        return h @ self.weight.data.T

    def backward(self, dy, tape):
        (h,) = tape.pop(self)
        self.weight.grad += dy.T @ h
        return dy @ self.weight.data


class TinyLM(Layer):
    """logits of the next token: one table of vectors, at both ends."""

    def __init__(self):
        self.embed = Embedding(2, 1).astype(np.float64)
        self.embed.weight.data[...] = [[2], [3]]
        self.out = TiedOut(self.embed.weight)

    def forward(self, ids, tape):
        return self.out.forward(self.embed.forward(ids, tape), tape)

    def backward(self, dy, tape):
        self.embed.backward(self.out.backward(dy, tape), tape)


# G10
def test_tied_embedding_gets_the_gradients_of_both_its_uses_and_is_one_parameter():
    model, tape, loss_fn = TinyLM(), Tape(), CrossEntropy()
    loss = loss_fn.forward(model.forward(np.array([0]), tape), np.array([0]), tape)
    model.backward(loss_fn.backward(1.0, tape), tape)
    assert loss == pytest.approx(2.1269280110429727, rel=1e-14)
    expected = np.array([[-0.8807970779778826], [1.7615941559557646]])
    np.testing.assert_allclose(model.embed.weight.grad, expected, rtol=1e-12)
    assert [name for name, _ in model.named_parameters()] == ["embed.weight"]
    assert model.n_parameters == 2
    assert clip_grad_norm(model, 100.0) == pytest.approx(math.sqrt((expected**2).sum()), rel=1e-12)
    SGD(model, lr=1.0).step()
    np.testing.assert_allclose(model.embed.weight.data, [[2], [3]] - expected, rtol=1e-12)  # moved once
    model.load_state_dict({"embed.weight": np.array([[5.0], [6]])})
    assert model.out.weight.data.tolist() == [[5], [6]]


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_outside_zero_to_one_is_refused(smoothing):
    with pytest.raises(ValueError, match=rf"\[0, 1\), got {smoothing}"):
        CrossEntropy(smoothing)
