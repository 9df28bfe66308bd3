"""From a file of labelled text to padded batches of token ids."""

from .batching import IGNORE, Batch, Batches, pad, piece_labels
from .files import DataError, read_tsv, write_atomically
from .tokenise import tokenise
from .vocab import CLS, MASK, PAD, SEP, SPECIALS, UNK, Vocab

__all__ = [
    "CLS",
    "IGNORE",
    "MASK",
    "PAD",
    "SEP",
    "SPECIALS",
    "UNK",
    "Batch",
    "Batches",
    "DataError",
    "Vocab",
    "pad",
    "piece_labels",
    "read_tsv",
    "tokenise",
    "write_atomically",
]
