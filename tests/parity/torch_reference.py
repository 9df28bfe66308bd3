"""The same computations in PyTorch, float64: what tinyenc is compared with.

Each case is a function of a NumPy generator. It returns {key: array}: the arguments, "weight NAME" for each parameter
under tinyenc's name and in tinyenc's (in, out) order, and the answers: "expected KEY", "expected grad NAME".
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # threads cost more than they bring on arrays this small
D, HEADS, FF, VOCAB, CLASSES = 8, 2, 12, 20, 3
LENGTHS = [5, 2, 4]
RENAMED = {"self_attn.": "attn.", "out_proj.": "w_o.", "linear1.": "ffn.w_1.", "linear2.": "ffn.w_2."}


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape))


def leaf(rng, *shape):
    return normal(rng, *shape).requires_grad_()


def randomised(module, rng):
    """module in float64, every parameter random: norm weights about 1, biases not 0."""
    module = module.double()
    for parameter in module.parameters():
        noise = normal(rng, *parameter.shape)
        scale = 1 / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.3
        mean = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
        parameter.data = mean + scale * noise
    return module


def as_ours(named):
    """{tinyenc's name: array} of {PyTorch's name: tensor}: joint projections cut in three, matrices transposed."""
    found = {}
    for name, tensor in named:
        array = tensor.detach().numpy().copy()
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours)
        if "in_proj_" in name:
            for part, piece in zip("qkv", np.split(array, 3)):
                found[name.replace("in_proj_", f"w_{part}.")] = piece.T.copy()
        else:
            found[name] = array if "tokens" in name else array.T.copy()
    return found


def weights(module):
    return {f"weight {name}": array for name, array in as_ours(module.named_parameters()).items()}


def gradients(module):
    named = [(name, p.grad) for name, p in module.named_parameters()]
    return {f"expected grad {name}": array for name, array in as_ours(named).items()}


def arrays(**tensors):
    """As NumPy arrays; a key that begins with "expected_" is an answer."""
    return {key.replace("expected_", "expected "): t.detach().numpy().copy() if torch.is_tensor(t) else np.array(t)
            for key, t in tensors.items()}


def attention(rng, mask):
    q, k, v = leaf(rng, 2, 3, 4, 5), leaf(rng, 2, 3, 6, 5), leaf(rng, 2, 3, 6, 5)
    dy = normal(rng, 2, 3, 4, 5)
    y = F.scaled_dot_product_attention(q, k, v, torch.from_numpy(mask))
    y.backward(dy)
    return arrays(q=q, k=k, v=v, mask=mask, dy=dy, expected_y=y, expected_dq=q.grad, expected_dk=k.grad,
                  expected_dv=v.grad)


def attention_random_mask(rng):
    mask = rng.random((2, 3, 4, 6)) < 0.6
    mask[0, 1, 2] = mask[1, :, 0] = False  # rows with nothing to see
    return attention(rng, mask)


def attention_padded_memory(rng):
    return attention(rng, np.arange(6) < np.array([6, 2]).reshape(2, 1, 1, 1))


def attention_causal(rng):
    return attention(rng, np.tri(4, 6, 2, dtype=bool)[None, None])


def multi_head(rng, n_keys, mask, hidden_keys=None, hidden_pairs=None):
    module = randomised(nn.MultiheadAttention(D, HEADS, batch_first=True), rng)
    x, dy = leaf(rng, 3, 5, D), normal(rng, 3, 5, D)
    memory = x if n_keys is None else leaf(rng, 3, n_keys, D)
    y, _ = module(x, memory, memory, key_padding_mask=hidden_keys, attn_mask=hidden_pairs, need_weights=False)
    y.backward(dy)
    found = arrays(x=x, dy=dy, mask=mask, expected_y=y, expected_dx=x.grad)
    if n_keys is not None:
        found |= arrays(memory=memory, expected_dmemory=memory.grad)
    return found | weights(module) | gradients(module)


def self_attention_padded(rng):
    real = np.arange(5) < np.array(LENGTHS)[:, None]
    return multi_head(rng, None, real[:, None, None], hidden_keys=torch.from_numpy(~real))


def cross_attention_masked(rng):
    mask = rng.random((3, 1, 5, 7)) < 0.5
    mask[..., 0] = True
    hidden = torch.from_numpy(~mask).expand(3, HEADS, 5, 7).reshape(3 * HEADS, 5, 7)
    return multi_head(rng, 7, mask, hidden_pairs=hidden)


def layer_norm(rng, eps, mean=0.0):
    module = randomised(nn.LayerNorm(D, eps), rng)
    x, dy = (normal(rng, 4, 3, D) + mean).requires_grad_(), normal(rng, 4, 3, D)
    y = module(x)
    y.backward(dy)
    return arrays(x=x, dy=dy, eps=eps, expected_y=y, expected_dx=x.grad) | weights(module) | gradients(module)


def layer_norm_small_eps(rng):
    return layer_norm(rng, 1e-12)


def layer_norm_large_eps(rng):
    return layer_norm(rng, 0.1, mean=3.0)


def activation(rng, function):
    x, dy = (3 * normal(rng, 6, 20)).requires_grad_(), normal(rng, 6, 20)
    y = function(x)
    y.backward(dy)
    return arrays(x=x, dy=dy, expected_y=y, expected_dx=x.grad)


def gelu_erf(rng):
    return activation(rng, F.gelu)


def gelu_tanh(rng):
    return activation(rng, lambda x: F.gelu(x, approximate="tanh"))


def embedding(rng):
    module = randomised(nn.Embedding(6, D, padding_idx=2), rng)
    ids = torch.from_numpy(rng.integers(0, 6, (3, 5)))
    dy = normal(rng, 3, 5, D)
    y = module(ids)
    y.backward(dy)
    return arrays(ids=ids, dy=dy, weight=module.weight, expected_y=y, expected_grad=module.weight.grad)


def cross_entropy(rng, smoothing, shape=(4, 5), ignored=0.4):
    logits = leaf(rng, *shape, 7)
    targets = np.where(rng.random(shape) < ignored, -100, rng.integers(0, 7, shape))
    loss = F.cross_entropy(logits.reshape(-1, 7), torch.from_numpy(targets).reshape(-1), label_smoothing=smoothing)
    (2.5 * loss).backward()
    return arrays(logits=logits, targets=targets, smoothing=smoothing, weight=2.5, expected_loss=loss,
                  expected_dlogits=logits.grad)


def cross_entropy_plain(rng):
    return cross_entropy(rng, 0.0, (6,), ignored=0)


def cross_entropy_ignored(rng):
    return cross_entropy(rng, 0.0)


def cross_entropy_smoothed_ignored(rng):
    return cross_entropy(rng, 0.1)


def torch_layer(norm_first):
    return nn.TransformerEncoderLayer(D, HEADS, FF, dropout=0.0, activation="gelu", batch_first=True,
                                      norm_first=norm_first)


def encoder_layer(rng, norm_first):
    module = randomised(torch_layer(norm_first), rng)
    x, dy, real = leaf(rng, 3, 5, D), normal(rng, 3, 5, D), np.arange(5) < np.array(LENGTHS)[:, None]
    y = module(x, src_key_padding_mask=torch.from_numpy(~real))
    y.backward(dy)
    return arrays(x=x, dy=dy, mask=real[:, None, None], expected_y=y, expected_dx=x.grad) \
        | weights(module) | gradients(module)


def encoder_layer_pre(rng):
    return encoder_layer(rng, True)


def encoder_layer_post(rng):
    return encoder_layer(rng, False)


class TorchClassifier(nn.Module):
    """tinyenc's Classifier around its Encoder, of PyTorch's parts: two layers, masked mean."""

    def __init__(self, norm_first):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.embed = nn.Module()
        self.encoder.embed.tokens = nn.Embedding(VOCAB, D, padding_idx=0)
        self.encoder.layers = nn.ModuleList([torch_layer(norm_first) for _ in range(2)])
        if norm_first:
            self.encoder.norm = nn.LayerNorm(D)
        self.norm_first = norm_first
        self.out = nn.Linear(D, CLASSES)

    def states(self, ids, real):
        place = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
        angle = place * torch.exp(-math.log(10000) * torch.arange(0, D, 2, dtype=torch.float64) / D)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(-1, D)
        x = self.encoder.embed.tokens(ids) * math.sqrt(D) + table
        for layer in self.encoder.layers:
            x = layer(x, src_key_padding_mask=~real)
        return self.encoder.norm(x) if self.norm_first else x

    def forward(self, ids, real):
        x = self.states(ids, real) * real[..., None]
        return self.out(x.sum(1) / real.sum(1, keepdim=True))


def batch(rng):
    real = np.arange(5) < np.array(LENGTHS)[:, None]
    ids = np.where(real, rng.integers(1, VOCAB, real.shape), 0)
    return torch.from_numpy(ids), torch.from_numpy(real), torch.from_numpy(rng.integers(0, CLASSES, len(LENGTHS)))


def classifier(rng, norm_first):
    module = randomised(TorchClassifier(norm_first), rng)
    ids, real, labels = batch(rng)
    logits = module(ids, real)
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
    loss.backward()
    return arrays(ids=ids, mask=real, labels=labels, expected_states=module.states(ids, real) * real[..., None],
                  expected_logits=logits, expected_loss=loss) | weights(module) | gradients(module)


def classifier_pre(rng):
    return classifier(rng, True)


def classifier_post(rng):
    return classifier(rng, False)


MAX_NORM, PEAK, WARMUP, TOTAL, STEPS = 1.0, 0.05, 3, 12, 10


def training(rng, make):
    """Ten steps on two batches in turn, clipped, with linear warm-up and decay; weight decay on matrices alone."""
    module = randomised(TorchClassifier(True), rng)
    found = weights(module)
    decayed = [p for name, p in module.named_parameters() if p.ndim == 2 and "tokens" not in name]
    rest = [p for name, p in module.named_parameters() if p.ndim == 1 or "tokens" in name]
    optimizer = make([{"params": decayed}, {"params": rest, "weight_decay": 0.0}])
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / WARMUP, (TOTAL - done - 1) / (TOTAL - WARMUP)))
    batches, losses, norms = [batch(rng), batch(rng)], [], []
    for step in range(STEPS):
        ids, real, labels = batches[step % 2]
        optimizer.zero_grad()
        loss = F.cross_entropy(module(ids, real), labels)
        loss.backward()
        grads = [p.grad for p in module.parameters()]
        norm = nn.utils.get_total_norm(grads)
        for grad in grads:  # not clip_grad_norm_, which divides by norm + 1e-6
            grad *= min(1.0, MAX_NORM / norm.item())
        optimizer.step()
        rate.step()
        losses.append(loss.item())
        norms.append(norm.item())
    for i, (ids, real, labels) in enumerate(batches):
        found |= {f"ids {i}": ids.numpy(), f"mask {i}": real.numpy(), f"labels {i}": labels.numpy()}
    after = {f"expected after {name}": array for name, array in as_ours(module.named_parameters()).items()}
    return found | arrays(expected_losses=losses, expected_norms=norms) | after


def train_sgd(rng):
    return training(rng, lambda groups: torch.optim.SGD(groups, lr=PEAK, momentum=0.9, weight_decay=0.01))


def train_adam(rng):
    return training(rng, lambda groups: torch.optim.Adam(groups, lr=PEAK, betas=(0.8, 0.99)))


def train_adamw(rng):
    return training(rng, lambda groups: torch.optim.AdamW(groups, lr=PEAK, weight_decay=0.1))


CASES = [attention_random_mask, attention_padded_memory, attention_causal, self_attention_padded,
         cross_attention_masked, layer_norm_small_eps, layer_norm_large_eps, gelu_erf, gelu_tanh, embedding,
         cross_entropy_plain, cross_entropy_ignored, cross_entropy_smoothed_ignored, encoder_layer_pre,
         encoder_layer_post, classifier_pre, classifier_post, train_sgd, train_adam, train_adamw]


def compute(seed):
    """{"case/key": array} for every case."""
    found = {}
    for case in CASES:
        result = case(np.random.default_rng([seed, CASES.index(case)]))
        found |= {f"{case.__name__}/{key}": array for key, array in result.items()}
    return found
