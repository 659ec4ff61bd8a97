"""The parts of `reproduction.novel` that need no photographs of Debian, with made-up garments."""

import csv
import json
from dataclasses import replace

import pytest

from reproduction import novel, speakers
from reproduction.plan import WHOLE, read_plan, resolved
from reproduction.tasks import parts


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Two rows and splits of the small plan, an epoch each; garments are numbers in white on black."""

    def negative(settings, kinds, seed, fashion_root):
        found = parts(settings, kinds, seed)
        if fashion_root is None:
            return found
        turned = {part: replace(x.clean, images=1 - x.clean.images) for part, x in found.items()}
        return {part: replace(x, clean=turned[part], mixed=turned[part]) for part, x in found.items()}

    monkeypatch.setattr(novel, "read_plan", lambda: read_plan(quick=True))
    monkeypatch.setattr(novel, "resolved", lambda plan, cell, _: resolved(plan, cell, {"schedule": {"epochs": 1}}))
    monkeypatch.setattr(novel, "parts", negative)
    monkeypatch.setattr(novel, "ROWS", ("triplet_regression", "arcface"))
    monkeypatch.setattr(novel, "SPLITS", 2)
    monkeypatch.setattr(novel, "FASHION", tmp_path)
    monkeypatch.setattr(novel, "RESULTS", tmp_path / "novel.jsonl")
    monkeypatch.setattr(speakers, "TABLES", tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:roc_auc. scores look reversed")  # of networks that were trained for a moment
def test_a_training_goes_into_a_line_and_what_is_done_is_not_run_again(few):
    assert novel.main() == 0
    lines = [json.loads(line) for line in novel.RESULTS.read_text().splitlines()]
    assert [(x["split"], x["task"], x["row"]) for x in lines] == list(novel.trainings()) and len(lines) == 8
    assert all(0 <= x[name] <= 100 for x in lines for name in ("recall", "confidence", "cosine"))
    assert ["distance" in x for x in lines] == 4 * [True, False]  # a point has no variance
    table = list(csv.reader((few / "novel.csv").read_text().splitlines()))
    assert [line[:2] for line in table[1:]] == [[task, row] for task in WHOLE for row in novel.ROWS]
    assert [line[-1] == "" for line in table[1:]] == 2 * [False, True]
    kept = lines[:5] + lines[6:]
    novel.RESULTS.write_text("".join(json.dumps(x) + "\n" for x in kept))
    assert novel.main() == 0
    assert novel.finished() == [*kept, lines[5]]  # and it comes out the same


def test_the_table_is_of_the_lines_of_every_training():
    assert [(x["split"], x["task"], x["row"]) for x in novel.finished()] == list(novel.trainings())
    with (speakers.TABLES / "novel.csv").open(encoding="utf-8", newline="") as file:
        shown = [tuple(line) for line in csv.reader(file)]
    assert shown == [("Trained on", "Row", *novel.COLUMNS), *novel.rows()]
