"""Verification of a trial list by several scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.numbers import as_classes, as_flags
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.distributions import Distribution
from peaccel.evaluation.answers import as_scores, require_items
from peaccel.evaluation.columns import Column, table
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pair_rates import P_TARGET, PairRates, not_calibrated, pair_rates
from peaccel.evaluation.score_trials import score_trials
from peaccel.metrics.detection_cost import Costs
from peaccel.metrics.trial_clusters import trial_clusters
from peaccel.metrics.verification import warn_if_reversed
from peaccel.scores import Score

__all__ = ["TrialEvaluation", "TrialResult", "evaluate_trials"]


@dataclass(frozen=True)
class TrialResult(PairRates):
    """How well a score separates the trials of one speaker from the others."""

    score: Annotated[str, Column("score")]


@dataclass(frozen=True)
class TrialEvaluation(Exported):
    """Result of `evaluate_trials`; prints as a table."""

    trials: int
    matches: int
    """How many of the trials are of one speaker."""
    speakers: int
    """How many speakers the names are of, as far as trials of one speaker join them."""
    p_target: float
    results: tuple[TrialResult, ...]
    seed: int

    def tables(self) -> dict[str, Table]:
        """Header and rows of the table, by its title."""
        return {"Verification of trials": table(self.results)}

    def summary(self) -> str:
        """Data and protocol of the evaluation, in one sentence."""
        return (
            f"{self.trials} trials, {self.matches} of one speaker, {self.speakers} speakers; p_target "
            f"{self.p_target:g}; [95 % over speakers], seed {self.seed}"
        )

    def sentence(self) -> str:
        """Scores that are no calibrated log-likelihood ratios, though they are meant to be; empty where all are."""
        found = [(x.score, None if x.cllr is None else x.cllr.value, x.min_cllr) for x in self.results]
        return " ".join(line for x in found for line in not_calibrated(*x))

    def __str__(self) -> str:
        """The table as text."""
        return as_text("\n".join(filter(None, [self.summary(), self.sentence()])), self.tables())


def evaluate_trials(
    d: Distribution,
    ids: ArrayLike,
    enrol: ArrayLike,
    test: ArrayLike,
    match: ArrayLike,
    scores: str | Score | Sequence[str | Score] | None = None,
    *,
    enrolment: Mapping[str, Sequence[str]] | None = None,
    rule: str | None = None,
    cohort: Distribution | None = None,
    p_target: float = P_TARGET,
    seed: int = 0,
) -> TrialEvaluation:
    """Verify a list of trials by several scores, with intervals over speakers.

    Parameters
    ----------
    d, ids, enrol, test, enrolment, rule, cohort
        As of `peaccel.score_trials`.
    match
        [P] booleans (or 0 and 1): whether a trial is of one speaker; some are and some are not.
    scores
        Names or scores that take d's kind, one or several. None: cosine and, where the kind has it, mls.
    p_target
        In (0, 1): the prior probability of a trial of one speaker, at which detection costs are.
    seed
        Seed of the draws of intervals.

    Returns
    -------
    TrialEvaluation
        ``print`` it, ``.save("results.json")``, or have ``peaccel evaluate --trial-list`` write it as a page.

    Raises
    ------
    ValueError
        match of another shape or of one kind only, p_target outside (0, 1), or as for `peaccel.score_trials`.

    Examples
    --------
    >>> from peaccel.evaluation import evaluate_trials
    >>> d = pe.Point([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> found = evaluate_trials(d, ["a", "b", "c", "e"], ["a", "c", "a"], ["b", "e", "e"], [1, 1, 0])
    >>> found.speakers, found.results[0].roc_auc.value
    (2, 1.0)
    """
    owner = "evaluate_trials"
    require_items(owner, d=d)
    seed, costs = as_integer(owner, "seed", seed, *SEEDS), Costs(owner, p_target)
    named = as_scores(owner, scores, (d.kind, d.kind))
    same = as_flags(owner, "match", match, (len(as_classes(owner, "enrol", enrol)),))
    if same.all() or not same.any():
        raise ValueError(f"{owner}: match says {same.sum()} of {len(same)} trials, expected some of either kind")
    speakers = trial_clusters(enrol, test, same)
    resamples, results = Resamples(speakers, seed), []
    for score in named:
        found = score_trials(d, ids, enrol, test, score, enrolment=enrolment, rule=rule, cohort=cohort)
        warn_if_reversed(owner, f"scores {score.label}", found, same)
        rates = pair_rates(found, same, resamples, costs, score.name == "llr" and cohort is None, seed)
        results.append(TrialResult(score=score.label, **rates))
    return TrialEvaluation(
        trials=len(same),
        matches=int(same.sum()),
        speakers=len(np.unique(speakers)),
        p_target=costs.p_target,
        results=tuple(results),
        seed=seed,
    )
