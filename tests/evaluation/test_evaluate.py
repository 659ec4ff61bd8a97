"""`pe.evaluate`, its pairs and intervals, and `peaccel evaluate`, against loops that say the same."""

import json
import re
import sys
from dataclasses import replace

import command
import numpy as np
import pandas
import pytest
import torch

import peaccel as pe
from peaccel import io, metrics
from peaccel.evaluation import Interval, mean_interval, pages, verification_pairs
from peaccel.evaluation.intervals import plainly

CLASSES, EACH, DIM = 30, 6, 8


def items(seed=0, words=False):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), EACH)
    var = np.exp(rng.normal(0, 1, len(labels)))
    mu = (
        1.5 * np.random.default_rng(7).normal(size=(CLASSES, DIM))[labels]
        + rng.normal(size=(len(labels), DIM)) * var[:, None] ** 0.5
    )
    d = pe.Normal(mu.astype(np.float32), var.astype(np.float32))
    return d, np.array([f"c{i}" for i in labels]) if words else labels


def ranked(d, g, score, own):
    """Rows of the gallery for each query, best first, without its own."""
    scores = np.array(pe.pairwise(d, g, score), np.float64)
    order = np.argsort(-scores, axis=1, kind="stable")
    return [[j for j in row if not (own and j == i)] for i, row in enumerate(order)]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("words", [False, True])
def test_numbers_are_those_of_a_loop(own, words):
    d, labels = items(0, words)
    g, of_gallery = (d, labels) if own else items(1, words)
    found = pe.evaluate(d, None if own else g, labels if own else (labels, of_gallery), ("cosine", "mls"), k=(3,))
    first = None
    for result in found.scores:
        rows = ranked(d, g, result.score, own)
        hits = [[of_gallery[j] == labels[i] for j in row] for i, row in enumerate(rows)]
        right, r = np.array([hit[0] for hit in hits], float), EACH - own
        at_r = [sum(hit[k] * sum(hit[: k + 1]) / (k + 1) for k in range(r)) / r for hit in hits]
        first = right if first is None else first
        assert result.recall_at_1.value == pytest.approx(right.mean())
        assert result.recall_at_k == {"3": pytest.approx(np.mean([any(hit[:3]) for hit in hits]))}
        assert result.map_at_r.value == pytest.approx(np.mean(at_r))
        assert result.gain_at_1.value == pytest.approx((right - first).mean(), abs=1e-12)
        assert result.recall_at_1.low <= result.recall_at_1.value <= result.recall_at_1.high
    learned = next(c for c in found.confidences if c.confidence == "learned")
    sure, unsure = (pe.confidence(d)[first == answered].astype(float) for answered in (1, 0))
    wins = np.mean([(a > b) + 0.5 * (a == b) for a in sure for b in unsure])
    assert learned.r_auroc.value == pytest.approx(wins) and learned.curve[0] == pytest.approx(first.mean())
    assert (found.queries, found.gallery, found.classes, found.unanswerable) == (180, 180, CLASSES, 0)


def test_queries_without_an_answer_are_left_out_and_counted():
    d, labels = items()
    g, of_gallery = items(1)
    some = of_gallery >= 3
    found = pe.evaluate(d, g[some], (labels, of_gallery[some]), ("cosine",))
    known = labels >= 3
    rows = ranked(d, g[some], "cosine", False)
    right = [of_gallery[some][row[0]] == label for row, label in zip(rows, labels, strict=True)]
    assert found.unanswerable == 3 * EACH
    assert found.scores[0].recall_at_1.value == pytest.approx(np.mean(np.array(right)[known]))
    alone = np.concatenate([labels, [99]])
    more = pe.concat([d, d[:1]])
    assert pe.evaluate(more, None, alone, ("cosine",)).unanswerable == 1


