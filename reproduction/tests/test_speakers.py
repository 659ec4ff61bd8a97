"""The parts of `reproduction.speakers` that need neither voices nor an encoder, on made-up embeddings."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import peaccel as pe
from reproduction import speakers
from reproduction.speakers import Speech

VOICES, EACH, WIDTH = 24, 6, 12
TABLE = Path(__file__).parents[2] / "docs" / "data" / "real_speakers.csv"


@pytest.fixture
def few(monkeypatch):
    """Fewer voices than the bench has, of which short and noisy utterances lie farther off."""
    monkeypatch.setattr(speakers, "FITTED", 16)
    monkeypatch.setattr(speakers, "DIRECTIONS", 8)
    monkeypatch.setattr(speakers, "COHORT", 20)
    rng, n = np.random.default_rng(0), VOICES * EACH
    voices, seconds, snr = np.arange(VOICES).repeat(EACH), rng.uniform(0.5, 4, n), rng.uniform(0, 30, n)
    far = 0.3 / seconds + 0.3 * (1 - snr / 30)
    x = rng.normal(size=(VOICES, WIDTH))[voices] + far[:, None] * rng.normal(size=(n, WIDTH))
    return Speech(x / np.linalg.norm(x, axis=1, keepdims=True), voices, seconds, snr)


def test_splits_part_voices_and_differ(few):
    found = list(speakers.splits(few.voices))
    assert len(found) == speakers.SPLITS and len({fit.tobytes() for fit in found}) == len(found)
    for fit in found:
        known, others = (set(few.voices[rows]) for rows in (fit, ~fit))
        assert (len(known), len(others)) == (16, 8) and not known & others


def test_scores_are_judged_by_all_pairs_without_an_item_itself(monkeypatch):
    voices = np.array([0, 0, 1, 1])
    scores = np.array([[9, 3, 1, 0], [3, 9, 2, 0], [1, 2, 9, 1.5], [0, 0, 1.5, 9]])
    monkeypatch.setattr(speakers, "fnir", lambda *scores: 0.25)
    recall, eer, tar, fnir, auroc, *answered = speakers.judged(scores, voices)
    assert fnir == 25
    assert (eer, recall) == (
        pytest.approx(100 * pe.metrics.equal_error_rate([3, 1, 0, 2, 0, 1.5], [1, 0, 0, 0, 0, 1]).rate),
        75,
    )
    assert tar == 50 and auroc == pytest.approx(2 / 3)  # the third is wrong by 2, of right ones by 3, 3 and 1.5
    assert answered == [0, 0, 0]


def test_thresholds_are_of_other_voices_than_are_answered():
    """Of 40 voices one half is asked, whole voices, and the labels of the other half say from where on."""
    voices = np.arange(40).repeat(20)
    found = list(speakers.halves(voices))
    assert len({half.tobytes() for half in found}) == speakers.HALVES
    for half in found:
        labelled, asked = set(voices[half]), set(voices[~half])
        assert len(labelled) == len(asked) == 20 and not labelled & asked
    top = np.random.default_rng(0).permutation(np.linspace(0, 1, 800))
    right, half = top > 0.4, found[0]
    wrong, answered = speakers.above(half, right, 0.2, top, ~half)
    assert 0.1 < wrong <= 0.2 and 0.65 < answered < 0.75
    changed = right ^ ~half  # answers of the voices that are asked say nothing of the threshold
    assert speakers.above(half, changed, 0.2, top, ~half) == (pytest.approx(1 - wrong), answered)


def test_every_way_scores_the_same_pairs_and_quality_arrives(few):
    fit = next(speakers.splits(few.voices))
    found = dict(speakers.of_points(few, fit))
    assert len(found) == 8 and all(scores.shape == (8 * EACH,) * 2 for scores in found.values())
    assert len({scores.tobytes() for scores in found.values()}) == 8
    for scores in found.values():
        np.testing.assert_allclose(scores, scores.T, rtol=1e-4, atol=1e-4)
    changed = few._replace(seconds=few.seconds[::-1], snr=few.snr[::-1])
    again = dict(speakers.of_points(changed, fit))
    told = {name for name, scores in found.items() if not np.array_equal(scores, again[name])}
    assert told == {"length-normalised PLDA, duration and SNR"}


def test_a_head_is_fitted_to_what_is_measured(few):
    fit, short = next(speakers.splits(few.voices)), ("--match.epochs", "1")
    found = speakers.head(few, fit, few.embeddings, True, *short)
    assert found.scores.shape == (8 * EACH,) * 2 and found.confidence.shape == (8 * EACH,)
    changed = speakers.head(few._replace(snr=few.snr[::-1]), fit, few.embeddings, True, *short)
    assert not np.array_equal(changed.confidence, found.confidence)


def test_an_open_set_has_a_quarter_of_the_voices_outside():
    """Of voice 0, which is not searched, the surest search is answered at 0.8; so is one mate of four."""
    voices = np.arange(4).repeat(2)
    scores = np.zeros((8, 8))
    for i, (pair, own) in enumerate(zip((0.8, 0.7, 0.6), (0.9, 0.5, 0.4), strict=True)):
        scores[2 * i + 2, 2 * i + 3] = scores[2 * i + 3, 2 * i + 2] = own
        scores[i % 2, 2 * i + 2] = pair
    np.fill_diagonal(scores, -np.inf)
    assert speakers.fnir(scores, voices) == pytest.approx(4 / 6)


def test_a_table_has_means_and_intervals_by_students_t(monkeypatch, tmp_path):
    runs = [{"a": np.array([x, x / 100, np.nan])} for x in (1.0, 2.0, 3.0, 4.0, 5.0)]
    rows = list(speakers.table(runs, ("EER", "AUROC", "Spearman")))
    half = 2.776 * np.std([1, 2, 3, 4, 5], ddof=1) / 5**0.5
    assert rows == [("a", f"3.0 ± {half:.1f}", f"0.030 ± {half / 100:.3f}", "")]
    monkeypatch.setattr(speakers, "TABLES", tmp_path)
    speakers.write("made", ("", "EER"), [row[:2] for row in rows])
    assert (tmp_path / "made.csv").read_text() == f",EER\na,3.0 ± {half:.1f}\n"


def test_what_is_missing_is_told_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(speakers, "CACHE", tmp_path / "none.npz")
    monkeypatch.setattr(speakers, "find_spec", lambda name: None)
    assert speakers.main() == 1
    out = capsys.readouterr().out
    assert re.fullmatch(r"reproduction.speakers needs .*apt-get install espeak-ng; pip install .*resemblyzer\n", out)


def test_the_table_has_the_rows_and_metrics_of_the_command(few, monkeypatch):
    """With 40 directions in the names of rows, as the command has them."""
    monkeypatch.setattr(speakers, "head", lambda *given: None)
    fit = next(speakers.splits(few.voices))
    names = [*dict(speakers.of_points(few, fit)), *dict(speakers.of_heads(few, fit))]
    with TABLE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["Score", *speakers.METRICS]
    assert [row[0] for row in rows] == [name.replace("of 8", "of 40").replace("the 8", "the 40") for name in names]


@pytest.mark.parametrize("runs", [3, 20])
def test_intervals_are_of_as_many_runs_as_there_are(runs):
    values = np.random.default_rng(0).normal(size=(runs, 2))
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    np.testing.assert_allclose(2 * speakers.half_width(values), interval.high - interval.low)
