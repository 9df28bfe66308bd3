"""The whole project on an array type that has only what CuPy has, and refuses what CuPy refuses (K01, K03, K08)."""

import copy
import importlib.util
import json
import math
import sys
import types

import cuda_emulator
import numpy as np
import pytest
import standin

from gradcheck.completeness import all_cases
from tinyenc import Classifier, CrossEntropy, Encoder, Linear, Tape, backend, checkpoint, metrics
from tinyenc.attention.layout import Packing
from tinyenc.data import Batches
from tinyenc.distance import RelativeBias
from tinyenc.fit import fit
from tinyenc.optim import SGD, Adam, AdamW, clip_grad_norm
from tinyenc.schedules import linear
from tinyenc.train import evaluate, predict, train, train_step

pytestmark = pytest.mark.skipif(bool(cuda_emulator.MISSING), reason=cuda_emulator.MISSING)

HOST_ONLY = "padding-row"  # a layer of the tests that mixes arrays of its own
CASES = [case for case in all_cases() if not isinstance(case.mask, Packing) and case.name != HOST_ONLY]
DROPPING = [case for case in CASES if case.seed is not None and "at-zero" not in case.name]  # ReLU has a kink at zero


def parametrised(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: f"{type(case.layer).__name__}-{case.name}")


rng = np.random.default_rng(0)
EXAMPLES = [(rng.integers(5, 40, n).tolist(), int(n % 3)) for n in (4, 9, 2, 7, 5, 11, 3)]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    standin.install(monkeypatch)


# Layers and losses


class Run:
    """One forward and backward of a case: y, the gradients of its inputs, and those of its parameters."""

    def __init__(self, case, move=lambda x: x, layout=lambda x: x, seed=None, dtype=np.float64):
        self.layer = copy.deepcopy(case.layer).astype(dtype)
        if move is not like:
            self.layer.to("gpu")
        moved = {}

        def place(x):
            if isinstance(x, RelativeBias):
                return RelativeBias(place(x.diagonals), x.learnt)
            if not isinstance(x, np.ndarray) or x.ndim == 1 and x.dtype.kind in "iu":  # places of tokens: on the host
                return x
            if id(x) not in moved:  # self-attention is told by query and memory being one array
                moved[id(x)] = move(layout(x.astype(dtype) if x.dtype.kind == "f" else x))
            return moved[id(x)]

        named = {name: place(x) for name, x in (case.named or {}).items()}
        if case.mask is not None:
            named["mask"] = place(case.mask)
        tape = Tape(seed)
        self.y = self.layer.forward(*map(place, case.inputs), **named, tape=tape)
        self.dy = np.random.default_rng(0).standard_normal(self.y.shape).astype(self.y.dtype)
        dx = self.layer.backward(place(self.dy), tape)
        self.dx = [x for x in (dx if isinstance(dx, tuple) else (dx,)) if x is not None]
        self.results = [self.y, *self.dx, *(p.grad for p in self.layer.parameters())]


def like(x):
    return x


def on_host(arrays):
    return [x._host if isinstance(x, standin.ndarray) else x for x in arrays]


def close(actual, expected, error):
    assert len(actual) == len(expected)
    for a, b in zip(on_host(actual), on_host(expected)):
        np.testing.assert_allclose(a, b, rtol=error, atol=error * max(1, abs(b).max(initial=0)))


@parametrised(CASES)
def test_every_layer_gives_there_what_it_gives_on_the_cpu(case):
    there, here = Run(case, standin.asarray), Run(case, like)
    assert all(isinstance(x, standin.ndarray) for x in there.results)
    assert [x.dtype for x in there.results] == [x.dtype for x in here.results]
    close(there.results, here.results, 1e-10)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # some cases are too large for float16
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@parametrised(CASES)
def test_every_layer_keeps_its_dtype_there(case, dtype):
    there, here = Run(case, standin.asarray, dtype=dtype), Run(case, like, dtype=dtype)
    assert [x.dtype for x in there.results] == [x.dtype for x in here.results]


