"""Train and measure the papers' methods on small real images, and say which of their claims hold.

It may be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import tyro

from peaccel import io
from peaccel.data.digits import load_scans
from peaccel.methods.method import AtLeast0, Positive
from reproduction import ledger
from reproduction.failures import best_trial, retries
from reproduction.files import read_toml, written
from reproduction.hedging import PICTURE, draw
from reproduction.page import files, markdown, plane_of
from reproduction.plan import (
    REFERENCE,
    TASKS,
    WHOLE,
    Cell,
    Plan,
    Task,
    cells,
    changes_on,
    common_changes,
    read_plan,
    resolved,
    rows_of,
)
from reproduction.running import run
from reproduction.sections import FOLDER
from reproduction.workers import workers

__all__ = ["Reproduce", "main", "page_of"]

Experiment = Literal["numbers", "garments", "hard", "places", "hib", "published"]
EXPERIMENTS: tuple[Experiment, ...] = (*TASKS, "published")

MARK = "<!-- What follows is written by python -m reproduction. -->"


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Options: what is run, and where results go."""

    list: bool = False
    """Print every table and figure of the papers with the command that makes it, and stop."""
    check: bool = False
    """Recompute the page and the tables of the documentation from the files of results that are kept, train nothing,
    and print which of them differ. Figures are left out, since other versions of matplotlib draw other bytes."""
    quick: bool = False
    """Few classes, two splits and no search: minutes, and no numbers to believe."""
    only: tuple[Experiment, ...] = EXPERIMENTS
    """Of the experiments; the trials of their rows come first."""
    fashion_root: Path | None = None
    """The folder of Fashion-MNIST's IDX files, as torchvision or Debian's dataset-fashion-mnist have put them; without
    it the experiment garments is left out."""
    results_out: Path | None = None
    """A line of JSON for each training; those that are there are not run again. runs/reproduce/results.jsonl, with
    --quick runs/reproduce-quick/results.jsonl."""
    page_out: Path | None = None
    """The page, Markdown; what stands above its mark is kept. Beside the results, page.md. Figures and tables go to a
    folder beside the page, reproduction."""
    processes: AtLeast0 = 0
    """Trainings at a time, a thread each; 0 for as many as there are cores."""
    hours: Positive | None = None
    """After which no training begins."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for; ``arguments`` are those of the process unless given."""
    prog, flags = "python -m reproduction", [tyro.conf.FlagCreatePairsOff]
    task = tyro.cli(Reproduce, prog=prog, description=__doc__, args=arguments, config=flags)
    try:
        _run(task)
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(2)


def _run(task: Reproduce) -> None:
    if task.list:
        print_list()
        return
    if task.check:
        _check()
        return
    plan = read_plan(task.quick)
    results = task.results_out or Path("runs") / ("reproduce-quick" if task.quick else "reproduce") / "results.jsonl"
    page = task.page_out or results.parent / "page.md"
    for path in (results, page):
        path.parent.mkdir(parents=True, exist_ok=True)
        io.check_output(path)
    if task.fashion_root is not None:
        load_scans("fashion", task.fashion_root)
    elif not {"garments", "published"}.isdisjoint(task.only):
        print("garments: not run, since --fashion-root names no folder of Fashion-MNIST", flush=True)
    wanted = [cell for cell in cells(plan) if _belongs(plan, cell, task)]
    start = perf_counter()
    until = float("inf") if task.hours is None else start + 3600 * task.hours
    for searches in (True, False):
        _carry_out(plan, task, [cell for cell in wanted if cell.searches == searches], results, until)
    again = [cell for cell in retries(_finished(plan, ledger.read(results))) if _belongs(plan, cell, task)]
    _carry_out(plan, task, again, results, until)
    records = _finished(plan, ledger.read(results))
    text = page_of(plan, records, results)
    above = page.read_text(encoding="utf-8").partition(MARK)[0] if page.exists() else "# Reproduction\n\n"
    with written(page) as fresh:
        fresh.write_text(f"{above}{MARK}\n\n{text}", encoding="utf-8")
    folder = page.parent / FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in files(plan, records).items():
        with written(folder / name) as fresh:
            fresh.write_text(text, encoding="utf-8")
    if (plane := plane_of(records)) is not None:
        draw(plane, plan.hib.numbers.digits, folder / PICTURE)
    print(f"-> {page}")


def page_of(plan: Plan, records: dict[Cell, ledger.Record], results: Path) -> str:
    """The page, Markdown, of what is finished of a file of results."""
    of = sum(1 for _ in cells(plan)) + sum(1 for _ in retries(records))
    return markdown(plan, records, of, ledger.count(results))


