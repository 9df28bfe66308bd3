"""Layers that act on each position by itself."""

from .activation import GELU, GELUTanh, ReLU, Sigmoid, SiLU
from .batch_norm import BatchNorm
from .dropout import Dropout
from .embedding import Embedding
from .feed_forward import FeedForward, GatedFeedForward
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .recompute import Recompute

__all__ = ["GELU", "GELUTanh", "ReLU", "SiLU", "Sigmoid", "BatchNorm", "Dropout", "Embedding", "FeedForward",
           "GatedFeedForward", "LayerNorm", "Linear", "RMSNorm", "Recompute"]
