import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from support import random

from tinyenc import blas, ops
from tinyenc.blas import OneThread, gemm_add, one_thread
from tinyenc.parallel import WORTH_A_THREAD, get_num_threads, run_each, set_num_threads, share

DEEP = 1 << 30  # so deep a product is worth every thread
TELLING = pytest.mark.skipif(not one_thread.possible, reason="this NumPy's BLAS takes no orders (it is not OpenBLAS)")


@pytest.fixture
def threads_of_blas():
    """A OneThread whose BLAS is a plain number, and a way to read it."""
    number = [7]
    guard = OneThread()
    guard.possible = True
    guard._get, guard._set = lambda: number[0], lambda n: number.__setitem__(0, n)
    return guard, lambda: number[0]


@pytest.fixture(autouse=True)
def threads_as_before():
    threads = get_num_threads()
    yield
    set_num_threads(threads)


@TELLING
def test_blas_has_one_thread_inside_and_its_own_number_after():
    before = one_thread._get()
    one_thread._set(2)
    try:
        with one_thread():
            assert one_thread._get() == 1
        assert one_thread._get() == 2
    finally:
        one_thread._set(before)


@TELLING
def test_tasks_side_by_side_find_blas_on_one_thread_and_it_comes_back_after_an_error():
    set_num_threads(2)
    before, seen = one_thread._get(), []
    one_thread._set(2)
    try:
        share(lambda *some: seen.append(one_thread._get()), np.zeros((1000, 4)), DEEP)
        with pytest.raises(ZeroDivisionError):
            share(lambda *some: 1 / 0, np.zeros((1000, 4)), DEEP)
        assert one_thread._get() == 2
    finally:
        one_thread._set(before)
    assert seen == [1, 1]


@TELLING
def test_a_task_alone_finds_blas_on_one_thread_too():
    before, seen = one_thread._get(), []
    one_thread._set(2)  # its threads would wait for their next call with a core each, and for a core where others work
    try:
        share(lambda *some: seen.append(one_thread._get()), np.zeros((1000, 4)), 1)
        run_each(lambda item: seen.append(one_thread._get()), [0])
        assert one_thread._get() == 2
    finally:
        one_thread._set(before)
    assert seen == [1, 1]


def test_overlapping_users_leave_blas_as_the_first_found_it(threads_of_blas):
    guard, number = threads_of_blas
    inside, leave = threading.Event(), threading.Event()

    def first():
        with guard():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with guard():
        assert number() == 1
    assert number() == 1  # the first is still inside
    leave.set()
    thread.join(10)
    assert number() == 7


def with_interrupt(step, run):
    """run(), with Ctrl-C at the given one of the steps in blas.py where Python looks for it: as a function begins, and
    after one written in C. What came out of it, or None where there was no such step."""
    steps, before = itertools.count(), sys.getprofile()

    def look(frame, event, argument):
        if frame.f_code.co_filename == blas.__file__ and event in ("call", "c_return") and next(steps) == step:
            sys.setprofile(before)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        run()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(before)


def test_interrupted_at_any_step_a_visit_is_over_or_the_next_one_ends_it(threads_of_blas):
    guard, number = threads_of_blas

    def visit():
        with guard():
            assert number() == 1

    steps = left_over = 0
    while error := with_interrupt(steps, visit):
        left_over += number() == 1  # though the traceback is there, as at Python's prompt
        del error
        visit()
        assert number() == 7
        steps += 1
    assert number() == 7 and steps > 8 and left_over == 1


def test_signal_handler_at_any_step_may_make_a_visit(threads_of_blas):
    guard, number = threads_of_blas
    seen = []

    def visit():
        with guard():
            seen.append(number())

    def visit_with_another_at(step):
        steps = itertools.count()

        def look(frame, event, argument):
            if frame.f_code.co_filename == blas.__file__ and next(steps) == step:
                sys.setprofile(None)
                visit()

        sys.setprofile(look)
        visit()
        sys.setprofile(None)

    def visits():
        for step in range(20):
            visit_with_another_at(step)

    thread = threading.Thread(target=visits, daemon=True)  # it may come to wait for itself
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and seen == 40 * [1] and number() == 7 and not guard._inside


