"""Tensors in safetensors files: numbers and names, nothing that could be executed."""

from pathlib import Path

import numpy as np

from ..data.files import DataError, write_atomically
from .config import read_object

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"  # in its place, where a model is spread over several files
FLOATS = {"F64", "F32", "F16"}


class TensorFile:
    """The tensors of one safetensors file: `shapes`, {name: shape}, at once, and each one's numbers by `read`.

    DataError, naming the file, where it is not there, cut off, or not what its header says.
    """

    def __init__(self, path):
        self.path = Path(path)
        safetensors = import_safetensors()
        try:
            with safetensors.safe_open(self.path, framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}
                self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
                self.dtypes = {name: part.get_dtype() for name, part in slices.items()}
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{path}: not a safetensors file: {one_line(error)}") from None

    def read(self, name):
        """The tensor of a name, as a NumPy array.

        The file is opened for each: while it is open, what was read of it stays in memory a second time.
        """
        try:
            with import_safetensors().safe_open(self.path, framework="np") as file:
                return file.get_tensor(name)
        except Exception as error:  # the library raises whatever NumPy makes of a dtype it does not know
            raise DataError(f"{self.path}: {name}, {self.dtypes[name]}, cannot be read: {one_line(error)}") from None

    def check_floats(self, names):
        """DataError unless the tensors of these names hold numbers that NumPy knows as floating-point ones."""
        wrong = [f"{name} is {self.dtypes[name]}" for name in names if self.dtypes[name] not in FLOATS]
        if wrong:
            raise DataError(f"{self.path}: weights must be {', '.join(sorted(FLOATS))}: {'; '.join(wrong)}")


class TensorFiles:
    """Several files as one."""

    def __init__(self, paths):
        self.files = [TensorFile(path) for path in paths]
        self.shapes = {name: shape for file in self.files for name, shape in file.shapes.items()}

    def read(self, name):
        """The tensor of a name, as a NumPy array."""
        return next(file for file in self.files if name in file.shapes).read(name)

    def check_floats(self, names):
        """As in TensorFile."""
        for file in self.files:
            file.check_floats([name for name in names if name in file.shapes])


def open_tensors(folder):
    """The tensors of a model's folder, a TensorFile or TensorFiles. DataError where there are none, or only pickles."""
    folder = Path(folder)
    if (folder / FILE).exists():
        return TensorFile(folder / FILE)
    if (folder / INDEX).exists():
        table = read_object(folder / INDEX).get("weight_map")
        names = set(table.values()) if isinstance(table, dict) and all(map(is_name, table.values())) else ()
        if not names:
            raise DataError(f"{folder / INDEX}: weight_map does not name files of this folder")
        return TensorFiles([folder / name for name in sorted(names)])
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    if pickles:
        raise DataError(f"{folder}: {pickles[0]} is a pickle, which may run any program when it is read: save the "
                        f"model as {FILE} first")
    raise DataError(f"{folder}: no {FILE} in this folder")


def is_name(name):
    """Whether this is the plain name of a file, without a way out of the folder."""
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def write_tensors(path, tensors):
    """Put {name: array} in a safetensors file, whole or not at all."""
    import_safetensors()
    from safetensors.numpy import save
    tensors = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    write_atomically(path, save(tensors, {"format": "pt"}))  # the mark that transformers looks for


def import_safetensors():
    """The library, or RuntimeError where it is not installed."""
    try:
        import safetensors
    except ImportError:
        raise RuntimeError('pretrained models need safetensors: pip install "tinyenc[pretrained]"') from None
    return safetensors


def one_line(error):
    """The message of an error, cut to a line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
