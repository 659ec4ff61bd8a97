"""Check some answers of unlabelled traffic by eye, and find the threshold that keeps a promise on the others."""

from __future__ import annotations

import csv
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel import io, scores
from peaccel._utils import options
from peaccel._utils.ids import are_strings, there
from peaccel._utils.labels import truths
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.cli._shares import share
from peaccel.evaluation.answers_to_check import AnswersToCheck, answers_to_check
from peaccel.io._array_files import write_text
from peaccel.io._text_columns import csv_text

__all__ = ["CheckAnswers", "main"]

WORDS = {True: "y", False: "n", None: "?", "": ""}
"""Labels in the table; empty ones are to be filled."""
ANSWERS = {"y": True, "n": False, "?": None, "q": None}
"""Answers of the user; q stops."""


@dataclass(frozen=True, kw_only=True)
class CheckAnswers:
    """Answers, promise and output."""

    ranking: Path | None = None
    """The answers: a ranking that 'peaccel search' wrote, whose best item for each query counts."""
    pairs: Path | None = None
    """In place of a ranking: possible duplicates, a table that 'peaccel duplicates' wrote, .csv, .tsv or .parquet."""
    out: Path
    """A folder that receives answers.csv, whose column right is to be filled with y, n or ? (nobody can tell). Once all
    are checked it receives accept.json, the threshold that 'peaccel search --accept' applies, or of pairs 'peaccel
    duplicates' and 'peaccel cluster'; made if missing."""
    wrong: str = "2%"
    """The target: at most this share of accepted answers, or pairs, is wrong."""
    certainty: str = "95%"
    """How surely the threshold keeps its promise."""
    budget: int = 300
    """How many answers are checked in all."""
    query_texts: Path | None = None
    """Texts, or paths of pictures, shown beside the queries: [Q] strings, .npy or a column: queries.csv:text."""
    item_texts: Path | None = None
    """Texts, or paths of pictures, that are shown beside the items: [G] strings, by gallery rows."""
    score: str | None = None
    """A name that 'peaccel scores' lists: the score of the ranking, which the threshold is then bound to."""
    ask: bool = False
    """Ask in the terminal: y, n, ? (nobody can tell) or q (stop for now)."""
    seed: int = 0
    """Seed of the draws of answers."""


@dataclass(frozen=True)
class Settings:
    """The settings of a folder's answers, with which the command must go on."""

    wrong: float
    delta: float
    budget: int
    seed: int
    answers: str
    """Checksum of ids and scores."""


@dataclass(frozen=True)
class Sheet:
    """The table of answers to check, and the labels in it."""

    path: Path
    columns: dict[str, NDArray[Any]]
    """By name, [N] each."""
    labels: dict[int, bool | None]

    def write(self, rows: NDArray[np.int64]) -> None:
        """Write the checked answers and these rows, which are to be checked."""
        listed = np.array([*dict.fromkeys([*self.labels, *rows.tolist()])], np.int64)
        right = np.array([WORDS[self.labels.get(row, "")] for row in listed.tolist()], str)
        columns = [listed, *(x[listed] for x in self.columns.values()), right]
        write_text(self.path, (".csv",), csv_text(["answer", *self.columns, "right"], columns))

    def read(self, length: int) -> None:
        """Take the labels of the file, if it is there."""
        if not self.path.exists():
            return
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.DictReader(file) if (line.get("right") or "").strip()]
        for line in lines:
            row, word = line.get("answer", ""), line["right"].strip().lower()
            yes, known = truths(np.array([word]))
            if not (row.isascii() and row.isdigit() and int(row) < length) or not (known[0] or word == WORDS[None]):
                raise ValueError(f"{self.path}: answer {row!r} has right {word!r}, expected y, n or ?")
            self.labels[int(row)] = None if word == WORDS[None] else bool(yes[0])

    def ask(self, rows: NDArray[np.int64]) -> bool:
        """Ask for rows in the terminal; False where the user stops."""
        for row in rows.tolist():
            print("\n" + "\n".join(f"{name}: {x[row]}" for name, x in self.columns.items()))
            while (word := input("right? y, n, ? or q: ").strip().lower()) not in ANSWERS:
                pass
            if word == "q":
                return False
            self.labels[row] = ANSWERS[word]
            self.write(rows)
        return True


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(CheckAnswers, "peaccel check-answers", __doc__, arguments)
    wrong, delta = float(share("wrong", task.wrong)), float(1 - share("certainty", task.certainty))
    numbers, table, accept = outputs(task.out, task, "check.json", "answers.csv", "accept.json")
    columns = _columns(task)
    best, of_pairs = columns["score"], task.pairs is not None
    items = columns["second" if of_pairs else "item"]
    answers = "".join(f"{item} {score!r} " for item, score in zip(items, best.tolist(), strict=True))
    settings = Settings(wrong, delta, task.budget, task.seed, f"{zlib.crc32(answers.encode()):08x}")
    sheet = Sheet(table, columns, {})
    if table.exists():
        _check(numbers, settings)
        sheet.read(len(best))
    plan = _plan(settings, best, sheet, of_pairs)
    save_numbers(numbers, settings, {accept: False})
    while len(plan.rows):
        sheet.write(plan.rows)
        print(plan)
        if not (task.ask and sheet.ask(plan.rows)):
            print(f"\n{table} has them: fill its column right with y, n or ?, and give the same command again")
            return
        plan = _plan(settings, best, sheet, of_pairs)
    sheet.write(plan.rows)
    assert plan.accept is not None
    source = task.pairs or task.ranking
    assert source is not None
    of, score = "pairs" if of_pairs else "answers", "" if task.score is None else scores.get(task.score).fingerprint
    about = f"{plan.checked} checked {of} of {len(best)} in {source.name}"
    io.write_fit(accept, replace(plan.accept, fitted_on=about, score=score, of=of))
    save_numbers(numbers, settings, {accept: True})
    print(plan)
    nothing, verb = math.isinf(plan.accept.threshold), "duplicates ..." if of_pairs else "search ... --k 1"
    print(f"\n{accept} accepts nothing" if nothing else f"\npeaccel {verb} --accept {accept} --out ...")


