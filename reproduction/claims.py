"""Whether claims hold: differences over the same seeds and classes, with intervals, corrected for their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import config
from reproduction.ledger import Record, unpacked
from reproduction.plan import Cell

__all__ = ["Claim", "Comparison", "Decision", "decided", "difference", "read_claims", "values"]

RESAMPLES = 10_000
LEVEL = 0.05
PUBLISHED = " (published)"
FEWEST = 5
"""Seeds: resamples of fewer know too little of how seeds differ for a verdict."""

Verdict = Literal["held", "reversed", "not distinguishable", "too few seeds"]
Records = Mapping[Cell, Record]


@dataclass(frozen=True)
class Comparison:
    """The difference of two means over rows, and where it is claimed to lie."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    of: tuple[str, ...]
    """A measure; or one of the left, and one of the right."""
    between: tuple[float, float]
    """In points of a hundred."""

    def __str__(self) -> str:
        """Such as "recall_at_1.own of pfe less that of scf"."""
        rows = [", ".join(side) for side in (self.left, self.right)]
        if self.left == self.right:
            return f"{rows[0]}: {self.of[0]} less {self.of[-1]}"
        if len(self.of) == 1:
            return f"{self.of[0]}: {rows[0]} less {rows[1]}"
        return f"{rows[0]}: {self.of[0]}, less {rows[1]}: {self.of[1]}"


@dataclass(frozen=True)
class Claim:
    """A statement and what decides it."""

    number: int
    text: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Claims:
    """claims.toml."""

    claim: tuple[Claim, ...]


@dataclass(frozen=True)
class Decision:
    """What came out of a comparison, in points of a hundred."""

    claim: Claim
    comparison: Comparison
    seeds: int
    value: float
    low: float
    high: float
    p: float
    """Two-sided, corrected by Holm over all comparisons that were run."""
    verdict: Verdict


@cache
def read_claims() -> tuple[Claim, ...]:
    """The claims of docs/claims.md."""
    return config.read(Path(__file__).parent / "claims.toml", Claims).claim


def values(records: Records, row: str, measure: str, task: str = "numbers") -> dict[int, NDArray[np.float64]]:
    """A measure of a row by seed, [C] of each class or [1] of all, where it is there."""
    part, _, name = measure.partition(".")
    found = {}
    for cell, record in records.items():
        own = cell.row + PUBLISHED * cell.published
        if own == row and cell.task == task and cell.trial is None and name in record[part]:
            x = record[part][name]
            found[cell.seed] = unpacked(x) if isinstance(x, str) else np.array([x])
    return found


def difference(records: Records, comparison: Comparison) -> list[NDArray[np.float64]]:
    """For each seed that all rows have, the difference of each class, or of all where one side has no other."""
    sides = [
        [values(records, row, measure) for row in rows]
        for rows, measure in ((comparison.left, comparison.of[0]), (comparison.right, comparison.of[-1]))
    ]
    seeds = set.intersection(*(set(by_seed) for side in sides for by_seed in side))
    found = []
    for seed in sorted(seeds):
        of_rows = [[by_seed[seed] for by_seed in side] for side in sides]
        by_class = len({len(x) for side in of_rows for x in side}) == 1
        left, right = (np.mean([x if by_class else x.mean(keepdims=True) for x in side], axis=0) for side in of_rows)
        found.append(100 * (left - right))
    return found


def decided(records: Records, claims: Sequence[Claim]) -> tuple[Decision, ...]:
    """Decide every comparison of every claim, of which there are `FEWEST` seeds.

    The interval is between percentiles of 10 000 resamples, which draw seeds, and in each of them classes. A comparison
    held if that is within its range at the corrected level, and was reversed if it lies beyond.

    References
    ----------
    Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 1979.
    """
    found = [_compared(records, claim, comparison) for claim in claims for comparison in claim.comparisons]
    run = [i for i, decision in enumerate(found) if decision.seeds >= FEWEST]
    corrected = dict(zip(run, holm(np.array([found[i].p for i in run])).tolist(), strict=True))
    return tuple(_judged(decision, corrected.get(i)) for i, decision in enumerate(found))


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corrected p, [M]."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def resampled(by_seed: Sequence[NDArray[np.float64]], seed: int = 0) -> NDArray[np.float64]:
    """Means of seeds drawn anew, and of classes drawn anew in each, [RESAMPLES]."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(by_seed), (RESAMPLES, len(by_seed)))
    total = np.zeros(RESAMPLES)
    for place in range(len(by_seed)):
        for i, x in enumerate(by_seed):
            here = np.flatnonzero(drawn[:, place] == i)
            total[here] += rng.multinomial(len(x), np.full(len(x), 1 / len(x)), len(here)) @ x / len(x)
    return total / len(by_seed)


def interval(by_seed: Sequence[NDArray[np.float64]], means: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean over seeds, and the percentiles of resamples between which 95 % of them lie."""
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return float(np.mean([x.mean() for x in by_seed])), low, high


def _compared(records: Records, claim: Claim, comparison: Comparison) -> Decision:
    by_seed = difference(records, comparison)
    if not by_seed:
        return Decision(claim, comparison, 0, np.nan, np.nan, np.nan, np.nan, "too few seeds")
    means = resampled(by_seed)
    value, low, high = interval(by_seed, means)
    least, greatest = comparison.between
    outside = [_share(means <= least)] if least > -np.inf else []
    outside += [_share(means >= greatest)] if greatest < np.inf else []
    beyond = [_share(means >= least)] if least > -np.inf else []
    beyond += [_share(means <= greatest)] if greatest < np.inf else []
    held, reversed_ = max(outside), min(beyond)
    verdict: Verdict = "held" if held <= reversed_ else "reversed"
    return Decision(claim, comparison, len(by_seed), value, low, high, min(1.0, 2 * min(held, reversed_)), verdict)


def _share(flags: NDArray[np.bool_]) -> float:
    """Of resamples; never 0, which so many cannot tell."""
    return (int(flags.sum()) + 1) / (len(flags) + 1)


def _judged(decision: Decision, p: float | None) -> Decision:
    """With the corrected p, by which what is not decided says so."""
    if p is None:
        return replace(decision, p=np.nan, verdict="too few seeds")
    verdict: Verdict = decision.verdict if p < LEVEL else "not distinguishable"
    return replace(decision, p=p, verdict=verdict)


def by_claim(decisions: Sequence[Decision]) -> Iterator[tuple[Claim, Verdict, list[Decision]]]:
    """Each claim with the verdict of all its comparisons together: held if all did, reversed if one was."""
    numbers = dict.fromkeys(decision.claim.number for decision in decisions)
    for number in numbers:
        own = [decision for decision in decisions if decision.claim.number == number]
        said = {decision.verdict for decision in own}
        order: tuple[Verdict, ...] = ("too few seeds", "reversed", "not distinguishable", "held")
        yield own[0].claim, next(verdict for verdict in order if verdict in said), own
