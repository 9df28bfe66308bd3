"""The training step, accumulation and evaluation."""

import numpy as np
import pytest

from tinyenc import Classifier, CrossEntropy, Encoder, Layer, Parameter
from tinyenc.data import Batch, Batches
from tinyenc.optim import SGD, AdamW
from tinyenc.tape import NO_TAPE
from tinyenc.train import evaluate, train, train_step, windows

rng = np.random.default_rng(0)
EXAMPLES = [(rng.integers(5, 40, n).tolist(), int(n % 3)) for n in (4, 9, 2, 7, 5, 11, 3)]


def small_model(dropout=0.0, dtype=np.float64):
    encoder = Encoder(40, 8, 2, 16, 2, max_len=16, dropout=dropout, rng=1)
    return Classifier(encoder, 3, dropout=dropout, rng=2).astype(dtype)


class TokenTagger(Layer):
    """An encoder with a linear map on every token, small enough to stand here."""

    def __init__(self):
        self.encoder = Encoder(40, 8, 2, 16, 1, max_len=16, dropout=0.0, rng=1)
        self.out = Parameter(rng.standard_normal((8, 4)))
        self.astype(np.float64)

    def forward(self, ids, mask=None, tape=NO_TAPE):
        states = self.encoder.forward(ids, mask, tape)
        tape.push(self, states)
        return states @ self.out.data

    def backward(self, dy, tape):
        (states,) = tape.pop(self)
        self.out.grad += states.reshape(-1, 8).T @ dy.reshape(-1, 4)
        self.encoder.backward(dy @ self.out.data.T, tape)


def tagged_batch(rows, ignored=()):
    """A batch of a few sentences with a label for each token; those of `ignored` count for nothing."""
    lengths = [3, 7, 5, 2]
    ids = np.full((len(rows), 7), 0)
    labels = np.full((len(rows), 7), -100)
    for place, row in enumerate(rows):
        n = lengths[row]
        ids[place, :n] = np.arange(5 + row, 5 + row + n)
        labels[place, :n] = -100 if row in ignored else np.arange(n) % 4
    return Batch(ids, ids != 0, labels, np.array(rows))


@pytest.mark.parametrize("parts", [[[0, 1, 2], [3]], [[0], [1], [2], [3]], [[3], [2, 0], [1]]], ids=str)
def test_accumulated_batches_make_the_step_of_one_batch(parts):
    """D07: token-weighted, whatever the cut and the order; sentence 2's labels are all ignored."""
    after = []
    for window in ([tagged_batch([0, 1, 2, 3], {2})], [tagged_batch(part, {2}) for part in parts]):
        model = TokenTagger()
        model.out.data[...] = np.arange(32).reshape(8, 4) / 10
        loss, norm, n_targets = train_step(model, CrossEntropy(), window, SGD(model, 0.1), max_norm=0.5)
        assert n_targets == 12 and norm > 0.5  # so that clipping had something to do, once
        after.append((model.state_dict(), float(loss), norm))
    assert after[0][1:] == pytest.approx(after[1][1:], rel=1e-12)
    for name, array in after[0][0].items():
        np.testing.assert_allclose(after[1][0][name], array, rtol=0, atol=1e-12, err_msg=name)


def test_mean_loss_is_over_tokens_not_over_batches():
    """D07: losses {1, 2, 3} and {10} have the mean 4."""

    class Fixed(CrossEntropy):
        def forward(self, logits, targets, tape=NO_TAPE):
            tape.push(self)
            return np.array(targets[targets != -100].mean())

        def backward(self, dloss, tape):
            tape.pop(self)
            return np.zeros((1, 7, 4))

    batches = [tagged_batch([1]), tagged_batch([1])]
    batches = [batch._replace(labels=np.array([labels + [-100] * (7 - len(labels))]))
               for batch, labels in zip(batches, ([1, 2, 3], [10]))]
    model = TokenTagger()
    assert train_step(model, Fixed(), batches, SGD(model, 0.1))[0] == 4.0


def test_last_window_of_an_epoch_takes_what_is_left():
    assert [len(window) for window in windows(range(7), 3)] == [3, 3, 1]
    model = small_model()
    steps = list(train(model, CrossEntropy(), Batches(EXAMPLES, 2), SGD(model, 0.1), 1, accumulate=3))
    assert len(steps) == 2 and sum(step.n_targets for step in steps) == 7


def test_batch_without_targets_changes_nothing():
    model = small_model()
    before = model.state_dict()
    batch = Batch(np.array([[5, 6]]), np.ones((1, 2), bool), np.array([-100]), np.array([0]))
    loss, norm, n_targets = train_step(model, CrossEntropy(), [batch], AdamW(model, 0.1, weight_decay=0))
    assert (float(loss), norm, n_targets) == (0, 0, 0)
    assert all((before[name] == array).all() for name, array in model.state_dict().items())


