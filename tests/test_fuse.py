"""Array formulas as one kernel each, on the emulated device."""

import inspect

import cuda_emulator
import numpy as np
import pytest
import standin
from support import random

from tinyenc import Classifier, CrossEntropy, Encoder, Linear, Tape, backend, ops
from tinyenc.kernels import fuse, trace
from tinyenc.kernels.fuse import fused
from tinyenc.optim import SGD, Adam, AdamW
from tinyenc.parallel import rowwise
from tinyenc.schedules import linear
from tinyenc.train import train_step

pytestmark = pytest.mark.skipif(bool(cuda_emulator.MISSING), reason=cuda_emulator.MISSING)

X = random(3, 4, 70)
ARGUMENTS = {  # of formulas, by name; any other is an array like X
    "dy": random(3, 4, 70, seed=1), "weight": random(70), "bias": random(70, seed=1), "eps": 1e-5, "factor": 0.3,
    "rstd": 1 + random(3, 4, 1) ** 2, "rrms": 1 + random(3, 4, 1) ** 2, "logits": random(2, 1030), "with_slope": True,
}


def arguments(formula):
    return [ARGUMENTS.get(name, X) for name in inspect.signature(formula).parameters]


ROWWISE = [f for _, f in inspect.getmembers(ops) if getattr(f, "formula", None) and "rowwise" in f.__code__.co_qualname]
FORMULAS = {formula: arguments(formula) for formula in ROWWISE}
TOLERANCE = {np.float64: 1e-13, np.float32: 3e-6, np.float16: 2e-3}
DTYPES = np.float64, np.float16  # float32 is computed as float16 is


@pytest.fixture(autouse=True)
def device(monkeypatch):
    standin.install(monkeypatch, fuse=True)
    cuda_emulator.launches.clear()
    fuse._programs.clear()


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels of all formulas, compiled side by side."""
    jobs = []
    for formula, args in FORMULAS.items():
        for dtype in DTYPES:
            given = [trace.Array(n, fuse.kind_of(x, args[0]), x.dtype) if isinstance(x, np.ndarray) else x
                     for n, x in enumerate(cast(args, dtype))]
            program = trace.Trace().program(formula.formula, given, {})
            jobs.append((program.code, [f"fused<{32 if args[0].shape[-1] <= fuse.LONG else fuse.BLOCK}>"]))
    cuda_emulator.compile_together(jobs)


def cast(args, dtype):
    return [x.astype(dtype) if isinstance(x, np.ndarray) else x for x in args]


def on(args):
    return [standin.ndarray(x) if isinstance(x, np.ndarray) else x for x in args]


def listed(results):
    return results if isinstance(results, tuple) else (results,)


def one_kernel():
    """Whether the last thing that ran was one launch of a formula's kernel."""
    names = [name for name, _ in cuda_emulator.launches]
    cuda_emulator.launches.clear()
    return len(names) == 1 and names[0].startswith("fused<")


def test_formulas_were_found():
    assert {ops.layer_norm, ops.gelu, ops.log_softmax} < set(FORMULAS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_formula_is_one_kernel_and_gives_what_numpy_gives(formula, dtype):
    args = cast(FORMULAS[formula], dtype)
    actual, expected = listed(formula(*on(args))), listed(formula(*args))
    assert one_kernel()
    assert [(x.shape, x.dtype) for x in actual] == [(x.shape, x.dtype) for x in expected]
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a.get(), b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def squares(x):
    return x * x, (x * x).mean(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 7), (9,), (3, 33), (2, 3, 1025), (0, 4), (4, 0), (2, 0, 3)])
def test_shapes_of_all_kinds(shape):
    x = random(*shape)
    if shape[-1]:
        for a, b in zip(fused(squares, on([x])), squares(x)):
            np.testing.assert_allclose(a.get(), b, rtol=1e-12)
    y = fused(lambda x: np.exp(x) - 2, on([x]))
    np.testing.assert_allclose(y.get(), np.exp(x) - 2, rtol=1e-12)
    assert y.shape == shape


def test_nan_and_infinity_go_through_as_in_numpy():
    x = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]])
    for formula in (ops.relu, lambda x: np.minimum(x, 0.5), lambda x: np.where(np.isfinite(x), x, -1.0),
                    lambda x: np.maximum(-1.0, x), lambda x: abs(x), lambda x: x != x):
        np.testing.assert_array_equal(fused(getattr(formula, "formula", formula), on([x])).get(), formula(x))


def test_conversion_to_half_rounds():
    def difference(x):
        return x - x.astype(np.float16)

    x = random(3, 5, dtype=np.float32)
    np.testing.assert_array_equal(fused(difference, on([x])).get(), difference(x))
    assert difference(x).any() and one_kernel()


# Formulas that work in place


def test_arrays_are_changed_in_place():
    def move(w, g, m):
        m *= 0.9
        m += 0.1 * g
        w -= 0.5 * m

    w, g, m = (random(5, 70, seed=s) for s in range(3))
    device = on([w.copy(), g.copy(), m.copy()])
    assert fused(move, device) is None
    assert one_kernel()
    move(w, g, m)
    for a, b in zip(device, (w, g, m)):
        np.testing.assert_allclose(a.get(), b, rtol=1e-14)


