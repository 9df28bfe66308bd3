"""The update rules against the published ones, and what every optimiser promises around them."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyenc import parallel
from tinyenc.layer import Layer, Parameter
from tinyenc.layers.embedding import Embedding
from tinyenc.optim import SGD, Adam, AdamW, Optimizer, clip_grad_norm
from tinyenc.schedules import linear

RULES = {
    "sgd": lambda parameters, lr, **more: SGD(parameters, lr, **more),
    "momentum": lambda parameters, lr, **more: SGD(parameters, lr, momentum=0.9, weight_decay=0.1, **more),
    "nesterov": lambda parameters, lr, **more: SGD(parameters, lr, momentum=0.9, nesterov=True, **more),
    "adam": lambda parameters, lr, **more: Adam(parameters, lr, **more),
    "adamw": lambda parameters, lr, **more: AdamW(parameters, lr, weight_decay=0.1, **more),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def parameter(values, dtype=np.float64, decay=True):
    return Parameter(np.array(values, dtype), decay)


def train(optimizer, *gradients, **step):
    """One step for each tuple of gradients, one for each of the optimiser's parameters."""
    for arrays in gradients:
        for p, gradient in zip(optimizer.parameters.values(), arrays, strict=True):
            p.grad[...] = gradient
        optimizer.step(**step)


def everything(optimizer):
    """All that a step may change, as bytes."""
    state = optimizer.state_dict() | {f"{name} itself": p.data for name, p in optimizer.parameters.items()}
    return {key: (array.dtype, array.tobytes()) for key, array in state.items()}


class Model(Layer):
    """Parameters of several shapes, one of them in two places, and one without decay."""

    def __init__(self, seed=0, dtype=np.float64):
        rng = np.random.default_rng(seed)
        self.matrix = Parameter(rng.standard_normal((3, 4)).astype(dtype))
        self.bias = Parameter(rng.standard_normal(4).astype(dtype), decay=False)
        self.tied = [self.matrix]
        self.scalar = Parameter(rng.standard_normal(()).astype(dtype))


def random_gradients(model, steps, seed=1):
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(p.shape) for p in model.parameters()] for _ in range(steps)]


# --- the rules ---


def one_weight(rule, gradients, w=1.0, **settings):
    p = parameter(w)
    train(rule([p], lr=0.1, **settings), *[[g] for g in gradients])
    return float(p.data)


def test_adam_corrects_its_bias_and_adds_eps_outside_the_root():
    assert one_weight(Adam, [0.5]) == pytest.approx(0.900000002, rel=1e-12)
    assert one_weight(Adam, [0.5, -0.25, 1e-4]) == pytest.approx(0.8527669315789186, rel=1e-12)


def test_adam_moves_half_a_rate_for_a_gradient_of_the_size_of_eps():
    assert 1 - one_weight(Adam, [1e-8]) == pytest.approx(0.05, rel=1e-9)


def test_adamw_decays_apart_from_the_gradient():
    assert one_weight(AdamW, [0.5, -0.25, 1e-4], weight_decay=0.1) == pytest.approx(0.82532226857204, rel=1e-12)
    assert one_weight(AdamW, [0], weight_decay=0.1) == pytest.approx(0.99, rel=1e-15)
    assert one_weight(AdamW, [0]) == pytest.approx(0.999, rel=1e-15)


def test_sgd_adds_decay_to_the_gradient():
    assert one_weight(SGD, [0.5], weight_decay=0.2) == pytest.approx(1 - 0.1 * (0.5 + 0.2), rel=1e-15)


def published_sgd(w, gradients, lr, momentum, nesterov, decay):
    """torch.optim.SGD's documented algorithm."""
    b = None
    for g in gradients:
        g = g + decay * w
        if momentum:
            b = g if b is None else momentum * b + g
            g = g + momentum * b if nesterov else b
        w = w - lr * g
    return w


def published_adamw(w, gradients, lr, beta1, beta2, eps, decay):
    """Algorithm 2 of Loshchilov & Hutter 2019; Algorithm 1 of Kingma & Ba 2015 where decay is 0."""
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w = w - lr * decay * w - lr * m_hat / (np.sqrt(v_hat) + eps)
    return w


