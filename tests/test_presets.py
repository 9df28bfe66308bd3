import tracemalloc

import numpy as np
import pytest

from tinyenc import Encoder, Tape
from tinyenc.optim import AdamW
from tinyenc.presets import BASE, MEDIUM, SMALL, Size, base, medium, needs, small

SIZES = pytest.mark.parametrize("size", [Size(64, 4, 256, 2), Size(32, 2, 100, 3)], ids=["wide", "deep"])


@pytest.mark.parametrize("make, size, layers", [(small, SMALL, (4, 4, 256)), (medium, MEDIUM, (6, 8, 512)),
                                                (base, BASE, (12, 12, 768))], ids=["small", "medium", "base"])
def test_presets_have_their_sizes_and_needs_tells_their_parameters_to_the_last(make, size, layers):
    encoder = make(1000, max_len=64, dropout=0.2, rng=0)
    assert (len(encoder.layers), encoder.n_heads, encoder.d_model) == layers
    assert encoder.layers[0].ffn.w_1.weight.shape == (layers[2], 4 * layers[2])
    assert encoder.embed.max_len == 64 and encoder.layers[-1].drop2.p == encoder.embed.drop.p == 0.2
    assert encoder.n_parameters == needs(size, 1000, 1, 1).n_parameters


def test_docstrings_tell_the_parameters_beside_the_table():
    for make, size in (small, SMALL), (medium, MEDIUM), (base, BASE):
        assert f" {needs(size, 0, 1, 1).n_parameters / 1e6:.1f} million parameters" in make.__doc__


@SIZES
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_weights_gradients_and_moments_are_told_to_the_byte(size, dtype):
    encoder = Encoder(100, *size, rng=0).astype(dtype)
    told = needs(size, 100, 2, 8, dtype=dtype)
    kept = {name: a for name, a in AdamW(encoder, 0.1).state_dict().items() if a.ndim}
    assert told.n_parameters == encoder.n_parameters
    assert told.weights == sum(p.data.nbytes for p in encoder.parameters())
    assert told.gradients == sum(p.grad.nbytes for p in encoder.parameters())
    assert told.moments == sum(a.nbytes for a in kept.values())
    assert told.total == told.weights + told.gradients + told.moments + told.activations


@SIZES
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("batch, length", [(2, 64), (3, 200)])
def test_activations_are_what_the_tape_holds_to_one_in_a_hundred(size, dtype, dropout, batch, length):
    encoder = Encoder(100, *size, dropout=dropout, rng=0).astype(dtype)
    tape = Tape(seed=0)
    encoder.forward(np.ones((batch, length), int), tape=tape)
    told = needs(size, 100, batch, length, dropout=dropout > 0, dtype=dtype)
    assert told.activations == pytest.approx(tape.nbytes, rel=0.01)


def test_needs_are_told_before_anything_is_allocated():
    tracemalloc.start()
    text = str(needs(BASE, 10**6, 1024, 4096))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert text.splitlines()[0] == "parameters     853,056,000"
    assert text.splitlines()[1] == "weights            3,412.2 MB"
    assert text.splitlines()[-1].startswith("total ")
