"""Normalisation of scores by those with a cohort: items of nobody who is searched for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from peaccel._utils.arrays import Array, ArrayT, Given, KindT, as_array, cast, namespace, quiet, require_same_kind
from peaccel.distributions.checks import compute_dtype
from peaccel.retrieval.ranking import Ranking, best_first, of_score

__all__ = ["normalise_scores"]


@overload
def normalise_scores(
    scores: Ranking[ArrayT],
    *,
    queries: Ranking[ArrayT] | ArrayT | Given | None = None,
    gallery: Ranking[ArrayT] | ArrayT | Given | None = None,
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
        [Q, G], as of `pairwise`; or a Ranking, of which Z- and S-norm take the ids for gallery rows; or [P], with
        pairs.
    queries, gallery
        [Q, N] and [G, M]: scores of each query, and of each gallery item, with items of the cohort, N, M >= 2, finite
        and not all equal. All of the cohort, by `pairwise`, or the best of it: a Ranking, as `search` gives it. Of the
        same score, also its scale; of a score that is not symmetric those of the gallery are
        ``pe.pairwise(cohort, gallery, score).T``.
    pairs
        [P, 2] integers: rows of the query and of the gallery item of each score, as of a list of trials.

    Returns
    -------
    In the compute dtype (float32 for 16-bit floats), computed in float64. [Q, G] or [P], differentiable in torch; of a
    Ranking a Ranking of the same items, in their new order: best first, then NaN, then padding, ties by the lower row.
    What the list did not hold is not found: search for more items than are needed.

    Raises
    ------
    TypeError
        Neither side is given; arrays of different kinds.
    ValueError
        Wrong shapes, devices, ids beyond the gallery's rows; scores with the cohort that are not finite, as where k was
        more than the cohort has, or all equal.

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
    """
    owner = "normalise_scores"
    if queries is None and gallery is None:
        raise TypeError(f"{owner}: expected queries, gallery or both, their scores with the cohort")
    ids = scores.ids if isinstance(scores, Ranking) else None
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
    normed = cast(sum(terms) / len(terms), compute_dtype(values))
    norm = "T-norm" if gallery is None else "Z-norm" if queries is None else "S-norm"
    of = scores.score if isinstance(scores, Ranking) else None
    return normed if ids is None else of_score(Ranking(*best_first(normed, ids, by_row=True)), of, norm)


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
    finite = xp.isfinite(x)
    if not bool(finite.all()):
        row = int((~finite).any(1).nonzero()[0][0])
        raise ValueError(f"{owner}: {name} is not finite in row {row}; was k more than the cohort has?")
    alike = xp.amax(x, 1) == xp.amin(x, 1)
    if bool(alike.any()):
        raise ValueError(f"{owner}: {name} is one number in row {int(alike.nonzero()[0][0])}, whose deviation is 0")
    mean = x.mean(1)
    left = x - mean[:, None]
    return mean, (left * left).mean(1) ** 0.5
