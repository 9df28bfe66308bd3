"""The state dicts of PyTorch's own layers, to and from."""

import numpy as np

from ..attention.multi_head import MultiHeadAttention
from ..encoder import Encoder, EncoderLayer, PostLNEncoderLayer
from .names import check_shapes, find_places, put, take, within

ATTENTION = {"in_proj_": ("w_q.", "w_k.", "w_v."), "out_proj.": "w_o."}
LAYER = {f"self_attn.{theirs}": within("attn.", ours) for theirs, ours in ATTENTION.items()}
LAYER |= {"linear1.": "ffn.w_1.", "linear2.": "ffn.w_2.", "norm1.": "norm1.", "norm2.": "norm2."}


def load_pytorch(model, state):
    """Copy the state dict of an nn.TransformerEncoder into an Encoder (layers and final norm, not the embeddings),
    of an nn.TransformerEncoderLayer into a layer, or of an nn.MultiheadAttention into a MultiHeadAttention.

    state: {name: tensor}, PyTorch's or NumPy's. What it does not tell must agree: the number of heads, norm_first
    (EncoderLayer) or not (PostLNEncoderLayer), the activation, eps. ValueError names all that is missing,
    unexpected or of another shape; then nothing was changed.
    """
    places = places_in(model)
    unexpected = [name for name in state if name not in places]
    if unexpected:
        raise ValueError(f"no place in {type(model).__name__} for {', '.join(unexpected)}")
    check_shapes(places, {name: tensor.shape for name, tensor in state.items()}, "the state dict")
    for name, where in places.items():
        put(np.asarray(state[name]).copy(), where)  # a copy, so that training one model does not change the other


def to_pytorch(model):
    """The state dict that `load_pytorch` takes, as NumPy arrays: `torch.from_numpy` makes tensors of them."""
    return {name: take(where) for name, where in places_in(model).items()}


def places_in(model):
    """{PyTorch's name: where it goes} for a whole model."""
    if isinstance(model, MultiHeadAttention):
        return find_places(model, ATTENTION)
    if isinstance(model, (EncoderLayer, PostLNEncoderLayer)):
        return find_places(model, LAYER)
    if isinstance(model, Encoder):
        stems = {f"layers.{i}.{theirs}": within(f"layers.{i}.", ours)
                 for i in range(len(model.layers)) for theirs, ours in LAYER.items()}
        return find_places(model, stems | {"norm.": "norm."})
    raise TypeError(f"{type(model).__name__} has no counterpart in PyTorch: an Encoder, an EncoderLayer, a "
                    "PostLNEncoderLayer and a MultiHeadAttention have")
