"""What OpenBLAS, the library behind NumPy's matrix products, can do and NumPy does not ask for."""

import contextlib
import ctypes
import os
import threading
import weakref

import numpy as np


def _openblas():
    """(library, prefix, suffix of its names), or (None, "", "") where NumPy is linked to another BLAS."""
    try:
        linked = ctypes.CDLL(np._core._multiarray_umath.__file__)  # finds what this extension is linked to
    except (AttributeError, OSError):
        return None, "", ""
    for prefix in "scipy_", "":  # NumPy's wheels rename the functions
        for suffix in "64_", "":
            if hasattr(linked, f"{prefix}openblas_get_num_threads{suffix}"):
                return linked, prefix, suffix
    return None, "", ""


LIBRARY, PREFIX, SUFFIX = _openblas()


class OneThread:
    """`with one_thread():` keeps BLAS to the thread that calls it, then lets it go back to its own number.

    Callers in several threads may overlap: the first to enter tells it, the last to leave tells it again. Ctrl-C may
    come between any two steps: the visit is over then, or (where it comes as __exit__ begins) when its traceback is
    gone and the next one leaves. A signal handler, or a finalizer, may come in between and make a visit of its own.
    Where it starts threads that do, and waits for them, it may wait for ever.
    `possible` is False where BLAS takes no such orders, that is, where it is not OpenBLAS; then nothing happens.
    """

    def __init__(self):
        self.possible = LIBRARY is not None
        if self.possible:
            self._get = LIBRARY[f"{PREFIX}openblas_get_num_threads{SUFFIX}"]
            self._set = LIBRARY[f"{PREFIX}openblas_set_num_threads{SUFFIX}"]
        self._told = False  # whether BLAS was told, and its own number is kept
        self.begin()

    def begin(self):
        """Nobody is inside: so it is at first, and in a forked process."""
        self._lock = threading.RLock()
        self._inside = []  # weak references: a caller that never left is gone
        self._here = threading.local()  # .visit: this thread's, a weak reference

    def __call__(self):
        visit = getattr(self._here, "visit", None)
        return NOTHING_MORE if visit and visit() else Visit(self)

    def enter(self, visit):
        with self._lock:
            self._inside = [*self.others(visit), weakref.ref(visit)]
            if self.possible:
                if not self._told:
                    self._before, self._told = self._get(), True
                self._set(1)
            self._here.visit = self._inside[-1]

    def leave(self, visit):
        with self._lock:
            self._here.visit = None
            self._inside = self.others(visit)
            if self._told and not self._inside:
                self._set(self._before)
                self._told = False

    def others(self, visit):
        return [other for other in self._inside if other() not in (None, visit)]


class Visit:
    """One thread inside. What it calls there has nothing more to do."""

    def __init__(self, room):
        self.room = room

    def __enter__(self):
        try:
            self.room.enter(self)
        except BaseException:  # Ctrl-C, in between
            self.room.leave(self)
            raise

    def __exit__(self, *exception):
        try:
            self.room.leave(self)
        except BaseException:  # Ctrl-C, in between
            self.room.leave(self)
            raise


NOTHING_MORE = contextlib.nullcontext()
one_thread = OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.begin)

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112  # what CBLAS calls them


def _gemm(name, number):
    """cblas_sgemm or cblas_dgemm: out = alpha a b + beta out."""
    gemm = LIBRARY[f"{PREFIX}{name}{SUFFIX}"]
    size = ctypes.c_int64 if SUFFIX else ctypes.c_int
    matrix = [ctypes.c_void_p, size]
    gemm.argtypes = [ctypes.c_int] * 3 + [size] * 3 + [number, *matrix, *matrix, number, *matrix]
    gemm.restype = None
    return gemm


GEMM = {np.dtype(np.float32): _gemm("cblas_sgemm", ctypes.c_float),
        np.dtype(np.float64): _gemm("cblas_dgemm", ctypes.c_double)} if LIBRARY else {}


def gemm_add(out, a, b):
    """out += a @ b, in one pass over out; False, and nothing is done, for what BLAS does not take.

    It takes matrices of one dtype, float32 or float64, out row by row, a and b row by row or column by column.
    """
    gemm = GEMM.get(out.dtype)
    if gemm is None or not all(isinstance(x, np.ndarray) and x.dtype == out.dtype and x.ndim == 2 for x in (out, a, b)):
        return False
    (m, k), n = a.shape, b.shape[1]
    layouts = [_layout(x) for x in (a, b, out)]
    fit = b.shape[0] == k and out.shape == (m, n) and 0 not in (m, n, k)
    apart = not (np.may_share_memory(out, a) or np.may_share_memory(out, b))
    if not (fit and apart and out.flags.writeable) or None in layouts or layouts[2][0] != PLAIN:
        return False
    (a_order, a_step), (b_order, b_step), (_, step) = layouts
    gemm(ROW_MAJOR, a_order, b_order, m, n, k, 1.0, a.ctypes.data, a_step, b.ctypes.data, b_step, 1.0, out.ctypes.data,
         step)
    return True


def _layout(x):
    """(PLAIN or TRANSPOSED, elements from one row to the next, or one column), or None where it is neither."""
    if x.flags.aligned:
        for order, y in (PLAIN, x), (TRANSPOSED, x.T):
            (n, width), (step, one) = y.shape, y.strides
            if (one == x.itemsize or width == 1) and (n == 1 or step >= width * x.itemsize and step % x.itemsize == 0):
                return order, step // x.itemsize if n > 1 else width
    return None
