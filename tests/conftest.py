"""Test arrays are small: BLAS threads would only wait for each other. Set before NumPy is imported anywhere."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TINYENC_NUM_THREADS", "2")
