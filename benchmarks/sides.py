"""The two sides of a comparison, each in a process of its own that answers one question at a time.

    with Process(TinyencSide, preset, kind, task) as ours, Process(TorchSide, ...) as theirs:
        ours.ask("seconds", 3), theirs.ask("seconds", 3)

Two libraries in one process would share memory, and each other's idle threads.
"""

import multiprocessing
import os
import time
import traceback

from workload import CLASSES, DROPOUT, PRESETS, VOCAB, make_batch

LR = 1e-4


class Process:
    """side(*args) living in a fresh process; ask(name, ...) calls its method of that name there."""

    def __init__(self, side, *args):
        context = multiprocessing.get_context("spawn")  # fork would hand down this process's memory
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, side, args), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, name, *args):
        """What the side answers; RuntimeError with its traceback where it fails."""
        try:
            self.connection.send((name, args))
            error, answer = self.connection.recv()
        except (EOFError, BrokenPipeError):
            self.process.join()
            raise RuntimeError(f"a benchmark process died, exit code {self.process.exitcode}") from None
        if error:
            raise RuntimeError(f"a benchmark process failed:\n{error}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.connection.close()  # the process ends when it finds nobody to answer
        self.process.join()


def serve(connection, side, args):
    """Make the side, then answer questions until nobody asks."""
    made = None
    while True:
        try:
            name, question = connection.recv()
        except EOFError:
            return
        try:
            made = made or side(*args)
            connection.send((None, getattr(made, name)(*question)))
        except Exception:
            connection.send((traceback.format_exc(), None))


def mean_seconds(function, n, clock):
    """Mean seconds of a call, over n of them, by the "wall" clock or of the processor ("cpu")."""
    now = time.perf_counter if clock == "wall" else time.process_time
    start = now()
    for _ in range(n):
        function()
    return (now() - start) / n


class Side:
    """One library at work on one preset: a subclass makes `step`, which runs once and returns the loss."""

    def seconds(self, n, clock="wall"):
        """Mean seconds of a step, over n of them."""
        return mean_seconds(self.step, n, clock)

    def peak_bytes(self):
        """The most memory the process has had resident."""
        try:
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
        except FileNotFoundError:
            import resource
            import sys
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak if sys.platform == "darwin" else peak * 1024


class TinyencSide(Side):
    def __init__(self, preset, kind, task, dropout=DROPOUT):
        import tinyenc
        from tinyenc.optim import AdamW

        self.preset = preset = PRESETS.get(preset, preset)  # a name, or a Preset
        ids, mask, labels = make_batch(preset, kind)
        encoder = tinyenc.Encoder(VOCAB, preset.d_model, preset.n_heads, 4 * preset.d_model, preset.n_layers,
                                  dropout=dropout, rng=0)
        self.model = model = tinyenc.Classifier(encoder, CLASSES, dropout=dropout, rng=1)
        loss_fn = tinyenc.CrossEntropy()
        self.task = task
        self.lengths = [preset.length] * preset.batch if mask is None else mask.sum(1).tolist()

        def infer():
            return float(loss_fn(model(ids, mask), labels))

        def train():
            tape = tinyenc.Tape(seed=optimizer.n_steps)
            loss = loss_fn.forward(model.forward(ids, mask, tape), labels, tape)
            model.backward(loss_fn.backward(1.0, tape), tape)
            optimizer.step()
            model.zero_grad()
            return float(loss)

        if task == "train":
            optimizer = AdamW(model, LR)
        self.step = train if task == "train" else infer

    def products(self, n, clock="wall"):
        """Mean seconds of the matrix products of a step alone, as the layers call them, over n times."""
        from matrix_products import products_of_a_step

        run = products_of_a_step(self.preset, self.lengths, self.task)
        run()
        return mean_seconds(run, n, clock)


class TorchSide(Side):
    def __init__(self, layer, preset, kind, task, dropout=DROPOUT, state=None):
        import torch
        import torch.nn.functional as F
        from torch_models import KINDS, TorchClassifier

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch.manual_seed(0)
        preset = PRESETS[preset]
        ids, mask, labels = (a if a is None else torch.from_numpy(a) for a in make_batch(preset, kind))
        model = TorchClassifier(KINDS[layer], preset, dropout).train(task == "train")
        if state:
            model.load(state)

        @torch.inference_mode()
        def infer():
            return F.cross_entropy(model(ids, mask), labels).item()

        def train():
            loss = F.cross_entropy(model(ids, mask), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        if task == "train":
            optimizer = torch.optim.AdamW(model.groups(), LR, fused=True)
        self.step = train if task == "train" else infer


class Agreement:
    """Both libraries in one process from the same weights, without dropout: do they compute the same?"""

    def largest_difference(self, layer, preset, kind, task):
        """The largest difference of the loss: of one batch in inference, over five steps in training."""
        ours = TinyencSide(preset, kind, task, 0.0)
        theirs = TorchSide(layer, preset, kind, task, 0.0, ours.model.state_dict())
        return max(abs(ours.step() - theirs.step()) for _ in range(5 if task == "train" else 1))
