"""Every score of `peaccel scores`, once for each kernel it has: what a new one costs, and what an old one comes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benches.common import PRIOR, distribution, fields, pe

DIM, QUERIES, CANDIDATES, K = 128, 16, 100, 10


def with_params(name: str, kind: str) -> Any:
    """The score, with the parameters that have to be given."""
    score = pe.scores.get(name)
    given = {"prior_var": PRIOR} if name == "llr" and kind != "vmf" else {"seed": 0}
    return score(**{param: value for param, value in given.items() if param in score.params})


def cases() -> Iterator[str]:
    """Name and kinds of query and gallery, equal kinds where the kernel takes such."""
    for name, score in pe.scores.SCORES.items() if pe is not None else ():
        kinds = {}
        for query, gallery in sorted(score.pairs, key=lambda pair: pair[0] != pair[1]):
            op = with_params(name, query).pair(query, gallery).op
            kinds.setdefault(op.name, f"{name} {query} {gallery}")
        yield from kinds.values()


class EveryScore:
    """2,000 pairs; 100 candidates for each of 16 queries, and the best 10 of 20,000 prepared rows (2,000 by draws)."""

    param_names = ("score",)
    params = (tuple(cases()),)

    def setup(self, case: str) -> None:
        name, *kinds = case.split()
        self.score = with_params(name, kinds[0])
        rows = 2_000 if self.score.pair(*kinds).op.draws else 20_000
        self.a, self.b, gallery = (
            distribution(kind.removeprefix("normal_"), fields(kind.removeprefix("normal_"), n, DIM, seed))
            for seed, (kind, n) in enumerate(zip((*kinds, kinds[1]), (2_000, 2_000, rows), strict=True))
        )
        self.queries, self.gallery = self.a[:QUERIES], pe.prepare(gallery, self.score)
        self.ids = np.random.default_rng(3).integers(0, rows, (QUERIES, CANDIDATES))

    def time_paired(self, case: str) -> None:
        pe.paired(self.a, self.b, self.score)

    def time_rerank(self, case: str) -> None:
        pe.rerank(self.queries, self.gallery, self.ids, K, self.score)

    def time_search(self, case: str) -> None:
        pe.search(self.queries, self.gallery, K, self.score)
