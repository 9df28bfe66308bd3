"""The one module that knows there are two array libraries: NumPy on the CPU, CuPy on the GPU.

The array decides: formulas call NumPy's functions, which hand CuPy's arrays to CuPy by themselves, and ask
`array_module` where a new array must be made.
"""

import sys

import numpy as np


def array_module(array):
    """The library an array belongs to: `numpy`, or `cupy`."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def on_host(array):
    """Whether this is a NumPy array (or scalar), in the CPU's memory."""
    return isinstance(array, (np.ndarray, np.generic))


def to_host(array):
    """The same values as a NumPy array; waits for the GPU where they come from one."""
    return array if on_host(array) else array.get()


def to_device(array, device):
    """The same values on device "cpu" or "gpu"."""
    return to_host(array) if chosen(device) == "cpu" else cupy().asarray(array)


def chosen(device):
    """device, "cpu" or "gpu"; for "auto", "gpu" where there is one to use, else "cpu"."""
    if device not in ("cpu", "gpu", "auto"):
        raise ValueError(f'device must be "cpu", "gpu" or "auto", got {device!r}')
    if device != "auto":
        return device
    try:
        cupy()
    except RuntimeError:
        return "cpu"
    return "gpu"


def as_array(given):
    """given, or a NumPy array of it where it is a list or a tuple."""
    return np.asarray(given) if isinstance(given, (list, tuple)) else given


def like(array, other):
    """array moved to where other is."""
    return array_module(other).asarray(array) if on_host(array) else array


def cupy():
    """CuPy, where it is installed and a GPU answers; otherwise RuntimeError says what is missing."""
    install = 'pip install "tinyenc[cuda13]" (or cuda12, to match the driver)'
    try:
        import cupy
    except ImportError:
        raise RuntimeError(f'device "gpu" needs CuPy, which is not installed: {install}') from None
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise RuntimeError("no GPU is visible to CUDA")
    except RuntimeError as error:  # CuPy's CUDARuntimeError, without a driver, is one too
        raise RuntimeError(f'device "gpu" cannot be used: {error}') from None
    try:
        cupy.cuda.nvrtc.getVersion()
    except RuntimeError:  # CuPy's DynamicLibNotFoundError is one too
        raise RuntimeError(f'device "gpu" needs CUDA\'s compiler, NVRTC, which CuPy cannot find: {install}') from None
    return cupy


def wide(dtype):
    """The dtype to sum in: float32 for half precision, else the dtype itself."""
    return np.result_type(dtype, np.float32)
