"""`pe.answers_to_check`: which answers of unlabelled traffic a person checks, until a threshold can be promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host
from peaccel._utils.numbers import as_numbers, require_shares
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.evaluation.formatting import percent, six_digits
from peaccel.evaluation.promises import WRONG_ANSWERS, WRONG_PAIRS, per_cent
from peaccel.fits.answer_confidence import RankedAnswers
from peaccel.fits.learn_then_test import learn_then_test, of_ranking, one_of_each
from peaccel.fits.records import Selection, fewest
from peaccel.retrieval.ranking import RankingAbove

__all__ = ["AnswersToCheck", "answers_to_check"]

PILOT = 0.15
"""Share of the budget by which the limit is chosen."""
FEWEST = 10
"""The fewest answers of a pilot."""
APART = 0.3
"""Share of all answers that the pilot is taken from; the test is of the others."""
DRAWS = 200
"""Draws of the risk that the pilot leaves possible."""
RANKS = 80
"""Ranks among which the limit is chosen, at most."""
SPREAD = 6.0
"""Standard deviation of the prior of both weights of the logistic risk: little is known."""


@dataclass(frozen=True)
class AnswersToCheck:
    """Rows to check next, or the threshold once all are checked; prints as a sentence.

    Examples
    --------
    >>> pe.answers_to_check(np.linspace(0, 1, 4000), budget=200).rows[:3].tolist()
    [3998, 3992, 3990]
    """

    rows: NDArray[np.int64]
    """Rows of the answers to check next, in any order; empty once all that the budget allows are checked."""
    stage: str
    """"pilot": by these labels a limit is chosen; "test": those above the limit are tested; "done"."""
    checked: int
    """How many answers of the plan are checked."""
    budget: int
    """How many answers are checked in all; fewer where fewer lie above the limit."""
    limit: float | None
    """The score above which answers are tested; None during the pilot."""
    above: float | None
    """Share of all answers that score at least the limit: no more can be accepted; None during the pilot."""
    accept: Selection | None
    """The threshold; None until all are checked. Its threshold is inf where nothing can be promised."""
    accepted: float | None
    """Share of all answers that the threshold accepts; None until all are checked."""
    wrong: float
    delta: float
    of: str = "answers"
    """"pairs" where pairs are checked, as `duplicates` finds them."""

    def __str__(self) -> str:
        """The next step, or the promise."""
        promise = (WRONG_PAIRS if self.of == "pairs" else WRONG_ANSWERS)(self.wrong)
        certainty = f"with a certainty of {per_cent(1 - self.delta)}"
        if self.accept is None:
            task = f"Check {len(self.rows)} {self.of} ({self.checked} of {self.budget} are checked)"
            if self.above is None:
                return f"{task}: they tell where a limit may lie above which {promise}."
            most = f"at most {percent(self.above)} % of all {self.of}, which lie above this limit, will be accepted"
            return f"{task}, which score at least {six_digits(self.limit or 0.0)}: {most}."
        if math.isinf(self.accept.threshold):
            return f"No threshold can be promised to keep this: {promise}, {certainty}, from {self.checked} labels."
        kept = f"{percent(self.accepted or 0.0)} % of these {self.of} are accepted"
        least = six_digits(self.accept.threshold)
        return f"Accept {self.of} that score at least {least}: {promise}, {certainty}. {kept}."


def answers_to_check(
    found: RankedAnswers | RankingAbove[Any] | ArrayLike,
    checked: Mapping[int, bool | None] | None = None,
    *,
    wrong: float = 0.02,
    delta: float = 0.05,
    budget: int = 300,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> AnswersToCheck:
    """Choose which best matches of unlabelled traffic to check by eye, and find a threshold from the checked ones.

    A person only says whether an answer is right. A pilot of 15 % of the budget, spread over the scores, tells above
    which limit the promise is likely to hold. The rest of the budget is drawn at random above the limit, and
    `pe.learn_then_test` finds the threshold from these labels alone. Call it with all labels so far until ``rows`` is
    empty.

    Parameters
    ----------
    found
        The ranking of N queries, [N, 1], or [N] scores of their best answers, higher = more similar. Or N pairs, as
        `duplicates` finds them: the threshold is then of pairs, and `cluster` takes it. They must not change between
        calls.
    checked
        Row -> True (right), False (wrong) or None (nobody can tell, which counts as wrong). Rows that are not asked for
        are ignored.
    wrong
        In (0, 1): the share of accepted answers that may be wrong.
    delta
        In (0, 1): the probability with which the threshold may break that.
    budget
        How many answers a person checks in all, to be named before the first is checked. To stop early or to go on
        because of the result voids the promise.
    groups
        [N] numbers or strings: answers of one group, such as a document or an item of several pairs, depend on each
        other, and one of each is used.
    seed
        Draws of the rows.

    Returns
    -------
    AnswersToCheck
        ``rows`` to check next; once there are none ``accept``, a `Selection`, which `pe.io.write_fit` keeps.

    Raises
    ------
    ValueError
        wrong or delta outside (0, 1); a budget so small that nothing can be promised even if all answers are right, or
        larger than there are answers; scores that are NaN; a row outside 0..N-1, or a label that is no boolean.

    Notes
    -----
    The promise is of queries drawn as these were, each counting once, and of answers that the person calls wrong. Where
    two people disagree about 2 % of answers, the promise holds by the judgement of the person who checked. The pilot is
    drawn from 30 % of the answers and the test from the others, so that the limit depends on no answer that is tested.
    Answers above the limit are then a sample of all those above it, and the test is exact whatever the pilot says.

    Where 44, 4.7 and 2 % of 40,000 answers could be accepted at 2 % by somebody who knows all labels, 300 labels accept
    53, 28 and 31 % of these on average, 600 labels 76, 47 and 39 %, 1200 labels 86, 68 and 40 % (logistic risk,
    certainty 95 %, 30 draws). Labels at random accept 4, 55 and 80 % where 44 % could be accepted, and nothing where
    4.7 % could.

    Examples
    --------
    Of 20,000 answers the surer ones are mostly right; somebody checks 400:

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=20_000)
    >>> right = rng.random(20_000) < 1 / (1 + np.exp(-1 - 5 * scores))
    >>> labels = {}
    >>> while len((plan := pe.answers_to_check(scores, labels, budget=400)).rows):
    ...     labels |= {int(row): bool(right[row]) for row in plan.rows}
    >>> len(labels), round(plan.accepted, 2), float((~right[plan.accept(scores)]).mean().round(3))
    (400, 0.12, 0.0)
    """
    owner = "answers_to_check"
    require_shares(owner, wrong=wrong, delta=delta)
    seed = as_integer(owner, "seed", seed, *SEEDS)
    raw, known = of_ranking(owner, "found", found)
    scores, of = as_numbers(owner, "found", raw, above="no threshold accepts it"), known.get("of", "answers")
    values = on_host(raw, owner, "found")
    one = np.arange(len(scores)) if groups is None else one_of_each(owner, "groups", groups, len(scores), seed)
    pilot = max(round(PILOT * budget), FEWEST)
    least = pilot + fewest(wrong, delta)
    if not isinstance(budget, int) or not least <= budget <= len(one):
        what = f"{least} (with fewer labels nothing can be promised) to {len(one)} (one for each answer or group)"
        raise ValueError(f"{owner}: budget is {budget!r}, expected {what}")
    labels = _labels(owner, checked or {}, len(scores))
    order = one[np.random.default_rng(seed).permutation(len(one))]
    apart = max(round(APART * len(order)), pilot)
    for_pilot, for_test = order[:apart], order[apart:]
    for_pilot = for_pilot[np.argsort(-scores[for_pilot], kind="stable")]
    places = _spread(len(for_pilot), pilot)
    rows = for_pilot[places]
    if (labels[rows] < 0).any():
        return _next(
            rows, labels, 0, AnswersToCheck(rows, "pilot", 0, budget, None, None, None, None, wrong, delta, of)
        )
    test = budget - pilot
    others = len(for_test) / len(for_pilot)
    limit = float(
        scores[for_pilot[_limit(places, labels[rows] == 0, len(for_pilot), test, others, wrong, delta, seed)]]
    )
    above = float((scores >= limit).mean())
    tested = for_test[scores[for_test] >= limit][:test]
    budget = pilot + len(tested)
    plan = AnswersToCheck(tested, "test", pilot, budget, limit, above, None, None, wrong, delta, of)
    if (labels[tested] < 0).any():
        return _next(tested, labels, pilot, plan)
    chosen = learn_then_test(values[tested], labels[tested] == 1, np.arange(len(tested)), wrong, delta)
    accept = replace(chosen, **known)
    accepted = float(accept(values).mean())
    return replace(plan, rows=tested[:0], stage="done", checked=budget, accept=accept, accepted=accepted)


def _next(rows: NDArray[np.int64], labels: NDArray[np.int64], before: int, plan: AnswersToCheck) -> AnswersToCheck:
    """The plan with the rows of its stage that are not checked yet."""
    left = rows[labels[rows] < 0]
    return replace(plan, rows=left, checked=before + len(rows) - len(left))


def _labels(owner: str, checked: Mapping[int, bool | None], length: int) -> NDArray[np.int64]:
    """[N]: 1 right, 0 wrong or not to be told, -1 not checked."""
    found = np.full(length, -1)
    for row, right in checked.items():
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < length:
            raise ValueError(f"{owner}: checked names row {row!r}, expected 0 .. {length - 1}")
        if right is not None and not isinstance(right, (bool, np.bool_)):
            raise ValueError(f"{owner}: checked has {right!r} for row {row}, expected True, False or None")
        found[row] = bool(right)
    return found


def _spread(length: int, count: int) -> NDArray[np.int64]:
    """Different places among falling scores, in geometric steps: a limit may lie at any share of the answers."""
    places = np.unique(np.geomspace(3, length, count).astype(np.int64)) - 1
    free = np.setdiff1d(np.arange(length), places)
    more = np.linspace(0, len(free) - 1, count - len(places)).round().astype(np.int64)
    return np.sort(np.concatenate([places, free[more]]))


def _limit(
    places: NDArray[np.int64],
    wrong: NDArray[np.bool_],
    length: int,
    test: int,
    others: float,
    alpha: float,
    delta: float,
    seed: int,
) -> int:
    """The place of the limit among the pilot's answers.

    The probability of a wrong answer is taken as logistic in the normal quantile of its rank, which costs answers where
    it is not so, and never breaks the promise. For each draw of its weights, and each limit, the test is expected to
    reach the deepest rank at which as many labels as are drawn above it show that the risk is below alpha (Chernoff).
    """
    quantile = np.array([NormalDist().inv_cdf((i + 0.5) / length) for i in range(length)])
    weights = _posterior(quantile[places], wrong.astype(np.float64), seed)
    ranks = np.unique(np.geomspace(min(20, length), length, RANKS).astype(np.int64))
    logit = weights[:, :1] + weights[:, 1:] * quantile
    risk = np.cumsum(1 / (1 + np.exp(-np.clip(logit, -50, 50))), 1)[:, ranks - 1] / ranks
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = risk * np.log(risk / alpha) + (1 - risk) * np.log((1 - risk) / (1 - alpha))
    apart = np.where(risk < alpha, apart, 0)
    reached = []
    for i, rank in enumerate(ranks):
        labels = min(test, others * rank) / rank * ranks[: i + 1]
        passes = labels * apart[:, : i + 1] >= math.log(1 / delta)
        reached.append((passes * ranks[: i + 1]).max(1).mean())
    return int(ranks[int(np.argmax(reached))]) - 1


def _posterior(x: NDArray[np.float64], y: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """[DRAWS, 2]: draws of the bias and the weight of a logistic probability, by Laplace's approximation."""
    inputs, weights = np.stack([np.ones(len(x)), x], 1), np.zeros(2)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(inputs @ weights, -50, 50)))
        curvature = inputs.T @ (inputs * (p * (1 - p))[:, None]) + np.eye(2) / SPREAD**2
        step = np.linalg.solve(curvature, inputs.T @ (y - p) - weights / SPREAD**2)
        weights = weights + np.clip(step, -2, 2)
        if abs(step).max() < 1e-9:
            break
    noise = np.random.default_rng(seed).normal(size=(DRAWS, 2))
    return np.asarray(weights + noise @ np.linalg.cholesky(np.linalg.inv(curvature)).T)
