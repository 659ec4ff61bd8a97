"""Which trainings failed, by the rule of docs/claims.md, and how often a row does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from reproduction.ledger import Record
from reproduction.plan import REFERENCE, Cell, Plan, Task, trained, tried

__all__ = ["FailureRate", "best_trial", "failed", "kept", "line", "rates", "retries"]

SHARE = 0.5
"""Of the reference's median validation, below which a training has failed: far from where good ones come out, since a
cut within reach of these would drop the unlucky among them and move what is left."""
ENDS = 0.9
"""Level of the interval of a rate, of which each end holds by itself at 95 %."""

Records = Mapping[Cell, Record]


@dataclass(frozen=True)
class FailureRate:
    """How many first attempts of a row failed."""

    task: Task
    name: str
    trained: int
    """First attempts whose split has a reference."""
    failed: int
    low: float
    """Ends of the exact interval of the share that fails (Clopper and Pearson)."""
    high: float
    not_finite: int
    """Of the failed, those whose loss was not finite, so that there are no numbers of them."""
    retried: int
    failed_again: int


def line(records: Records, task: Task, split: int) -> float | None:
    """The validation below which a training of a split has failed; None where no reference was trained there.

    It is half of the median over the initialisations of `REFERENCE` on the same split, and so looks at no test class.
    Of the trials of `REFERENCE` the first counts, which is its recipe.
    """
    found = [
        record["validation"]
        for cell, record in records.items()
        if (cell.task, cell.row, cell.split, cell.attempt) == (task, REFERENCE, split, 0)
        and cell.form in ("", "reference")
        and not cell.trial
    ]
    return SHARE * float(np.median(found)) if found else None


def failed(records: Records, cell: Cell) -> bool | None:
    """Whether a cell's training failed; None where that cannot be told yet."""
    below = line(records, cell.task, cell.split)
    return None if below is None or cell not in records else bool(records[cell]["validation"] < below)


def best_trial(plan: Plan, records: Records, row: str, task: Task = "numbers") -> int | None:
    """The trial of a row with the best mean validation over the splits of the search; None before all are finished.

    One that failed on any split is refused, unless all did.
    """
    found = {}
    for trial in range(plan.trials(task)):
        trials = [tried(row, trial, number, task) for number in range(plan.search.splits)]
        if not records.keys() >= set(trials):
            return None
        bad = any(failed(records, cell) for cell in trials)
        found[trial] = (not bad, np.mean([records[cell]["validation"] for cell in trials]))
    return max(found, key=found.__getitem__)


def retries(records: Records) -> Iterator[Cell]:
    """The one retry of each first attempt that failed, from an initialisation that was fixed before.

    Of common draws there is none: nobody keeps settings that failed.
    """
    for cell in records:
        if cell.measured and not cell.drawn and not cell.attempt and failed(records, cell):
            yield trained(cell.task, cell.row, cell.split, cell.form, attempt=1)


def kept(records: Records, retried: bool = True) -> dict[Cell, Record]:
    """Final numbers, one training of each row and split: the retry where there is one, or the first attempt always.

    Common draws that failed are left out.
    """
    found = {
        cell: record
        for cell, record in records.items()
        if cell.measured and not cell.attempt and not (cell.drawn and failed(records, cell))
    }
    if retried:
        for cell, record in records.items():
            first = trained(cell.task, cell.row, cell.split, cell.form)
            if cell.attempt and first in found:
                del found[first]
                found[cell] = record
    return found


def rates(records: Records) -> list[FailureRate]:
    """How often each row failed, by task, in the order in which rows were finished."""
    outcomes: dict[tuple[Task, str], list[Cell]] = {}
    for cell in records:
        if cell.measured and not cell.attempt and failed(records, cell) is not None:
            outcomes.setdefault((cell.task, cell.name), []).append(cell)
    found = []
    for (task, name), cells in outcomes.items():
        bad = [cell for cell in cells if failed(records, cell)]
        again = [trained(task, cell.row, cell.split, cell.form, attempt=1) for cell in bad]
        again = [cell for cell in again if cell in records]
        low, high = binomtest(len(bad), len(cells)).proportion_ci(ENDS, method="exact")
        not_finite = sum(not records[cell]["numbers"] for cell in bad)
        failed_again = sum(bool(failed(records, cell)) for cell in again)
        found.append(
            FailureRate(task, name, len(cells), len(bad), float(low), float(high), not_finite, len(again), failed_again)
        )
    return found
