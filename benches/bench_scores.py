"""Scores by shape of the work: paired rows, their gradient, candidates, every pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from benches.data import distribution, fields, pe
from benches.peers import CASES, faiss, pairwise, peer, rescored, torch

DIM = 128
# The scores that FAISS computes, too: inner products and squared distances of plain vectors.
FAISS = {
    "cosine point": ("fvec_inner_products_by_idx", "METRIC_INNER_PRODUCT"),
    "neg_sq_l2 point": ("fvec_L2sqr_by_idx", "METRIC_L2"),
}


class Scores:
    """The parameters that every suite here shares."""

    param_names = ("score", "backend")
    params = (tuple(CASES), ("peaccel", "torch eager", "scipy", "faiss"))

    def _faiss(self, score: str) -> tuple[str, str]:
        if faiss is None or score not in FAISS:
            raise NotImplementedError
        return FAISS[score]


class Paired(Scores):
    """5,000 pairs of rows."""

    def setup(self, score: str, backend: str) -> None:
        case = CASES[score]
        a, b = (fields(case.kind, 5_000, DIM, seed) for seed in (1, 2))
        if backend == "peaccel":
            x, y = distribution(case.kind, a), distribution(case.kind, b)
            self.call = lambda: pe.paired(x, y, score=case.score)
        else:
            self.call = peer(case, backend, case.pair, a, b)

    def time_paired(self, score: str, backend: str) -> None:
        self.call()


class PairedGradient(Scores):
    """Forward and backward of 2,000 pairs, in torch."""

    params = (("mls diagonal", "mls isotropic"), ("peaccel", "torch eager", "torch.compile"))

    def setup(self, score: str, backend: str) -> None:
        case = CASES[score]
        if torch is None:
            raise NotImplementedError
        self.a, self.b = (
            tuple(torch.from_numpy(x).requires_grad_() for x in fields(case.kind, 2_000, DIM, seed)) for seed in (1, 2)
        )

        def ours(a: Any, b: Any) -> Any:
            return pe.paired(distribution(case.kind, a), distribution(case.kind, b), score=case.score)

        def theirs(a: Any, b: Any) -> Any:
            return case.pair(torch, a, b)

        self.score = ours if backend == "peaccel" else theirs
        if backend == "torch.compile":
            self.score = torch.compile(theirs, dynamic=False)
        self.time_paired_gradient(score, backend)

    def time_paired_gradient(self, score: str, backend: str) -> None:
        torch.autograd.grad(self.score(self.a, self.b).sum(), (*self.a, *self.b))


class Rescore(Scores):
    """100 random candidates for each of 100 queries, out of 20,000 rows."""

    def setup(self, score: str, backend: str) -> None:
        case, queries, count = CASES[score], 100, 100
        q, g = fields(case.kind, queries, DIM, seed=1), fields(case.kind, 20_000, DIM, seed=2)
        ids = np.random.default_rng(3).integers(0, 20_000, (queries, count))
        if backend == "peaccel":
            x, y = distribution(case.kind, q), distribution(case.kind, g)
            self.call = lambda: pe.rescore(x, y, ids, score=case.score)
        elif backend == "faiss":
            function = getattr(faiss, self._faiss(score)[0])
            out = np.empty((queries, count), np.float32)
            self.call = lambda: function(*map(faiss.swig_ptr, (out, q[0], g[0], ids)), DIM, queries, count)
        else:
            self.call = peer(case, backend, rescored(case), q, g, ids)

    def time_rescore(self, score: str, backend: str) -> None:
        self.call()


class Pairwise(Scores):
    """Every one of 64 queries against every one of 2,000 rows."""

    def setup(self, score: str, backend: str) -> None:
        case = CASES[score]
        q, g = fields(case.kind, 64, DIM, seed=1), fields(case.kind, 2_000, DIM, seed=2)
        if backend == "peaccel":
            x, y = distribution(case.kind, q), distribution(case.kind, g)
            self.call = lambda: pe.pairwise(x, y, score=case.score)
        elif backend == "faiss":
            metric = getattr(faiss, self._faiss(score)[1])
            self.call = lambda: faiss.pairwise_distances(q[0], g[0], metric)
        else:
            self.call = peer(case, backend, pairwise(case), q, g)

    def time_pairwise(self, score: str, backend: str) -> None:
        self.call()
