"""The tape: what forward saves for backward."""

import contextlib
import copy
import random


class Tape:
    """A stack of what forward saves for backward, last in, first out.

    forward pushes the arrays its backward needs, backward pops them in the reverse order. A tape holds arrays,
    never operations: it differentiates nothing.

    seed: starts the dropout masks; None, the default, turns dropout off. The same seed gives the same masks.
    keep: False saves nothing, for inference.
    """

    def __init__(self, seed=None, keep=True):
        self._draws = None if seed is None else random.Random(int(seed))
        self._records = []
        self.keep = keep

    def push(self, layer, *saved):
        """Save what layer.backward will need."""
        if self.keep:
            self._records.append((layer, saved))

    def pop(self, layer):
        """What layer.forward pushed, as a tuple. RuntimeError where another layer's record comes first."""
        if not self._records:
            raise RuntimeError(f"{type(layer).__name__}.backward finds the tape empty: each backward needs its "
                               "own forward, with this tape")
        owner, saved = self._records.pop()
        if owner is not layer:
            self._records.append((owner, saved))
            held = any(other is layer for other, _ in self._records)
            top, asking = type(owner).__name__, type(layer).__name__
            raise RuntimeError(f"backward runs forward's calls in reverse: next is {top}, not {asking}"
                               + (f"; nothing has popped what {top} pushed" if held else
                                  ", which has nothing on this tape"))
        return saved

    def next_seed(self):
        """A fresh seed for one dropout mask; None when dropout is off."""
        return None if self._draws is None else self._draws.getrandbits(64)

    @property
    def training(self):
        """Whether it has a seed: dropout is on, and BatchNorm looks at the batch."""
        return self._draws is not None

    def fork(self):
        """A tape of its own for a part of the work that runs aside; push it, as any saved value."""
        return Tape(self.next_seed(), self.keep)

    @contextlib.contextmanager
    def paused(self):
        """Within this, push saves nothing; seeds are drawn as ever."""
        keep, self.keep = self.keep, False
        try:
            yield
        finally:
            self.keep = keep

    def replay(self):
        """An empty tape that will draw what this one draws from here on."""
        again = Tape()
        again._draws = copy.copy(self._draws)
        return again

    def check_empty(self):
        """Raise RuntimeError where records are left after a whole backward."""
        if self._records:
            owner, _ = self._records[-1]
            raise RuntimeError(f"{len(self)} records are left on the tape, the last one of {type(owner).__name__}: a "
                               "backward did not call all its parts'")

    def __len__(self):
        return len(self._records)

    @property
    def nbytes(self):
        """Bytes held for backward, each array counted once and a view as the array it looks into."""
        return sum(array.nbytes for array in self._arrays().values())

    def ledger(self):
        """Bytes each record holds, in the order of forward: a list of (layer, bytes), shared arrays at their first."""
        seen = set()
        rows = []
        for layer, saved in self._records:
            found = {}
            _collect(saved, found)
            rows.append((layer, sum(a.nbytes for i, a in found.items() if i not in seen)))
            seen |= set(found)
        return rows

    def _arrays(self):
        found = {}
        for _, saved in self._records:
            _collect(saved, found)
        return found


def _collect(value, found):
    """Add every array reachable from what a layer pushed to found, by id of the array that owns the memory."""
    if isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, Tape):
        found.update(value._arrays())
    elif hasattr(value, "nbytes") and hasattr(value, "dtype"):
        while isinstance(getattr(value, "base", None), type(value)):
            value = value.base
        found[id(value)] = value
    elif hasattr(value, "saved_arrays"):
        _collect(value.saved_arrays(), found)


NO_TAPE = Tape(keep=False)  # inference: nothing is saved, nothing is dropped
