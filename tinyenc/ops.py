"""The formulas, as plain array arithmetic, each beside its backward.

Half precision is computed and summed in float32 and returned in its own dtype. Scalars come from `math`: under
NumPy 2 a NumPy scalar would turn float32 arrays into float64.
"""

import math

import numpy as np

from .backend import on_host, wide
from .parallel import rowwise


def rows(x):
    """x as a matrix, (..., D) -> (N, D)."""
    return x.reshape(-1, x.shape[-1])


def sum_rows(x):
    """The sum over every axis but the last, (..., D) -> (D,)."""
    return rows(x).sum(axis=0, dtype=wide(x.dtype))


# Matrix products


def product(a, b):
    """a @ b, where half precision is multiplied in float32, and stays so; on the GPU, which sums in float32, a @ b."""
    if on_host(a):
        a, b = (x.astype(wide(x.dtype), copy=False) for x in (a, b))
    return a @ b


def matmul(x, weight):
    """x @ weight for x of any leading shape, as one matrix product."""
    y = product(rows(x), weight).astype(np.result_type(x, weight), copy=False)
    return y.reshape(*x.shape[:-1], weight.shape[1])


def matmul_backward(dy, x, weight):
    """dx and dweight of matmul."""
    dweight = product(rows(x).T, rows(dy))
    return matmul(dy, weight.T), dweight


# Normalisation over the last axis


@rowwise
def normalise(x, eps):
    """(x - mean) / sqrt(var + eps) over the last axis, and 1 / sqrt(var + eps).

    The mean is taken twice: what the first one, rounded, leaves behind matters when it is large.
    """
    centred = x - x.mean(axis=-1, keepdims=True, dtype=wide(x.dtype))
    centred -= centred.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    return (centred * rstd).astype(x.dtype, copy=False), rstd


@rowwise
def normalise_backward(dy, normed, rstd):
    """The means are what normalising takes out of x, and so out of its gradient."""
    dx = dy - dy.mean(axis=-1, keepdims=True, dtype=wide(dy.dtype))
    dx -= normed * (dy * normed).mean(axis=-1, keepdims=True, dtype=rstd.dtype)
    return (dx * rstd).astype(dy.dtype, copy=False)


@rowwise
def rms_normalise(x, eps):
    """x / sqrt(mean of x^2 + eps) over the last axis, and 1 / sqrt(mean of x^2 + eps)."""
    wide_x = x.astype(wide(x.dtype), copy=False)  # squares overflow half precision
    rrms = 1 / np.sqrt((wide_x * wide_x).mean(axis=-1, keepdims=True) + eps)
    return (x * rrms).astype(x.dtype, copy=False), rrms


@rowwise
def rms_normalise_backward(dy, normed, rrms):
    """A longer x gives the same y, so the gradient has no part along it."""
    dx = dy - normed * (dy * normed).mean(axis=-1, keepdims=True, dtype=rrms.dtype)
    return (dx * rrms).astype(dy.dtype, copy=False)


# Activations


@rowwise
def relu(x):
    """max(x, 0)."""
    return np.maximum(x, 0)


@rowwise
def relu_backward(dy, y):
    """dy where y > 0; the derivative at 0 is 0."""
    return dy * (y > 0)


# Phi(-a) = exp(-a^2 / 2) t q(1 - t) for a >= 0, with t = 8 / (a + 4) and q this polynomial, lowest power first:
# Chebyshev fits of the scaled complementary error function, to float64 and to float32 accuracy.
NORMAL_TAIL_64 = (
    0.09441064130196891, -0.07598708024648594, 0.04839217509278304, -0.02331523224501049, 0.007549571861081238,
    -0.0009425236194127533, -0.00043496154069730484, 0.0002038522899202044, 1.6667989123527596e-05,
    -2.8886754062725155e-05, -2.3825006120548372e-07, 4.392654116419764e-06, 8.857917992150926e-08,
    -7.39028980906542e-07, -7.640975469892021e-08, 1.2636315555953386e-07, 3.05948836354011e-08,
    -1.847901954385084e-08, -7.627611330681036e-09, 1.5889824762284062e-09, 9.323066029714228e-10)
NORMAL_TAIL_32 = (
    0.0944106441, -0.0759871395, 0.0483919342, -0.0233138461, 0.00755348511, -0.000949585151, -0.000457123027,
    0.000206320395, 5.68051776e-05)


