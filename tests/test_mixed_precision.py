"""Half-precision activations, float32 masters, and the loss scale between them."""

import math
import warnings

import numpy as np
import pytest
from support import SeenTape, padded_batch, watch

from tinyenc import Classifier, CrossEntropy, Encoder, EncoderLayer, PostLNEncoderLayer, checkpoint
from tinyenc.checkpoint import CheckpointError
from tinyenc.data import Batches
from tinyenc.fit import fit
from tinyenc.optim import AdamW, LossScale
from tinyenc.schedules import linear
from tinyenc.train import train, train_step

rng = np.random.default_rng(0)
EXAMPLES = [(rng.integers(5, 40, n).tolist(), int(n % 3)) for n in [4, 9, 2, 7, 5, 11, 3, 6, 8, 10]]


def new_model(dtype=np.float16, dropout=0.1, layer=EncoderLayer):
    encoder = Encoder(40, 16, 2, 32, 2, max_len=16, dropout=dropout, layer=layer, rng=0)
    return Classifier(encoder, 3, dropout=dropout, rng=0).astype(dtype)


def window(n=1):
    return [batch for _, batch in zip(range(n), Batches(EXAMPLES, 5, shuffle=False))]


def everything(model, optimizer):
    return model.state_dict() | {f"optimizer {name}": array for name, array in optimizer.state_dict().items()}


@pytest.mark.parametrize("layer", [EncoderLayer, PostLNEncoderLayer])
def test_half_precision_trains_to_about_the_loss_of_float32(layer):
    def losses(dtype, loss_scale):
        model = new_model(dtype, layer=layer)
        run = train(model, CrossEntropy(), Batches(EXAMPLES, 5), AdamW(model, linear(0.01, 5, 80)), 40,
                    loss_scale=loss_scale)
        return np.array([float(step.loss) for step in run])

    full, half = losses(np.float32, None), losses(np.float16, LossScale(2.0**10))
    assert full[:10].mean() > 1 and full[-10:].mean() < 0.1
    assert abs(half[:10] - full[:10]).max() < 0.03
    assert half[-10:].mean() < 0.1


def test_every_array_between_layers_is_half_with_statistics_softmax_sums_and_masters_in_float32():
    """B11, with the documented exceptions."""
    model, loss_fn, seen = new_model(), CrossEntropy(), []
    ids, tokens = padded_batch([5, 0, 3])
    optimizer, labels = AdamW(model, lr=np.float64(1e-3)), np.array([1, 0, 2])
    watch(model, seen)
    for step in range(3):
        tape = SeenTape(seed=step)
        loss = loss_fn.forward(model.forward(ids, tokens.astype(np.int64), tape), labels, tape)
        held = [(where, a) for where, a in tape.seen if a.dtype.kind == "f"]
        model.backward(loss_fn.backward(1024.0, tape), tape)
        optimizer.step(1.0, 1024.0)
        model.zero_grad()
    returned = [(where, a.dtype) for where, a in seen if a.dtype.kind == "f"]
    assert len(returned) > 200 and {dtype for _, dtype in returned} == {np.dtype(np.float16)}
    wide = {where for where, a in held if a.dtype == np.float32}
    assert wide == {"saved by LayerNorm", "saved by MeanPool", "saved by CrossEntropy"}
    assert all(a.size <= 8 for where, a in held if a.dtype == np.float32 and where != "saved by CrossEntropy")
    assert {a.dtype for _, a in held} == {np.dtype(np.float16), np.dtype(np.float32)}
    assert loss.dtype == np.float32 and {p.data.dtype for p in model.parameters()} == {np.dtype(np.float16)}
    assert {p.grad.dtype for p in model.parameters()} == {np.dtype(np.float32)}
    kept = {name: a.dtype for name, a in optimizer.state_dict().items() if a.dtype.kind == "f"}
    assert set(kept.values()) == {np.dtype(np.float32)} and "out.weight.master" in kept


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_power_of_two_changes_no_bit_of_a_step_clipped_or_not(max_norm):
    after = []
    for loss_scale in None, LossScale(2.0**12):
        model = new_model(np.float32)
        optimizer = AdamW(model, 0.01)
        results = [train_step(model, CrossEntropy(), window(2), optimizer, 0, max_norm, loss_scale) for _ in range(3)]
        after.append((results, everything(model, optimizer)))
    assert all(norm > 0.1 for _, norm, _ in after[0][0])
    np.testing.assert_equal(after[1], after[0])


