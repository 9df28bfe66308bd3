"""The same classifier in PyTorch, twice: by hand on scaled_dot_product_attention, and nn.TransformerEncoderLayer."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from workload import CLASSES, VOCAB


class HandLayer(nn.Module):
    """Pre-LN, one product for query, key and value."""

    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.linear1, self.linear2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x, keep):
        def drop(h):
            return F.dropout(h, self.dropout, self.training)

        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, keep, self.dropout if self.training else 0.0)
        x = x + drop(self.out(h.transpose(1, 2).reshape(b, t, d)))
        return x + drop(self.linear2(drop(F.gelu(self.linear1(self.norm2(x))))))

    def load(self, state):
        """Take the weights of tinyenc's layer, {name inside the layer: array}."""
        load_linear(self.qkv, state, "attn.w_q", "attn.w_k", "attn.w_v")
        load_linear(self.out, state, "attn.w_o")
        load_linear(self.linear1, state, "ffn.w_1")
        load_linear(self.linear2, state, "ffn.w_2")


class LibraryLayer(nn.TransformerEncoderLayer):
    """nn.TransformerEncoderLayer, in the form that lets it use its fast path in inference."""

    def __init__(self, d_model, n_heads, dropout):
        super().__init__(d_model, n_heads, 4 * d_model, dropout, F.gelu, batch_first=True, norm_first=True)

    def forward(self, x, keep):
        return super().forward(x, src_key_padding_mask=None if keep is None else ~keep[:, 0, 0])

    def load(self, state):
        """Take the weights of tinyenc's layer, {name inside the layer: array}."""
        load_linear(self.self_attn, state, "attn.w_q", "attn.w_k", "attn.w_v", prefix="in_proj_")
        load_linear(self.self_attn.out_proj, state, "attn.w_o")
        load_linear(self.linear1, state, "ffn.w_1")
        load_linear(self.linear2, state, "ffn.w_2")


class TorchClassifier(nn.Module):
    """tinyenc's Classifier(Encoder(...)) with its mean pooling, of one kind of layer."""

    def __init__(self, layer, preset, dropout):
        super().__init__()
        d = preset.d_model
        self.dropout = dropout
        self.embedding = nn.Embedding(VOCAB, d)
        self.layers = nn.ModuleList(layer(d, preset.n_heads, dropout) for _ in range(preset.n_layers))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, CLASSES)
        angle = torch.arange(preset.length)[:, None] / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
        positions = torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, ids, mask):
        keep = None if mask is None else mask[:, None, None]
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim) + self.positions
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, keep)
        x = self.norm(x)
        if mask is None:
            pooled = x.mean(1)
        else:
            real = mask[..., None].to(x.dtype)
            pooled = (x * real).sum(1) / real.sum(1)
        return self.out(F.dropout(pooled, self.dropout, self.training))

    def load(self, state):
        """Take the weights of tinyenc's Classifier, its state dict. Norms are as at the start in both."""
        with torch.no_grad():
            self.embedding.weight.copy_(torch.from_numpy(state["encoder.embed.tokens.weight"]))
            load_linear(self.out, state, "out")
            for i, layer in enumerate(self.layers):
                prefix = f"encoder.layers.{i}."
                layer.load({name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)})

    def groups(self):
        """The parameters for AdamW: weight decay for the weights of linear layers alone, as in tinyenc."""
        embedding = self.embedding.weight
        decayed = [p for p in self.parameters() if p.ndim == 2 and p is not embedding]
        rest = [p for p in self.parameters() if p.ndim == 1] + [embedding]
        return [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]


def load_linear(linear, state, *names, prefix=""):
    """Copy one of tinyenc's Linear layers, or several side by side, into PyTorch's, whose weights are (d_out, d_in)."""
    weight = torch.cat([torch.from_numpy(state[f"{name}.weight"]).T for name in names])
    bias = torch.cat([torch.from_numpy(state[f"{name}.bias"]) for name in names])
    getattr(linear, prefix + "weight").copy_(weight)
    getattr(linear, prefix + "bias").copy_(bias)


KINDS = {"hand-written": HandLayer, "nn.TransformerEncoderLayer": LibraryLayer}
