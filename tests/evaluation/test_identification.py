"""Novel queries: how well each confidence tells them, and how often each score returns them anything."""

import json

import numpy as np
import pytest
from command import run
from sklearn.metrics import roc_auc_score

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation import identification as identifying
from peaccel.evaluation import pages
from peaccel.evaluation.intervals import Resamples

TIED = pytest.mark.filterwarnings("ignore:evaluate. of .* rankings some end among items of one score")


def made(count, seed, shift=0.0):
    """Items of 30 classes, of which those with a shift are less sure."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(30), count)
    var = np.exp(rng.normal(shift, 0.5, len(labels))).astype(np.float32)
    mu = 3 * np.random.default_rng(9).normal(size=(30, 8))[labels] + rng.normal(size=(len(labels), 8)) * var[:, None]
    return pe.Normal(mu.astype(np.float32), var), labels


@pytest.fixture(scope="module")
def sides():
    return *made(4, 0), *made(3, 1), made(2, 2, shift=0.7)[0]


def test_novel_queries_are_told_as_by_hand(sides):
    queries, labels, gallery, gallery_labels, novel = sides
    found = pe.evaluate(queries, gallery, (labels, gallery_labels), ("mls",), novel=novel)
    known = np.repeat([1, 0], [len(queries), len(novel)])
    top = [pe.search(d, gallery, 2, "mls").scores for d in (queries, novel)]
    expected = {
        "learned": np.concatenate([pe.confidence(queries), pe.confidence(novel)]),
        "norm of the mean": np.linalg.norm(np.concatenate([queries.mu, novel.mu]), axis=1),
        "score of the best": np.concatenate([s[:, 0] for s in top]),
        "best less second": np.concatenate([s[:, 0] - s[:, 1] for s in top]),
    }
    aurocs = {c.confidence: c.novel_auroc for c in found.confidences}
    for name, confidence in expected.items():
        assert aurocs[name] == pytest.approx(roc_auc_score(known, confidence), abs=1e-6), name
    assert aurocs["learned"] > 0.7 and abs(aurocs["random"] - 0.5) < 0.15
    assert "novel AUROC" in str(found)


def test_queries_are_judged_as_without_novel_ones(sides):
    queries, labels, gallery, gallery_labels, novel = sides
    given = queries, gallery, (labels, gallery_labels), ("mls",)
    plain, beside = pe.evaluate(*given), pe.evaluate(*given, novel=novel)
    assert plain.scores == beside.scores and "novel AUROC" not in str(plain)
    assert [c.r_auroc for c in plain.confidences] == [c.r_auroc for c in beside.confidences]
    assert [c.novel_auroc for c in plain.confidences] == [None] * 5


def test_novel_queries_are_told_by_the_score_that_answers(sides):
    """The first of several, as the confidences of the other queries are."""
    queries, labels, gallery, gallery_labels, novel = sides
    alone, first = (
        pe.evaluate(queries, gallery, (labels, gallery_labels), scores, novel=novel).confidences
        for scores in (("cosine",), ("cosine", "mls"))
    )
    assert alone == first


def test_a_gallery_of_one_item_has_no_second_best():
    queries = pe.Normal(np.eye(3), np.array([1.0, 2, 3]))
    found = pe.evaluate(
        queries, pe.Normal(0.9 * queries.mu[:1], queries.var[:1]), ([0, 1, 1], [0]), ("mls",), k=(1,), novel=queries[1:]
    )
    assert "best less second" not in [c.confidence for c in found.confidences]


def searches(sides, score, own=False, seed=0):
    """By `pe.search`: scores of mates at rank 1, of the best items of novel queries, and the classes of the former.

    Of items that share the best score one is drawn."""
    queries, labels, gallery, of_gallery, novel = sides
    if own:
        gallery, of_gallery = queries, labels
    found, ids = ranking = pe.search(queries, gallery, len(gallery), score)
    first = metrics.hit_at_k(ranking, labels, None if own else of_gallery)
    assert ((first > 0) & (first < 1)).any()
    relevant = metrics.relevance(ids, labels, None if own else of_gallery)
    found = metrics.without_self(ids, found) if own else found
    mated = relevant.any(1)
    relevant[:, 0] = first > np.random.default_rng(seed).random(len(first))
    return metrics.mate_scores(found, relevant)[mated], pe.search(novel, gallery, 1, score).scores[:, 0], labels[mated]


@pytest.fixture(scope="module")
def many():
    """Queries of 30 classes, three without a mate in a smaller gallery, and 180 novel ones of 20; scores have ties."""
    (queries, labels), (gallery, of_gallery), (novel, of_novel) = made(9, 0), made(3, 1), made(9, 2, shift=0.4)
    kept, sides = of_gallery < 27, []
    for d, least in ((queries, 1), (gallery[np.flatnonzero(kept)], 1.05), (novel[:180], 1)):  # none equals an item
        sides.append(pe.Normal((d.mu / 2).round(0) + 0.0, (d.var.round(1) + least).astype(np.float32)))
    order = np.random.default_rng(4).permutation(180)
    return (sides[0], labels, sides[1], of_gallery[kept], sides[2][order]), of_novel[:180][order]


@TIED
@pytest.mark.parametrize("own", [True, False])
def test_open_sets_are_those_of_searches(many, own):
    queries, labels, gallery, of_gallery, novel = many[0]
    names = ("neg_sq_l2", "mls")
    given = (queries, None, labels) if own else (queries, gallery, (labels, of_gallery))
    found = pe.evaluate(*given, names, novel=novel)
    assert [x.score for x in found.open_set] == list(names) and (found.novel, found.novel_classes) == (180, None)
    for result in found.open_set:
        mates, others, _ = searches(many[0], result.score, own)
        assert len(np.unique(others)) < 180 and len(mates) == (270 if own else 243)
        expected = metrics.open_set(mates.astype(float), others.astype(float))
        at = expected.at_fpir(0.1)
        assert (result.fnir_at_10_percent.value, result.attained_fpir_at_10_percent) == (at.fnir, at.fpir)
        assert 0 < at.fpir <= 0.1 and 0 < at.fnir < 1
        assert result.fnir_at_10_percent.low < at.fnir < result.fnir_at_10_percent.high
        assert np.isnan(result.fnir_at_1_percent.value) and np.isnan(result.attained_fpir_at_1_percent)
        least = {x: min(expected.fnir[expected.fpir == x]) for x in expected.fpir}
        assert dict(result.curve) == least and len(result.curve) == len(least)
    assert found.tables()["Open-set identification"][1][0][1:3] == ("-", "-")


@TIED
@pytest.mark.parametrize("labelled", [True, False])
def test_intervals_are_of_draws_of_both_kinds_of_classes(many, labelled, monkeypatch):
    """Each draw is searches, some of them several times, with a threshold of its own."""
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 60)
    queries, labels, gallery, of_gallery, novel = many[0]
    classes = many[1] if labelled else np.arange(180)
    named = {"novel_labels": many[1]} if labelled else {}
    found = pe.evaluate(queries, gallery, (labels, of_gallery), "mls", novel=novel, seed=3, **named)
    mates, others, of_mates = searches(many[0], "mls", seed=3)
    first, second = Resamples(of_mates, 3), Resamples(classes, 4)
    drawn = []
    for times, of_novel in zip(first.times, second.times, strict=True):
        counts = (times[first.sides[:, 0]], of_novel[second.sides[:, 0]])
        again = (np.repeat(x, count.astype(int)) for x, count in zip((mates, others), counts, strict=True))
        drawn.append(metrics.open_set(*again).at_fpir(0.1).fnir)
    interval = found.open_set[0].fnir_at_10_percent
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)
    assert found.novel_classes == (20 if labelled else None)
    assert ("180 novel queries of 20 classes" if labelled else "180 novel queries drawn one by one") in str(found)


def test_many_levels_are_thinned_without_moving_the_draws(monkeypatch):
    """Thresholds at some of the scores alone: FNIR of draws stays within the step between two of them."""
    rng = np.random.default_rng(1)
    mates, others = rng.normal(2, 1, 3000), rng.normal(size=5000)
    draws = Resamples(rng.integers(0, 300, 3000), 0), Resamples(rng.integers(0, 400, 5000), 1)
    thinned = identifying._drawn(mates, others, *draws)
    monkeypatch.setattr(identifying, "LEVELS", 6000)
    for fine, coarse in zip(identifying._drawn(mates, others, *draws), thinned, strict=True):
        assert (coarse <= fine + 1e-12).all() and (fine - coarse).max() < 0.01 and (fine != coarse).any()


@pytest.mark.parametrize("classes", [[0] * 200, None])
def test_hard_draws(classes):
    """Novel queries of one class have no interval; those that all equal an item's score are returned together."""
    rng = np.random.default_rng(0)
    labels = np.arange(40).repeat(5)
    d = pe.Point(rng.normal(size=(40, 6))[labels] + 0.4 * rng.normal(size=(200, 6)))
    novel = pe.Point(np.tile(rng.normal(size=6), (200, 1)))
    result = pe.evaluate(d, None, labels, "neg_sq_l2", novel=novel, novel_labels=classes).open_set[0]
    assert result.attained_fpir_at_10_percent == 0 and [x for x, _ in result.curve] == [0, 1]
    interval = result.fnir_at_10_percent
    assert np.isnan(interval.low) == (classes is not None) and 0 <= interval.value <= 1
    one = pe.evaluate(d, None, labels, "neg_sq_l2", novel=novel[:1]).open_set[0]
    assert np.isnan(one.fnir_at_10_percent.value) and one.curve == result.curve


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"novel_labels": [1, 2]}, "^evaluate: novel_labels are given without novel, expected both$"),
        ({"novel": 60, "novel_labels": [1]}, r"^evaluate: novel_labels has shape \(1,\), expected \(60,\) like novel$"),
        ({"novel": 60, "novel_labels": [None] * 60}, "^evaluate: 60 of the 60 novel_labels are missing"),
    ],
)
def test_labels_of_novel_queries_that_are_refused(sides, named, message, monkeypatch):
    queries, labels, gallery, of_gallery, novel = sides
    monkeypatch.setattr("peaccel.evaluation.evaluate.compared_pairs", None)  # nor is any work begun
    with pytest.raises(ValueError, match=message):
        pe.evaluate(queries, gallery, (labels, of_gallery), **(named | ({"novel": novel} if "novel" in named else {})))


