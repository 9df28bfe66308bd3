"""The library behind NumPy's matrix products, told how many threads to use."""

import ctypes
import os
import threading

import numpy as np


class OneThread:
    """`with one_thread:` keeps BLAS to the thread that calls it, then lets it go back to its own number.

    Callers in several threads may overlap: the first to enter tells it, the last to leave tells it again.
    `possible` is False where BLAS takes no such orders, that is, where it is not OpenBLAS; then nothing happens.
    """

    def __init__(self):
        self._get, self._set = _thread_calls()
        self.possible = self._set is not None
        self.forget()

    def forget(self):
        """Nobody is inside: so it is at first, and in a forked process."""
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self):
        with self._lock:
            self._inside += 1
            if self.possible and self._inside == 1:
                self._before = self._get()
                self._set(1)

    def __exit__(self, *exception):
        with self._lock:
            self._inside -= 1
            if self.possible and self._inside == 0:
                self._set(self._before)


def _thread_calls():
    """OpenBLAS's functions that read and set the number of threads, or (None, None)."""
    try:
        linked = ctypes.CDLL(np._core._multiarray_umath.__file__)  # finds what this extension is linked to
    except (AttributeError, OSError):
        return None, None
    for prefix in "scipy_", "":  # NumPy's wheels rename the functions
        for suffix in "64_", "":
            try:
                return tuple(linked[f"{prefix}openblas_{verb}_num_threads{suffix}"] for verb in ("get", "set"))
            except AttributeError:
                continue
    return None, None


one_thread = OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forget)
