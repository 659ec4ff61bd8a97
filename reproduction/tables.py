"""Tables of docs/reproduction, comma-separated: one for each section, claims, defects, failures and the search."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reproduction.claims import Comparison, Decision, differences
from reproduction.failures import rates
from reproduction.ledger import Record
from reproduction.plan import TASKS, WHOLE, Cell, Plan, Task
from reproduction.search import trials
from reproduction.sections import LOWER_IS_BETTER, SECTIONS, file_of, measured
from reproduction.student import WhereMean, where_mean

__all__ = ["ABOVE", "claims_table", "interval", "tables"]

Records = Mapping[Cell, Record]
Table = Sequence[Sequence[object]]

ABOVE = (0.0, float("inf"))
DEFECTS = {
    "Recall@1": "recall_at_1.own",
    "MAP@R": "map_at_r.own",
    "severity": "numbers.severity.own",
    "AUROC": "numbers.r_auroc.own",
}


def tables(plan: Plan, last: Records, records: Records) -> Iterator[tuple[str, str]]:
    """Names and texts of all files but that of claims; `last` has a retry in place of what failed."""
    for title, section in SECTIONS.items():
        yield file_of(title, "csv"), _text(_section(plan, last, section.measures, section.tasks))
    yield "defects.csv", _text(_defects(plan, last))
    yield "failures.csv", _text(_failures(records))
    yield "search.csv", _text(_search(plan, records))


def _section(plan: Plan, records: Records, measures: Mapping[str, str], tasks: Sequence[Task]) -> Table:
    lines: list[Sequence[object]] = [("task", "row", "measure", "splits", "mean", "deviation", "median", "worst")]
    for task in tasks:
        for (row, name), points in measured(plan, records, measures, task).items():
            x = np.array(list(points.values()))
            lower = measures[name].removeprefix("numbers.").startswith(LOWER_IS_BETTER)
            deviation = x.std(ddof=1) if len(x) > 1 else np.nan
            lines.append((task, row, name, len(x), x.mean(), deviation, np.median(x), x.max() if lower else x.min()))
    return lines


def _defects(plan: Plan, records: Records) -> Table:
    lines: list[Sequence[object]] = [("task", "row", "measure", "splits", "published less right", "low", "high")]
    for task in WHOLE:
        for row in plan.published:
            for name, measure in DEFECTS.items():
                gaps = differences(records, Comparison((f"{row} (published)",), (row,), (measure,)), task)
                where = where_mean(gaps, ABOVE)
                if where.seeds > 1:
                    lines.append((task, row, name, where.seeds, where.value, where.low, where.high))
    return lines


def _failures(records: Records) -> Table:
    lines: list[Sequence[object]] = [
        ("task", "row", "trained", "failed", "share", "low", "high", "loss not finite", "retried", "failed again")
    ]
    for rate in sorted(rates(records), key=lambda rate: TASKS.index(rate.task)):
        shares = (100 * rate.failed / rate.trained, 100 * rate.low, 100 * rate.high)
        lines.append(
            (rate.task, rate.name, rate.trained, rate.failed, *shares, rate.not_finite, rate.retried, rate.failed_again)
        )
    return lines


def _search(plan: Plan, records: Records) -> Table:
    lines: list[Sequence[object]] = [("row", "recipe", *(f"draw {i}" for i in range(1, plan.search.trials)))]
    lines += [(row, *x) for row in plan.rows["numbers"] if len(x := trials(plan, records, row))]
    return lines


def claims_table(by_task: Mapping[Task, tuple[Sequence[Decision], Sequence[Decision], Sequence[Decision]]]) -> str:
    """Differences that claims are decided by: as they are, without retries, and with the search's chance."""
    lines: list[Sequence[object]] = [
        ("claim", "task", "difference", "claimed from", "to", "splits", "found", "low", "high", "p", "p with search",
         "found without retries", "verdict of the claim", "p of the claim, by Holm"),
    ]  # fmt: skip
    for task, decisions in by_task.items():
        for decision, first, searched in zip(*decisions, strict=True):
            claim = decision.claim
            rows = zip(claim.comparisons, decision.comparisons, first.comparisons, searched.comparisons, strict=True)
            for comparison, where, without, moved in rows:
                p = (min(x.inside, x.beyond) for x in (where, moved))
                found = (where.seeds, where.value, where.low, where.high, *p, without.value)
                lines.append(
                    (
                        claim.number,
                        task,
                        comparison,
                        *comparison.between,
                        *found,
                        claim.instead or decision.verdict,
                        decision.p,
                    )
                )
    return _text(lines)


def interval(where: WhereMean, sign: str = "+") -> str:
    """A mean and its 95 % interval, in points."""
    return f"{where.value:{sign}.1f} [{where.low:{sign}.1f}, {where.high:{sign}.1f}]"


def _text(table: Table) -> str:
    """Comma-separated values; numbers have four digits, and are left out where there is none."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([_cell(x) for x in line] for line in table)
    return stream.getvalue()


def _cell(x: object) -> str:
    if isinstance(x, float):
        return "" if np.isnan(x) else f"{x:.4g}"
    return str(x)
