"""Finite-difference checks of hand-written derivatives, with a diagnosis where one is wrong."""

from .check import check_gradients
from .compare import Checked
from .structure import GradientError

__all__ = ["Checked", "GradientError", "check_gradients"]