def _check() -> None:
    """Compare the page and the tables with the files of results.

    Raises
    ------
    ValueError
        Some differ.
    """
    from reproduction.checking import recomputed

    root = Path(__file__).parents[1]
    plan, results, page = read_plan(), root / "reproduction" / "results.jsonl", root / "docs" / "reproduction.md"
    records = _finished(plan, ledger.read(results))
    expected = dict(recomputed())
    expected |= {page.parent / FOLDER / name: text for name, text in files(plan, records).items()}
    expected[page] = f"{page.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n\n{page_of(plan, records, results)}"
    compared = [path for path in expected if path.suffix != ".svg"]
    differ = [path for path in compared if path.read_text(encoding="utf-8") != expected[path]]
    if differ:
        raise ValueError(f"--check: other than their results: {', '.join(str(x.relative_to(root)) for x in differ)}")
    print(f"{len(compared)} files are as their results give them")


def print_list() -> None:
    """Print what papers.toml says; commands as they are, not broken into lines, to be copied."""
    held = read_toml("papers.toml")
    for paper, title in held["titles"].items():
        print(f"\n{title}\n")
        for item in held["item"]:
            if item["paper"] == paper:
                where = f" (docs/reproduction.md, {item['section']})" if "section" in item else ""
                how = item["command"] if "command" in item else f"impossible here: {item['impossible']}"
                print(f"{item['name']}: {item['shows']}{where}\n    {how}")


def _belongs(plan: Plan, cell: Cell, task: Reproduce) -> bool:
    """Whether a cell is of the experiments that are asked for, or of the search for one of their rows."""
    only = [name for name in task.only if name != "hib"]
    if cell.task == "hib":
        return "hib" in task.only
    if cell.searches:
        rows = {row for name in only for row in (plan.published if name == "published" else rows_of(plan, name))}
        return cell.row in rows | {REFERENCE} and bool(rows)
    if cell.task == "garments" and task.fashion_root is None:
        return False
    # Failures of rows with published defects are told by the reference too.
    tells = cell.row == REFERENCE and cell.task in WHOLE and cell.form in ("", "reference")
    return ("published" if cell.form == "published" else cell.task) in only or (tells and "published" in only)


def _carry_out(plan: Plan, task: Reproduce, wanted: Sequence[Cell], results: Path, until: float) -> None:
    """Run the cells that are not finished yet, some at a time, and append each as it comes."""
    records = ledger.read(results)
    left = [(cell, chosen) for cell, chosen in _chosen(plan, wanted, records) if _stale(plan, cell, chosen, records)]
    if not left:
        return
    todo, running, done = iter(left), dict[Future[ledger.Record], Cell](), 0
    count = task.processes or os.cpu_count() or 1
    with workers(count) as pool:
        try:
            while True:
                while len(running) < count and perf_counter() < until:
                    cell, chosen = next(todo, (None, None))
                    if cell is None or chosen is None:
                        break
                    running[pool.submit(run, task.quick, cell, chosen, task.fashion_root)] = cell
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, record = running.pop(future), future.result()
                    ledger.append(results, cell, record)
                    done += 1
                    print(f"{done} of {len(left)}: {cell}, {record['seconds']:.0f} s", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _chosen(plan: Plan, wanted: Iterable[Cell], records: dict[Cell, ledger.Record]) -> Iterator[tuple[Cell, Any]]:
    """Each cell with its changes of the recipe: a trial's own, or those of the row's best trial."""
    best = cache(partial(best_trial, plan, records))
    for cell in wanted:
        if cell.drawn:
            yield cell, common_changes(cell.row, cell.split, plan.search.within)
            continue
        searched: Task = "hib" if cell.task == "hib" else "numbers"
        trial = (cell.trial or 0) if cell.searches else best(cell.row, searched)
        if trial is not None:
            yield cell, changes_on(plan, cell.task, cell.row, trial)


def _finished(plan: Plan, records: dict[Cell, ledger.Record]) -> dict[Cell, ledger.Record]:
    """Results of the plan as it is now, without those of settings that it had before."""

    def of(wanted: Iterable[Cell]) -> dict[Cell, ledger.Record]:
        every = _chosen(plan, wanted, records)
        return {cell: records[cell] for cell, chosen in every if not _stale(plan, cell, chosen, records)}

    first = of(cells(plan))
    return first | of(retries(first))


def _stale(plan: Plan, cell: Cell, chosen: Any, records: dict[Cell, ledger.Record]) -> bool:
    """Whether there is no result of these settings."""
    return cell not in records or records[cell]["settings"] != resolved(plan, cell, chosen)[2]


if __name__ == "__main__":
    main()
