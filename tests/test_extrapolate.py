"""The example that trains short and tests long."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "extrapolate.py"


def test_labels_say_whether_the_same_token_is_within_reach():
    example = runpy.run_path(EXAMPLE)
    ids, near = example["make_batch"](20, 13, np.random.default_rng(0))
    for row, labels in zip(ids.tolist(), near.tolist()):
        for i, token in enumerate(row):
            others = row[max(0, i - example["REACH"]):i] + row[i + 1:i + 1 + example["REACH"]]
            assert labels[i] == (token in others)


def test_every_kind_of_positions_has_a_line_and_the_picture_is_drawn(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the example draws with matplotlib")
    monkeypatch.chdir(tmp_path)
    source = EXAMPLE.read_text().replace("STEPS, RATE = 32, 600,", "STEPS, RATE = 2, 3,").replace("16384", "1024")
    assert "STEPS, RATE = 2, 3," in source
    monkeypatch.setattr(sys, "argv", ["extrapolate.py"])
    exec(compile(source, str(EXAMPLE), "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line[:29].strip() for line in lines[1:-1]] == [
        "none", "sinusoidal", "learned, copied", "learned, interpolated", "learned, fresh", "rotary", "ALiBi",
        "T5 buckets"]
    assert all(line.count("%") == 6 for line in lines[1:-1])
    assert (tmp_path / "extrapolate.png").stat().st_size > 10_000
