"""DistilBERT (Sanh et al. 2019): BERT without types of tokens, under names of its own."""

import functools

from .bert import build, build_head
from .names import Family

DISTILBERT = Family(
    functools.partial(build, n_types=0),
    {"embeddings.word_embeddings.": "embed.tokens.",
     "embeddings.position_embeddings.": "embed.positions.",
     "embeddings.LayerNorm.": "embed.norm."},
    "transformer.layer.",
    {"attention.q_lin.": "attn.w_q.",
     "attention.k_lin.": "attn.w_k.",
     "attention.v_lin.": "attn.w_v.",
     "attention.out_lin.": "attn.w_o.",
     "sa_layer_norm.": "norm1.",
     "ffn.lin1.": "ffn.w_1.",
     "ffn.lin2.": "ffn.w_2.",
     "output_layer_norm.": "norm2."},
    build_head,
    {"vocab_transform.": "dense.", "vocab_layer_norm.": "norm.", "vocab_projector.": ""},
    {"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    {"hidden_size": "dim",
     "num_hidden_layers": "n_layers",
     "num_attention_heads": "n_heads",
     "intermediate_size": "hidden_dim",
     "hidden_act": "activation",
     "hidden_dropout_prob": "dropout",
     "attention_probs_dropout_prob": "attention_dropout"})