problems = dict(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from([(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3)]),
                steps=st.integers(1, 6), size=st.floats(-6, 3), lr=st.floats(1e-5, 1), decay=st.floats(0, 0.5))


def problem(seed, shape, steps, size, dtype=np.float64):
    rng = np.random.default_rng(seed)
    w, *gradients = rng.standard_normal((steps + 1, *shape)).astype(dtype).astype(np.float64)
    return w, [g * 10**size for g in gradients]


@given(**problems, momentum=st.sampled_from([0, 0.5, 0.9]), nesterov=st.booleans())
def test_sgd_is_the_published_rule(seed, shape, steps, size, lr, decay, momentum, nesterov):
    w, gradients = problem(seed, shape, steps, size)
    nesterov = nesterov and momentum > 0
    p = parameter(w)
    train(SGD([p], lr, momentum, nesterov, decay), *[[g] for g in gradients])
    expected = published_sgd(w, gradients, lr, momentum, nesterov, decay)
    np.testing.assert_allclose(p.data, expected, rtol=1e-11, atol=1e-11 * 10**size)


@given(**problems, beta1=st.floats(0, 0.99), beta2=st.floats(0, 0.9999), eps=st.floats(1e-10, 1e-3))
def test_adamw_is_the_published_rule(seed, shape, steps, size, lr, decay, beta1, beta2, eps):
    w, gradients = problem(seed, shape, steps, size)
    p = parameter(w)
    train(AdamW([p], lr, (beta1, beta2), eps, decay), *[[g] for g in gradients])
    np.testing.assert_allclose(p.data, published_adamw(w, gradients, lr, beta1, beta2, eps, decay),
                               rtol=1e-10, atol=1e-10)


@given(**problems)
def test_in_float32_the_rules_stay_within_its_rounding(seed, shape, steps, size, lr, decay):
    w, gradients = problem(seed, shape, steps, size, np.float32)
    for optimizer, expected in [
        (AdamW([parameter(w, np.float32)], lr, weight_decay=decay),
         published_adamw(w, gradients, lr, 0.9, 0.999, 1e-8, decay)),
        (SGD([parameter(w, np.float32)], lr, 0.9, True, decay),
         published_sgd(w, gradients, lr, 0.9, True, decay)),
    ]:
        train(optimizer, *[[g] for g in gradients])
        (p,) = optimizer.parameters.values()
        np.testing.assert_allclose(p.data, expected, rtol=1e-5, atol=1e-5 * max(1, 10**size))


