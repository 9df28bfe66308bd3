"""Between text and token ids."""

import json
from collections import Counter
from pathlib import Path

from .files import DataError, write_atomically
from .tokenise import HAN_CHARACTER, tokenise

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


class Vocab:
    """The table token <-> id: the five specials are ids 0 to 4, then come `tokens` in the order given.

    `vocab.tokens[id]` is the token of an id, `vocab.ids[token]` the id of a token, `len(vocab)` how many there
    are, the specials included: the `vocab_size` of an Encoder.
    """

    def __init__(self, tokens):
        self.tokens = SPECIALS + list(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            token, count = Counter(self.tokens).most_common(1)[0]
            raise ValueError(f"token {token!r} stands {count} times in the vocabulary")

    @classmethod
    def from_texts(cls, texts, max_size=None, min_count=1):
        """The tokens of `texts` that occur `min_count` times or more, the commonest first, ties in text order.

        With `max_size` only as many as make `len(vocab)` that, specials included. The order of the texts has no
        influence.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a collection of texts, not one str")
        if max_size is not None and max_size < len(SPECIALS):
            raise ValueError(f"max_size {max_size} is less than the {len(SPECIALS)} special tokens")
        counts = Counter(token for text in texts for token in tokenise(text))
        tokens = sorted((t for t, n in counts.items() if n >= min_count), key=lambda t: (-counts[t], t))
        return cls(tokens if max_size is None else tokens[: max_size - len(SPECIALS)])

    def __len__(self):
        return len(self.tokens)

    def lookup(self, tokens):
        """The ids of `tokens`, [UNK] for those that are not in the table."""
        return [self.ids.get(token, UNK) for token in tokens]

    def encode(self, text, max_len=None):
        """[CLS] text [SEP] as a list of ids, the text cut at its end where the whole is longer than `max_len`."""
        ids = self.lookup(tokenise(text))[: _room(max_len, 2)]
        return [CLS, *ids, SEP]

    def encode_pair(self, first, second, max_len=None, keep_first=False):
        """[CLS] first [SEP] second [SEP] as `(ids, segments)`; segments are 0 as far as the first [SEP], then 1.

        Where the whole is longer than `max_len`, the longer of the two is cut at its end until both are equally
        long, then both alike. With `keep_first` (a question before its passage) only the second is cut;
        ValueError where the first alone is too long.
        """
        first, second = self.lookup(tokenise(first)), self.lookup(tokenise(second))
        room = _room(max_len, 3)
        if room is not None:
            kept = len(first) if keep_first else min(len(first), max(room - len(second), (room + 1) // 2))
            if kept > room:
                raise ValueError(f"the first text's {kept} tokens and 3 specials exceed max_len {max_len}")
            first, second = first[:kept], second[: room - kept]
        return [CLS, *first, SEP, *second, SEP], [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def encode_words(self, words, max_len=None):
        """[CLS] words [SEP] as `(ids, word_ids)`: for every id the index of its word, None for the specials.

        For one label a word: a word that `tokenise` cuts has several ids in a row (`piece_labels` spreads its
        label over them), and one in which it finds nothing is [UNK].
        """
        pieces = [(i, id) for i, word in enumerate(words) for id in self.lookup(tokenise(word)) or [UNK]]
        pieces = pieces[: _room(max_len, 2)]
        return [CLS, *(id for _, id in pieces), SEP], [None, *(i for i, _ in pieces), None]

    def decode(self, ids):
        """The text of `ids`, without [PAD], [CLS] and [SEP]; no space stands between Chinese characters."""
        text, last = "", ""
        for id in ids:
            if not 0 <= id < len(self):
                raise ValueError(f"token id {id} is not in 0 .. {len(self) - 1}")
            if id in (PAD, CLS, SEP):
                continue
            token = self.tokens[id]
            joined = not last or HAN_CHARACTER.match(last) and HAN_CHARACTER.match(token)
            text, last = text + ("" if joined else " ") + token, token
        return text

    def save(self, path):
        """Write the table to `path` as JSON, whole or not at all."""
        table = {"specials": SPECIALS, "tokens": self.tokens[len(SPECIALS) :]}
        write_atomically(path, json.dumps(table, ensure_ascii=False, indent=0).encode("utf-8"))

    @classmethod
    def load(cls, path):
        """The table that `save` wrote to `path`; DataError, naming the file, where it holds something else."""
        try:
            table = json.loads(Path(path).read_bytes())
            specials, tokens = table["specials"], table["tokens"]
            if specials != SPECIALS:
                raise ValueError(f"its special tokens are not {' '.join(SPECIALS)}")
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                raise ValueError("its tokens are not a list of strings")
            return cls(tokens)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (KeyError, TypeError):
            raise DataError(f"{path}: not a vocabulary: it has no specials and tokens") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not a vocabulary: {error}") from None


def _room(max_len, n_specials):
    """How many tokens fit in `max_len` beside the specials; None, no bound, where `max_len` is None."""
    if max_len is None:
        return None
    if max_len < n_specials:
        raise ValueError(f"max_len {max_len} has no room for {n_specials} special tokens")
    return max_len - n_specials