def test_confidence_kinds_and_quality():
    d, labels = items()
    quality = np.random.default_rng(3).integers(0, 3, len(labels))  # few values, so that ties occur
    found = pe.evaluate(d, None, labels, ("mls",), quality=quality)
    assert [c.confidence for c in found.confidences] == [
        "learned", "norm of the mean", "score of the best", "best less second", "random",
    ]  # fmt: skip
    assert found.confidences[0].spearman == pytest.approx(metrics.spearman(quality, pe.confidence(d)))
    points = pe.evaluate(pe.Point(d.mu), None, labels, ("cosine",))
    assert "learned" not in [c.confidence for c in points.confidences] and points.confidences[0].spearman is None
    unit = pe.Normal(d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True), d.var)  # whose lengths say nothing
    assert [c.confidence for c in pe.evaluate(unit, None, labels).confidences][1] == "score of the best"
    assert len(pe.evaluate(pe.Point(unit.mu), None, labels, ["cosine"]).confidences) == 3
    kappa = pe.VonMisesFisher(d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True), 1 / d.var)
    assert pe.evaluate(kappa, None, labels, ("mls",)).confidences[1].confidence == "score of the best"


def test_torch_gives_what_numpy_gives():
    torch = pytest.importorskip("torch")
    d, labels = items()
    tensors = pe.Normal(torch.tensor(d.mu, requires_grad=True), torch.tensor(d.var))
    assert pe.evaluate(tensors, None, labels) == pe.evaluate(d, None, labels)
    assert pe.evaluate(tensors, None, torch.tensor(labels), seed=1) == pe.evaluate(d, None, labels.tolist(), seed=1)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("most", [10**6, 50])
def test_pairs_are_of_one_class_or_of_two_and_none_comes_twice(own, most, monkeypatch):
    monkeypatch.setattr("peaccel.evaluation.drawn_pairs.PAIRS", most)
    rng = np.random.default_rng(0)
    labels, others = rng.integers(0, 9, 60), rng.integers(3, 12, 50)
    gallery = labels if own else others
    pairs, same = verification_pairs(labels, None if own else others, seed=4)
    assert ((labels[pairs[:, 0]] == gallery[pairs[:, 1]]) == same).all() and same.sum() == (~same).sum()
    alike = {(i, j) for i in range(60) for j in range(len(gallery)) if labels[i] == gallery[j] and not (own and i == j)}
    found = list(map(tuple, pairs[same].tolist()))
    assert len(found) == len(set(found)) == min(len(alike), most) and set(found) <= alike
    assert (verification_pairs(labels, None if own else others, seed=4)[0] == pairs).all()


def test_there_are_no_pairs_where_one_kind_is_missing():
    for labels in (np.arange(5), np.zeros(5, int)):
        assert verification_pairs(labels, None)[0].shape == (0, 2)
    one = pe.evaluate(pe.Point(np.random.default_rng(0).normal(size=(5, 3))), None, np.zeros(5, int), ("cosine",))
    assert np.isnan(one.scores[0].roc_auc.value) and " - " in str(one)


def test_intervals_hold_the_mean_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 400)  # enough for a percentile, at a fifth of the time
    rng = np.random.default_rng(0)
    held, wide, narrow = [], [], []
    for seed in range(200):
        classes = np.repeat(np.arange(40), 10)
        values = rng.normal(size=40)[classes] + 0.1 * rng.normal(size=400)
        by_class, by_query = mean_interval(values, classes, seed=seed), mean_interval(values, np.arange(400), seed=seed)
        held.append(by_class.low <= 0 <= by_class.high)
        wide.append(by_class.high - by_class.low)
        narrow.append(by_query.high - by_query.low)
    assert 0.89 <= np.mean(held) <= 0.99  # of 95 %; the bootstrap of 40 classes is a little too sure
    assert np.mean(wide) > 2.5 * np.mean(narrow)
    assert all(np.isnan([x.value, x.low, x.high]).all() for x in [mean_interval([np.nan, np.nan], [0, 1])])
    of_one = Interval(0.5, np.nan, np.nan)
    assert (str(of_one), plainly(of_one)) == ("50.0 [-, -]", "0.5 [-, -]")
    alone = mean_interval([0.0, np.nan, 1.0], [0, 1, 1])
    assert alone.value == 0.5 and (alone.low, alone.high) == (0, 1)


