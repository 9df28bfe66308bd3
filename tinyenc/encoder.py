"""The Transformer encoder."""

import math

import numpy as np

from .attention.layout import Dense, Packing, Padded, even_parts
from .attention.masks import as_mask, check_mask, real_tokens
from .attention.multi_head import MultiHeadAttention
from .backend import as_array, like, on_host
from .layer import Layer
from .layers.batch_norm import BatchNorm
from .layers.dropout import Dropout
from .layers.embedding import Embedding, check_ids
from .layers.feed_forward import FeedForward
from .layers.norm import LayerNorm
from .parallel import run_each
from .positions import SinusoidalPositions, check_length
from .tape import NO_TAPE


class EncoderLayer(Layer):
    """Pre-LN (Xiong et al. 2020): x + drop(attn(norm(x))), then x + drop(ffn(norm(x))). (B, T, D) -> (B, T, D).

    norm: the kind of its norms, by default LayerNorm. ffn: of its feed-forward network, by default FeedForward.
    """

    output_is_normed = False

    def __init__(self, d_model, n_heads, d_ff, dropout=0.1, activation=None, attend=None, positions=None,
                 eps=1e-5, norm=None, ffn=None, rng=None):
        norm, ffn = norm or LayerNorm, ffn or FeedForward
        self.norm1 = norm(d_model, eps)
        self.attn = MultiHeadAttention(d_model, n_heads, dropout, attend, positions, rng)
        self.drop1 = Dropout(dropout)
        self.norm2 = norm(d_model, eps)
        self.ffn = ffn(d_model, d_ff, dropout, activation, rng)
        self.drop2 = Dropout(dropout)

    def forward(self, x, mask=None, tape=NO_TAPE):
        h = self.norm1.forward(x, tape)
        h = self.attn.forward(h, h, mask, tape)
        x = x + self.drop1.forward(h, tape)

        h = self.norm2.forward(x, tape)
        h = self.ffn.forward(h, tape)
        return x + self.drop2.forward(h, tape)

    def backward(self, dy, tape):
        dh = self.drop2.backward(dy, tape)
        dh = self.ffn.backward(dh, tape)
        dx = dy + self.norm2.backward(dh, tape)

        dh = self.drop1.backward(dx, tape)
        dquery, dmemory = self.attn.backward(dh, tape)
        return dx + self.norm1.backward(dquery + dmemory, tape)


class PostLNEncoderLayer(Layer):
    """Post-LN (Vaswani et al. 2017), BERT's: norm(x + drop(attn(x))), then norm(x + drop(ffn(x))).

    (B, T, D) -> (B, T, D). norm, ffn: as in EncoderLayer.
    """

    output_is_normed = True

    def __init__(self, d_model, n_heads, d_ff, dropout=0.1, activation=None, attend=None, positions=None,
                 eps=1e-5, norm=None, ffn=None, rng=None):
        norm, ffn = norm or LayerNorm, ffn or FeedForward
        self.attn = MultiHeadAttention(d_model, n_heads, dropout, attend, positions, rng)
        self.drop1 = Dropout(dropout)
        self.norm1 = norm(d_model, eps)
        self.ffn = ffn(d_model, d_ff, dropout, activation, rng)
        self.drop2 = Dropout(dropout)
        self.norm2 = norm(d_model, eps)

    def forward(self, x, mask=None, tape=NO_TAPE):
        h = self.attn.forward(x, x, mask, tape)
        x = self.norm1.forward(x + self.drop1.forward(h, tape), tape)

        h = self.ffn.forward(x, tape)
        return self.norm2.forward(x + self.drop2.forward(h, tape), tape)

    def backward(self, dy, tape):
        dx = self.norm2.backward(dy, tape)
        dh = self.drop2.backward(dx, tape)
        dx = dx + self.ffn.backward(dh, tape)

        dx = self.norm1.backward(dx, tape)
        dh = self.drop1.backward(dx, tape)
        dquery, dmemory = self.attn.backward(dh, tape)
        return dx + dquery + dmemory


