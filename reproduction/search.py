"""Settings as a source of chance: how far another search would have moved a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from reproduction.claims import FEWEST, Comparison, differences, measured_of
from reproduction.failures import kept
from reproduction.ledger import Record
from reproduction.plan import Cell, Form, Plan, Task, rows_of, trained, tried
from reproduction.student import LEVEL, where_mean

__all__ = ["called_different", "called_different_by_draws", "overlap", "trials", "variance_of_search"]

Records = Mapping[Cell, Record]


def trials(plan: Plan, records: Records, row: str) -> NDArray[np.float64]:
    """Validation MAP@R of each of a row's settings in points, the recipe's first; empty before all are tried."""
    cells = [[tried(row, trial, split) for split in range(plan.search.splits)] for trial in range(plan.search.trials)]
    if not records.keys() >= {cell for trial in cells for cell in trial}:
        return np.empty(0)
    return 100 * np.array([np.mean([records[cell]["validation"] for cell in trial]) for trial in cells])


def variance_of_search(plan: Plan, records: Records, task: Task) -> Callable[[Comparison], float]:
    """The variance that another search of as many settings gives a difference of rows on a task, in points squared.

    The best of a row's settings varies in validation MAP@R of numbers, by which they are chosen for all tasks, as the
    best of as many drawn from them with replacement. How a measure of the task follows is known of common draws, less
    the row's chosen settings on the same split: by a line through 0, and what it leaves, which is of settings too but
    for as much as two trainings differ by without them. Draws further below the chosen settings than the median of the
    row's trials say nothing of a best one, which is as low in one of 64 searches. Measures with few draws have none,
    nor have differences within one training and those of common draws.
    """
    tried_settings = {row: x for row in plan.rows["numbers"] if len(x := trials(plan, records, row)) > 1}
    variances = {row: _variance_of_best(x) for row, x in tried_settings.items()}
    last = kept(records)

    @cache
    def worth(measure: str) -> tuple[float, float]:
        """Points of a measure for one of validation MAP@R, and the variance that is left."""
        moved = []
        for cell in last:
            if cell.task == task and cell.drawn and cell.row in tried_settings:
                forms: tuple[Form, Form] = (cell.form, "longer" if cell.form == "drawn, longer" else "")
                on_task, on_numbers = (
                    [last[same] for form in forms if (same := trained(of, cell.row, cell.split, form)) in last]
                    for of in (task, "numbers")
                )
                sides = [x for record in on_task if (x := measured_of(record, measure)) is not None]
                if len(sides) == len(on_numbers) == len(forms):
                    points = 100 * (on_numbers[0]["validation"] - on_numbers[1]["validation"])
                    of_row = tried_settings[cell.row]
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
        found = (differences(last, comparison, task) for comparison in chosen)
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
    variance, last, found = variance_of_search(plan, records, task), kept(records), []
    for left, right in combinations(rows_of(plan, task), 2):
        comparison = Comparison((left,), (right,), ("recall_at_1.own",))
        x = differences(last, comparison, task)
        if len(x) >= FEWEST and (over_splits := np.var(x, ddof=1) / len(x)):
            far = stats.t.ppf(1 - LEVEL / 2, len(x) - 1)
            found.append(2 * stats.t.sf(far / np.sqrt(1 + variance(comparison) / over_splits), len(x) - 1))
    return float(np.mean(found)) if found else np.nan


def called_different_by_draws(records: Records, task: Task) -> float:
    """How often a t-test at 5 % would call two equal rows different in Recall@1 that have common draws of settings.

    The mean over all pairs of rows of a task, and over all signs that their differences may have: of equal rows either
    is as likely to be ahead by a draw, whatever it is that the draw, the split and the initialisation do to them.
    """
    last, found = kept(records), []
    for left, right in combinations(sorted({cell.name for cell in last if cell.drawn and cell.task == task}), 2):
        x = np.array(differences(last, Comparison((left,), (right,), ("recall_at_1.own",)), task))
        if len(x) >= FEWEST:
            every = (where_mean(list(x * signs), (0, np.inf)) for signs in product((1, -1), repeat=len(x)))
            found.append(np.mean([min(where.inside, where.beyond) < LEVEL for where in every]))
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
