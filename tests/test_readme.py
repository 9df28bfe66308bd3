"""What the README shows is what there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tinyenc").rglob("*.py")))


def test_every_module_stands_in_whats_where():
    table = README.partition("## What's where")[2]
    missing = []
    for path in sorted((ROOT / "tinyenc").rglob("*.py")):
        folder, name = path.parent.name, path.name
        by_folder = folder in ("gradcheck", "kernels", "pretrained") and f"`{folder}/`" in table
        if name != "__init__.py" and not by_folder and not re.search(rf"`(\w+/)?{name}`", table):
            missing.append(f"{folder}/{name}")
    assert not missing


def test_no_file_of_whats_where_is_gone():
    names = re.findall(r"`(?:[\w.]+/)*(\w+\.(?:py|cu))`", README.partition("## What's where")[2])
    there = {path.name for path in ROOT.rglob("*.*")}
    assert len(names) > 30 and set(names) <= there


@pytest.mark.parametrize("start", ["class LayerNorm", "@rowwise\ndef rms_normalise", "class RMSNorm"])
def test_layers_are_shown_as_they_are(start):
    """Every method and formula shown stands in the source, but for what a docstring or LayerNorm's options add."""
    (block,) = [block for block in BLOCKS if block.startswith(start)]
    lines = [line for line in block.splitlines() if line.strip() and not line.strip().startswith('"""')]
    source = {line.strip() for line in SOURCE.splitlines()}
    shown_shorter = {"y, normed, rstd = layer_norm(x, self.weight.data, self.bias.data, self.eps)"}
    assert [line for line in lines if line.strip() not in source | shown_shorter] == []


def test_training_step_runs_as_shown():
    (block,) = [block for block in BLOCKS if "tape = Tape(seed=0)" in block]
    names = {}
    exec(block, names)
    assert names["logits"].shape == (2, 2) and len(names["tape"]) == 0


def test_variants_are_made_as_shown():
    (block,) = [block for block in BLOCKS if "positions=Rotary()" in block]
    exec(block, {})
