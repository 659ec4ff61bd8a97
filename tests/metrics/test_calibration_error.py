"""Calibration, quality, novelty, clusters, precision and recall, and confidences that need no training."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.cluster import KMeans
from sklearn.metrics import average_precision_score, roc_auc_score

from peaccel import metrics


def drawn(seed, ties, size=80):
    rng = np.random.default_rng(seed)
    confidence = rng.normal(size=size)
    values = 1 / (1 + np.exp(-confidence - rng.normal(size=size)))
    return values, np.round(confidence) if ties else confidence


def naive_scaled(confidence, scale):
    if scale == "rank":
        return (rankdata(confidence) - 0.5) / len(confidence)
    return (confidence - confidence.min()) / (confidence.max() - confidence.min())


def naive_bins(values, scaled, binning, bins):
    """The values and confidences in each bin, least confident first."""
    pairs = sorted(zip(scaled.tolist(), values.tolist(), strict=True))
    if binning == "equal-count":
        sizes = [len(pairs) // bins + (i < len(pairs) % bins) for i in range(bins)]
        ends = np.cumsum([0, *sizes])
        return [pairs[a:b] for a, b in itertools.pairwise(ends)]
    return [
        [p for p in pairs if i / bins <= p[0] < (i + 1) / bins or (i == bins - 1 and p[0] == 1)] for i in range(bins)
    ]


@pytest.mark.parametrize("bins", [1, 3, 10])
@pytest.mark.parametrize("binning", ["equal-width", "equal-count"])
@pytest.mark.parametrize("scale", ["minmax", "rank", "probability"])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_against_a_loop(seed, scale, binning, bins):
    values, confidence = drawn(seed, False)
    scaled = naive_scaled(confidence, scale)
    given = scaled if scale == "probability" else confidence
    found = metrics.calibration_error(values, given, scale=scale, binning=binning, bins=bins)
    parts = naive_bins(values, scaled, binning, bins)
    means = np.array([np.mean(part, axis=0) if part else (math.nan,) * 2 for part in parts])
    np.testing.assert_allclose(np.array([found.confidence, found.value]).T, means, rtol=1e-12)
    assert found.count.tolist() == [len(part) for part in parts] and found.count.sum() == 80
    expected = sum(len(part) / 80 * abs(v - c) for part, (c, v) in zip(parts, means, strict=True) if part)
    assert found.ece == pytest.approx(expected, abs=1e-13)
    assert (found.scale, found.binning) == (scale, binning)


@pytest.mark.parametrize("scale", ["minmax", "rank"])
@pytest.mark.parametrize("binning", ["equal-width", "equal-count"])
def test_calibration_of_equals_does_not_go_by_their_order(scale, binning):
    values, confidence = drawn(1, True)
    found = metrics.calibration_error(values, confidence, scale=scale, binning=binning)
    turned = metrics.calibration_error(values[::-1], confidence[::-1], scale=scale, binning=binning)
    for name in ("ece", "confidence", "value", "count"):
        np.testing.assert_allclose(getattr(found, name), getattr(turned, name), rtol=1e-13)
    together = [values[confidence == c].mean() for c in confidence]
    means = metrics.calibration_error(together, confidence, scale=scale, binning=binning)
    np.testing.assert_allclose(found.value, means.value, rtol=1e-13)


def test_calibration_of_the_perfect_the_constant_and_one_query():
    flat = metrics.calibration_error([0.2, 0.4], [3, 3], scale="rank")
    assert flat.ece == pytest.approx(0.2) and flat.count[5] == 2 and np.isnan(np.delete(flat.value, 5)).all()
    assert metrics.calibration_error([0.2, 0.7, 1], [0.2, 0.7, 1], scale="probability").ece == 0
    assert metrics.calibration_error([1], [1], scale="probability", bins=1).ece == 0
    assert metrics.calibration_error([0, 0], [1, 2]).ece == 0.5  # all predictions are wrong
    assert metrics.calibration_error([1, 1], [1, 2]).ece == 0.5  # all predictions are right


def test_overconfidence_is_the_same_for_every_value():
    """Where all bins are over-confident, error and mean value add up to the mean confidence: the paper's tables do."""
    confidence = np.random.default_rng(0).random(50)
    for share in (0.1, 0.3):
        values = share * naive_scaled(confidence, "minmax")
        total = metrics.calibration_error(values, confidence).ece + values.mean()
        assert total == pytest.approx(naive_scaled(confidence, "minmax").mean())


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_spearman_is_the_correlation_of_ranks(seed, ties):
    quality, confidence = drawn(seed, ties)
    expected = np.corrcoef(rankdata(quality), rankdata(confidence))[0, 1]
    assert metrics.spearman(quality, confidence) == pytest.approx(expected, abs=1e-13)
    assert metrics.spearman(confidence, confidence) == pytest.approx(1)
    assert metrics.spearman(confidence, -confidence) == pytest.approx(-1)
    assert math.isnan(metrics.spearman(quality, np.ones(80))) and math.isnan(metrics.spearman([1], [1]))


