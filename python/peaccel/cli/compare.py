"""Compare trained models query by query and seed by seed, and write the table of a paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import options
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.evaluation.columns import explained
from peaccel.evaluation.compare import ComparedModel, compare
from peaccel.io._array_files import write_text

__all__ = ["Compare", "main"]


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Runs to compare, the metric, and output."""

    runs: tuple[str, ...]
    """Folders of runs that 'peaccel train' wrote, judged by the same queries. Runs of one method are its seeds;
    NAME=FOLDER names a model otherwise. The first model is the baseline."""
    out: Path
    """A folder that receives compare.json, table.tex and report.html; made if missing."""
    metric: Literal["recall_at_1", "map_at_r"] = "recall_at_1"
    """The number of each query that is compared."""
    seed: int = 0
    """Seed of the intervals."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Compare, "peaccel compare", __doc__, arguments)
    numbers, page, latex = outputs(task.out, task, "compare.json", "report.html", "table.tex")
    values, labels = _read(task)
    found = compare(values, labels, seed=task.seed)
    print(found)
    save_numbers(numbers, found, {latex: True})
    write_text(latex, (".tex",), found.to_latex() + "\n")
    from peaccel._utils import report
    from peaccel.evaluation.pages import tables

    said = f"{found.sentence()} {task.metric} of {found.summary()}"
    report.write(
        page, "Comparison of models", tables(found.tables(), (said,), explained(ComparedModel)), ["compare", *arguments]
    )
    print(f"\n-> {latex}, {page}")


def _read(task: Compare) -> tuple[dict[str, NDArray[np.float64]], NDArray[Any]]:
    """Numbers [S, Q] of each model, and the labels of the queries."""
    models: dict[str, dict[int, NDArray[np.float64]]] = {}
    judged: tuple[str, NDArray[Any]] | None = None
    for word in task.runs:
        name, _, path = word.rpartition("=")
        folder = Path(path)
        method, seed = _of_run(folder)
        with np.load(folder / "queries.npz", allow_pickle=False) as held:
            labels, x = held["labels"], held[task.metric]
        judged = judged or (path, labels)
        if not np.array_equal(labels, judged[1]):
            raise ValueError(f"{folder}: was judged by other queries than {judged[0]}; digits deal them by the seed")
        seeds = models.setdefault(name or method, {})
        if seed in seeds:
            raise ValueError(f"{folder}: is a second run of {name or method} with seed {seed}: name one NAME={folder}")
        seeds[seed] = x
    if judged is None or len(models) < 2:
        raise ValueError(f"--runs has {len(models)} models, expected at least 2")
    ordered = {name: np.stack([seeds[seed] for seed in sorted(seeds)]) for name, seeds in models.items()}
    return ordered, judged[1]


def _of_run(folder: Path) -> tuple[str, int]:
    """The method and the seed of a run that has come to its end."""
    if not (folder / "queries.npz").is_file():
        raise FileNotFoundError(f"{folder}/queries.npz: there is no such file: is {folder} a run that has ended?")
    path = folder / "result.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return str(record["method"]), int(record["seed"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: is not the result of a run") from None
