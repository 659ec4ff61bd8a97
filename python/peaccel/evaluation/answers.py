"""Which answers are right, and how a score answers queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel import scores
from peaccel._utils.arrays import is_torch, on_host, require_same_kind
from peaccel._utils.suggestions import require_classes
from peaccel._utils.warn import warn
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.evaluation.columns import RankedMetric
from peaccel.metrics import Relevance, hit_at_k
from peaccel.metrics._judged_ranking import drop_self
from peaccel.metrics._relation import Relation, as_relation
from peaccel.retrieval.adaptive_norm import SHORTLIST, AdaptiveNorm
from peaccel.retrieval.prepared import prepare
from peaccel.retrieval.ranking import Ranking
from peaccel.retrieval.verbs import paired, search
from peaccel.scores import Score

__all__ = [
    "Answers",
    "answered",
    "as_scores",
    "as_truth",
    "numbers",
    "of_pairs",
    "require_items",
    "require_sides",
    "warn_of_copies",
]

BLOCK = 1 << 22
"""Ids, or coordinates of pairs, that are held at once."""
GREAT = 1e300  # stands for infinity where scores are subtracted
DEFAULT = ("cosine", "mls")
"""The scores that are evaluated unless others are named: of these, those that take the kinds."""


def as_scores(owner: str, named: str | Score | Sequence[str | Score] | None, kinds: tuple[str, str]) -> list[Score]:
    """One score, or several, by their names or themselves; by default those of `DEFAULT` that take these kinds."""
    if named is None:
        return [score for score in map(scores.get, DEFAULT) if kinds in score.pairs] or [scores.get(DEFAULT[0])]
    if not isinstance(named, str | Score | Iterable):
        raise TypeError(f"{owner}: scores is {type(named).__name__}, expected names or scores")
    found = [scores.get(score) for score in ([named] if isinstance(named, str | Score) else named)]
    if not found:
        raise ValueError(f"{owner}: scores is empty, expected at least one")
    labels = [score.label for score in found]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(f"{owner}: scores name {twice[0]} {labels.count(twice[0])} times, expected each once")
    return found


def require_items(owner: str, **sides: Distribution | None) -> None:
    """Refuse anything but distributions, some of which may not be there."""
    for name, d in sides.items():
        if d is not None:
            require_distribution(owner, name, d)


def require_sides(
    owner: str,
    queries: Distribution,
    gallery: Distribution | None,
    named: Sequence[Score],
    argument: str = "scores",
) -> None:
    """Refuse, before any work, a gallery of another dim or kind of array, and scores that do not take these items or
    lack a parameter.
    """
    items = queries if gallery is None else gallery
    require_same_kind(owner, "gallery", items.mu, "queries", queries.mu)
    if items.dim != queries.dim:
        raise ValueError(f"{owner}: dim of gallery is {items.dim}, expected {queries.dim} like queries")
    for score in named:
        try:
            pair = score.pair(queries.kind, items.kind)
            for inputs, d in ((pair.query, queries), (pair.gallery, items)):
                inputs(d[:1], score.params)
            pair.shared(items.mu[:1], score.params)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{owner}: {argument}: {error}") from None


def as_truth(owner: str, labels: Any, queries: Sized, gallery: Sized | None, exclude: Any = None) -> Relation:
    """Items that are right for queries, by labels of both sides or by a `Relevance`, without the excluded ones."""
    sizes = len(queries), None if gallery is None else len(gallery)
    if isinstance(labels, Relevance):
        found, expected = (
            f"{q} queries {'among themselves' if leave_one_out else f'and {g} gallery items'}"
            for q, g, leave_one_out in (
                (labels.queries, labels.gallery, labels.leave_one_out),
                (*sizes, gallery is None),
            )
        )
        if found != expected:
            raise ValueError(f"{owner}: labels is a Relevance of {found}, expected {expected}")
        return as_relation(owner, labels, None, exclude=exclude)
    pair = isinstance(labels, tuple) and len(labels) == 2 and not np.isscalar(labels[0])
    if labels is None or pair != (gallery is not None):
        found = "None" if labels is None else type(labels).__name__
        expected = "(labels of the queries, labels of the gallery)" if gallery is not None else "labels of the queries"
        raise ValueError(f"{owner}: labels is {found}, expected {expected}")
    sides = [x.cpu() if is_torch(x) else x for x in (labels if pair else (labels,))]
    names = ("labels of queries", "labels of the gallery") if pair else ("labels",)
    for name, side, count in zip(names, sides, sizes, strict=False):
        require_classes(owner, name, side)
        if (shape := on_host(side, owner, name).shape) != (count,):
            raise ValueError(f"{owner}: {name} has shape {shape}, expected ({count},)")
    return as_relation(owner, sides[0], sides[1] if pair else None, names, exclude)


@dataclass(frozen=True)
class Answers:
    """How one score answers each query by ranking the gallery, the query's row left out."""

    best: NDArray[np.int64]
    """[Q], the gallery's row of the first item; -1 where there is none."""
    scores: NDArray[np.float64]
    """[Q, 2], the scores of the best two; -inf where there is none."""
    dtype: np.dtype[Any]
    """In which the scores were computed, and in which a threshold of them is to part them."""
    values: Mapping[Any, NDArray[np.float64]]
    """By what was asked for, [Q]; NaN where no item of the gallery is right."""
    right: NDArray[np.float64]
    """[Q], 1 where the first item is right for the query, else 0; NaN where none in the gallery is."""
    cut: int
    """How many rankings end among items of one score, before all right items were met: others may be left out."""
    other: NDArray[np.float64] | None = None
    """[Q], the score of the best item of another class than the first item's; -inf where none was met, None where
    classes are not known."""


