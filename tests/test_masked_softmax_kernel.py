"""The CUDA kernels, their very source, on the emulated device against float64 NumPy."""

import math
import mmap

import cuda_emulator
import numpy as np
import pytest
import standin

from tinyenc.kernels import masked_softmax as kernels

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
pytestmark = pytest.mark.skipif(bool(cuda_emulator.MISSING), reason=cuda_emulator.MISSING)

# Relative to the size of a result: arithmetic is float32, and then storage rounds.
TOLERANCE = {np.float64: 1e-13, np.float32: 3e-6, np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3}
NORESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python 3.11 does not name
LENGTHS = [1, 2, 7, 12, 64, 100, 129, 256, 512, 1000, 1023, 1025, 2048, 5000]
DTYPES = {np.dtype(dtype).name: dtype for dtype in TOLERANCE}
MASKS = {
    "none": lambda b, h, t, s: None,
    "padding": lambda b, h, t, s: np.arange(s) < np.linspace(0, s, b).astype(int)[:, None, None, None],
    "causal": lambda b, h, t, s: np.tril(np.ones((t, s), bool), s - t),
    "heads": lambda b, h, t, s: random_mask(h, 1, s),
    "queries": lambda b, h, t, s: random_mask(b, 1, t, 1),
    "full": lambda b, h, t, s: random_mask(b, h, t, s),
    "view": lambda b, h, t, s: random_mask(s, t, h, b).T,
    "backwards": lambda b, h, t, s: random_mask(t, s)[::-1, ::-1],
    "nothing": lambda b, h, t, s: np.zeros((1, 1, 1, 1), bool),
}