def test_a_visit_that_is_over_does_not_stand_in_for_the_next(threads_of_blas):
    guard, number = threads_of_blas
    over = guard()
    with over:
        pass
    with guard():
        assert number() == 1


def test_within_a_visit_a_thread_has_nothing_more_to_do_and_another_thread_has(threads_of_blas):
    guard, number = threads_of_blas
    with guard():
        with guard() as inner:
            assert inner is None and len(guard._inside) == 1
        assert number() == 1
        kinds = []
        thread = threading.Thread(target=lambda: kinds.append(type(guard())))
        thread.start()
        thread.join(10)
        assert kinds == [blas.Visit]
    assert number() == 7 and type(guard()) is blas.Visit


def test_a_fork_inside_comes_out_with_blas_as_it_was(threads_of_blas):
    guard, number = threads_of_blas
    with guard():
        guard.begin()  # what is called in the child
        with guard():
            assert number() == 1
    assert number() == 7


def test_another_blas_is_left_alone(monkeypatch):
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda path: object())  # without the functions of OpenBLAS
    assert blas._openblas() == (None, "", "")
    monkeypatch.setattr(blas, "LIBRARY", None)
    guard = OneThread()
    assert not guard.possible
    with guard():
        pass
    monkeypatch.setattr(one_thread, "possible", False)
    set_num_threads(2)
    shares = []
    share(lambda rows, columns: shares.append((rows, columns)), np.zeros((1000, 4)), DEEP)
    assert shares == [(slice(0, 1000), slice(None))]  # BLAS uses its own threads for all of it


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (1, 1), (1, 700), (127, 3), (255, 256), (1001, 2), (3, 1001)])
@pytest.mark.parametrize("depth", [0, 1, 1 << 14, DEEP])
@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_shares_cover_each_entry_once_along_the_longer_side_and_are_not_small(shape, depth, threads):
    set_num_threads(threads)
    seen, sizes = np.zeros(shape, int), []

    def task(rows, columns):
        seen[rows, columns] += 1
        sizes.append(seen[rows, columns].shape)

    share(task, np.zeros(shape), depth)
    assert (seen == 1).all()
    assert len(sizes) <= threads
    assert len(sizes) <= max(1, np.prod(shape) * depth // WORTH_A_THREAD)
    assert all(min(shape) in size for size in sizes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_product_shared_by_threads_is_the_product_to_the_bit(dtype):
    x, weight, bias, dy = (random(*shape).astype(dtype) for shape in ((7, 131, 96), (96, 160), (160,), (7, 131, 160)))
    results = []
    for threads in 1, 2, 5:
        set_num_threads(threads)
        dweight = np.ones(weight.shape, np.float64 if dtype == np.float64 else np.float32)
        ops.add_weight_gradient(dweight, x, dy)
        results.append([ops.matmul(x, weight, bias), dweight, ops.sum_rows(dy), ops.sum_rows_of_product(dy, dy)])
    for others in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], others))
    tolerance = {np.float16: 1e-2, np.float32: 1e-4, np.float64: 1e-11}[dtype]
    wide = [a.astype(np.float64) for a in (x, weight, bias, dy)]
    np.testing.assert_allclose(results[0][0], wide[0] @ wide[1] + wide[2], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(results[0][1], 1 + np.einsum("bti,bto->io", wide[0], wide[3]), rtol=1e-2, atol=tolerance)


@pytest.mark.parametrize("total", [lambda x: ops.sum_rows(x), lambda x: ops.sum_rows_of_product(x, np.ones_like(x))])
def test_sums_of_many_rows_lose_no_digits(total):
    x = np.full((1_000_000, 3), 0.1, np.float32)
    np.testing.assert_allclose(total(x), 1e6 * float(np.float32(0.1)), rtol=1e-5)
    assert total(np.full((70_000, 3), 1, np.float16)).tolist() == [70_000] * 3  # beyond half precision
    assert total(np.zeros((0, 3))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(5, 6), (700, 130), (7, 100, 130), (1, 80000), (80000, 1), (0, 6)])
