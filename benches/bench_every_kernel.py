"""Every kernel of scores: its speed, and its largest error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import costly, distribution, every_kernel, fields, pe, with_params
from peaccel.retrieval.plan import plan

ROOT = Path(__file__).parents[1]
DIM, QUERIES, CANDIDATES, K = 128, 16, 100, 10
CALLS = 10


@cache  # asv sets up anew for each sample
def calls(kernel: str) -> dict[str, Callable[[], Any]]:
    """Each verb, ready to be called."""
    name, *kinds = kernel.split()
    score = with_params(name, kinds[0])
    op = score.pair(*kinds).op
    pairs, rows = (50, 50) if costly(op) else (500, 5_000)
    a, b, gallery = (
        distribution(kind.removeprefix("normal_"), fields(kind.removeprefix("normal_"), n, DIM, seed))
        for seed, (kind, n) in enumerate(zip((*kinds, kinds[1]), (pairs, pairs, rows), strict=True))
    )
    queries, prepared = a[:QUERIES], pe.prepare(gallery, score)
    inputs = plan(queries, b, score, detach=True).inputs
    ids = np.random.default_rng(3).integers(0, rows, (QUERIES, CANDIDATES))
    return {
        "paired": partial(pe.paired, a, b, score),
        "backward": partial(pe.ops._numpy.score_backward, op, np.ones((QUERIES, pairs), "f"), inputs, None, True),
        "rerank": partial(pe.rerank, queries, prepared, ids, K, score),
        "search": partial(pe.search, queries, prepared, K, score),
    }


class EveryKernel:
    """Ten calls: 500 pairs; the gradient of 16 x 500; 16 shortlists of 100; 16 queries in 5,000 rows (costly: 50)."""

    param_names = ("score",)
    params = (every_kernel(),)

    def setup(self, kernel: str) -> None:
        self.calls = calls(kernel)

    def _time(self, verb: str) -> None:
        for _ in range(CALLS):
            self.calls[verb]()

    def time_paired(self, kernel: str) -> None:
        self._time("paired")

    def time_backward(self, kernel: str) -> None:
        self._time("backward")

    def time_rerank(self, kernel: str) -> None:
        self._time("rerank")

    def time_search(self, kernel: str) -> None:
        self._time("search")


class Accuracy:
    """The largest error of 64 pairs, D=17, against the definitions, in roundings of the sum of all terms' sizes."""

    param_names = ("score", "dtype")
    params = (every_kernel(), ("float32", "float64"))
    unit = "roundings"

    def setup(self, kernel: str, dtype: str) -> None:
        name, *kinds = kernel.split()
        self.score = with_params(name, kinds[0])
        if self.score.pair(*kinds).op.sampled:
            raise NotImplementedError("what is drawn is tested by its draws")

    def track_error(self, kernel: str, dtype: str) -> float:
        sys.path.append(str(ROOT))  # asv knows the folder of benches alone
        from tests import reference

        _, *kinds = kernel.split()
        sides = [fields(kind.removeprefix("normal_"), 64, 17, seed) for seed, kind in enumerate(kinds)]
        sides = [tuple(x.astype(dtype) for x in side) for side in sides]
        a, b = (distribution(kind.removeprefix("normal_"), x) for kind, x in zip(kinds, sides, strict=True))
        exact = [(mu.astype(reference.WIDE), x.astype(reference.WIDE).reshape(64, -1)) for mu, x in sides]
        value, size = reference.score(self.score.name, tuple(kinds), *exact, self.score.params)
        return float(np.abs((pe.paired(a, b, self.score) - value) / size).max() / np.finfo(dtype).eps)