def test_loss_that_is_not_finite_stops_before_the_weights_are_touched():
    model = small_model()
    optimizer = AdamW(model, 0.1)
    model.out.weight.data[0, 0] = np.nan
    before = model.state_dict()
    message = "loss is nan at step 1, whose learning rate is 0.1"
    with pytest.warns(RuntimeWarning, match="skipped"), pytest.raises(FloatingPointError, match=message):
        next(train(model, CrossEntropy(), Batches(EXAMPLES, 4), optimizer, 1))
    assert optimizer.n_steps == 0
    np.testing.assert_equal(model.state_dict(), before)
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_gradient_that_is_not_finite_skips_the_step_and_the_run_goes_on():
    """G05, in the loop: the next clean step equals what it would have been."""

    class Spoilt(CrossEntropy):
        spoil = True

        def backward(self, dloss, tape):
            return super().backward(dloss, tape) * (np.inf if self.spoil else 1)

    model, clean = small_model(), small_model()
    optimizer, loss = AdamW(model, 0.1), Spoilt()
    batches = Batches(EXAMPLES, 7, shuffle=False)
    with pytest.warns(RuntimeWarning, match="skipped"), np.errstate(invalid="ignore"):
        (step,) = train(model, loss, batches, optimizer, 1)
    assert step.skipped and optimizer.n_steps == 0
    loss.spoil = False
    next(train(model, loss, batches, optimizer, 2))
    next(train(clean, CrossEntropy(), Batches(EXAMPLES, 7, shuffle=False), AdamW(clean, 0.1), 1))
    np.testing.assert_equal(model.state_dict(), clean.state_dict())


def test_backward_that_forgets_a_part_is_found_at_the_first_step():
    model = small_model()
    model.encoder.backward = lambda dstates, tape: None
    with pytest.raises(RuntimeError, match="records are left on the tape"):
        next(train(model, CrossEntropy(), Batches(EXAMPLES, 7), SGD(model, 0.1), 1))


def test_same_seed_gives_the_same_losses_to_the_bit_and_another_seed_others():
    def losses(seed):
        model = small_model(dropout=0.3, dtype=np.float32)
        return [float(step.loss) for step in
                train(model, CrossEntropy(), Batches(EXAMPLES, 3, seed=seed), AdamW(model, 0.01), 3, seed=seed)]

    assert losses(0) == losses(0) != losses(1)


def test_every_step_draws_its_own_dropout():
    model = small_model(dropout=0.5)
    seen = []
    model.drop.draw = lambda x, tape, draw=model.drop.draw: seen.append(draw(x, tape)) or seen[-1]
    list(train(model, CrossEntropy(), Batches(EXAMPLES, 7), SGD(model, 0.0), 3))
    assert len({mask.seed for mask in seen}) == 3


def test_evaluation_counts_targets_not_batches_and_drops_nothing():
    model = small_model(dropout=0.5)
    whole = evaluate(model, CrossEntropy(), Batches(EXAMPLES, 7, shuffle=False))
    pieces = evaluate(model, CrossEntropy(), Batches(EXAMPLES, 2, shuffle=False))
    assert whole == pytest.approx(pieces, rel=1e-12) and whole["n_targets"] == 7
    assert all(type(value) in (float, int) for value in whole.values())


def test_accumulate_of_zero_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match="accumulate must be a whole number of at least 1, got 0"):
        next(train(model, CrossEntropy(), Batches(EXAMPLES, 7), SGD(model, 0.1), 1, accumulate=0))


@pytest.mark.parametrize("fault", [IndexError, KeyboardInterrupt])
def test_step_broken_off_leaves_no_gradients_to_the_next(fault):
    model, clean = small_model(), small_model()
    first, second, third = Batches(EXAMPLES, 3, shuffle=False)

    class BrokenOff(CrossEntropy):
        def backward(self, dloss, tape):
            if self.count_down == 0:
                raise fault
            self.count_down -= 1
            return super().backward(dloss, tape)

    loss = BrokenOff()
    loss.count_down = 1
    with pytest.raises(fault):
        train_step(model, loss, [first, second], SGD(model, 1.0))
    train_step(model, CrossEntropy(), [third], SGD(model, 1.0))
    train_step(clean, CrossEntropy(), [third], SGD(clean, 1.0))
    np.testing.assert_equal(model.state_dict(), clean.state_dict())


def test_evaluation_sees_every_example_and_leaves_the_place_of_the_batches():
    model = small_model()
    batches = Batches(EXAMPLES, 2)
    next(iter(batches))
    assert evaluate(model, CrossEntropy(), batches)["n_targets"] == 7
    assert (batches.epoch, batches.position) == (0, 1)


def test_training_batches_may_be_evaluated_inside_the_loop():
    model = small_model()
    batches = Batches(EXAMPLES, 2)
    steps = 0
    for _ in train(model, CrossEntropy(), batches, SGD(model, 0.1), 2):
        evaluate(model, CrossEntropy(), batches)
        steps += 1
    assert steps == 8


def test_seed_of_numpy_is_the_same_as_pythons():
    def weights(seed):
        model = small_model(dropout=0.5)
        list(train(model, CrossEntropy(), Batches(EXAMPLES, 4), SGD(model, 0.1), 1, seed=seed))
        return model.out.weight.data

    np.testing.assert_array_equal(weights(np.int64(5)), weights(5))
    assert (weights(np.int64(5)) != weights(np.int64(6))).any()
