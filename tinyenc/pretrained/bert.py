"""BERT (Devlin et al. 2019) and the models built like it: MiniLM, RoBERTa, XLM-RoBERTa, ELECTRA."""

from ..attention.dot_product import DotProduct
from ..encoder import Encoder, PostLNEncoderLayer
from ..init import UNSET
from ..layers.dropout import Dropout
from ..positions import LearnedPositions
from .embedding import BertEmbedding
from .head import MaskedTokenHead
from .names import Family

EPS = 1e-12  # the families' own, where the config has no layer_norm_eps


def build(config, n_types=None, first_place=0):
    """The encoder that a config describes, its weights UNSET.

    n_types: where the config does not tell, and 0 for none at all.
    """
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    d_model, eps = config.size("hidden_size"), config.positive("layer_norm_eps", EPS)
    dropout = config.probability("hidden_dropout_prob", 0.1)
    width = config.size("embedding_size", d_model)
    embed = BertEmbedding(
        config.size("vocab_size"), width, LearnedPositions(width, config.size("max_position_embeddings"), rng=UNSET),
        config.size("type_vocab_size", 2) if n_types is None else n_types, first_place, d_model,
        config.index("pad_token_id"), dropout, eps, UNSET)
    layers = [post_ln_layer(config, d_model, dropout, eps) for _ in range(config.size("num_hidden_layers"))]
    return Encoder.from_parts(embed, layers)


def post_ln_layer(config, d_model, dropout, eps):
    """One layer; dropout acts on the attention's weights and on what it and the feed-forward network return."""
    attend = DotProduct(config.probability("attention_probs_dropout_prob", 0.1))
    layer = PostLNEncoderLayer(d_model, config.size("num_attention_heads"), config.size("intermediate_size"), dropout,
                               config.activation("hidden_act", "gelu"), attend, eps=eps, rng=UNSET)
    layer.ffn.drop = Dropout(0)  # these models drop nothing inside it
    return layer


def build_roberta(config):
    """RoBERTa's places begin behind that of padding, and its tokens have one type."""
    padding_idx = config.index("pad_token_id", 1)
    if padding_idx is None:
        config.fail("pad_token_id is null, and the places of a RoBERTa begin behind it")
    return build(config, config.size("type_vocab_size", 1), padding_idx + 1)


def build_head(config, encoder):
    """BERT's head has the activation of the layers."""
    return MaskedTokenHead(encoder, config.activation("hidden_act", "gelu"), config.positive("layer_norm_eps", EPS))


def build_gelu_head(config, encoder):
    """RoBERTa's and ELECTRA's heads have GELU, whatever the layers have."""
    return MaskedTokenHead(encoder, None, config.positive("layer_norm_eps", EPS))


EMBEDDINGS = {
    "embeddings.word_embeddings.": "embed.tokens.",
    "embeddings.position_embeddings.": "embed.positions.",
    "embeddings.token_type_embeddings.": "embed.types.",
    "embeddings.LayerNorm.": "embed.norm.",
    "embeddings_project.": "embed.project.",
}
PARTS = {
    "attention.self.query.": "attn.w_q.",
    "attention.self.key.": "attn.w_k.",
    "attention.self.value.": "attn.w_v.",
    "attention.output.dense.": "attn.w_o.",
    "attention.output.LayerNorm.": "norm1.",
    "intermediate.dense.": "ffn.w_1.",
    "output.dense.": "ffn.w_2.",
    "output.LayerNorm.": "norm2.",
}
BERT = Family(
    build, EMBEDDINGS, "encoder.layer.", PARTS, build_head,
    {"cls.predictions.transform.dense.": "dense.", "cls.predictions.transform.LayerNorm.": "norm.",
     "cls.predictions.": ""},
    {"cls.predictions.decoder.bias": "cls.predictions.bias",
     "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight"})
ROBERTA = Family(
    build_roberta, EMBEDDINGS, "encoder.layer.", PARTS, build_gelu_head,
    {"lm_head.dense.": "dense.", "lm_head.layer_norm.": "norm.", "lm_head.": ""},
    {"lm_head.decoder.bias": "lm_head.bias", "lm_head.decoder.weight": "embeddings.word_embeddings.weight"})
ELECTRA = Family(
    build, EMBEDDINGS, "encoder.layer.", PARTS, build_gelu_head,
    {"generator_predictions.dense.": "dense.", "generator_predictions.LayerNorm.": "norm.", "generator_lm_head.": ""},
    {"generator_lm_head.weight": "embeddings.word_embeddings.weight"})
