"""What stands on an encoder: pooling, and a head for each task."""

from .classify import Classifier
from .pooling import FirstPool, MaxPool, MeanPool

__all__ = ["Classifier", "FirstPool", "MaxPool", "MeanPool"]
