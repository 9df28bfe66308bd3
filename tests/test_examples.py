"""The examples as a person runs them: exit status, last line, errors without a traceback."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(script, *options, cwd):
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
    return subprocess.run([sys.executable, EXAMPLES / script, *map(str, options)], cwd=cwd, env=environment,
                          capture_output=True, text=True)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("good\ta fine film\nbad\ta dull film\ngood\tfine, fine\nodd\twhat?\n")
    return path


def test_overfit_learns_a_file_of_ones_own_and_says_so_in_its_last_line(rows, tmp_path):
    done = run("overfit_100.py", "--data", rows, "--steps", 150, "--d-model", 16, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loss, accuracy, seconds = done.stdout.splitlines()[-1].split("  ")
    assert loss.startswith("loss 0.00") and accuracy == "accuracy 4/4" and seconds.endswith(" s")


def test_overfit_that_does_not_learn_exits_with_1_and_says_where_to_look(rows, tmp_path):
    rows.write_text(rows.read_text() + "bad\ta fine film\n")  # row 1 again, with another label
    done = run("overfit_100.py", "--data", rows, "--steps", 80, "--d-model", 16, cwd=tmp_path)
    assert done.returncode == 1
    findings = [line for line in done.stdout.splitlines() if line[:2] in ("1.", "2.", "3.", "4.", "5.")]
    assert findings[0].startswith("1. labels: LOOK HERE, rows 1 and 5 have the same tokens and different labels")
    assert findings[1].startswith("2. mask: fine") and findings[2].startswith("3. gradients: fine")
    assert done.stdout.splitlines()[-1].startswith("loss ")


BAD = {
    "missing-file": (["--data", "nowhere.tsv"], "nowhere.tsv: cannot be read"),
    "no-label": (["--data", "unlabelled.tsv"], "unlabelled.tsv, line 2"),
    "heads": (["--d-model", 64, "--heads", 5], "d_model 64 is not a multiple of n_heads 5"),
    "layers": (["--layers", 0], "n_layers must be at least 1, got 0"),
    "steps": (["--steps", 0], "--steps must be at least 1, got 0"),
    "one-class": (["--data", "one.tsv"], "a classifier needs at least 2 classes, got 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(case, tmp_path):
    options, message = BAD[case]
    (tmp_path / "unlabelled.tsv").write_text("1\tfine\nno label here\n")
    (tmp_path / "one.tsv").write_text("1\tfine\n1\tfiner\n")
    done = run("overfit_100.py", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_classify_without_a_trained_model_says_so(tmp_path):
    done = run("classify.py", "a lovely film", cwd=tmp_path)
    assert done.returncode == 2
    assert "runs/classify.safetensors is not there yet" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed, so a GPU may be there")
@pytest.mark.parametrize("script", ["overfit_100.py", "classify.py", "extrapolate.py"])
def test_gpu_that_is_not_there_is_one_line_and_status_2(script, tmp_path):
    done = run(script, "--device", "gpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "CuPy" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
