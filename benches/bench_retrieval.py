"""Retrieval: reranking, search, preparing a gallery, FAISS with a reranker on top; and the time of the import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import distribution, fields, pe
from benches.peak import RESET
from benches.peers import CASES, Case, best, faiss, pairwise, peer, rescored

ROOT = Path(__file__).parents[1]
SCORES = ["mls diagonal", "mls isotropic", "cosine point"]
SHAPES = [(20_000, 128), (5_000, 512)]  # gallery rows, dimensions
QUERIES, CANDIDATES, K = 64, 100, 10


def _gallery(case: Case, arrays: Any, backend: str) -> Any:
    raw = distribution(case.kind, arrays)
    return pe.prepare(raw, score=case.score) if backend == "peaccel prepared" else raw


class Retrieval:
    """The parameters and the data that rerank and search share."""

    param_names = ("score", "shape", "backend")
    params = (SCORES, SHAPES, ("peaccel", "peaccel prepared", "torch eager"))

    def _data(self, score: str, shape: tuple[int, int]) -> tuple[Case, Any, Any]:
        rows, dim = shape
        case = CASES[score]
        return case, fields(case.kind, QUERIES, dim, seed=1), fields(case.kind, rows, dim, seed=2)


class Rerank(Retrieval):
    """The best 10 of 100 random candidates."""

    def setup(self, score: str, shape: tuple[int, int], backend: str) -> None:
        case, q, g = self._data(score, shape)
        ids = np.random.default_rng(3).integers(0, shape[0], (QUERIES, CANDIDATES))
        if backend.startswith("peaccel"):
            queries, gallery = distribution(case.kind, q), _gallery(case, g, backend)
            self.call = lambda: pe.rerank(queries, gallery, ids, K, score=case.score)
        else:
            self.call = peer(case, backend, best(rescored(case), K), q, g, ids)

    def time_rerank(self, score: str, shape: tuple[int, int], backend: str) -> None:
        self.call()


class Search(Retrieval):
    """The best 10 of the whole gallery, exactly."""

    params = (SCORES, SHAPES, ("peaccel", "peaccel prepared", "torch eager", "faiss"))

    def setup(self, score: str, shape: tuple[int, int], backend: str) -> None:
        case, q, g = self._data(score, shape)
        if backend.startswith("peaccel"):
            queries, gallery = distribution(case.kind, q), _gallery(case, g, backend)
            self.call = lambda: pe.search(queries, gallery, K, score=case.score)
        elif backend == "faiss":
            if faiss is None or case.kind != "point":
                raise NotImplementedError
            index = faiss.IndexFlatIP(shape[1])
            index.add(g[0])
            self.call = lambda: index.search(q[0], K)
        elif case.dense is None:
            raise NotImplementedError  # the array queries x gallery x dim would be too large
        else:
            self.call = peer(case, backend, best(pairwise(case), K), q, g)

    def time_search(self, score: str, shape: tuple[int, int], backend: str) -> None:
        self.call()


class Prepare:
    """Packing a gallery, once: time and bytes."""

    param_names = ("score", "shape")
    params = (SCORES, SHAPES)

    def setup(self, score: str, shape: tuple[int, int]) -> None:
        self.case = CASES[score]
        self.gallery = distribution(self.case.kind, fields(self.case.kind, *shape, seed=2))

    def time_prepare(self, score: str, shape: tuple[int, int]) -> None:
        pe.prepare(self.gallery, score=self.case.score)

    def track_bytes(self, score: str, shape: tuple[int, int]) -> int:
        return int(pe.prepare(self.gallery, score=self.case.score).nbytes)

    track_bytes.unit = "bytes"  # type: ignore[attr-defined]


class Peak:
    """Memory beyond the gallery that a verb takes at its peak: 100,000 x 32, 256 queries, in a process of its own."""

    param_names = ("score", "verb")
    params = (SCORES, ("prepare", "search", "search prepared", "rerank"))
    unit = "bytes"

    def setup(self, score: str, verb: str) -> None:
        if not RESET.exists():
            raise NotImplementedError("peaks of memory are read from /proc, which only Linux has")

    def track_peak(self, score: str, verb: str) -> int:
        command = [sys.executable, "-m", "benches.peak", CASES[score].score, CASES[score].kind, verb]
        return int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


class MainJob:
    """HNSW over 4,000 x 128 for a shortlist of 100, alone and with the best 10 by diagonal MLS on top."""

    param_names = ("batch", "backend")
    params = ((1, 256), ("faiss", "peaccel"))

    def setup(self, batch: int, backend: str) -> None:
        if faiss is None:
            raise NotImplementedError
        q, g = (fields("diagonal", rows, 128, seed, classes=20) for rows, seed in ((batch, 1), (4_000, 2)))
        index = faiss.IndexHNSWFlat(128, 32)
        index.add(g[0])
        if backend == "peaccel":
            queries = distribution("diagonal", q)
            reranker = pe.FaissReranker(index, distribution("diagonal", g), score="mls")
            self.call = lambda: reranker.search(queries, K, shortlist=CANDIDATES)
        else:
            self.call = lambda: index.search(q[0], CANDIDATES)

    def time_main_job(self, batch: int, backend: str) -> None:
        self.call()


def timeraw_import() -> str:
    return "import peaccel"


def timeraw_import_numpy() -> str:
    return "import numpy"