@rowwise
def normal_cdf(x):
    """Phi(x), the chance that a standard normal number is below x: (1 + erf(x / sqrt 2)) / 2.

    Relative error under 2e-14 in float64 (both tails, to |x| = 10), 3e-6 in float32.
    """
    a = abs(x.astype(wide(x.dtype), copy=False))
    t = 8 / (a + 4)
    s = 1 - t
    *lower, second, first = NORMAL_TAIL_64 if a.dtype == np.float64 else NORMAL_TAIL_32
    tail = s * first + second
    for c in reversed(lower):
        tail *= s
        tail += c
    tail *= t
    tail *= np.exp(-0.5 * a * a)
    return abs((x > 0) - tail).astype(x.dtype, copy=False)  # 1 - tail or tail: choosing by `where` takes far longer


@rowwise
def gelu(x):
    """x Phi(x), and Phi(x) (Hendrycks & Gimpel 2016)."""
    cdf = normal_cdf.formula(x)
    return x * cdf, cdf


@rowwise
def gelu_backward(dy, x, cdf):
    """dy (Phi(x) + x phi(x)), phi the normal density."""
    x = x.astype(wide(x.dtype), copy=False)
    density = np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (dy * (cdf + x * density)).astype(dy.dtype, copy=False)


C = math.sqrt(2 / math.pi)
A = 0.044715


@rowwise
def gelu_tanh(x):
    """x (1 + t) / 2 with t = tanh(C (x + A x^3)), and t: the approximation that GPT-2 uses."""
    a = x.astype(wide(x.dtype), copy=False)
    t = np.tanh(C * a * (1 + A * a * a))
    return (0.5 * a * (1 + t)).astype(x.dtype, copy=False), t.astype(x.dtype, copy=False)


@rowwise
def gelu_tanh_backward(dy, x, t):
    """dy ((1 + t) / 2 + x/2 (1 - t^2) C (1 + 3 A x^2))."""
    x = x.astype(wide(x.dtype), copy=False)
    return (dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * C * (1 + 3 * A * x * x))).astype(dy.dtype, copy=False)


@rowwise
def sigmoid(x):
    """1 / (1 + exp(-x)), by an exponential that cannot overflow."""
    a = x.astype(wide(x.dtype), copy=False)
    e = np.exp(-abs(a))
    return (np.where(a > 0, 1, e) / (1 + e)).astype(x.dtype, copy=False)


@rowwise
def sigmoid_backward(dy, y):
    """dy y (1 - y)."""
    return dy * (y * (1 - y))


@rowwise
def silu(x):
    """x sigmoid(x), and sigmoid(x) (Elfwing et al. 2018; "swish")."""
    s = sigmoid.formula(x)
    return x * s, s


@rowwise
def silu_backward(dy, x, s):
    """dy s (1 + x (1 - s)), s = sigmoid(x)."""
    x = x.astype(wide(x.dtype), copy=False)
    return (dy * (s * (1 + x * (1 - s)))).astype(dy.dtype, copy=False)


# Softmax


def masked_softmax(scores, mask=None, drop=None):
    """exp(score) / sum of exp(score) over the keys that mask keeps, and the same after dropout.

    scores: (B, H, T, S). mask: boolean, broadcast to scores, True keeps; a row with no key kept gets zeros.
    drop: a KeepMask, or None, which makes the second result the first itself.
    """
    if not on_host(scores):
        from .kernels import masked_softmax as kernel
        p, seed = (drop.p, drop.seed) if drop else (0.0, None)
        return kernel.forward(scores, mask, 1.0, p, seed)
    weights = softmax(scores, mask)
    return weights, drop.apply(weights) if drop else weights


def masked_softmax_backward(ddropped, weights, drop=None):
    """dscores, given the gradient of what masked_softmax returned second; masked keys have weight, and so get, 0."""
    if not on_host(weights):
        from .kernels import masked_softmax as kernel
        p, seed = (drop.p, drop.seed) if drop else (0.0, None)
        return kernel.backward(ddropped, weights, 1.0, p, seed)
    return softmax_backward(drop.apply(ddropped) if drop else ddropped, weights)


def softmax(scores, mask=None):
    """exp(score) / sum of exp(score) over the last axis, where mask keeps; zeros where it keeps nothing."""
    scores = scores.astype(wide(scores.dtype), copy=False)
    if mask is not None:
        scores = np.where(mask, scores, -math.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-math.inf)
    top = np.where(top == -math.inf, 0, top)  # a row with nothing kept: exp(-inf - 0) is the zero wanted
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    return weights


def softmax_backward(dweights, weights):
    """weights * (dweights - sum of dweights * weights)."""
    dscores = dweights * weights
    dscores -= weights * dscores.sum(axis=-1, keepdims=True)
    return dscores


@rowwise
def log_softmax(logits):
    """logit - log of the sum of exp(logit), over the last axis, in float32 or wider."""
    logits = logits.astype(wide(logits.dtype), copy=False)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
