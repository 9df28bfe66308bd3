"""What the benchmarks run: three sizes of a text classifier, and batches as long as real sentences."""

import gzip
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

REVIEWS = Path(__file__).parent.parent / "examples" / "data" / "en_reviews" / "train.tsv.gz"
DROPOUT = 0.1
VOCAB = 8000
CLASSES = 2


class Preset(NamedTuple):
    """The size of an encoder and of the batch it works on; d_ff is 4 d_model."""

    n_layers: int
    n_heads: int
    d_model: int
    batch: int
    length: int


PRESETS = {
    "small": Preset(4, 4, 256, 32, 64),
    "medium": Preset(6, 8, 512, 16, 128),
    "base": Preset(12, 12, 768, 8, 128),
}


def make_batch(preset, kind):
    """Token ids (B, T) int64, their mask (B, T) or None, and labels (B,), the same in every process.

    kind: "full", every place a token, or "ragged", padded to the longest as review sentences would be.
    """
    rng = np.random.default_rng(0)
    ids = rng.integers(1, VOCAB, (preset.batch, preset.length))
    labels = rng.integers(0, CLASSES, preset.batch)
    if kind == "full":
        return ids, None, labels
    lengths = rng.permutation(review_lengths(preset.batch, preset.length))
    mask = np.arange(preset.length) < lengths[:, None]
    return ids * mask, mask, labels


def review_lengths(n, longest):
    """n lengths distributed as those of the committed review sentences, whose 95th percentile is stretched to longest.

    About 56 % of the padded batch is real.
    """
    with gzip.open(REVIEWS, "rt", encoding="utf-8") as file:
        counts = [len(re.findall(r"\w+|[^\w\s]", line.partition("\t")[2])) for line in file]
    lengths = np.quantile(counts, (np.arange(n) + 0.5) / n) * longest / np.quantile(counts, 0.95)
    lengths[-1] = longest
    return lengths.round().astype(int).clip(1, longest)
