"""Every kernel of scores: what a new one costs, what an old one comes to, and how far off it is."""

from __future__ import annotations

import numpy as np

from benches.data import distribution, every_kernel, fields, pe, with_params

DIM, QUERIES, CANDIDATES, K = 128, 16, 100, 10


class EveryKernel:
    """500 pairs; the gradient of 16 x 500; 100 candidates for each of 16 queries; the best 10 of 5,000 (drawn: 500)."""

    param_names = ("score",)
    params = (every_kernel(),)

    def setup(self, kernel: str) -> None:
        name, *kinds = kernel.split()
        self.score = with_params(name, kinds[0])
        self.op = self.score.pair(*kinds).op
        rows = 500 if self.op.draws else 5_000
        self.a, self.b, gallery = (
            distribution(kind.removeprefix("normal_"), fields(kind.removeprefix("normal_"), n, DIM, seed))
            for seed, (kind, n) in enumerate(zip((*kinds, kinds[1]), (500, 500, rows), strict=True))
        )
        self.queries, self.gallery = self.a[:QUERIES], pe.prepare(gallery, self.score)
        self.inputs = pe.prepared.plan(self.queries, self.b, self.score, detach=True).inputs
        self.weights = np.ones((QUERIES, 500), np.float32)
        self.ids = np.random.default_rng(3).integers(0, rows, (QUERIES, CANDIDATES))

    def time_paired(self, kernel: str) -> None:
        pe.paired(self.a, self.b, self.score)

    def time_backward(self, kernel: str) -> None:
        self.op.numpy_backward(self.weights, self.inputs, None, True)

    def time_rerank(self, kernel: str) -> None:
        pe.rerank(self.queries, self.gallery, self.ids, K, self.score)

    def time_search(self, kernel: str) -> None:
        pe.search(self.queries, self.gallery, K, self.score)


class Accuracy:
    """The largest error of 64 pairs, D=17, against the definitions, in roundings of the sum of all terms' sizes."""

    param_names = ("score", "dtype")
    params = (every_kernel(), ("float32", "float64"))
    unit = "roundings"

    def track_error(self, kernel: str, dtype: str) -> float:
        from tests import reference

        name, *kinds = kernel.split()
        score = with_params(name, kinds[0])
        if score.pair(*kinds).op.sampled:
            raise NotImplementedError("what is drawn is tested by its draws")
        sides = [fields(kind.removeprefix("normal_"), 64, 17, seed) for seed, kind in enumerate(kinds)]
        sides = [tuple(x.astype(dtype) for x in side) for side in sides]
        a, b = (distribution(kind.removeprefix("normal_"), x) for kind, x in zip(kinds, sides, strict=True))
        exact = [(mu.astype(reference.WIDE), extra.astype(reference.WIDE).reshape(64, -1)) for mu, extra in sides]
        value, size = reference.score(score.name, tuple(kinds), *exact, score.params)
        return float(np.abs((pe.paired(a, b, score) - value) / size).max() / np.finfo(dtype).eps)
