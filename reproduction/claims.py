"""Whether claims hold: differences over the same seeds, by Student's t, corrected for the number of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import config
from reproduction.ledger import Record, unpacked
from reproduction.plan import WHOLE, Cell, Task
from reproduction.student import LEVEL, WhereMean, holm, where_mean

__all__ = ["Claim", "Comparison", "Decision", "decided", "differences", "read_claims", "values"]

FEWEST = 5
"""Seeds: fewer know too little of how seeds differ for a verdict."""

Verdict = Literal["held", "reversed", "not distinguishable", "too few seeds"]
Records = Mapping[Cell, Record]


@dataclass(frozen=True)
class Comparison:
    """The difference of two means over rows, and where it is claimed to lie."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    """None where the left's mean itself is claimed to lie somewhere."""
    of: tuple[str, ...]
    """A measure; or one of the left, and one of the right."""
    between: tuple[float, float] = (-np.inf, np.inf)
    """In points of a hundred."""
    text: str = ""
    """In a word or two, of a form that is shown and decides nothing."""

    @property
    def trainings(self) -> bool:
        """Whether trainings of different rows are compared, not two measures of the same ones."""
        return self.left != self.right

    def __str__(self) -> str:
        """Such as "recall_at_1.own of pfe less that of scf"."""
        rows = [", ".join(side) for side in (self.left, self.right)]
        if not self.right:
            return f"{rows[0]}: {self.of[0]}"
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
    primary: bool = False
    """Whether its rows are trained on more splits."""
    one_is_enough: bool = False
    """Whether one of its comparisons is enough to hold it; else it takes all of them."""
    tasks: tuple[Task, ...] = WHOLE
    """On each of which it is decided."""
    remark: str = ""
    """A limit of what its verdict says."""
    instead: str = ""
    """A word in place of a verdict that does not say what it seems to; the remark says why."""
    other_forms: tuple[Comparison, ...] = ()
    """Shown beside the remark; they decide nothing."""


@dataclass(frozen=True)
class Claims:
    """claims.toml."""

    claim: tuple[Claim, ...]


@dataclass(frozen=True)
class Decision:
    """What came out of a claim."""

    claim: Claim
    comparisons: tuple[WhereMean, ...]
    """Of each comparison, in points of a hundred; its p are not corrected."""
    inside: float
    """p of all comparisons together: small where the claim holds."""
    beyond: float
    """p of all comparisons together: small where it is reversed."""
    p: float
    """The smaller one, corrected by Holm over all claims that were tested."""
    verdict: Verdict

    @property
    def before(self) -> Verdict:
        """The verdict if this claim were the only one."""
        return _said(self.inside, self.beyond, min(self.inside, self.beyond))


@cache
def read_claims() -> tuple[Claim, ...]:
    """The claims of docs/claims.md."""
    return config.read(Path(__file__).parent / "claims.toml", Claims).claim


def values(records: Records, row: str, measure: str, task: Task = "numbers") -> dict[int, NDArray[np.float64]]:
    """A measure of a row by the seed of the split, [C] of each class or [1] of all, where it is there."""
    part, _, name = measure.partition(".")
    found = {}
    for cell, record in records.items():
        if (
            row.startswith(cell.row)
            and cell.name == row
            and cell.task == task
            and cell.measured
            and name in record[part]
        ):
            x = record[part][name]
            found[cell.split] = unpacked(x) if isinstance(x, str) else np.array([x])
    return found


def differences(records: Records, comparison: Comparison, task: Task = "numbers") -> list[float]:
    """In points of a hundred, of each split that all rows have: the means of classes, and those of rows."""
    sides = [
        [values(records, row, measure, task) for row in rows]
        for rows, measure in ((comparison.left, comparison.of[0]), (comparison.right, comparison.of[-1]))
    ]
    splits = set.intersection(*(set(by_split) for side in sides for by_split in side))
    found = []
    for split in sorted(splits):
        left, right = (np.mean([by_split[split].mean() for by_split in side]) if side else 0.0 for side in sides)
        found.append(float(100 * (left - right)))
    return found


def decided(
    records: Records,
    claims: Sequence[Claim],
    task: Task = "numbers",
    variance: Callable[[Comparison], float] = lambda _: 0.0,
) -> tuple[Decision, ...]:
    """Decide every claim of a task, where its comparisons have `FEWEST` seeds, of one training of each row and split.

    A claim of several comparisons holds if all of them do: its p is their largest, which needs no correction
    (intersection-union). It is reversed if any of them is, whose smallest p counts as often as there are comparisons.
    Of a claim that one comparison is enough for it is the other way round. The smaller of both p is corrected by Holm
    over all claims of the task; those that have too few seeds count among them with p = 1. Differences have a
    `variance` beside that over splits, such as that of settings.

    References
    ----------
    Berger, Multiparameter Hypothesis Testing and Acceptance Sampling, Technometrics 1982, for intersection-union tests.
    """
    claims = [claim for claim in claims if task in claim.tasks]
    found = [
        tuple(where_mean(differences(records, c, task), c.between, variance(c)) for c in claim.comparisons)
        for claim in claims
    ]
    together = [_together(claim, own) for claim, own in zip(claims, found, strict=True)]
    tested = [not np.isnan(p).any() for p in together]
    smallest = [min(p) if known else 1.0 for p, known in zip(together, tested, strict=True)]
    corrected = np.where(tested, holm(np.array(smallest)), np.nan).tolist()
    decisions = []
    for i, (claim, own, p) in enumerate(zip(claims, found, corrected, strict=True)):
        decisions.append(Decision(claim, own, *together[i], p, _said(*together[i], p)))
    return tuple(decisions)


def _together(claim: Claim, own: Sequence[WhereMean]) -> tuple[float, float]:
    """p of the claim's holding and of its being reversed; NaN of too few seeds."""
    if min(where.seeds for where in own) < FEWEST:
        return np.nan, np.nan
    inside, beyond = [where.inside for where in own], [where.beyond for where in own]
    if claim.one_is_enough:
        return min(1.0, len(own) * min(inside)), max(beyond)
    return max(inside), min(1.0, len(own) * min(beyond))


def _said(inside: float, beyond: float, p: float) -> Verdict:
    if np.isnan(p):
        return "too few seeds"
    if p >= LEVEL:
        return "not distinguishable"
    return "held" if inside <= beyond else "reversed"