class BatchNormEncoderLayer(EncoderLayer):
    """Pre-LN with BatchNorm in place of LayerNorm: worse on text, and Shen et al. (2020) show why."""

    def __init__(self, d_model, n_heads, d_ff, dropout=0.1, activation=None, attend=None, positions=None,
                 eps=1e-5, norm=None, ffn=None, rng=None):
        norm = norm or BatchNorm
        super().__init__(d_model, n_heads, d_ff, dropout, activation, attend, positions, eps, norm, ffn, rng)

    def forward(self, x, mask=None, tape=NO_TAPE):
        """As EncoderLayer's, and its backward is that one's, but the norms must know which tokens are real."""
        h = self.norm1.forward(x, mask, tape)
        h = self.attn.forward(h, h, mask, tape)
        x = x + self.drop1.forward(h, tape)

        h = self.norm2.forward(x, mask, tape)
        h = self.ffn.forward(h, tape)
        return x + self.drop2.forward(h, tape)


class TokenEmbedding(Layer):
    """drop(positions(sqrt(D) * table[ids])): ids (..., T) and the place of each, (T,) -> (..., T, D)."""

    n_types = 0  # it does not tell types of tokens apart

    def __init__(self, tokens, positions, dropout=0.1):
        self.tokens = tokens
        self.positions = positions
        self.drop = Dropout(dropout)

    def forward(self, ids, index, tape=NO_TAPE, types=None):
        x = self.tokens.forward(ids, tape)
        x = self.positions.forward(x, index, tape)
        return self.drop.forward(x, tape)

    def backward(self, dy, tape):
        """Adds to the gradients of the tables; ids have none."""
        dx = self.drop.backward(dy, tape)
        dx = self.positions.backward(dx, tape)
        self.tokens.backward(dx, tape)

    @property
    def vocab_size(self):
        """How many tokens the table has."""
        return self.tokens.weight.shape[0]

    @property
    def d_model(self):
        """The width of a vector."""
        return self.tokens.weight.shape[1]

    @property
    def max_len(self):
        """The longest sequence that has positions."""
        return self.positions.max_len


