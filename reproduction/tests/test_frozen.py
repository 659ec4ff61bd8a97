"""The measures of `reproduction.frozen`, on made-up embeddings and heads that see the noise."""

import numpy as np
import pytest

import peaccel as pe
from reproduction import frozen, speakers, texts
from reproduction.frozen import Case

CLASSES, EACH, WIDTH = 60, 6, 12


@pytest.fixture
def case(monkeypatch):
    """Items that lie the farther from their class the more noise they have, which heads know."""
    rng = np.random.default_rng(0)
    labels = np.arange(CLASSES).repeat(EACH)
    noise = rng.uniform(0.1, 1.5, len(labels))
    centres = rng.normal(size=(CLASSES, WIDTH))[labels]
    features = centres + noise[:, None] * rng.normal(size=(len(labels), WIDTH))
    fit, asked = labels < CLASSES // 2, np.arange(len(labels)) % 2 == 0

    def learned(method, features, labels, fit, measured, *more):
        direction = features / np.linalg.norm(features, axis=1, keepdims=True)
        if "scaleface" in method:
            return pe.Scaled(direction, 1 / noise**2)
        return pe.VonMisesFisher(direction, 1 / noise**2) if method == "scf" else pe.Normal(features, noise**2)

    monkeypatch.setattr(frozen, "learned", learned)
    rows = np.arange(len(labels))
    measured = np.stack([-noise, rng.normal(size=len(labels))], 1)
    return Case(features, labels, fit, rows[~fit & asked], rows[~fit & ~asked], asked & fit, measured, centres)


def test_the_classes_held_out_are_those_of_the_command(case):
    held = frozen.held_out(case.labels, case.fit)
    assert set(case.labels[held]) == set(range(8)) and len(held) == 8 * EACH


def test_what_there_is_to_learn_is_seen(case):
    found = dict(frozen.learnable(case, frozen.heads(case)["pfe"]))
    assert found["oracle"][1] == pytest.approx(1)
    assert found["head"][1] > 0.5 and found["what is measured"][1] == pytest.approx(found["head"][1])
    assert found["oracle"][0] > 0.6 and found["ridge regression of the distance"][1] > 0.5


def test_claims_are_differences_in_the_right_direction(case):
    found = dict(frozen.claims(case, frozen.heads(case)))
    assert len(found) == 11
    assert found["5: Spearman of confidence and quality"] == pytest.approx(1)
    assert found["15: Recall@1, `llr` less cosine"] > 0
    assert found["23, 24: EER, `llr` less cosine"] < 0
    assert found["8: area of rejection by ScaleFace, less at random"] > 0


def test_pairs_are_half_of_one_class(case):
    pairs, same = frozen.close(case.labels[:24])
    assert same.sum() == 4 * EACH * (EACH - 1) // 2 == len(same) // 2
    np.testing.assert_array_equal(case.labels[pairs[:, 0]] == case.labels[pairs[:, 1]], same)


def test_speakers_are_searched_for_in_other_utterances_than_the_reference(monkeypatch):
    rng, voices = np.random.default_rng(0), np.arange(101).repeat(speakers.UTTERANCES)
    x = speakers.Speech(rng.normal(size=(len(voices), 4)), voices, *rng.uniform(1, 2, (2, len(voices))))
    monkeypatch.setattr(speakers, "speech", lambda: x)
    found = frozen.of_speakers(1)
    tested = set(voices[found.queries])
    assert len(tested) == 41 and len(found.queries) == len(found.gallery) == 41 * 7
    assert not tested & set(voices[found.fit]) and not set(found.queries) & set(found.gallery)
    assert (found.reference[::20] == found.reference[1::20]).all()


def test_texts_are_searched_for_in_english_with_other_sides_as_reference(monkeypatch):
    for name, count in {"ANSWERED": 60, "MISSING": 20, "FITTED": 40, "OTHERS": 20}.items():
        monkeypatch.setattr(texts, name, count)
    monkeypatch.setattr(texts, "texts", lambda: {"source": [f"s{i // 2}" for i in range(140)]})
    rng = np.random.default_rng(0)
    sides = {side: rng.normal(size=(140 if side == "English" else 120, 8)) for side in texts.SIDES}
    monkeypatch.setattr(texts, "embedded", lambda name: sides)
    monkeypatch.setattr(texts, "lengths", lambda: {side: np.arange(1, 1 + len(x)) for side, x in sides.items()})
    found = frozen.of_texts("e5", 0)
    split = next(texts.splits(1))
    assert found.fit.sum() == 80 and len(found.gallery) == len(split.gallery)
    np.testing.assert_array_equal(found.labels[found.queries], split.answered)
    np.testing.assert_allclose(np.exp(found.measured[found.queries, 0]), split.answered + 1)
    np.testing.assert_array_equal(found.labels[found.asked], split.fitted)
    np.testing.assert_allclose(found.measured[:, 1], 1)  # both encoders see the same


def test_a_stopped_command_goes_on_and_its_tables_are_of_all_lines(case, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(frozen, "RESULTS", tmp_path / "frozen.jsonl")
    monkeypatch.setattr(speakers, "TABLES", tmp_path)
    monkeypatch.setattr(speakers, "CACHE", tmp_path / "none")
    monkeypatch.setattr(frozen, "of_texts", lambda name, split: ran.append((name, split)) or case)
    for splits, new in ((1, 2), (2, 2), (2, 0)):
        monkeypatch.setattr(frozen, "SPLITS", splits)
        ran.clear()
        frozen.main()
        assert len(ran) == new
    assert {(x["embeddings"], x["split"]) for x in frozen.finished()} == {
        (f"texts, {name}", split) for name in texts.ENCODERS for split in (0, 1)
    }
    table = (tmp_path / "real_learnable.csv").read_text().splitlines()
    assert len(table) == 1 + 7 * len(texts.ENCODERS) and "1.000 ± 0.000" in table[7] and ",2," in table[7]
