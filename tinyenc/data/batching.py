"""Examples of unequal length, padded and put together in batches."""

import copy
import zlib
from numbers import Number
from typing import NamedTuple

import numpy as np

from .vocab import PAD

IGNORE = -100  # the label that no loss and no metric counts
JITTER = 0.05  # by what part of the length sorting may be out, so that the batches of two epochs differ


class Batch(NamedTuple):
    """Token ids (B, T) int64 and their mask (B, T) bool, True at real tokens; labels (B,) or (B, T), or None;
    `index` (B,): which examples these are."""

    ids: np.ndarray
    mask: np.ndarray
    labels: np.ndarray | None
    index: np.ndarray


def pad(sequences, multiple=None, value=PAD):
    """Sequences of integers side by side, `value` behind the shorter ones: `(ids (B, T) int64, mask (B, T) bool)`.

    The mask is True at real tokens. T is the longest length, or the next multiple of `multiple` (64, say, spares
    a GPU odd shapes). ValueError: no sequences, an empty one, one that is not a row of integers.
    """
    rows = [as_row(sequence, f"sequence {i}") for i, sequence in enumerate(sequences)]
    if not rows:
        raise ValueError("an empty batch: no sequences to pad")
    lengths = np.array([row.size for row in rows])
    mask = np.arange(_padded(lengths.max(), multiple)) < lengths[:, None]
    ids = np.full(mask.shape, value, np.int64)
    ids[mask] = np.concatenate(rows)  # both run row by row
    return ids, mask


def as_row(sequence, what):
    """sequence as an array (tokens,); ValueError, naming `what` it is, where it is empty or not a row of integers."""
    row = np.asarray(sequence)
    if row.ndim != 1 or not row.size:
        raise ValueError(f"{what} has shape {row.shape}, not (tokens,) with at least one token")
    if row.dtype.kind not in "iu" or not np.can_cast(row.dtype, np.int64):
        raise ValueError(f"{what} holds {row.dtype}, not integers")
    return row


def piece_labels(labels, word_ids):
    """The labels of words as labels of their pieces: a word's first piece has its label, every other IGNORE.

    `word_ids`, from `Vocab.encode_words` or a `tokenizers` encoding, has for every piece the index of its word,
    or None for a special token, which has IGNORE too.
    """
    before = [None, *word_ids]
    return [IGNORE if word is None or word == last else labels[word] for last, word in zip(before, word_ids)]