def test_result_in_place_of_an_argument_is_that_argument():
    def doubled(x):
        x += x
        return x

    x = standin.ndarray(random(3, 70))
    before = x.get()
    assert fused(doubled, [x]) is x
    np.testing.assert_array_equal(x.get(), 2 * before)


def test_one_array_passed_twice_is_one_array():
    x = standin.ndarray(random(3, 70))
    np.testing.assert_allclose(fused(lambda x, y: x * y, [x, x]).get(), x.get() ** 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("rule", [SGD, Adam, AdamW])
def test_an_update_is_one_kernel_for_each_parameter(rule, dtype):
    layers = [Linear(8, 7, rng=0).astype(dtype) for _ in range(2)]
    layers[1].to("gpu")
    optimizers = [rule(layer, linear(0.1, 2, 20)) for layer in layers]
    for step in range(3):
        for layer in layers:
            for n, p in enumerate(layer.parameters()):
                p.grad[...] = backend.like(random(*p.shape, seed=n + step), p.data)
        cuda_emulator.launches.clear()
        for optimizer in optimizers:
            optimizer.step()
        assert [name.partition("<")[0] for name, _ in cuda_emulator.launches] == ["fused", "fused"]
    for a, b in zip(*(layer.state_dict().values() for layer in layers)):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype])


def test_a_learning_rate_that_changes_compiles_nothing_new():
    layer = Linear(8, 7, rng=0).to("gpu")
    optimizer = AdamW(layer, linear(0.1, 2, 20))
    for p in layer.parameters():
        p.grad.fill(1)
    optimizer.step()
    optimizer.step()
    codes = {program.code for program in fuse._programs.values()}
    optimizer.step()
    assert {program.code for program in fuse._programs.values()} == codes


# Formulas that are no kernel, and keys


NOT_ONE_KERNEL = {
    "a function that is not written down": lambda x: np.cumsum(x, axis=-1),
    "a method that is not": lambda x: x.argmax(axis=-1)[..., None] + x,
    "a branch on values": lambda x: x if x[0, 0] > 0 else -x,
    "a sum over columns": lambda x: x - x.sum(axis=0, keepdims=True),
    "a sum without the axis": lambda x: x - x.sum(axis=-1)[..., None],
    "an index": lambda x: x[..., ::-1] * 1.0,
    "a NumPy method": lambda x: np.add.accumulate(x, axis=-1) if isinstance(x, np.ndarray) else np.cumsum(x, axis=-1),
    "a shape": lambda x: x / x.shape[-1],
}


@pytest.mark.parametrize("what", NOT_ONE_KERNEL)
def test_formula_that_cannot_be_one_kernel_runs_operator_by_operator(what):
    x = random(3, 7)
    for _ in range(2):
        np.testing.assert_allclose(fused(NOT_ONE_KERNEL[what], on([x])).get(), NOT_ONE_KERNEL[what](x))
    assert cuda_emulator.launches == []


@pytest.mark.parametrize("layout", [lambda x: x.T.copy().T, lambda x: np.repeat(x, 2, axis=-1)[..., ::2]])
def test_arrays_in_another_layout_are_taken_as_they_are(layout):
    np.testing.assert_allclose(ops.gelu(*on([layout(X)]))[0].get(), ops.gelu(X)[0])


CALLS = []


@rowwise
def counted(x, a):
    CALLS.append(a)
    return x * a


def test_formula_is_called_once_for_each_kind_of_arguments():
    CALLS.clear()
    for a in (2, 2, 2.0, np.float32(2), True, 2):
        for x in (X, X[:2], X.astype(np.float32)):
            result, expected = counted(*on([x]), a), x * a
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result.get(), expected)
    assert len(CALLS) == 4 * 2


def test_closures_over_other_values_are_other_formulas():
    def times(a):
        return lambda x: x * a

    results = [fused(times(a), on([X])).get() for a in (2, 3, 2)]
    np.testing.assert_array_equal(results[0], 2 * X)
    np.testing.assert_array_equal(results[1], 3 * X)
    np.testing.assert_array_equal(results[2], 2 * X)


def test_what_formulas_were_found_to_do_keeps_no_model_alive():
    import gc
    import weakref
    layer = Linear(8, 7, rng=0).to("gpu")
    optimizer = AdamW(layer, 0.1)
    for p in layer.parameters():
        p.grad.fill(1)
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_a_training_step_of_fused_formulas_is_the_step_of_the_cpu():
    ids = np.random.default_rng(0).integers(5, 40, (2, 6))
    batch = type("Batch", (), dict(ids=ids, mask=np.arange(6) < np.array([[6], [4]]), labels=np.array([0, 2])))
    states = []
    for name in "cpu", "gpu":
        model = Classifier(Encoder(40, 8, 2, 16, 1, max_len=16, dropout=0.0, rng=1), 3, dropout=0.0, rng=2).to(name)
        optimizer = AdamW(model, 0.01)
        losses = [float(train_step(model, CrossEntropy(), [batch], optimizer)[0]) for _ in range(2)]
        states.append((losses, model.state_dict()))
    assert states[0][0] == pytest.approx(states[1][0], rel=1e-5)
    for name in states[0][1]:
        if "w_k.bias" not in name:
            np.testing.assert_allclose(states[1][1][name], states[0][1][name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert model.forward(batch.ids, batch.mask, Tape()).shape == (2, 3)