@parametrised(DROPPING)
def test_dropout_there_is_the_same_in_backward_as_in_forward(case):
    """Against differences, since the masks are not those of the CPU."""
    there = Run(case, standin.asarray, seed=case.seed)
    again = Run(case, standin.asarray, seed=case.seed)
    close(there.results, again.results, 0)
    inputs = [x for x in case.inputs if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    assert len(there.dx) == len(inputs)
    steps = {id(x): np.random.default_rng(i).standard_normal(x.shape) for i, x in enumerate(inputs)}
    of_weights = [np.random.default_rng(i).standard_normal(p.shape) for i, p in enumerate(case.layer.parameters())]

    def side(h):
        layer = copy.deepcopy(case.layer).astype(np.float64)
        for p, step in zip(layer.parameters(), of_weights):
            p.data += h * step
        moved = {i: x + h * steps[i] for i, x in zip(map(id, inputs), inputs)}
        at = case._replace(layer=layer, inputs=tuple(moved.get(id(x), x) for x in case.inputs))
        return (Run(at, standin.asarray, seed=case.seed).y._host * there.dy).sum()

    slope = sum((dx._host * steps[id(x)]).sum() for dx, x in zip(there.dx, inputs))
    slope += sum((p.grad._host * step).sum() for p, step in zip(there.layer.parameters(), of_weights))
    assert slope == pytest.approx((side(1e-6) - side(-1e-6)) / 2e-6, rel=1e-5, abs=1e-6)


LAYOUTS = [
    lambda x: x.T.copy().T,
    lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    lambda x: np.concatenate([x[:1], x])[1:],
    lambda x: x[::-1].copy()[::-1],
]


@parametrised(CASES)
def test_memory_layout_of_the_inputs_does_not_matter_there(case):
    plain = Run(case, standin.asarray)
    for layout in LAYOUTS:
        view = Run(case, standin.ndarray, lambda x, layout=layout: layout(x) if x.ndim else x)
        close(view.results, plain.results, 1e-10)


# Training


def new_run(dropout=0.0, dtype=np.float32, seed=0, optimizer=AdamW, device="gpu"):
    encoder = Encoder(40, 8, 2, 16, 2, max_len=16, dropout=dropout, rng=1)
    model = Classifier(encoder, 3, dropout=dropout, rng=2).astype(dtype).to(device)
    return model, Batches(EXAMPLES, 3, seed=seed), optimizer(model, linear(0.01, 2, 20))


@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_training_there_makes_the_steps_of_the_cpu(optimizer, dtype):
    runs = {}
    for device in "cpu", "gpu":
        model, batches, rule = new_run(0.0, dtype, optimizer=optimizer, device=device)
        steps = list(train(model, CrossEntropy(0.1), batches, rule, n_epochs=2, max_norm=0.5))
        states = model.state_dict() | rule.state_dict()
        # A softmax does not see the bias of the keys: its gradient is rounding errors, which Adam makes large.
        states = {name: array for name, array in states.items() if "w_k.bias" not in name}
        runs[device] = [float(step.loss) for step in steps], states
    error = 1e-9 if dtype == np.float64 else 0.02
    assert runs["gpu"][0] == pytest.approx(runs["cpu"][0], rel=error)
    there, here = runs["gpu"][1], runs["cpu"][1]
    assert list(there) == list(here)
    close(list(there.values()), list(here.values()), error)


def test_a_training_step_waits_for_the_device_once():
    model, batches, optimizer = new_run(dropout=0.1)
    window = [next(iter(batches))]
    train_step(model, CrossEntropy(), window, optimizer)
    standin.syncs.clear()
    loss, norm, _ = train_step(model, CrossEntropy(), window, optimizer)
    assert len(standin.syncs) <= 1, standin.syncs
    assert isinstance(loss, standin.ndarray) and loss.shape == () and type(norm) is float


def test_a_step_with_accumulated_batches_waits_once_too():
    model, batches, optimizer = new_run(dropout=0.1)
    window = list(batches)
    train_step(model, CrossEntropy(), window, optimizer)
    standin.syncs.clear()
    train_step(model, CrossEntropy(), window, optimizer)
    assert len(standin.syncs) <= 1, standin.syncs


def test_forward_and_backward_of_a_batch_that_is_on_the_device_already():
    model, batches, _ = new_run()
    batch = next(iter(batches))
    tape, loss = Tape(), CrossEntropy()
    expected = loss.forward(model.forward(batch.ids, batch.mask), batch.labels)
    ids, mask, labels = (standin.asarray(x) for x in (batch.ids, batch.mask, batch.labels))
    got = loss.forward(model.forward(ids, mask, tape), labels, tape)
    model.backward(loss.backward(1.0, tape), tape)
    assert float(got) == float(expected)
    assert len(tape) == 0


def test_dropout_masks_are_the_same_for_the_same_seed_and_not_stored():
    model, batches, _ = new_run(dropout=0.5)
    batch = next(iter(batches))
    first, second = (model.forward(batch.ids, batch.mask, Tape(seed=3, keep=False)) for _ in range(2))
    np.testing.assert_array_equal(first.get(), second.get())
    assert not np.array_equal(first.get(), model.forward(batch.ids, batch.mask, Tape(seed=4, keep=False)).get())
    with_dropout, without = Tape(seed=3), Tape()
    for tape in with_dropout, without:
        model.forward(batch.ids, batch.mask, tape)
    # The classifier's pooled vectors apart, nothing more is held than without dropout.
    assert with_dropout.nbytes <= without.nbytes * 1.3


def test_a_gradient_that_is_not_finite_skips_the_step_there():
    model, batches, optimizer = new_run()
    train_step(model, CrossEntropy(), [next(iter(batches))], optimizer)
    before = model.state_dict()
    model.parameters()[0].grad[0, 0] = math.inf
    with pytest.warns(RuntimeWarning, match="skipped"):
        optimizer.step(1.0)
    np.testing.assert_equal(model.state_dict(), before)


def test_clipping_there_gives_what_it_gives_here():
    norms = []
    for device in "cpu", "gpu":
        layer = Linear(3, 2, rng=0).to(device)
        for p in layer.parameters():
            p.grad.fill(2.0)
        norms.append((clip_grad_norm(layer, 1.0), [on_host([p.grad])[0] for p in layer.parameters()]))
    assert norms[0][0] == norms[1][0] == pytest.approx(math.sqrt(32))
    close(norms[1][1], norms[0][1], 1e-6)


# What the user is handed


def test_fit_evaluation_metrics_and_predictions_are_plain_numbers_and_host_arrays(tmp_path):
    model, batches, optimizer = new_run(dropout=0.1)
    valid = Batches(EXAMPLES, 4, shuffle=False)
    rows = fit(model, CrossEntropy(), batches, optimizer, 2, valid, log=tmp_path / "log", progress=False)
    json.dumps([rows, evaluate(model, CrossEntropy(), valid)])
    assert len((tmp_path / "log").read_text().splitlines()) > 2
    outputs = [output for _, output in predict(model, valid)]
    assert all(type(output) is np.ndarray for output in outputs)
    labels = standin.asarray(np.array([0, 1, 2, -100]))
    predicted = standin.asarray(np.array([0, 2, 2, 1]))
    for score in metrics.accuracy, metrics.f1_macro, metrics.f1_micro:
        assert type(score(predicted, labels)) is float
        assert score(predicted, labels) == score(predicted.get(), labels.get())
    assert type(metrics.confusion(predicted, labels)) is np.ndarray


def test_checkpoint_from_the_device_holds_host_arrays_and_goes_on_here_and_there(tmp_path):
    pytest.importorskip("safetensors", reason="checkpoints need safetensors")
    model, batches, optimizer = new_run()
    list(train(model, CrossEntropy(), batches, optimizer, 1))
    checkpoint.save(tmp_path / "run", model, optimizer, batches, seed=0)
    losses = []
    for device in "cpu", "gpu":
        model, batches, optimizer = new_run(device=device)
        checkpoint.load(tmp_path / "run").restore(model, optimizer, batches)
        losses.append([float(step.loss) for step in train(model, CrossEntropy(), batches, optimizer, 3)])
        assert losses[-1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_initial_weights_are_bit_identical_on_both_devices():
    here, there = (Encoder(40, 8, 2, 16, 2, rng=7) for _ in range(2))
    there.to("gpu")
    np.testing.assert_equal(there.state_dict(), here.state_dict())
    assert all(isinstance(p.data, standin.ndarray) for p in there.parameters())
    assert all(type(p.data) is np.ndarray for p in there.to("cpu").parameters())


def test_gradients_and_optimiser_arrays_move_along():
    model, batches, optimizer = new_run(device="cpu")
    list(train(model, CrossEntropy(), batches, optimizer, 1))
    model.to("gpu")
    train_step(model, CrossEntropy(), [next(iter(batches))], optimizer)
    model.to("cpu")
    train_step(model, CrossEntropy(), [next(iter(batches))], optimizer)
    assert all(type(p.data) is np.ndarray and type(p.grad) is np.ndarray for p in model.parameters())


# No GPU


class BrokenRuntime(RuntimeError):
    """As CuPy's CUDARuntimeError."""


def fake_cupy(monkeypatch, count=None, nvrtc=None):
    """A CuPy of which getDeviceCount and nvrtc.getVersion return this, or raise it."""
    def answer(value):
        def call():
            if isinstance(value, Exception):
                raise value
            return value
        return call

    cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=answer(count)),
                                 nvrtc=types.SimpleNamespace(getVersion=answer(nvrtc)))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))


