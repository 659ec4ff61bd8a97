"""Criteria by which scores are compared, each measured on the same queries, pairs and draws for all scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel.evaluation.columns import columns
from peaccel.evaluation.drawn_pairs import DIFFERENT
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pair_rates import JudgedPairs, PairRates
from peaccel.evaluation.separation import CountedAnswers
from peaccel.metrics._draws import PairDraws, counted_levels
from peaccel.metrics.detection_cost import Costs

__all__ = ["CRITERIA", "By", "Comparison", "Criterion", "Judgements", "Measured"]

By: TypeAlias = Literal["recall", "eer", "dcf", "answered"]
Numbers: TypeAlias = NDArray[np.float64]


class Measured(NamedTuple):
    """The value of a criterion, and its value in each draw."""

    value: float
    drawn: Numbers


@dataclass(frozen=True, eq=False)
class Comparison:
    """Data that all scores are compared on."""

    criterion: Criterion
    known: NDArray[np.bool_]
    """[Q], the queries that have an answer."""
    resamples: Resamples
    """Draws of these queries."""
    pairs: NDArray[np.int64]
    """[P, 2] of rows."""
    same: NDArray[np.bool_]
    """[P], whether each pair is of one class."""
    clusters: NDArray[np.int64]
    """[P, 2], the classes of the items of each pair."""
    costs: Costs
    wrong: float
    """The share of accepted answers that may be wrong."""
    seed: int

    @cached_property
    def of_pairs(self) -> Resamples:
        """Draws of the pairs, by the classes on both sides."""
        return Resamples(self.clusters, self.seed)


@dataclass(frozen=True, eq=False)
class Judgements:
    """Answers of one score to the queries that have an answer, and its scores of the pairs."""

    comparison: Comparison
    recall: Numbers
    right: Numbers
    confidence: Numbers
    scores: Numbers

    @cached_property
    def answers(self) -> CountedAnswers:
        """Right and wrong answers in each draw."""
        return CountedAnswers(self.right, self.confidence, self.comparison.resamples)

    @cached_property
    def pairs(self) -> JudgedPairs:
        """The scored pairs, with draws of them."""
        x, levels = self.comparison, counted_levels(self.scores, self.comparison.same)
        return JudgedPairs(self.scores, x.same, x.costs, PairDraws(self.scores, x.same, levels, x.of_pairs))


@dataclass(frozen=True)
class Criterion:
    """A number by which scores are compared."""

    field: str
    """The field of `RankedScore` that holds it."""
    name: str
    unit: str
    """Unit of gains, as in "3.2 points"."""
    measure: Callable[[Judgements], Measured]
    sign: int = 1
    """-1 where less is better, as of errors."""
    different: int | None = None
    """How many pairs of two classes are drawn; None: as many as of one class."""


def _of_pairs(field: str) -> Callable[[Judgements], Measured]:
    """The measure that is a field of `PairRates`."""
    metric = columns(PairRates)[field].pairs
    return lambda x: Measured(metric.value(x.pairs), metric.drawn(x.pairs))


def _recall(x: Judgements) -> Measured:
    value, drawn = x.comparison.resamples.drawn_means(x.recall[:, None])
    return Measured(float(value[0]), drawn[:, 0])


def _answered(x: Judgements) -> Measured:
    return Measured(*x.answers.kept(x.comparison.wrong))


CRITERIA: dict[By, Criterion] = {
    "recall": Criterion("recall_at_1", "Recall@1", "points", _recall),
    "eer": Criterion("equal_error_rate", "EER", "points", _of_pairs("equal_error_rate"), -1, DIFFERENT),
    "dcf": Criterion("min_dcf", "minDCF", "hundredths", _of_pairs("min_dcf"), -1, DIFFERENT),
    "answered": Criterion("answered", "share answered", "points", _answered),
}
