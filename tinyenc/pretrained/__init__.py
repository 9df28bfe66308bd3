"""Models that others trained: BERT and its kin, from Hugging Face folders, and PyTorch's own layers."""

from .load import Pretrained, load, save

__all__ = ["Pretrained", "load", "save"]