def test_one_score_needs_no_list():
    d, labels = items()
    assert pe.evaluate(d, None, labels, "mls") == pe.evaluate(d, None, labels, [pe.scores.mls])


def test_printed_and_saved(tmp_path):
    d, labels = items()
    found = pe.evaluate(d, None, labels, ("cosine", "mls"))
    text = str(found)
    assert text.startswith("180 queries of 30 classes, 180 gallery items, 8 dimensions, Normal;")
    assert re.search(r"^mls +\d+\.\d \[\d+\.\d, \d+\.\d\]", text, re.MULTILINE)
    found.save(tmp_path / "results.json")
    held = json.loads((tmp_path / "results.json").read_text())
    assert held["scores"][1]["recall_at_1"]["value"] == found.scores[1].recall_at_1.value
    assert held["confidences"][0]["curve"] == list(found.confidences[0].curve)


WRONG = {
    "two sides, one label array": (lambda d, y: pe.evaluate(d, d, y), "labels is ndarray, expected (labels of the q"),
    "one side, two label arrays": (
        lambda d, y: pe.evaluate(d, None, (y, y)),
        "labels is tuple, expected labels of the",
    ),
    "labels of another length": (
        lambda d, y: pe.evaluate(d, None, y[:5]),
        "labels has shape (5,), expected (180,)",
    ),
    "no score": (lambda d, y: pe.evaluate(d, None, y, ()), "scores is empty, expected at least one"),
    "a score that is not known": (
        lambda d, y: pe.evaluate(d, None, y, ["mlz"]),
        "unknown score 'mlz'; did you mean 'mls'?",
    ),
    "nobody has an answer": (
        lambda d, y: pe.evaluate(d, None, np.arange(180)),
        "no query has an answer in the ga",
    ),
    "k of 0": (lambda d, y: pe.evaluate(d, None, y, k=(0,)), "k is (0,), expected integers from 1 to 179, the items"),
    "k above": (lambda d, y: pe.evaluate(d, None, y, k=(5, 180)), "k is (5, 180), expected integers from 1 to 179, "),
    "k above the gallery": (lambda d, y: pe.evaluate(d, d[:9], (y, y[:9]), k=10), "k is 10, expected integers from 1"),
    "no k": (lambda d, y: pe.evaluate(d, None, y, k=()), "k is (), expected integers from 1 to 179"),
    "no labels": (lambda d, y: pe.evaluate(d, None, None), "labels is None, expected labels of the queries"),
    "no label": (
        lambda d, y: pe.evaluate(d, None, [None, *y[1:]]),
        "labels are missing (None, NaN or masked), the first in row 0",
    ),
    "mixed": (lambda d, y: pe.evaluate(d, None, ["a", *y[1:]]), "labels holds numbers and words, expected all"),
    "a row with itself": (
        lambda d, y: pe.evaluate(d, None, y, pairs=[[0, 1], [7, 7]]),
        "pairs hold row 7 with itself, expected different rows",
    ),
    "quality": (
        lambda d, y: pe.evaluate(d, None, y, quality=[1.0]),
        "quality has shape (1,), expected (180,) like queries",
    ),
    "NaN": (lambda d, y: pe.evaluate(pe.Normal(d.mu * np.nan, d.var), None, y), "180 of 180 rows are not finite"),
    "NaN variance": (
        lambda d, y: pe.evaluate(pe.Normal(d.mu, np.where(y > 0, d.var, np.nan)), None, y, ["cosine"]),
        "queries has an uncertainty that is NaN: see its validate()",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call(*items())
    assert "\n" not in str(error.value)


TENSORS = pe.Normal(torch.ones(4, DIM), torch.ones(4))
EARLY = {
    "a quality that is NaN": ({"quality": [np.nan, *[1.0] * 179]}, "1 of the 180 numbers of quality are NaN, first in"),
    "a quality that is missing": ({"quality": pandas.array([1.0] * 179 + [pandas.NA])}, "1 of the 180 numbers of qu"),
    "a quality in words": ({"quality": ["good"] * 180}, "quality cannot be an array of shape (N,) (could not convert"),
    "a quality in columns": ({"quality": np.ones((180, 1))}, "quality has shape (180, 1), expected (N,)"),
    "novel tensors": ({"novel": TENSORS}, "novel is a torch tensor on cpu, expected a numpy array like queries"),
    "novel rows": ({"novel": np.ones((3, DIM))}, "novel must be a distribution, got ndarray; plain vectors go in"),
    "novel ones without uncertainty": (
        {"novel": pe.Normal(np.ones((2, DIM), "f4"), np.full(2, np.nan, "f4"))},
        "novel has an uncertainty that is NaN: see its validate()",
    ),
    "gallery tensors": ({"gallery": TENSORS}, "gallery is a torch tensor on cpu, expected a numpy array like queries"),
    "a gallery of another dim": (
        {"gallery": pe.Normal(np.ones((4, 5), "f4"), np.ones(4, "f4"))},
        "dim of gallery is 5, expected 8 like queries",
    ),
    "a second score without its prior": ({"scores": ["cosine", "llr"]}, "scores: llr: prior_var must be given; pe.fi"),
    "a second score of other kinds": ({"scores": ["cosine", "nivmf"]}, "scores: nivmf: cannot score normal_isotropi"),
    "no score": ({"scores": 3}, "scores is int, expected names or scores"),
    "no metric": ({"metrics": {"x": 3}}, "metrics has int for 'x', expected a function"),
    "no metrics": ({"metrics": [3]}, "metrics is list, expected functions by name"),
    "a seed below 0": ({"seed": -1}, "seed is -1, expected 0 .. 9223372036854775807"),
    "no seed": ({"seed": 1.5}, "seed must be an integer, got float"),
    "a prior in words": ({"p_target": "x"}, "p_target is x, expected a probability between 0 and 1, such as 0.01"),
}


@pytest.mark.parametrize("case", EARLY)
def test_arguments_are_refused_before_any_work(case, monkeypatch):
    def work(*_, **__):
        pytest.fail("work was done")

    for name in ("answered", "of_pairs", "compared_pairs", "Resamples"):
        monkeypatch.setattr(sys.modules["peaccel.evaluation.evaluate"], name, work)
    (d, labels), (changes, message) = items(), EARLY[case]
    given = {"queries": d, "gallery": None, "labels": labels, **changes}
    if given["gallery"] is not None:
        given["labels"] = labels, labels[: len(given["gallery"])]
    with pytest.raises((ValueError, TypeError), match=f"^evaluate: {re.escape(message)}"):
        pe.evaluate(**given)


def test_a_quality_may_be_learned():
    d, labels = items()
    quality = np.arange(180.0)
    learned = torch.tensor(quality, requires_grad=True)
    assert pe.evaluate(d, None, labels, quality=learned) == pe.evaluate(d, None, labels, quality=quality)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    d, labels = items()
    monkeypatch.chdir(tmp_path)
    io.write_distribution("e.npz", d)
    np.save("y.npy", labels)
    np.save("words.npy", [f"c{i}" for i in labels])
    np.save("quality.npy", -d.var)
    np.save("images.npy", np.zeros((180, 6, 9), np.uint8))
    io.write_fit("prior.json", pe.fit_prior(d, labels))
    return tmp_path


def run(capsys, line):
    return command.run(capsys, "evaluate", line)


def test_the_command_writes_what_it_prints(folder, capsys):
    options = "--quality quality.npy --images images.npy --prior prior.json --scores cosine,mls,llr"
    code, out, err = run(capsys, f"--embeddings e.npz --labels words.npy {options} --out new/page")
    assert code == 0, err
    held = json.loads((folder / "new" / "page" / "results.json").read_text())
    assert [s["score"][:3] for s in held["scores"]] == ["cos", "mls", "llr"]
    assert f"{100 * held['scores'][0]['recall_at_1']['value']:.1f} [" in out
    page = (folder / "new" / "page" / "report.html").read_text()
    for heading in (
        "Retrieval and verification",
        "Calibration",
        "Confidence against quality",
        "Least confident queries",
    ):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("data:image/png;base64") == 8 and "http" not in page.replace("http-equiv", "")
    io.write_distribution("g.npz", items(1)[0])
    line = "--queries e.npz --gallery g.npz --query-labels y.npy --gallery-labels y.npy --out two"
    assert run(capsys, line)[0] == 0


def test_the_command_hands_on_the_prior_and_the_seed(folder, capsys):
    d, labels = items()
    far = pe.Normal(d.mu + 5 * d.mu.std(0), d.var)  # a prior at the origin would be another score
    io.write_distribution("far.npz", far)
    prior = pe.fit_prior(far, labels)
    io.write_fit("prior.json", prior)
    line = "--embeddings far.npz --labels y.npy --scores llr --prior prior.json --seed 3 --out o"
    assert run(capsys, line)[0] == 0
    with_mean = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    expected = pe.evaluate(far, None, labels, with_mean, seed=3)
    expected.save("expected.json")
    assert json.loads((folder / "o" / "results.json").read_text()) == json.loads((folder / "expected.json").read_text())
    without = pe.evaluate(far, None, labels, pe.scores.llr(prior_var=prior.var), seed=3)
    assert without.scores[0].map_at_r != expected.scores[0].map_at_r


def test_queries_that_are_in_the_gallery_are_told():
    d, labels = items()
    with pytest.warns(UserWarning, match="the best item of 180 of 180 queries equals the query bit for bit"):
        pe.evaluate(d, d, (labels, labels), "cosine")
    some = pe.Normal(np.concatenate([d.mu[:7], d.mu[7:] + 0.001]), d.var)
    with pytest.warns(UserWarning, match=r"of 7 of 180 queries .* gallery=None \(--embeddings\); .*, exclude=rows, "):
        pe.evaluate(d, some, (labels, labels), "cosine")
    # The same means with other variances, or of another kind, are other items.
    pe.evaluate(d, pe.Normal(d.mu, 2 * d.var), (labels, labels), "cosine")
    pe.evaluate(d, pe.Point(d.mu), (labels, labels), "neg_sq_l2")


def test_scores_and_depths_by_default():
    d, labels = items()
    assert [s.score for s in pe.evaluate(d, None, labels).scores] == ["cosine", "mls"]
    points = pe.evaluate(pe.Point(d.mu), None, labels)
    assert [s.score for s in points.scores] == ["cosine"] and list(points.scores[0].recall_at_k) == ["5", "10"]
    few = pe.evaluate(d[:12:2], None, labels[:12:2], k=3)
    assert list(few.scores[0].recall_at_k) == ["3"]
    assert list(pe.evaluate(d[:12:2], None, labels[:12:2]).scores[0].recall_at_k) == ["5"]
    assert pe.evaluate(d, None, labels, k=np.int64(5)) == pe.evaluate(d, None, labels, k=[5])


def test_the_command_takes_points(folder, capsys):
    io.write_distribution("points.npz", pe.Point(items()[0].mu))
    assert run(capsys, "--embeddings points.npz --labels y.npy --out o")[0] == 0


def reciprocal_rank(ids, relevance):
    right = pe.metrics.relevance(ids, relevance)
    return np.where(right.any(1), 1 / (1 + right.argmax(1)), 0.0)


@pytest.mark.parametrize("own", [True, False])
def test_metrics_of_the_caller_are_columns_with_intervals(own, tmp_path):
    d, labels = items(0)
    g, of_gallery = (d, labels) if own else items(1)
    labels, g_or_none = labels.copy(), None if own else g
    asked = labels if own else (labels, of_gallery)
    both = {"MRR": reciprocal_rank, "map_at_r": pe.metrics.average_precision_at_r}
    found = pe.evaluate(d, g_or_none, asked, ("cosine", "mls"), metrics=both)
    plain = pe.evaluate(d, g_or_none, asked, ("cosine", "mls"))
    for result, without in zip(found.scores, plain.scores, strict=True):
        rows = ranked(d, g, result.score, own)
        first = [next(at for at, j in enumerate(row) if of_gallery[j] == labels[i]) for i, row in enumerate(rows)]
        # The first rank is looked for among the items that are ranked, which are as many as a class has, or ten.
        values = [1 / (1 + at) if at < 10 else 0.0 for at in first]
        assert result.metrics["MRR"].value == pytest.approx(np.mean(values))
        assert result.metrics["MRR"] == mean_interval(values, labels)
        assert result.metrics["map_at_r"] == result.map_at_r == without.map_at_r and not without.metrics
        assert replace(result, metrics={}) == without
    header, rows = found.tables()["Retrieval and verification"]
    x = found.scores[1].metrics["MRR"]
    assert dict(zip(header, rows[1], strict=True))["MRR"] == f"{x.value:.4g} [{x.low:.4g}, {x.high:.4g}]"
    found.save(tmp_path / "found.json")
    saved = json.loads((tmp_path / "found.json").read_text())["scores"][1]["metrics"]["MRR"]
    assert saved == {"value": x.value, "low": x.low, "high": x.high}


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda ids, relevance: 0.5, r"^evaluate: metrics\.mine gave shape \(\) of float64, expected \(180,\)$"),
        (
            lambda ids, relevance: ids,
            r"^evaluate: metrics\.mine gave shape \(180, 1[01]\) of int64, expected \(180,\)$",
        ),
        (
            lambda ids, relevance: np.full(len(ids), "x"),
            r"^evaluate: metrics\.mine gave shape \(180,\) of <U1, expected",
        ),
        (
            lambda ids, relevance: np.where(np.arange(len(ids)) == 7, np.nan, 0),
            "^evaluate: metrics.mine is nan for query 7, expected a finite number$",
        ),
    ],
)
def test_metrics_of_the_caller_are_checked(metric, message):
    d, labels = items(0)
    with pytest.raises(ValueError, match=message):
        pe.evaluate(d, None, labels, metrics={"mine": metric})


