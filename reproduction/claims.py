"""Whether claims hold: differences over the same seeds, by Student's t, corrected for the number of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from reproduction.files import read_toml
from reproduction.ledger import Record, unpacked
from reproduction.plan import WHOLE, Cell, Task
from reproduction.student import LEVEL, WhereMean, holm, where_mean

__all__ = [
    "Claim",
    "Comparison",
    "Decision",
    "Verdicts",
    "decided",
    "differences",
    "measured_of",
    "read_claims",
    "values",
]

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
    def drawn(self) -> bool:
        """Whether all rows have common draws of settings."""
        return all(" (drawn" in row for row in self.left + self.right)

    @property
    def searched(self) -> bool:
        """Whether rows are compared whose settings were searched for each alone, not two measures of the same ones."""
        return self.left != self.right and not self.drawn

    @property
    def by_draws(self) -> Comparison:
        """The same of the rows' common draws of settings."""
        if self.drawn:
            return self
        left, right = (tuple(f"{row} (drawn)" for row in side) for side in (self.left, self.right))
        return replace(self, left=left, right=right)

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
    enough: int | None = None
    """How many of its comparisons hold it; None for all."""
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
    """The verdict on a claim, and what it rests on."""

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


@dataclass(frozen=True)
class Verdicts:
    """Decisions on the claims of a task, in the same order."""

    final: Sequence[Decision]
    without_retries: Sequence[Decision]
    with_search: Sequence[Decision]
    """With the search of settings as a source of chance."""
    with_overlap: Sequence[Decision]
    """With Nadeau and Bengio's correction for splits that overlap."""
    by_draws: Sequence[Decision]
    """Of the same rows' common draws, where they have some."""


@cache
def read_claims() -> tuple[Claim, ...]:
    """The claims of docs/claims.md."""
    return msgspec.convert(read_toml("claims.toml"), Claims).claim


def values(records: Records, row: str, measure: str, task: Task = "numbers") -> dict[int, NDArray[np.float64]]:
    """A measure of a row by the seed of the split, [C] of each class or [1] of all, where it is there."""
    found = {}
    for cell, record in records.items():
        if row.startswith(cell.row) and cell.name == row and cell.task == task and cell.measured:
            x = measured_of(record, measure)
            if x is not None:
                found[cell.split] = x
    return found


def measured_of(record: Record, measure: str) -> NDArray[np.float64] | None:
    """A measure of a training, [C] of each class or [1] of all; None where it is not there."""
    part, _, name = measure.partition(".")
    x = record[part].get(name)
    return unpacked(x) if isinstance(x, str) else None if x is None else np.array([x])


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
    overlap: float = 0.0,
) -> tuple[Decision, ...]:
    """Decide every claim of a task, where its comparisons have `FEWEST` seeds, of one training of each row and split.

    A claim of n comparisons holds if as many of them do as are `enough`, k: its p is their k-th smallest, n - k + 1
    times. Of all, that is the largest as it stands, of any the smallest as often as there are. It is reversed if more
    than n - k of them are: that p is the (n - k + 1)-th smallest, k times. The smaller of both p is corrected by Holm
    over all claims of the task; those that have too few seeds count among them with p = 1. Differences have a
    `variance` beside that over splits, such as that of settings, and an `overlap` of splits.

    References
    ----------
    Benjamini and Heller, Screening for Partial Conjunction Hypotheses, Biometrics 2008.
    """
    claims = [claim for claim in claims if task in claim.tasks]
    found = [
        tuple(where_mean(differences(records, c, task), c.between, variance(c), overlap) for c in claim.comparisons)
        for claim in claims
    ]
    together = [_together(claim, wheres) for claim, wheres in zip(claims, found, strict=True)]
    tested = [not np.isnan(p).any() for p in together]
    smallest = [min(p) if known else 1.0 for p, known in zip(together, tested, strict=True)]
    corrected = np.where(tested, holm(np.array(smallest)), np.nan).tolist()
    decisions = []
    for i, (claim, wheres, p) in enumerate(zip(claims, found, corrected, strict=True)):
        decisions.append(Decision(claim, wheres, *together[i], p, _said(*together[i], p)))
    return tuple(decisions)


def _together(claim: Claim, wheres: Sequence[WhereMean]) -> tuple[float, float]:
    """p of the claim's holding and of its being reversed; NaN of too few seeds."""
    if min(where.seeds for where in wheres) < FEWEST:
        return np.nan, np.nan
    enough = claim.enough or len(wheres)
    spare = len(wheres) - enough
    inside, beyond = sorted(where.inside for where in wheres), sorted(where.beyond for where in wheres)
    return min(1.0, (spare + 1) * inside[enough - 1]), min(1.0, enough * beyond[spare])


def _said(inside: float, beyond: float, p: float) -> Verdict:
    if np.isnan(p):
        return "too few seeds"
    if p >= LEVEL:
        return "not distinguishable"
    return "held" if inside <= beyond else "reversed"
