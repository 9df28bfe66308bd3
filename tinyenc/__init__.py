"""A from-scratch Transformer on NumPy and CuPy, with hand-written backpropagation."""

from .attention import MultiHeadAttention, causal_mask, padding_mask, window_mask
from .encoder import BatchNormEncoderLayer, Encoder, EncoderLayer, PostLNEncoderLayer, TokenEmbedding
from .heads import Classifier, FirstPool, MaxPool, MeanPool
from .layer import Buffer, Layer, Parameter
from .layers import (
    GELU,
    BatchNorm,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    GELUTanh,
    LayerNorm,
    Linear,
    Recompute,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
)
from .losses import CrossEntropy
from .positions import SinusoidalPositions
from .tape import NO_TAPE, Tape

__all__ = [
    "GELU", "NO_TAPE", "BatchNorm", "BatchNormEncoderLayer", "Buffer", "Classifier", "CrossEntropy",
    "Dropout", "Embedding", "Encoder", "EncoderLayer", "FeedForward", "FirstPool", "GELUTanh",
    "GatedFeedForward", "Layer", "LayerNorm", "Linear", "MaxPool", "MeanPool", "MultiHeadAttention",
    "Parameter", "PostLNEncoderLayer", "RMSNorm", "ReLU", "Recompute", "SiLU", "Sigmoid",
    "SinusoidalPositions", "Tape", "TokenEmbedding", "causal_mask", "padding_mask", "window_mask",
]
__version__ = "0.1.0"
