"""Novel inputs: `python -m reproduction.novel` asks which confidences tell queries of another data set.

Seven rows are trained by their recipes on numbers and on garments, five splits each. Clean test queries of the same
data set are told from those of the other by the confidence, by the cosine of the best item in the clean gallery, and by
the variance of the distance to that item. Lines go to reproduction/novel.jsonl, and a stopped command goes on where it
was; the table is docs/data/novel.csv.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peaccel import Normal, match_variance, metrics, search
from peaccel.train import Options, embed, fit
from peaccel.train.backbones import small_cnn
from reproduction.debian import unpack
from reproduction.kanji import sureness
from reproduction.plan import WHOLE, Task, read_plan, resolved, task_settings, trained
from reproduction.speakers import table, write
from reproduction.tasks import images, parts

Record = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "runs" / "novel"
FASHION = FOLDER / "usr" / "share" / "datasets" / "fashion-mnist"
RESULTS = Path(__file__).parent / "novel.jsonl"

ROWS = ("bayesian_triplet", "triplet_regression", "mc_dropout", "pfe", "dul_reg_cls", "scaleface", "arcface")
SPLITS = 5
COLUMNS = (
    "Recall@1 by cosine",
    "Novel, by the confidence",
    "Novel, by the best cosine",
    "Confidence less cosine",
    "Novel, by the variance of the distance",
)
HEADER = ("Trained on", "Row", *COLUMNS)


def run(split: int, task: Task, row: str) -> Record:
    """Train a row by its recipe, and tell the test queries of its data set from those of the other."""
    plan, cell = read_plan(), trained(task, row, split)
    method, settings, _ = resolved(plan, cell, {})
    known, novel = (
        parts(task_settings(plan, x), plan.trained_kinds, split, FASHION if x == "garments" else None)
        for x in (task, *(x for x in WHOLE if x != task))
    )
    train, gallery = known["train"], known["gallery"]
    torch.manual_seed(cell.initialisation)
    training = method.build(small_cnn.small_cnn(), small_cnn.FEATURES, int(train.labels.max()) + 1, settings)
    fit(training, images(train.mixed), train.labels, Options(seed=cell.initialisation), name=row)
    sides = gallery, known["query"], novel["query"]
    items, *queries = (embed(training.model, images(x.clean)) for x in sides)
    found = [search(d, items, 1, "cosine") for d in queries]
    measured = {"confidence": [sureness(method, d) for d in queries], "cosine": [x.scores[:, 0] for x in found]}
    if isinstance(items, Normal):
        nearest = [items[x.ids[:, 0]] for x in found]
        measured["distance"] = [-match_variance(d, x) for d, x in zip(queries, nearest, strict=True)]
    is_known = np.repeat([1.0, 0.0], [len(d) for d in queries])
    shares = {name: metrics.roc_auc(np.concatenate(x), is_known) for name, x in measured.items()}
    shares["recall"] = metrics.hit_at_k(found[0].ids, known["query"].labels, gallery.labels, 1).mean()
    return {"split": split, "task": task, "row": row} | {name: round(100 * float(x), 3) for name, x in shares.items()}


def finished() -> list[Record]:
    """The lines of results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def trainings() -> Iterator[tuple[int, Task, str]]:
    """Split, data set and row of each, split after split, so that any part of them is even."""
    return ((split, task, row) for split in range(SPLITS) for task in WHOLE for row in ROWS)


def rows() -> Iterator[tuple[str, ...]]:
    """A line for each data set and row: means over splits and half widths of their 95 % intervals."""
    every = {(x["split"], x["task"], x["row"]): x for x in finished()}
    for task in WHOLE:
        runs = [{row: numbers(every[split, task, row]) for row in ROWS} for split in range(SPLITS)]
        yield from ((task, *line) for line in table(runs, COLUMNS))


def numbers(x: Record) -> np.ndarray:
    """The `COLUMNS` of a line of results."""
    confidence, cosine = x["confidence"], x["cosine"]
    return np.array([x["recall"], confidence, cosine, confidence - cosine, x.get("distance", np.nan)])


def main() -> int:
    """Run what is missing and write the table."""
    torch.set_num_threads(1)
    if not FASHION.exists():
        unpack(("dataset-fashion-mnist",), FOLDER)
    done = {(x["split"], x["task"], x["row"]) for x in finished()}
    for cell in trainings():
        if cell not in done:
            record = run(*cell)
            with RESULTS.open("a") as lines:
                lines.write(json.dumps(record, separators=(",", ":")) + "\n")
    write("novel", HEADER, rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
