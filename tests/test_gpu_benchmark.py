"""The GPU script, as far as it goes without a GPU: its checks on the stand-in, its table, and what it says here."""

import subprocess
import sys
from pathlib import Path

import cuda_emulator
import numpy as np
import pytest
import standin

from tinyenc import Linear

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    if cuda_emulator.MISSING:
        pytest.skip(cuda_emulator.MISSING)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    standin.install(monkeypatch)
    import gpu
    monkeypatch.setattr(gpu, "seconds", lambda xp, task: (task(), 0.5)[1])
    return gpu


CASES = ("linear", "gelu", "layer-norm", "masked-dropout", "tiled-cross-masked-dropout", "feed-forward-dropout", "t5",
         "encoder-two-layers-dropout", "classifier-masked-dropout", "padding-smoothed")


def test_checks_of_layers_find_them_right_and_a_wrong_one_wrong(gpu, monkeypatch):
    chosen = [case for case in gpu.cases() if case.name in CASES]
    assert len({case.name for case in chosen}) >= len(CASES) - 2
    for case in chosen:
        assert gpu.check_layer(case) < 1e-10
        assert gpu.check_gradients(case) < 1e-5
    wrong = next(case for case in chosen if type(case.layer) is Linear)
    backward = type(wrong.layer).backward
    monkeypatch.setattr(type(wrong.layer), "backward", lambda self, dy, tape: backward(self, dy, tape) * 1.01)
    assert gpu.check_gradients(wrong) > 1e-4


@pytest.mark.parametrize("dtype, error", [(np.float32, 1e-5), (np.float16, 5e-3)])
def test_fuzzed_kernel_is_right(gpu, dtype, error):
    assert 0 < gpu.fuzz_kernel(standin, 3, dtype, largest=64) < error


def test_rows_of_the_table(gpu):
    rows = gpu.kernel_rows(standin, (2, 2, 3, 16))
    assert [row["what"] for row in rows][:3] == ["softmax forward, float16", "softmax forward, dropout, float16",
                                                 "softmax backward, float16"]
    assert rows[0]["bandwidth / copy"] == 1 and rows[2]["bandwidth / copy"] == 1.5  # by the clock of this test
    rows += gpu.training_rows(standin, presets={"tiny": gpu.PRESETS["small"]._replace(
        n_layers=1, n_heads=2, d_model=8, batch=2, length=5)})
    assert rows[-1]["milliseconds"] == 500
    lines = gpu.table(rows).splitlines()
    assert len(lines) == len(rows) + 2 and len(set(map(len, lines))) == 1
    assert lines[2].split("|")[1:4] == [f" {'softmax forward, float16':33} ", f" {'1.00':16} ", f" {'1.00':19} "]


def test_without_a_gpu_it_says_why_in_one_line():
    try:
        import cupy
        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU")
    except (ImportError, RuntimeError):
        pass
    done = subprocess.run([sys.executable, BENCHMARKS / "gpu.py"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith('gpu.py: device "gpu"') and done.stderr.count("\n") == 1
