"""Benchmarks: `python -m benches.ratios` for ratios measured side by side, `asv` over `bench_*.py` for the history."""

import os

# One thread each, and each BLAS with the kernels that it finds best: some machines set slower ones for all. Libraries
# read these when they are loaded, so they are set here: this module runs before any other of the package.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
for _name in ONE_THREAD:
    os.environ[_name] = "1"
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)
