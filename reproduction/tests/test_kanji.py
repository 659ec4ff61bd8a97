"""The parts of `reproduction.kanji` that need no typefaces of Debian, on those of Pillow and on made-up glyphs."""

import csv
import json

import numpy as np
import pytest
from PIL import ImageFont

from reproduction import kanji, speakers


def test_characters_are_those_of_jis_level_1():
    found = kanji.characters()
    assert len(found) == len(set(found)) == 2965
    assert (found[0], found[-1]) == ("亜", "腕") and "々" not in found and "乂" not in found  # signs, and level 2


def test_a_glyph_stands_in_the_middle_and_a_missing_one_is_seen():
    font = ImageFont.load_default(kanji.EM)
    drawn = np.array([kanji.glyph(font, character) for character in "Ox\u4e00"])
    for image in drawn[:2]:
        rows, columns = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
        assert abs(rows[0] + rows[-1] - kanji.SIDE) <= 3 and abs(columns[0] + columns[-1] - kanji.SIDE) <= 3
    assert kanji.lacking(drawn, font).tolist() == [False, False, True]


def test_of_near_equal_designs_the_first_is_kept():
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 2, 8, 8))
    drawn = np.array([one, one * 0.9, other, other + 0.01 * one])
    there = np.ones((4, 2), dtype=bool)
    there[0, 1] = False
    assert kanji.designs(drawn, there).T.tolist() == [[True, False, True, False], [False, True, True, False]]


@pytest.fixture
def few(monkeypatch):
    """A few made-up typefaces and characters."""
    for name, value in {"PRINTED": ("a",) * 4, "GALLERY": 2, "CLASSES": (12, 6), "VALIDATION": 5}.items():
        monkeypatch.setattr(kanji, name, value)
    monkeypatch.setattr(kanji, "EPOCHS", {12: 0.1, 6: 0.2})
    rng = np.random.default_rng(0)
    shapes = rng.random((23, kanji.SIDE, kanji.SIDE), dtype=np.float32) > 0.8
    every = (shapes | (rng.random((6, *shapes.shape), dtype=np.float32) > 0.95)).astype(np.float32)
    kept = np.ones(every.shape[:2], dtype=bool)
    kept[0, :3] = False
    return every, kept


def test_parts_share_no_character_but_gallery_and_queries(few):
    every, kept = few
    large, small = (kanji.parts(every, kept, classes, 0) for classes in (12, 6))
    assert {part: len(np.unique(x.labels)) for part, x in large.items()} == {
        "train": 12, "validation": 5, "gallery": 6, "printed": 6, "brushed": 6,
    }  # fmt: skip
    assert sum(len(large[part].labels) for part in ("train", "validation", "gallery", "printed")) == kept[:4].sum()
    assert len(large["brushed"].labels) == 12
    for part in ("validation", "gallery", "printed", "brushed"):
        np.testing.assert_array_equal(large[part].clean.images, small[part].clean.images)
    of = large["train"].clean.images.reshape(len(large["train"].labels), -1)
    assert {x.tobytes() for x in small["train"].clean.images.reshape(-1, of.shape[1])} < {x.tobytes() for x in of}


def test_a_training_goes_into_a_line_and_what_is_done_is_not_run_again(few, monkeypatch, tmp_path):
    results = tmp_path / "kanji.jsonl"
    monkeypatch.setattr(kanji, "RESULTS", results)
    monkeypatch.setattr(kanji, "glyphs", lambda: few)
    monkeypatch.setattr(kanji, "ROWS", ("cosface",))
    monkeypatch.setattr(kanji, "SPLITS", 1)
    monkeypatch.setattr(speakers, "TABLES", tmp_path)
    assert kanji.main() == 0
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(x["row"], x["classes"], x["split"]) for x in lines] == [("cosface", 12, 0), ("cosface", 6, 0)]
    assert 0 <= lines[0]["printed"]["recall_at_1.own"] <= 1 and 0 <= lines[0]["style"]["best"] <= 1
    table = (tmp_path / "kanji.csv").read_text().splitlines()
    assert [line.split(",")[0:3] for line in table[1:]] == [["cosface", "6", "1"], ["cosface", "12", "1"]]
    before = results.read_text()
    assert kanji.main() == 0 and results.read_text() == before


def test_gains_are_of_the_same_split_and_those_with_more_classes_are_compared_with_those_with_fewer(monkeypatch):
    recall = {("arcface", 300): (50, 60, 70), ("pfe", 300): (51, 62, 73)}
    recall |= {("arcface", 2000): (55, 65, 75), ("pfe", 2000): (58, 70, 82)}
    monkeypatch.setattr(kanji, "COLUMNS", {"Recall@1": kanji.RECALL})
    runs = [
        {"row": row, "classes": classes, "split": split, "printed": {"recall_at_1.own": x / 100}}
        for (row, classes), of in recall.items()
        for split, x in enumerate(of)
    ]
    monkeypatch.setattr(kanji, "finished", lambda: runs)
    assert [(line[0], line[1], *line[4:]) for line in kanji.table()] == [
        ("arcface", "300", "", ""),
        ("pfe", "300", "2.0 ± 2.5", ""),
        ("arcface", "2,000", "", ""),
        ("pfe", "2,000", "5.0 ± 5.0", "3.0 ± 2.5"),
    ]


def test_the_table_is_of_the_lines_of_every_training():
    assert {(x["split"], x["classes"], x["row"]) for x in kanji.finished()} == set(kanji.trainings())
    with (speakers.TABLES / "kanji.csv").open(encoding="utf-8", newline="") as file:
        shown = [tuple(line) for line in csv.reader(file)]
    assert shown == [("Row", "Classes", "Splits", *kanji.COLUMNS, *kanji.GAINS), *kanji.table()]
