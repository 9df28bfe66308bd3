"""fit: history, the best epoch, early stopping and the log."""

import json
import re

import numpy as np
import pytest
from test_train import EXAMPLES, small_model

from tinyenc import NO_TAPE, Classifier, CrossEntropy, Encoder
from tinyenc.data import Batches
from tinyenc.fit import fit
from tinyenc.optim import SGD, AdamW
from tinyenc.train import evaluate


def test_fit_learns_a_few_sentences():
    model = small_model()
    rows = fit(model, CrossEntropy(), Batches(EXAMPLES, 4), AdamW(model, 0.01), 40, progress=False)
    assert [row["epoch"] for row in rows] == list(range(1, 41))
    assert rows[-1]["loss"] < 0.05 < 0.5 < rows[0]["loss"]


def test_weights_of_the_best_epoch_are_the_models_at_the_end():
    model = small_model()
    valid = Batches(EXAMPLES, 7, shuffle=False)
    rows = fit(model, CrossEntropy(), Batches(EXAMPLES, 2), SGD(model, lambda step: 0.05 if step < 20 else 5.0), 8,
               valid, max_norm=None, progress=False)
    best = max(rows, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]))
    assert best is not rows[-1]  # the large rate did harm
    assert evaluate(model, CrossEntropy(), valid)["loss"] == best["valid_loss"]


def test_patience_stops_after_epochs_without_a_better_one():
    model = small_model()
    valid = Batches(EXAMPLES, 7, shuffle=False)
    rows = fit(model, CrossEntropy(), Batches(EXAMPLES, 7), SGD(model, 0.0), 50, valid, patience=3, progress=False)
    assert len(rows) == 4


def test_patience_without_validation_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match="patience 2 needs batches to validate on"):
        fit(model, CrossEntropy(), Batches(EXAMPLES, 7), SGD(model, 0.1), 1, patience=2)


