"""Finite-difference checks of every layer: `pytest gradcheck`."""
