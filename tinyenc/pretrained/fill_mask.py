"""Guesses at masked tokens."""

from typing import NamedTuple

import numpy as np

from ..data.batching import pad
from ..data.files import DataError
from ..ops import log_softmax
from .config import read_object
from .load import load
from .tokenizer import SPECIALS, load_tokenizer


class Guess(NamedTuple):
    """A token that may stand at a mask, and how probable the model holds it."""

    token: str
    probability: float


class FillMask:
    """What a model expects at each mask of a text: softmax(head(encoder(ids))) there.

    model: a Pretrained with a head. tokenizer: its `tokenizers.Tokenizer`. mask_token: "[MASK]", "<mask>".
    """

    def __init__(self, model, tokenizer, mask_token="[MASK]"):
        if model.head is None:
            raise DataError(f"{model.folder}: this model has no head that guesses masked tokens")
        self.model = model
        self.tokenizer = tokenizer
        self.mask_token = mask_token
        self.mask_id = tokenizer.token_to_id(mask_token)
        if self.mask_id is None:
            raise DataError(f"{model.folder}: the tokenizer does not know the mask token {mask_token}")

    @classmethod
    def load(cls, folder, max_len=None):
        """From a Hugging Face folder; DataError as in `pretrained.load`, or where the weights have no such head."""
        model = load(folder)
        path = model.folder / "tokenizer_config.json"
        token = read_object(path).get("mask_token") if path.exists() else None
        token = token.get("content") if isinstance(token, dict) else token
        default = "<mask>" if "roberta" in model.config["model_type"] else SPECIALS["mask_token"]
        return cls(model, load_tokenizer(folder, max_len), token if token and isinstance(token, str) else default)

    def __call__(self, text, top=5):
        """A list for each mask of the text, in their order: its `top` Guesses, the likeliest first.

        ValueError where the text has no mask, or none is left where it was cut.
        """
        encoding = self.tokenizer.encode(text)
        ids, mask = pad([encoding.ids])
        at = ids[0] == self.mask_id
        if not at.any():
            raise ValueError(f"no {self.mask_token} among the {len(encoding.ids)} tokens of {text[:40]!r}")
        types = np.array([encoding.type_ids]) if self.model.encoder.embed.n_types > 1 else None
        states = self.model.encoder.forward(ids, mask, types=types)
        scores = log_softmax(self.model.head.forward(states[0, at]))  # (masks, V)
        best = np.argsort(-scores, axis=1)[:, :top]
        return [[Guess(self.tokenizer.id_to_token(int(i)), float(np.exp(row[i]))) for i in order]
                for row, order in zip(scores, best)]
