"""Writes fixtures.npz, the numbers that PyTorch gives for the cases of torch_reference.py: python make_fixtures.py"""

import pathlib

import numpy as np
import torch
from torch_reference import compute

if __name__ == "__main__":
    path = pathlib.Path(__file__).with_name("fixtures.npz")
    found = compute(seed=0)
    np.savez_compressed(path, torch_version=np.array(torch.__version__), **found)
    print(f"{path}: {len(found)} arrays, {path.stat().st_size} bytes")