@pytest.mark.parametrize("rule, torch_rule, options", [
    (SGD, "SGD", {}),
    (SGD, "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    (SGD, "SGD", {"momentum": 0.8, "nesterov": True}),
    (Adam, "Adam", {"betas": (0.8, 0.99), "eps": 1e-6}),
    (AdamW, "AdamW", {"weight_decay": 0.1}),
], ids=["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_ten_steps_with_clipping_and_warmup_equal_torch(rule, torch_rule, options):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    model, schedule = Model(), linear(0.1, warmup=4, total=10)
    copies = [torch.nn.Parameter(torch.tensor(p.data)) for p in model.parameters()]
    groups = [{"params": [copy], **({} if p.decay else {"weight_decay": 0})}
              for p, copy in zip(model.parameters(), copies)]
    ours, theirs = rule(model, schedule, **options), getattr(torch.optim, torch_rule)(groups, lr=1, **options)
    for step, gradients in enumerate(random_gradients(model, 10), start=1):
        for copy, gradient in zip(copies, gradients):
            copy.grad = torch.tensor(gradient)
        norm = float(torch.nn.utils.clip_grad_norm_(copies, math.inf))
        for copy, group in zip(copies, theirs.param_groups):
            copy.grad *= min(1.0, 2.0 / norm)  # by hand: torch divides by norm + 1e-6
            group["lr"] = schedule(step)
        theirs.step()
        for p, gradient in zip(model.parameters(), gradients):
            p.grad[...] = gradient
        assert ours.step(max_norm=2.0) == pytest.approx(norm, rel=1e-12)
    for p, copy in zip(model.parameters(), copies):
        np.testing.assert_allclose(p.data, copy.detach().numpy(), rtol=1e-12, atol=1e-14)


# --- which parameters move, and how far ---


@every_rule
def test_a_frozen_parameter_stays_and_has_no_state(rule):
    model = Model()
    model.matrix.frozen = True
    before = model.matrix.data.copy()
    optimizer = rule(model, 0.1)
    train(optimizer, *random_gradients(model, 3))
    assert np.array_equal(model.matrix.data, before)
    assert not [key for key in optimizer.state_dict() if key.startswith("matrix")]


@every_rule
def test_a_parameter_unfrozen_late_moves_as_if_training_began_then(rule):
    late, early = parameter([1.0, -2.0]), parameter([1.0, -2.0])
    optimizer = rule([late], 0.1)
    late.frozen = True
    train(optimizer, *[[[5.0, 5.0]]] * 20)
    late.frozen = False
    train(optimizer, [[0.3, -0.4]], [[0.1, 0.1]])
    train(rule([early], 0.1), [[0.3, -0.4]], [[0.1, 0.1]])
    assert np.array_equal(late.data, early.data)
    assert optimizer.n_steps == 22


@every_rule
def test_a_parameter_in_two_places_moves_once(rule):
    tied, alone = parameter([1.0, 2.0]), parameter([1.0, 2.0])
    optimizer = rule([tied, tied], 0.1)
    train(optimizer, [[0.5, 0.5]])
    train(rule([alone], 0.1), [[0.5, 0.5]])
    assert list(optimizer.parameters) == ["0"]
    assert np.array_equal(tied.data, alone.data)


def test_a_tied_embedding_is_counted_once_everywhere():
    class TiedModel(Layer):
        """logits = E[id] Eᵀ"""

        def __init__(self):
            self.embed = Embedding(2, 1)
            self.output = [self.embed.weight]
            self.embed.weight.data = np.array([[2.0], [3.0]])

    model = TiedModel()
    model.embed.weight.decay = True
    h = model.embed.weight.data[[0]]
    logits = h @ model.embed.weight.data.T
    dlogits = np.exp(logits) / np.exp(logits).sum() - [[1, 0]]
    model.embed.weight.grad[...] = dlogits.T @ h
    model.embed.weight.grad[0] += (dlogits @ model.embed.weight.data)[0]
    np.testing.assert_allclose(model.embed.weight.grad, [[-0.8807970779778826], [1.7615941559557646]], rtol=1e-12)
    optimizer = AdamW(model, lr=0.1, weight_decay=0.5)
    assert optimizer.step(max_norm=1.0) == pytest.approx(math.hypot(0.8807970779778826, 1.7615941559557646))
    assert set(optimizer.state_dict()) == {"step", "embed.weight.steps", "embed.weight.m", "embed.weight.v"}
    np.testing.assert_allclose(model.embed.weight.data, [[2 * 0.95 + 0.1], [3 * 0.95 - 0.1]], rtol=1e-7)


def test_decay_leaves_out_parameters_made_without_it():
    model = Model()
    bias, matrix = model.bias.data.copy(), model.matrix.data.copy()
    AdamW(model, lr=0.1, weight_decay=0.5).step()
    assert np.array_equal(model.bias.data, bias)
    np.testing.assert_allclose(model.matrix.data, 0.95 * matrix)


@pytest.mark.parametrize("row", [0.0, 3.0], ids=["zeros", "loaded"])
@every_rule
def test_no_rule_moves_the_padding_row_of_an_embedding(rule, row):
    embed = Embedding(5, 2, padding_idx=1)
    embed.weight.data[1] = row
    optimizer = rule(embed, 0.1)
    train(optimizer, *[[[[8, 9], [0, 0], [0, 0], [14, 16], [0, 0]]]] * 3)
    assert (embed.weight.data[1] == row).all()


@every_rule
def test_a_parameter_without_a_gradient_moves_as_with_a_gradient_of_zeros(rule):
    model, untouched = Model(), Model()
    train(rule(model, 0.1), [np.zeros(p.shape) for p in model.parameters()])
    rule(untouched, 0.1).step()
    assert all(np.array_equal(a.data, b.data) for a, b in zip(model.parameters(), untouched.parameters()))


@every_rule
def test_lr_scales_train_parts_at_their_own_rates(rule):
    model, slow, still = Model(), Model(), Model()
    gradients = random_gradients(model, 3)
    train(rule(model, 0.2, lr_scales=[(model.matrix, 0.25), ([model.scalar], 0)]), *gradients)
    train(rule(slow, 0.05), *gradients)
    np.testing.assert_allclose(model.matrix.data, slow.matrix.data, rtol=1e-12)
    assert np.array_equal(model.scalar.data, still.scalar.data)
    assert not np.allclose(model.bias.data, slow.bias.data)


def test_the_first_step_moves_the_weights_and_lr_is_the_rate_of_the_last():
    p = parameter([1.0])
    optimizer = SGD([p], linear(1, warmup=4, total=10))
    assert optimizer.lr is None
    used = []
    for _ in range(10):
        before = p.data.copy()
        train(optimizer, [[1.0]])
        assert before - p.data == pytest.approx(optimizer.lr)
        used.append(optimizer.lr)
    assert used == pytest.approx([.25, .5, .75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0], abs=1e-15)


# --- precision and memory ---


def numpy_scalar_settings(parameters, dtype):
    lr, half = np.float64(0.01), np.float64(0.5)
    return [SGD(parameters, lr, half, weight_decay=half), Adam(parameters, lr, (half, half), np.float64(1e-8)),
            AdamW(parameters, lambda step: lr * np.int64(step), weight_decay=half, lr_scales=[(parameters[:1], half)])]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_scalars_promote_nothing(dtype):
    parameters = [parameter(np.ones((3, 2)), dtype), parameter(np.ones(3), dtype)]
    wide = np.float64 if dtype is np.float64 else np.float32
    for optimizer in numpy_scalar_settings(parameters, dtype):
        train(optimizer, *[[0.5, 0.25]] * 3, max_norm=np.float64(0.5))
        clip_grad_norm(parameters, np.float64(0.1))
        assert {p.data.dtype for p in parameters} == {np.dtype(dtype)}
        assert {p.grad.dtype for p in parameters} == {np.dtype(wide)}
        arrays = {key: a for key, a in optimizer.state_dict().items() if not key.endswith(("step", "steps"))}
        assert {a.dtype for a in arrays.values()} == {np.dtype(wide)}
        assert any(key.endswith("master") for key in arrays) == (dtype is np.float16)
        assert type(optimizer.lr) is float


def test_float16_parameters_with_zero_gradients_stay_as_they_are():
    p = parameter([1, -2, 0.5], np.float16)
    with np.errstate(all="raise", under="ignore"):
        train(Adam([p], 0.1), *[[0]] * 3)
    assert np.array_equal(p.data, [1, -2, 0.5])


def test_small_gradients_of_float16_parameters_do_not_underflow_in_the_second_moment():
    p = parameter([1, -2, 0.5], np.float16)
    train(Adam([p], 0.1), [1e-3])
    np.testing.assert_allclose(p.data, np.float16([0.9, -2.1, 0.4]), rtol=2**-10)


def test_steps_too_small_for_float16_add_up():
    p = parameter([1.0], np.float16)
    train(SGD([p], 1e-5), *[[[1.0]]] * 500)
    assert p.data == np.float16(0.995)


@every_rule
def test_values_written_into_a_float16_parameter_are_trained_on_from_there(rule):
    written, fresh = parameter([1.0, 2.0], np.float16, decay=False), parameter([5.0, 2.0], np.float16, decay=False)
    optimizer, other = rule([written], 0.1), rule([fresh], 0.1)
    train(optimizer, [0.0])
    train(other, [0.0])
    written.data[0] = fresh.data[0]
    train(optimizer, [[0.5, 0.5]])
    train(other, [[0.5, 0.5]])
    assert np.array_equal(written.data, fresh.data)


@every_rule
def test_a_model_converted_between_steps_trains_on(rule):
    model = Model(dtype=np.float64)
    optimizer = rule(model, 0.1)
    train(optimizer, *random_gradients(model, 2))
    for dtype in (np.float32, np.float16, np.float64):
        model.astype(dtype)
        train(optimizer, *random_gradients(model, 1))
        wide = np.promote_types(dtype, np.float32)
        state = optimizer.state_dict()
        assert model.matrix.data.dtype == dtype
        assert {a.dtype for key, a in state.items() if not key.endswith(("step", "steps"))} <= {wide}
        assert ("matrix.master" in state) == (dtype is np.float16)


@every_rule
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_array_of_many_blocks_moves_as_its_parts_do_on_any_number_of_threads(rule, dtype):
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((2, 700, 501)).astype(dtype)
    threads, results = parallel.get_num_threads(), []
    try:
        for n in (1, 2, 5):
            parallel.set_num_threads(n)
            p = parameter(w, dtype)
            optimizer = rule([p], 0.1)
            train(optimizer, [g])
            results.append((optimizer.step(max_norm=1.0), p.data))
    finally:
        parallel.set_num_threads(threads)
    rows = [parameter(row, dtype) for row in w]
    optimizer = rule(rows, 0.1)
    train(optimizer, g)
    optimizer.step(max_norm=1.0)
    assert [norm for norm, _ in results] == [results[0][0]] * 3
    assert all(np.array_equal(data, results[0][1]) for _, data in results)
    tolerance = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(results[0][1], np.stack([p.data for p in rows]), rtol=tolerance, atol=tolerance)


def test_a_step_works_on_blocks_of_all_parameters_that_fit_in_cache():
    class Blocks(Optimizer):
        """Notes the sizes of the blocks it is given."""

        def __init__(self, parameters):
            super().__init__(parameters, 0.1)
            self.sizes = []

        def update(self, w, g, *, lr, decay, t):
            assert w.ndim == 1 and w.shape == g.shape
            self.sizes.append(w.size)

    large = [parameter(np.zeros((3000, 100)), dtype) for dtype in (np.float16, np.float32)]
    optimizer = Blocks([*large, parameter(1.0)])
    optimizer.step()
    limit = parallel.BLOCK_BYTES // 4
    assert sum(optimizer.sizes) == 600_001 and max(optimizer.sizes) == limit and min(optimizer.sizes) == 1


@every_rule
def test_the_layout_of_a_parameter_changes_nothing(rule):
    plain, turned, strided = (parameter(np.arange(12.0).reshape(3, 4)) for _ in range(3))
    turned.data = np.asfortranarray(plain.data)
    strided.data = np.repeat(plain.data, 2, axis=1)[:, ::2]
    for p in (plain, turned, strided):
        train(rule([p], 0.1), [np.arange(12.0).reshape(3, 4)[::-1]], [1.0], max_norm=3.0)
    assert np.array_equal(turned.data, plain.data)
    assert np.array_equal(strided.data, plain.data)


@every_rule
def test_a_step_changes_parameters_in_place_and_only_reads_gradients(rule):
    p = parameter([1.0, 2.0])
    data, view = p.data, p.data[:1]
    train(rule([p], 0.1), [[3.0, 4.0]], max_norm=1.0)
    assert p.data is data and view[0] != 1.0
    assert np.array_equal(p.grad, [3.0, 4.0])


# --- clipping ---


def test_clipping_scales_to_the_largest_norm_allowed_and_returns_the_norm():
    a, b = parameter([0.0]), parameter([0.0])
    a.grad[:], b.grad[:] = 3, 4
    assert clip_grad_norm([a, b], 1) == pytest.approx(5)
    np.testing.assert_allclose([*a.grad, *b.grad], [0.6, 0.8], rtol=1e-15)


def test_gradients_within_the_norm_stay_bit_for_bit():
    p = parameter([0.0, 0.0], np.float32)
    p.grad[:] = [0.3, 0.4]
    before = p.grad.copy()
    norm = clip_grad_norm([p], 0.51)
    assert type(norm) is float and norm == pytest.approx(0.5)
    assert np.array_equal(p.grad, before)


def test_a_shared_parameter_counts_once_and_a_frozen_one_not_at_all():
    shared, frozen = parameter([0.0]), parameter([0.0])
    shared.grad[:], frozen.grad[:] = 3, 100
    frozen.frozen = True
    assert clip_grad_norm([shared, frozen, shared], 1) == pytest.approx(3)
    assert (shared.grad[0], frozen.grad[0]) == (pytest.approx(1), 100)


def test_without_gradients_the_norm_is_zero_and_none_is_made():
    model = Model()
    assert clip_grad_norm(model, 1.0) == 0.0
    assert not any(p.has_grad for p in model.parameters())


@every_rule
def test_gradients_of_zeros_have_norm_zero_and_make_a_step(rule):
    model = Model()
    train(rule(model, 0.1), [0, 0, 0])
    optimizer = rule(model, 0.1)
    assert optimizer.step(max_norm=1.0) == 0.0 and optimizer.n_steps == 1


@pytest.mark.parametrize("dtype, size", [(np.float32, 1e30), (np.float32, 1e-30), (np.float64, 1e200),
                                         (np.float64, 1e-200), (np.float16, 6e4)])
def test_the_norm_neither_overflows_nor_underflows(dtype, size):
    p = parameter(np.zeros((2, 2)), dtype)
    p.grad[...] = np.array([[3, 0], [0, 4]]) * size
    with np.errstate(all="raise", under="ignore"):
        assert clip_grad_norm([p], size) == pytest.approx(5 * size, rel=1e-6)
    np.testing.assert_allclose(p.grad, np.array([[0.6, 0], [0, 0.8]]) * size, rtol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
       max_norm=st.floats(1e-3, 1e3))
def test_clipped_gradients_have_the_direction_and_norm_they_should(seed, sizes, max_norm):
    rng = np.random.default_rng(seed)
    parameters = [parameter(np.zeros(n), np.float32) for n in sizes]
    for p in parameters:
        p.grad[:] = rng.standard_normal(p.shape)
    before = np.concatenate([p.grad for p in parameters]).astype(np.float64)
    norm = math.sqrt((before**2).sum())
    assert clip_grad_norm(parameters, max_norm) == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(np.concatenate([p.grad for p in parameters]),
                               before * min(1, max_norm / max(norm, 1e-30)), rtol=1e-5)


BAD = [(np.inf, 1.0), (np.nan, 1.0), (-np.inf, np.inf), (np.nan, np.inf)]


@pytest.mark.parametrize("gradient", BAD, ids=str)
def test_clipping_leaves_gradients_of_a_non_finite_norm_alone(gradient):
    p = parameter([0.0, 0.0])
    p.grad[:] = gradient
    assert not math.isfinite(clip_grad_norm([p], 1.0))
    assert np.array_equal(p.grad, gradient, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("gradient", BAD, ids=str)
@every_rule
def test_a_step_with_a_non_finite_norm_is_skipped_and_leaves_no_trace(rule, gradient, dtype):
    clean, hit = ([parameter([1.0, -2.0], dtype), parameter(3.0, dtype)] for _ in range(2))
    schedule = linear(0.1, warmup=2, total=8)
    without, optimizer = rule(clean, schedule), rule(hit, schedule)
    first, last = [[0.5, 0.25], 1.0], [[-0.5, 0.5], 2.0]
    train(without, first, last, max_norm=1.0)
    train(optimizer, first, max_norm=1.0)
    before = everything(optimizer)
    with pytest.warns(RuntimeWarning, match=r"^step 2 skipped: the gradient norm is (inf|nan)$"):
        train(optimizer, [gradient, 1.0], max_norm=1.0)
    assert everything(optimizer) == before
    assert (optimizer.n_skipped, optimizer.n_steps) == (1, 1)
    train(optimizer, last, max_norm=1.0)
    assert everything(optimizer) == everything(without)
    assert optimizer.lr == without.lr


def test_a_skipped_step_returns_the_norm_and_is_reported_each_time():
    p = parameter([0.0])
    p.grad[:] = np.inf
    optimizer = SGD([p], 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert optimizer.step(max_norm=math.inf) == math.inf
    assert optimizer.n_skipped == 3
    assert [warning.filename for warning in caught] == [__file__] * 3


@every_rule
def test_a_clipped_step_equals_clipping_and_then_a_step(rule):
    one, two = Model(), Model()
    gradients = random_gradients(one, 3)
    first, second = rule(one, 0.1), rule(two, 0.1)
    for arrays in gradients:
        train(first, arrays, max_norm=0.5)
        for p, gradient in zip(two.parameters(), arrays):
            p.grad[...] = gradient
        clip_grad_norm(two, 0.5)
        assert second.step() is None
    assert everything(first) == everything(second)


# --- saved state ---


@every_rule
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_loaded_state_goes_on_bit_for_bit(rule, dtype):
    model, resumed, schedule = Model(dtype=dtype), Model(seed=9, dtype=dtype), linear(0.1, warmup=3, total=12)
    gradients = random_gradients(model, 10)
    optimizer = rule(model, schedule)
    train(optimizer, *gradients[:4])
    weights, state = model.state_dict(), optimizer.state_dict()
    train(optimizer, *gradients[4:])
    resumed.load_state_dict(weights)
    again = rule(resumed, schedule)
    again.load_state_dict(state)
    assert again.lr == schedule(4)
    train(again, *gradients[4:])
    assert everything(again) == everything(optimizer)


@every_rule
def test_a_state_taken_before_the_first_step_loads(rule):
    model = Model()
    optimizer = rule(model, 0.1)
    before = everything(optimizer)
    state = optimizer.state_dict()
    train(optimizer, *random_gradients(model, 2))
    optimizer.load_state_dict(state)
    model.load_state_dict(Model().state_dict())
    assert everything(optimizer) == before


def test_a_state_names_parameters_as_the_model_does_and_is_a_copy():
    model = Model(dtype=np.float16)
    optimizer = SGD(model, 0.1, momentum=0.9)
    train(optimizer, *random_gradients(model, 1))
    state = optimizer.state_dict()
    assert set(state) == {"step"} | {f"{name}.{key}" for name in ("matrix", "bias", "scalar")
                                     for key in ("steps", "master", "velocity")}
    kept = {key: array.copy() for key, array in state.items()}
    train(optimizer, *random_gradients(model, 1))
    assert all(type(a) is np.ndarray and np.array_equal(a, kept[key]) for key, a in state.items())


def test_plain_sgd_keeps_no_arrays():
    assert set(SGD([parameter(1.0)], 0.1).state_dict()) == {"step", "0.steps"}


def test_the_state_of_a_list_is_named_by_place():
    assert set(AdamW([parameter(1.0), Model()], 0.1).state_dict()) == {"step"} | {
        f"{name}.{key}" for name in ("0", "1.matrix", "1.bias", "1.scalar") for key in ("steps", "m", "v")}


@pytest.mark.parametrize("entry", ["step", "matrix.steps", "matrix.m", "scalar.v", "bias.master"])
def test_a_missing_entry_is_named_and_nothing_changes(entry):
    state = AdamW(Model(dtype=np.float16), 0.1).state_dict()
    del state[entry]
    model = Model(dtype=np.float16)
    optimizer = AdamW(model, 0.1)
    train(optimizer, *random_gradients(model, 1))
    before = everything(optimizer)
    with pytest.raises(ValueError, match=f"^the state does not fit this AdamW: missing {entry}$"):
        optimizer.load_state_dict(state)
    assert everything(optimizer) == before


def test_every_entry_that_is_wrong_is_named_at_once():
    model = Model()
    optimizer = AdamW(model, 0.1)
    train(optimizer, *random_gradients(model, 1))
    before, state = everything(optimizer), optimizer.state_dict()
    del state["step"], state["bias.m"]
    state |= {"matrix.m": np.zeros((4, 3)), "scalar.v": np.zeros(1), "matrix.velocity": np.zeros((3, 4))}
    with pytest.raises(ValueError) as error:
        optimizer.load_state_dict(state)
    for part in ("missing step", "missing bias.m", "unexpected matrix.velocity",
                 "matrix.m has shape (4, 3), not (3, 4)", "scalar.v has shape (1,), not ()"):
        assert part in str(error.value)
    assert everything(optimizer) == before


def test_a_parameter_whose_whole_state_is_missing_is_named():
    optimizer = AdamW(Model(), 0.1)
    state = {key: array for key, array in optimizer.state_dict().items() if not key.startswith("bias")}
    with pytest.raises(ValueError, match="missing bias.steps; missing bias.m; missing bias.v$"):
        optimizer.load_state_dict(state)


def test_the_state_of_a_parameter_frozen_after_some_steps_is_saved_and_loaded():
    model, other = Model(), Model()
    optimizer, again = AdamW(model, 0.1), AdamW(other, 0.1)
    train(optimizer, *random_gradients(model, 2))
    model.matrix.frozen = other.matrix.frozen = True
    again.load_state_dict(optimizer.state_dict())
    other.load_state_dict(model.state_dict())
    model.matrix.frozen = other.matrix.frozen = False
    for each in (optimizer, again):
        train(each, *random_gradients(model, 1))
    assert "matrix.m" in again.state_dict() and everything(again) == everything(optimizer)


def test_loading_forgets_what_the_state_does_not_have():
    model, half_frozen = Model(), Model()
    half_frozen.matrix.frozen = True
    state = AdamW(half_frozen, 0.1).state_dict()
    optimizer = AdamW(model, 0.1)
    train(optimizer, *random_gradients(model, 2))
    model.matrix.frozen = True
    optimizer.load_state_dict(state)
    assert set(optimizer.state_dict()) == set(state)


# --- what is refused ---


@pytest.mark.parametrize("make, error, message", [
    (lambda: SGD([], 0.1), ValueError, "SGD was given no parameters"),
    (lambda: SGD([np.zeros(3)], 0.1), TypeError, "only a Layer or Parameters can be trained, got ndarray"),
    (lambda: SGD(Model(), -0.1), ValueError, "lr must be a finite number, at least 0, got -0.1"),
    (lambda: SGD(Model(), math.nan), ValueError, "lr must be a finite number, at least 0, got nan"),
    (lambda: SGD(Model(), 0.1, momentum=1), ValueError, r"momentum must be in \[0, 1\), got 1"),
    (lambda: SGD(Model(), 0.1, nesterov=True), ValueError, "nesterov needs a momentum above 0"),
    (lambda: SGD(Model(), 0.1, weight_decay=-1), ValueError,
     "weight_decay must be a finite number, at least 0, got -1"),
    (lambda: Adam(Model(), 0.1, betas=(0.9, 1.0)), ValueError, r"betas must be in \[0, 1\), got \(0.9, 1.0\)"),
    (lambda: Adam(Model(), 0.1, eps=0), ValueError, "eps must be above 0, got 0"),
    (lambda: AdamW(Model(), 0.1, lr_scales=[(Model(), 1)]), ValueError,
     r"lr_scales names a Parameter\(3, 4\) float64 that is not among the optimiser's parameters"),
    (lambda: AdamW(Model(), 0.1, lr_scales=[(Model(), -1)]), ValueError,
     "a factor of lr_scales must be a finite number, at least 0, got -1"),
    (lambda: clip_grad_norm(Model(), 0), ValueError, "max_norm must be above 0, got 0"),
    (lambda: clip_grad_norm(Model(), math.nan), ValueError, "max_norm must be above 0, got nan"),
    (lambda: Optimizer(Model(), 0.1).step(), NotImplementedError, ""),
])
def test_impossible_settings_are_named(make, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        make()


def test_two_factors_for_one_parameter_are_refused():
    model = Model()
    with pytest.raises(ValueError, match="^lr_scales gives bias both 0.1 and 0.5$"):
        AdamW(model, 0.1, lr_scales=[(model.bias, 0.1), (model, 0.5)])


@every_rule
@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1])
def test_a_schedule_that_gives_no_rate_is_named_before_anything_changes(rule, rate):
    model = Model()
    optimizer = rule(model, lambda step: rate if step == 2 else 0.1)
    train(optimizer, *random_gradients(model, 1))
    before = everything(optimizer)
    with pytest.raises(ValueError, match=f"^the schedule gives a learning rate of {rate} at step 2$"):
        optimizer.step()
    assert everything(optimizer) == before
