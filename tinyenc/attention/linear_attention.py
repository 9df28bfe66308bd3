"""Attention without a softmax, in time and memory linear in the length."""

import numpy as np

from ..backend import array_module, wide
from ..layer import Layer
from ..tape import NO_TAPE
from .masks import check_mask


class LinearAttention(Layer):
    """f(q) (f(k)^T v) / f(q) (f(k)^T 1), with f(x) = elu(x) + 1, head by head (Katharopoulos et al. 2020).

    Every query sees the same keys: a mask may hide keys, (B, 1, 1, S), but no pairs. There are no scores, so
    nothing can be added to them and nothing dropped. A query with no key gets zeros.

    q: (B, H, T, K); k, v: (B, H, S, K). Returns (B, H, T, K). Half precision is computed in float32.
    """

    def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
        mask = check_mask(mask, (*q.shape[:3], k.shape[2]))
        self.check(q, k, mask, bias)
        fq, fk = feature(q), feature(k)
        if mask is not None:
            fk *= mask.mT  # (B, H, S, 1)
        v = v.astype(fk.dtype, copy=False)
        v1 = np.concatenate([v, array_module(v).ones_like(v[..., :1])], axis=-1)  # the ones add up the weights
        mixed, states = self.mix(fq, fk, v1)
        total = mixed[..., -1:]
        total = np.where(total == 0, 1, total)
        y = mixed[..., :-1] / total
        tape.push(self, fq, fk, v1, states, y, total)
        return y.astype(q.dtype, copy=False)

    def backward(self, dy, tape):
        fq, fk, v1, states, y, total = tape.pop(self)
        dmixed = np.concatenate([dy, -(dy * y).sum(axis=-1, keepdims=True)], axis=-1) / total
        dfq, dfk, dv1 = self.mix_backward(dmixed, fq, fk, v1, states)
        dq = dfq * np.minimum(fq, 1)  # f' is exp(x) = f(x) below 0, and 1 above; where k is masked, f(k) is 0
        dk = dfk * np.minimum(fk, 1)
        return tuple(dx.astype(dy.dtype, copy=False) for dx in (dq, dk, dv1[..., :-1]))

    def mix(self, fq, fk, v1):
        """f(q) (f(k)^T v1), and the state f(k)^T v1, which backward needs."""
        state = fk.mT @ v1  # (B, H, K, K + 1)
        return fq @ state, state

    def mix_backward(self, dmixed, fq, fk, v1, state):
        dstate = fq.mT @ dmixed
        return dmixed @ state.mT, v1 @ dstate.mT, fk @ dstate

    def check(self, q, k, mask, bias):
        """ValueError where this attention cannot do what is asked."""
        name = type(self).__name__
        if bias is not None:
            raise ValueError(f"{name} has no scores to add a bias to")
        if mask is not None and mask.shape[2] != 1:
            raise ValueError(f"{name} cannot hide keys from single queries, as a mask of shape {mask.shape} asks; "
                             "causal attention is CausalLinearAttention")


class CausalLinearAttention(LinearAttention):
    """LinearAttention in which query i sees the keys up to i, in one sequence.

    The sums over keys run along: within a chunk as masked scores, from chunk to chunk as a state.
    """

    compares_places = True

    def __init__(self, chunk=128):
        if chunk < 1:
            raise ValueError(f"a chunk has at least 1 token, got {chunk}")
        self.chunk = chunk

    def mix(self, fq, fk, v1):
        mixed = array_module(v1).empty_like(v1)
        states = []  # before each chunk
        state = 0 * (fk[:, :, :1].mT @ v1[:, :, :1])
        for here in self.chunks(fq):
            q, k, v = fq[:, :, here], fk[:, :, here], v1[:, :, here]
            states.append(state)
            mixed[:, :, here] = np.tril(q @ k.mT) @ v + q @ state
            state = state + k.mT @ v
        return mixed, states

    def mix_backward(self, dmixed, fq, fk, v1, states):
        dfq, dfk, dv1 = (array_module(x).empty_like(x) for x in (fq, fk, v1))
        dstate = 0 * states[0]
        for here, state in zip(reversed(self.chunks(fq)), reversed(states)):
            q, k, v, d = fq[:, :, here], fk[:, :, here], v1[:, :, here], dmixed[:, :, here]
            dscores = np.tril(d @ v.mT)
            dfq[:, :, here] = dscores @ k + d @ state.mT
            dfk[:, :, here] = dscores.mT @ q + v @ dstate.mT
            dv1[:, :, here] = np.tril(q @ k.mT).mT @ d + k @ dstate
            dstate = dstate + q.mT @ d
        return dfq, dfk, dv1

    def chunks(self, x):
        return [slice(i, i + self.chunk) for i in range(0, x.shape[2], self.chunk)]

    def check(self, q, k, mask, bias):
        super().check(q, k, mask, bias)
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"causal linear attention is for one sequence, got {q.shape[2]} queries and "
                             f"{k.shape[2]} keys")


def feature(x):
    """elu(x) + 1: x + 1 above 0, exp(x) below; float32 or wider, and always positive."""
    x = x.astype(wide(x.dtype), copy=False)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
