"""Plants faults in every backward, one at a time, and shows that the cases catch each.

`python -m gradcheck.planted_faults` prints every fault that was not caught and, last, `caught N of N`; exit status 1
where one was missed. Words after the command choose the functions whose name holds one of them.
"""

import multiprocessing
import os
import signal
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core, so one thread a process

import numpy as np  # noqa: E402

from tinyenc import parallel  # noqa: E402

from .completeness import all_cases  # noqa: E402
from .equivalents import EQUIVALENT  # noqa: E402
from .mutate import mutants, targets  # noqa: E402

SECONDS = 30  # a fault that makes a case run longer than this is caught, too


class Bench:
    """The cases with their differences, computed once, and which of them run which function."""

    def __init__(self, cases, chosen):
        self.users = {target.name: [] for target in chosen}
        names = {target.function.__code__: target.name for target in chosen}
        timed = []
        for case in cases:
            check = case.checker()
            ran = {names[code] for code in code_run_by(check.probe.analytic) if code in names}
            if ran:
                begin = time.perf_counter()
                if not check.holds():
                    raise SystemExit(f"{type(case.layer).__name__} [{case.name}] fails without any fault: "
                                     "pytest gradcheck first")
                timed.append((time.perf_counter() - begin, case.name, check, ran))
        for _, name, check, ran in sorted(timed, key=lambda entry: entry[0]):  # quick cases first
            for function in ran:
                self.users[function].append((name, check))

    def catches(self, mutant):
        """The name of the first case that fails with this fault, or None."""
        function = mutant.target.function
        right = function.__code__
        function.__code__ = mutant.code
        try:
            return next((name for name, check in self.users[mutant.target.name] if fails(check)), None)
        finally:
            function.__code__ = right


def fails(check):
    def too_long(signum, frame):
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return not check.holds()
    except Exception:  # whatever a fault leads to, it shows
        return True
    finally:
        signal.alarm(0)


def code_run_by(function):
    """Every code object that runs in a call of function, on one thread."""
    codes = set()
    sys.setprofile(lambda frame, event, arg: codes.add(frame.f_code) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return codes


def run(chosen, cases, processes=1, every=1):
    """(fault, the case that catches it or None) for every fault, or each so many, in the functions chosen."""
    threads = parallel.get_num_threads()
    parallel.set_num_threads(1)
    try:
        faults = [mutant for target in chosen for mutant in mutants(target)][::every]
        bench = Bench(cases, chosen)
        if processes == 1:
            return [(mutant.name, bench.catches(mutant)) for mutant in faults]
        global _work
        _work = bench, faults  # workers are forks: they find the bench as it is, and nothing is sent to them
        with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:  # one fault, one fork:
            caught = pool.map(_catch, range(len(faults)), chunksize=1)  # what it overwrites does not reach the next
        return [(mutant.name, case) for mutant, case in zip(faults, caught)]
    finally:
        parallel.set_num_threads(threads)


def _catch(index):
    bench, faults = _work
    return bench.catches(faults[index])


def complaints(results, complete):
    """What is wrong with the results, one line each; complete says that no function was left out."""
    for name, case in results:
        if case is None and name not in EQUIVALENT:
            yield f"not caught: {name}"
        if case is not None and name in EQUIVALENT:
            yield f"equivalents.py says that it changes nothing, but [{case}] catches it: {name}"
    if complete:
        planted = {name for name, _ in results}
        yield from (f"equivalents.py names what is no longer there: {name}" for name in set(EQUIVALENT) - planted)


def main(words):
    begin = time.perf_counter()
    names = [target.name for target in targets()]
    strange = [word for word in words if not any(word in name for name in names)]
    if strange:
        print(f"no function's name holds {', '.join(map(repr, strange))}; the first of {len(names)} is {names[0]}")
        return 2
    chosen = [target for target in targets() if not words or any(word in target.name for word in words)]
    results = run(chosen, all_cases(), processes=len(os.sched_getaffinity(0)))
    found = list(complaints(results, complete=not words))
    for line in found:
        print(line)
    faults = [case for name, case in results if name not in EQUIVALENT]
    print(f"{len(chosen)} functions; {len(results) - len(faults)} faults aside that change no derivative: "
          "gradcheck/equivalents.py gives the reasons")
    print(f"caught {sum(case is not None for case in faults)} of {len(faults)} in {time.perf_counter() - begin:.0f} s")
    return 1 if found or not faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
