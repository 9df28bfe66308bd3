import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from support import gradients, padded_batch, random, small_classifier

from tinyenc import parallel
from tinyenc.parallel import even_step, get_num_threads, in_blocks, rowwise, run_each, set_num_threads


@pytest.fixture(autouse=True)
def threads_as_before():
    threads = get_num_threads()
    yield
    set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_done_once(threads):
    set_num_threads(threads)
    done = []
    run_each(done.append, range(100))
    assert sorted(done) == list(range(100))
    run_each(done.append, [])
    assert len(done) == 100


def test_items_are_done_side_by_side():
    set_num_threads(2)
    both = threading.Barrier(2, timeout=10)  # passed only when two threads are inside at once
    run_each(lambda _: both.wait(), range(2))


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_error_of_any_item_comes_out_and_the_pool_works_on(bad):
    set_num_threads(3)

    def task(item):
        time.sleep(0.001)
        if item == bad:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=f"item {bad}"):
        run_each(task, range(8))
    done = []
    run_each(done.append, range(8))
    assert sorted(done) == list(range(8))


def test_task_may_itself_run_tasks():
    set_num_threads(2)
    done = []
    run_each(lambda i: run_each(lambda j: done.append((i, j)), range(5)), range(4))
    assert sorted(done) == [(i, j) for i in range(4) for j in range(5)]


def test_two_threads_of_the_callers_may_use_it_at_once():
    set_num_threads(2)
    done = [[], []]
    callers = [threading.Thread(target=run_each, args=(done[i].append, range(200))) for i in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=20)
    assert [sorted(d) for d in done] == [list(range(200))] * 2


def test_task_may_wait_for_a_thread_that_runs_tasks():
    """Which finds the pool busy with the task that waits for it, and does its own alone."""
    set_num_threads(2)
    done = []

    def task(i):
        thread = threading.Thread(target=run_each, args=(lambda j: done.append((i, j)), range(3)), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    run_each(task, range(4))
    assert sorted(done) == [(i, j) for i in range(4) for j in range(3)]


def test_thread_that_comes_too_late_finds_nothing_to_do_and_holds_nothing(monkeypatch):
    """Of a pool that takes work and then cannot start a thread for it."""
    class Pool:
        def submit(self, *call):
            late.append(call)
            raise RuntimeError("can't start new thread")

    set_num_threads(3)
    monkeypatch.setattr(parallel, "_pool", Pool())
    late, done = [], []
    item = np.ones(3)
    gone = weakref.ref(item)
    run_each(lambda x: done.append(x.sum()), [item, item, item])
    del item
    for run, *arguments in late:
        run(*arguments)
    assert done == [3, 3, 3] and late and gone() is None


def test_thread_that_outlives_the_main_one_works_on():
    assert printed("""
import threading
from tinyenc.parallel import run_each, set_num_threads

def work():
    threading.main_thread().join()
    done = []
    run_each(done.append, range(5))
    print(sorted(done))

set_num_threads(2)
run_each(print, [])
threading.Thread(target=work).start()
""") == "[0, 1, 2, 3, 4]\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_has_threads_of_its_own():
    set_num_threads(3)
    run_each(lambda _: time.sleep(0.01), range(6))  # the threads are there
    child = os.fork()
    if child == 0:
        done = []
        run_each(done.append, range(20))
        os._exit(0 if sorted(done) == list(range(20)) else 1)
    end = time.monotonic() + 20
    while (finished := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if finished == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert finished == (child, 0)


@pytest.mark.parametrize("n", [0, -1, 1.5, float("inf"), float("nan"), "2"])
def test_fewer_than_one_thread_is_refused(n):
    with pytest.raises(ValueError, match=f"at least 1, got {n}"):
        set_num_threads(n)


@pytest.mark.parametrize(("given", "expected"), [({"TINYENC_NUM_THREADS": "3"}, "3"), ({"OMP_NUM_THREADS": "5"}, "5"),
                                                 ({"TINYENC_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "3")])
def test_environment_sets_the_number_of_threads(given, expected):
    kept = {key: value for key, value in os.environ.items() if not key.endswith("NUM_THREADS")}
    out = printed("from tinyenc.parallel import get_num_threads as n; print(n())", env=kept | given)
    assert out.strip() == expected


def printed(code, env=None):
    """What a process prints that runs these lines, and ends well."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=True, cwd=root, timeout=60).stdout


# K08, G11: what a run computes does not depend on the machine's number of cores
def test_loss_and_gradients_have_the_same_bits_for_any_number_of_threads():
    ids, mask = padded_batch([60, 64, 31, 64], 64)
    results = []
    for threads in 1, 2, 3:
        set_num_threads(threads)
        results.append(gradients(small_classifier(dropout=0.1, d_ff=2048), ids, mask, [0, 1, 2, 1], seed=3))
    for loss, grads in results[1:]:
        assert loss == results[0][0]
        assert all(np.array_equal(grads[name], results[0][1][name]) for name in grads)


@pytest.mark.parametrize(("n", "most", "sizes"), [
    (0, 8, []), (1, 8, [1]), (8, 8, [8]), (9, 8, [5, 4]), (16, 8, [8, 8]), (17, 8, [5, 5, 5, 2]), (3, 1, [1, 1, 1])])
def test_blocks_are_equal_and_of_an_even_number_where_possible(n, most, sizes):
    step = even_step(n, most)
    assert [min(step, n - start) for start in range(0, n, step)] == sizes


@rowwise
def scaled_and_total(x, y, weight, shift=0.0):
    """A formula with everything rowwise knows: a second array of rows, a whole one, a keyword, two results."""
    z = x * y * weight + shift
    return z, z.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(5, 6), (1400, 130), (14, 100, 130), (3, 22, 20, 130), (1, 80000), (80000, 1),
                                   (0, 6)])
def test_formula_in_blocks_is_the_formula_on_the_whole(shape):
    x, y, weight = random(*shape), random(*shape, seed=1), random(shape[-1])
    for actual, expected in zip(scaled_and_total(x, y, weight, shift=0.5),
                                scaled_and_total.formula(x, y, weight, shift=0.5)):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("view", [lambda a: a[:, ::2], lambda a: a.T, np.asfortranarray, lambda a: a[::-1]],
                         ids=["strided", "transposed", "Fortran", "backwards"])
def test_formula_in_blocks_takes_views(view):
    x, y = view(random(500, 400)), view(random(500, 400, seed=1))
    weight = random(x.shape[-1])
    for actual, expected in zip(scaled_and_total(x, y, weight), scaled_and_total.formula(x, y, weight)):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_broadcast_argument_is_passed_whole():
    x = random(1400, 130)
    z, _ = scaled_and_total(x, np.float64(2), random(1, 130))
    np.testing.assert_allclose(z, x * 2 * random(1, 130), rtol=1e-14)


@pytest.mark.parametrize("contiguous", [True, False])
def test_update_in_blocks_changes_the_arrays_themselves(contiguous):
    a, b = random(500, 400), random(500, 400, seed=1)
    if not contiguous:
        a, b = a[:, :300], b[:, :300]
    expected = a + 2 * b

    def update(x, y):
        x += 2 * y

    in_blocks(update, a, b)
    assert np.array_equal(a, expected)


def test_numpys_error_state_is_the_callers_on_every_thread():
    set_num_threads(2)
    seen, meet = {}, threading.Barrier(2, timeout=10)  # so that each thread takes one task

    def task(i):
        meet.wait()
        seen[threading.get_ident()] = np.geterr()["over"]

    with np.errstate(over="raise"):
        run_each(task, range(2))
    assert list(seen.values()) == ["raise", "raise"]