def _plan(settings: Settings, best: NDArray[Any], sheet: Sheet, of_pairs: bool) -> AnswersToCheck:
    named = {name: getattr(settings, name) for name in ("wrong", "delta", "budget", "seed")}
    plan = answers_to_check(best, sheet.labels, **named)
    return replace(plan, of="pairs") if of_pairs else plan


def _columns(task: CheckAnswers) -> dict[str, NDArray[Any]]:
    """The columns of the table: of pairs, or of the best answer of each query that has one."""
    if (task.ranking is None) == (task.pairs is None):
        raise ValueError("expected exactly one of --ranking and --pairs")
    if task.pairs is not None:
        return _columns_of_pairs(task, task.pairs)
    assert task.ranking is not None
    found, ids = io.read_ranking(task.ranking)
    queries = np.flatnonzero(there(ids[:, 0]))
    items = ids[queries, 0]
    columns = {"query": queries, "item": items, "score": found[queries, 0]}
    for name, path, rows in (("query_text", task.query_texts, queries), ("item_text", task.item_texts, items)):
        if path is None:
            continue
        columns[name] = _texts(path, rows, task.ranking)
    return columns


def _columns_of_pairs(task: CheckAnswers, path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a table of pairs, and their texts."""
    if task.query_texts is not None:
        raise ValueError("--query-texts is for --ranking; of --pairs it is --item-texts")
    columns = {name: io.read_labels(f"{path}:{name}") for name in ("first", "second", "score")}
    if columns["score"].dtype.kind not in "iuf":
        raise ValueError(f"{path}: score holds {columns['score'].dtype}, expected numbers")
    if task.item_texts is not None:
        columns |= {f"{name}_text": _texts(task.item_texts, columns[name], path) for name in ("first", "second")}
    return columns


def _texts(path: Path, rows: NDArray[Any], of: Path) -> NDArray[Any]:
    """The texts of these rows."""
    texts: NDArray[Any] = io.read_labels(path)
    if are_strings(rows):
        raise ValueError(f"{of}: its ids are strings, and --item-texts go by gallery rows")
    if len(rows) and rows.max() >= len(texts):
        raise ValueError(f"{path}: holds {len(texts)} texts, expected one for row {rows.max()} of {of}")
    return np.asarray(texts[rows])


def _check(numbers: Path, settings: Settings) -> None:
    """Refuse to go on with other answers or another promise: the labels are of the first."""
    try:
        before = json.loads(numbers.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise ValueError(f"{numbers}: is missing or no JSON beside answers.csv; choose another --out")
    for name, value in asdict(settings).items():
        if before.get(name) != value:
            was = f"{name} {before.get(name)!r}"
            raise ValueError(f"{numbers}: was begun with {was}, got {value!r}; choose another --out")
