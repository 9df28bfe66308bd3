"""Optimisers: SGD, Adam, AdamW, gradient clipping and loss scaling."""

from .adam import Adam, AdamW
from .clip import clip_grad_norm
from .loss_scale import LossScale
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "LossScale", "Optimizer", "clip_grad_norm"]
