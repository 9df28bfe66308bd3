"""What each trick of speed gives: a training step without it, divided by the step as it is.

    python benchmarks/tricks.py [--preset NAME] [--kind full|ragged] [--rounds N]

Each trick is taken away in a process of its own, and all take turns; above 1, the trick saves time or memory.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

from sides import Process, TinyencSide
from workload import PRESETS

NEVER = 1 << 60  # bytes or scores that no array has


class WholeArrays(TinyencSide):
    """Formulas on whole arrays, one operator after the other, on one thread."""

    def __init__(self, *args):
        from tinyenc import parallel
        parallel.BLOCK_BYTES = NEVER
        super().__init__(*args)


class BlasThreads(TinyencSide):
    """Matrix products left to the threads of BLAS."""

    def __init__(self, *args):
        from tinyenc.blas import one_thread
        one_thread.possible = False
        super().__init__(*args)


class WholeBatches(TinyencSide):
    """Attention over the whole batch at once."""

    def __init__(self, *args):
        from tinyenc.attention import per_sequence
        per_sequence.SCORES = NEVER
        super().__init__(*args)


class EqualLengths(TinyencSide):
    """Only sequences of one length together in attention."""

    def __init__(self, *args):
        from tinyenc.attention import per_sequence
        per_sequence.WASTED = 0
        super().__init__(*args)


class AddedByNumpy(TinyencSide):
    """Bias and weight gradients added after the product."""

    def __init__(self, *args):
        from tinyenc import ops
        ops.gemm_add = lambda out, a, b: False
        super().__init__(*args)


class MemoryReturned(TinyencSide):
    """Freed memory given back to the system, as the C library would."""

    def __init__(self, *args):
        os.environ["TINYENC_RETURN_MEMORY"] = "1"
        super().__init__(*args)


class PaddingComputed(TinyencSide):
    """Padding computed like tokens, and masked in attention."""

    def __init__(self, *args):
        from tinyenc import encoder
        encoder.has_holes = lambda tokens: True  # the layout that computes padding is also that of batches with holes
        super().__init__(*args)


class AddAt(TinyencSide):
    """The gradient of the embedding by NumPy's add.at."""

    def __init__(self, *args):
        import numpy as np

        from tinyenc.layers import embedding
        embedding.add_rows = np.add.at
        super().__init__(*args)


TRICKS = {
    "blocks that fit in cache, on all threads": WholeArrays,
    "products shared out, BLAS on one thread each": BlasThreads,
    "attention a few sequences at a time": WholeBatches,
    "sequences of like length together in attention": EqualLengths,
    "bias and gradients added by BLAS": AddedByNumpy,
    "freed memory kept": MemoryReturned,
    "padding packed away": PaddingComputed,
    "embedding gradient row by row, not add.at": AddAt,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--kind", choices=["full", "ragged"], default="ragged")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))
    sides = [Process(kind, args.preset, args.kind, "train") for kind in (TinyencSide, *TRICKS.values())]
    try:
        for side in sides:
            side.ask("seconds", 2)
        times = [[] for _ in sides]
        for turn in range(args.rounds):
            for i in sorted(range(len(sides)), reverse=turn % 2):
                time.sleep(0.05)
                times[i].append(sides[i].ask("seconds", 2, args.clock))
        memory = [side.ask("peak_bytes") for side in sides]
    finally:
        for side in sides:
            side.__exit__()

    print(f"{args.preset}, {args.kind}\n\n| {'without':52} | time | peak memory |\n|{'-' * 54}|------|-------------|")
    for name, without, peak in zip(TRICKS, times[1:], memory[1:]):
        ratio = statistics.median(a / b for a, b in zip(without, times[0]))
        print(f"| {name:52} | {ratio:4.2f} | {peak / memory[0]:11.2f} |")


if __name__ == "__main__":
    main()
