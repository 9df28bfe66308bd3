"""One run on one GPU, of less than four minutes: is what tinyenc computes there right, and how fast is it?

    python benchmarks/gpu.py [--json FILE]

Every layer on the GPU against the CPU, and its gradients against differences on the GPU, in float64; the softmax kernel
against float64, over random shapes. Then its bandwidth beside a device copy's, its time beside CuPy's unfused form and
PyTorch's (where that is installed), and training steps beside PyTorch's, all in this one run.
"""

import argparse
import copy
import json
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc and its gradient cases, where they are not installed

import numpy as np
from workload import CLASSES, DROPOUT, PRESETS, VOCAB, make_batch

import tinyenc
from gradcheck.completeness import all_cases
from tinyenc import backend
from tinyenc.attention.layout import Packing
from tinyenc.distance import RelativeBias
from tinyenc.kernels import masked_softmax
from tinyenc.optim import AdamW

SHAPE = 32, 12, 512, 512
ON_THE_HOST = "padding-row"  # a case whose layer has arrays of its own


# Is it right?


def cases():
    """The cases of the gradient checks that a GPU has: packed batches are for the CPU."""
    return [case for case in all_cases() if not isinstance(case.mask, Packing) and case.name != ON_THE_HOST]


def run(case, device, seed=None, step=0.0):
    """Forward and backward in float64, where inputs and weights have moved by step along directions of their own.

    Returns y, dy, the gradients, and the directions, of the inputs first and then of the weights.
    """
    rng = np.random.default_rng(0)
    directions, placed = {}, {}

    def moved(x):
        directions[id(x)] = rng.standard_normal(x.shape)
        return x.astype(np.float64) + step * directions[id(x)]

    def place(x):
        if isinstance(x, RelativeBias):
            return RelativeBias(backend.to_device(x.diagonals, device), x.learnt)
        if not isinstance(x, np.ndarray) or x.ndim == 1 and x.dtype.kind in "iu":  # places of tokens stay on the host
            return x
        if id(x) not in placed:  # one array given twice is one array: self-attention
            placed[id(x)] = backend.to_device(moved(x) if x.dtype.kind == "f" else x, device)
        return placed[id(x)]

    layer = copy.deepcopy(case.layer).astype(np.float64)
    inputs = [place(x) for x in case.inputs]
    named = {name: place(x) for name, x in {"mask": case.mask, **(case.named or {})}.items() if x is not None}
    weights = [p.data for p in layer.parameters()]
    for p in layer.parameters():
        p.data = moved(p.data)
    layer.to(device)
    tape = tinyenc.Tape(seed)
    y = layer.forward(*inputs, **named, tape=tape)
    dy = rng.standard_normal(y.shape)
    dx = layer.backward(backend.to_device(dy, device), tape)
    dx = [x for x in (dx if isinstance(dx, tuple) else (dx,)) if x is not None]
    gradients = [backend.to_host(g) for g in (*dx, *(p.grad for p in layer.parameters()))]
    directions = [directions[id(x)] for x in (*case.inputs, *weights) if id(x) in directions]
    return backend.to_host(y), dy, gradients, directions


def relative(actual, expected):
    """|actual - expected| / |expected|, both as one vector; absolute where expected is small."""
    norm = np.linalg.norm
    return float(norm((actual - expected).ravel()) / max(1.0, norm(expected.ravel())))


def check_layer(case):
    """The largest relative difference of y and of any gradient between the GPU and the CPU, without dropout."""
    (y, _, gradients, _), (y_cpu, _, gradients_cpu, _) = run(case, "gpu"), run(case, "cpu")
    return max(relative(a, b) for a, b in zip([y, *gradients], [y_cpu, *gradients_cpu], strict=True))


def check_gradients(case, h=1e-6):
    """The relative difference between the slope that backward gives on the GPU and the one of two forwards, dropout on;
    0 where the case stands on a kink."""
    _, dy, gradients, directions = run(case, "gpu", case.seed)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    above, here, below = ((run(case, "gpu", case.seed, step)[0] * dy).sum() for step in (h, 0, -h))
    if abs(above - 2 * here + below) > 1e-3 * h * max(1, abs(slope)):
        return 0.0
    return float(abs(slope - (above - below) / (2 * h)) / max(1, abs(slope)))


