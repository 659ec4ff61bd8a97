"""Keep what a benchmark prints: `python -m benches.record TABLE[,TABLE] BENCHMARK [OPTIONS]`.

Runs `python -m benches.BENCHMARK OPTIONS`, shows what it prints, and writes the table in it, or of several names each
table, to docs/performance/TABLE.csv, which docs/measurements.md shows. The command, the machine and the date go to
docs/performance/runs.csv.
"""

from __future__ import annotations

import csv
import datetime
import subprocess
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from benches.table import machine

FOLDER = Path(__file__).parents[1] / "docs" / "performance"
RUNS = ("table", "command", "machine", "date")


def rows(lines: Iterable[str]) -> list[list[str]]:
    """The cells of the lines of a Markdown table, without the line below its head.

    The page reads cells as Markdown, in which ">=" begins a quotation.
    """
    text = [line.strip().replace(">=", "≥").replace("<=", "≤") for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in text]
    return [row for row in cells if set("".join(row)) != {"-"}]


def write(path: Path, table: list[list[str]]) -> None:
    """A table as CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


def record(tables: str, command: str, printed: Iterable[str], folder: Path = FOLDER) -> None:
    """Write what a command printed, and that it did, on this machine and today."""
    names, lines = tables.split(","), list(printed)
    parts = [list(part) for shown, part in groupby(lines, lambda line: line.startswith("|")) if shown]
    for name, part in zip(names, parts if len(names) > 1 else [lines], strict=True):
        write(folder / f"{name}.csv", rows(part))
    with (folder / "runs.csv").open(newline="") as file:
        _, *runs = csv.reader(file)
    new = [[name, command, machine(), datetime.date.today().isoformat()] for name in names]
    write(folder / "runs.csv", [list(RUNS), *sorted([*new, *(run for run in runs if run[0] not in names)])])


def main() -> int:
    """Run the benchmark; its exit code, and nothing is written where that is not 0."""
    table, benchmark, *options = sys.argv[1:]
    module, printed = f"benches.{benchmark}", []
    with subprocess.Popen([sys.executable, "-m", module, *options], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            printed.append(line)
    if process.returncode == 0:
        record(table, " ".join(["python -m", module, *options]), printed)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
