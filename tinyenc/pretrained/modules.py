"""How a sentence-transformers folder makes one vector of a text's states."""

from pathlib import Path
from typing import NamedTuple

from ..data.files import DataError
from ..heads.pooling import FirstPool, MaxPool, MeanPool
from .config import Config, read_json, read_object

POOLS = {"cls": FirstPool, "mean": MeanPool, "max": MaxPool}
OLD_KEYS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
            "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken"}


class Modules(NamedTuple):
    """folder: where the encoder is. pool: "mean", "cls" or "max". normalize: whether vectors get length 1."""

    folder: Path
    pool: str
    normalize: bool


def read_modules(folder):
    """The Modules of a folder. Without a modules.json it is an encoder's, which gets mean pooling.

    DataError: modules of other kinds, poolings of other kinds or several of them.
    """
    folder = Path(folder)
    path = folder / "modules.json"
    if not path.exists():
        return Modules(folder, "mean", False)
    table = read_json(path)
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        raise DataError(f"{path}: not a list of modules")
    rows = [(str(row.get("type")).split(".")[-1], folder / str(row.get("path", ""))) for row in table]
    kinds = [kind for kind, _ in rows]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise DataError(f"{path}: Transformer, Pooling and perhaps Normalize are supported, not {', '.join(kinds)}")
    return Modules(rows[0][1], read_pooling(rows[1][1] / "config.json"), len(rows) == 3)


def read_pooling(path):
    """The name of the one pooling that a file asks for."""
    config = Config(read_object(path), path)
    asked = config.get("pooling_mode") or [mode for key, mode in OLD_KEYS.items() if config.flag(key, False)]
    asked = asked if isinstance(asked, list) else [asked]
    if len(asked) != 1 or not isinstance(asked[0], str) or asked[0] not in POOLS:
        config.fail(f"pooling is {' and '.join(map(str, asked)) or 'none'}, not one of {', '.join(POOLS)}")
    config.require("include_prompt", True)
    return asked[0]


def modules_files(pool, normalize, d_model):
    """{path: contents} of the files by which sentence-transformers, and `read_modules`, know all this again."""
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")][:3 if normalize else 2]
    rows = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(names)]
    pooling = {"word_embedding_dimension": d_model} | {key: mode == pool for key, mode in OLD_KEYS.items()}
    return {"modules.json": rows, "1_Pooling/config.json": pooling}
