"""Novel queries: how well each confidence tells them from those that the gallery knows."""

import numpy as np
import pytest
from command import run
from sklearn.metrics import roc_auc_score

import peaccel as pe


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
    code, out, _ = run(capsys, "evaluate", *words, f"--novel {tmp_path / 'novel.npz'}", f"--out {tmp_path / 'page'}")
    assert code == 0 and "novel AUROC" in out
    assert "Confidence of the queries and of the novel queries" in (tmp_path / "page" / "report.html").read_text()