@TIED
def test_the_trade_off_is_drawn_of_each_score(many):
    queries, labels, gallery, of_gallery, novel = many[0]
    found = pe.evaluate(queries, gallery, (labels, of_gallery), ("cosine", "mls"), novel=novel)
    sections = {x.heading: x for x in pages.sections(found)}
    axes = sections["Detection error trade-off"].content.axes[0]
    assert [line.get_label() for line in axes.lines] == ["cosine", "mls"]
    for line, result in zip(axes.lines, found.open_set, strict=True):
        assert np.array_equal(line.get_xydata(), np.maximum(result.curve, (1 / 360, 1 / 486)))
        assert line.get_drawstyle() == "steps-post"  # up to the next FPIR that is attained, the FNIR of this one
    assert "novel ones one by one, as their labels are not given." in sections["Open-set identification"].text
    plain = pages.sections(pe.evaluate(queries, gallery, (labels, of_gallery), ("cosine", "mls")))
    assert [x.heading for x in plain] == [x for x in sections if not x.startswith(("Open-set", "Detection"))]


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda d: d[:0], "0 normal_isotropic of dim 8"),
        (lambda d: pe.Normal(d.mu[:, :4], d.var), "60 normal_isotropic of dim 4"),
        (lambda d: pe.Point(d.mu), "60 point of dim 8"),
    ],
)
def test_novel_queries_of_another_kind_are_refused(sides, change, got):
    queries, labels, gallery, gallery_labels, novel = sides
    with pytest.raises(ValueError, match=f"evaluate: novel is {got}, expected normal_isotropic of dim 8 like queries"):
        pe.evaluate(queries, gallery, (labels, gallery_labels), novel=change(novel))


