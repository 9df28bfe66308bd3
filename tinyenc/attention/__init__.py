"""Attention: masks, cores, and the heads around them."""

from .dot_product import DotProduct
from .masks import causal_mask, padding_mask, window_mask
from .multi_head import MultiHeadAttention

__all__ = ["DotProduct", "MultiHeadAttention", "causal_mask", "padding_mask", "window_mask"]
