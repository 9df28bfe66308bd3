"""The embeddings of BERT and its kin."""

from ..backend import array_module
from ..layer import Layer
from ..layers.dropout import Dropout
from ..layers.embedding import Embedding
from ..layers.linear import Linear
from ..layers.norm import LayerNorm
from ..tape import NO_TAPE


class BertEmbedding(Layer):
    """project(drop(norm(tokens[ids] + positions[index + first_place] + types[types]))) (Devlin et al. 2019).

    positions: LearnedPositions, or NoPositions where attention tells them (ModernBERT). first_place: where a text's
    first token stands in its table (RoBERTa keeps the rows before it unused).
    n_types: 0 for no table of types (DistilBERT). Where there is one and no types are given, all are 0.
    d_model: where it is not `width`, the tables' own, a Linear leads from one to the other (ELECTRA); else there
    is none.
    """

    def __init__(self, n_tokens, width, positions, n_types=2, first_place=0, d_model=None, padding_idx=None,
                 dropout=0.1, eps=1e-12, rng=None):
        self.tokens = Embedding(n_tokens, width, padding_idx=padding_idx, rng=rng)
        self.positions = positions
        self.types = Embedding(n_types, width, rng=rng) if n_types else None
        self.first_place = first_place
        self.norm = LayerNorm(width, eps)
        self.drop = Dropout(dropout)
        self.project = Linear(width, d_model, rng=rng) if d_model not in (None, width) else None

    def forward(self, ids, index, tape=NO_TAPE, types=None):
        """ids and types (..., T), and the place of each, (T,) -> (..., T, D)."""
        x = self.tokens.forward(ids, tape)
        x = self.positions.forward(x, index + self.first_place, tape)
        if self.types:
            types = array_module(x).zeros_like(ids) if types is None else types
            x = x + self.types.forward(types, tape)
        x = self.drop.forward(self.norm.forward(x, tape), tape)
        return self.project.forward(x, tape) if self.project else x

    def backward(self, dy, tape):
        """Adds to the gradients of the tables; ids have none."""
        dx = self.project.backward(dy, tape) if self.project else dy
        dx = self.norm.backward(self.drop.backward(dx, tape), tape)
        if self.types:
            self.types.backward(dx, tape)
        dx = self.positions.backward(dx, tape)
        self.tokens.backward(dx, tape)

    @property
    def vocab_size(self):
        return self.tokens.weight.shape[0]

    @property
    def n_types(self):
        return self.types.weight.shape[0] if self.types else 0

    @property
    def max_len(self):
        return self.positions.max_len - self.first_place

    @property
    def d_model(self):
        return self.project.weight.shape[1] if self.project else self.tokens.weight.shape[1]