def test_small_gradients_survive_with_a_scale_and_are_lost_without():
    """Gradients about 1e-8, of which float16 has nothing."""

    class Small(CrossEntropy):
        def backward(self, dloss, tape):
            return super().backward(dloss * 1e-7, tape)

    norms = {}
    for name, dtype, loss_scale in [("full", np.float32, None), ("half", np.float16, None),
                                    ("scaled", np.float16, LossScale(2.0**24))]:
        model = new_model(dtype, dropout=0)
        norms[name] = train_step(model, Small(), window(), AdamW(model, 0.01), loss_scale=loss_scale)[1]
    assert norms["half"] < 0.5 * norms["full"]
    assert norms["scaled"] == pytest.approx(norms["full"], rel=0.01)


def test_overflow_skips_steps_leaving_everything_and_halves_until_a_step_is_what_it_would_have_been():
    model, optimizer, loss_scale = new_model(), None, LossScale(LossScale.LARGEST)
    optimizer = AdamW(model, linear(0.01, 5, 50))
    before = everything(model, optimizer)
    norms = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is no news
        while not norms or not math.isfinite(norms[-1]):
            np.testing.assert_equal(everything(model, optimizer), before)
            norms.append(train_step(model, CrossEntropy(), window(), optimizer, loss_scale=loss_scale)[1])
    assert 3 < len(norms) < 32 and optimizer.n_skipped == len(norms) - 1
    assert loss_scale.factor == LossScale.LARGEST / 2**(len(norms) - 1)

    other = new_model()
    its_optimizer = AdamW(other, linear(0.01, 5, 50))
    train_step(other, CrossEntropy(), window(), its_optimizer, loss_scale=LossScale(loss_scale.factor))
    assert optimizer.n_steps == 1 and optimizer.lr == its_optimizer.lr
    np.testing.assert_equal(everything(model, optimizer), everything(other, its_optimizer))


class Steps:
    """An optimiser whose gradient norms are given."""

    n_steps = 6

    def __init__(self, *norms):
        self.norms = list(norms)

    def step(self, max_norm, loss_scale):
        return self.norms.pop(0)


def factors(loss_scale, *norms):
    optimizer = Steps(*norms)
    return [(loss_scale.step(optimizer), loss_scale.factor)[1] for _ in norms]


def test_factor_doubles_after_so_many_good_steps_in_a_row():
    inf = math.inf
    assert factors(LossScale(8, grow_after=2), 1, 1, 1, inf, 1, 1, inf, inf) == [8, 16, 16, 8, 8, 16, 8, 4]
    assert factors(LossScale(8, grow_after=2), 1, math.nan, 1, 1) == [8, 4, 4, 8]
    assert factors(LossScale(LossScale.LARGEST, grow_after=1), 1) == [LossScale.LARGEST]
    assert factors(LossScale(1.5), inf) == [1]


def test_gradient_that_no_scale_helps_is_an_error():
    loss_scale = LossScale(2)
    assert factors(loss_scale, math.inf) == [1]
    with pytest.raises(FloatingPointError, match="norm is inf at step 7 although the loss scale is 1"):
        loss_scale.step(Steps(math.inf))