def answered(
    owner: str,
    queries: Distribution,
    gallery: Distribution | None,
    truth: Relation,
    score: Score,
    asked: Mapping[Any, RankedMetric],
    deepest: int = 2,
    whole: bool = True,
    classes: NDArray[Any] | None = None,
    norm: AdaptiveNorm | None = None,
    seed: int | None = None,
) -> Answers:
    """The gallery ranked for each query, to the depth that is given, or, `whole`, that of the largest class where it is
    larger, and what is asked. Where the classes of the gallery are given, deep enough to meet another class than that
    of the first item; where scores are normalised, of as many items as in a search. Of items that share the best score
    the first is drawn by a seed, or, without one, that of the lowest row, which a search returns.

    Queries are ranked block by block: the rankings of all of them, where classes are large, are far larger than what
    is asked of them.
    """
    leave_one_out, items = gallery is None, queries if gallery is None else gallery
    depth = max(int(truth.sizes().max(initial=0)) if whole else 0, 2, deepest)
    if classes is not None:
        depth = max(depth, int(np.unique(classes, return_counts=True)[1].max()) + 1)
    # One more column shows whether the last score is shared.
    depth = (depth + 1 if norm is None else max(depth, SHORTLIST)) + leave_one_out
    ready, step = prepare(items, score), max(BLOCK // depth, 1)
    blocks = []
    for start in range(0, len(queries), step):
        part, asking = truth.part(start, start + step), queries[start : start + step]
        ranking = search(asking, ready, depth, score, exclude=part.exclude)
        found, ids = ranked = Ranking(*map(on_host, ranking if norm is None else norm(ranking, asking)))
        shown = min(4, depth) if classes is None else depth
        best_ids, best = (
            drop_self(owner, ids[:, :shown], x[:, :shown], start) if leave_one_out else x[:, :shown]
            for x in (ids, found)
        )
        blocks.append(
            (
                best_ids[:, 0],
                numbers(owner, best[:, :2], score),
                hit_at_k(ids if seed is None else ranked, part),
                _cut(ranked, part),
                *([] if classes is None else [_of_another(classes[best_ids], best_ids, numbers(owner, best, score))]),
                *(_measured(owner, name, metric, ranked, part) for name, metric in asked.items()),
            )
        )
    first, scores_, share, cut, *values = (np.concatenate(column) for column in zip(*blocks, strict=True))
    if seed is not None:
        share = np.where(np.isnan(share), np.nan, share > np.random.default_rng(seed).random(len(share)))
    other = None if classes is None else values.pop(0)
    return Answers(first, scores_, found.dtype, dict(zip(asked, values, strict=True)), share, int(cut.sum()), other)


def _cut(ranking: Ranking[Any], truth: Relation) -> NDArray[np.bool_]:
    """[Q], whether a ranking ends among items of one score, and not all right items score higher."""
    scores, ids = ranking
    cut = (scores[:, -1] == scores[:, -2]) & (ids[:, -1] >= 0)
    rows = np.flatnonzero(cut)
    higher = truth.right(rows[:, None], ids[rows]) & (scores[rows] > scores[rows, -1:])
    if truth.leave_one_out:
        higher &= ids[rows] != truth.first + rows[:, None]
    cut[rows] = higher.sum(1) < truth.sizes()[rows]
    return np.asarray(cut)


def _of_another(classes: NDArray[Any], ids: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score [Q] of the best item of another class than the first one's."""
    others = (classes != classes[:, :1]) & (ids >= 0)
    found = np.take_along_axis(scores, others.argmax(1)[:, None], 1)[:, 0]
    return np.where(others.any(1), found, -np.inf)


def _measured(
    owner: str, name: Any, metric: RankedMetric, ranking: Ranking[Any], truth: Relation
) -> NDArray[np.float64]:
    """Values of a metric, [Q], of some rankings; checked, since it may be a user's."""
    found, count = np.asarray(metric(ranking, truth)), len(ranking.ids)
    if found.shape != (count,) or found.dtype.kind not in "biuf":
        raise ValueError(f"{owner}: {name} gave shape {found.shape} of {found.dtype}, expected ({count},)")
    lost = np.flatnonzero(~np.isfinite(found) & (truth.sizes() > 0))
    if len(lost):
        query = getattr(truth, "first", 0) + lost[0]
        raise ValueError(f"{owner}: {name} is {found[lost[0]]} for query {query}, expected a finite number")
    return np.asarray(found, np.float64)


def warn_of_copies(owner: str, queries: Distribution, gallery: Distribution | None, best: NDArray[np.int64]) -> None:
    """Say how many queries found themselves."""
    if gallery is None or queries.kind != gallery.kind:
        return
    sides = [[on_host(x) for x in d.arrays] for d in (queries, gallery)]
    alike = [(q == g[best]).reshape(len(q), -1).all(1) for q, g in zip(*sides, strict=True)]
    copies = int((np.all(alike, 0) & (best >= 0)).sum())
    if copies:
        warn(
            f"{owner}: the best item of {copies} of {len(queries)} queries equals the query bit for bit: where the "
            "queries are the gallery, give gallery=None (--embeddings); where they are a part of it, exclude=rows, the "
            "gallery's row of each query (--exclude-same id)"
        )


def warn_of_ties(owner: str, named: Sequence[Score], found: Sequence[Answers]) -> None:
    """Say how many rankings end among equal scores, so that the order of rows decides what they hold."""
    cut = [f"{answers.cut} by {score.label}" for score, answers in zip(named, found, strict=True) if answers.cut]
    if cut:
        warn(
            f"{owner}: of {len(found[0].best)} rankings some end among items of one score, {', '.join(cut)}: which "
            "of these items are counted is decided by the order of the gallery's rows"
        )


def of_pairs(
    owner: str, queries: Distribution, items: Distribution, pairs: NDArray[np.int64], score: Score
) -> NDArray[np.float64]:
    """Scores of pairs of rows, block by block, as so many copies of items are large."""
    step = max(BLOCK // queries.dim, 1)
    blocks = (pairs[start : start + step].T for start in range(0, max(len(pairs), 1), step))
    return np.concatenate([numbers(owner, paired(queries[a], items[b], score), score) for a, b in blocks])


def numbers(owner: str, scores: Any, score: Score) -> NDArray[np.float64]:
    """Scores in float64, none of them NaN; infinite ones, of exact copies and of what cannot match, as great ones.

    These keep their order and can be subtracted.
    """
    found = on_host(scores).astype(np.float64)
    if np.isnan(found).any():
        raise ValueError(f"{owner}: score {score.label} is NaN for some pairs: see validate() of both sides")
    within: NDArray[np.float64] = np.clip(found, -GREAT, GREAT)
    return within