def test_queries_without_an_answer_are_in_no_metric():
    d, labels = items(0)
    labels[0] = -1  # alone in its class

    def known(ids, relevance):
        return np.where(relevance.sizes() > 0, 1.0, np.nan)

    assert pe.evaluate(d, None, labels, metrics={"known": known}).scores[0].metrics["known"].value == 1


def test_each_column_is_explained_under_its_table(folder, capsys):
    assert run(capsys, "--embeddings e.npz --labels y.npy --quality quality.npy --novel e.npz --out o")[0] == 0
    page = (folder / "o" / "report.html").read_text()
    for header in re.findall(r"<table><tr.*?</tr>", page, re.DOTALL):
        for name in re.findall(r"<th>(.*?)</th>", header):
            assert f"<dt>{re.sub(r'^R@[0-9]+', 'R@k', name)}</dt>" in page, name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--embeddings e.npz --out o", "expected one of these together: --embeddings --labels; --embeddings --coords "),
        ("--embeddings e.npz --labels none.npy --out o", "none.npy: no such file"),
        ("--embeddings e.npz --labels y.npy --out y.npy", "--out is y.npy, a file, expected a folder"),
        ("--embeddings e.npz --labels y.npy --scores llr --out o", "llr: prior_var must be given"),
        ("--embeddings e.npz --labels y.npy --calibration prior.json --out o", "prior.json: is a prior, expected"),
        ("--embeddings e.npz --labels y.npy --images y.npy --out o", "y.npy: has shape (180,), expected (180, H, W)"),
        ("--embeddings e.npz --labels images.npy --out o", "images.npy: labels has shape (180, 6, 9) and dtype uint8"),
    ],
)
def test_the_command_refuses_in_one_line(folder, capsys, line, message):
    code, _, err = run(capsys, line)
    assert code == 2 and err.count("\n") == 1 and message in err


