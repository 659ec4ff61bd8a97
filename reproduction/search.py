"""Settings as a source of chance: how far another search would have moved a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from reproduction.claims import FEWEST, Comparison, differences, measured_of
from reproduction.failures import kept
from reproduction.ledger import Record
from reproduction.plan import WHOLE, Cell, Form, Plan, Task, rows_of, trained, tried
from reproduction.student import LEVEL

__all__ = ["called_different", "overlap", "trials", "variance_of_search"]

Records = Mapping[Cell, Record]


def trials(plan: Plan, records: Records, row: str) -> NDArray[np.float64]:
    """Validation MAP@R of each of a row's settings in points, the recipe's first; empty before all are tried."""
    cells = [[tried(row, trial, split) for split in range(plan.search.splits)] for trial in range(plan.search.trials)]
    if not records.keys() >= {cell for trial in cells for cell in trial}:
        return np.empty(0)
    return 100 * np.array([np.mean([records[cell]["validation"] for cell in trial]) for trial in cells])


def variance_of_search(plan: Plan, records: Records) -> Callable[[Comparison], float]:
    """The variance that another search of as many settings gives a difference of rows, in points squared.

    The best of a row's settings varies in validation MAP@R as the best of as many drawn from them with replacement. How
    a measure follows is known of common draws, less the row's chosen settings on the same split: by a line through 0,
    and what it leaves, which is of settings too but for as much as two trainings differ by without them. Draws further
    below the chosen settings than the median of the row's trials say nothing of a best one, which is as low in one of
    64 searches. Measures with few draws have none, nor have differences within one training and those of common draws.
    """
    tried_settings = {row: x for row in plan.rows["numbers"] if len(x := trials(plan, records, row)) > 1}
    variances = {row: _variance_of_best(x) for row, x in tried_settings.items()}
    last = kept(records)

    @cache
    def worth(measure: str) -> tuple[float, float]:
        """Points of a measure for one of validation MAP@R, and the variance that is left."""
        moved = []
        for cell, record in last.items():
            if cell.drawn and cell.row in tried_settings:
                form: Form = "longer" if cell.form == "drawn, longer" else ""
                chosen = last.get(trained(cell.task, cell.row, cell.split, form))
                sides = [measured_of(x, measure) for x in (record, chosen) if x is not None]
                if chosen is not None and sides[0] is not None and sides[1] is not None:
                    points, of_row = 100 * (record["validation"] - chosen["validation"]), tried_settings[cell.row]
                    if points >= np.median(of_row) - of_row.max():
                        moved.append((points, 100 * float(sides[0].mean() - sides[1].mean())))
        if len(moved) < FEWEST:
            return 0.0, 0.0
        x, y = np.array(moved).T
        # Of least absolute deviations and by their median, since draws break a measure of a few rows altogether.
        slope = _slope(x, y)
        rest = float(np.median((y - slope * x) ** 2) / stats.chi2.median(1))
        return slope, max(0.0, rest - without_settings(measure))

    def without_settings(measure: str) -> float:
        """The variance over splits of a difference of two rows with chosen settings, the median over neighbours."""
        chosen = (Comparison((left,), (right,), (measure,)) for left, right in pairwise(plan.common.rows))
        found = (differences(last, comparison, task) for comparison in chosen for task in WHOLE)
        known = [np.var(x, ddof=1) for x in found if len(x) >= FEWEST]
        return float(np.median(known)) if known else 0.0

    def variance(comparison: Comparison) -> float:
        if not comparison.searched:
            return 0.0
        total = 0.0
        for side, measure in ((comparison.left, comparison.of[0]), (comparison.right, comparison.of[-1])):
            slope, rest = worth(measure)
            # A form of a row has the row's settings.
            best = (variances.get(row.partition(" (")[0]) for row in side)
            total += sum((slope**2 * x + rest) / len(side) ** 2 for x in best if x is not None)
        return total

    return variance


def called_different(plan: Plan, records: Records, task: Task) -> float:
    """How often a t-test at 5 % would call two equal rows different in Recall@1, whose settings are searched apart.

    The mean over all pairs of rows of a task, with the variances that each pair has over splits and over searches.
    """
    variance, last, found = variance_of_search(plan, records), kept(records), []
    for left, right in combinations(rows_of(plan, task), 2):
        comparison = Comparison((left,), (right,), ("recall_at_1.own",))
        x = differences(last, comparison, task)
        if len(x) >= FEWEST and (over_splits := np.var(x, ddof=1) / len(x)):
            far = stats.t.ppf(1 - LEVEL / 2, len(x) - 1)
            found.append(2 * stats.t.sf(far / np.sqrt(1 + variance(comparison) / over_splits), len(x) - 1))
    return float(np.mean(found)) if found else np.nan


def overlap(plan: Plan, task: Task) -> float:
    """Test items for each training item, of classes or of scans, whichever are more."""
    sizes = plan.hib.numbers if task == "hib" else plan.numbers
    train, _, *test = sizes.scan_shares
    return max(sum(test) / train, sizes.classes[2] / sizes.classes[0])


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Of the line through 0 of the least absolute deviations: the median of y / x, each with the weight |x|."""
    x, y = x[x != 0], y[x != 0]
    if not len(x):
        return 0.0
    order = np.argsort(y / x)
    weights = np.abs(x[order]).cumsum()
    return float((y / x)[order][np.searchsorted(weights, weights[-1] / 2)])


def _variance_of_best(x: NDArray[np.float64]) -> float:
    """Of the greatest of as many values drawn with replacement."""
    p = np.diff((np.arange(len(x) + 1) / len(x)) ** len(x))
    x = np.sort(x)
    return float(p @ (x - p @ x) ** 2)
