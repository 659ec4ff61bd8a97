"""Settings as a source of chance: how far another search would have moved a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from reproduction.claims import Comparison, values
from reproduction.ledger import Record
from reproduction.plan import Cell, Plan, Task, tried

__all__ = ["MEASURED", "trials", "variance_of_search"]

MEASURED = ("recall_at_1", "map_at_r")
"""Beginnings of the names of measures to which validation MAP@R, all that trials have, can be carried over."""

Records = Mapping[Cell, Record]


def trials(plan: Plan, records: Records, row: str) -> NDArray[np.float64]:
    """Validation MAP@R of each of a row's settings in points, the recipe's first; empty before all are tried."""
    cells = [[tried(row, trial, split) for split in range(plan.search.splits)] for trial in range(plan.search.trials)]
    if not records.keys() >= {cell for trial in cells for cell in trial}:
        return np.empty(0)
    return 100 * np.array([np.mean([records[cell]["validation"] for cell in trial]) for trial in cells])


def variance_of_search(plan: Plan, records: Records, task: Task) -> Callable[[Comparison], float]:
    """The variance that another search of as many settings gives a difference of rows on a task, in points squared.

    The best of a row's settings varies as the best of as many drawn from them with replacement. A point of validation
    MAP@R counts as many points of a measure as it does from row to row, by least squares. Differences within one
    training have none, and those by measures that trials lack are taken to have none.
    """
    tried_settings = {row: x for row in plan.rows["numbers"] if len(x := trials(plan, records, row)) > 1}
    variances = {row: _variance_of_best(x) for row, x in tried_settings.items()}

    def slope(part: str) -> float:
        means = {row: 100 * np.mean([x.mean() for x in found.values()]) for row in variances
                 if (found := values(records, row, f"{part}.own", task))}  # fmt: skip
        best = [tried_settings[row].max() for row in means]
        return float(np.polyfit(best, list(means.values()), 1)[0]) if len(set(best)) > 1 else 1.0

    slopes = {part: slope(part) for part in MEASURED} if task != "hib" else {}

    def variance(comparison: Comparison) -> float:
        part = comparison.of[0].partition(".")[0]
        if not comparison.trainings or part not in slopes:
            return 0.0
        shares = [(row, 1 / len(side)) for side in (comparison.left, comparison.right) for row in side]
        # A form of a row has the row's settings.
        return slopes[part] ** 2 * sum(share**2 * variances.get(row.partition(" (")[0], 0.0) for row, share in shares)

    return variance


def _variance_of_best(x: NDArray[np.float64]) -> float:
    """Of the greatest of as many values drawn with replacement."""
    p = np.diff((np.arange(len(x) + 1) / len(x)) ** len(x))
    x = np.sort(x)
    return float(p @ (x - p @ x) ** 2)