def test_few_wrong_answers_are_said_to_be_too_few():
    """Of 200 queries three are answered wrongly: an area over these is chance, whatever its interval says."""
    mu = np.random.default_rng(0).normal(size=(200, 16))
    queries = pe.Normal(mu + 0.01, np.random.default_rng(1).gamma(2, size=200))
    held = np.arange(200)
    held[[3, 4, 5]] = [4, 5, 3]
    found = pe.evaluate(queries, pe.Normal(mu, np.full(200, 0.5)), (np.arange(200), held), ["cosine", "mls"])
    assert found.sentence().startswith("Too few answers are wrong, or right, to say whether a confidence tells")
    assert str(found.scores[0].best_auroc) == str(found.confidences[0].r_auroc) == "too few"
    figure = pages.calibration({"mls": found.confidences[0].calibration})
    assert "too few are wrong to tell" in figure.axes[0].get_title()


def doubled(order, seed=0):
    """Fifty queries, and a gallery that holds each right item once more under another label, in some order of rows."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(50, 16))
    gallery, of_gallery = np.tile(centre, (2, 1))[order], np.r_[0:50, 100:150][order]
    queries = pe.Point(centre + 0.1 * rng.normal(size=centre.shape))
    return queries, pe.Point(gallery), (np.arange(50), of_gallery)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["right first", "wrong first"])
def test_items_of_one_score_count_by_the_mean_over_their_orders(order):
    """Recall@1 was 1 or 0 by the order of rows."""
    found = pe.evaluate(*doubled(order), ("cosine", "neg_sq_l2"), k=2)
    for result in found.scores:
        assert (result.recall_at_1.value, result.map_at_r.value, result.recall_at_k["2"]) == (0.5, 0.5, 1)
        assert 0.2 < result.precision_recall_at_1 < 0.8  # of one draw
        assert result.gain_at_1.value == 0
    queries, gallery, labels = doubled(order)
    ranked = pe.choose_score(queries, labels, gallery=gallery).scores
    # The other copy is in the half of the classes that is judged of 22 queries of 50.
    assert {round(x.recall_at_1.value, 10) for x in ranked if x.form == "raw"} == {1 - 0.5 * 22 / 50}


def test_rankings_that_end_among_items_of_one_score_are_counted():
    """Twelve items share the best score of each of 30 queries, and eleven are ranked; of 20 others none do."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(50, 8))
    gallery = np.concatenate([np.repeat(centre[:30], 12, 0), centre[30:]])
    of_gallery = np.concatenate([np.arange(360) + 50, np.arange(30, 50)])
    of_gallery[11::12][:30] = np.arange(30)  # the right one has the highest row
    given = pe.Point(centre * 1.5), pe.Point(gallery), (np.arange(50), of_gallery)
    with pytest.warns(
        UserWarning, match="^evaluate: of 50 rankings some end among items of one score, 30 by cosine: "
    ) as told:
        found = pe.evaluate(*given, "cosine")
    assert told[0].filename == __file__ and len(told) == 1
    assert found.scores[0].recall_at_1.value == pytest.approx(20 / 50)


def test_a_score_that_is_named_twice_is_refused():
    labels = np.repeat(np.arange(20), 4)
    d = pe.Point(np.random.default_rng(0).normal(size=(80, 4)))
    with pytest.raises(ValueError, match="evaluate: scores name cosine 2 times, expected each once"):
        pe.evaluate(d, None, labels, scores=("cosine", "neg_sq_l2", "cosine"))
