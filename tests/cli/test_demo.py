"""The demo end to end on tiny sizes, and the parts it is made of."""

import json
from pathlib import Path

import numpy as np
import pytest

import peaccel as pe
from peaccel._utils import report
from peaccel.cli import demo
from peaccel.data import digits
from peaccel.train.sources import digits_settings


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return demo.run(demo.DemoSettings(seed=1, seeds=2, quick=True, out=tmp_path_factory.mktemp("demo")))


def numbers(results):
    return [(row.queries, row.gallery, row.score, row.recall_at_1, row.map_at_r) for row in results.rows]


def test_table_covers_every_condition_and_score(results):
    conditions = [(row.queries, row.gallery) for row in results.rows if row.score == "cosine"]
    assert conditions == [("clean", "clean"), ("clean", "mixed"), ("mixed", "clean"), ("mixed", "mixed")]
    assert {row.score for row in results.rows} >= {"cosine", "mls", "llr", "llr_nce"}
    for row in results.rows:
        assert len(row.recall_at_1) == len(row.map_at_r) == len(row.auroc) == len(row.microseconds) == 2
        assert all(0 <= value <= 1 for value in row.recall_at_1 + row.map_at_r)
        assert min(row.microseconds) > 0
        baseline = next(
            x for x in results.rows if (x.queries, x.gallery, x.score) == (row.queries, row.gallery, "cosine")
        )
        assert row.gain.value == pytest.approx(np.mean(row.recall_at_1) - np.mean(baseline.recall_at_1), abs=1e-12)
        assert row.gain.low <= row.gain.value <= row.gain.high
    assert results.rows[0].recall_at_1[0] > 3 / 40  # well above the chance of 40 numbers, even with tiny training


def test_report_holds_table_and_pictures(results):
    page = results.report.read_text(encoding="utf-8")
    for line in results.table():
        assert all(part in page for cell in line for part in cell.partition(" [")[::2])
    assert page.count("data:image/png;base64,") >= 5
    assert all(title in page for title in ("Calibration", "Retrievals by cosine and mls", "Confidence against quality"))
    assert 'src="http' not in page and "<link" not in page and "<script" not in page


def test_record_is_json(results):
    record = json.loads((results.report.parent / "results.json").read_text(encoding="utf-8"))
    assert [row["score"] for row in record["results"]["rows"]] == [row.score for row in results.rows]
    assert record["settings"]["seed"] == 1 and record["recipe"]["digits"]["corruption"]["blur"] > 0


@pytest.mark.slow
def test_same_seed_same_table(results, tmp_path):
    again = demo.run(demo.DemoSettings(seed=2, seeds=1, quick=True, out=tmp_path))
    assert [(*key, recall[1:], map_at_r[1:]) for *key, recall, map_at_r in numbers(results)] == numbers(again)
    first = [recall[0] for *_, recall, _ in numbers(results)]
    assert first != [recall[0] for *_, recall, _ in numbers(again)]


@pytest.fixture(scope="module")
def untrained():
    """A run of one seed in which nothing is trained, and what its functions were given: labels, and seeds of fits."""
    given = {}

    def spied(owner, name, told):
        real = getattr(owner, name)

        def spy(*asked, **named):
            given.setdefault(name, []).append(told(asked))
            return real(*asked, **named) if name != "fit" else ()

        patch.setattr(owner, name, spy)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((demo, "fit_prior"), (demo, "variance_factor"), (demo, "scored")):
            spied(owner, name, lambda asked: asked[-1])
        spied(demo.train, "fit", lambda asked: (len(asked[2]), asked[3].seed))
        return demo.run_seed(demo.load_recipe(), digits_settings(quick=True), "digits8", True, 1), given


def test_the_prior_is_of_training_numbers_and_what_is_calibrated_of_validation(untrained):
    parts, (_, given) = digits.make("digits8", digits_settings(quick=True), 1), untrained
    train, validation = parts["train"].labels, parts["validation"].labels
    for name, labels in {"fit_prior": train, "variance_factor": validation, "scored": validation}.items():
        assert len(given[name]) == 1 and np.array_equal(given[name][0], labels), name
    assert given["fit"] == [(len(train), 1)] * 2


def test_calibrated_scores_of_the_demo_have_both_sides_scaled(untrained):
    """By one factor; all scores but the row beside them are of the same items."""
    run, _ = untrained
    own = run.scores["cosine"][1]
    assert [len(side["mixed"]) for side in own] == [len(run.queries), len(run.gallery)] and len(run.scores) == 6
    for name in ("mls", "llr"):
        (score, plain), (again, calibrated) = run.scores[name], run.scores[f"{name} calibrated"]
        assert score == again and score.name == name
        for side, of in enumerate(own):
            for kind, d in of.items():
                assert np.array_equal(plain[side][kind].var, d.var)
                np.testing.assert_allclose(calibrated[side][kind].var, d.var * run.variance_factor, rtol=1e-6)
    assert not np.array_equal(own[0]["clean"].mu, own[0]["mixed"].mu)


def test_demo_data_share_no_scan():
    parts = digits.make("mnist", digits_settings(), seed=0)
    used = [set(strips.scans.ravel().tolist()) for strips in parts.values()]
    assert sum(map(len, used)) == len(set.union(*used))


def test_seeds_below_one():
    with pytest.raises(ValueError, match="seeds is 0, expected at least 1"):
        demo.run(demo.DemoSettings(seeds=0))


def test_an_out_that_cannot_be_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_seed", pytest.fail)
    (tmp_path / "file").write_text("good")
    with pytest.raises(ValueError, match=r"^demo: out is .*file, a file, expected a folder$"):
        demo.run(demo.DemoSettings(quick=True, out=tmp_path / "file"))
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ValueError, match=r"report.html: is a folder, expected a file$"):
        demo.run(demo.DemoSettings(quick=True, out=tmp_path))
    assert (tmp_path / "file").read_text() == "good"


def test_a_report_is_whole_or_the_one_before(tmp_path, monkeypatch):
    def half(path, text, **_):
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(28, "No space left on device")

    (tmp_path / "report.html").write_text("good")
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left on device"):
        report.write(tmp_path / "report.html", "title", [], ["demo"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["good"]


def test_variance_factor_finds_the_scale():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(500), 4)
    var = rng.uniform(0.5, 2, (2000, 8))
    mu = rng.normal(size=(500, 8))[labels] * 5 + rng.normal(size=(2000, 8)) * np.sqrt(var)
    assert demo.variance_factor(pe.Normal(mu, var / 3), labels) == pytest.approx(3, rel=0.05)
