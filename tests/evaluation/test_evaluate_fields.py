"""Fields of `pe.evaluate`: each is a metric of `pe.search` and `pe.paired`, drawn over classes."""

import numpy as np
import pytest

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation import answers, mean_interval, verification_pairs
from peaccel.evaluation import evaluate as protocol
from peaccel.evaluation import separation as confidences
from peaccel.evaluation.drawn_pairs import DIFFERENT
from peaccel.evaluation.intervals import Resamples

CLASSES, EACH, DIM, SEED = 30, 6, 4, 5


def items(seed):
    """Items that some scores and confidences tell better than others; one of them is alone in its class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), EACH)
    var = np.exp(rng.normal(0, 1, len(labels)))
    mu = 1.5 * np.random.default_rng(7).normal(size=(CLASSES, DIM))[labels] + rng.normal(size=(len(labels), DIM)) * (
        var[:, None] ** 0.5
    )
    labels[50] = 100 + seed
    return pe.Normal(mu, var), labels


def sides(own):
    """Queries, gallery, labels as `pe.evaluate` takes them, and the labels as metrics take them."""
    (d, y), (g, z) = items(0), items(1)
    return (d, None, y, (y,)) if own else (d, g, (y, z), (y, z))


def ranked(d, gallery, score):
    """Ids of the whole gallery and the score of each query's best item, its own row left out."""
    g = d if gallery is None else gallery
    scores, ids = pe.search(d, g, len(g), score)
    return ids, (metrics.without_self(ids, scores) if gallery is None else scores)[:, :2].astype(float)


@pytest.mark.parametrize("own", [True, False])
def test_every_field_of_a_score_is_that_metric(own):
    d, gallery, labels, truth = sides(own)
    found = pe.evaluate(d, gallery, labels, ("cosine", "mls"), k=(3, 7), seed=SEED)
    pairs, same = verification_pairs(*truth, *[None] * own, SEED, different=DIFFERENT)
    classes, baseline = truth[0], None
    for result in found.scores:
        ids, best = ranked(d, gallery, result.score)
        right, precision = metrics.hit_at_k(ids, *truth), metrics.average_precision_at_r(ids, *truth)
        baseline, known = right if baseline is None else baseline, ~np.isnan(right)
        together = np.array(pe.paired(d[pairs[:, 0]], (d if own else gallery)[pairs[:, 1]], result.score))
        assert result.recall_at_1 == mean_interval(right, classes, seed=SEED)
        assert result.map_at_r == mean_interval(precision, classes, seed=SEED)
        assert result.gain_at_1 == mean_interval(right - baseline, classes, seed=SEED)
        assert result.recall_at_k == {str(k): metrics.recall_at_k(ids, *truth, k=k) for k in (3, 7)}
        assert result.roc_auc.value == metrics.roc_auc(together, same)
        assert result.equal_error_rate.value == metrics.equal_error_rate(together, same).rate
        at = metrics.tar_at_far(together, same, 0.001, resamples=1)
        assert (result.tar_at_far.value, result.attained_far) == (at.tar, at.attained_far)
        assert result.precision_recall_at_1 == metrics.precision_recall_auc_at_1(right[known], best[known, 0])
        of_best = metrics.r_auroc(right[known], best[known, 0])
        assert result.best_auroc.value == of_best
        assert result.best_auroc_gain.value == of_best - found.scores[0].best_auroc.value
    assert found.unanswerable == (~known).sum() == 1 and found.pairs == (same.sum(), (~same).sum())


@pytest.mark.parametrize("own", [True, False])
def test_every_field_of_a_confidence_is_that_metric(own):
    d, gallery, labels, truth = sides(own)
    quality = np.random.default_rng(3).integers(0, 3, len(d))
    found = pe.evaluate(d, gallery, labels, ("cosine", "mls"), quality=quality, seed=SEED)
    ids, best = ranked(d, gallery, "cosine")
    right = metrics.hit_at_k(ids, *truth)
    known = ~np.isnan(right)
    right = right[known]
    expected = {
        "learned": pe.confidence(d)[known],
        "norm of the mean": np.linalg.norm(d.mu, axis=1)[known],
        "score of the best": best[known, 0],
        "best less second": best[known, 0] - best[known, 1],
        "random": metrics.random_confidence(known.sum(), SEED),
    }
    assert [c.confidence for c in found.confidences] == list(expected)
    for c in found.confidences:
        confidence = expected[c.confidence]
        p = confidences.probability(confidence, right, truth[0][known], SEED)
        curve = pe.reliability_curve(p, right.astype(bool))
        assert c.r_auroc.value == metrics.r_auroc(right, confidence)
        assert c.ausc.value == metrics.rejection_area(right, confidence, "ausc")
        assert c.aurc.value == metrics.rejection_area(right, confidence)
        assert c.brier == mean_interval((p - right) ** 2, truth[0][known], seed=SEED)
        assert c.ece.value == pytest.approx((curve.count * abs(curve.predicted - curve.observed)).sum() / known.sum())
        assert np.array(c.calibration) == pytest.approx(np.array([*curve]).T)
        assert c.curve == tuple(metrics.rejection_curve(right, confidence, found.shares))
        assert c.spearman == metrics.spearman(quality[known], confidence)
        if c.confidence == "score of the best":
            assert c.gain is None and c.r_auroc == found.scores[0].best_auroc
        else:
            assert c.gain.value == c.r_auroc.value - found.scores[0].best_auroc.value
            assert c.gain.low < c.gain.value < c.gain.high
        for x in (c.r_auroc, c.ausc, c.aurc, c.brier):
            assert x.low < x.value < x.high


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by_pairs", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_rankings_and_pairs_by_blocks_are_those_at_once(own, by_pairs, monkeypatch):
    d, gallery, labels, truth = sides(own)
    if by_pairs:
        right = np.argwhere(truth[0][:, None] == truth[-1])
        labels = metrics.Relevance.from_pairs(right, len(d), None if own else len(gallery))
    at_once = pe.evaluate(d, gallery, labels)
    monkeypatch.setattr(answers, "BLOCK", 100)
    monkeypatch.setattr("peaccel.evaluation.drawn_pairs.BLOCK", 1000)
    assert pe.evaluate(d, gallery, labels) == at_once


def test_classes_are_drawn_once_for_queries_and_once_for_pairs(monkeypatch):
    d, labels = items(0)
    drawn = []

    def spy(clusters, seed):
        drawn.append(np.shape(clusters))
        return Resamples(clusters, seed)

    monkeypatch.setattr(protocol, "Resamples", spy)
    found = pe.evaluate(d, None, labels, ("cosine", "mls", "neg_sq_l2"))
    assert drawn == [(len(d) - 1,), (sum(found.pairs), 2)]


def test_the_probability_of_a_class_is_fitted_to_other_classes():
    """Answers to the queries of a class leave the probability of these alone and move that of others."""
    rng = np.random.default_rng(0)
    classes, fate = np.repeat(np.arange(60), 10), np.repeat(rng.random(60) < 0.5, 10).astype(float)
    confidence = np.repeat(rng.random(60), 10)
    p = confidences.probability(confidence, fate, classes, 0)
    turned = confidences.probability(confidence, np.where(classes == 7, 1 - fate, fate), classes, 0)
    assert (p == turned)[classes == 7].all() and not (p == turned).all()
    assert np.isnan(confidences.probability(fate, fate, np.zeros(600), 0)).all()  # one class has no others
    assert (confidences.probability(fate, np.ones(600), classes, 0) == 1).all()
