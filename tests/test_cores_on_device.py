"""Attention cores and positions on a stand-in for the GPU, beside the CPU."""

import sys

import numpy as np
import pytest
import standin
from support import padded_batch, random, small_encoder

from tinyenc import (
    ALiBi,
    CausalLinearAttention,
    LearnedPositions,
    LinearAttention,
    NoPositions,
    Rotary,
    SlidingWindow,
    T5Buckets,
    Tape,
    Tiled,
)

CORES = [Tiled(queries=4, keys=3), SlidingWindow(2, 1), LinearAttention(), CausalLinearAttention(4)]
POSITIONS = [lambda: LearnedPositions(16, 9, rng=0), Rotary, lambda: ALiBi(4), lambda: T5Buckets(4, 8, 6, rng=0),
             NoPositions]


@pytest.mark.parametrize("core", CORES, ids=lambda core: type(core).__name__)
@pytest.mark.parametrize("positions", POSITIONS, ids=["learned", "rotary", "alibi", "t5", "none"])
def test_device_gives_what_the_cpu_gives(positions, core, monkeypatch):
    if isinstance(positions(), (ALiBi, T5Buckets)) and isinstance(core, LinearAttention):
        core = CORES[0]  # the others have no scores
    ids, tokens = padded_batch([9, 4, 6])
    dy = random(3, 9, 16) * tokens[..., None]

    def run(device):
        encoder = small_encoder(positions=positions(), attend=core).to(device)
        tape = Tape()
        states = encoder.forward(ids, tokens, tape)
        encoder.backward(dy if device == "cpu" else sys.modules["cupy"].asarray(dy), tape)
        encoder.to("cpu")
        return states, {name: p.grad for name, p in encoder.named_parameters()}

    states, gradients = run("cpu")
    standin.install(monkeypatch)
    same, same_gradients = run("gpu")
    np.testing.assert_allclose(same.get() * tokens[..., None], states, rtol=0, atol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(same_gradients[name], gradient, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("core", [Tiled(0.3, 4, 3), SlidingWindow(2, 1, 0.3)], ids=lambda core: type(core).__name__)
def test_dropout_on_the_device_drops_what_the_cpu_drops(core, monkeypatch):
    q, k, v = (random(2, 3, 9, 4, seed=i) for i in range(3))
    on_cpu = core.forward(q, k, v, tape=Tape(seed=1))
    standin.install(monkeypatch)
    on_device = core.forward(*map(sys.modules["cupy"].asarray, (q, k, v)), tape=Tape(seed=1))
    np.testing.assert_allclose(on_device.get(), on_cpu, rtol=0, atol=1e-12)
