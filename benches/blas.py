"""Which kernels each BLAS runs here; `python -m benches.blas` is a process in which FAISS's BLAS chooses by itself.

Every wheel brings an OpenBLAS of its own, which chooses its kernels once, when it is loaded. FAISS's is of 2021: on
processors that it does not know, such as AMD's with AVX-512, it chooses slower ones than it has. OPENBLAS_CORETYPE sets
the kernels to every OpenBLAS that loads while it is set. numpy's has better ones and must not obey it, so the variable
is set while FAISS loads and at no other time.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

AVX512 = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # as numpy's OpenBLAS calls its kernels


def kernels() -> dict[str, str]:
    """What each OpenBLAS in the process runs, by the wheel that brought it."""
    found = (info for info in threadpool_info() if info["internal_api"] == "openblas")
    return {Path(x["filepath"]).parent.name.removesuffix(".libs"): x["architecture"] for x in found}


def load_faiss(at_its_best: bool = True) -> Any:
    """FAISS with one thread and, unless it is to choose by itself, its best kernels; None where it is not installed."""
    if at_its_best and AVX512 & set(kernels().values()):
        os.environ["OPENBLAS_CORETYPE"] = "SKYLAKEX"
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        return None
    finally:
        os.environ.pop("OPENBLAS_CORETYPE", None)
    faiss.omp_set_num_threads(1)
    # Queries times dimensions from which FAISS multiplies matrices. Its own number since 1.15, 128 000, makes batches
    # up to 10 times slower than they can be, a very small one single queries 3 times.
    faiss.cvar.distance_compute_blas_threshold = 600
    return faiss


class DefaultFlatIP:
    """`faiss.IndexFlatIP` with the kernels that FAISS's OpenBLAS takes by itself, which needs another process."""

    def __init__(self, rows: np.ndarray) -> None:
        command = [sys.executable, "-m", "benches.blas"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.kernels = self._ask(rows)

    def _ask(self, question: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        pickle.dump(question, stdin)
        stdin.flush()
        return pickle.load(stdout)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The result of `IndexFlatIP.search`."""
        return self._ask((queries, k))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Answer a `DefaultFlatIP` until it closes."""
    faiss = load_faiss(at_its_best=False)
    rows = pickle.load(sys.stdin.buffer)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    answer: Any = kernels()
    while True:
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.flush()
        try:
            answer = index.search(*pickle.load(sys.stdin.buffer))
        except EOFError:
            return


if __name__ == "__main__":
    main()