def fuzz_kernel(xp, n, dtype, largest=4096):
    """The largest relative error of n forwards and backwards of the softmax kernel, of random shapes and masks."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for seed in range(n):
        keys = int(math.exp(rng.uniform(0, math.log(largest))))
        shape = (*map(int, rng.integers(1, 4, 2)), int(rng.integers(1, 9)), keys)
        scores, ddropped = (xp.asarray(rng.normal(size=shape, scale=size).astype(dtype)) for size in (8, 1))
        mask = xp.asarray(rng.random([size if rng.random() < 0.5 else 1 for size in shape]) < 0.7)
        p = 0.2 * (seed % 2)
        weights, dropped = masked_softmax.forward(scores, mask, 0.3, p, seed)
        dscores = masked_softmax.backward(ddropped, weights, 0.3, p, seed)
        expected = unfused_forward(xp, scores.astype(np.float64), mask, 0.3)
        gains = masked_softmax.drop(xp.ones(shape, np.float64), p, seed)
        dweights = ddropped.astype(np.float64) * gains
        pairs = [(weights, expected), (dropped, expected * gains),
                 (dscores, unfused_backward(dweights, weights.astype(np.float64), 0.3))]
        worst = max(worst, *(relative(a.get().astype(np.float64), b.get()) for a, b in pairs))
    return worst


# How fast?


def unfused_forward(xp, scores, mask, scale):
    """The softmax as CuPy runs it, operator by operator."""
    x = xp.where(mask, scores * scale, -math.inf).astype(scores.dtype)
    top = x.max(axis=-1, keepdims=True)
    powers = xp.exp(x - xp.where(xp.isfinite(top), top, 0).astype(x.dtype))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / xp.where(total == 0, 1, total).astype(x.dtype)


def unfused_backward(dweights, weights, scale):
    """Its gradient, operator by operator."""
    return weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) * scale


def seconds(xp, task, repeats=20):
    """The median time of a task on the device."""
    for _ in range(3):
        task()
    times = []
    for _ in range(repeats):
        start, stop = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        task()
        stop.record()
        stop.synchronize()
        times.append(xp.cuda.get_elapsed_time(start, stop) / 1000)
    return statistics.median(times)


def kernel_rows(xp, shape, torch=None):
    """A row of the table for each dtype and pass: its bandwidth over a device copy's, and its time over others'."""
    rows = []
    for dtype in (np.float16, np.float32):
        scores = xp.asarray(np.random.default_rng(0).standard_normal(shape[1:], np.float32).astype(dtype))
        scores = xp.concatenate([scores[None]] * shape[0])
        other, mask = scores.copy(), xp.asarray(np.arange(shape[-1]) < np.linspace(1, shape[-1], shape[0])[:, None])
        mask = mask[:, None, None]
        copied = 2 * scores.nbytes / seconds(xp, lambda a=other, b=scores: xp.copyto(a, b))
        weights, _ = masked_softmax.forward(scores, mask, 0.125)
        passes = {
            "forward": (2, lambda s=scores, m=mask: masked_softmax.forward(s, m, 0.125),
                        lambda s=scores, m=mask: unfused_forward(xp, s, m, 0.125)),
            "forward, dropout": (3, lambda s=scores, m=mask: masked_softmax.forward(s, m, 0.125, 0.1, 1), None),
            "backward": (3, lambda d=other, w=weights: masked_softmax.backward(d, w, 0.125),
                         lambda d=other, w=weights: unfused_backward(d, w, 0.125)),
        }
        theirs = torch_softmax(torch, scores, mask, other) if torch else {}
        for name, (arrays, ours, unfused) in passes.items():
            took = seconds(xp, ours)
            rows.append({
                "what": f"softmax {name}, {np.dtype(dtype).name}",
                "bandwidth / copy": arrays * scores.nbytes / took / copied,
                "time / unfused CuPy": took / seconds(xp, unfused) if unfused else None,
                "time / PyTorch": took / seconds(xp, theirs[name]) if name in theirs else None,
            })
    return rows


def torch_softmax(torch, scores, mask, dweights):
    """PyTorch's masked softmax on the same arrays: {"forward": task, "backward": task}."""
    s, m, d = (torch.from_dlpack(x) for x in (scores, mask, dweights))
    s.requires_grad_()

    def forward():
        return (s * 0.125).masked_fill(~m, -math.inf).softmax(-1)

    weights = forward()
    return {"forward": torch.no_grad()(forward),
            "backward": lambda: torch.autograd.grad(weights, s, d, retain_graph=True)}


