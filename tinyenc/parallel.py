"""Runs plain array formulas over cache-sized blocks on all cores.

NumPy evaluates `a * x + b` one whole array at a time, so large arrays travel to memory and back for every
operator. Cut into blocks that fit in cache, the same formula stays on the core; and since NumPy releases the
interpreter lock inside its loops, threads compute the blocks side by side. These results do not depend on the
number of threads.

Matrix products are shared out in the same way, and each thread calls BLAS for a share of its own: the threads of
BLAS itself would get in the way of these, and wait for their next call with a core each, or for a core that another
program has. BLAS may sum in another order for a share of another size, so here the last bits depend on the number of
threads.
"""

import contextlib
import contextvars
import ctypes
import functools
import inspect
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from numbers import Real

import numpy as np

from .backend import on_host
from .blas import one_thread

BLOCK_BYTES = 1 << 20  # one core's L2 cache; smaller ones wait more often for the interpreter lock
WORTH_A_THREAD = 1 << 23  # multiplications of a product for which another thread is woken

_here = threading.local()  # .busy is True inside a task: a task that calls `run_each` runs it alone


def _default_threads():
    asked = os.environ.get("TINYENC_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    if asked and asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def get_num_threads():
    """How many threads the block formulas and the attention cores use."""
    return _threads


def set_num_threads(n):
    """Use n threads from now on."""
    global _threads, _pool
    if not (isinstance(n, Real) and n >= 1 and n % 1 == 0):
        raise ValueError(f"the number of threads must be a whole number of at least 1, got {n}")
    _threads = n = int(n)
    _pool = ThreadPoolExecutor(n - 1, thread_name_prefix="tinyenc") if n > 1 else None


set_num_threads(_default_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: set_num_threads(_threads))  # threads do not live on in a forked process


def free_threads():
    """How many threads `run_each` would use here: one, inside a task."""
    return 1 if getattr(_here, "busy", False) else _threads


def run_each(task, items):
    """Call task(item) for every item, on all cores; returns when all are done. The first error is raised.

    NumPy's error state (`np.errstate`) is the caller's in every task.
    """
    items = list(items)
    pool = _pool  # another thread may set another number meanwhile
    workers = min(free_threads(), len(items)) if pool else 1
    if workers <= 1:
        with one_thread():
            for item in items:
                task(item)
        return

    crew = Crew(task, items)
    with contextlib.suppress(RuntimeError):  # no thread is to be had, as when the interpreter ends: then without
        for _ in range(workers - 1):
            pool.submit(contextvars.copy_context().run, crew.join)
    crew.finish()


class Crew:
    """Threads that call task(item) for every item: each takes the next one when it is free."""

    def __init__(self, task, items):
        self.job = task, items  # None once it is over
        self.turns = itertools.count()  # next() on it is atomic
        self.joined = 0  # others at work
        self.errors = []
        self.change = threading.Condition()

    def finish(self):
        """The caller's part: its share of the items, and waiting for those who joined, but not for those to come."""
        try:
            self.work(*self.job)
        finally:
            with self.change:
                self.job = None
                self.change.wait_for(lambda: not self.joined)
        for error in self.errors:
            raise error

    def join(self):
        """Another thread's part: its share, unless it comes too late."""
        with self.change:
            if self.job is None:
                return
            task, items = self.job
            self.joined += 1
        try:
            self.work(task, items)
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self.change:
                self.joined -= 1
                self.change.notify()

    def work(self, task, items):
        _here.busy = True
        try:
            with one_thread():
                for turn in self.turns:
                    if turn >= len(items):
                        break
                    task(items[turn])
        finally:
            _here.busy = False


def share(task, product, depth):
    """Call task(rows, columns), two slices, for equal shares of a matrix product, one for each thread: it is cut along
    its longer side. depth: how many multiplications an entry takes.

    A small product is one share, for waking a thread takes as long; and so is any where BLAS cannot be kept to one
    thread, or on the GPU.
    """
    n, everything = max(product.shape), slice(None)
    shares = min(free_threads(), n, product.size * depth // WORTH_A_THREAD)
    if not (on_host(product) and one_thread.possible):
        shares = 1
    size = max(1, -(-n // max(1, shares)))

    def cut(start):
        some = slice(start, start + size)
        task(*((some, everything) if len(product) == n else (everything, some)))

    run_each(cut, range(0, n, size))


def even_step(n, most):
    """The length of equal blocks of n things, at most so many in each: of one block, or (unless blocks are of a few
    things only) of an even number of them, lest a small rest keeps one thread busy while another waits."""
    return max(1, n) if n <= most else -(-n // (2 * -(-n // (2 * most))))


def rowwise(formula):
    """Decorate a formula over rows (the last axis) so that it runs in blocks of rows on all cores.

    The first argument says what the rows are: arrays with the same leading shape are cut with it, everything
    else (weights, scalars, keyword arguments) is passed whole. The formula returns one array or a tuple of
    them, each with the same rows. It must treat rows independently, and may be called with any number of them.
    A formula with an argument `out` may write its first result there, which saves copying it.
    On CuPy's arrays it runs as one kernel.
    """
    takes_out = "out" in inspect.signature(formula).parameters

    @functools.wraps(formula)
    def run(*args, **kwargs):
        first = args[0]
        if not on_host(first):
            from .kernels.fuse import fused
            return fused(formula, args, kwargs)
        if first.nbytes <= BLOCK_BYTES or first.ndim < 2 or not first.flags.c_contiguous:
            return formula(*args, **kwargs)
        lead = first.shape[:-1]
        n_rows = first.size // first.shape[-1]
        cut = [isinstance(a, np.ndarray) and a.ndim == first.ndim and a.shape[:-1] == lead for a in args]
        args = [a.reshape(n_rows, a.shape[-1]) if c else a for a, c in zip(args, cut)]

        def block(some, **out):
            results = formula(*[a[some] if c else a for a, c in zip(args, cut)], **kwargs, **out)
            return results if isinstance(results, tuple) else (results,)

        likes = block(slice(0, 1))  # one row tells the shapes and dtypes
        outs = [np.empty((n_rows, *like.shape[1:]), like.dtype) for like in likes]
        step = even_step(n_rows, max(1, BLOCK_BYTES // (first.shape[-1] * first.itemsize)))

        def task(start):
            some = slice(start, start + step)
            places = [out[some] for out in outs]
            for place, result in zip(places, block(some, out=places[0]) if takes_out else block(some)):
                if result is not place:
                    place[...] = result

        run_each(task, range(0, n_rows, step))
        outs = tuple(out.reshape(*lead, *out.shape[1:]) for out in outs)
        return outs if len(outs) > 1 else outs[0]

    run.formula = formula
    return run


def in_blocks(update, *arrays):
    """Call update(*blocks), an in-place formula, on matching flat blocks of equally shaped arrays.

    NumPy arrays that are C-contiguous are cut; others (CuPy's, or views) are passed whole.
    """
    if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
        update(*arrays)
        return
    flat = [a.reshape(-1) for a in arrays]
    step = BLOCK_BYTES // max(a.itemsize for a in arrays)
    run_each(lambda start: update(*[a[start:start + step] for a in flat]), range(0, flat[0].size, step))


def keep_freed_memory():
    """Ask glibc to keep freed memory for the next array instead of giving it back to the system.

    By default every large array is a fresh mapping whose pages the kernel must zero on first touch, which
    costs more than the arithmetic. Does nothing on other C libraries. `TINYENC_RETURN_MEMORY=1` in the
    environment turns it off.
    """
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


if not os.environ.get("TINYENC_RETURN_MEMORY"):
    keep_freed_memory()
