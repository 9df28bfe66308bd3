"""Between the tensors of other libraries' files and the parameters of a model.

A stem pairs the beginnings of names: "attention.self.query." with "attn.w_q.", so that its weight and its bias find
each other. Several stems of ours stand for tensors that the file holds as one, end to end along the first axis.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..backend import on_host, to_device, to_host
from ..data.files import DataError
from ..layers.linear import Linear

LEGACY = {"gamma": "weight", "beta": "bias", "kernel": "weight"}  # names of before 2019; a kernel lies as ours do


class Family(NamedTuple):
    """How a kind of model is built and what its tensors are called. {theirs: ours}: ours a stem or a tuple of them.

    build: Config -> Encoder, its weights UNSET. outside: {theirs: ours} of the encoder outside its layers, the table
    of tokens first; layers: where the layers are, "encoder.layer."; parts: {theirs: ours} within one layer.
    build_head: (Config, Encoder) -> MaskedTokenHead; head: {theirs: ours} in it; aliases: second names of tensors
    that two parts of a model share. keys: {common: own} names of entries in the config.
    """

    build: Callable
    outside: dict
    layers: str
    parts: dict
    build_head: Callable
    head: dict
    aliases: dict
    keys: dict = {}

    @property
    def table(self):
        """The name of the table of tokens, which every file must have: it shows the prefix of the others."""
        return next(iter(self.outside)) + "weight"

    @property
    def head_mark(self):
        """The name of a tensor that only a file with the head has: a bias for each token."""
        return list(self.head)[-1] + "bias"

    def stems(self, n_layers):
        """{theirs: ours} for a whole encoder."""
        layers = {f"{self.layers}{i}.{theirs}": within(f"layers.{i}.", ours)
                  for i in range(n_layers) for theirs, ours in self.parts.items()}
        return self.outside | layers


def within(path, ours):
    """A stem, or each of a tuple of them, inside a layer."""
    return tuple(path + stem for stem in ours) if isinstance(ours, tuple) else path + ours


class Place(NamedTuple):
    """A parameter, and whether the file holds it transposed: Linear weights, which are (d_out, d_in) elsewhere."""

    parameter: object
    transposed: bool

    @property
    def shape(self):
        """As the file has it."""
        return self.parameter.shape[::-1] if self.transposed else self.parameter.shape


def find_places(model, stems):
    """{their name: [Place, ...]} for every parameter of a model that the stems name."""
    parameters = dict(model.named_parameters())
    turned = {id(layer.weight) for _, layer in model.named_layers() if isinstance(layer, Linear)}
    places = {}
    for theirs, ours in stems.items():
        ours = ours if isinstance(ours, tuple) else (ours,)
        for leaf in "weight", "bias":
            found = [parameters[stem + leaf] for stem in ours if stem + leaf in parameters]
            if found:
                places[theirs + leaf] = [Place(parameter, id(parameter) in turned) for parameter in found]
    return places


def check_named(model, places):
    """ValueError names the parameters of a model that the file has no name for."""
    placed = {id(place.parameter) for where in places for place in where}
    unnamed = [name for name, parameter in model.named_parameters() if id(parameter) not in placed]
    if unnamed:
        raise ValueError(f"the format has no name for {', '.join(unnamed)}, which would be lost")


def shape_of(places):
    """The shape of the tensor that fills the places."""
    first, *others = (place.shape for place in places)
    return (first[0] + sum(shape[0] for shape in others), *first[1:])


def check_shapes(places, shapes, path):
    """DataError names every tensor that the places need and `shapes`, {their name: shape}, lacks or has otherwise."""
    missing = [name for name in places if name not in shapes]
    wrong = [f"{name} has shape {tuple(shapes[name])}, not {shape_of(where)}"
             for name, where in places.items() if name in shapes and tuple(shapes[name]) != shape_of(where)]
    if missing:
        raise DataError(f"{path}: missing {', '.join(missing)}")
    if wrong:
        raise DataError(f"{path}: {'; '.join(wrong)}")


def put(array, places):
    """Put a tensor of a file into the parameters of its places; one that fits as it is becomes the parameter's own."""
    only = places[0].parameter
    if len(places) == 1 and not places[0].transposed and on_host(only.data) and array.dtype == only.data.dtype:
        only.data = np.require(array, requirements="CW")
        return
    start = 0
    for place in places:
        part = array[start:start + place.shape[0]]
        start += place.shape[0]
        data = place.parameter.data
        data[...] = to_device(part.T if place.transposed else part, "cpu" if on_host(data) else "gpu")


def take(places):
    """The tensor for a file of the parameters of its places."""
    parts = [to_host(place.parameter.data) for place in places]
    parts = [part.T if place.transposed else part for part, place in zip(parts, places)]
    return np.ascontiguousarray(np.concatenate(parts) if len(parts) > 1 else parts[0])


def find_prefix(names, table, path):
    """What stands before every name of the encoder ("bert.", ""), seen at the table of tokens.

    DataError where no tensor has that name or several do.
    """
    prefixes = [name[:-len(table)] for name in names if f".{name}".endswith(f".{table}")]
    if len(prefixes) == 1:
        return prefixes[0]
    if prefixes:
        raise DataError(f"{path}: more than one model: tensors begin with {', '.join(map(repr, sorted(prefixes)))}")
    some = ", ".join(sorted(names)[:3]) or "nothing"
    raise DataError(f"{path}: no tensor is called {table}, with or without a prefix; it holds {some}, ...")


def match(names, prefix, aliases):
    """{name without the prefix and with today's endings: name in the file}, and the names left over.

    Of two names with one meaning the first is taken. `aliases` are second names for tensors that two parts of a model
    share: they stand in where the first name is missing, and else are neither taken nor left over.
    """
    common, rest, second = {}, [], {}
    for name in names:
        stem, dot, leaf = name.removeprefix(prefix).rpartition(".")
        plain = stem + dot + LEGACY.get(leaf, leaf)
        if plain in aliases:
            second[aliases[plain]] = name
        elif plain in common:
            rest.append(name)
        else:
            common[plain] = name
    return second | common, rest