def training_rows(xp, torch=None, presets=PRESETS):
    """A row for each preset: a training step in float32, and its time over PyTorch's."""
    rows = []
    for name, preset in presets.items():
        ids, mask, labels = make_batch(preset, "full")
        encoder = tinyenc.Encoder(VOCAB, preset.d_model, preset.n_heads, 4 * preset.d_model, preset.n_layers,
                                  dropout=DROPOUT, rng=0)
        model = tinyenc.Classifier(encoder, CLASSES, dropout=DROPOUT, rng=1).to("gpu")
        optimizer, loss_fn = AdamW(model, 1e-4), tinyenc.CrossEntropy()

        def step(model=model, optimizer=optimizer, loss_fn=loss_fn, ids=ids, mask=mask, labels=labels):
            tape = tinyenc.Tape(seed=optimizer.n_steps)
            loss_fn.forward(model.forward(ids, mask, tape), labels, tape)
            model.backward(loss_fn.backward(1.0, tape), tape)
            optimizer.step(max_norm=1.0)
            model.zero_grad()

        took = seconds(xp, step)
        theirs = seconds(xp, torch_step(torch, preset, ids, labels)) if torch else None
        rows.append({"what": f"training step, {name}", "milliseconds": 1000 * took,
                     "time / PyTorch": took / theirs if torch else None})
    return rows


def torch_step(torch, preset, ids, labels):
    """The same training step in PyTorch, in float32."""
    from torch_models import KINDS, TorchClassifier

    model = TorchClassifier(KINDS["hand-written"], preset, DROPOUT).cuda()
    optimizer = torch.optim.AdamW(model.groups(), 1e-4, fused=True)
    ids, labels = torch.from_numpy(ids), torch.from_numpy(labels)

    def step():
        loss = torch.nn.functional.cross_entropy(model(ids.cuda(), None), labels.cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# The run


def table(rows):
    """The rows as Markdown; a column for everything that any of them has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[show(row.get(column)) for column in columns] for row in [dict(zip(columns, columns)), *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def show(value):
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1e}"


def checks(xp):
    """A row for each check: how many cases, and the worst of their relative errors."""
    rows = []
    for what, check, chosen in (
        ("layers, GPU against CPU", check_layer, cases()),
        ("gradients on the GPU, dropout on", check_gradients, [c for c in cases() if c.seed is not None]),
    ):
        errors = {f"{type(case.layer).__name__} [{case.name}]": check(case) for case in chosen}
        worst = max(errors, key=errors.get)
        rows.append({"what": what, "cases": str(len(errors)), "worst error": errors[worst], "where": worst})
    for dtype in (np.float64, np.float32, np.float16):
        rows.append({"what": f"softmax kernel against float64, {np.dtype(dtype).name}", "cases": "40",
                     "worst error": fuzz_kernel(xp, 40, dtype)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the rows as a list of objects")
    args = parser.parse_args()
    try:
        xp = backend.cupy()
    except RuntimeError as error:
        sys.exit(f"gpu.py: {error}")
    try:
        import torch
        torch = torch if torch.cuda.is_available() else None
    except ImportError:
        torch = None
    start = time.perf_counter()
    name = xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{name}, CuPy {xp.__version__}, PyTorch {torch.__version__ if torch else 'not used'}\n", flush=True)
    rows = []
    for part in (lambda: checks(xp), lambda: kernel_rows(xp, SHAPE, torch), lambda: training_rows(xp, torch)):
        found = part()
        rows += found
        print(table(found), f"\n{time.perf_counter() - start:.0f} s\n", flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps({"device": name, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
