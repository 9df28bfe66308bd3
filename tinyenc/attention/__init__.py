"""Attention: masks, cores, and the heads around them."""

from .dot_product import DotProduct
from .linear_attention import CausalLinearAttention, LinearAttention
from .masks import causal_mask, padding_mask, window_mask
from .multi_head import MultiHeadAttention
from .tiled import SlidingWindow, Tiled

__all__ = ["CausalLinearAttention", "DotProduct", "LinearAttention", "MultiHeadAttention", "SlidingWindow", "Tiled",
           "causal_mask", "padding_mask", "window_mask"]
