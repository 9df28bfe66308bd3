"""Optimisers: SGD, Adam, AdamW, and gradient clipping."""

from .adam import Adam, AdamW
from .clip import clip_grad_norm
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm"]