class Encoder(Layer):
    """Token ids to hidden states, (B, T) -> (B, T, D): embed, n_layers layers, and a final norm after pre-LN ones.

    layer: the kind of layer, EncoderLayer (pre-LN) or PostLNEncoderLayer.
    positions: how the order is told, one of `positions`; by default SinusoidalPositions(d_model, max_len).
    attend: the attention core of every layer, with a dropout of its own; by default DotProduct(dropout).
    norm, ffn: the kinds of norm (LayerNorm, RMSNorm) and of feed-forward network (FeedForward, GatedFeedForward).
    padding_idx: the id whose row of the table stays without gradient; None for none.

    With a padding mask the batch is packed, so that time and memory follow the real tokens. The hidden states at
    padding are zeros, and a gradient that arrives there is dropped. In inference on the CPU, with a tape that keeps
    nothing, a batch goes through the layers in a few parts, on all threads.
    """

    def __init__(self, vocab_size, d_model=512, n_heads=8, d_ff=2048, n_layers=6, max_len=5000, dropout=0.1,
                 layer=EncoderLayer, activation=None, attend=None, positions=None, norm=None, ffn=None,
                 padding_idx=None, rng=None):
        for name, value in dict(vocab_size=vocab_size, d_model=d_model, d_ff=d_ff, n_layers=n_layers,
                                max_len=max_len).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        rng = np.random.default_rng(rng)
        tokens = Embedding(vocab_size, d_model, math.sqrt(d_model), padding_idx, rng)
        positions = positions or SinusoidalPositions(d_model, max_len)
        self.embed = TokenEmbedding(tokens, positions, dropout)
        self.layers = [layer(d_model, n_heads, d_ff, dropout, activation, attend, positions, norm=norm, ffn=ffn,
                             rng=rng) for _ in range(n_layers)]
        self.norm = None if layer.output_is_normed else (norm or LayerNorm)(d_model)

    @classmethod
    def from_parts(cls, embed, layers, norm=None):
        """An encoder of an embedding and layers of your own; norm may be None."""
        encoder = cls.__new__(cls)
        encoder.embed = embed
        encoder.layers = layers
        encoder.norm = norm
        return encoder

    def forward(self, ids, mask=None, tape=NO_TAPE, types=None):
        """ids: (B, T) integers. mask: (B, T) or (B, 1, 1, T) for padding, or any that broadcasts to (B, H, T, T).

        types: (B, T), which text of a pair each token is of, for embeddings with a table of types (BERT's).
        """
        ids, layout = self.front_door(ids, mask)
        types = types if types is None else self.check_types(types, ids)
        parts = [] if tape.keep or tape.training or not on_host(ids) else even_parts(layout.lengths)
        if len(parts) < 2:
            return self.run(ids, types, layout, tape)
        states = [None] * len(parts)

        def task(i):
            some = parts[i]
            states[i] = self.run(ids[some], types if types is None else types[some], layout.part(some), tape)

        run_each(task, range(len(parts)))
        y = np.empty((len(ids), *states[0].shape[1:]), states[0].dtype)
        for some, part in zip(parts, states):
            y[some] = part
        return y

    def backward(self, dy, tape):
        """Adds to the gradients of the parameters; ids have none."""
        (layout,) = tape.pop(self)
        dx = layout.pack(dy)
        if self.norm:
            dx = self.norm.backward(dx, tape)
        for layer in reversed(self.layers):
            dx = layer.backward(dx, tape)
        self.embed.backward(dx, tape)

    def run(self, ids, types, layout, tape):
        """The states of a batch that was checked."""
        types = types if types is None else layout.pack(types)
        x = self.embed.forward(layout.pack(ids), layout.positions, tape, types)
        for layer in self.layers:
            x = layer.forward(x, layout.mask, tape)
        if self.norm:
            x = self.norm.forward(x, tape)
        tape.push(self, layout)
        return layout.unpack(x)

    def front_door(self, ids, mask):
        """Check ids and mask, before any work; returns the ids, where the weights are, and the layout of the batch."""
        ids = as_array(ids)
        if ids.ndim != 2 or ids.size == 0:
            raise ValueError(f"token ids must be a batch of shape (batch, length), not empty, got shape {ids.shape}")
        check_ids(ids, self.embed.vocab_size)
        check_length(ids.shape[1], self.embed.max_len)
        tokens = None
        if mask is not None:
            mask = as_mask(mask)
            if mask.ndim == 2 or mask.shape == (ids.shape[0], 1, 1, ids.shape[1]):
                tokens = real_tokens(mask, ids.shape)
            else:
                mask = check_mask(mask, (ids.shape[0], self.n_heads, ids.shape[1], ids.shape[1]))

        weight = self.embed.tokens.weight.data
        if tokens is None:
            layout = Dense(ids.shape, mask if mask is None else like(mask, weight))
        elif on_host(weight) and not has_holes(tokens):
            layout = Packing(tokens)
        else:
            layout = Padded(like(tokens, weight))
        return like(ids, weight), layout

    def check_types(self, types, ids):
        """types, where the ids are; ValueError or IndexError unless each id has one that the embeddings know."""
        types = as_array(types)
        if not self.embed.n_types:
            raise ValueError("these embeddings have no types of tokens")
        if types.shape != ids.shape:
            raise ValueError(f"token types of shape {types.shape} do not fit token ids of shape {ids.shape}")
        check_ids(types, self.embed.n_types, "type")
        return like(types, ids)

    @property
    def n_heads(self):
        """The number of attention heads."""
        return next(part.n_heads for _, part in self.named_layers() if isinstance(part, MultiHeadAttention))

    @property
    def d_model(self):
        """The width of the hidden states."""
        return self.embed.d_model


def has_holes(tokens):
    """Whether padding stands between real tokens in any row of (B, T): then places are not packed ones, shifted."""
    begins = tokens[:, 1:] & ~tokens[:, :-1]
    return bool((begins.sum(axis=1) + tokens[:, 0] > 1).any())
