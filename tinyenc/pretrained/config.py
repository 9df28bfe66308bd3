"""What a model's config.json says, checked key by key."""

import json
import math
from pathlib import Path

from ..data.files import DataError
from ..layers import GELU, GELUTanh, ReLU

ACTIVATIONS = {
    "gelu": GELU,
    "gelu_python": GELU,
    "gelu_new": GELUTanh,
    "gelu_fast": GELUTanh,
    "gelu_pytorch_tanh": GELUTanh,
    "relu": ReLU,
}
LARGEST = 10**8


class Config:
    """The entries of a config.json, each asked for with what it must be; DataError names the file, key and value.

    A key that is missing takes the default; without one it is an error. Where families use different keys for
    the same thing, `renamed` gives a config that answers to the common ones. largest: no size may exceed it, so that
    a hostile config cannot ask for all memory.
    """

    def __init__(self, values, path="config.json", largest=LARGEST):
        self.values = values
        self.path = path
        self.largest = largest

    def renamed(self, keys):
        """The same entries, those of `keys` (common: own) under their common names too."""
        own = {common: self.values[key] for common, key in keys.items() if key in self.values}
        return Config(self.values | own, self.path, self.largest)

    def within(self, values):
        """The same for an object inside the file."""
        return Config(values, self.path, self.largest)

    def get(self, key, default=None):
        """The entry as it stands."""
        return self.values.get(key, default)

    def size(self, key, default=None):
        """A whole number from 1 to `largest`."""
        return self._checked(key, default, f"a whole number from 1 to {self.largest}",
                             lambda v: type(v) is int and 1 <= v <= self.largest)

    def index(self, key, default=None):
        """A whole number from 0 up, or None, which is also what a missing key gives without a default."""
        value = self.values.get(key, default)
        if value is None:
            return None
        return self._checked(key, default, "a whole number", lambda v: type(v) is int and 0 <= v <= LARGEST)

    def positive(self, key, default=None):
        """A number above 0."""
        return float(self._checked(key, default, "a number above 0", lambda v: _is_number(v) and v > 0))

    def probability(self, key, default=None):
        """A number in [0, 1)."""
        return float(self._checked(key, default, "a number in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1))

    def flag(self, key, default):
        """True or False."""
        return self._checked(key, default, "true or false", lambda v: isinstance(v, bool))

    def activation(self, key, default=None):
        """A new layer for the activation that an entry names."""
        names = ", ".join(ACTIVATIONS)
        name = self._checked(key, default, f"one of {names}", lambda v: isinstance(v, str) and v in ACTIVATIONS)
        return ACTIVATIONS[name]()

    def require(self, key, value):
        """DataError unless the entry is missing or null or has this value: nothing else is implemented."""
        self._checked(key, value, f"{json.dumps(value)}, the only one supported", lambda v: v is None or v == value)

    def fail(self, message):
        """Raise DataError with the file's name before the message."""
        raise DataError(f"{self.path}: {message}")

    def _checked(self, key, default, wanted, fits):
        value = self.values.get(key, default)
        if value is None and key not in self.values:
            self.fail(f"{key} is missing")
        if not fits(value):
            self.fail(f"{key} is {json.dumps(value)[:60]}, not {wanted}")
        return value


def _is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def read_json(path):
    """What a JSON file holds; DataError, naming the file, where it cannot be read."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def read_object(path):
    """What a JSON file with an object, {...}, at its top holds."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a JSON object but {json.dumps(values)[:40]}")
    return values
