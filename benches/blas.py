"""Which kernels each BLAS runs here, and FAISS with the best of its own.

Every wheel brings an OpenBLAS of its own, which chooses its kernels once, when it is loaded. FAISS's is of 2021: on
processors that it does not know, such as AMD's with AVX-512, it chooses slower ones than it has. OPENBLAS_CORETYPE sets
the kernels to every OpenBLAS that loads while it is set. numpy's has better ones and must not obey it, so the variable
is set while FAISS loads and at no other time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benches.data import optional

AVX512 = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # as numpy's OpenBLAS calls its kernels


def kernels() -> dict[str, str]:
    """The kernel that each OpenBLAS in the process runs, by the wheel that brought it."""
    threadpoolctl = optional("threadpoolctl")  # which a bare machine with a GPU has not
    infos = threadpoolctl.threadpool_info() if threadpoolctl else []
    found = (info for info in infos if info["internal_api"] == "openblas")
    return {Path(x["filepath"]).parent.name.removesuffix(".libs"): x["architecture"] for x in found}


def load_faiss() -> Any:
    """FAISS with one thread and its best kernels; None where it is not installed."""
    if AVX512 & set(kernels().values()):
        os.environ["OPENBLAS_CORETYPE"] = "SKYLAKEX"
    faiss = optional("faiss")
    os.environ.pop("OPENBLAS_CORETYPE", None)
    if faiss is None:
        return None
    faiss.omp_set_num_threads(1)
    # Queries times dimensions from which FAISS multiplies matrices. Its own number since 1.15, 128 000, makes batches
    # up to 10 times slower than they can be, a very small one single queries 3 times.
    faiss.cvar.distance_compute_blas_threshold = 600
    return faiss
