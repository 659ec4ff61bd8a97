"""Benchmarks: `python -m benches.ratios` for ratios measured side by side, `asv` over `bench_*.py` for the history."""

import os

# One thread each. BLAS libraries read these when they are loaded, and FAISS's own OpenBLAS has no other switch, so they
# are set here: this module runs before any other of the package.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
for _name in ONE_THREAD:
    os.environ[_name] = "1"
