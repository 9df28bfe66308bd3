"""The formulas, as plain array arithmetic, each beside its backward.

Half precision is computed and summed in float32 and returned in its own dtype. Scalars come from `math`: under
NumPy 2 a NumPy scalar would turn float32 arrays into float64.
"""

import math

import numpy as np

from .backend import array_module, on_host, wide
from .parallel import row_sums, rowwise, share_rows


def rows(x):
    """x as a matrix, (..., D) -> (N, D)."""
    return x.reshape(-1, x.shape[-1])


@row_sums
def sum_rows(x):
    """The sum over every axis but the last, (..., D) -> (D,)."""
    return rows(x).sum(axis=0, dtype=wide(x.dtype))


@row_sums
def sum_rows_of_product(x, y):
    """The sum of x * y over every axis but the last."""
    return rows(x * y).sum(axis=0, dtype=wide(x.dtype))


@rowwise
def add(x, y):
    """x + y."""
    return x + y


@rowwise
def scale(x, factor):
    """x * factor."""
    return x * factor


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
    return np.matmul(a, b, out=out, dtype=wide(np.result_type(a, b)), casting="same_kind")


def matmul(x, weight, bias=None):
    """x @ weight, + bias where there is one, for x of any leading shape: one matrix product, rows shared by threads."""
    x_rows = rows(x)
    y = array_module(x).empty((len(x_rows), weight.shape[1]), np.result_type(x, weight))

    def share(some):
        product(x_rows[some], weight, out=y[some])
        if bias is not None:
            y[some] += bias

    share_rows(share, x_rows)
    return y.reshape(*x.shape[:-1], weight.shape[1])


def add_weight_gradient(dweight, x, dy):
    """dweight += x^T dy: what y = matmul(x, weight) sends back to its weight."""
    x_columns = rows(x).T

    def share(some):
        dweight[some] += product(x_columns[some], rows(dy))

    share_rows(share, x_columns)


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
def layer_norm(x, weight, bias, eps):
    """weight * normed + bias, and what normalise returns."""
    normed, rstd = normalise.formula(x, eps)
    return normed * weight + bias, normed, rstd


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


# Phi(-a) = exp(-a^2 / 2) s q(2 s - 1) for a >= 0, with s = 4 / (a + 4) and q this polynomial, lowest power first: fits
# of the scaled complementary error function, to the accuracy of float64 and of float32.
NORMAL_TAIL_64 = (
    0.18882128260393785, 0.15197416049297308, 0.09678435018555664, 0.04663046448990915, 0.01509914372259023,
    0.001885047241846578, -0.0008699230891628756, -0.00040770461685247714, 3.3336052290036945e-05,
    5.7773754340693565e-05, -4.769190076797745e-07, -8.786277975709413e-06, 1.7865053828168654e-07,
    1.4804027614809944e-06, -1.5623877693912945e-07, -2.5619627541381934e-07, 6.61834320494967e-08,
    3.994349035559805e-08, -1.9695900856734096e-08, -4.461231943245354e-09, 4.01684673933235e-09,
    1.4684066912467977e-10, -4.221644241696684e-10, 2.999445507813274e-11)
NORMAL_TAIL_32 = (
    0.188821542, 0.151974515, 0.0967740079, 0.0466341014, 0.0151793599, 0.00180416232, -0.00103043834, -0.000157307499)


@rowwise
def normal(x):
    """Phi(x) = (1 + erf(x / sqrt 2)) / 2, the chance that a standard normal number is below x, and its density phi(x).

    Relative error of Phi under 5e-14 in float64, 4e-6 in float32, in both tails to |x| = 9. Half gives float32.
    """
    x = x.astype(wide(x.dtype), copy=False)
    a = abs(x)
    s = 4 / (a + 4)
    t = 2 * s - 1
    first, *others = reversed(NORMAL_TAIL_64 if x.dtype == np.float64 else NORMAL_TAIL_32)
    q = np.full_like(t, first)
    for c in others:
        q *= t
        q += c
    bell = np.exp(-0.5 * a * a)
    tail = bell * s * q
    above = (x > 0).astype(x.dtype)  # where x > 0, Phi is 1 - tail; a sum, since choosing entry by entry is slow
    return above + (1 - 2 * above) * tail, bell * (1 / math.sqrt(2 * math.pi))


# Each function below returns y and, for backward, its slope dy/dx.


@rowwise
def gelu(x):
    """x Phi(x) (Hendrycks & Gimpel 2016), and Phi(x) + x phi(x)."""
    cdf, density = normal.formula(x)
    return (x * cdf).astype(x.dtype, copy=False), (cdf + x * density).astype(x.dtype, copy=False)


C = math.sqrt(2 / math.pi)
A = 0.044715


@rowwise
def gelu_tanh(x):
    """x (1 + t) / 2 with t = tanh(C (x + A x^3)), GPT-2's, and (1 + t) / 2 + x / 2 (1 - t^2) C (1 + 3 A x^2)."""
    a = x.astype(wide(x.dtype), copy=False)
    square = a * a
    t = np.tanh(C * a * (1 + A * square))
    half = 0.5 * (1 + t)
    slope = half + (0.5 * C) * a * (1 - t * t) * (1 + (3 * A) * square)
    return (a * half).astype(x.dtype, copy=False), slope.astype(x.dtype, copy=False)


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
    """x s with s = sigmoid(x) (Elfwing et al. 2018; "swish"), and s (1 + x (1 - s))."""
    a = x.astype(wide(x.dtype), copy=False)
    s = sigmoid.formula(a)
    return (a * s).astype(x.dtype, copy=False), (s * (1 + a * (1 - s))).astype(x.dtype, copy=False)


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
