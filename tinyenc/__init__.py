"""A from-scratch Transformer on NumPy and CuPy, with hand-written backpropagation."""

from .attention import (
    CausalLinearAttention,
    DotProduct,
    LinearAttention,
    MultiHeadAttention,
    SlidingWindow,
    Tiled,
    causal_mask,
    padding_mask,
    window_mask,
)
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
from .positions import ALiBi, LearnedPositions, NoPositions, Rotary, SinusoidalPositions, T5Buckets
from .tape import NO_TAPE, Tape

__all__ = [
    "ALiBi", "BatchNorm", "BatchNormEncoderLayer", "Buffer", "CausalLinearAttention", "Classifier",
    "CrossEntropy", "DotProduct", "Dropout", "Embedding", "Encoder", "EncoderLayer", "FeedForward",
    "FirstPool", "GELU", "GELUTanh", "GatedFeedForward", "Layer", "LayerNorm", "LearnedPositions", "Linear",
    "LinearAttention", "MaxPool", "MeanPool", "MultiHeadAttention", "NO_TAPE", "NoPositions", "Parameter",
    "PostLNEncoderLayer", "RMSNorm", "ReLU", "Recompute", "Rotary", "SiLU", "Sigmoid",
    "SinusoidalPositions", "SlidingWindow", "T5Buckets", "Tape", "Tiled", "TokenEmbedding", "causal_mask",
    "padding_mask", "window_mask",
]
__version__ = "0.1.0"
