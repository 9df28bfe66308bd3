"""The emulated device catches faults: one of each kind in a small kernel, and many in the project's own kernels."""

import math
import re

import cuda_emulator
import numpy as np
import pytest
import standin

from tinyenc.kernels import masked_softmax as kernels

pytestmark = pytest.mark.skipif(bool(cuda_emulator.MISSING), reason=cuda_emulator.MISSING)

N = 64  # threads in a block

# The body of a kernel with an array x of 2 N floats and N floats of shared memory s, launched with two blocks.
FAULTY = {
    "write past the end": ("x[i + 1] = 0;", "block 1 thread 63 writes 4 bytes outside every array, at kernel.cu:5"),
    "read before the start": ("x[i] = x[i - 1];", "block 0 thread 0 reads 4 bytes outside every array"),
    "misaligned access": ("if (i == 1) *reinterpret_cast<double*>(x + i) = 0;",
                          "writes 8 bytes at a misaligned address of array 0"),
    "two blocks write one element": ("x[threadIdx.x] = i;", "block 1 thread 0 writes element 0 of array 0 in a race"),
    "a block reads what another writes": ("x[i] = x[(i + N) % (2 * N)];", "array 0 in a race with another thread's"),
    "two threads write one element": ("x[i / 2] = i;", "thread 1 writes element 0 of array 0 in a race"),
    "shared memory without a barrier": ("s[threadIdx.x] = i; x[i] = s[N - 1 - threadIdx.x];", "no thread has written"),
    "shared memory reused without a barrier": (
        "s[threadIdx.x] = i; __syncthreads(); x[i] = s[(threadIdx.x + 1) % N]; s[threadIdx.x] = 0;",
        "of shared memory in a race with another thread's (read|write)"),
    "shared memory that nothing wrote": ("if (threadIdx.x) s[threadIdx.x] = i; x[i] = s[threadIdx.x];",
                                         "block 0 thread 0 reads shared memory that no thread has written"),
    "shared memory of the block before": ("if (blockIdx.x == 0) s[threadIdx.x] = i; x[i] = s[threadIdx.x];",
                                          "block 1 thread 0 reads shared memory that no thread has written"),
    "past the end of shared memory": ("s[threadIdx.x + 99 * N] = i; __syncthreads(); x[i] = s[threadIdx.x];",
                                      "writes 4 bytes outside every array"),
    "barrier that half the threads reach": ("if (threadIdx.x < 32) __syncthreads();", "for ever at the barrier"),
    "two barriers taken for one": ("if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();",
                                   "for ever at the barrier"),
    "shuffle that half the lanes reach": ("if (i % 2) x[i] = __shfl_xor_sync(~0u, 1.f, 2);", "for ever in the shuffle"),
    "shuffle outside its own mask": ("x[i] = __shfl_xor_sync(0xffffu, 1.f, 1);", "not in the mask of its own shuffle"),
    "shuffle from a lane outside the mask": ("if (threadIdx.x < 16) x[i] = __shfl_xor_sync(0xffffu, 1.f, 16);",
                                             "reads lane 16, not in the mask"),
}
FAULTLESS = {
    "barriers between uses of shared memory": (
        "s[threadIdx.x] = i; __syncthreads(); float y = s[(threadIdx.x + 1) % N]; __syncthreads(); s[threadIdx.x] = y;"
        "x[i] = s[threadIdx.x];", lambda i: i // N * N + (i + 1) % N),
    "many readers of one element": ("if (threadIdx.x == 5) s[0] = 3; __syncthreads(); x[i] = s[0];",
                                    lambda i: 0 * i + 3),
    "shuffle": ("x[i] = __shfl_xor_sync(~0u, float(threadIdx.x), 5);", lambda i: i % N ^ 5),
    "shuffle in half a warp": ("x[i] = i; if (threadIdx.x < 16) x[i] = __shfl_xor_sync(0xffffu, x[i], 8);",
                               lambda i: np.where(i % N < 16, i ^ 8, i)),
}

# In the project's kernels: what is written, what is planted in its place, the keys of a row, and what it is caught as:
# an error of the emulated device, or wrong numbers.
REGISTERS, BLOCK, LONG, ODD = 100, 2048, 5000, 33
PLANTED = {
    "no barrier after shared memory is written": (
        "= x;\n        __syncthreads();", "= x;", BLOCK, "no thread has written|race"),
    "one warp too many in a sum": ("warp < LANES / WARP", "warp <= LANES / WARP", BLOCK, "no thread has|outside every"),
    "one warp too few": ("int warp = 1; warp", "int warp = 2; warp", BLOCK, "wrong"),
    "half the lanes in a shuffle": ("__shfl_xor_sync(~0u", "__shfl_xor_sync(0xffffu", REGISTERS, "not in the mask"),
    "reduction that stops short": ("step > 0;", "step > 1;", REGISTERS, "wrong"),
    "threads without a row that leave": ("constexpr int COUNT = part.COUNT;",
                                         "constexpr int COUNT = part.COUNT; if (part.keys == 0) return;",
                                         REGISTERS, "for ever in the shuffle"),
    "rows past the last that write": ("number < rows.count ? rows.keys : 0", "rows.keys", REGISTERS, "race"),
    "rows past the last that read": ("min(number, rows.count - 1)", "number", REGISTERS, "outside every array"),
    "reads past the end of a row": ("key(chunk, n) < keys ? key(chunk, n) : 0", "key(chunk, n)", REGISTERS, "outside"),
    "writes past the end of a row": ("if (key(chunk, n) < keys)", "if (key(chunk, n) <= keys)", REGISTERS,
                                     "race|outside"),
    "two threads with one pack": ("threadIdx.x % LANES) * WIDTH", "threadIdx.x % LANES / 2) * WIDTH", REGISTERS,
                                  "race"),
    "heads by the stride of the batch": ("% heads * head", "% heads * batch", REGISTERS, "outside|wrong"),
    "queries not told apart": (" + row % queries * query", "", REGISTERS, "wrong"),
    "head and batch confused": ("sequence / heads * batch + sequence % heads * head",
                                "sequence % heads * batch + sequence / heads * head", REGISTERS, "outside|wrong"),
    "bits of the mask in reverse": ("0x01020408", "0x08040201", REGISTERS, "wrong"),
    "mask that ignores the end of the row": ("return bits & inside;", "return bits;", REGISTERS, "wrong"),
    "masked scores of zero": ("Real(score[i]) : -infinity", "Real(score[i]) : 0", REGISTERS, "wrong"),
    "empty row that divides infinities": ("top == -infinity ? 0 : top", "top", REGISTERS, "wrong"),
    "empty row that divides by zero": ("total == 0 ? 0 : ", "", REGISTERS, "wrong"),
    "lanes with maxima of their own": ("sum * relative", "sum", REGISTERS, "wrong"),
    "sum of earlier chunks not rescaled": ("sum *= power_of_two(before - finite(top));", "", LONG, "wrong"),
    "long row that is not read again": ("if (LONG) read(chunk);", "", LONG, "wrong"),
    "scale left out of the gradient": ("scale * w[i]", "w[i]", REGISTERS, "wrong"),
    "sum left out of the gradient": ("(dw[i] - dot)", "dw[i]", REGISTERS, "wrong"),
    "sum over what lies past the end": ("dot += dw[i] * w[i];\n        });",
                                        "dot += dw[i] * w[i];\n        }); dot += w[COUNT - 1];", REGISTERS, "wrong"),
    "dropout of another element": ("WIDTH < 4 ? index % 4 : 0", "0", ODD, "wrong"),
    "dropout without its gain": ("x[i + j] * gain", "x[i + j]", REGISTERS, "wrong"),
    "gradient without dropout": ("if (dropout.threshold == 0) return;", "return;", REGISTERS, "wrong"),
}


def small_kernels():
    """The source of all the small kernels, f0, f1 and so on, in the order of the tables."""
    bodies = [body for body, _ in [*FAULTY.values(), *FAULTLESS.values()]]
    return f"constexpr int N = {N};\n" + "".join(
        f"__global__ void f{n}(float* x) {{\n__shared__ float s[N];\nconst int i = blockIdx.x * N + threadIdx.x;\n"
        f"{body}\n}}\n" for n, body in enumerate(bodies))


def small_kernel(case):
    names = [f"f{n}" for n in range(len(FAULTY) + len(FAULTLESS))]
    name = names[[*FAULTY, *FAULTLESS].index(case)]
    return cuda_emulator.RawModule(code=small_kernels(), name_expressions=names).get_function(name)


def planted(fault):
    good, bad, *_ = PLANTED[fault]
    assert good in kernels.SOURCE, good
    return kernels.SOURCE.replace(good, bad)


def needed(keys):
    """The names of the kernels for rows of this length."""
    return [kernels.variant(name, np.dtype(np.float32), keys, math.gcd(keys, 4))[0]
            for name in ("softmax_forward", "softmax_backward")]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """All the kernels below, compiled side by side."""
    jobs = [(planted(fault), needed(PLANTED[fault][2])) for fault in PLANTED]
    jobs += [(kernels.SOURCE, needed(keys)) for keys in (REGISTERS, BLOCK, LONG, ODD)]
    cuda_emulator.compile_together(jobs)


def run_small(case):
    x = standin.ndarray(np.zeros(2 * N, np.float32))
    small_kernel(case)((2,), (N,), (x,))
    return x.get()


@pytest.mark.parametrize("fault", FAULTY)
def test_fault_in_a_small_kernel_is_reported(fault):
    with pytest.raises(cuda_emulator.KernelError, match=FAULTY[fault][1]):
        run_small(fault)


@pytest.mark.parametrize("case", FAULTLESS)
def test_small_kernel_without_a_fault_runs(case):
    np.testing.assert_array_equal(run_small(case), FAULTLESS[case][1](np.arange(2 * N)))


def test_launch_with_the_wrong_kinds_of_arguments_is_refused():
    kernel = small_kernel("shuffle")
    x = np.zeros(2 * N, np.float32)
    for arguments in (), (1.0,), (np.float32(1),), (standin.ndarray(x), 1):
        with pytest.raises(TypeError, match=r"f\d+ takes"):
            kernel((2,), (N,), arguments)
    with pytest.raises(TypeError, match=r"NumPy array of shape \(128,\) is not on the device"):
        kernel((2,), (N,), (x,))


# Faults in the project's kernels


def softmax_and_gradient(code, keys, monkeypatch):
    """weights, dropped and dscores of fixed inputs, by kernels of this source."""
    standin.install(monkeypatch)
    monkeypatch.setattr(kernels, "SOURCE", code)
    rng = np.random.default_rng(0)
    shape = (2, 3, 3, keys)
    scores, ddropped = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    scores[..., ::keys // 8] += 40  # maxima that grow along a row
    scores *= np.linspace(0.1, 1, keys, dtype=np.float32)
    mask = rng.random(shape) < 0.6
    mask[1, 1, 1] = False
    scores, mask, ddropped = map(standin.ndarray, (scores, mask, ddropped))
    weights, dropped = kernels.forward(scores, mask, 0.3, 0.5, 1)
    return [x.get() for x in (weights, dropped, kernels.backward(ddropped, weights, 0.3, 0.5, 1))]


@pytest.mark.parametrize("fault", PLANTED)
def test_fault_planted_in_the_softmax_kernels_is_caught(fault, monkeypatch):
    *_, keys, caught = PLANTED[fault]
    expected = softmax_and_gradient(kernels.SOURCE, keys, monkeypatch)
    try:
        actual = softmax_and_gradient(planted(fault), keys, monkeypatch)
    except cuda_emulator.KernelError as error:
        assert re.search(caught, str(error)), error
    else:
        assert "wrong" in caught, "no error was reported"
        worst = max(np.abs(a - e).max() for a, e in zip(actual, expected))
        assert not worst < 1e-4  # NaN is wrong too
