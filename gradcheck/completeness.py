"""What the cases leave out."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np

import tinyenc
from tinyenc import Dropout, Layer
from tinyenc.attention.layout import Packing

PADDING_ONLY = "a mask over tokens has no queries, and is never packed"
FROM_IDS = "packs the batch itself, from ids"
A_CORE = "PerSequence hands it one sequence at a time"
NO_SCORES = "refuses it, having no scores"
EXEMPT = {  # (class, what its cases need not show): why
    **{(pool, f"mask: {kind}"): PADDING_ONLY for pool in ("FirstPool", "MeanPool", "MaxPool")
       for kind in ("per query", "packed")},
    ("Classifier", "mask: per query"): PADDING_ONLY,
    ("Classifier", "mask: packed"): FROM_IDS,
    ("Encoder", "mask: packed"): FROM_IDS,
    **{(core, "mask: packed"): A_CORE for core in
       ("CausalLinearAttention", "DotProduct", "LinearAttention", "SlidingWindow", "Tiled")},
    **{(core, need): NO_SCORES for core in ("CausalLinearAttention", "LinearAttention")
       for need in ("mask: per query", "bias is never given")},
    ("TokenEmbedding", "types is never given"): "does not tell types apart, and the encoder refuses them",
}
ZERO = ("w_k.bias",)  # a shift of all keys shifts a row of scores, which softmax does not see


def all_cases():
    """Every Case of every test_*.py beside this file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    return [case for module in modules for case in getattr(module, "CASES", ())]


def layer_classes():
    """Every Layer class that tinyenc defines."""
    for module in pkgutil.walk_packages(tinyenc.__path__, "tinyenc."):
        if not module.name.startswith("tinyenc.kernels"):  # no layers there, and compilers may be missing
            importlib.import_module(module.name)
    found, todo = [], [Layer]
    while todo:
        subclasses = [c for c in todo.pop().__subclasses__() if c.__module__.startswith("tinyenc.")]
        found += subclasses
        todo += subclasses
    return sorted(set(found), key=lambda c: (c.__module__, c.__name__))


def missing(classes, cases):
    """What the cases leave out, one line each: "LayerNorm: no case"."""
    lines = []
    inside = {type(layer) for case in cases for _, layer in case.layer.named_layers()}
    for cls in classes:
        own = [case for case in cases if type(case.layer) is cls]
        if not own and ("forward" in vars(cls) or cls not in inside):
            lines.append(f"{cls.__name__}: no case")
        elif own:
            lines += [f"{cls.__name__}: {need}" for need in unmet(cls, own) if (cls.__name__, need) not in EXEMPT]
    return lines


def unmet(cls, cases):
    """What the cases of one class do not show."""
    probes = [case.checker().probe for case in cases]
    heard = {}
    for probe in probes:
        for name, gradient in probe.analytic().items():
            seen = abs(gradient).max(initial=0) * probe.step(name) > probe.rounding
            heard[name] = heard.get(name, False) or seen
    yield from (f"{name} has no effect in any case" for name in heard if not heard[name] and not name.endswith(ZERO))
    hiding = set().union(*(probe.hiding() for probe in probes))
    heeded = set().union(*(probe.hiding().keys() - set(probe.unheeded()) for probe in probes))
    yield from (f"{name} has no effect in any case" for name in sorted(hiding - heeded))

    for argument in inspect.signature(cls.forward).parameters.values():
        if argument.name in ("self", "tape") or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        values = [probe.given.get(argument.name) for probe in probes]
        values += [value for probe in probes for name, value in probe.given.items() if argument.name == name]
        if all(value is None for value in values):
            yield f"{argument.name} is never given"
        arrays = [v for v in values if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
        if arrays and not any(large_and_distinct(array) for array in arrays):
            yield f"no {argument.name} with a batch and a length above one and no two axes of one size"
        if argument.name == "mask":
            seen = set().union(*(mask_kinds(value) for value in values))
            yield from (f"mask: {kind}" for kind in MASK_KINDS if kind not in seen)

    drops = [any(isinstance(part, Dropout) and part.p for _, part in case.layer.named_layers()) for case in cases]
    if any(drops) or "dropout" in inspect.signature(cls).parameters:
        for state, on in (("on", True), ("off", False)):
            if not any(drop and (case.seed is not None) == on for drop, case in zip(drops, cases)):
                yield f"dropout: {state}"


MASK_KINDS = ("none", "padding", "empty row", "per query", "packed")


def mask_kinds(mask):
    """Which kinds of mask this one is."""
    if mask is None:
        return {"none"}
    if isinstance(mask, Packing):
        return {"packed"}
    kept = mask.astype(bool)
    kinds = {"per query"} if kept.ndim == 4 and kept.shape[2] > 1 else set()
    if not kept.any(axis=-1).all():
        kinds.add("empty row")
    if (kept.any(axis=-1) & ~kept.all(axis=-1)).any():
        kinds.add("padding")
    return kinds


def large_and_distinct(array):
    """Whether every axis is above one (the last may be one), and no two are of one size: a swap would show."""
    return all(size > 1 for size in array.shape[:-1]) and len(set(array.shape)) == array.ndim
