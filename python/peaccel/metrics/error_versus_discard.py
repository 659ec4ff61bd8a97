"""Errors that are left once the samples of the lowest quality are discarded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.numbers import array_of, as_numbers, as_shares
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.metrics.reject_verification import area_under

__all__ = ["ErrorVersusDiscard", "error_versus_discard"]

SHARES = tuple(i / 100 for i in range(21))


@dataclass(frozen=True, eq=False)
class ErrorVersusDiscard:
    """FNMR at one threshold over the share of samples that are discarded (an error versus discard characteristic).

    Examples
    --------
    >>> found = pe.metrics.error_versus_discard([0.2, 0.9], [[0, 1], [2, 3]], [1, 9, 8, 9], 0.5, [0, 0.25])
    >>> found.fnmr.tolist(), found.pairs.tolist(), found.area
    ([0.5, 0.0], [2, 1], 0.25)
    """

    shares: NDArray[np.float64]
    """[S], the discarded shares of samples."""
    fnmr: NDArray[np.float64]
    """[S], the share of the remaining pairs that score below the threshold; NaN where no pair is left."""
    pairs: NDArray[np.int64]
    """[S], how many pairs are left."""
    area: float
    """The mean of `fnmr` over the shares (area under it by the trapezoidal rule, divided by its width): lower is
    better, and a quality that says nothing has about `fnmr` without discards. NaN of one share."""


def error_versus_discard(
    scores: ArrayLike,
    pairs: ArrayLike,
    quality: ArrayLike,
    threshold: float,
    shares: ArrayLike = SHARES,
    seed: int = 0,
) -> ErrorVersusDiscard:
    """Missed matches at a fixed threshold when the samples of the lowest quality are discarded.

    All pairs of a discarded sample go with it. `reject_verification` discards pairs instead, and chooses the threshold
    anew for the pairs that are left.

    Parameters
    ----------
    scores
        [P] of pairs that match, higher = more alike.
    pairs
        [P, 2] integers, the two samples of each pair: rows of `quality`.
    quality
        [N] of the samples, higher = better: a `pe.Quality`, or any confidence, since only the order counts.
    threshold
        The least score that is accepted.
    shares
        [S] shares of samples to discard, in [0, 1), ascending: floor(N share) are. By default 0 to 20 % in steps of
        1 %, so that the area is the usual partial one.
    seed
        Seed of the order of samples of equal quality.

    Returns
    -------
    The curve and the area under it.

    Raises
    ------
    ValueError
        A score or a quality is NaN, pairs have another shape, are no integers or no rows of quality, or shares are out
        of range or order.

    References
    ----------
    Grother & Tabassi, "Performance of Biometric Quality Measures", 2007; ISO/IEC 29794-1.

    Examples
    --------
    The sample of the lowest quality is part of the only pair that is missed:

    >>> scores, pairs, quality = [0.9, 0.2, 0.8], [[0, 1], [2, 3], [3, 4]], [90, 80, 5, 60, 70]
    >>> pe.metrics.error_versus_discard(scores, pairs, quality, 0.5, [0, 0.2]).fnmr.round(2).tolist()
    [0.33, 0.0]
    """
    owner = "error_versus_discard"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    numbers, of = as_numbers(owner, "scores", scores), as_numbers(owner, "quality", quality)
    rows = array_of(owner, "pairs", pairs, "(P, 2)")
    if rows.shape != (len(numbers), 2) or rows.dtype.kind not in "iu":
        raise ValueError(f"{owner}: pairs is {rows.dtype} of shape {rows.shape}, expected integers ({len(numbers)}, 2)")
    if rows.size and not 0 <= rows.min() <= rows.max() < len(of):
        raise ValueError(f"{owner}: pairs holds rows {rows.min()} to {rows.max()}, expected 0 to {len(of) - 1}")
    shares = as_shares(owner, "shares", shares)
    if (np.diff(shares) <= 0).any():
        raise ValueError(f"{owner}: shares do not ascend")
    if np.isnan(threshold):
        raise ValueError(f"{owner}: threshold is nan, expected a number")
    place = np.empty(len(of), np.int64)  # of each sample among all, the lowest quality first
    place[np.lexsort((np.random.default_rng(seed).random(len(of)), of))] = np.arange(len(of))
    worse, discarded = place[rows].min(1), np.floor(np.round(len(of) * shares, 9)).astype(np.int64)
    order = np.argsort(worse)  # a pair goes when the worse of its samples does
    missed = np.append(np.cumsum((numbers[order] < threshold)[::-1])[::-1], 0)
    gone = np.searchsorted(worse[order], discarded)
    left = len(numbers) - gone
    fnmr = np.where(left > 0, missed[gone] / np.maximum(left, 1), np.nan)
    width = float(shares[-1] - shares[0])
    area = area_under(fnmr, shares) / width if width else np.nan
    return ErrorVersusDiscard(shares=shares, fnmr=fnmr, pairs=left, area=area)
