"""Hand-written CUDA kernels and their launchers, for CuPy arrays."""