def random_mask(*shape):
    return np.random.default_rng(1).random(shape) < 0.7


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Every kernel that the tests below need, compiled at once."""
    pairs = [(DTYPES[name], keys) for name in DTYPES for keys in LENGTHS]
    pairs += [(np.float32, keys) for keys in range(1, 2000)]
    names = {kernels.variant(name, np.dtype(dtype), keys, width(dtype, keys))[0]
             for dtype, keys in pairs for name in ("softmax_forward", "softmax_backward")}
    names |= {f"drop<{kernels.STORAGE[np.dtype(d).name]}, {w}>" for d in TOLERANCE for w in {1, width(d, 32)}}
    cuda_emulator.compile_together([(kernels.SOURCE, sorted(names)[i::4]) for i in range(4)])


@pytest.fixture(autouse=True)
def device(monkeypatch):
    standin.install(monkeypatch)
    cuda_emulator.launches.clear()


def width(dtype, keys):
    return math.gcd(keys, 16 // np.dtype(dtype).itemsize)


def draw(*shape, dtype=np.float32, size=1, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * size).astype(dtype)


def on(x):
    """A NumPy array as one on the device, in the same layout."""
    return standin.ndarray(x)


def forward(scores, mask=None, *rest):
    """kernels.forward of NumPy arrays."""
    mask = None if mask is None else on(mask)
    return [x.get() for x in kernels.forward(on(scores), mask, *rest)]


def backward(ddropped, weights, *rest):
    return kernels.backward(on(ddropped), on(weights), *rest).get()


# The formulas, in float64.


def softmax(scores, mask, scale):
    x = np.where(True if mask is None else mask, scores.astype(np.float64) * scale, -np.inf)
    powers = np.exp(x - x.max(-1, keepdims=True, initial=-1e300))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def softmax_backward(dweights, weights, scale):
    dweights, weights = dweights.astype(np.float64), weights.astype(np.float64)
    return scale * weights * (dweights - (dweights * weights).sum(-1, keepdims=True))


def philox(counters, seed, rounds=7):
    """Philox4x32 of 64-bit counters: four words for each."""
    low, words = np.uint64(2**32 - 1), [*np.divmod(counters.astype(np.uint64), np.uint64(2**32))[::-1], 0 * counters]
    words.append(words[2])
    words = [w.astype(np.uint64) for w in words]
    keys = np.array([seed % 2**32, seed >> 32], np.uint64)
    for _ in range(rounds):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [right >> np.uint64(32) ^ words[1] ^ keys[0], right & low,
                 left >> np.uint64(32) ^ words[3] ^ keys[1], left & low]
        keys = (keys + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & low
    return np.stack(words, -1)


def dropout_factors(shape, p, seed):
    """What dropout multiplies by: 0 or 1 / (1 - p)."""
    size = math.prod(shape)
    words = philox(np.arange(-(-size // 4)), seed).ravel()[:size].reshape(shape)
    return np.where(words < p * 2**32, 0, 1 / (1 - p))


def close(actual, expected, dtype):
    actual, error = actual.astype(np.float64), TOLERANCE[np.dtype(dtype).type]
    assert np.isfinite(actual).all()
    tiny = 2e-7 if dtype == np.float16 else 1e-30  # below the normal numbers, float16 is coarser
    np.testing.assert_allclose(actual, expected, rtol=error, atol=error * abs(expected).max(initial=0) * 0.1 + tiny)


# Right numbers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", LENGTHS)
def test_forward_and_backward_equal_float64(keys, dtype):
    dtype = DTYPES[dtype]
    shape = (2, 3, 5 if keys < 1000 else 2, keys)
    scores, dweights = draw(*shape, dtype=dtype, size=8), draw(*shape, dtype=dtype, seed=1)
    for make in MASKS.values():
        mask = make(*shape)
        weights, _ = forward(scores, mask, 0.3)
        close(weights, softmax(scores, mask, 0.3), dtype)
        close(backward(dweights, weights, 0.3), softmax_backward(dweights, weights, 0.3), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [7, 12, 64, 1000, 1025, 5000])
def test_dropout_in_the_kernels_is_the_one_of_drop(keys, dtype):
    dtype, p, seed = DTYPES[dtype], 0.3, 2**40 + 7
    shape = (2, 2, 3, keys)
    scores, ddropped = draw(*shape, dtype=dtype, size=8), draw(*shape, dtype=dtype, seed=1)
    mask, factors = MASKS["padding"](*shape), dropout_factors(shape, p, seed)
    weights, dropped = forward(scores, mask, 0.3, p, seed)
    close(weights, softmax(scores, mask, 0.3), dtype)
    close(dropped, softmax(scores, mask, 0.3) * factors, dtype)
    close(kernels.drop(on(weights), p, seed).get(), weights * factors, dtype)
    dweights = ddropped.astype(np.float64) * factors
    close(backward(ddropped, weights, 0.3, p, seed), softmax_backward(dweights, weights, 0.3), dtype)


def test_sizes_at_random_up_to_2000_with_dropout_and_masks():
    rng = np.random.default_rng(0)
    for n in range(60):
        keys = int(rng.integers(1, 2001))
        shape = (*rng.integers(1, 4, 2), int(rng.integers(1, 1 + max(1, 4000 // keys))), keys)
        scores, ddropped = draw(*shape, size=20, seed=n), draw(*shape, seed=n + 1000)
        mask = rng.random([size if rng.random() < 0.5 else 1 for size in shape]) < 0.5
        factors = dropout_factors(shape, 0.1, n)
        weights, dropped = forward(scores, mask, 0.125, 0.1, n)
        close(dropped, softmax(scores, mask, 0.125) * factors, np.float32)
        expected = softmax_backward(ddropped * factors, weights, 0.125)
        close(backward(ddropped, weights, 0.125, 0.1, n), expected, np.float32)


def test_gradient_is_the_one_of_finite_differences():
    shape, args = (2, 2, 3, 12), (0.7, 0.25, 5)
    scores, ddropped, step = (draw(*shape, dtype=np.float64, seed=i) for i in range(3))
    mask = MASKS["padding"](*shape)
    above, below = (forward(scores + h * step, mask, *args)[1] for h in (1e-6, -1e-6))
    dscores = backward(ddropped, forward(scores, mask, *args)[0], *args)
    numeric = (ddropped * (above - below)).sum() / 2e-6
    assert abs(numeric) > 0.01
    assert (dscores * step).sum() == pytest.approx(numeric, rel=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [7, 64, 1025, 5000])
def test_row_with_nothing_kept_is_exactly_zero_and_so_is_its_gradient(keys, dtype):
    shape = (2, 1, 3, keys)
    mask = np.ones((2, 1, 3, 1), bool)
    mask[0, 0, 1] = mask[1] = False
    scores, dweights = draw(*shape, dtype=DTYPES[dtype]), draw(*shape, dtype=DTYPES[dtype], seed=1)
    for weights in forward(scores, mask, 1.0, 0.5, 3):
        assert not weights[0, 0, 1].any() and not weights[1].any() and weights[0, 0, 0].any()
    dscores = backward(dweights, forward(scores, mask)[0])
    assert not dscores[0, 0, 1].any() and not dscores[1].any()
    assert np.isfinite(dscores.astype(float)).all()


@pytest.mark.parametrize("keys", [64, 1025, 5000])
def test_nan_spreads_over_its_row_and_only_where_it_is_kept(keys):
    scores = np.zeros((1, 1, 3, keys), np.float32)
    scores[0, 0, :2, 5] = np.nan
    mask = np.ones(scores.shape, bool)
    mask[0, 0, 1, 5] = False
    weights, _ = forward(scores, mask)
    assert np.isnan(weights[0, 0, 0]).all()
    assert np.isfinite(weights[0, 0, 1:]).all()


@pytest.mark.parametrize("keys", [64, 1025, 5000])
def test_minus_infinity_among_the_scores_masks_too(keys):
    scores = draw(2, keys)
    mask = random_mask(2, keys)
    mask[1] = False
    weights, _ = forward(np.where(mask, scores, -np.inf).astype(np.float32))
    np.testing.assert_array_equal(weights, forward(scores, mask)[0])
    assert not weights[1].any()


def test_largest_float16_scores_stay_finite():
    scores = np.full((1, 64), 65504, np.float16)
    scores[0, 1::2] = -65504
    weights, _ = forward(scores, None, 8.0)
    close(weights, np.tile([1 / 32, 0], 32)[None], np.float16)


# Dropout


def test_random_words_are_philox():
    known = philox(np.array([0]), 0, rounds=10)  # Random123's test vectors
    assert known.tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    ones = np.ones(4096, np.float32)
    for seed in (0, 1, 2**32, 2**64 - 1):
        dropped = kernels.drop(on(ones), 0.4, seed).get()
        np.testing.assert_array_equal(dropped, dropout_factors(ones.shape, 0.4, seed).astype(np.float32))


def test_masks_are_as_frequent_as_p_says_and_unlike_for_other_seeds_and_neighbours():
    n = 100_000
    masks = [kernels.drop(on(np.ones(n, np.float32)), 0.25, seed).get() == 0 for seed in (1, 2, 1 << 32)]
    for mask in masks:
        assert abs(mask.mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / n)
    pairs = [(masks[0], masks[1]), (masks[0], masks[2]), *((masks[0][:-k], masks[0][k:]) for k in (1, 2, 4, 8))]
    for a, b in pairs:
        assert abs((a & b).mean() - 0.0625) < 5 * math.sqrt(0.0625 / n)


def test_without_a_seed_or_with_p_zero_nothing_is_dropped():
    x = on(draw(3, 8))
    assert kernels.drop(x, 0.5, None) is x and kernels.drop(x, 0.0, 3) is x
    for args in (1.0, 0.5, None), (1.0, 0.0, 3):
        weights, dropped = kernels.forward(x, None, *args)
        assert weights is dropped
    assert len(cuda_emulator.launches) == 2


@pytest.mark.parametrize("size", [1, 3, 4, 127, 128, 511, 513, 4096])
def test_drop_keeps_the_shape_and_takes_any_size(size):
    x = draw(1, size, 1)
    np.testing.assert_array_equal(kernels.drop(on(x), 0.5, 9).get(), x * dropout_factors(x.shape, 0.5, 9))


# Layouts (K03)


LAYOUTS = {
    "transposed": lambda x: x.T.copy().T,
    "Fortran": np.asfortranarray,
    "every second key": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "offset by one element": lambda x: np.concatenate([x.ravel()[:1], x.ravel()])[1:].reshape(x.shape),
    "a slice of the batch": lambda x: np.concatenate([x, x])[len(x):],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_the_arguments_does_not_matter(layout):
    lay = LAYOUTS[layout]
    scores, mask, ddropped = draw(2, 3, 4, 16), random_mask(2, 3, 4, 16), draw(2, 3, 4, 16, seed=1)
    expected = forward(scores, mask, 0.5, 0.2, 1)
    actual = forward(lay(scores), lay(mask), 0.5, 0.2, 1)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)  # at odd addresses sums are taken in another order
    dscores = backward(lay(ddropped), lay(expected[0]), 0.5, 0.2, 1)
    np.testing.assert_allclose(dscores, backward(ddropped, expected[0], 0.5, 0.2, 1), rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(kernels.drop(on(lay(scores)), 0.2, 1).get(), kernels.drop(on(scores), 0.2, 1).get())


def test_scores_broadcast_from_one_row_are_taken_as_if_copied():
    row = draw(1, 1, 1, 16)
    scores = np.broadcast_to(row, (2, 3, 4, 16))
    np.testing.assert_array_equal(forward(scores)[0], forward(scores.copy())[0])


def test_arguments_are_left_as_they_were():
    arrays = [on(x) for x in (draw(2, 3, 4, 16), random_mask(2, 1, 1, 16), draw(2, 3, 4, 16, seed=1))]
    before = [x.get().copy() for x in arrays]
    weights, _ = kernels.forward(arrays[0], arrays[1], 0.5, 0.2, 1)
    kept = weights.get().copy()
    kernels.backward(arrays[2], weights, 0.5, 0.2, 1)
    for array, was in zip([*arrays, weights], [*before, kept]):
        np.testing.assert_array_equal(array.get(), was)


@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16)])
def test_fewer_axes_mean_ones_in_front(shape):
    scores, mask = draw(*shape), random_mask(*shape)
    four = (1,) * (4 - len(shape)) + shape
    np.testing.assert_array_equal(forward(scores, mask)[0], forward(scores.reshape(four), mask.reshape(four))[0][
        (0,) * (4 - len(shape))])


# How memory is used


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [64, 256, 512])
def test_each_byte_moves_once_and_in_accesses_of_16_bytes(keys, dtype):
    shape = (2, 3, 8, keys)
    scores = draw(*shape, dtype=DTYPES[dtype])
    weights, _ = forward(scores, random_mask(2, 1, 1, keys), 1.0, 0.1, 1)
    backward(scores, weights)
    (_, there), (_, back) = cuda_emulator.launches
    whole = (scores.nbytes // 16, scores.nbytes)
    for read in there[0], back[0], back[1]:
        assert (read.loads, read.load_bytes, read.stores) == (*whole, 0)
    for written in there[2], there[3], back[2]:
        assert (written.stores, written.store_bytes, written.loads) == (*whole, 0)


def test_a_mask_is_read_where_it_lies_and_never_copied_to_full_size():
    shape = (4, 8, 64, 64)
    for mask in random_mask(4, 1, 1, 64), random_mask(64, 64), random_mask(4, 1, 64, 1), random_mask(8, 1, 1):
        device_mask = on(mask)
        kernels.forward(on(draw(*shape)), device_mask)
        read = cuda_emulator.launches[-1][1][1]
        assert (read.begin, read.bytes) == (device_mask.data.ptr, mask.nbytes)


def test_elements_beyond_the_reach_of_32_bits_are_found(monkeypatch):
    keys, rows = 2048, 2**21 + 1

    def reserved():  # pages of zeros, which take memory only once they are written to
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        return np.frombuffer(mmap.mmap(-1, rows * keys * 2, flags), np.float16).reshape(rows, keys)

    monkeypatch.setattr(standin, "empty_like", lambda like: on(reserved()))
    monkeypatch.setattr(cuda_emulator, "blocks", range(rows - 1, rows))  # a block takes a row: the last one only
    scores = reserved()
    scores[-1] = draw(keys, dtype=np.float16)
    weights, dropped = kernels.forward(on(scores), None, 0.5, 0.25, 11)
    dscores = kernels.backward(on(scores), weights, 0.5, 0.25, 11)
    words = philox(np.arange((rows - 1) * keys // 4, rows * keys // 4), 11).ravel()
    factors = np.where(words < 2**30, 0, 1 / 0.75)
    weights, dropped, dscores = (x[-1].get() for x in (weights, dropped, dscores))
    close(weights, softmax(scores[-1], None, 0.5), np.float16)
    close(dropped, softmax(scores[-1], None, 0.5) * factors, np.float16)
    close(dscores, softmax_backward(scores[-1] * factors, weights, 0.5), np.float16)


# Bad input (K04)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0), (0,)])
def test_empty_arrays_come_back_empty_and_nothing_is_launched(shape):
    x = np.zeros(shape, np.float32)
    mask = np.ones(shape[-1:], bool)
    assert [y.shape for y in forward(x, mask, 1.0, 0.5, 1)] == [shape, shape]
    assert backward(x, x, 1.0, 0.5, 1).shape == shape
    assert kernels.drop(on(x), 0.5, 1).shape == shape
    assert cuda_emulator.launches == []


X = np.zeros((2, 3, 4, 8), np.float32)
BAD = {
    "scores on the host": (lambda: kernels.forward(X), TypeError, "scores is a numpy.ndarray, not a CuPy array"),
    "scores as a list": (lambda: kernels.forward([1.0]), TypeError, "scores is a builtins.list"),
    "scores of integers": (lambda: kernels.forward(on(X.astype(int))), TypeError, "scores is int64"),
    "scores of complex": (lambda: kernels.forward(on(X * 1j)), TypeError, "scores is complex64"),
    "scores of no axes": (lambda: kernels.forward(on(X[0, 0, 0, 0])), ValueError, r"scores \(\) must have 1 to 4"),
    "scores of five axes": (lambda: kernels.forward(on(X[None])), ValueError, r"\(1, 2, 3, 4, 8\) must have 1 to 4"),
    "mask on the host": (lambda: kernels.forward(on(X), X > 0), TypeError, "mask is a numpy.ndarray"),
    "mask of numbers": (lambda: kernels.forward(on(X), on(X)), TypeError, "mask is float32, not bool"),
    "mask of another size": (lambda: kernels.forward(on(X), on(X[..., :7] > 0)), ValueError,
                             r"mask \(2, 3, 4, 7\) does not broadcast to scores \(2, 3, 4, 8\)"),
    "mask of more axes": (lambda: kernels.forward(on(X), on(X[None] > 0)), ValueError, "does not broadcast"),
    "scale of zero": (lambda: kernels.forward(on(X), None, 0.0), ValueError, "scale 0.0 must be above 0"),
    "scale of infinity": (lambda: kernels.forward(on(X), None, math.inf), ValueError, "scale inf"),
    "scale of nan": (lambda: kernels.backward(on(X), on(X), math.nan), ValueError, "scale nan"),
    "p of one": (lambda: kernels.forward(on(X), None, 1.0, 1.0, 1), ValueError, "probability 1.0"),
    "p below zero": (lambda: kernels.drop(on(X), -0.1, 1), ValueError, "probability -0.1"),
    "negative seed": (lambda: kernels.drop(on(X), 0.1, -1), ValueError, "seed -1"),
    "seed of 65 bits": (lambda: kernels.drop(on(X), 0.1, 2**64), ValueError, "seed 18446744073709551616"),
    "gradient of another shape": (lambda: kernels.backward(on(X[0]), on(X)), ValueError,
                                  r"ddropped is float32 \(3, 4, 8\).*float32 \(2, 3, 4, 8\)"),
    "gradient of another dtype": (lambda: kernels.backward(on(X.astype(float)), on(X)), ValueError,
                                  "ddropped is float64"),
    "gradient on the host": (lambda: kernels.backward(X, on(X)), TypeError, "ddropped is a numpy.ndarray"),
    "ids to drop": (lambda: kernels.drop(on(X.astype(int)), 0.1, 1), TypeError, "x is int64"),
    "too many rows": (lambda: kernels.forward(on(np.broadcast_to(np.float32(0), (2**31, 1)))), ValueError, "2\\*\\*31"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_the_launch(case, monkeypatch):
    call, error, message = BAD[case]
    monkeypatch.setattr(standin, "ascontiguousarray", lambda x: x)  # or "too many rows" would fill the memory
    monkeypatch.setattr(standin, "empty_like", lambda x: x)
    with pytest.raises(error, match=message):
        call()
    assert cuda_emulator.launches == []