def one_line(call):
    with pytest.raises(RuntimeError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_gpu_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    message = one_line(lambda: Linear(2, 2).to("gpu"))
    assert "CuPy" in message and "tinyenc[cuda13]" in message and "cuda12" in message


def test_gpu_without_a_driver_or_a_device_says_so(monkeypatch):
    fake_cupy(monkeypatch, BrokenRuntime("cudaErrorInsufficientDriver: CUDA driver version is insufficient"))
    assert "cudaErrorInsufficientDriver" in one_line(lambda: Linear(2, 2).to("gpu"))
    fake_cupy(monkeypatch, 0)
    assert "no GPU is visible" in one_line(lambda: Linear(2, 2).to("gpu"))


def test_gpu_without_the_runtime_compiler_says_what_to_install(monkeypatch):
    fake_cupy(monkeypatch, 1, BrokenRuntime("CuPy failed to load libnvrtc.so.13: OSError"))
    message = one_line(lambda: Linear(2, 2).to("gpu"))
    assert "NVRTC" in message and "tinyenc[cuda13]" in message


def test_auto_takes_the_gpu_where_there_is_one_and_the_cpu_elsewhere(monkeypatch):
    assert isinstance(Linear(2, 2).to("auto").weight.data, standin.ndarray)
    assert backend.chosen("auto") == "gpu"
    fake_cupy(monkeypatch, 0)
    assert type(Linear(2, 2).to("auto").weight.data) is np.ndarray
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert backend.chosen("auto") == "cpu"


def test_unknown_device_is_refused():
    with pytest.raises(ValueError, match='"cpu", "gpu" or "auto", got \'tpu\''):
        Linear(2, 2).to("tpu")


# The stand-in itself


REFUSALS = {
    "becoming a NumPy array": lambda x: np.asarray(x),
    "becoming one in a list": lambda x: np.array([x, x]),
    "adding a NumPy array": lambda x: x + np.ones(3),
    "being added to one": lambda x: np.ones(3) + x,
    "being added to one in place": lambda x: np.ones(3).__iadd__(x),
    "adding one in place": lambda x: x.__iadd__(np.ones(3)),
    "a ufunc of both": lambda x: np.maximum(x, np.ones(3)),
    "a function of both": lambda x: np.where(x > 0, x, np.ones(3)),
    "joining both": lambda x: np.concatenate([x, np.ones(3)]),
    "a ufunc with where": lambda x: np.exp(x, where=x > 0),
    "a maximum with an initial value": lambda x: x.max(initial=0),
    "a sum with where": lambda x: x.sum(where=x > 0),
    "a method that NumPy's ufuncs do not hand on": lambda x: np.add.reduce(x),
    "scattering by NumPy": lambda x: np.add.at(x, np.array([0]), 1.0),
    "being an index": lambda x: range(3)[x.astype(int)[0]],
    "a function that CuPy does not have": lambda x: np.nditer(x),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_standin_refuses(what):
    with pytest.raises(TypeError):
        REFUSALS[what](standin.asarray(np.ones(3)))


WAITS = {
    "float": lambda x: float(x[0]), "int": lambda x: int(x[0]), "bool": lambda x: bool(x[0]), "get": lambda x: x.get(),
    "item": lambda x: x[0].item(), "tolist": lambda x: x.tolist(), "if": lambda x: 1 if x[0] > 0 else 0,
    "a boolean index": lambda x: x[x > 0], "nonzero": lambda x: np.nonzero(x), "math.sqrt": lambda x: math.sqrt(x[0]),
}


@pytest.mark.parametrize("what", WAITS)
def test_standin_counts_a_wait_for(what):
    WAITS[what](standin.asarray(np.ones(3)))
    assert len(standin.syncs) == 1 and "test_standin.py" in standin.syncs[0]


def test_standin_computes_without_waiting_and_gives_0d_arrays():
    x = standin.asarray(np.arange(6.0).reshape(2, 3))
    total = (np.exp(x) * 2 - x.mT.swapaxes(0, 1)).sum() / np.float32(3)
    assert isinstance(total, standin.ndarray) and total.shape == () and standin.syncs == []
    x[0] = 7.0
    x[:, 1] += x[:, 0]
    assert x.get().tolist() == [[7, 14, 7], [3, 7, 5]]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_standin_has_no_name_that_cupy_lacks(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy")
    import cupy
    names = {name for name in dir(np) if hasattr(standin, name) and not name.startswith("_")}
    assert {name for name in names if callable(getattr(np, name)) and not hasattr(cupy, name)} == set()
    assert {name for name in dir(standin.ndarray) if not hasattr(cupy.ndarray, name)} <= {"__dict__", "__weakref__"}
