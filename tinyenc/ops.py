"""The formulas, as plain array arithmetic, each beside its backward.

Half precision is computed and summed in float32 and returned in its own dtype. Scalars come from `math`: under
NumPy 2 a NumPy scalar would turn float32 arrays into float64.
"""

import math

import numpy as np

from .backend import array_module, on_host, wide
from .blas import gemm_add, one_thread
from .parallel import rowwise, share


def rows(x):
    """x as a matrix, (..., D) -> (N, D)."""
    return x.reshape(-1, x.shape[-1])


def sum_rows(x):
    """The sum over every axis but the last, (..., D) -> (D,)."""
    x = rows(x)
    if not on_host(x):
        return x.sum(axis=0, dtype=wide(x.dtype))
    with one_thread():
        return by_parts(lambda x: np.ones(len(x), x.dtype) @ x, x)  # a third of the time of a sum


def sum_rows_of_product(x, y):
    """The sum of x * y over every axis but the last."""
    if not on_host(x):
        return sum_rows(x * y)
    return by_parts(lambda x, y: np.einsum("ni,ni->i", x, y), rows(x), rows(y))


def by_parts(total, *arrays, most=1024):
    """total(*arrays), a sum over rows in float32 or wider, taken over so many rows at a time, lest small numbers are
    lost beside the sum of all."""
    parts = [total(*(a[i:i + most].astype(wide(a.dtype), copy=False) for a in arrays))
             for i in range(0, max(1, len(arrays[0])), most)]
    return np.sum(parts, axis=0, dtype=np.float64).astype(parts[0].dtype)


def add_rows(table, index, x):
    """table[index] += x, for x (..., D) and index (...), where rows that an index names more than once add up."""
    if not on_host(table):
        array_module(table).add.at(table, index, x)
        return
    for i, row in zip(index.ravel().tolist(), rows(x)):  # quicker than add.at, and than sums of sorted rows
        table[i] += row


# Matrix products


def product(a, b, out=None):
    """a @ b, where half precision is multiplied in float32, and stays so unless out is half; on the GPU, which sums
    in float32, a @ b."""
    if not on_host(a):
        return np.matmul(a, b, out=out)
    with one_thread():
        return np.matmul(a, b, out=out, dtype=wide(np.result_type(a, b)), casting="same_kind")


def add_product(out, a, b):
    """out += a @ b, multiplied as in `product`."""
    if not gemm_add(out, a, b):
        out += product(a, b)


def matmul(x, weight, bias=None):
    """x @ weight, + bias where there is one, for x of any leading shape: one matrix product, shared by all threads."""
    x_rows = rows(x)
    y = array_module(x).empty((len(x_rows), weight.shape[1]), np.result_type(x, weight))

    def part(some, columns):
        if bias is None:
            product(x_rows[some], weight[:, columns], out=y[some, columns])
        else:
            y[some, columns] = bias[columns]
            add_product(y[some, columns], x_rows[some], weight[:, columns])

    share(part, y, weight.shape[0])
    return y.reshape(*x.shape[:-1], weight.shape[1])


def add_weight_gradient(dweight, x, dy):
    """dweight += x^T dy: what y = matmul(x, weight) sends back to its weight."""
    def part(some, columns):
        add_product(dweight[some, columns], rows(x).T[some], rows(dy)[:, columns])

    share(part, dweight, len(rows(x)))


# Normalisation over the last axis


def row_mean(x, y=None):
    """The mean of x, or of x * y, over the last axis, which stays with length 1; in float32 or wider.

    On the CPU by products of vectors, which take a fraction of the time of `mean`.
    """
    if not on_host(x):
        return (x if y is None else x * y).mean(axis=-1, keepdims=True, dtype=wide(x.dtype))
    n = x.shape[-1]
    x = x.astype(wide(x.dtype), copy=False)
    with one_thread():
        if y is None:
            return (x @ np.full(n, 1 / n, x.dtype))[..., None]
        return np.vecdot(x, y)[..., None] / n


@rowwise
def normalise(x, eps):
    """(x - mean) / sqrt(var + eps) over the last axis, and 1 / sqrt(var + eps).

    The mean is taken twice: what the first one, rounded, leaves behind matters when it is large.
    """
    centred = x - row_mean(x)
    centred -= row_mean(centred)
    rstd = 1 / np.sqrt(row_mean(centred, centred) + eps)
    centred *= rstd
    return centred.astype(x.dtype, copy=False), rstd


@rowwise
def layer_norm(x, weight, bias, eps, out=None):
    """weight * normed + bias, and what normalise returns."""
    normed, rstd = normalise.formula(x, eps)
    y = np.multiply(normed, weight, out=out)
    y += bias
    return y, normed, rstd


@rowwise
def normalise_backward(dy, normed, rstd):
    """The means are what normalising takes out of x, and so out of its gradient."""
    dx = dy - row_mean(dy)
    dx -= normed * row_mean(dy, normed)
    return (dx * rstd).astype(dy.dtype, copy=False)