def test_forward_that_overflows_is_an_error_with_the_weights_as_they_were():
    model = new_model()
    model.encoder.layers[0].ffn.w_2.weight.data[...] = 60000
    before = model.state_dict()
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        train_step(model, CrossEntropy(), window(), AdamW(model, 0.01), loss_scale=LossScale())
    np.testing.assert_equal(model.state_dict(), before)


@pytest.mark.parametrize("settings, message", [
    (dict(factor=0.5), r"from 1 to 2\*\*32, got 0.5"), (dict(factor=math.nan), "got nan"),
    (dict(factor=2.0**33), "got 8589934592"), (dict(grow_after=0), "grow_after must be at least 1, got 0")])
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LossScale(**settings)


def new_run():
    model = new_model()
    return model, Batches(EXAMPLES, 3), AdamW(model, linear(0.01, 3, 20)), LossScale(2.0**17, grow_after=3)


def steps_of(model, batches, optimizer, loss_scale, n):
    run = train(model, CrossEntropy(), batches, optimizer, 100, loss_scale=loss_scale)
    return [(float(step.loss), step.norm, loss_scale.factor) for _, step in zip(range(n), run)]


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_resumed_run_equals_one_that_never_stopped_to_the_bit(stop, tmp_path):
    """G11 in half precision; the factor falls and grows meanwhile."""
    pytest.importorskip("safetensors", reason="checkpoints need safetensors")
    whole, first, other = new_run(), new_run(), new_run()
    expected = steps_of(*whole, 12)
    changes = np.diff([factor for *_, factor in expected])
    assert changes.min() < 0 < changes.max()
    got = steps_of(*first, stop)
    model, batches, optimizer, loss_scale = first
    checkpoint.save(tmp_path / "run", model, optimizer, batches, 0, loss_scale=loss_scale)
    checkpoint.load(tmp_path / "run").restore(other[0], other[2], other[1], other[3])
    got += steps_of(*other, 12 - stop)
    np.testing.assert_equal(got, expected)
    np.testing.assert_equal(everything(other[0], other[2]), everything(whole[0], whole[2]))
    assert other[3].state_dict() == whole[3].state_dict()


def test_fit_goes_on_with_its_loss_scale(tmp_path):
    pytest.importorskip("safetensors", reason="checkpoints need safetensors")

    def run(n_epochs, path):
        model, batches, optimizer, loss_scale = new_run()
        rows = fit(model, CrossEntropy(), batches, optimizer, n_epochs, loss_scale=loss_scale, save_to=path,
                   save_every=2, progress=False)
        return rows, model.state_dict(), loss_scale.state_dict()

    expected = run(4, tmp_path / "whole")
    run(2, tmp_path / "parts")
    np.testing.assert_equal(run(4, tmp_path / "parts"), expected)
    assert sum(row["skipped"] for row in expected[0]) > 0


def test_run_with_a_loss_scale_goes_on_with_one_and_a_run_without_without(tmp_path):
    pytest.importorskip("safetensors", reason="checkpoints need safetensors")
    model, batches, optimizer, loss_scale = new_run()
    checkpoint.save(tmp_path / "with", model, optimizer, batches, 0, loss_scale=loss_scale)
    with pytest.raises(CheckpointError, match="its run has a loss scale, and this one has none"):
        checkpoint.load(tmp_path / "with").restore(model, optimizer, batches)
    checkpoint.load(tmp_path / "with").restore(model)  # to predict
    checkpoint.save(tmp_path / "without", model, optimizer, batches, 0)
    with pytest.raises(CheckpointError, match="it lacks loss_scale"):
        checkpoint.load(tmp_path / "without").restore(model, optimizer, batches, loss_scale)
    damaged = checkpoint.load(tmp_path / "with")._replace(loss_scale={"factor": 4.0})
    with pytest.raises(CheckpointError, match="the state of the loss scale lacks n_good"):
        damaged.restore(model, optimizer, batches, loss_scale)
    assert loss_scale.factor == 2.0**17
