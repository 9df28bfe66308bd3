"""Steps measured by the gradients' own size."""

import math

import numpy as np

from ..schedules import not_negative
from .optimizer import Optimizer


class Adam(Optimizer):
    """w = w - lr * m_hat / (sqrt(v_hat) + eps) (Kingma & Ba 2015).

    m and v are running means of g and g**2; m_hat = m / (1 - beta1**t) and v_hat = v / (1 - beta2**t) make up
    for their start at 0. t counts each parameter's own steps, so one that is unfrozen late starts as any other.
    """

    keeps = ("m", "v")

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8, lr_scales=()):
        super().__init__(parameters, lr, lr_scales)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        self.beta1, self.beta2 = map(float, betas)
        self.eps = float(eps)

    def update(self, w, g, m, v, *, lr, decay, t):
        if decay:
            w *= 1 - lr * decay
        m *= self.beta1
        m += (1 - self.beta1) * g
        v *= self.beta2
        v += (1 - self.beta2) * g * g
        # The formula above in the order of the paper's section 2, with sqrt(1 - beta2**t) taken out of the root.
        root = math.sqrt(1 - self.beta2**t)
        w -= lr * root / (1 - self.beta1**t) * m / (np.sqrt(v) + self.eps * root)


class AdamW(Adam):
    """Adam, with w = w - lr * weight_decay * w before it: decay apart from the gradient (Loshchilov & Hutter 2019)."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, lr_scales=()):
        super().__init__(parameters, lr, betas, eps, lr_scales)
        self.weight_decay = not_negative("weight_decay", weight_decay)