@rowwise
def layer_norm_backward(dy, weight, normed, rstd):
    """dx. What weight and bias get are sums over rows: of dy * normed and of dy."""
    return normalise_backward.formula(dy * weight, normed, rstd)


@rowwise
def rms_normalise(x, eps):
    """x / sqrt(mean of x^2 + eps) over the last axis, and 1 / sqrt(mean of x^2 + eps)."""
    wide_x = x.astype(wide(x.dtype), copy=False)  # squares overflow half precision
    rrms = 1 / np.sqrt(row_mean(wide_x, wide_x) + eps)
    return (x * rrms).astype(x.dtype, copy=False), rrms


@rowwise
def rms_normalise_backward(dy, normed, rrms):
    """A longer x gives the same y, so the gradient has no part along it."""
    dx = dy - normed * row_mean(dy, normed)
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


# In float64, Phi(-a) = exp(-a^2 / 2) s q(2 s - 1) for a >= 0, with s = 4 / (a + 4) and q this polynomial, lowest power
# first: a fit of the scaled complementary error function.
NORMAL_TAIL_64 = (
    0.18882128260393785, 0.15197416049297308, 0.09678435018555664, 0.04663046448990915, 0.01509914372259023,
    0.001885047241846578, -0.0008699230891628756, -0.00040770461685247714, 3.3336052290036945e-05,
    5.7773754340693565e-05, -4.769190076797745e-07, -8.786277975709413e-06, 1.7865053828168654e-07,
    1.4804027614809944e-06, -1.5623877693912945e-07, -2.5619627541381934e-07, 6.61834320494967e-08,
    3.994349035559805e-08, -1.9695900856734096e-08, -4.461231943245354e-09, 4.01684673933235e-09,
    1.4684066912467977e-10, -4.221644241696684e-10, 2.999445507813274e-11)
# In float32, Phi(x) = (1 + tanh(x q(x^2))) / 2 with this q: a fit of atanh(erf(x / sqrt 2)) / x.
NORMAL_TANH_32 = (0.797884941, 0.0363330844, -3.25947481e-05, -5.5306315e-05, 3.96477278e-06, -1.32266246e-07,
                  1.75627643e-09)


@rowwise
def normal_cdf(x):
    """Phi(x) = (1 + erf(x / sqrt 2)) / 2, the chance that a standard normal number is below x.

    In float64 with a relative error under 5e-14 (both tails, to |x| = 9), in float32 an absolute one under 1e-7.
    """
    if x.dtype == np.float64:
        a = abs(x)
        s = 4 / (a + 4)
        tail = np.exp(-0.5 * a * a) * s * polynomial(NORMAL_TAIL_64, 2 * s - 1)
        return np.where(x > 0, 1 - tail, tail)
    x = x.astype(wide(x.dtype), copy=False)
    with np.errstate(over="ignore"):  # far out, infinity is as good as what it stands for
        y = polynomial(NORMAL_TANH_32, x * x)
        y *= x
    np.tanh(y, out=y)
    y += 1
    y *= 0.5
    return y


def polynomial(coefficients, x):
    """c_0 + c_1 x + c_2 x^2 + ..., by Horner's rule."""
    y = coefficients[-1] * x
    for c in coefficients[-2:0:-1]:
        y += c
        y *= x
    y += coefficients[0]
    return y


@rowwise
def gelu(x, with_slope=False, out=None):
    """x Phi(x) (Hendrycks & Gimpel 2016); with its slope Phi(x) + x phi(x), phi the normal density."""
    cdf = normal_cdf.formula(x)
    y = np.multiply(x, cdf, out=out).astype(x.dtype, copy=False)
    if not with_slope:
        return y
    x = x.astype(cdf.dtype, copy=False)
    slope = cdf + x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return y, slope.astype(y.dtype, copy=False)


C = math.sqrt(2 / math.pi)
A = 0.044715


@rowwise
def gelu_tanh(x, with_slope=False):
    """x (1 + t) / 2 with t = tanh(C (x + A x^3)), GPT-2's GELU; with its slope (1 + t) / 2 + x / 2 dt/dx."""
    a = x.astype(wide(x.dtype), copy=False)
    t = np.tanh(C * a * (1 + A * a * a))
    half = 0.5 * (1 + t)
    y = (a * half).astype(x.dtype, copy=False)
    if not with_slope:
        return y
    dt = (1 - t * t) * C * (1 + 3 * A * a * a)
    return y, (half + 0.5 * a * dt).astype(x.dtype, copy=False)


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
def silu(x, with_slope=False):
    """x s with s = sigmoid(x) (Elfwing et al. 2018; "swish"); with its slope s (1 + x (1 - s))."""
    s = sigmoid.formula(x)
    return (x * s, s * (1 + x * (1 - s))) if with_slope else x * s


# Loss


@rowwise
def log_softmax(logits):
    """logit - log of the sum of exp(logit), over the last axis, in float32 or wider."""
    logits = logits.astype(wide(logits.dtype), copy=False)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
