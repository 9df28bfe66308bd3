"""Faults that change no derivative, each with the reason."""

EQUIVALENT = {
    "ops.normalise_backward: dx -= normed * (dy * normed).mean(axis=-1, keepdims=True, dtype=rstd.dtype) -> "
    "dx -= normed * (dx * normed).mean(axis=-1, keepdims=True, dtype=rstd.dtype)":
        "dx is dy less its mean, and the mean of normed is 0",
}
