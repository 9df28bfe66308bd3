"""Models that others trained: BERT and its kin, from Hugging Face folders, and PyTorch's own layers."""

from .fill_mask import FillMask, Guess
from .load import Pretrained, load, save
from .pytorch import load_pytorch, to_pytorch
from .sentence import SentenceEncoder
from .tokenizer import load_tokenizer

__all__ = [
    "FillMask", "Guess", "Pretrained", "SentenceEncoder", "load", "load_pytorch", "load_tokenizer", "save",
    "to_pytorch",
]
