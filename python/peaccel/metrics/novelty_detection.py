"""Whether uncertainty tells queries that the gallery knows from those that are out of distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._numbers import as_numbers, bin_edges
from peaccel.metrics.precision_recall import precision_recall_auc
from peaccel.metrics.verification import auroc

__all__ = ["Novelty", "novelty_detection"]


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
    inside = as_numbers("novelty_detection", "known", known, finite=True)
    outside = as_numbers("novelty_detection", "novel", novel, finite=True)
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
