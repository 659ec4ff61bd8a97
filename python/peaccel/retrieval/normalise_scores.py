"""Normalisation of scores by those with a cohort: items of nobody who is searched for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from peaccel._utils.arrays import (
    Array,
    ArrayT,
    Given,
    KindT,
    as_array,
    cast,
    namespace,
    on_host,
    quiet,
    require_numbers,
    require_same_kind,
)
from peaccel.distributions import Distribution
from peaccel.distributions.checks import compute_dtype, require_distribution
from peaccel.retrieval.ranking import Ranking, best_first, of_score

__all__ = ["NEAREST", "norm_by", "normalise_scores"]

NEAREST = 300
"""How many of the cohort, those nearest to an item, its scores are normalised by where nothing else is said."""


@overload
def normalise_scores(
    scores: Ranking[ArrayT],
    *,
    queries: Ranking[ArrayT] | ArrayT | Given | None = None,
    gallery: Ranking[ArrayT] | ArrayT | Given | None = None,
    cohort: Distribution | None = None,
) -> Ranking[ArrayT]: ...
@overload
def normalise_scores(
    scores: KindT | Sequence[Sequence[float]],
    *,
    queries: Ranking[KindT] | KindT | Given | None = None,
    gallery: Ranking[KindT] | KindT | Given | None = None,
) -> KindT: ...
@overload
def normalise_scores(
    scores: KindT | Sequence[float],
    *,
    queries: Ranking[KindT] | KindT | Given | None = None,
    gallery: Ranking[KindT] | KindT | Given | None = None,
    pairs: KindT | Given,
) -> KindT: ...
@quiet
def normalise_scores(
    scores: Ranking[ArrayT] | ArrayT | Given,
    *,
    queries: Ranking[ArrayT] | ArrayT | Given | None = None,
    gallery: Ranking[ArrayT] | ArrayT | Given | None = None,
    pairs: ArrayT | Given | None = None,
    cohort: Distribution | None = None,
) -> Ranking[ArrayT] | ArrayT:
    """Scores in standard deviations above the mean score with a cohort, so that one threshold serves all items.

    With the mean m and the standard deviation d of an item's scores with the cohort, the side that is given says which:

    ===================  =========================================================================================
    norm                 of a score s
    ===================  =========================================================================================
    Z-norm               ``gallery=``: (s - m) / d of the gallery item
    T-norm               ``queries=``: (s - m) / d of the query
    S-norm               both: the mean of the two
    adaptive S-norm      both, each with its nearest of the cohort: ``pe.search(items, cohort, k=300, score)``
    ===================  =========================================================================================

    Parameters
    ----------
    scores
        [Q, G], as of `pairwise`; or a Ranking, whose ids Z- and S-norm take for gallery rows; or [P], with pairs.
    queries, gallery
        [Q, N] and [G, M]: scores of each query, and of each gallery item, with items of the cohort, N, M >= 2, finite
        and not all equal. All of the cohort, by `pairwise`, or the best of it: a Ranking, as `search` gives it. Of the
        same score, also its scale; of a score that is not symmetric the gallery's scores are ``pe.pairwise(cohort,
        gallery, score).T``.
    pairs
        [P, 2] integers: rows of the query and of the gallery item of each score, as of a list of trials.
    cohort
        The N items of the cohort, by which the norm of a Ranking is known: a threshold of `choose_threshold`, of the
        same cohort, takes the Ranking then, and its best items alone (example below).

    Returns
    -------
    In the compute dtype (float32 for 16-bit floats), computed in float64. [Q, G] or [P], differentiable in torch; of a
    Ranking a Ranking of the same items, in their new order: best first, then NaN, then padding, ties by the lower row.
    What the list did not hold is not found: search for more items than are needed.

    Raises
    ------
    TypeError
        Neither side is given; arrays of different kinds; a cohort beside something else than a Ranking.
    ValueError
        Wrong shapes, devices, ids beyond the gallery's rows, or the cohort's; rankings of different scores; scores with
        the cohort that are not finite, as where k was more than the cohort has, or all equal.

    Notes
    -----
    The deviation is that of the N scores themselves (divided by N, not by N - 1). Cohort items are of other identities
    than queries and gallery; what belongs to an item itself would stand far above the others.

    References
    ----------
    Auckenthaler, Carey & Lloyd-Thomas, "Score Normalization for Text-Independent Speaker Verification Systems", 2000,
    Z- and T-norm; Kenny, "Bayesian speaker verification with heavy-tailed priors", 2010, S-norm; Matejka et al.,
    "Analysis of Score Normalization in Multilingual Speaker Recognition", 2017, the adaptive one, there AS-norm1.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cohort = pe.Point(rng.normal(size=(50, 8)))
    >>> gallery, queries = pe.Point(rng.normal(size=(4, 8))), pe.Point(rng.normal(size=(2, 8)))
    >>> of_queries, of_gallery = (pe.search(d, cohort, 10, "cosine") for d in (queries, gallery))
    >>> ranking = pe.search(queries, gallery, 3, "cosine")
    >>> ranking.ids.tolist(), ranking.scores.round(2).tolist()
    ([[0, 2, 3], [0, 2, 3]], [[0.57, 0.55, -0.08], [0.37, 0.06, -0.11]])
    >>> normed = pe.normalise_scores(ranking, queries=of_queries, gallery=of_gallery)
    >>> normed.ids.tolist(), normed.scores.round(2).tolist()
    ([[2, 0, 3], [0, 2, 3]], [[1.49, 0.39, -4.28], [-1.27, -3.6, -3.87]])

    A threshold of normalised scores, and new queries, normalised as the labelled ones were: the 100 best items of each
    query, by the 300 nearest of the cohort, or all that there are:

    >>> labels, people = np.arange(200), rng.normal(size=(200, 8))
    >>> seen = lambda: pe.Point(people + 0.2 * rng.normal(size=(200, 8)))
    >>> gallery, labelled, new = seen(), seen(), seen()
    >>> accept = pe.choose_threshold(labelled, gallery, (labels, labels), "cosine", wrong=0.1, cohort=cohort).accept
    >>> of_new, of_gallery = (pe.search(d, cohort, 50, "cosine") for d in (new, gallery))
    >>> ranking = pe.search(new, gallery, 100, "cosine")
    >>> normed = pe.normalise_scores(ranking, queries=of_new, gallery=of_gallery, cohort=cohort)
    >>> kept = accept(normed).ids[:, 0]  # -1: not answered
    >>> int((kept >= 0).sum()), round(float((kept != labels)[kept >= 0].mean()), 2)
    (197, 0.05)
    """
    owner = "normalise_scores"
    if queries is None and gallery is None:
        raise TypeError(f"{owner}: expected queries, gallery or both, their scores with the cohort")
    norm = "T-norm" if gallery is None else "Z-norm" if queries is None else "S-norm"
    if cohort is not None:
        norm = _checked_norm(norm, cohort, scores, queries=queries, gallery=gallery)
    ids, of = (scores.ids, scores.score) if isinstance(scores, Ranking) else (None, None)
    for name, side in (("queries", queries), ("gallery", gallery)):
        if of and isinstance(side, Ranking) and side.score and side.score != of:
            raise ValueError(f"{owner}: {name} has scores of {side.score.label}, expected {of.label} like scores")
    values = as_array(scores.scores if isinstance(scores, Ranking) else scores, owner, "scores")
    if values.ndim != (2 if pairs is None else 1):
        expected = "(Q, G), or (P,) with pairs" if pairs is None else "(P,) beside pairs"
        raise ValueError(f"{owner}: scores have shape {tuple(values.shape)}, expected {expected}")
    if pairs is not None:
        of_pairs: ArrayT = _of_pairs(values, queries, gallery, pairs)
        return of_pairs
    x, terms = cast(values, "float64"), []
    if queries is not None:
        mean, deviation = _moments("queries", queries, values, len(values))
        terms.append((x - mean[:, None]) / deviation[:, None])
    if gallery is not None:
        mean, deviation = _moments("gallery", gallery, values, None if isinstance(scores, Ranking) else values.shape[1])
        if ids is not None:
            if 0 not in ids.shape and not -1 <= int(ids.min()) <= int(ids.max()) < len(mean):
                raise ValueError(f"{owner}: ids of scores are not -1 .. {len(mean) - 1}, rows of gallery")
            mean, deviation = mean[ids], deviation[ids]  # what padding finds does not change -inf
        terms.append((x - mean) / deviation)
    normed: ArrayT = cast(sum(terms) / len(terms), compute_dtype(values))
    if not isinstance(scores, Ranking):
        return normed
    found: Ranking[ArrayT] = Ranking(*best_first(normed, ids, by_row=True))
    return of_score(found, of, norm, dim=scores.dim, gallery_size=scores.gallery_size)


def norm_by(norm: str, cohort: Distribution, nearest: int) -> str:
    """The name of a norm by so many of a cohort, in which another cohort, or another number of it, has another one."""
    checksum = zlib.crc32(b"".join(np.ascontiguousarray(on_host(x)).tobytes() for x in cohort.arrays))
    size = len(cohort)
    of = f"{size}" if nearest == min(NEAREST, size) else f"the nearest {nearest} of {size}"
    return f"adaptive {norm} by {of} items ({checksum:08x})"


def _checked_norm(norm: str, cohort: Distribution, scores: Any, **sides: Any) -> str:
    """The name of the norm by this cohort; sides that cannot be of it are refused."""
    owner = "normalise_scores"
    require_distribution(owner, "cohort", cohort)
    if not isinstance(scores, Ranking):
        raise TypeError(f"{owner}: cohort names the norm of a Ranking, got scores of {type(scores).__name__}")
    depths = set()
    for name, side in sides.items():
        if side is None:
            continue
        if not isinstance(side, Ranking):
            raise TypeError(f"{owner}: {name} beside cohort is {type(side).__name__}, expected a Ranking of its items")
        if (rows := on_host(side.ids)).dtype.kind not in "iu" or int(rows.max(initial=-1)) >= len(cohort):
            raise ValueError(f"{owner}: ids of {name} are not 0 .. {len(cohort) - 1}, rows of cohort")
        depths.add(rows.shape[1])
    if len(depths) > 1:
        raise ValueError(f"{owner}: queries and gallery have the nearest {sorted(depths)} of cohort, expected as many")
    return norm_by(norm, cohort, depths.pop())


def _of_pairs(scores: Array, queries: Any, gallery: Any, pairs: Any) -> Array:
    """The scores [P] of pairs of rows, normalised."""
    owner = "normalise_scores"
    rows = as_array(pairs, owner, "pairs", floating=False)
    require_same_kind(owner, "pairs", rows, "scores", scores)
    if tuple(rows.shape) != (len(scores), 2) or "int" not in str(rows.dtype):
        got = f"shape {tuple(rows.shape)} and dtype {rows.dtype}"
        raise ValueError(f"{owner}: pairs have {got}, expected integers of shape ({len(scores)}, 2)")
    x, terms = cast(scores, "float64"), []
    for name, side, column in (("queries", queries, rows[:, 0]), ("gallery", gallery, rows[:, 1])):
        if side is None:
            continue
        mean, deviation = _moments(name, side, scores, None)
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(mean):
            raise ValueError(
                f"{owner}: pairs name rows {column.min()}..{column.max()} of {name}, which has {len(mean)}"
            )
        terms.append((x - mean[column]) / deviation[column])
    return cast(sum(terms) / len(terms), compute_dtype(scores))


def _moments(name: str, of: Any, like: Array, rows: int | None) -> tuple[Array, Array]:
    """The mean and the standard deviation of each row of scores with the cohort, float64."""
    owner = "normalise_scores"
    x = as_array(of.scores if isinstance(of, Ranking) else of, owner, name, like=like)
    require_same_kind(owner, name, x, "scores", like)
    shape = tuple(x.shape)
    if len(shape) != 2 or shape[1] < 2 or rows not in (None, shape[0]):
        expected = "G" if rows is None else rows
        raise ValueError(f"{owner}: {name} has shape {shape}, expected ({expected}, N) with N >= 2 items of the cohort")
    xp, x = namespace(x), cast(x, "float64")
    if bool((x == -np.inf).any()):
        row = int((x == -np.inf).any(1).nonzero()[0][0])
        raise ValueError(f"{owner}: {name} has -inf in row {row}; was k more than the cohort has?")
    if not bool(xp.isfinite(x).all()):
        what = "a mean and a deviation need finite numbers; is an exact copy of it, whose score is inf, in the cohort?"
        require_numbers(owner, name, on_host(x), finite=what)
    alike = xp.amax(x, 1) == xp.amin(x, 1)
    if bool(alike.any()):
        raise ValueError(f"{owner}: {name} is one number in row {int(alike.nonzero()[0][0])}, whose deviation is 0")
    mean = x.mean(1)
    left = x - mean[:, None]
    return mean, (left * left).mean(1) ** 0.5
