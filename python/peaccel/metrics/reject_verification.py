"""Verification of the pairs that are not rejected as too uncertain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.numbers import as_numbers, as_shares, require_length
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.metrics.verification import as_far, as_pairs, most_at, warn_if_reversed

__all__ = ["RejectVerification", "area_under", "pair_uncertainty", "reject_verification"]

Array = NDArray[Any]

RULES: dict[str, Callable[[Array, Array], Array]] = {
    "geometric": lambda u, v: np.sqrt(u) * np.sqrt(v),
    "arithmetic": lambda u, v: u / 2 + v / 2,
    "harmonic": lambda u, v: 2 * np.minimum(u, v) / (1 + np.minimum(u, v) / np.maximum(u, v)),
    "quadratic": lambda u, v: np.hypot(u / np.sqrt(2), v / np.sqrt(2)),
    "min": np.minimum,
    "max": np.maximum,
}
SHARES = tuple(i / 40 for i in range(21))


@dataclass(frozen=True, eq=False)
class RejectVerification:
    """TAR at one FAR of the pairs that are left, and areas under it by the trapezoidal rule.

    NaN where no pair of one class or none of two classes is left; areas are NaN then, and where there is one share.

    Examples
    --------
    The pair that is rejected is the one that was accepted rightly, so that TAR falls; an oracle rejects the other one:

    >>> scores, same, uncertainty = [0.9, 0.3, 0.5, 0.1], [1, 1, 0, 0], [9, 1, 2, 3]
    >>> found = pe.metrics.reject_verification(scores, same, uncertainty, far=0, shares=[0, 0.25])
    >>> found.tar.tolist(), found.oracle_tar.tolist()
    ([0.5, 0.0], [0.5, 1.0])
    >>> round(found.area_by_width, 2), round(found.area_by_oracle, 2)
    (0.25, 0.33)
    """

    shares: NDArray[np.float64]
    """[S], the shares of pairs that are rejected."""
    tar: NDArray[np.float64]
    """[S], TAR at a threshold that is found anew for the pairs that are left."""
    attained_far: NDArray[np.float64]
    """[S], FAR of the pairs that are left, at that threshold."""
    oracle_tar: NDArray[np.float64]
    """[S], the highest TAR that rejecting as many pairs can have, for each share by itself."""
    area: float
    area_by_width: float
    """The area divided by that of a TAR of 1 everywhere, r_max, as published."""
    area_by_oracle: float
    """The area divided by that under `oracle_tar`: at most 1; NaN where that is 0."""


def pair_uncertainty(first: ArrayLike, second: ArrayLike, rule: str = "geometric") -> NDArray[np.float64]:
    """Uncertainty of pairs, a mean of the uncertainties of their two items.

    Parameters
    ----------
    first, second
        [N] positive and finite, higher = less certain: a variance, 1 / kappa or 1 / scale, not an entropy.
    rule
        "geometric" as published, which ranks as the product does, "arithmetic", as the sum, "harmonic", "quadratic",
        "min" or "max".

    Returns
    -------
    [N], each between its two.

    Raises
    ------
    ValueError
        Lengths differ, an uncertainty is not positive and finite, or an unknown rule.

    References
    ----------
    Kail et al., ScaleFace, 2022, section 3.4.1.

    Examples
    --------
    The geometric mean of 1 and 4 is 2; two that are equal are their own mean:

    >>> pe.metrics.pair_uncertainty([1.0, 9.0], [4.0, 9.0]).tolist()
    [2.0, 9.0]
    >>> pe.metrics.pair_uncertainty([1.0, 9.0], [4.0, 9.0], rule="max").tolist()
    [4.0, 9.0]
    """
    if rule not in RULES:
        raise ValueError(f"pair_uncertainty: rule is {rule!r}, expected one of {', '.join(RULES)}")
    u = as_numbers("pair_uncertainty", "first", first, finite="so is their mean")
    v = as_numbers("pair_uncertainty", "second", second, finite="so is their mean")
    require_length("pair_uncertainty", "second", v, "first", u)
    for name, x in (("first", u), ("second", v)):
        if x.min() <= 0:
            raise ValueError(f"pair_uncertainty: {name} has {x.min():g}, expected positive numbers, not logarithms")
    return np.asarray(RULES[rule](u, v))


def reject_verification(
    scores: ArrayLike,
    same: ArrayLike,
    uncertainty: ArrayLike,
    far: float,
    shares: ArrayLike = SHARES,
    seed: int = 0,
) -> RejectVerification:
    """TAR at one FAR when the most uncertain pairs are rejected.

    The threshold is that of `tar_at_far`, for the pairs that are left: a method can gain by rejecting hard pairs of two
    classes alone. One share, such as [0.2], has the TAR at that rejected share.

    Parameters
    ----------
    scores
        [N], higher = more alike.
    same
        [N], 1 or True where the pair is of one class.
    uncertainty
        [N] of the pairs, such as `pair_uncertainty`; minus a confidence will do, since only the order counts.
    far
        False acceptance rate in [0, 1].
    shares
        [S] shares of pairs to reject, in [0, 1), ascending: floor(N (1 - share)) are left. Published are 250 from 0 to
        0.5 (IJB-C) and steps of 0.025 up to 0.475 (Cross-pose LFW); these steps up to 0.5 by default.
    seed
        Seed of the order of equal uncertainties. Pairs are often sorted by class, and to reject the last of them would
        reject one class.

    Returns
    -------
    The curve, that of an oracle, and the areas.

    Raises
    ------
    ValueError
        Lengths differ, a score or an uncertainty is NaN, `same` has one class or another number than 0 and
        1, or far or shares are out of range or order.

    Warns
    -----
    UserWarning
        Scores look reversed, as for `best_threshold`.

    References
    ----------
    Kail et al., ScaleFace, 2022, section 3.4 and appendix C, tables 1 to 3.

    Examples
    --------
    Above 0.5 no pair of two classes is accepted. The pair of one class with 0.3, which is missed, is the most uncertain
    of the four; once it is rejected none is missed. Higher is better:

    >>> scores, same, uncertainty = [0.9, 0.3, 0.5, 0.1], [1, 1, 0, 0], [1, 9, 2, 3]
    >>> found = pe.metrics.reject_verification(scores, same, uncertainty, far=0, shares=[0, 0.25])
    >>> found.tar.tolist()
    [0.5, 1.0]
    >>> found.area_by_width, found.area_by_oracle
    (0.75, 1.0)
    """
    owner = "reject_verification"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    numbers, flags = as_pairs(owner, scores, same)
    warn_if_reversed(owner, "scores", numbers, flags)
    doubts = as_numbers(owner, "uncertainty", uncertainty)
    require_length(owner, "uncertainty", doubts, "scores", numbers)
    far, shares = as_far(owner, far), as_shares(owner, "shares", shares)
    if (np.diff(shares) <= 0).any():
        raise ValueError(f"{owner}: shares do not ascend")
    certain = np.empty(len(doubts), np.int64)  # pairs in order, most certain first
    certain[np.lexsort((np.random.default_rng(seed).random(len(doubts)), doubts))] = np.arange(len(doubts))
    order = np.argsort(numbers, kind="stable")
    accepted, rejected = order[flags[order]], order[~flags[order]][::-1]
    left = np.floor(np.round(len(doubts) * (1 - shares), 9)).astype(np.int64)
    found = np.array([
        _rates(numbers[accepted[certain[accepted] < n]], numbers[rejected[certain[rejected] < n]], far) for n in left
    ])  # fmt: skip
    oracle = np.array([_oracle(numbers[accepted], numbers[rejected], len(doubts) - n, far) for n in left])
    area, best = area_under(found[:, 0], shares), area_under(oracle, shares)
    return RejectVerification(
        shares=shares,
        tar=found[:, 0],
        attained_far=found[:, 1],
        oracle_tar=oracle,
        area=area,
        area_by_width=area / area_under(np.ones(len(shares)), shares),
        area_by_oracle=area / best if best > 0 else np.nan,
    )


def area_under(y: Array, x: Array) -> float:
    """The area by the trapezoidal rule; NaN under a single point."""
    return float(np.diff(x) @ (y[1:] + y[:-1]) / 2) if len(x) > 1 else np.nan


def _rates(accepted: Array, rejected: Array, far: float) -> tuple[float, float]:
    """TAR and attained FAR of ascending scores of one class and descending ones of two."""
    if not len(accepted) or not len(rejected):
        return np.nan, np.nan
    least = np.append(rejected, -np.inf)[most_at(far, len(rejected))]  # what lies above it may be accepted
    return float((accepted > least).mean()), float((rejected > least).mean())


def _oracle(accepted: Array, rejected: Array, out: int, far: float) -> float:
    """The highest TAR after rejecting so many pairs: the highest of two classes and the lowest of one, best mixed."""
    negatives = np.arange(max(0, out - len(accepted) + 1), min(out, len(rejected) - 1) + 1)
    if not len(negatives):
        return np.nan
    least = np.append(rejected, -np.inf)[negatives + most_at(far, len(rejected) - negatives)]
    left = len(accepted) - (out - negatives)
    found = len(accepted) - np.searchsorted(accepted, least, side="right")
    return float((np.minimum(found, left) / left).max())
