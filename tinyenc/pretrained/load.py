"""A model from its folder, and back."""

import json
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

from ..data.files import DataError, write_atomically
from ..encoder import Encoder
from .bert import BERT, ELECTRA, ROBERTA
from .config import Config, read_object
from .distilbert import DISTILBERT
from .head import MaskedTokenHead
from .modernbert import MODERNBERT
from .names import check_named, check_shapes, find_places, find_prefix, match, put, take
from .tensors import FILE, INDEX, open_tensors, write_tensors

FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
}


class Pretrained(NamedTuple):
    """A model as its folder has it.

    encoder: an Encoder of ordinary layers, to use, train or build on. head: its MaskedTokenHead, or None where the
    folder has none. config: config.json as it stands. prefix: what stands before the names of the encoder's
    tensors. others: the names of the tensors that have no place here (poolers, heads of other tasks); `save` copies
    them. folder: where all this was.
    """

    encoder: Encoder
    head: MaskedTokenHead | None
    config: dict
    prefix: str
    others: list
    folder: Path


def load(folder):
    """The model in a Hugging Face folder (config.json and model.safetensors), a Pretrained.

    BERT, MiniLM, RoBERTa, XLM-RoBERTa, ELECTRA, DistilBERT and ModernBERT; everything follows the config. Weights
    become float32. DataError, one line that names the file: it cannot be read, is cut off or is a pickle; an
    architecture or activation that is not known; tensors missing or of other shapes, all of them named.
    """
    folder = Path(folder).absolute()
    own, family = read_config(folder)
    tensors = open_tensors(folder)
    prefix = find_prefix(tensors.shapes, family.table, folder)
    common, others = match(tensors.shapes, prefix, family.aliases)

    longest = max(max(shape, default=0) for shape in tensors.shapes.values())  # a size longer than that cannot fit
    config = Config(own.values, own.path, longest).renamed(family.keys)
    encoder = build_encoder(family, config, common)
    places = find_places(encoder, family.stems(len(encoder.layers)))
    head = None
    if family.head_mark in common:
        config.require("tie_word_embeddings", True)
        head = family.build_head(config, encoder)
        places |= find_places(head, family.head)

    shapes = {name: turned(original, tensors.shapes[original]) for name, original in common.items()}
    check_shapes(places, shapes, folder)
    tensors.check_floats([common[name] for name in places])
    for name, where in places.items():
        put(turned(common[name], tensors.read(common[name])), where)
    others += [original for name, original in common.items() if name not in places]
    return Pretrained(encoder, head, own.values, prefix, others, folder)


def turned(name, tensor):
    """A tensor, or its shape, as most files have it: a "kernel" is the transpose of a "weight"."""
    if not name.endswith(".kernel"):
        return tensor
    return tensor[::-1] if isinstance(tensor, tuple) else tensor.T


def read_config(folder):
    """The Config of a folder, and its Family. DataError where the architecture is not one of FAMILIES."""
    path = Path(folder) / "config.json"
    config = Config(read_object(path), path)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        config.fail(f"model_type is {json.dumps(kind)[:60]}, not one of {', '.join(FAMILIES)}")
    return config, FAMILIES[kind]


def build_encoder(family, config, names):
    """The encoder of a config, with what is wrong in it as a DataError. names: of the tensors that will fill it."""
    n_layers = len({name.removeprefix(family.layers).split(".")[0] for name in names if name.startswith(family.layers)})
    if config.size("num_hidden_layers") > n_layers:
        config.fail(f"{config.get('num_hidden_layers')} layers, where the file of the weights has {n_layers}")
    try:
        return family.build(config)
    except DataError:
        raise
    except (ValueError, IndexError) as error:
        config.fail(error)
    except MemoryError:
        config.fail("its sizes ask for more memory than there is")


def save(folder, model):
    """Write a Pretrained to a folder, which transformers loads as well: weights, config, and the tokenizer's files
    from the folder it was loaded from (RuntimeWarning where that is gone). ValueError, before anything is written,
    where a parameter has no name there.

    A new folder appears whole or not at all. In one that exists each file is replaced whole, the weights last.
    """
    folder = Path(folder)
    tensors = named_tensors(model)
    if folder.exists():
        write_files(folder, model, tensors)
        return
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    write_files(beside, model, tensors)
    beside.rename(folder)


def named_tensors(model):
    """{name: tensor} of a model's file. ValueError where a parameter has no name there."""
    family = FAMILIES[model.config["model_type"]]
    places = find_places(model.encoder, family.stems(len(model.encoder.layers)))
    check_named(model.encoder, places.values())
    tensors = {model.prefix + name: take(where) for name, where in places.items()}
    if model.head:
        in_head = find_places(model.head, family.head)
        check_named(model.head, [*places.values(), *in_head.values()])
        tensors |= {name: take(where) for name, where in in_head.items()}
    if model.others:
        source = open_tensors(model.folder)
        tensors |= {name: source.read(name) for name in model.others}
    return tensors


def write_files(folder, model, tensors):
    """Write every file of a model into a folder, the tensors last."""
    if not model.folder.is_dir():
        warnings.warn(f"{model.folder} is gone: its tokenizer's files are not copied", RuntimeWarning, 3)
    for path in sorted(model.folder.glob("*")):
        if path.suffix in (".json", ".txt") and path.name not in ("config.json", "modules.json", INDEX):
            write_atomically(folder / path.name, path.read_bytes())
    config = {key: value for key, value in model.config.items() if key != "torch_dtype"} | {"dtype": "float32"}
    write_atomically(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    write_tensors(folder / FILE, tensors)
