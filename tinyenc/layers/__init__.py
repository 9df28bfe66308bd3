"""Layers that act on each position by itself."""

from .activation import GELU, GELUTanh, ReLU
from .dropout import Dropout
from .embedding import Embedding
from .feed_forward import FeedForward
from .linear import Linear
from .norm import LayerNorm, RMSNorm

__all__ = ["GELU", "GELUTanh", "ReLU", "Dropout", "Embedding", "FeedForward", "LayerNorm", "Linear",
           "RMSNorm"]
