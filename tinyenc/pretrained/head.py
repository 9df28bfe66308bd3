"""The head that guesses masked tokens."""

from ..init import UNSET, zeros
from ..layer import Layer, Parameter
from ..layers.activation import GELU
from ..layers.linear import Linear
from ..layers.norm import LayerNorm
from ..ops import add_weight_gradient, matmul, sum_rows
from ..tape import NO_TAPE


class MaskedTokenHead(Layer):
    """norm(activation(dense(states))) table^T + bias: states (..., D) -> logits over the vocabulary, (..., V).

    BERT's head (Devlin et al. 2019). The table is the encoder's own table of tokens: one Parameter in two places,
    whose gradient both add to.
    """

    def __init__(self, encoder, activation=None, eps=1e-12, rng=UNSET):
        self.table = encoder.embed.tokens.weight  # (V, E)
        n_tokens, width = self.table.shape
        self.dense = Linear(encoder.d_model, width, rng=rng)
        self.activation = activation or GELU()
        self.norm = LayerNorm(width, eps)
        self.bias = Parameter(zeros(n_tokens), decay=False)

    def forward(self, states, tape=NO_TAPE):
        h = self.dense.forward(states, tape)
        h = self.activation.forward(h, tape)
        h = self.norm.forward(h, tape)
        tape.push(self, h)
        return matmul(h, self.table.data.T, self.bias.data)

    def backward(self, dlogits, tape):
        (h,) = tape.pop(self)
        add_weight_gradient(self.table.grad, dlogits, h)
        self.bias.grad += sum_rows(dlogits)
        dh = matmul(dlogits, self.table.data)
        dh = self.norm.backward(dh, tape)
        dh = self.activation.backward(dh, tape)
        return self.dense.backward(dh, tape)
