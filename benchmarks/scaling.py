"""How the cost of a training step grows with batch, length, depth, width and the number of threads.

    python benchmarks/scaling.py [--picture FILE]

One size is varied at a time, over a factor of 8, from a small encoder; the step's time grows as that size to the power
in the last column. Batch and depth: 1 would be linear. Length: attention makes it grow faster in the end. Width: the
matrix products grow with its square. --picture draws the curves (needs matplotlib).
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

from sides import Process, TinyencSide
from workload import Preset

START = Preset(n_layers=2, n_heads=4, d_model=256, batch=8, length=64)
SIZES = {
    "batch": [START._replace(batch=n) for n in (8, 16, 32, 64)],
    "length": [START._replace(length=n) for n in (64, 128, 256, 512)],
    "n_layers": [START._replace(n_layers=n) for n in (1, 2, 4, 8)],
    "d_model": [START._replace(d_model=n, n_heads=n // 64) for n in (128, 256, 512, 1024)],
}
THREADS_AT = Preset(6, 8, 512, 16, 128)


def seconds(presets, rounds, clock, threads=None):
    """The least seconds of a training step of each preset, measured in turns."""
    os.environ["TINYENC_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads or len(os.sched_getaffinity(0)))
    sides = [Process(TinyencSide, preset, "full", "train") for preset in presets]
    try:
        for side in sides:
            side.ask("seconds", 2)
        turns = []
        for _ in range(rounds):
            turns.append([side.ask("seconds", 2, clock) for side in sides])
            time.sleep(0.05)
        return [min(times) for times in zip(*turns)]
    finally:
        for side in sides:
            side.__exit__()


def exponent(sizes, times):
    """The slope of log(time) against log(size)."""
    x, y = ([math.log(v) for v in values] for values in (sizes, times))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def draw(curves, path):
    """Time against size, both in units of the first, on logarithmic axes."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    for name, (sizes, times) in curves.items():
        axes.loglog([s / sizes[0] for s in sizes], [t / times[0] for t in times], "o-", label=name)
    axes.loglog([1, 8], [1, 8], "k:", label="linear")
    axes.set_xlabel("size, in units of the smallest")
    axes.set_ylabel("time of a training step, in units of the first")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each size (default 5)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--picture", metavar="FILE")
    args = parser.parse_args()

    print("| size     | from | to   | time, in units of the first | exponent |\n"
          "|----------|------|------|-----------------------------|----------|")
    curves = {}
    for name, presets in SIZES.items():
        sizes = [getattr(preset, name) for preset in presets]
        times = seconds(presets, args.rounds, args.clock)
        curves[name] = sizes, times
        growth = "  ".join(f"{t / times[0]:.2f}" for t in times)
        print(f"| {name:8} | {sizes[0]:4} | {sizes[-1]:4} | {growth:27} | {exponent(sizes, times):8.2f} |", flush=True)
    if args.picture:
        draw(curves, args.picture)

    one, two = (seconds([THREADS_AT], args.rounds, "wall", n)[0] for n in (1, 2))
    print(f"\na second thread makes a medium step {one / two:.2f} times as fast")


if __name__ == "__main__":
    main()
