"""Gradient descent with momentum."""

from ..schedules import not_negative
from .optimizer import Optimizer


class SGD(Optimizer):
    """velocity = momentum * velocity + g, then w = w - lr * velocity.

    With nesterov the step is by g + momentum * velocity, the gradient looked for ahead (Sutskever et al. 2013).
    Weight decay adds weight_decay * w to the gradient.
    """

    def __init__(self, parameters, lr, momentum=0.0, nesterov=False, weight_decay=0.0, lr_scales=()):
        super().__init__(parameters, lr, lr_scales)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        self.momentum = float(momentum)
        self.nesterov = nesterov
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.keeps = ("velocity",) if momentum else ()

    def update(self, w, g, velocity=None, *, lr, decay, t):
        if decay:
            g = g + decay * w
        if velocity is not None:
            velocity *= self.momentum
            velocity += g
            g = g + self.momentum * velocity if self.nesterov else velocity
        w -= lr * g
