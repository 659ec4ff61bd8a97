"""Which answers are right, how a score answers queries, and how it separates pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import peaccel as pe
from peaccel import metrics
from peaccel.distributions import Distribution
from peaccel.metrics import Relevance
from peaccel.metrics._relation import Relation, as_relation
from peaccel.ops._array import as_numpy, is_torch
from peaccel.scores import Score

__all__ = ["Answers", "answered", "as_scores", "as_truth", "numbers", "on_host", "verification"]

FAR = 1e-3


def as_scores(owner: str, scores: str | Score | Sequence[str | Score]) -> list[Score]:
    """One score, or several, by their names or themselves."""
    named = [pe.scores.get(score) for score in ([scores] if isinstance(scores, str | Score) else scores)]
    if not named:
        raise ValueError(f"{owner}: scores is empty, expected at least one")
    return named


def as_truth(owner: str, labels: Any, queries: int, gallery: int | None) -> Relation:
    """Which items are right for which queries, by labels of both sides or by a `Relevance`."""
    if isinstance(labels, Relevance):
        given, expected = (
            f"{q} queries {'among themselves' if own else f'and {g} gallery items'}"
            for q, g, own in ((labels.queries, labels.gallery, labels.own), (queries, gallery, gallery is None))
        )
        if given != expected:
            raise ValueError(f"{owner}: labels is a Relevance of {given}, expected {expected}")
        return labels
    pair = isinstance(labels, tuple) and len(labels) == 2 and not np.isscalar(labels[0])
    if pair != (gallery is not None):
        expected = "(labels of the queries, labels of the gallery)" if gallery is not None else "labels of the queries"
        raise ValueError(f"{owner}: labels is {type(labels).__name__}, expected {expected}")
    sides = [np.asarray(on_host(x)) for x in (labels if pair else (labels,))]
    for side, found, count in zip(("queries", "gallery"), sides, (queries, gallery), strict=False):
        if found.shape != (count,):
            raise ValueError(f"{owner}: labels of {side} has shape {found.shape}, expected ({count},)")
    return as_relation(owner, sides[0], sides[1] if pair else None)


@dataclass(frozen=True)
class Answers:
    """How one score ranks the gallery for each query."""

    ids: NDArray[np.int64]
    """[Q, K]; their own rows included, where the queries are the gallery."""
    scores: NDArray[np.float64]
    """[Q, 2], the scores of the best two, own rows left out; -inf where there is none."""
    right: NDArray[np.float64]
    """[Q], 1 where the first item is right for the query, else 0; NaN where none in the gallery is."""


def answered(
    owner: str,
    queries: Distribution,
    gallery: Distribution | None,
    truth: Relation,
    score: Score,
    ks: tuple[int, ...],
) -> Answers:
    """The gallery ranked for each query, as deep as recall at each of the ks and average precision at R need."""
    own, items = gallery is None, queries if gallery is None else gallery
    depth = max(int(truth.sizes().max(initial=0)) + own, 2 + own, *(at + own for at in ks))
    found, ids = (on_host(x) for x in pe.search(queries, items, depth, score))
    best = found if gallery is not None else metrics.without_self(ids, found)
    right = metrics.hit_at_k(ids, truth, None, 1)
    if np.isnan(right).all():
        raise ValueError(f"{owner}: no query has an answer in the gallery")
    return Answers(ids, numbers(owner, best[:, :2], score), right)


def numbers(owner: str, scores: Any, score: Score) -> NDArray[np.float64]:
    """Scores in float64, none of them NaN."""
    found = on_host(scores).astype(np.float64)
    if np.isnan(found).any():
        raise ValueError(f"{owner}: score {score.label} is NaN for some pairs: see validate() of both sides")
    return found


def verification(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ROC AUC, EER and TAR at `FAR`; scores of -inf or inf are kept in their order."""
    if not len(same):
        return np.nan, np.nan, np.nan
    finite = np.clip(scores, -1e300, 1e300)
    rate = metrics.tar_at_far(finite, same, FAR).tar
    return metrics.roc_auc(finite, same), metrics.equal_error_rate(finite, same), rate


def on_host(x: Any) -> NDArray[Any]:
    """A list, an array, or a tensor on any device as an array on the host; bfloat16 becomes float32."""
    if is_torch(x):
        return as_numpy(x.cpu())
    return as_numpy(x) if isinstance(x, np.ndarray) else np.asarray(x)
