"""Compiles the CUDA kernels, those written from formulas too, for every architecture; prints the registers of each.

Needs no GPU: python -m pip install "tinyenc[kernels]". Fails where a kernel spills registers to memory.
"""

import ctypes
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import numpy as np

from tinyenc import ops
from tinyenc.kernels import masked_softmax as kernels
from tinyenc.kernels.compiler import BLOCK, STORAGE
from tinyenc.kernels.trace import Array, Trace

ARCHITECTURES = "sm_75", "sm_80", "sm_90", "sm_100"
LENGTHS = 128, 512, 1024, 16384, 16383  # of rows: in few and many registers, in chunks, and at odd addresses

FORMULAS = {  # of ops: what they take, each element, column or vector an array
    "layer_norm": ("element", "vector", "vector", 1e-5), "normalise_backward": ("element", "element", "column"),
    "gelu": ("element",), "gelu_tanh": ("element",), "silu": ("element",), "log_softmax": ("element",),
}


def main():
    try:
        library = installed("nvidia-cuda-nvrtc", "libnvrtc.so")
        headers = installed("nvidia-cuda-runtime", "cuda_fp16.h").parent
    except metadata.PackageNotFoundError as error:
        print(f'skipped: {error.name} is not installed: python -m pip install "tinyenc[kernels]"')
        return
    nvrtc = Nvrtc(library)
    sources = [("", kernels.SOURCE, variants()), *written_from_formulas()]

    def compiled(architecture):
        options = ["-std=c++17", "-ftz=true", f"-arch={architecture}", f"-I{headers}", "--ptxas-options=-v"]
        found = {}
        for prefix, code, names in sources:
            found |= {prefix + name: used for name, used in nvrtc.resources(code, names, options).items()}
        return found

    with ThreadPoolExecutor() as pool:
        results = list(pool.map(compiled, ARCHITECTURES))
    names = list(results[0])
    print(f"NVRTC {nvrtc.version()}, registers of a thread\n")
    print(f"{'':52}" + "".join(f"{architecture:>8}" for architecture in ARCHITECTURES))
    for name in names:
        print(f"{name:52}" + "".join(f"{result[name][0]:8}" for result in results))
    spilled = [(a, name) for a, result in zip(ARCHITECTURES, results) for name in names if result[name][1]]
    for architecture, name in spilled:
        print(f"{name} spills registers to memory on {architecture}")
    print(f"\n{len(names)} kernels for {len(ARCHITECTURES)} architectures, {len(spilled)} of which spill registers")
    sys.exit(bool(spilled))


def variants():
    """Names of kernels: of each storage, for each length, in the widest accesses that it allows."""
    names = []
    for dtype, storage in kernels.STORAGE.items():
        dtype = np.dtype("float16" if dtype == "bfloat16" else dtype)  # NumPy alone has no bfloat16
        widest = 16 // dtype.itemsize
        for name in "softmax_forward", "softmax_backward":
            for keys in LENGTHS:
                variant, _ = kernels.variant(name, dtype, keys, math.gcd(widest, keys))
                names.append(variant.replace(kernels.STORAGE[dtype.name], storage))
        names.append(f"drop<{storage}, {widest}>")
    return names


def written_from_formulas():
    """(prefix for its name, source, names of kernels) for formulas in float16 and float32."""
    for name, arguments in FORMULAS.items():
        for dtype in np.dtype(np.float16), np.dtype(np.float32):
            dtypes = {"element": dtype, "vector": dtype, "column": np.dtype(np.float32)}
            given = [Array(n, x, dtypes[x]) if x in dtypes else x for n, x in enumerate(arguments)]
            program = Trace().program(getattr(ops, name).formula, given, {})
            lanes = (32, BLOCK) if program.by_rows else (32,)
            yield f"{name}, {STORAGE[dtype.name]}: ", program.code, [f"fused<{n}>" for n in lanes]


def installed(package, prefix):
    """The file of an installed package whose name begins so."""
    return next(file.locate() for file in metadata.files(package) or () if file.name.startswith(prefix))


class Nvrtc:
    """NVIDIA's runtime compiler (https://docs.nvidia.com/cuda/nvrtc)."""

    def __init__(self, library):
        for builtins in library.parent.glob("libnvrtc-builtins.so*"):  # NVRTC opens it by its bare name
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(library))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def resources(self, source, names, options):
        """{name: (registers, bytes spilled)} of kernels in a source."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        for name in names:
            self._call("AddNameExpression", program, name.encode())
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        try:
            self._call("CompileProgram", program, len(options), encoded)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self._log(program)}") from None
        of_kernel = {}
        for section in self._log(program).split("Compiling entry function '")[1:]:
            counts = [re.search(what, section)[1] for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
            of_kernel[section.partition("'")[0]] = tuple(map(int, counts))
        found = {}
        for name in names:
            lowered = ctypes.c_char_p()
            self._call("GetLoweredName", program, name.encode(), ctypes.byref(lowered))
            found[name] = of_kernel[lowered.value.decode()]
        self._call("DestroyProgram", ctypes.byref(program))
        return found

    def _log(self, program):
        size = ctypes.c_size_t()
        self._call("GetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._call("GetProgramLog", program, log)
        return log.value.decode()

    def _call(self, function, *arguments):
        status = getattr(self.library, f"nvrtc{function}")(*arguments)
        if status:
            raise RuntimeError(f"nvrtc{function}: {self.library.nvrtcGetErrorString(status).decode()}")


if __name__ == "__main__":
    main()
