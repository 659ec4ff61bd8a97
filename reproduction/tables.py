"""Tables of docs/reproduction, comma-separated: one for each section, claims, defects, failures and the search."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.claims import FEWEST, Comparison, Verdicts, differences, read_claims
from reproduction.failures import rates
from reproduction.ledger import Record
from reproduction.plan import TASKS, WHOLE, Cell, Plan, Task
from reproduction.search import trials
from reproduction.sections import LOWER_IS_BETTER, SECTIONS, file_of, measured
from reproduction.student import WhereMean, distance_seen, seeds_needed, where_mean

__all__ = ["ABOVE", "Pair", "claims_table", "interval", "pairs", "power", "tables"]

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
    yield "pairs.csv", _text(_pairs(plan, last, records))


def _section(plan: Plan, records: Records, measures: Mapping[str, str], tasks: Sequence[Task]) -> Table:
    lines: list[Sequence[object]] = [("task", "row", "measure", "splits", "mean", "deviation", "median", "worst")]
    for task in tasks:
        for (row, name), points in measured(plan, records, measures, task).items():
            x = np.array(list(points.values()))
            lower = measures[name].removeprefix("numbers.").startswith(LOWER_IS_BETTER)
            deviation = x.std(ddof=1) if len(x) > 1 else np.nan
            lines.append((task, row, name, len(x), x.mean(), deviation, np.median(x), x.max() if lower else x.min()))
    return lines


@dataclass(frozen=True)
class Pair:
    """Recall@1 of a row less that of another."""

    task: Task
    name: str
    drawn: WhereMean
    """By common draws of settings."""
    chosen: WhereMean
    """By the settings that were chosen for each."""
    recipe: float
    """The recipes' validation MAP@R of numbers; NaN of rows that are trained longer."""


def pairs(plan: Plan, last: Records, records: Records) -> Iterator[Pair]:
    """Each pair of rows that claims compare by common draws, on each task."""
    for claim in read_claims():
        for comparison in claim.comparisons + claim.other_forms:
            if not comparison.drawn or comparison.left == comparison.right:
                continue
            if not comparison.of[0].startswith("recall_at_1"):
                continue
            rows = [side[0] for side in (comparison.left, comparison.right)]
            names = [row.replace(" (drawn, longer)", " (longer)").removesuffix(" (drawn)") for row in rows]
            chosen = Comparison((names[0],), (names[1],), comparison.of)
            recipes = [trials(plan, records, name) for name in names]
            recipe = recipes[0][0] - recipes[1][0] if all(len(x) for x in recipes) else np.nan
            for task in claim.tasks:
                wheres = [where_mean(differences(last, c, task), ABOVE) for c in (comparison, chosen)]
                yield Pair(task, " less ".join(names), wheres[0], wheres[1], float(recipe))


def _pairs(plan: Plan, last: Records, records: Records) -> Table:
    lines: list[Sequence[object]] = [
        ("task", "pair", "draws", "drawn", "low", "high", "p", "splits", "chosen", "low", "high", "recipe")
    ]
    for pair in pairs(plan, last, records):
        x, taken = pair.drawn, pair.chosen
        p = min(x.inside, x.beyond)
        ends = (taken.seeds, taken.value, taken.low, taken.high)
        lines.append((pair.task, pair.name, x.seeds, x.value, x.low, x.high, p, *ends, pair.recipe))
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


def claims_table(by_task: Mapping[Task, Verdicts]) -> str:
    """Differences that claims are decided by: as they are, without retries, with search and overlap, by draws."""
    lines: list[Sequence[object]] = [
        ("claim", "task", "difference", "claimed from", "to", "splits", "found", "low", "high", "p", "p with search",
         "p with overlap", "found without retries", "draws", "found by draws", "verdict of the claim",
         "p of the claim, by Holm", "seen in four of five cases", "splits for the found one"),
    ]  # fmt: skip
    for task, verdicts in by_task.items():
        ways = (
            verdicts.final,
            verdicts.without_retries,
            verdicts.with_search,
            verdicts.with_overlap,
            verdicts.by_draws,
        )
        for decision, *others in zip(*ways, strict=True):
            claim = decision.claim
            rows = zip(claim.comparisons, decision.comparisons, *(x.comparisons for x in others), strict=True)
            for comparison, where, without, moved, overlapping, drawn in rows:
                p = (min(x.inside, x.beyond) for x in (where, moved, overlapping))
                of_draws = (without.value, drawn.seeds, drawn.value)
                found = (where.seeds, where.value, where.low, where.high, *p, *of_draws)
                seen = power(where, comparison.between, len(verdicts.final))
                lines.append(
                    (
                        claim.number,
                        task,
                        comparison,
                        *comparison.between,
                        *found,
                        claim.instead or decision.verdict,
                        decision.p,
                        *seen,
                    )
                )
    return _text(lines)


def power(where: WhereMean, between: tuple[float, float], claims: int) -> tuple[float, float]:
    """The distance from a bound that these splits see in four of five cases, as Holm's first of so many claims.

    Beside it how many splits see the distance that was found.
    """
    distance = min(abs(where.value - bound) for bound in between)
    if where.seeds < FEWEST or not where.deviation * distance > 0:
        return np.nan, np.nan
    return distance_seen(where.seeds, where.deviation, claims), float(seeds_needed(distance, where.deviation, claims))


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
