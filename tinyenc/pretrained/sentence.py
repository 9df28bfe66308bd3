"""Vectors of sentences."""

import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..data.batching import pad
from ..data.files import write_atomically
from .config import read_object
from .load import load, save
from .modules import POOLS, modules_files, read_modules
from .tokenizer import load_tokenizer


class SentenceEncoder:
    """pool(encoder(tokenizer(sentence))), scaled to length 1 where normalize is set (Reimers & Gurevych 2019).

    model: a Pretrained, whose encoder can be trained like any other. tokenizer: a `tokenizers.Tokenizer` that cuts
    texts where the folder says. pool: "mean", "cls" or "max".
    """

    def __init__(self, model, tokenizer, pool="mean", normalize=False):
        self.model = model
        self.tokenizer = tokenizer
        self.pool_name = pool
        self.pool = POOLS[pool]()
        self.normalize = normalize

    @classmethod
    def load(cls, folder, max_len=None):
        """From a folder as sentence-transformers has them, or an encoder's, which gets mean pooling.

        max_len: the most tokens of a text, specials included; by default what the folder says. DataError as in
        `pretrained.load`.
        """
        modules = read_modules(folder)
        tokenizer = load_tokenizer(modules.folder, max_len)
        return cls(load(modules.folder), tokenizer, modules.pool, modules.normalize)

    def encode(self, sentences, normalize=None, max_tokens=2048, progress=False):
        """A list of n texts -> (n, D) float32; one text -> (D,).

        Texts of like length are computed together, max_tokens tokens or one text at a time; the order of the result
        is that of the texts. normalize: in place of what the folder says. progress: show a bar.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], normalize, max_tokens)[0]
        normalize = self.normalize if normalize is None else normalize
        ids = [np.array(row.ids) for row in self.tokenizer.encode_batch_fast(list(sentences))]
        vectors = np.empty((len(ids), self.model.encoder.d_model), np.float32)
        with tqdm(total=len(ids), unit="texts", disable=not progress) as bar:
            for index in batches([len(row) for row in ids], max_tokens):
                vectors[index] = self.vectors([ids[i] for i in index], normalize)
                bar.update(len(index))
        return vectors

    def vectors(self, ids, normalize):
        """A list of rows of token ids -> their vectors, (n, D)."""
        batch, mask = pad(ids)
        states = self.model.encoder.forward(batch, mask)
        pooled = self.pool.forward(states, mask)
        if normalize:
            pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return pooled

    def save(self, folder):
        """Write everything to a folder that `SentenceEncoder.load`, sentence-transformers and transformers load."""
        folder = Path(folder)
        save(folder, self.model)
        files = modules_files(self.pool_name, self.normalize, self.model.encoder.d_model)
        if self.tokenizer.truncation:
            path = folder / "sentence_bert_config.json"
            settings = read_object(path) if path.exists() else {}
            files[path.name] = settings | {"max_seq_length": self.tokenizer.truncation["max_length"]}
        for name, contents in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomically(folder / name, json.dumps(contents, indent=2).encode())


def batches(lengths, max_tokens):
    """Indices of texts, the longest first, in runs of at most max_tokens tokens in all, or of one text."""
    order = np.argsort(-np.array(lengths, int), kind="stable")
    start = n = 0
    for i, length in enumerate(lengths[j] for j in order):
        if n and n + length > max_tokens:
            yield order[start:i]
            start, n = i, 0
        n += length
    if n:
        yield order[start:]
