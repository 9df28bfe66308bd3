"""Saving and going on: G11 and J05 of the known faults."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinyenc import Classifier, CrossEntropy, Encoder, checkpoint
from tinyenc.checkpoint import CheckpointError
from tinyenc.data import Batches
from tinyenc.fit import fit
from tinyenc.optim import AdamW
from tinyenc.schedules import linear
from tinyenc.train import train

safetensors_numpy = pytest.importorskip("safetensors.numpy", reason="checkpoints need safetensors")

rng = np.random.default_rng(0)
EXAMPLES = [(rng.integers(5, 40, n).tolist(), int(n % 3)) for n in [4, 9, 2, 7, 5, 11, 3, 6, 8, 10]]


def new_run(seed=0):
    """Dropout 0.1, shuffling, AdamW with warm-up: everything that a stop could disturb."""
    encoder = Encoder(40, 8, 2, 16, 2, max_len=16, dropout=0.1, rng=seed)
    model = Classifier(encoder, 3, rng=seed)
    return model, Batches(EXAMPLES, 3, seed=seed), AdamW(model, linear(0.01, 3, 20))


def steps_of(model, batches, optimizer, n):
    run = train(model, CrossEntropy(), batches, optimizer, 100)
    return [(float(step.loss), step.lr) for _, step in zip(range(n), run)]


@pytest.mark.parametrize("stop", [4, 5, 8, 9], ids=["epoch-boundary", "mid-epoch", "second-boundary", "mid-second"])
def test_resumed_run_equals_one_that_never_stopped_to_the_bit(stop, tmp_path):
    """G11, with 4 steps an epoch."""
    whole = new_run()
    expected = steps_of(*whole, 12)

    first = new_run()
    got = steps_of(*first, stop)
    checkpoint.save(tmp_path / "run", first[0], first[2], first[1], seed=0)
    model, batches, optimizer = new_run(seed=0)
    for parameter in model.parameters():
        parameter.data += 1  # so that it is the file that brings the weights
    checkpoint.load(tmp_path / "run").restore(model, optimizer, batches)
    got += steps_of(model, batches, optimizer, 12 - stop)

    assert got == expected
    np.testing.assert_equal(model.state_dict(), whole[0].state_dict())
    np.testing.assert_equal(optimizer.state_dict(), whole[2].state_dict())


def rewrite(path, change):
    """Change a checkpoint's tensors and plain values in its file."""
    with checkpoint._safetensors().safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        plain = json.loads(file.metadata()["tinyenc"])
    change(tensors, plain)
    path.write_bytes(safetensors_numpy.save(tensors, metadata={"tinyenc": json.dumps(plain)}))


