"""What a user may say under mypy --strict, which `make lint` runs: of arrays come arrays, of tensors tensors."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import peaccel as pe


def of_arrays(mu: NDArray[np.float32], var: NDArray[np.float32]) -> NDArray[np.int64]:
    d = pe.Normal(mu, var)
    reranker = pe.FaissReranker.build(d, "Flat")
    found: list[NDArray[np.float32]] = [pe.paired(d, d), pe.log_prob(d, mu), pe.special.log_iv(3, mu), d.mu, d[:3].var]
    scores, ids = pe.rerank(d, pe.prepare(d), np.zeros((len(found), 2), int), k=2)
    found.append(pe.merge([pe.search(d, d, k=5), reranker.search(d, k=5)], k=5, offsets=[0, 3]).scores)
    plda = pe.fit_plda(mu, np.zeros(len(mu)), dim=2)
    normed = pe.normalise_scores(pe.search(d, d, k=5), queries=mu)
    found += [normed.scores, pe.pairwise(plda.transform(mu), d, plda.score), pe.normalise_scores(mu, gallery=mu)]
    return scores.argsort() if len(ids) else reranker.search(d, k=5).ids


def of_tensors(mu: Tensor, kappa: Tensor) -> Tensor:
    d = pe.VonMisesFisher(mu, kappa)
    reranker = pe.FaissReranker(None, pe.prepare(d))
    found = [pe.pairwise(d, d), pe.kl(d, d), pe.sample(d, 3), pe.confidence(d), pe.special.log_iv(3, kappa), d.kappa]
    assert_type(pe.Normal(mu, 0.5), pe.Normal[Tensor])
    return pe.search(d, d, k=5).ids if found else reranker.search(d, k=5).ids


def of_lists() -> NDArray[np.float64]:
    return pe.entropy(pe.Normal([[0.0, 1.0]], var=[0.1]))


def of_either(d: pe.Distribution, ranking: pe.Ranking) -> int:
    return len(d) + len(ranking.ids)


def mixed(mu: Tensor, other: NDArray[np.float32]) -> Tensor:
    pe.search(pe.Point(mu), pe.Point(other), k=5)  # type: ignore[misc]
    return pe.search(pe.Point(other), pe.Point(other), k=5).ids  # type: ignore[return-value]