def test_sums_of_rows_in_blocks_are_the_sums_of_all_rows(shape):
    x, y = random(*shape), random(*shape, seed=1)
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(ops.sum_rows(x), x.sum(axis=axes), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(ops.sum_rows_of_product(x, y), (x * y).sum(axis=axes), rtol=1e-11, atol=1e-11)


def test_rows_added_to_a_table_add_up_where_an_index_comes_again():
    table, index, x = np.zeros((5, 3)), np.array([[4, 0, 4], [1, 4, 0]]), random(2, 3, 3)
    expected = table.copy()
    np.add.at(expected, index, x)
    ops.add_rows(table, index, x)
    np.testing.assert_allclose(table, expected, rtol=1e-14)


@pytest.mark.parametrize(("asked", "told"), [({}, [(-3, 1 << 30), (-1, 2**31 - 1)]),
                                             ({"TINYENC_RETURN_MEMORY": "1"}, [])])
def test_c_library_is_asked_to_keep_freed_memory_unless_the_environment_says_no(asked, told):
    code = ("import ctypes, sys\n"
            "calls = []\n"
            "class Library:\n"
            "    mallopt = staticmethod(lambda *args: calls.append(args))\n"
            "real = ctypes.CDLL\n"
            "import numpy\n"
            "ctypes.CDLL = lambda name: real(name) if name else Library\n"
            "import tinyenc.parallel\n"
            "print(calls)")
    kept = {key: value for key, value in os.environ.items() if key != "TINYENC_RETURN_MEMORY"}
    out = subprocess.run([sys.executable, "-c", code], env=kept | asked, capture_output=True, text=True, check=True,
                         cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    assert out.stdout.strip() == str(told)


def test_product_is_added_for_all_layouts_that_blas_takes():
    rng = np.random.default_rng(0)
    for i in range(300):
        m, k, n = rng.integers(1, 9, 3)
        dtype = (np.float32, np.float64)[i % 2]
        a, b, out = (laid_out(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        expected = out + a.astype(np.float64) @ b
        taken = gemm_add(out, a, b)
        assert taken or not (one_thread.possible and all(x.flags.c_contiguous for x in (a, b, out)))
        if not taken:
            out += a @ b
        np.testing.assert_allclose(out, expected, rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-5)


def laid_out(rng, shape, dtype):
    """A random matrix: in one piece, transposed, a part of a larger one, every second entry of one, or backwards."""
    m, n = shape
    large = rng.standard_normal((20, 20)).astype(dtype)
    return (large[:m, :n].copy(), large[:n, :m].copy().T, large[1:m + 1, 1:n + 1], large[1:n + 1, 1:m + 1].T,
            large[:m, :2 * n:2], large[:2 * m:2, :n], large[m - 1::-1, :n])[rng.integers(7)]


@TELLING
def test_product_is_added_where_blas_is_asked():
    a, b, out = (np.ones(shape, np.float32) for shape in ((5, 3), (3, 4), (5, 4)))
    assert gemm_add(out, a, b) and (out == 4).all()
    assert gemm_add(out[1:3], a[1:3], b) and (out[1:3] == 7).all() and (out[[0, 3, 4]] == 4).all()
    assert gemm_add(out, np.ones((3, 5), np.float32).T, b[::-1].copy())


def test_what_blas_does_not_take_is_left_alone():
    a, b, out = (np.ones(shape, np.float32) for shape in ((5, 3), (3, 4), (5, 4)))
    read_only, square = out.copy(), np.ones((4, 4), np.float32)
    read_only.flags.writeable = False
    raw = np.zeros(5 * 4 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(5, 4)
    for refused in [(out.astype(np.float16), a, b), (out, a.astype(np.float64), b), (out.T.copy().T, a, b),
                    (out, a, np.ones((3, 8), np.float32)[:, ::2]), (read_only, a, b), (out[:0], a[:0], b),
                    (out, a[:, :0], b[:0]), (out, a, b[::-1]), (out, np.broadcast_to(a[:1], a.shape), b), (raw, a, b),
                    (out, a[1:], b), (out, a, b[:2]), (out, a, b[:, 1:]), (out[None], a, b), (out, a[0], b),
                    (square, square, square), (square, out[:4], square)]:
        before = refused[0].copy()
        assert not gemm_add(*refused)
        assert np.array_equal(refused[0], before)
    assert (out == 1).all()
