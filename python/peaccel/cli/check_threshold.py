"""Watch whether the promise of a threshold still holds, by audited answers and by the scores of traffic."""

from __future__ import annotations

import csv
import shlex
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel._utils import options
from peaccel.cli._fitted_files import read_fit
from peaccel.cli._outputs import outputs
from peaccel.cli._shares import share
from peaccel.evaluation.promise_monitor import PromiseMonitor, WatchedPromise
from peaccel.evaluation.promises import per_cent, promise_of
from peaccel.fits.records import FalseMatchLimit, Selection, Threshold
from peaccel.io._array_files import write_text
from peaccel.io._text_columns import csv_text
from peaccel.retrieval.ranking import Ranking

__all__ = ["CheckThreshold", "main"]

DRIFT = 3
"""The risk whose number of audits is said, in multiples of the promised share."""


@dataclass(frozen=True, kw_only=True)
class CheckThreshold:
    """The threshold, new answers or audits, and output."""

    accept: Path
    """The threshold that is watched: the result of pe.learn_then_test or pe.limit_false_matches, as 'peaccel
    choose-threshold' and 'peaccel check-answers' write it."""
    out: Path
    """A folder that receives monitor.json, the counts so far, with which the next call goes on, and report.html; made
    if missing."""
    reference: Path | None = None
    """At the first call: the ranking of the queries that the threshold was found on, as 'peaccel search' wrote it
    without --accept. Traffic is compared with it."""
    ranking: Path | None = None
    """A ranking that 'peaccel search' wrote without --accept: new traffic, which is compared with --reference."""
    audits: int = 0
    """How many of the accepted answers of --ranking are drawn for a person: audits-DAY.csv, whose column right is to
    be filled with y or n."""
    audited: Path | None = None
    """Such a table, filled: a .csv whose first line names the column right. Its lines are counted once."""
    merge: tuple[Path, ...] = ()
    """monitor.json of other processes, begun on the same day with the same --reference. The report is of all counts
    together; each file keeps the counts of its process.
    """
    day: str | None = None
    """The day of the new answers or audits, YYYY-MM-DD; by default today (UTC)."""
    certainty: str = "95%"
    """How surely there is never a false alarm of the audits, and none of the traffic."""
    strict: bool = False
    """End with exit code 1 at an alarm."""
    seed: int = 0
    """Seed of the draw of --audits."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(CheckThreshold, "peaccel check-threshold", __doc__, arguments)
    task = replace(task, day=task.day or str(datetime.now(UTC).date()))
    delta = float(1 - share("certainty", task.certainty))
    if task.audits < 0 or (task.audits and task.ranking is None):
        raise ValueError(f"--audits is {task.audits}, expected a number >= 0 of answers of --ranking")
    file, page = outputs(task.out, task, "monitor.json", "report.html")
    monitor = _monitor(task, delta, file)
    if task.audited is not None:
        monitor.audit(_audited(task.audited), task.day, _named(task.audited))
    if task.ranking is not None:
        found = Ranking(*io.read_ranking(task.ranking))
        if monitor.reference is not None:
            monitor.traffic(found, task.day, _named(task.ranking))
        if task.audits:
            _draw(task, monitor.accept, found)
    monitor.save(file)
    for path in task.merge:
        monitor.merge(PromiseMonitor.load(path))
    state = monitor.state()
    from peaccel._utils import report
    from peaccel.evaluation.monitor_pages import monitor_sections

    report.write(page, "Watch of a promise", monitor_sections(state), ["check-threshold", *arguments])
    print(f"{state}\n\n{_next(task, monitor, state)}\n\n-> {page}")
    if task.strict and (state.alarm or state.moved):
        sys.exit(1)


def _monitor(task: CheckThreshold, delta: float, file: Path) -> PromiseMonitor:
    """The monitor of the folder, or a new one."""
    accept: Any = read_fit(task.accept, Threshold)
    if not isinstance(accept, (Selection, FalseMatchLimit)):
        raise ValueError(f"{task.accept}: is a threshold that promises nothing; find one by 'peaccel choose-threshold'")
    reference = None if task.reference is None else Ranking(*io.read_ranking(task.reference))
    before = PromiseMonitor.load(file) if file.exists() else None
    begun = task.day if before is None else before.begun
    monitor = PromiseMonitor(accept, reference, delta=delta, begun=begun)
    if before is None:
        return monitor
    for name in ("accept", "delta", *(["reference"] if task.reference else [])):
        if getattr(before, name) != getattr(monitor, name):
            raise ValueError(
                f"{file}: was begun with another {'certainty' if name == 'delta' else name}; choose another --out"
            )
    return before


def _named(path: Path) -> str:
    """Name of what a file holds, by which it is counted once."""
    return f"{path.name} {zlib.crc32(path.read_bytes()):08x}"


def _audited(path: Path) -> NDArray[np.str_]:
    """The words of column right."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        words = [(line.get("right") or "").strip() for line in lines]
    if "right" not in (lines.fieldnames or ()):
        raise ValueError(f"{path}: has the columns {', '.join(lines.fieldnames or ()) or 'none'}, expected right")
    if empty := words.count(""):
        raise ValueError(f"{path}: column right is empty in {empty} of {len(words)} lines, expected y or n in all")
    return np.array(words, np.str_)


