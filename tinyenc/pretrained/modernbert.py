"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forward networks, layers with and without a window."""

from ..attention.dot_product import DotProduct
from ..attention.tiled import SlidingWindow
from ..encoder import Encoder, EncoderLayer
from ..init import UNSET
from ..layer import Layer
from ..layers.dropout import Dropout
from ..layers.feed_forward import GatedFeedForward
from ..layers.linear import Linear
from ..layers.norm import LayerNorm
from ..positions import NoPositions, Rotary
from ..tape import NO_TAPE
from .embedding import BertEmbedding
from .head import MaskedTokenHead
from .names import Family

FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}


class NoNorm(Layer):
    """x itself: the first layer's input has just been normalised."""

    def forward(self, x, tape=NO_TAPE):
        return x

    def backward(self, dy, tape):
        return dy


def build(config):
    """The encoder that a config describes, its weights UNSET."""
    d_model, eps = config.size("hidden_size"), config.positive("norm_eps", 1e-5)
    embed = BertEmbedding(config.size("vocab_size"), d_model, NoPositions(), n_types=0,
                          padding_idx=config.index("pad_token_id"), eps=eps, rng=UNSET,
                          dropout=config.probability("embedding_dropout", 0.0))
    kinds = layer_kinds(config)
    positions = {kind: Rotary(rotary_base(config, kind)) for kind in set(kinds)}
    layers = [build_layer(config, d_model, eps, kind, positions[kind]) for kind in kinds]
    layers[0].norm1 = NoNorm()
    encoder = Encoder.from_parts(embed, layers, LayerNorm(d_model, eps))
    drop_biases(encoder, Linear, config.flag("attention_bias", False), "attn")
    drop_biases(encoder, Linear, config.flag("mlp_bias", False), "ffn")
    drop_biases(encoder, LayerNorm, config.flag("norm_bias", False))
    return encoder


def build_layer(config, d_model, eps, kind, positions):
    """One pre-LN layer. Dropout acts on the attention's weights and on what it returns, and inside the feed-forward."""
    dropout = config.probability("attention_dropout", 0.0)
    if kind == LOCAL:  # the config tells the width of both sides together
        attend = SlidingWindow(config.size("local_attention", 128) // 2, dropout=dropout)
    else:
        attend = DotProduct(dropout)
    layer = EncoderLayer(d_model, config.size("num_attention_heads"), config.size("intermediate_size"), dropout,
                         config.activation("hidden_activation", "gelu"), attend, positions, eps, ffn=GatedFeedForward,
                         rng=UNSET)
    layer.ffn.drop = Dropout(config.probability("mlp_dropout", 0.0))
    layer.drop2 = Dropout(0)
    return layer


def layer_kinds(config):
    """FULL or LOCAL for each layer: as listed, or every n-th FULL from the first on."""
    n_layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.size("global_attn_every_n_layers", 3)
        kinds = [LOCAL if i % every else FULL for i in range(n_layers)]
    if not isinstance(kinds, list) or len(kinds) != n_layers or not all(kind in (FULL, LOCAL) for kind in kinds):
        config.fail(f"layer_types is not a list of {n_layers} of {FULL} and {LOCAL}")
    return kinds


def rotary_base(config, kind):
    """The base of the rotary positions of a kind of layer, from today's key or from the one of before."""
    key, default = BASES[kind]
    table = config.get("rope_parameters") or {}
    entries = table.get(kind) if isinstance(table, dict) else None
    if entries is None:
        return config.positive(key, default)
    if not isinstance(entries, dict):
        config.fail(f"rope_parameters has no object for {kind}")
    entries = config.within(entries)
    entries.require("rope_type", "default")
    return entries.positive("rope_theta", default)


def drop_biases(model, layer, wanted, within=""):
    """Take away the biases of all layers of a kind (with `within` in their name), unless they are wanted."""
    for name, found in model.named_layers():
        if isinstance(found, layer) and within in name and not wanted:
            found.bias = None


def build_head(config, encoder):
    """ModernBERT's head has an activation and biases of its own."""
    config.require("decoder_bias", True)
    head = MaskedTokenHead(encoder, config.activation("classifier_activation", "gelu"),
                           config.positive("norm_eps", 1e-5))
    drop_biases(head, Linear, config.flag("classifier_bias", False))
    drop_biases(head, LayerNorm, config.flag("norm_bias", False))
    return head


MODERNBERT = Family(
    build,
    {"embeddings.tok_embeddings.": "embed.tokens.",
     "embeddings.norm.": "embed.norm.",
     "final_norm.": "norm."},
    "layers.",
    {"attn_norm.": "norm1.",
     "attn.Wqkv.": ("attn.w_q.", "attn.w_k.", "attn.w_v."),
     "attn.Wo.": "attn.w_o.",
     "mlp_norm.": "norm2.",
     "mlp.Wi.": ("ffn.w_gate.", "ffn.w_1."),
     "mlp.Wo.": "ffn.w_2."},
    build_head,
    {"head.dense.": "dense.", "head.norm.": "norm.", "decoder.": ""},
    {"decoder.weight": "embeddings.tok_embeddings.weight"})
