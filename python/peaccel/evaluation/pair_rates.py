"""Rates of scored pairs: how a score separates pairs of one class from pairs of two."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel.evaluation.columns import Column, columns
from peaccel.evaluation.formatting import percent, six_digits
from peaccel.evaluation.intervals import Interval, Resamples, ends, plainly
from peaccel.fits.fit_match_probability import fit_match_probability
from peaccel.metrics._draws import PairDraws, counted_levels
from peaccel.metrics.detection_cost import (
    Costs,
    FoundCosts,
    drawn_actual,
    drawn_cllr,
    drawn_least,
    least_and_actual,
    llr_costs,
)
from peaccel.metrics.equal_error_rate import drawn_rates, rate_and_threshold
from peaccel.metrics.verification import AtFar, at_far, auroc

__all__ = ["FEWEST", "P_TARGET", "JudgedPairs", "PairRates", "not_calibrated", "pair_rates"]

Array = NDArray[Any]

FAR = 1e-3
P_TARGET = 0.01
"""The prior of a pair of one class, as VoxCeleb and NIST's SRE 2016 have it; both errors cost 1."""
FEWEST = 10
"""Pairs of two classes that must be accepted at `FAR`: a rate of fewer is chance."""


@dataclass(frozen=True, eq=False)
class JudgedPairs:
    """Pairs of one class and of two, with draws of them."""

    scores: Array
    same: NDArray[np.bool_]
    costs: Costs
    draws: PairDraws

    @cached_property
    def cost(self) -> FoundCosts:
        """Detection costs."""
        return least_and_actual(self.scores, self.same, self.costs)

    @cached_property
    def least_cllr(self) -> float:
        """Cllr of the ratios that an isotonic regression on these pairs gives them."""
        shares = fit_match_probability(self.scores, self.same, method="isotonic")(self.scores)
        with np.errstate(divide="ignore"):
            ratios = np.log(shares) - np.log1p(-shares) - np.log(self.same.sum() / (~self.same).sum())
        losses = llr_costs(ratios, self.same)
        return float((losses[self.same].mean() + losses[~self.same].mean()) / 2)

    @cached_property
    def equal(self) -> tuple[float, float]:
        """The equal error rate, and its threshold."""
        return rate_and_threshold(self.scores, self.same)

    @cached_property
    def at_far(self) -> AtFar:
        """The rates at `FAR`, NaN where it would be of too few pairs."""
        found = at_far(self.scores, self.same, FAR)
        return found if (~self.same).sum() * FAR >= FEWEST else found._replace(tar=np.nan, attained_far=np.nan)


class PairMetric(NamedTuple):
    """Function of pairs that gives a field of `PairRates`."""

    value: Callable[[JudgedPairs], float]
    drawn: Callable[[JudgedPairs], Array] | None = None
    """The same of each draw, for an interval; None: the field is a number alone."""
    of_ratios: bool = False
    """Whether it is of log-likelihood ratios alone, and None of other scores."""


def _auc(pairs: JudgedPairs) -> Array:
    far, tar = pairs.draws.rates
    return np.asarray((np.diff(far, axis=1) * (tar[:, 1:] + tar[:, :-1]) / 2).sum(1))


def _tar(pairs: JudgedPairs) -> Array:
    """TAR where FAR first reaches `FAR`, between two thresholds by linear interpolation."""
    far, tar = pairs.draws.rates
    after = np.maximum((far >= FAR).argmax(1), 1)[:, None]
    (low, high), (start, end) = (
        [np.take_along_axis(curve, after - back, 1)[:, 0] for back in (1, 0)] for curve in (far, tar)
    )
    return np.asarray(start + (FAR - low) / np.where(high > low, high - low, 1) * (end - start))


AUC = Column(
    "AUC %",
    "how probably a pair of one class scores above a pair of two; 50: it says nothing, higher is better.",
    pairs=PairMetric(lambda x: auroc(x.scores, x.same), _auc),
)


