"""Infinite scores of exact copies: what ranks them takes them, what computes with their size says why it does not."""

import re

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel import metrics

INF = np.inf
RNG = np.random.default_rng(0)
FINITE = RNG.normal(size=400)
RIGHT = FINITE + RNG.normal(size=400) > 0
COPIES = np.arange(400) % 10 == 0
RIGHT[COPIES] = True
SCORES, GREAT = (np.where(COPIES, best, FINITE) for best in (INF, 9.0))  # which are in the same order
TWO, TWO_GREAT = (np.stack([x, FINITE - 1], 1) for x in (SCORES, GREAT))
ITEMS = np.arange(400)
RANKED = {
    "learn_then_test": lambda x, s: pe.learn_then_test(x, RIGHT, ITEMS, 0.3).accepted,
    "learn_then_test of a ranking": lambda x, s: pe.learn_then_test(best(x), RIGHT, ITEMS, 0.3).accepted,
    "limit_false_matches": lambda x, s: pe.limit_false_matches(x, 0.3, groups=ITEMS // 2)(s).tolist(),
    "limit_false_matches of a ranking": lambda x, s: pe.limit_false_matches(best(x), 0.3)(s).tolist(),
    "choose_pair_threshold": lambda x, s: pe.choose_pair_threshold(x, RIGHT, wrong=0.3).accept(s).tolist(),
    "fit_match_probability": lambda x, s: pe.fit_match_probability(x, RIGHT, method="isotonic")(s).tolist(),
    "roc_auc": lambda x, s: metrics.roc_auc(x, RIGHT),
    "equal_error_rate": lambda x, s: metrics.equal_error_rate(x, RIGHT).rate_interval,
    "tar_at_far": lambda x, s: metrics.tar_at_far(x, RIGHT, 0.01).threshold_interval,
    "best_threshold": lambda x, s: metrics.best_threshold(x, RIGHT),
    "verification_accuracy": lambda x, s: metrics.verification_accuracy(x, RIGHT, folds=4),
    "reject_verification": lambda x, s: metrics.reject_verification(x, RIGHT, ITEMS, 0.1).tar.tolist(),
    "open_set": lambda x, s: metrics.open_set(x[:200], x[200:]).fnir.tolist(),
    "ceda": lambda x, s: metrics.ceda(RIGHT, x),
    "r_auroc": lambda x, s: metrics.r_auroc(RIGHT, x),
    "calibration_error": lambda x, s: metrics.calibration_error(RIGHT, x, scale="rank").ece,
}


def best(scores):
    """A ranking of one."""
    return pe.Ranking(scores[:, None], ITEMS[:, None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("call", RANKED.values(), ids=RANKED)
def test_the_score_of_a_copy_is_the_best_of_all(call, dtype):
    infinite, great = SCORES.astype(dtype), GREAT.astype(dtype)
    assert call(infinite, infinite) == call(great, great)


def test_margins_and_gaps_of_copies_are_infinite_or_none():
    scores, ids = np.array([[INF, 1.0], [INF, INF], [3.0, 1.0]]), np.array([[0, 1], [0, 1], [0, 1]])
    assert metrics.top_score_confidence(scores).tolist() == [INF, INF, 3.0]
    assert metrics.margin_confidence(scores).tolist() == [INF, 0.0, 2.0]
    assert pe.answer_confidence(pe.Ranking(scores, ids), "margin").tolist() == [INF, 0.0, 2.0]
    right = np.stack([RIGHT, ~RIGHT], 1)
    found, of_great = (pe.conformal_sets(x, right, ITEMS, 0.1) for x in (TWO, TWO_GREAT))
    assert found.gap == of_great.gap
    for array in (np.asarray, torch.tensor):
        kept = pe.ConformalSets(2.5, 0.1, 400, "all")(pe.Ranking(array(scores), array(ids)))
        assert kept.ids.tolist() == [[0, -1], [0, 1], [0, 1]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_thresholds_lie_at_copies_or_accept_nothing(dtype):
    copies = np.where(ITEMS < 300, INF, FINITE).astype(dtype)
    found = pe.learn_then_test(copies, ITEMS < 300, ITEMS, 0.01)
    assert np.isfinite(found.threshold) and found(copies).sum() >= 300
    alike = np.full(400, INF, dtype)
    none = pe.learn_then_test(alike, ITEMS % 2 > 0, ITEMS, 0.1), pe.limit_false_matches(alike, 0.1)
    for threshold in none:
        assert threshold.threshold == INF and not threshold(alike).any()
        for array in (np.asarray, torch.tensor):
            ranking = best(alike)
            assert (threshold(pe.Ranking(*map(array, ranking))).ids == -1).all()
            assert (threshold.select(ranking, confidence=alike).ids == -1).all()
    nothing = np.where(ITEMS < 399, -INF, 1.0).astype(dtype)  # searches that find nothing return nothing
    assert pe.limit_false_matches(nothing, 0.1)([-INF, 0.0]).tolist() == [False, True]


def test_bins_are_of_finite_scores():
    found = pe.choose_pair_threshold(SCORES, RIGHT)
    assert found.edges[-1] < 5 and sum(map(sum, found.counts.values())) == 400
    assert found.counts["pairs that match"][-1] >= COPIES.sum()
    assert np.isfinite(pe.choose_pair_threshold(np.full(40, INF), RIGHT[:40]).edges).all()


REASONS = {
    "learn_then_test: 40 of the 400 numbers of confidence are NaN or -inf, first in row 0; no answer was found": (
        lambda: pe.learn_then_test(-SCORES, RIGHT, ITEMS, 0.1)
    ),
    "choose_pair_threshold: 40 of the 400 numbers of scores are NaN or -inf, first in row 0; no threshold accepts it": (
        lambda: pe.choose_pair_threshold(-SCORES, RIGHT)
    ),
    "choose_pair_threshold: 40 of the 400 numbers of scores are NaN or infinite, first in row 0; Cllr is a mean": (
        lambda: pe.choose_pair_threshold(SCORES, RIGHT, p_target=0.1)
    ),
    "detection_cost: 40 of the 400 numbers of scores are NaN or infinite, first in row 0; Cllr is a mean": (
        lambda: metrics.detection_cost(SCORES, RIGHT, 0.1)
    ),
    "fit_match_probability: 40 of the 400 numbers of scores are NaN or infinite, first in row 0; a logistic function": (
        lambda: pe.fit_match_probability(SCORES, RIGHT)
    ),
    "fit_match_probability: 400 of the 400 numbers of scores are NaN, first in row 0": (
        lambda: pe.fit_match_probability(SCORES * np.nan, RIGHT, method="isotonic")
    ),
    "conformal_sets: 40 of the 400 numbers of scores[:, 0] are NaN or -inf, first in row 0; no answer was found": (
        lambda: pe.conformal_sets(np.stack([-SCORES, np.full(400, -INF)], 1), TWO > 0, ITEMS, 0.1)
    ),
    "answer_confidence: 1 of the 1 numbers of best scores of ranking are NaN or -inf, first in row 0; what nothing": (
        lambda: pe.answer_confidence(pe.Ranking(np.full((1, 2), -INF), np.array([[0, 1]])), "margin")
    ),
    "normalise_scores: 40 of the 800 numbers of queries are NaN or infinite, first in row 0; a mean and a deviation": (
        lambda: pe.normalise_scores(TWO, queries=TWO)
    ),
}


@pytest.mark.parametrize("message", REASONS)
def test_what_computes_with_the_size_of_scores_says_why_it_refuses_infinite_ones(message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        REASONS[message]()
