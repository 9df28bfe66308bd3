"""From CUDA source to kernels that CuPy launches."""

from functools import cache
from pathlib import Path

BLOCK = 128  # threads, as in common.cu
STORAGE = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}


HERE = Path(__file__).parent
COMMON = (HERE / "common.cu").read_text()


def source(name):
    """The text of a .cu file beside this one, after what kernels share."""
    return f'{COMMON}\n#line 1 "{name}"\n{(HERE / name).read_text()}'


@cache
def compiled(code, name, device):
    """The kernel of this name, a C++ expression, in a source. CuPy loads it onto one device, whose number this is."""
    import cupy

    # Numbers below the normal ones are taken for zeros (ftz): exponentials are twice as fast without them.
    module = cupy.RawModule(code=code, options=("-std=c++17", "-ftz=true"), name_expressions=(name,))
    return module.get_function(name)
