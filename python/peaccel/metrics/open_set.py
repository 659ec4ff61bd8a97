"""Open-set identification: a search returns what scores at least a threshold, and not every search has a mate.

A search is mated where its subject is in the gallery. It fails where its mate is not returned; a search without a mate
fails where anything is returned at all. What is not returned has the score -inf, which no threshold accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.numbers import array_of, as_numbers, as_ranks
from peaccel.metrics.retrieval import precision_recall_auc
from peaccel.metrics.verification import above, auroc

__all__ = ["Novelty", "OpenSet", "OpenSetPoint", "mate_scores", "novelty_detection", "open_set"]


@dataclass(frozen=True)
class OpenSetPoint:
    """The errors of identification at one threshold.

    Examples
    --------
    At 0.7 one of four mates is not found, and one of two searches without a mate is returned something. Lower is better
    for both errors:

    >>> point = pe.metrics.open_set(mated=[0.9, 0.8, 0.7, 0.6], non_mated=[0.7, 0.2]).at_threshold(0.7)
    >>> point
    OpenSetPoint(threshold=0.7, fpir=0.5, fnir=0.25)
    >>> point.detection_identification_rate
    0.75
    """

    threshold: float
    """An item is returned where score >= threshold."""
    fpir: float
    """False positive identification rate: share of searches without a mate that are returned anything."""
    fnir: float
    """False negative identification rate: share of mated searches that are not returned their mate."""

    @property
    def detection_identification_rate(self) -> float:
        """Share of mated searches that are returned their mate, 1 - FNIR; published of mates at rank 1."""
        return 1 - self.fnir


@dataclass(frozen=True, eq=False)
class OpenSet:
    """The detection error trade-off (DET) of open-set identification: FNIR against FPIR, over all thresholds.

    Examples
    --------
    Thresholds fall, and so does the FNIR, while the FPIR rises:

    >>> det = pe.metrics.open_set(mated=[0.9, 0.6], non_mated=[0.7, 0.2])
    >>> det.thresholds.tolist()
    [inf, 0.9, 0.7, 0.6, 0.2]
    >>> det.fnir.tolist()
    [1.0, 0.5, 0.5, 0.0, 0.0]
    >>> det.at_fpir(0)
    OpenSetPoint(threshold=0.9, fpir=0.0, fnir=0.5)
    """

    thresholds: NDArray[np.float64]
    """[T], falling: inf, at which nothing is returned, and each distinct score of either kind of search but -inf; inf,
    that of an exact copy, as the greatest number."""
    fpir: NDArray[np.float64]
    """[T], rising from 0: share of searches without a mate that are returned anything."""
    fnir: NDArray[np.float64]
    """[T], falling from 1: share of mated searches that are not returned their mate."""

    def at_fpir(self, fpir: float) -> OpenSetPoint:
        """The lowest of the thresholds whose FPIR is at most the given one, which has the least FNIR of these.

        Parameters
        ----------
        fpir
            In [0, 1]. Below ten over the number of searches without a mate, the result is chance.

        Returns
        -------
        The threshold, the FPIR that it attains, less than the given one among equal scores, and its FNIR. It is chosen
        by these searches: `peaccel.limit_false_matches` finds one that keeps an FPIR on others.

        Raises
        ------
        ValueError
            fpir is out of range.
        """
        if not 0 <= fpir <= 1:
            raise ValueError(f"at_fpir: fpir is {fpir}, expected [0, 1]")
        return self._point(int(np.searchsorted(self.fpir, fpir, side="right")) - 1)

    def at_threshold(self, threshold: float) -> OpenSetPoint:
        """The errors where another threshold is used, such as that of `peaccel.limit_false_matches`.

        Parameters
        ----------
        threshold
            Any number; inf returns nothing, -inf all that a search has found.

        Returns
        -------
        The lowest of the thresholds that is at least as high, which decides these searches alike.

        Raises
        ------
        ValueError
            threshold is NaN.
        """
        if np.isnan(threshold):
            raise ValueError("at_threshold: threshold is NaN, expected a number")
        return self._point(int(np.searchsorted(-self.thresholds, -threshold, side="right")) - 1)

    def _point(self, place: int) -> OpenSetPoint:
        return OpenSetPoint(float(self.thresholds[place]), float(self.fpir[place]), float(self.fnir[place]))


def open_set(mated: ArrayLike, non_mated: ArrayLike) -> OpenSet:
    """Errors of identification where the subjects of some searches are not in the gallery.

    FNIR(T, R) = share of mated searches whose mate is not within rank R at a score of at least T,
    FPIR(T) = share of searches without a mate that are returned any item at a score of at least T.

    Parameters
    ----------
    mated
        [N]: the score of each mated search's mate, -inf where it is not within rank R, as `mate_scores` finds it.
    non_mated
        [M]: the greatest score of each search without a mate, -inf where it is returned nothing.

    Returns
    -------
    Both rates at all thresholds; `OpenSet.at_fpir` and `OpenSet.at_threshold` pick one. Equal scores are returned, or
    not, together.

    Raises
    ------
    ValueError
        There is no search of a kind, or a score is NaN.

    References
    ----------
    ISO/IEC 19795-1, Biometric performance testing and reporting (FPIR, FNIR); Grother, Ngan & Hanaoka, Face Recognition
    Technology Evaluation, Part 2: Identification, NIST IR 8271; Phillips, Grother & Micheals, Handbook of Face
    Recognition, 2011 (detection and identification rate).

    Examples
    --------
    Three searches have a mate, and one did not find it; two have none:

    >>> found = pe.metrics.open_set([0.9, 0.6, -np.inf], [0.7, 0.2])
    >>> found.thresholds.tolist()
    [inf, 0.9, 0.7, 0.6, 0.2]
    >>> found.fpir.tolist()
    [0.0, 0.0, 0.5, 0.5, 1.0]
    >>> point = found.at_fpir(0.5)
    >>> point.threshold, round(point.fnir, 2), round(point.detection_identification_rate, 2)
    (0.6, 0.33, 0.67)
    """
    mates, others = (_scores("open_set", name, x) for name, x in (("mated", mated), ("non_mated", non_mated)))
    rising = np.unique(np.concatenate([mates, others]))
    levels = np.append(np.inf, rising[rising > -np.inf][::-1])
    return OpenSet(
        thresholds=levels,
        fpir=above(others, levels) / len(others),
        fnir=(len(mates) - above(mates, levels)) / len(mates),
    )


def mate_scores(scores: ArrayLike, relevant: ArrayLike, rank: int = 1) -> NDArray[np.float64]:
    """The score of each search's mate, as `open_set` takes it; the best of several mates.

    Parameters
    ----------
    scores
        [Q, K] of the ranked items, best first; -inf where there is none.
    relevant
        [Q, K], 1 or True where the item is a mate, as `relevance` says.
    rank
        R, at least 1: mates behind it are not found.

    Returns
    -------
    [Q]; -inf where no mate is within the first R.

    Raises
    ------
    ValueError
        Shapes disagree, a score is NaN, rank is below 1, or `relevant` has another number than 0 and 1.

    Examples
    --------
    >>> pe.metrics.mate_scores([[0.9, 0.4], [0.8, 0.7], [0.3, 0.2]], [[1, 1], [0, 1], [0, 0]], rank=2).tolist()
    [0.9, 0.7, -inf]
    """
    owner = "mate_scores"
    found, mates = as_numbers(owner, "scores", scores, "(Q, K)"), array_of(owner, "relevant", relevant, "(Q, K)")
    if found.shape != mates.shape:
        raise ValueError(f"{owner}: relevant has shape {mates.shape}, expected {found.shape} like scores")
    if not np.isin(mates, (0, 1)).all():
        raise ValueError(f"{owner}: relevant has numbers other than 0 and 1, expected those or booleans")
    if rank < 1:
        raise ValueError(f"{owner}: rank is {rank}, expected at least 1")
    first: NDArray[np.float64] = np.where(mates.astype(bool), found, -np.inf)[:, :rank].max(1)
    return first


def _scores(owner: str, name: str, x: ArrayLike) -> NDArray[Any]:
    """Scores in rising order after checks, inf as the greatest number; -inf stays, which no threshold returns."""
    return np.sort(np.minimum(as_numbers(owner, name, x), as_ranks(owner, name, x)))


@dataclass(frozen=True, eq=False)
class Novelty:
    """Detection of out-of-distribution (OOD) queries by their uncertainty, and its histogram.

    Examples
    --------
    All novel queries are more uncertain than the known ones; the histogram has them in the upper of two bins:

    >>> found = pe.metrics.novelty_detection(known=[0.0, 1.0], novel=[2.0, 3.0, 4.0], bins=2)
    >>> found.auroc, found.auprc
    (1.0, 1.0)
    >>> found.edges.tolist(), found.known.tolist(), found.novel.tolist()
    ([0.0, 2.0, 4.0], [2, 0], [0, 3])
    """

    auroc: float
    """Probability that a novel query is more uncertain than a known one, half where equally."""
    auprc: float
    """Average precision where novel queries are to be found; their share where uncertainty says nothing."""
    edges: NDArray[np.float64]
    """[bins + 1] of the histogram, from the least to the greatest uncertainty."""
    known: NDArray[np.int64]
    """[bins] known queries."""
    novel: NDArray[np.int64]
    """[bins] novel queries."""


def novelty_detection(known: ArrayLike, novel: ArrayLike, bins: int = 50) -> Novelty:
    """Tell out-of-distribution queries by their uncertainty.

    Parameters
    ----------
    known, novel
        [N] and [M] uncertainties of queries in and out of the distribution, higher = less certain, finite: of the
        query, or of its distance to the nearest item (`match_variance`), as in the paper's histogram.
    bins
        How many bins of equal width, at least 1.

    Returns
    -------
    The areas and the histogram.

    Raises
    ------
    ValueError
        There is no query of a side, an uncertainty is not finite, or there is no bin.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, figure 8; the areas: Bayesian Metric Learning, NeurIPS 2023.

    Examples
    --------
    Of the four pairs of a novel and a known query, only 0.4 and 0.5 are in the wrong order. Higher is better:

    >>> found = pe.metrics.novelty_detection(known=[0.1, 0.5], novel=[0.4, 0.9])
    >>> found.auroc, round(found.auprc, 2)
    (0.75, 0.83)
    """
    inside = as_numbers("novelty_detection", "known", known, finite="bins are of equal width")
    outside = as_numbers("novelty_detection", "novel", novel, finite="bins are of equal width")
    if bins < 1:
        raise ValueError(f"novelty_detection: bins is {bins}, expected at least 1")
    both = np.concatenate([inside, outside])
    edges = bin_edges(both, bins)
    return Novelty(
        auroc=auroc(both, np.arange(len(both)) >= len(inside)),
        auprc=precision_recall_auc(outside, [both]),
        edges=edges,
        known=np.histogram(inside, edges)[0],
        novel=np.histogram(outside, edges)[0],
    )


def bin_edges(x: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """[bins + 1]: the edges of bins of equal width from the least number to the greatest.

    Numbers that rounding alone tells apart lie in the middle of bins that are wide enough to be told apart.
    """
    low, high = x.min() / 2, x.max() / 2  # halves, as the difference of large numbers may overflow
    least = 2 * bins * np.spacing(max(-low, high))
    if high - low < least:
        low, high = low - max(least, 0.25), high + max(least, 0.25)
    return 2 * np.linspace(low, high, bins + 1)
