"""The jobs: rerank a shortlist, search a gallery, prepare it, and FAISS with a reranker on top."""

from __future__ import annotations

from typing import Any

import numpy as np

from benches.common import CASES, Case, best, distribution, faiss, fields, pairwise, pe, peer, rescored

SCORES = ["mls diagonal", "mls isotropic", "cosine point"]
SHAPES = [(20_000, 128), (5_000, 512)]  # gallery rows, dimensions
QUERIES, CANDIDATES, K = 64, 100, 10


def _gallery(case: Case, arrays: Any, backend: str) -> Any:
    raw = distribution(case.kind, arrays)
    return pe.prepare(raw, score=case.score) if backend == "peaccel prepared" else raw


class Retrieval:
    """The parameters and the data that rerank and search share."""

    param_names = ("score", "shape", "backend")
    params = (SCORES, SHAPES, ("peaccel", "peaccel prepared", "torch eager", "torch.compile", "numpy", "faiss"))

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
    """The best 10 of the whole gallery, exactly: time, and memory, for no side should need queries x gallery."""

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
            raise NotImplementedError  # queries x gallery x dim at once: nobody would
        else:
            self.call = peer(case, backend, best(pairwise(case), K), q, g)

    def time_search(self, score: str, shape: tuple[int, int], backend: str) -> None:
        self.call()

    def peakmem_search(self, score: str, shape: tuple[int, int], backend: str) -> None:
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


class MainJob:
    """HNSW over 10,000 x 128 for a shortlist of 100, alone and with the best 10 by diagonal MLS on top."""

    param_names = ("batch", "backend")
    params = ((1, 256), ("faiss", "peaccel"))

    def setup(self, batch: int, backend: str) -> None:
        if faiss is None:
            raise NotImplementedError
        q, g = (fields("diagonal", rows, 128, seed, classes=50) for rows, seed in ((batch, 1), (10_000, 2)))
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
