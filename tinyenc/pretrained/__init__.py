"""Models that others trained: BERT and its kin, from Hugging Face folders, and PyTorch's own layers."""

from .fill_mask import FillMask, Guess
from .load import Pretrained, load, save
from .sentence import SentenceEncoder
from .tokenizer import load_tokenizer

__all__ = ["FillMask", "Guess", "Pretrained", "SentenceEncoder", "load", "load_tokenizer", "save"]