class Batches:
    """`examples` in batches of like lengths, each example once an epoch: one `for` loop is one epoch.

    An example is `(ids, label)`, the label a number, or one number for each token (padded with IGNORE), or None.
    A batch holds at most `batch_size` examples, and at most `max_tokens` tokens counting its padding; at least
    one of the two is given. `multiple` is that of `pad`.

    With `shuffle` every epoch has an order of its own, which depends on `seed` and the epoch alone. With `bucket`
    examples are first sorted by length, roughly where they are shuffled. With neither they come as they are;
    `batch.index` tells where each result belongs in any case.

    Where the loop stands is `batches.epoch` and `batches.position`, the number of this epoch's batches handed
    out. A loop that was broken off goes on with the next batch when it is started again, and so does one in
    another process after `load_state_dict`.
    """

    def __init__(
        self, examples, batch_size=None, max_tokens=None, seed=0, shuffle=True, bucket=True, multiple=None
    ):
        self.examples = list(examples)
        self.batch_size, self.max_tokens, self.multiple = batch_size, max_tokens, multiple
        self.seed, self.shuffle, self.bucket = seed, shuffle, bucket
        self.epoch = self.position = 0
        self._planned = None, None  # an epoch and its plan

        self.lengths = _checked_lengths(self.examples)
        labels = [label for _, label in self.examples]
        self._label_dtype = np.asarray(labels).dtype if isinstance(labels[0], Number) else None  # one for all batches
        if batch_size is None and max_tokens is None:
            raise ValueError("batches need a batch_size or max_tokens")
        for name, value in ("batch_size", batch_size), ("max_tokens", max_tokens), ("multiple", multiple):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is less than 1")
        longest = self.lengths.argmax()
        if max_tokens is not None and _padded(self.lengths[longest], multiple) > max_tokens:
            raise ValueError(
                f"example {longest} has {self.lengths[longest]} tokens, more than a batch's max_tokens {max_tokens}"
            )
        self._plan()  # a seed that cannot be used fails here

    def __len__(self):
        """The number of batches in this epoch, those already handed out included."""
        return len(self._plan())

    def __iter__(self):
        plan = self._plan()
        while self.position < len(plan):
            index = plan[self.position]
            self.position += 1  # now, so that a state saved in the loop's body counts this batch as done
            yield self._collate(index)
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self):
        """Where the loop stands, as plain numbers: the epoch, the position and a checksum of the epoch's order."""
        return {"epoch": self.epoch, "position": self.position, "order": self._checksum(self._plan())}

    def load_state_dict(self, state):
        """Go on where `state` was taken.

        ValueError, and nothing is changed, where an entry is missing or these are other batches (other examples,
        sizes or seed).
        """
        missing = [name for name in ("epoch", "position", "order") if name not in state]
        if missing:
            raise ValueError(f"the state of the batches lacks {', '.join(missing)}")
        plan = self._make_plan(state["epoch"])
        if self._checksum(plan) != state["order"] or not 0 <= state["position"] <= len(plan):
            raise ValueError("the state is of other batches: other examples, batch sizes or another seed")
        self.epoch, self.position = state["epoch"], state["position"]

    def extremes(self, ignore=IGNORE):
        """The batches of this epoch with the longest example and with the smallest and the largest id and label, apart
        from the label that a loss ignores."""
        ids, labels = zip(*self.examples)
        examples = [self.lengths.argmax(), *_ends(ids)]
        if labels[0] is not None:
            examples += _ends([np.extract(np.not_equal(label, ignore), label) for label in labels])
        for index in self._plan():
            if np.isin(examples, index).any():
                yield self._collate(index)

    def afresh(self):
        """These batches at the start of their epoch, apart from this loop, which stays where it is."""
        copied = copy.copy(self)
        copied.position = 0
        return copied

    def _plan(self):
        """This epoch's batches, each an array of indices of examples."""
        if self._planned[0] != self.epoch:
            self._planned = self.epoch, self._make_plan(self.epoch)
        return self._planned[1]

    def _make_plan(self, epoch):
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        if self.bucket:
            jitter = rng.uniform(1 - JITTER, 1 + JITTER, len(order)) if self.shuffle else 1
            order = order[np.argsort(self.lengths[order] * jitter, kind="stable")]
        plan = self._cut(order)
        if self.shuffle:
            plan = [plan[i] for i in rng.permutation(len(plan))]
        return plan

    def _cut(self, order):
        """Runs of `order`, each as long as the bounds allow."""
        cuts, start, longest = [], 0, 0
        for i, length in enumerate(self.lengths[order]):
            longest = max(longest, length)
            n = i + 1 - start
            tokens = n * _padded(longest, self.multiple)
            if n > (self.batch_size or n) or tokens > (self.max_tokens or tokens):
                cuts.append(i)
                start, longest = i, length
        return np.split(order, cuts)

    def _collate(self, index):
        sequences, labels = zip(*(self.examples[i] for i in index))
        ids, mask = pad(sequences, self.multiple)
        if labels[0] is None:
            labels = None
        elif self._label_dtype:
            labels = np.asarray(labels).astype(self._label_dtype, casting="safe")
        else:
            labels, _ = pad(labels, self.multiple, IGNORE)
        return Batch(ids, mask, labels, index)

    def _checksum(self, plan):
        sizes = [len(index) for index in plan]
        return zlib.crc32(np.concatenate([sizes, self.lengths, *plan]).astype("<i8").tobytes(), self._content())

    def _content(self):
        """A checksum of the examples themselves."""
        ids, labels = zip(*self.examples)
        checksum = zlib.crc32(np.concatenate([np.asarray(row) for row in ids]).astype("<i8").tobytes())
        if labels[0] is None:
            return checksum
        return zlib.crc32(np.concatenate([np.ravel(label) for label in labels]).astype("<f8").tobytes(), checksum)


def _checked_lengths(examples):
    """The number of tokens of each example; ValueError where one cannot be put in a batch with the others."""
    if not examples:
        raise ValueError("no examples to make batches of")
    lengths = np.array([len(as_row(ids, f"example {i}")) for i, (ids, _) in enumerate(examples)])
    kind = _kind(examples[0][1])
    for i, (ids, label) in enumerate(examples):
        if _kind(label) != kind:
            raise ValueError(f"the label of example {i} is {_kind(label)}, that of example 0 {kind}")
        if kind == "one for each token" and len(as_row(label, f"the label of example {i}")) != len(ids):
            raise ValueError(f"example {i} has {len(label)} labels for {len(ids)} tokens")
    return lengths


def _kind(label):
    if label is None:
        return "None"
    if isinstance(label, Number):
        return "a number"
    if isinstance(label, str):
        raise TypeError(f"label {label!r} is not a number: number the classes first")
    return "one for each token"


def _ends(rows):
    """Which rows hold the smallest and the largest number; none where all are empty."""
    numbers = np.concatenate(rows)
    row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return [row_of[numbers.argmin()], row_of[numbers.argmax()]] if numbers.size else []


def _padded(length, multiple):
    """`length`, or the least multiple of `multiple` that is not less."""
    return length if multiple is None else -(-length // multiple) * multiple
