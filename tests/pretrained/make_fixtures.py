"""Make the folders beside this file: small random models of each family, and what transformers computes with them.

Run with torch and transformers installed: `python tests/pretrained/make_fixtures.py`. Every weight is random, norm
weights and biases too. `expected.safetensors` holds a padded batch, the hidden states and the head's logits, two
random cotangents, and the gradient of sum(cotangent * output) for every parameter, under its name in transformers.
"""

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.numpy import save_file

HERE = Path(__file__).parent
SIZES = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
             max_position_embeddings=20, pad_token_id=0)
IDS = np.array([[2, 7, 11, 39, 3, 8, 8, 3], [2, 30, 5, 3, 0, 0, 0, 0], [2, 21, 4, 14, 33, 3, 0, 0]])
MODELS = {
    "bert": hf.BertForMaskedLM(hf.BertConfig(**SIZES, hidden_act="gelu_new", layer_norm_eps=1e-3)),
    "roberta": hf.RobertaForMaskedLM(hf.RobertaConfig(**SIZES | dict(pad_token_id=1), type_vocab_size=1,
                                                      layer_norm_eps=1e-5)),
    "electra": hf.ElectraForMaskedLM(hf.ElectraConfig(**SIZES, embedding_size=12)),
    "distilbert": hf.DistilBertForMaskedLM(hf.DistilBertConfig(
        vocab_size=40, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=20, pad_token_id=0)),
    "modernbert": hf.ModernBertForMaskedLM(hf.ModernBertConfig(
        **SIZES | dict(num_hidden_layers=4), local_attention=4, rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 160.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0}},
        bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)),
}


def random_weights(model, rng):
    for name, parameter in model.named_parameters():
        values = rng.standard_normal(parameter.shape) * 0.3 + (name.endswith("orm.weight"))
        parameter.data = torch.tensor(values, dtype=torch.float32)


def expect(model, rng):
    """The batch, the outputs in float64 and the gradients."""
    pad = model.config.pad_token_id
    real = IDS != 0
    ids = np.where(real, IDS, pad)
    given = dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(real))
    types = np.where(real & (np.cumsum(IDS == 3, axis=1) - (IDS == 3) > 0), 1, 0)
    if getattr(model.config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = torch.tensor(types)
    output = model.eval().double()(**given, output_hidden_states=True)
    hidden = output.hidden_states[-1]
    if model.config.model_type == "modernbert":
        hidden = model.model(**given).last_hidden_state
    cotangents = [torch.tensor(rng.standard_normal(x.shape) * real[..., None]) for x in (hidden, output.logits)]
    (hidden * cotangents[0]).sum().backward(retain_graph=True)
    (output.logits * cotangents[1]).sum().backward()

    expected = dict(ids=ids, mask=real, types=types, hidden=hidden.detach().numpy() * real[..., None],
                    logits=output.logits.detach().numpy() * real[..., None],
                    dhidden=cotangents[0].numpy(), dlogits=cotangents[1].numpy())
    gradients = {f"grad.{name}": p.grad.numpy().astype(np.float32) for name, p in model.named_parameters()}
    return expected | gradients


def pytorch_encoder(norm_first, rng):
    """An nn.TransformerEncoder: its state, a padded batch of vectors, the output and every gradient."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 24, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    norm = torch.nn.LayerNorm(16) if norm_first else None
    model = torch.nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    random_weights(model, rng)
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    real = IDS != 0
    x, dy = (torch.tensor(rng.standard_normal((3, 8, 16)) * real[..., None]) for _ in range(2))
    y = model.double()(x, src_key_padding_mask=torch.tensor(~real))
    (y * dy).sum().backward()
    gradients = {f"grad.{name}": p.grad.numpy().astype(np.float32) for name, p in model.named_parameters()}
    y = y.detach().numpy() * real[..., None]
    return state, gradients | {"x": x.numpy(), "mask": real, "dy": dy.numpy(), "y": y}


if __name__ == "__main__":
    for norm_first in False, True:
        state, expected = pytorch_encoder(norm_first, np.random.default_rng(norm_first))
        at = HERE / "pytorch" / ("norm_first" if norm_first else "norm_last")
        at.mkdir(parents=True, exist_ok=True)
        save_file(state, at / "state.safetensors")
        save_file(expected, at / "expected.safetensors")
    for seed, (family, model) in enumerate(MODELS.items()):
        rng = np.random.default_rng(seed)
        random_weights(model, rng)
        model.tie_weights()
        model.save_pretrained(HERE / family)
        (HERE / family / "generation_config.json").unlink(missing_ok=True)
        save_file(expect(model, rng), HERE / family / "expected.safetensors")