def _draw(task: CheckThreshold, accept: Selection | FalseMatchLimit, found: Ranking[Any]) -> None:
    """Write a table of accepted answers to audit; one that is there, and perhaps filled, is not replaced."""
    if isinstance(accept, FalseMatchLimit):
        what = "searches that are known to have no mate, with right = n for those that return something"
        raise ValueError(f"--audits draws accepted answers; audits of {task.accept} are {what}")
    taken = np.flatnonzero(accept(accept.confidence_of(found)))
    if len(taken) < task.audits:
        raise ValueError(f"--audits is {task.audits}, and {task.ranking} has {len(taken)} accepted answers")
    rows = np.sort(np.random.default_rng(task.seed).permutation(taken)[: task.audits])
    columns = [rows, found.ids[rows, 0], found.scores[rows, 0], np.full(len(rows), "")]
    path, text = _table(task), csv_text(["query", "item", "score", "right"], columns)
    if path.exists() and path.read_bytes().decode() != text:
        raise ValueError(f"{path}: is there already, perhaps filled; name another --day or move it")
    write_text(path, (".csv",), text)


def _table(task: CheckThreshold) -> Path:
    return task.out / f"audits-{task.day}.csv"


def _next(task: CheckThreshold, monitor: PromiseMonitor, state: WatchedPromise) -> str:
    """Commands that come next."""
    again = shlex.join(["peaccel", "check-threshold", "--accept", str(task.accept), "--out", str(task.out)])
    ranking, alpha = shlex.quote(str(task.ranking or "traffic.csv")), monitor.accept.alpha
    answers = isinstance(monitor.accept, Selection)
    if not (state.alarm or state.moved):
        risk = min(DRIFT * alpha, (1 + alpha) / 2)
        lines = [f"{monitor.audits_per_week(risk)} audits a week show a risk of {per_cent(risk)} within 4 weeks"]
        if task.audits:
            lines += [f"fill column right of {_table(task)} with y or n, then", f"{again} --audited {_table(task)}"]
        elif answers:
            lines.append(f"{again} --ranking {ranking} --audits 50")
        return "\n".join(lines)
    out = shlex.quote(f"{task.out}-anew")
    target = f"--{promise_of(monitor.accept).name} {per_cent(alpha).replace(' ', '')} --out {out}"
    anew = f"   peaccel check-answers --ranking {ranking} {target}"
    labelled = f"   peaccel choose-threshold --queries ... --gallery ... {target}"
    return "\n".join(
        [
            "Next, in this order:",
            "- which source it is: the same on the answers of one source at a time, each with its --out",
            f"   {again}-SOURCE --ranking SOURCE.csv",
            *(["- a new threshold, from answers that a person checks", anew] if answers else []),
            "- a new threshold, from labelled queries of now; --try-centre takes the mean of each side from its items",
            labelled + (" --try-centre" if answers else " --novel ..."),
            "- the watch of the new threshold",
            f"   peaccel check-threshold --accept {out}/accept.json --reference {ranking} --out {out}-watch",
        ]
    )
