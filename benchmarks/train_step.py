"""tinyenc and PyTorch side by side: time and memory of a training step and of inference.

    python benchmarks/train_step.py [--preset NAME] [--task train|infer] [--kind full|ragged] [--json FILE]

Both train the same classifier (pre-LN encoder, exact GELU, dropout 0.1, mean pooling, AdamW) on the same batch in
float32, with as many threads, in processes of their own that take turns. PyTorch runs twice, written by hand around
scaled_dot_product_attention and as nn.TransformerEncoderLayer; the faster of the two is compared with.

Ratios are tinyenc's figure divided by PyTorch's, below 1 where tinyenc needs less: the median over the rounds, and in
brackets the quartiles. "products" is the share of tinyenc's time that its matrix products alone take. "loss" is the
largest difference between the two losses, from the same weights without dropout.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

from sides import Agreement, Process, TinyencSide, TorchSide
from workload import PRESETS

LAYERS = "hand-written", "nn.TransformerEncoderLayer"  # PyTorch's two forms
TURN = 0.5  # seconds of work before the other side has its turn


def compare(preset, task, kind, rounds, clock):
    """One row of the table, as a dict."""
    sides = [Process(TinyencSide, preset, kind, task)]
    sides += [Process(TorchSide, layer, preset, kind, task) for layer in LAYERS]
    try:
        steps = []
        for side in sides:
            side.ask("seconds", 2)  # the first steps make the optimiser's arrays and warm the caches
            steps.append(max(1, round(TURN / side.ask("seconds", 1))))
        memory = [side.ask("peak_bytes") for side in sides]  # all of a step's, and nothing of the products'
        times = [[] for _ in sides]
        products = []  # on tinyenc's side, right after its steps
        for turn in range(rounds):
            for i in sorted(range(len(sides)), reverse=turn % 2):
                time.sleep(0.05)  # until the idle threads of the side before have stopped spinning
                times[i].append(sides[i].ask("seconds", steps[i], clock))
                if i == 0:
                    products.append(sides[0].ask("products", steps[0], clock))
        ours, *theirs = times
    finally:
        for side in sides:
            side.__exit__()

    fastest = min((0, 1), key=lambda i: statistics.median(theirs[i]))
    ratios = [a / b for a, b in zip(ours, theirs[fastest])]
    low, middle, high = statistics.quantiles(ratios, n=4)
    with Process(Agreement) as both:
        difference = both.ask("largest_difference", LAYERS[fastest], preset, kind, task)
    return {
        "preset": preset, "task": task, "kind": kind, "time_ratio": middle, "time_ratio_quartiles": [low, high],
        "memory_ratio": memory[0] / memory[1 + fastest],
        "products_share": statistics.median(a / b for a, b in zip(products, ours)),
        "loss_difference": difference, "against": LAYERS[fastest], "seconds": statistics.median(ours),
        "bytes": memory[0],
    }


def row(r):
    low, high = r["time_ratio_quartiles"]
    return (f"| {r['preset']:6} | {r['task']:5} | {r['kind']:6} | {r['time_ratio']:.2f} [{low:.2f}, {high:.2f}] | "
            f"{r['memory_ratio']:6.2f} | {r['products_share']:8.0%} | {r['loss_difference']:7.1e} | {r['against']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS)
    parser.add_argument("--task", choices=["train", "infer"])
    parser.add_argument("--kind", choices=["full", "ragged"])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default 9)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each side (default all)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu, with --threads 1: processor time, which other work on the machine disturbs less")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as a list of objects")
    args = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = os.environ["TINYENC_NUM_THREADS"] = str(args.threads)
    print(f"{args.threads} threads; {os.getloadavg()[0]:.1f} other processes busy at the start\n")
    print("| preset | task  | kind   | time              | memory | products | loss    | PyTorch's faster form |\n"
          "|--------|-------|--------|-------------------|--------|----------|---------|-----------------------|")
    rows = []
    for preset in [args.preset] if args.preset else PRESETS:
        for task in [args.task] if args.task else ("train", "infer"):
            for kind in [args.kind] if args.kind else ("full", "ragged"):
                rows.append(compare(preset, task, kind, args.rounds, args.clock))
                print(row(rows[-1]), flush=True)
                if args.json:
                    Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