@dataclass(frozen=True)
class PairRates:  # functions in annotations are no strings, as those would not see the names of this file
    """Rates of scored pairs with intervals; NaN without pairs of one class or of two."""

    roc_auc: Annotated[Interval, AUC]
    equal_error_rate: Annotated[
        Interval,
        Column(
            "EER %",
            "error where as large a share of one class is rejected as is accepted of two; lower is better.",
            pairs=PairMetric(lambda x: x.equal[0], lambda x: drawn_rates(x.draws)),
        ),
    ]
    eer_threshold: Annotated[
        float,
        Column(
            "EER at",
            "the score from which on pairs are accepted there.",
            six_digits,
            pairs=PairMetric(lambda x: x.equal[1]),
        ),
    ]
    tar_at_far: Annotated[
        Interval,
        Column(
            "TAR@FAR=0.1% %",
            "share of pairs of one class that is accepted where 0.1 % of the pairs of two are; higher is better; - "
            "where that would be fewer than 10 pairs.",
            pairs=PairMetric(lambda x: x.at_far.tar, _tar),
        ),
    ]
    """TAR at a FAR of 0.001; NaN where that would be fewer than 10 pairs of two classes."""
    attained_far: Annotated[
        float,
        Column(
            "FAR %",
            "share of the pairs of two classes that is accepted there in fact.",
            partial(percent, digits=3),
            pairs=PairMetric(lambda x: x.at_far.attained_far),
        ),
    ]
    """The FAR at the threshold of that TAR: 0.001 rounded to a number of pairs, and less among equal scores."""
    min_dcf: Annotated[
        Interval,
        Column(
            "minDCF",
            "least detection cost over all thresholds, at the prior p_target, where either error costs 1; 1: what it "
            "costs to reject or accept all, lower is better.",
            plainly,
            pairs=PairMetric(lambda x: x.cost.min_dcf, lambda x: drawn_least(x.draws, x.costs)),
        ),
    ]
    actual_dcf: Annotated[
        Interval | None,
        Column(
            "actual DCF",
            "detection cost of llr at the threshold log((1 - p_target) / p_target): what it has more than minDCF is "
            "lost by calibration.",
            plainly,
            pairs=PairMetric(lambda x: x.cost.actual_dcf, lambda x: drawn_actual(x.draws, x.costs), of_ratios=True),
        ),
    ]
    """None where scores are no log-likelihood ratios, as is the next one."""
    cllr: Annotated[
        Interval | None,
        Column(
            "Cllr",
            "cost of llr over all priors, in bits; 1: that of a ratio that is always 1, lower is better.",
            plainly,
            pairs=PairMetric(lambda x: x.cost.cllr, lambda x: drawn_cllr(x.draws, x.scores, x.same), of_ratios=True),
        ),
    ]
    min_cllr: Annotated[
        float | None,
        Column(
            "min Cllr",
            "the least Cllr of these pairs in the same order, by the best calibration; what Cllr has more is lost by "
            "calibration.",
            six_digits,
            pairs=PairMetric(lambda x: x.least_cllr, of_ratios=True),
        ),
    ]


def pair_rates(
    scores: Array,
    same: NDArray[np.bool_],
    resamples: Resamples | None,
    costs: Costs,
    ratios: bool,
    seed: int,
) -> dict[str, Any]:
    """The fields of `PairRates`, with intervals over draws of the pairs' clusters, or of pairs one by one."""
    metrics = {name: column.pairs for name, column in columns(PairRates).items() if column.pairs is not None}
    if not len(same):
        return {name: _none(metric, ratios) for name, metric in metrics.items()}
    finite = np.clip(scores, -1e300, 1e300)
    levels = counted_levels(finite, same)
    if ratios:
        levels = np.union1d(levels, costs.threshold)
    pairs = JudgedPairs(finite, same, costs, PairDraws(finite, same, levels, resamples, seed=seed))
    return {name: _measured(metric, pairs, ratios) for name, metric in metrics.items()}


def not_calibrated(score: str, cllr: float | None, least: float | None) -> list[str]:
    """A sentence that names the remedy where Cllr lies far above the least one; none where it does not."""
    if cllr is None or least is None or not (cllr > 2 * least and cllr > least + 0.05):
        return []
    return [
        f"Scores by {score} are not calibrated: Cllr is {cllr:.3g}, {least:.3g} would do. As log-likelihood ratios use "
        "pe.fit_match_probability(scores, labels).log_likelihood_ratio(scores), fitted to other pairs."
    ]


def _none(metric: PairMetric, ratios: bool) -> float | Interval | None:
    """The result without pairs."""
    if metric.of_ratios and not ratios:
        return None
    return np.nan if metric.drawn is None else Interval(np.nan, np.nan, np.nan)


def _measured(metric: PairMetric, pairs: JudgedPairs, ratios: bool) -> float | Interval | None:
    """The number, in an interval that holds it if it has one."""
    if metric.of_ratios and not ratios:
        return None
    value = metric.value(pairs)
    if metric.drawn is None or np.isnan(value):
        return value if metric.drawn is None else _none(metric, ratios)
    found = ends(value, metric.drawn(pairs))
    return Interval(value, min(found.low, value), max(found.high, value))