def test_cropped_less_confident():
    whole, cropped = np.round(np.random.default_rng(0).normal(size=(2, 60)))
    wins = sum(1.0 if c < w else 0.5 if c == w else 0.0 for w, c in zip(whole, cropped, strict=True))
    assert metrics.cropped_less_confident(whole, cropped) == pytest.approx(wins / 60)
    assert metrics.cropped_less_confident([1], [0]) == 1
    assert metrics.cropped_less_confident([0], [1]) == 0
    assert metrics.cropped_less_confident([1, 1], [1, 1]) == 0.5


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_precision_and_recall_against_scikit_learn(seed, ties):
    rng = np.random.default_rng(seed)
    scores, relevant = rng.normal(size=(12, 30)).astype("f4"), rng.random((12, 30)) < 0.1
    scores = np.round(scores) if ties else scores
    expected = average_precision_score(relevant.ravel(), scores.ravel())
    assert metrics.precision_recall_auc(scores[relevant], scores) == pytest.approx(expected, abs=1e-13)
    blocks = (scores[i : i + 5] for i in range(0, 12, 5))
    assert metrics.precision_recall_auc(scores[relevant], blocks) == pytest.approx(expected, abs=1e-13)
    top, right = scores.max(1), rng.random(12) < 0.5
    curve = [(right[top >= t].sum() / 12, right[top >= t].mean()) for t in sorted(set(top.tolist()), reverse=True)]
    area = sum((r - before) * p for (r, p), before in zip(curve, [0, *(r for r, _ in curve)], strict=False))
    assert metrics.precision_recall_auc_at_1(right, top) == pytest.approx(area, abs=1e-13)


def test_precision_and_recall_of_the_perfect_the_hopeless_and_equals():
    assert metrics.precision_recall_auc([3, 4], [[3, 4], [1, 2]]) == 1
    assert metrics.precision_recall_auc([1], [[1, 2, 3, 4]]) == 1 / 4
    assert metrics.precision_recall_auc([5], [[5] * 3, [5]]) == 1 / 4
    assert metrics.precision_recall_auc([5], [[5]]) == 1
    assert metrics.precision_recall_auc_at_1([0, 0], [1, 2]) == 0
    assert metrics.precision_recall_auc_at_1([1, 1], [1, 2]) == 1
    assert metrics.precision_recall_auc_at_1([1, 0], [1, 1]) == 1 / 4


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_novelty_against_scikit_learn(seed, ties):
    known, novel = drawn(seed, ties)[1], drawn(seed + 9, ties, 30)[1] + 0.5
    found = metrics.novelty_detection(known, novel, bins=7)
    is_novel, both = np.arange(110) >= 80, np.concatenate([known, novel])
    assert found.auroc == pytest.approx(roc_auc_score(is_novel, both), abs=1e-13)
    assert found.auprc == pytest.approx(average_precision_score(is_novel, both), abs=1e-13)
    assert found.known.sum() == 80 and found.novel.sum() == 30 and len(found.edges) == 8
    assert (found.edges[0], found.edges[-1]) == (both.min(), both.max())
    assert found.novel[0] == ((novel >= found.edges[0]) & (novel < found.edges[1])).sum()