MISSING = {
    "moment": (lambda tensors, plain: tensors.pop("optimizer/out.weight.m"), "missing out.weight.m"),
    "step-count": (lambda tensors, plain: tensors.pop("optimizer/step"), "missing step"),
    "optimizer": (lambda tensors, plain: ([tensors.pop(n) for n in list(tensors) if n.startswith("optimizer/")],
                                          plain["parts"].remove("optimizer")), "lacks optimizer"),
    "random-seed": (lambda tensors, plain: plain.update(seed=None), "lacks seed"),
    "data-position": (lambda tensors, plain: plain.update(batches=None), "lacks batches"),
    "data-epoch": (lambda tensors, plain: plain["batches"].pop("epoch"), "lacks epoch"),
    "damaged-batches": (lambda tensors, plain: plain["batches"].update(position="z"), "run: "),
    "weight": (lambda tensors, plain: tensors.pop("model/out.weight"), "missing out.weight"),
    "shape": (lambda tensors, plain: tensors.update({"model/out.weight": np.zeros((2, 2), "f4")}), r"shape \(2, 2\)"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_from_a_checkpoint_is_named_and_nothing_is_half_loaded(what, tmp_path):
    change, message = MISSING[what]
    model, batches, optimizer = new_run()
    steps_of(model, batches, optimizer, 5)
    checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    rewrite(tmp_path / "run", change)

    other, its_batches, its_optimizer = new_run(seed=1)
    steps_of(other, its_batches, its_optimizer, 2)
    before = other.state_dict(), its_optimizer.state_dict(), its_batches.state_dict()
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(tmp_path / "run").restore(other, its_optimizer, its_batches)
    np.testing.assert_equal((other.state_dict(), its_optimizer.state_dict(), its_batches.state_dict()), before)


def test_damaged_files_are_one_clear_error(tmp_path):
    model, batches, optimizer = new_run()
    path = tmp_path / "run"
    checkpoint.save(path, model, optimizer, batches, seed=0)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(200):
        cut = draw.randrange(len(whole))
        damaged = draw.choice([whole[:cut], whole[:8] + bytes([draw.randrange(256)]) + whole[9:],
                               draw.randbytes(cut % 999), (2**40).to_bytes(8, "little") + whole[8:]])
        if damaged == whole:
            continue
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=str(path)):
            checkpoint.load(path)


def test_pickles_are_not_opened(tmp_path):
    """J05: an object array whose pickle would make a file."""
    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return open, (str(marker), "w")

    np.save(tmp_path / "run.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        checkpoint.load(tmp_path / "run.npy")
    assert not marker.exists()


@pytest.mark.parametrize("damage", [{"parts": 5}, {"info": None}, {"batches": 5}, {"loss_scale": []}], ids=str)
def test_plain_values_of_another_kind_are_one_clear_error(damage, tmp_path):
    model, batches, optimizer = new_run()
    checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    rewrite(tmp_path / "run", lambda tensors, plain: plain.update(damage))
    with pytest.raises(CheckpointError, match="not a checkpoint, or damaged"):
        checkpoint.load(tmp_path / "run")


def test_data_changed_since_are_refused(tmp_path):
    model, batches, optimizer = new_run()
    checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    others = Batches([(ids[::-1], 1 - label) for ids, label in EXAMPLES], 3, seed=0)
    with pytest.raises(CheckpointError, match="other batches"):
        checkpoint.load(tmp_path / "run").restore(model, optimizer, others)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere: cannot be read"):
        checkpoint.load(tmp_path / "nowhere")


def test_write_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    model, batches, optimizer = new_run()
    checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    before = (tmp_path / "run").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    steps_of(model, batches, optimizer, 2)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    assert (tmp_path / "run").read_bytes() == before
    assert os.listdir(tmp_path) == ["run"]


def test_info_that_is_no_dict_is_refused_before_anything_is_written(tmp_path):
    model, *_ = new_run()
    checkpoint.save(tmp_path / "run", model, info={"words": ["a"]})
    for wrong in ["a", "b"], "text", 0, []:
        with pytest.raises(TypeError, match="^info must be a dict, got "):
            checkpoint.save(tmp_path / "run", model, info=wrong)
    assert checkpoint.load(tmp_path / "run").info == {"words": ["a"]}


def test_seed_may_be_numpys(tmp_path):
    checkpoint.save(tmp_path / "run", *new_run()[::2], seed=np.int64(3))
    assert checkpoint.load(tmp_path / "run").seed == 3


def test_fit_goes_on_from_its_checkpoint_with_its_history_and_best_epoch(tmp_path):
    def run(n_epochs, path):
        model, batches, optimizer = new_run()
        valid = Batches(EXAMPLES[:5], 5, shuffle=False)
        rows = fit(model, CrossEntropy(), batches, optimizer, n_epochs, valid, save_to=path, save_every=2,
                   progress=False)
        return rows, model.state_dict()

    expected = run(5, tmp_path / "whole")
    run(2, tmp_path / "parts")
    np.testing.assert_equal(run(5, tmp_path / "parts"), expected)


def test_fit_refuses_a_checkpoint_of_another_seed(tmp_path):
    model, batches, optimizer = new_run()
    fit(model, CrossEntropy(), batches, optimizer, 1, save_to=tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match="seed 0, not 7"):
        fit(model, CrossEntropy(), batches, optimizer, 2, seed=7, save_to=tmp_path / "run", progress=False)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from test_checkpoint import CrossEntropy, fit, new_run
import numpy as np
model, batches, optimizer = new_run()
print("ready", flush=True)
fit(model, CrossEntropy(), batches, optimizer, 12, save_to={path!r}, save_every=1, progress=False)
np.savez({path!r} + ".npz", **model.state_dict())
"""


def killed_run(path, delays):
    """Run in new processes, killed after each of the delays (seconds) in turn, then let it end; how many died."""
    program = KILLED.format(tests=str(Path(__file__).parent), path=str(path))
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "TINYENC_NUM_THREADS": "1"}
    deaths = 0
    for delay in [*delays, None]:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
        process.stdout.readline()
        if delay is not None:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        process.stdout.read()
        process.wait()
        deaths += process.returncode == -signal.SIGKILL
    assert process.returncode == 0
    return deaths, dict(np.load(f"{path}.npz", allow_pickle=False))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_run_killed_at_any_moment_ends_as_one_that_was_not(tmp_path):
    draw = random.Random(0)
    moments = int(os.environ.get("TINYENC_KILLS", "3"))
    deaths, weights = killed_run(tmp_path / "killed", [draw.uniform(0, 0.03) for _ in range(moments)])
    _, expected = killed_run(tmp_path / "whole", [])
    assert deaths > 0
    np.testing.assert_equal(weights, expected)
