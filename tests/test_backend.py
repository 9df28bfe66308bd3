import importlib.util

import numpy as np
import pytest

from tinyenc import Linear, backend


def test_numpy_arrays_and_scalars_are_on_the_host():
    assert backend.on_host(np.ones(3)) and backend.on_host(np.float32(1))
    assert backend.array_module(np.ones(3)) is np
    x = np.ones(3)
    assert backend.to_host(x) is x and backend.to_device(x, "cpu") is x


def test_like_leaves_a_numpy_array_beside_a_numpy_array():
    x = np.arange(3)
    assert backend.like(x, np.ones(2)) is x


@pytest.mark.parametrize(("dtype", "expected"), [(np.float16, np.float32), (np.float32, np.float32),
                                                 (np.float64, np.float64)])
def test_half_precision_is_summed_in_float32_and_the_others_in_their_own(dtype, expected):
    assert backend.wide(np.dtype(dtype)) == expected


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
def test_gpu_without_cupy_says_what_to_install():
    with pytest.raises(RuntimeError, match=r'needs CuPy, which is not installed: pip install "tinyenc\[cuda13\]"'):
        Linear(2, 2).to("gpu")