def test_novelty_of_constants_and_of_single_queries():
    flat = metrics.novelty_detection([2, 2, 2], [2])
    assert (flat.auroc, flat.auprc, flat.known.sum(), flat.novel.sum()) == (0.5, 0.25, 3, 1)
    assert metrics.novelty_detection([1, 3], [2], bins=1).known.tolist() == [2]
    assert metrics.novelty_detection([1], [2]).auroc == 1 and metrics.novelty_detection([2], [1]).auroc == 0


def entropy(*labels):
    _, count = np.unique(np.array(labels), axis=1, return_counts=True)
    share = count / count.sum()
    return -(share * np.log(share)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_nmi_against_entropies(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, 100)
    x = rng.normal(size=(5, 3))[labels] + rng.normal(size=(100, 3))
    clusters = KMeans(5, n_init=1, random_state=seed).fit_predict(x)
    one, other = entropy(labels), entropy(clusters)
    expected = 2 * (one + other - entropy(labels, clusters)) / (one + other)
    assert metrics.nmi(x, labels, seed) == pytest.approx(expected, abs=1e-12)


def test_nmi_of_the_perfect_and_of_one_class():
    x = np.array([[0.0], [0.1], [9], [9.1]])
    assert metrics.nmi(x, list("aabb")) == pytest.approx(1)
    assert metrics.nmi(x, list("aaaa")) == 1 and metrics.nmi([[1.0]], [3]) == 1
    assert metrics.nmi(x, list("abab")) == pytest.approx(0, abs=1e-12)
    with pytest.warns(UserWarning, match="distinct clusters"):  # scikit-learn itself warns
        assert metrics.nmi(np.zeros((4, 1)), list("aabb")) == 0


def test_confidences_that_need_no_training():
    rng = np.random.default_rng(0)
    x, logits = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)) * 5
    assert metrics.norm_confidence(x) == pytest.approx([math.sqrt(sum(v * v for v in row)) for row in x.tolist()])
    expected = [max(math.exp(v) / sum(map(math.exp, row)) for v in row) for row in logits.tolist()]
    assert metrics.class_probability_confidence(logits) == pytest.approx(expected, rel=1e-14)
    assert metrics.class_probability_confidence([[1e4, 0], [-1e4, -1e4]]).tolist() == [1, 0.5]
    assert metrics.top_score_confidence([[3, 1], [2, 2]]).tolist() == [3, 2]
    assert metrics.top_score_confidence([[3, -math.inf]]).tolist() == [3]
    assert metrics.margin_confidence([[3, 1, 0], [2, 2, -math.inf]]).tolist() == [2, 0]
    spread = metrics.spread_confidence([[3, 1, 2], [2, 2, 2]])
    assert spread.tolist() == [pytest.approx(math.sqrt(2 / 3)), 0]
    chance = metrics.random_confidence(1000, seed=3)
    np.testing.assert_array_equal(chance, metrics.random_confidence(1000, seed=3))
    assert len(set(chance)) == 1000 and (chance != metrics.random_confidence(1000)).all()
    assert abs(chance.mean() - 0.5) < 0.04  # four standard errors


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: metrics.calibration_error([1, 0], [2, 2]),
            r"^calibration_error: confidence is 2 for all queries: no sc",
        ),
        (
            lambda: metrics.calibration_error([1, 2], [1, 2]),
            r"^calibration_error: values span 1..2, expected \[0, 1",
        ),
        (
            lambda: metrics.calibration_error([1], [math.inf]),
            r"1 of the 1 numbers of confidence are NaN or infinite, first in row 0; 'minmax' divides by their span$",
        ),
        (
            lambda: metrics.calibration_error([1, 1], [1]),
            r"^calibration_error: confidence has shape \(1,\), expected \(2",
        ),
        (
            lambda: metrics.calibration_error([1, 1], [1, 2], scale="z"),
            r"^calibration_error: scale is 'z', expected 'min",
        ),
        (
            lambda: metrics.calibration_error([1], [1], binning="x"),
            r"^calibration_error: binning is 'x' and bins 10, exp",
        ),
        (
            lambda: metrics.calibration_error([1], [1], bins=0),
            r"^calibration_error: binning is 'equal-width' and bins 0",
        ),
        (
            lambda: metrics.calibration_error([1], [1.5], scale="probability"),
            r"^calibration_error: confidence span 1.5..1.5, expected \[0, 1\]$",
        ),
        (
            lambda: metrics.spearman([1, 2], [1]),
            r"^spearman: confidence has shape \(1,\), expected \(2,\) like quality$",
        ),
        (
            lambda: metrics.spearman([1, math.nan], [1, 2]),
            r"^spearman: 1 of the 2 numbers of quality are NaN, first in row 1$",
        ),
        (lambda: metrics.cropped_less_confident([1], [1, 2]), r"^cropped_less_confident: cropped has shape \(2,\)"),
        (lambda: metrics.precision_recall_auc([], [[1]]), r"^precision_recall_auc: relevant_scores has shape \(0,\)"),
        (
            lambda: metrics.precision_recall_auc([1, 2], [[1]]),
            r"^precision_recall_auc: blocks lack some of the 2 relevant",
        ),
        (
            lambda: metrics.precision_recall_auc([1], [[1, math.nan]]),
            r"^precision_recall_auc: 1 scores of a block are NaN",
        ),
        (lambda: metrics.precision_recall_auc_at_1([1], [1, 2]), r"^precision_recall_auc_at_1: top_scores has shape"),
        (
            lambda: metrics.novelty_detection([], [1]),
            r"^novelty_detection: known has shape \(0,\), expected \(N,\) with",
        ),
        (
            lambda: metrics.novelty_detection([1], [math.inf]),
            r"1 of the 1 numbers of novel are NaN or infinite, first in row 0; bins are",
        ),
        (lambda: metrics.novelty_detection([1], [1], bins=0), r"^novelty_detection: bins is 0, expected at least 1$"),
        (lambda: metrics.nmi([[1.0]], [1, 2]), r"^nmi: labels has shape \(2,\), expected \(1,\) like embeddings$"),
        (
            lambda: metrics.nmi([[math.nan]], [1]),
            r"^nmi: 1 of the 1 numbers of embeddings are NaN or infinite, first in row 0; they",
        ),
        (
            lambda: metrics.norm_confidence([[0.6, 0.8], [0, 1]]),
            r"^norm_confidence: embeddings have unit length, expecte",
        ),
        (
            lambda: metrics.class_probability_confidence([[math.nan]]),
            r"1 of the 1 numbers of logits are NaN or infinite",
        ),
        (lambda: metrics.margin_confidence([[1]]), r"^margin_confidence: scores has 1 columns, expected at least 2$"),
        (
            lambda: metrics.margin_confidence([[2, 1], [1, 2]]),
            r"^margin_confidence: scores of query 1 rise, expected the",
        ),
        (
            lambda: metrics.spread_confidence([[1, math.inf]]),
            r"1 of the 2 numbers of scores are NaN or infinite, first in row 0; so",
        ),
        (
            lambda: metrics.margin_confidence([[1, -math.inf]]),
            r"1 of the 2 numbers of scores are NaN or -inf, first in row 0; such",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("least", [0.0, 1.0, -1e9, 1e300])
def test_novelty_of_numbers_that_rounding_alone_tells_apart(least):
    found = metrics.novelty_detection([least, least], [np.nextafter(least, np.inf)], bins=40)
    assert found.auroc == 1 and len(found.edges) == 41 and (np.diff(found.edges) > 0).all()
    assert found.known.sum() == 2 and found.novel.sum() == 1


def test_novelty_of_numbers_whose_difference_overflows():
    found = metrics.novelty_detection([-1.7e308], [1.7e308], bins=2)
    assert found.edges.tolist() == [-1.7e308, 0, 1.7e308] and found.known.tolist() == [1, 0]
