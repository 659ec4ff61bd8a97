"""Costs of detection, by which NIST's evaluations of speaker recognition and VoxCeleb's compare systems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._draws import PairDraws, counted_levels, pair_draws, percentiles, require_draws
from peaccel.metrics.verification import as_pairs, rates_over, warn_if_reversed

__all__ = ["DetectionCost", "detection_cost"]

Array = NDArray[Any]


@dataclass(frozen=True)
class DetectionCost:
    """Least and actual detection cost, and the cost of log-likelihood ratios, as `detection_cost` finds them.

    Costs of detection are normalised: 1 is the cost of the better of accepting all and rejecting all. The intervals are
    percentiles of a bootstrap, as in `TarAtFar`.

    Examples
    --------
    >>> found = pe.metrics.detection_cost([3.0, 2.0, -1.0, 1.0, -2.0, -4.0], [1, 1, 1, 0, 0, 0], p_target=0.5)
    >>> round(found.min_dcf, 2), found.threshold
    (0.33, 2.0)
    >>> round(found.actual_dcf, 2), found.bayes_threshold
    (0.67, 0.0)
    """

    p_target: float
    c_miss: float
    c_fa: float
    min_dcf: float
    """The least cost over all thresholds, at most 1."""
    min_dcf_interval: tuple[float, float]
    """Of the cost of draws at one threshold, the best of the data, where half a pair of each kind, on average, is added
    beyond either end of the scores; widened to hold `min_dcf`."""
    threshold: float
    """The highest with that cost: pairs are accepted where score >= threshold; infinity where it is best to reject all,
    minus infinity where it is best to accept all."""
    actual_dcf: float
    """The cost at `bayes_threshold`, which needs no pairs to be found; of scores that are natural log-likelihood
    ratios. What it has more than `min_dcf` is lost by their calibration."""
    actual_dcf_interval: tuple[float, float]
    bayes_threshold: float
    """log(c_fa (1 - p_target) / (c_miss p_target))."""
    cllr: float
    """Cost of natural log-likelihood ratios over all priors, in bits; 1 is that of a ratio that is always 1."""
    cllr_interval: tuple[float, float]


def detection_cost(
    scores: ArrayLike,
    same: ArrayLike,
    p_target: float = 0.01,
    *,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    clusters: ArrayLike | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> DetectionCost:
    """Detection cost of verification: minDCF, actual DCF and Cllr.

    With the shares P_miss of pairs of one class that are rejected, and P_fa of pairs of two that are accepted, a
    threshold costs::

        (c_miss p_target P_miss + c_fa (1 - p_target) P_fa) / min(c_miss p_target, c_fa (1 - p_target))

    minDCF is the least cost, actual DCF that at the threshold log(c_fa (1 - p_target) / (c_miss p_target)), and::

        Cllr = (mean of log2(1 + exp(-s)) over pairs of one class + mean of log2(1 + exp(s)) over pairs of two) / 2

    Actual DCF and Cllr take scores for natural log-likelihood ratios, such as `llr` and PLDA's; of others, such as
    cosines, they say nothing.

    Parameters
    ----------
    scores, same
        As for `equal_error_rate`.
    p_target
        Prior probability of a pair of one class, in (0, 1): 0.01 of VoxCeleb and of NIST's SRE 2010 to 2016, which also
        has 0.005; 0.05 of VoxSRC and of SRE 2019 to 2021.
    c_miss, c_fa
        Costs of a miss and of a false acceptance, > 0; 1 in these. SRE 2008 has c_miss = 10.
    clusters
        As for `equal_error_rate`.
    resamples, level, seed
        Of the intervals, as for `tar_at_far`.

    Returns
    -------
    DetectionCost
        The costs, with intervals, and the thresholds.

    Raises
    ------
    ValueError
        As for `equal_error_rate`, or an argument is out of range.

    Notes
    -----
    Draws of the intervals are counted at 401 thresholds at most, densest among the highest scores of two classes.
    minDCF of the best threshold of each draw is less than that of other pairs, and of few pairs a threshold seems to
    accept none of two classes: its 95 % interval held the least cost of all pairs in 20 to 87 % of draws of eight
    populations. The interval returned here does in 88 to 98 % (1,000 to 22,000 pairs, p_target of 0.01 to 0.5).

    Warns
    -----
    UserWarning
        Scores look reversed, as for `best_threshold`.

    References
    ----------
    NIST, Speaker Recognition Evaluation Plan, 2016, section 3 (costs); Nagrani et al., VoxCeleb, 2017; Brümmer & du
    Preez, Application-independent evaluation of speaker detection, 2006 (Cllr).

    Examples
    --------
    Where matches are rare a false acceptance costs more than a miss. Lower is better:

    >>> scores, same = [3.0, 1.0, -1.0, 2.0, -2.0, -4.0], [1, 1, 1, 0, 0, 0]
    >>> [round(pe.metrics.detection_cost(scores, same, p).min_dcf, 2) for p in (0.5, 0.01)]
    [0.33, 0.67]
    >>> round(pe.metrics.detection_cost(scores, same).cllr, 2)
    0.95
    """
    owner = "detection_cost"
    numbers, flags = as_pairs(owner, scores, same, finite="Cllr is a mean of them as log-likelihood ratios")
    require_draws(owner, resamples, level, seed)
    warn_if_reversed(owner, "scores", numbers, flags)
    costs = Costs(owner, p_target, c_miss, c_fa)
    found = least_and_actual(numbers, flags, costs)
    levels = np.union1d(counted_levels(numbers, flags), costs.threshold)
    draws = pair_draws(owner, numbers, flags, levels, clusters, resamples, seed)
    low, high = percentiles(drawn_least(draws, costs), level)
    return DetectionCost(
        p_target=costs.p_target,
        c_miss=costs.c_miss,
        c_fa=costs.c_fa,
        min_dcf=found.min_dcf,
        min_dcf_interval=(min(low, found.min_dcf), max(high, found.min_dcf)),
        threshold=found.threshold,
        actual_dcf=found.actual_dcf,
        actual_dcf_interval=percentiles(drawn_actual(draws, costs), level),
        bayes_threshold=costs.threshold,
        cllr=found.cllr,
        cllr_interval=percentiles(drawn_cllr(draws, numbers, flags), level),
    )


class Costs:
    """Costs of a miss and of a false acceptance, each with its prior, over those of the better of two decisions."""

    def __init__(self, owner: str, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0) -> None:
        require_prior(owner, p_target, c_miss, c_fa)
        self.p_target, self.c_miss, self.c_fa = float(p_target), float(c_miss), float(c_fa)
        miss, false = c_miss * p_target, c_fa * (1 - p_target)
        self.miss, self.false = miss / min(miss, false), false / min(miss, false)
        self.threshold: float = math.log(c_fa) + math.log1p(-p_target) - math.log(c_miss) - math.log(p_target)
        """Of natural log-likelihood ratios, from which on it costs less to accept."""

    def of(self, far: Any, tar: Any) -> Array:
        """The costs at FAR and TAR, numbers or arrays."""
        return np.asarray(self.miss * (1 - tar) + self.false * far)


class FoundCosts(NamedTuple):
    """Costs of pairs, without draws."""

    min_dcf: float
    threshold: float
    actual_dcf: float
    cllr: float


def least_and_actual(scores: Array, same: Array, costs: Costs) -> FoundCosts:
    """minDCF with its threshold, actual DCF and Cllr."""
    thresholds, far, tar = rates_over(scores, same)
    of_thresholds = costs.of(far, tar)
    best = int((of_thresholds <= of_thresholds.min() * (1 + 1e-12)).argmax())  # equal ones differ by rounding
    thresholds[-1] = -np.inf
    accepted, losses = scores >= costs.threshold, llr_costs(scores, same)
    actual = costs.of(accepted[~same].mean(), accepted[same].mean())
    cllr = (losses[same].mean() + losses[~same].mean()) / 2
    return FoundCosts(float(of_thresholds[best]), float(thresholds[best]), float(actual), float(cllr))


def require_prior(owner: str, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0) -> None:
    """Refuse a prior outside (0, 1), and costs that are not above 0."""
    if not (isinstance(p_target, (int, float, np.number)) and 0 < p_target < 1):
        raise ValueError(f"{owner}: p_target is {p_target}, expected a probability between 0 and 1, such as 0.01")
    for name, cost in (("c_miss", c_miss), ("c_fa", c_fa)):
        if not 0 < cost < math.inf:
            raise ValueError(f"{owner}: {name} is {cost}, expected a finite number above 0")


def llr_costs(scores: Array, same: Array) -> Array:
    """The cost in bits of natural log-likelihood ratios, pair by pair, of which Cllr is a mean."""
    return np.asarray(np.logaddexp(0, np.where(same, -scores, scores)) / math.log(2))


def drawn_least(draws: PairDraws, costs: Costs) -> Array:
    """[draws], the cost of each at the threshold that costs least on average, at most 1."""
    if not len(draws.rates[0]):
        return np.empty(0)
    cost = costs.of(*draws.rates_beyond)
    return np.minimum(cost[:, cost.mean(0).argmin()], 1)


def drawn_actual(draws: PairDraws, costs: Costs) -> Array:
    """[draws], the cost of each at the threshold of log-likelihood ratios, which is one of the levels."""
    return costs.of(*(rate[:, draws.place(costs.threshold)] for rate in draws.rates))


def drawn_cllr(draws: PairDraws, scores: Array, same: Array) -> Array:
    """[draws], the cost of log-likelihood ratios of each."""
    of_two, of_one = draws.means(llr_costs(scores, same))
    return (of_two + of_one) / 2