def test_log_has_a_json_line_for_each_step_with_the_rate_it_used_and_one_for_each_epoch(tmp_path):
    model = small_model(dtype=np.float32)
    rows = fit(model, CrossEntropy(), Batches(EXAMPLES, 4), SGD(model, lambda step: step / 100), 2,
               Batches(EXAMPLES, 7), log=tmp_path / "log.jsonl", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    assert [line["lr"] for line in steps] == [0.01, 0.02, 0.03, 0.04]
    assert all(line["loss"] > 0 and line["norm"] > 0 for line in steps)
    assert [line for line in lines if "step" not in line] == rows


def test_skipped_step_is_reported_and_logged_as_null(tmp_path):
    class Spoilt(CrossEntropy):
        def backward(self, dloss, tape):
            return super().backward(dloss, tape) * np.inf

    model = small_model()
    with pytest.warns(RuntimeWarning, match="skipped"), np.errstate(invalid="ignore"):
        rows = fit(model, Spoilt(), Batches(EXAMPLES, 7), SGD(model, 0.1), 1, log=tmp_path / "log", progress=False)
    assert rows[0]["skipped"] == 1
    assert json.loads((tmp_path / "log").read_text().splitlines()[0])["norm"] is None


def test_progress_bar_counts_the_steps_of_the_epoch(capsys):
    model = small_model()
    fit(model, CrossEntropy(), Batches(EXAMPLES, 2), SGD(model, 0.1), 1)
    assert "epoch 1/1: 100%" in (err := capsys.readouterr().err) and "4/4" in err


@pytest.mark.parametrize("options, message", [
    ({"accumulate": 0}, "accumulate must be a whole number of at least 1, got 0"),
    ({"accumulate": 1.5}, "accumulate must be a whole number of at least 1, got 1.5"),
    ({"save_every": 0}, "save_every must be a whole number of at least 1, got 0"),
    ({"patience": 0}, "patience must be a whole number of at least 1, got 0"),
    ({"save_to": "no/such/folder/run"}, "no/such/folder/run: there is no folder"),
    ({"save_to": "."}, "[.]: is a folder"),
    ({"save_to": 240 * "n"}, "n: cannot be written: File name too long"),  # with what the name of the part adds
], ids=str)
def test_options_are_checked_before_any_work(options, message):
    model = small_model()
    batches = Batches(EXAMPLES, 7)
    with pytest.raises(ValueError, match=message):
        fit(model, CrossEntropy(), batches, SGD(model, 0.1), 1, progress=False, **options)
    assert (batches.epoch, batches.position) == (0, 0)


@pytest.mark.parametrize("example, message", [
    (([5, 6], 3), "target 3 is not one of 3 classes"),
    (([5, 6], -1), "target -1 is not one of 3 classes"),
    (([5, 40], 0), "token id 40 is outside the table of 40 tokens"),
    (([-1, 6], 0), "token id -1 is outside the table of 40 tokens"),
    ((17 * [5], 0), "sequence length 17 is more than max_len 16"),
], ids=str)
@pytest.mark.parametrize("where", ["batches", "valid"])
def test_examples_that_do_not_fit_the_model_are_found_before_any_work(example, message, where, tmp_path):
    good, bad = Batches(EXAMPLES, 2), Batches([*EXAMPLES, example], 2)
    batches, valid = (bad, good) if where == "batches" else (good, bad)
    model = small_model()
    before = model.state_dict()
    with pytest.raises((IndexError, ValueError), match=message) as caught:
        fit(model, CrossEntropy(), batches, SGD(model, 0.1), 1, valid, log=tmp_path / "log", progress=False)
    assert re.fullmatch(rf"in the batch of examples \[.*\b{len(EXAMPLES)}\b.*\]", *caught.value.__notes__)
    assert (batches.epoch, batches.position) == (0, 0) and not (tmp_path / "log").exists()
    np.testing.assert_equal(model.state_dict(), before)


def test_plain_list_of_examples_is_refused_with_what_to_take():
    model = small_model()
    with pytest.raises(TypeError, match="^batches must be data.Batches, .* got a list$"):
        fit(model, CrossEntropy(), EXAMPLES, SGD(model, 0.1), 1)


def test_extremes_are_the_batches_with_the_ends_of_length_id_and_of_the_labels_that_count():
    rows = [([6, 7], [1, 3]), ([6, 6, 6], 3 * [-100]), ([7, 7], [2, 2]), ([8, 7], [2, -1]), ([5, 7], [2, 2]),
            ([7, 9], [2, 2]), ([6, 6], [2, 4])]
    batches = Batches(rows, 1, shuffle=False, bucket=False)
    assert [batch.index.tolist() for batch in batches.extremes()] == [[1], [3], [4], [5], [6]]
    assert (batches.epoch, batches.position) == (0, 0)


def test_model_that_looks_at_pairs_gets_the_pairs():
    """What is tried before the work is a batch that will come."""
    class Pairs(Classifier):
        def forward(self, ids, mask=None, tape=NO_TAPE):
            assert len(ids) % 2 == 0
            return super().forward(ids, mask, tape)

    encoder = Encoder(40, 8, 2, 16, 1, max_len=16)
    model = Pairs(encoder, 3)
    assert len(fit(model, CrossEntropy(), Batches(EXAMPLES[:6], 2), SGD(model, 0.1), 1, progress=False)) == 1


@pytest.mark.parametrize("more, ignore, error", [
    ([([5], 9), ([5], 7)], 9, IndexError),  # what this loss ignores hides no other label
    ([([5], -100)], -1, IndexError),
    ([([5], 1.0)], -100, TypeError),
], ids=str)
def test_labels_that_do_not_fit_the_loss_are_found_before_any_work(more, ignore, error):
    model, batches = small_model(), Batches(EXAMPLES + more, 1)
    with pytest.raises(error, match="^targets? "):
        fit(model, CrossEntropy(ignore=ignore), batches, SGD(model, 0.1), 1, progress=False)
    assert batches.position == 0


def test_subclass_of_batches_may_hand_out_others_than_it_plans():
    class CutAndLabelled(Batches):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch._replace(ids=batch.ids[:, :16], mask=batch.mask[:, :16], labels=batch.index % 3)

    model = small_model()
    batches = CutAndLabelled([(20 * [5], None), ([6], None), ([7, 8], None)], 2)
    assert len(fit(model, CrossEntropy(), batches, SGD(model, 0.1), 2, progress=False)) == 2


def test_a_loss_may_count_its_targets_with_numpy(tmp_path):
    class Counted(CrossEntropy):
        def count(self, labels):
            return (np.asarray(labels) != self.ignore).sum()

    model = small_model()
    rows = fit(model, Counted(), Batches(EXAMPLES, 2), SGD(model, 0.1), 1, save_to=tmp_path / "run", save_every=1,
               progress=False)
    assert len(rows) == 1 and (tmp_path / "run").exists()


def test_run_stopped_by_hand_goes_on_as_if_it_had_not_been(tmp_path):
    def run(stop_at, path):
        model, batches = small_model(dropout=0.1), Batches(EXAMPLES, 2)
        optimizer, loss = AdamW(model, 0.01), StoppedByHand(stop_at)
        try:
            fit(model, loss, batches, optimizer, 3, save_to=path, save_every=1, progress=False)
        except KeyboardInterrupt:
            fit(model, loss, batches, optimizer, 3, save_to=path, save_every=1, progress=False)
        return model.state_dict()

    expected = run(None, tmp_path / "whole")
    for stop_at in 3, 4, 7:
        np.testing.assert_equal(run(stop_at, tmp_path / f"stopped-{stop_at}"), expected)


class StoppedByHand(CrossEntropy):
    """Raises KeyboardInterrupt once, in the middle of a step."""

    def __init__(self, stop_at):
        super().__init__()
        self.steps, self.stop_at = 0, stop_at

    def backward(self, dloss, tape):
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt
        return super().backward(dloss, tape)
