"""Attention cores side by side from 128 to 16,384 tokens: the time and the memory of one forward and backward.

    python benchmarks/attention.py [--lengths N ...] [--rounds N] [--clock wall|cpu] [--json FILE] [--picture FILE]

Every core attends with 8 heads of width 64, in float32, within sequences of one length: as many as make 4,096 tokens,
at least one. Each runs in a process of its own, and they take turns; "PyTorch" is its scaled_dot_product_attention.

Figures are ratios to the plain core, below 1 where less is needed: of the time, the median over the rounds; of the
memory, the most that is needed beyond the inputs. The line below the table says to which power of the length the time
of a sequence grows.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

import numpy as np
from sides import Process, Side

HEADS, WIDTH, TOKENS = 8, 64, 4096
WINDOW = 128
LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
NAMES = ["plain", "tiled", "window", "linear", "PyTorch"]
TURN = 0.3  # seconds of work before the other side has its turn
PICTURE = Path(__file__).parent / "results" / "attention.png"


class Attention(Side):
    """A core at work on sequences of one length: a subclass makes `step` from the arrays."""

    def __init__(self, name, length):
        self.run(name, *arrays(1, 16))  # whatever a library makes at its first call
        inputs = arrays(max(1, TOKENS // length), length)
        self.step = lambda: self.run(name, *inputs)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak of resident memory begins anew, at what is resident
        self.at_first = self.peak_bytes()

    def extra_bytes(self):
        """The most memory a step needs beyond its inputs."""
        return self.peak_bytes() - self.at_first


class Tinyenc(Attention):
    def run(self, name, q, k, v, dy):
        from tinyenc import Tape
        from tinyenc.attention import DotProduct, LinearAttention, SlidingWindow, Tiled
        from tinyenc.attention.per_sequence import PerSequence

        cores = {"plain": DotProduct(), "tiled": Tiled(), "window": SlidingWindow(WINDOW), "linear": LinearAttention()}
        core, tape = PerSequence(cores[name]), Tape()
        core.forward(q, k, v, tape=tape)
        core.backward(dy, tape)


class PyTorch(Attention):
    def run(self, name, *inputs):
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        *qkv, dy = map(torch.from_numpy, inputs)
        for x in qkv:
            x.requires_grad_()
        torch.nn.functional.scaled_dot_product_attention(*qkv).backward(dy)


def arrays(batch, length):
    """Queries, keys, values and the gradient of the result, (B, H, T, K), in memory (B, T, H, K) as heads are split."""
    rng = np.random.default_rng(0)
    shape = 4, batch, length, HEADS, WIDTH
    return list(rng.standard_normal(shape, np.float32).swapaxes(2, 3))


def compare(length, rounds, clock):
    """{name: its seconds, bytes, and ratios} for one length; not of the plain core, where memory does not suffice."""
    names = [name for name in NAMES if name != "plain" or plain_bytes(length) < available_bytes()]
    sides = {name: Process(PyTorch if name == "PyTorch" else Tinyenc, name, length) for name in names}
    try:
        steps, times = {}, {name: [] for name in names}
        for name, side in sides.items():
            side.ask("seconds", 1)
            steps[name] = max(1, round(TURN / side.ask("seconds", 1)))
        for turn in range(rounds):
            for name in names if turn % 2 else reversed(names):
                time.sleep(0.05)  # until the idle threads of the side before have stopped spinning
                times[name].append(sides[name].ask("seconds", steps[name], clock))
        memory = {name: side.ask("extra_bytes") for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.__exit__()
    plain = times.get("plain", [math.nan] * rounds)
    return {name: {"seconds": statistics.median(times[name]),
                   "time_ratio": statistics.median(a / b for a, b in zip(times[name], plain)),
                   "bytes": memory[name],
                   "memory_ratio": memory[name] / memory.get("plain", math.nan)} for name in names}


def plain_bytes(length):
    """What the plain core needs: the weights of every head, and a few arrays like them for the heads at work."""
    return max(1, TOKENS // length) * length**2 * 4 * (HEADS + 8)


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def exponent(results, name):
    """The slope of log(seconds of a sequence) over log(length), from 1,024 tokens on."""
    points = [(length, row[name]["seconds"] / max(1, TOKENS // length))
              for length, row in results.items() if length >= 1024 and name in row]
    return np.polyfit(*np.log(points).T, 1)[0] if len(points) > 1 else math.nan


def draw(results, file):
    """Save the picture: milliseconds of a sequence, and megabytes, over the length."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
    for name in NAMES:
        rows = [(length, row[name]) for length, row in results.items() if name in row]
        lengths = [length for length, _ in rows]
        each = [max(1, TOKENS // length) for length in lengths]
        style = dict(marker="o", linestyle="--" if name == "PyTorch" else "-", label=name)
        axes[0].plot(lengths, [1e3 * r["seconds"] / n for (_, r), n in zip(rows, each)], **style)
        axes[1].plot(lengths, [max(r["bytes"], 2**20) / 2**20 / n for (_, r), n in zip(rows, each)], **style)
    for axis, title in zip(axes, ("milliseconds", "MiB beyond the inputs")):
        axis.set(xscale="log", yscale="log", xlabel="tokens in a sequence", title=f"{title}, forward and backward")
        axis.set_xticks(list(results), [f"{length:,}" for length in results], rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.tight_layout()
    Path(file).parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each core (default 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each core (default all)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: processor time, with --threads 1, on a machine with other work (default wall)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as an object")
    parser.add_argument("--picture", metavar="FILE", default=PICTURE)
    args = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = os.environ["TINYENC_NUM_THREADS"] = str(args.threads)
    print(f"{args.threads} threads; {os.getloadavg()[0]:.1f} other processes busy at the start; window of {WINDOW}\n")
    print("| tokens | " + " | ".join(f"{name + ' time, memory':20}" for name in NAMES) + " |\n"
          "|--------|" + f"{'-' * 22}|" * len(NAMES))
    results = {}
    for length in sorted(args.lengths):
        row = results[length] = compare(length, args.rounds, args.clock)
        cells = [f"{row[name]['time_ratio']:8.2f}x {row[name]['memory_ratio']:8.3f}x" if name in row
                 else f"needs {plain_bytes(length) / 2**30:.0f} GiB" for name in NAMES]
        print(f"| {length:6} | " + " | ".join(f"{cell:20}" for cell in cells) + " |", flush=True)
    print("\ntime grows as length to the power of " +
          ", ".join(f"{exponent(results, name):.2f} ({name})" for name in NAMES))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    draw(results, args.picture)
    print(f"picture: {args.picture}")


if __name__ == "__main__":
    main()
