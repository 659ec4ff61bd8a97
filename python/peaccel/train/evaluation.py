"""The evaluation of a trained model: retrieval of held-out items, and whether confidence follows corruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from peaccel import metrics, retrieval, scores
from peaccel.distributions import Point
from peaccel.distributions.confidence import confidence
from peaccel.methods.method import Method, Training
from peaccel.scores import Score
from peaccel.train.embedding import embed
from peaccel.train.sources import Items

__all__ = ["HeldOutMetrics", "check_parts", "evaluate_means", "judge", "map_at_r", "scored", "validation_rows"]

JUDGED = ("test", "validation", "train")
"""Parts, of which the first that exists is evaluated where there are no queries and gallery."""


VALIDATED = 10_000
"""The most held-out items that are searched after an epoch: 5000 queries, of which a mean has a standard error of 0.7
points at most, and the same ones at every epoch. Time grows with the square: of 50,000 items of 384 dimensions with
diagonal variances a search takes the time of several epochs, of 10,000 seconds."""


class Retrieved(NamedTuple):
    """How queries find what is of their class in a gallery."""

    recall_at_1: float
    map_at_r: float
    chance: float
    """Recall@1 of rankings at random."""
    queries: int
    """How many were asked."""
    by_query: dict[str, NDArray[Any]]
    """Of each query its label, whether its best item is right, and its average precision at R."""


@dataclass(frozen=True)
class HeldOutMetrics:
    """How a model retrieves."""

    part: str
    """The part of the data set that was evaluated."""
    recall_at_1: float
    map_at_r: float
    chance: float
    """Recall@1 of rankings at random."""
    queries: int
    """How many queries were asked."""
    uncertainty_and_severity: float | None
    """Spearman's rank correlation of severity and of minus the confidence of the queries, where both are known: 1 where
    the least confident ones are the most corrupted."""


def check_parts(data: str, parts: Mapping[str, Items]) -> None:
    """Refuse, before the work, parts in which nothing can be told apart or searched for.

    Raises
    ------
    ValueError
        There is no part to train on; a part to train or to judge on has one class, or one to judge on has no class with
        two items.
    """
    if "train" not in parts:
        raise ValueError(f"data {data}: has no labelled items to train on, only {', '.join(parts)}")
    for part, items in parts.items():
        if part not in JUDGED or isinstance(items.data, tuple):  # pairs of images and captions have no classes to check
            continue
        sizes = np.bincount(items.labels)
        if (classes := int((sizes > 0).sum())) < 2:
            raise ValueError(f"data {data}: part {part} has {classes} class, expected at least 2")
        if sizes.max() < 2 and (part != "train" or not parts.keys() & {"test", "validation", "query"}):
            raise ValueError(f"data {data}: no class of part {part} has two items, so that none can be searched for")


def validation_rows(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The rows, ascending, of the held-out items by which epochs are compared.

    All of at most `VALIDATED`; of more, whole classes are drawn: so many that the next one would make too many, but at
    least two.
    """
    _, of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(labels) <= VALIDATED:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(sizes))
    kept = order[: max(int((sizes[order].cumsum() <= VALIDATED).sum()), 2)]
    if sizes[kept].max() < 2:  # nothing could be found
        kept[0] = sizes.argmax()
    return np.flatnonzero(np.isin(of, kept))


def scored(method: Method, training: Training, d: Any, labels: NDArray[np.int64]) -> Score:
    """The score by which a trained model retrieves, fitted on held-out items where it has something to fit."""
    return scores.get(method.score) if training.score is None else training.score(d, labels)


def map_at_r(d: Any, labels: NDArray[np.int64], score: Score) -> Retrieved:
    """Search one half of each class in the other; captions in images where d is a pair."""
    if isinstance(d, tuple):
        images, captions = d
        _, first = np.unique(labels, return_index=True)
        return _retrieve(captions, labels, images[first], labels[first], score)
    order = np.argsort(labels, kind="stable")
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    query = place % 2 == 1
    return _retrieve(d[query], labels[query], d[~query], labels[~query], score)


def judge(
    method: Method, training: Training, score: Score, parts: Mapping[str, Items]
) -> tuple[HeldOutMetrics, dict[str, NDArray[Any]]]:
    """Judge queries against the gallery where there are such, else halves of the classes of the first of `JUDGED`.

    Returns also the numbers of each query.
    """
    if "query" in parts and "gallery" in parts:
        query, gallery = parts["query"], parts["gallery"]
        d = embed(training.model, query.data)
        found = _retrieve(d, query.labels, embed(training.model, gallery.data), gallery.labels, score)
        return _judged("query", found, _with_severity(method, d, query))
    part = next(part for part in JUDGED if part in parts)
    items = parts[part]
    found = map_at_r(embed(training.model, items.data), items.labels, score)
    return _judged(part, found, None)


def _judged(part: str, found: Retrieved, of_severity: float | None) -> tuple[HeldOutMetrics, dict[str, NDArray[Any]]]:
    """The numbers of a part, and those of its queries."""
    numbers = found.recall_at_1, found.map_at_r, found.chance, found.queries
    return HeldOutMetrics(part, *numbers, of_severity), found.by_query


class _Means(nn.Module):
    """Takes features for points, without what stands beside them."""

    def __init__(self, covariates: int) -> None:
        super().__init__()
        self.covariates = covariates

    def forward(self, features: Tensor) -> Point:
        return Point(features[:, : features.shape[1] - self.covariates])


def evaluate_means(method: Method, parts: Mapping[str, Items]) -> HeldOutMetrics:
    """Judge the cosine of features as `judge` does a model that was trained on them."""
    return judge(method, Training(_Means(parts["train"].covariates), nn.Identity(), ()), scores.get("cosine"), parts)[0]


def _retrieve(
    queries: Any, query_labels: NDArray[np.int64], gallery: Any, gallery_labels: NDArray[np.int64], score: Score
) -> Retrieved:
    largest = int(np.unique(gallery_labels, return_counts=True)[1].max())
    found = retrieval.search(queries, gallery, largest + 1, score), query_labels, gallery_labels
    chance = (
        np.bincount(gallery_labels, minlength=int(query_labels.max()) + 1)[query_labels] / len(gallery_labels)
    ).mean()
    right, precision = metrics.hit_at_k(*found), metrics.average_precision_at_r(*found)
    by_query = {"labels": query_labels, "recall_at_1": right, "map_at_r": precision}
    return Retrieved(_mean(right), _mean(precision), float(chance), len(query_labels), by_query)


def _mean(values: NDArray[np.float64]) -> float:
    """The mean over queries with a right item; NaN where there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _with_severity(method: Method, d: Any, items: Items) -> float | None:
    """The rank correlation of confidence and quality of the items; 0 where one of them is constant."""
    if items.quality is None or method.confidence == "-":
        return None
    kind = None if method.confidence == "default" else method.confidence
    sure = np.asarray(confidence(d, kind))
    if min(np.ptp(sure), np.ptp(items.quality)) == 0:
        return 0.0
    return metrics.spearman(items.quality, sure)
