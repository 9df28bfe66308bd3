"""Runs CUDA kernels on the CPU, in the place of `cupy.RawModule`, and checks what they do.

g++ compiles the kernel's source, unchanged, against `device.h`. A launch takes arrays that describe themselves by
`__cuda_array_interface__`, as CuPy's do. A kernel that steps outside its arrays, races, reads shared memory before
anything wrote it, or leaves a thread waiting raises `KernelError` (see `device.cpp`), with the line of its source.
"""

import ctypes
import hashlib
import math
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CACHE = Path(tempfile.gettempdir()) / f"tinyenc-cuda-emulator-{os.getuid()}"
FLAGS = "-std=c++17 -O1 -g1 -gdwarf-4 -fPIC -fno-gnu-unique -U_FORTIFY_SOURCE -Wno-unknown-pragmas".split()
CHECKED = ["-fsanitize=thread", "-fno-tree-sra"]  # without SRA, an access to a structure stays one access

MISSING = "" if shutil.which("g++") else "the CUDA emulator needs g++, which is not installed"

launches = []  # (kernel's name, {argument's position: Traffic}) of every launch, for tests to look at
blocks = None  # a range: run only these blocks of a launch


class KernelError(RuntimeError):
    """What a kernel did that a GPU would not forgive, or would not report."""


class RawModule:
    """CUDA source compiled for the emulated device: the part of `cupy.RawModule` that this project uses."""

    def __init__(self, *, code, options=(), name_expressions=()):
        self.kernels = _kernels(code, tuple(name_expressions))

    def get_function(self, name):
        return self.kernels[name]


def compile_together(jobs):
    """Compile (code, names) side by side; a RawModule that asks for one of these kernels then finds it."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda job: _kernels(job[0], tuple(job[1])), jobs):
            pass


_compiled = {}  # (code, name): Kernel


def _kernels(code, names):
    missing = tuple(name for name in names if (code, name) not in _compiled)
    if missing:
        library = ctypes.CDLL(str(_build(code, missing)))
        entries = (_Kernel * len(missing)).in_dll(library, "emulator_kernels")
        _compiled.update(((code, name), Kernel(library, entry, name)) for name, entry in zip(missing, entries))
    return {name: _compiled[code, name] for name in names}


class Traffic(ctypes.Structure):
    """An array passed to a kernel, and what a launch moved between the two."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "begin", "bytes", "item", "loads", "load_bytes", "stores", "store_bytes", "_cells")]


class _Parameter(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char), ("size", ctypes.c_int)]


class _Kernel(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("parameters", ctypes.POINTER(_Parameter)), ("call", ctypes.c_void_p)]


class Kernel:
    """One kernel of a library; called like CuPy's, on one-dimensional grids and blocks."""

    def __init__(self, library, entry, name):
        self.library, self.entry, self.name = library, entry, name
        self.parameters = [(p.kind.decode(), p.size) for p in entry.parameters[: entry.count]]

    def __call__(self, grid, block, arguments):
        taken = [_argument(a) for a in arguments]
        if [kind for kind, *_ in taken] != self.parameters:
            raise TypeError(f"{self.name} takes {self.parameters}, not {[kind for kind, *_ in taken]}")
        (grid_size,), (block_size,) = grid, block
        first, last = (blocks.start, blocks.stop) if blocks else (0, max(1, grid_size))
        if last > max(1, grid_size) or grid_size >= 2**31:
            raise ValueError(f"a grid of {grid_size} blocks")
        pointers = (ctypes.c_void_p * len(taken))(*(ctypes.addressof(value) for _, value, _ in taken))
        arrays = {i: array for i, (*_, array) in enumerate(taken) if array}
        used = (Traffic * len(arrays))(*arrays.values())
        message = ctypes.create_string_buffer(1000)
        failed = self.library.emulator_launch(
            ctypes.byref(self.entry), ctypes.c_uint64(first), ctypes.c_uint64(last), ctypes.c_uint(block_size),
            pointers, used, ctypes.c_size_t(len(used)), message, ctypes.c_size_t(len(message)))
        launches.append((self.name, dict(zip(arrays, used))))
        if failed:
            raise KernelError(f"{self.name}: " + re.sub(r"\{(\w+)\}", self._line, message.value.decode()))

    def _line(self, match):
        address = hex(int(match[1], 16) - 1)  # the recorded address is that after the call
        output = subprocess.run(["addr2line", "-i", "-e", self.library._name, address], capture_output=True, text=True)
        return "at " + ", from ".join(Path(line.split(" ")[0]).name for line in output.stdout.splitlines())


def _argument(argument):
    """((kind, size), the value as the kernel takes it, its array or None), as CuPy would pass it."""
    interface = getattr(argument, "__cuda_array_interface__", None)
    if interface:
        item = np.dtype(interface["typestr"]).itemsize
        address, shape = interface["data"][0], interface["shape"]
        strides = interface["strides"] or [item * math.prod(shape[i + 1:]) for i in range(len(shape))]
        steps = [(size - 1) * stride for size, stride in zip(shape, strides)]
        begin = address + sum(min(0, step) for step in steps)
        end = address + sum(max(0, step) for step in steps) + item
        return ("p", 8), ctypes.c_uint64(address), Traffic(begin, end - begin, item)
    if isinstance(argument, np.uintp) and argument == 0:
        return ("p", 8), ctypes.c_uint64(0), None
    value = np.asarray(argument)  # Python's int and float become 64 bits wide, as in CuPy
    if value.size != 1:
        raise TypeError(f"a NumPy array of shape {value.shape} is not on the device")
    kind = "s" if value.dtype.names else value.dtype.kind
    return (kind, value.itemsize), (ctypes.c_char * value.itemsize).from_buffer_copy(value.tobytes()), None


def _build(code, names):
    """The shared library of some kernels of a source."""
    headers = [path.read_text() for path in sorted(HERE.glob("*.h"))]
    device = (HERE / "device.cpp").read_text()
    entries = "".join(f"emulator::Entry<{name}>::kernel,\n" for name in names)
    include = [f"-I{HERE}", "-I."]

    def compile_device(folder):
        _gxx([*FLAGS, "-O2", *include, "-c", str(HERE / "device.cpp"), "-o", "made"], folder)

    def compile_kernels(folder):
        Path(folder, "kernel.cu").write_text(code)
        Path(folder, "kernels.cpp").write_text(
            '#include "device.h"\n#include "kernel.cu"\n'
            f'extern "C" const emulator::Kernel emulator_kernels[] = {{\n{entries}}};\n')
        _gxx([*FLAGS, *CHECKED, *include, "-c", "kernels.cpp"], folder)
        device_object = _made((headers, device), ".o", compile_device)
        _gxx(["-shared", "kernels.o", str(device_object), "-o", "made"], folder)

    return _made((code, names, headers, device), ".so", compile_kernels)


def _made(key, suffix, make):
    """The file that make(folder) leaves as `made`, kept under its key for the next time."""
    path = CACHE / (hashlib.sha256(repr((key, FLAGS, CHECKED)).encode()).hexdigest()[:20] + suffix)
    if not path.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            make(folder)
            Path(folder, "made").replace(path)
    return path


def _gxx(arguments, folder):
    result = subprocess.run(["g++", *arguments], cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"g++ failed:\n{result.stderr}")
