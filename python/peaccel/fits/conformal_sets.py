"""Lists of answers that hold a right one with a given probability."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import on_host, quiet, require_numbers
from peaccel._utils.numbers import as_flags, class_numbers, require_shares
from peaccel.fits.records import ConformalSets, behind_best

__all__ = ["conformal_sets"]


@quiet
def conformal_sets(
    scores: ArrayLike,
    relevant: ArrayLike,
    classes: ArrayLike,
    alpha: float,
    answerable: ArrayLike | None = None,
    of: Literal["answerable", "all"] = "answerable",
) -> ConformalSets:
    """The gap to the best score down to which a list of answers holds a right one with probability 1 - alpha.

    Split conformal prediction by groups: for each held-out query the gap between its best score and that of its best
    right answer; of these the (1 - alpha)-quantile, in which each of C classes weighs 1 / (C + 1), its queries alike,
    and a new class 1 / (C + 1) at infinity. The list of a query is then all of its answers within that gap.

    Parameters
    ----------
    scores
        [Q, K], best first: of the answers to queries of held-out classes, as `search` and `rerank` give them.
    relevant
        [Q, K] booleans (or 0 and 1): which answers are right. Where no answer of a query that can be answered is, its
        right one came later than K.
    classes
        [Q]: the class of each query. ``np.arange(Q)`` claims that queries are independent.
    alpha
        In (0, 1): the probability that a list holds no right answer.
    answerable
        [Q] booleans: whether the gallery has a right answer at all; None where it has one for every query.
    of
        "answerable" promises for queries that have a right answer, those without are left out (nothing can be promised
        for them); "all" promises that at most a share alpha of all queries has a right answer and misses it.

    Returns
    -------
    ConformalSets
        ``found(ranking)`` leaves out items that are further than its gap from the best. The gap is inf, and promises
        nothing beyond the K answers, with fewer than 1 / alpha - 1 classes, or where too many right answers came later
        than K. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        alpha outside (0, 1), wrong shapes or dtypes, scores that rise or are NaN, no query that counts, another `of`.

    Notes
    -----
    Coverage is marginal: over the draw of classes, held-out and new, and of a query of the new class at random; of
    single queries, or of hard ones, nothing is promised. It takes nothing but that classes are drawn alike, against the
    gallery that gave these answers. A gap adapts where a fixed number of answers or a fixed score do not: scores of two
    queries differ in level more than in how far apart their good answers lie.

    References
    ----------
    Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World", 2005; Dunn, Wasserman & Ramdas,
    "Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", 2022; Lee, Barber & Willett,
    "Distribution-free inference with hierarchical data", 2023, for the weights.

    Examples
    --------
    Of 99 queries, each of another class, the right answer is second at most, and up to 0.98 behind the best:

    >>> gaps = np.arange(99) / 100
    >>> scores = np.stack([np.full(99, 2.0), 2 - gaps, np.full(99, -1.0)], 1)
    >>> found = pe.conformal_sets(scores, np.tile([False, True, False], (99, 1)), np.arange(99), alpha=0.1)
    >>> round(found.gap, 2), found.classes
    (0.89, 99)
    >>> found(pe.Ranking(np.array([[5.0, 4.5, 4.0]]), np.array([[3, 1, 7]]))).ids.tolist()
    [[3, 1, -1]]
    """
    owner = "conformal_sets"
    require_shares(owner, alpha=alpha)
    if of not in ("answerable", "all"):
        raise ValueError(f"{owner}: of is {of!r}, expected 'answerable' or 'all'")
    best_first = _falling(owner, scores)
    q, k = best_first.shape
    right = as_flags(owner, "relevant", relevant, (q, k))
    counts = np.ones(q, bool) if answerable is None else as_flags(owner, "answerable", answerable, (q,))
    if (right.any(1) & ~counts).any():
        row = int(np.argmax(right.any(1) & ~counts))
        raise ValueError(f"{owner}: query {row} has a right answer and is not answerable")
    groups = class_numbers(owner, "classes", classes, q)
    gaps = np.where(right, behind_best(best_first), math.inf).min(1)
    if of == "all":
        gaps = np.where(counts, gaps, -math.inf)
    elif not counts.any():
        raise ValueError(f"{owner}: answerable names no query, expected some")
    else:
        gaps, groups = gaps[counts], np.unique(groups[counts], return_inverse=True)[1]
    size = np.bincount(groups)
    order = np.argsort(gaps, kind="stable")
    # A sum of shares that should be 1 - alpha may be less by rounding.
    reached = np.cumsum(1 / size[groups[order]]) / (len(size) + 1) >= (1 - alpha) * (1 - 1e-12)
    gap = float(gaps[order][np.argmax(reached)]) if reached.any() else math.inf
    return ConformalSets(max(gap, 0.0), float(alpha), len(size), of)


def _falling(owner: str, scores: Any) -> np.ndarray[Any, Any]:
    """[Q, K] scores as float64, best first, -inf where there are no more answers."""
    found = on_host(scores, owner, "scores")
    if found.ndim != 2 or found.dtype.kind not in "fiu" or not found.size:
        raise ValueError(f"{owner}: scores have shape {found.shape} and dtype {found.dtype}, expected numbers (Q, K)")
    found = found.astype(np.float64)
    require_numbers(owner, "scores", found)
    require_numbers(owner, "scores[:, 0]", found[:, 0], above="no answer was found")
    rise = (found[:, 1:] > found[:, :-1]).any(1)
    if rise.any():
        raise ValueError(f"{owner}: scores of query {int(np.argmax(rise))} rise, expected best first")
    return found