def test_the_command_shows_both(sides, capsys, tmp_path):
    queries, labels, gallery, gallery_labels, novel = sides
    words = []
    for name, d, of in (("query", queries, labels), ("gallery", gallery, gallery_labels)):
        file = tmp_path / f"{name}.npz"
        pe.io.write_distribution(file, d)
        np.save(tmp_path / f"{name}.npy", of)
        words += [f"--{'queries' if name == 'query' else name} {file}", f"--{name}-labels {tmp_path / name}.npy"]
    pe.io.write_distribution(tmp_path / "novel.npz", novel)
    np.save(tmp_path / "classes.npy", np.arange(60) // 2)
    words += [f"--novel {tmp_path / 'novel.npz'}", f"--novel-labels {tmp_path / 'classes.npy'}"]
    code, out, _ = run(capsys, "evaluate", *words, f"--out {tmp_path / 'page'}")
    assert code == 0 and "novel AUROC" in out and "60 novel queries of 30 classes" in out
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Confidence of the queries and of the novel queries" in page
    assert "<dt>FNIR@FPIR=10% %</dt>" in page and 'alt="Detection error trade-off"' in page
    open_set = json.loads((tmp_path / "page" / "results.json").read_text())["open_set"]
    assert [x["score"] for x in open_set] == ["cosine", "mls"] and open_set[0]["fnir_at_10_percent"]["value"] is None
