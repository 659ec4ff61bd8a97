"""Distances in place of scores are said to look reversed, wherever a threshold is found or pairs are judged."""

import re
import warnings

import numpy as np
import pytest

import peaccel as pe
from peaccel.metrics.verification import area_of_reversed

RNG = np.random.default_rng(0)
MATCH = np.arange(400) % 2 == 0
SCORES = RNG.normal(size=400) + 1.5 * MATCH

CALLS = {
    "learn_then_test": lambda sign: pe.learn_then_test(sign * SCORES, MATCH, np.arange(400), 0.1),
    "best_threshold": lambda sign: pe.metrics.best_threshold(sign * SCORES, MATCH),
    "tar_at_far": lambda sign: pe.metrics.tar_at_far(sign * SCORES, MATCH, 0.1),
    "choose_pair_threshold, cost": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH, p_target=0.1),
    "choose_pair_threshold": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH),
    "roc_auc": lambda sign: pe.metrics.roc_auc(sign * SCORES, MATCH),
    "equal_error_rate": lambda sign: pe.metrics.equal_error_rate(sign * SCORES, MATCH),
    "detection_cost": lambda sign: pe.metrics.detection_cost(sign * SCORES, MATCH),
    "verification_accuracy": lambda sign: pe.metrics.verification_accuracy(sign * SCORES, MATCH),
    "reject_verification": lambda sign: pe.metrics.reject_verification(sign * SCORES, MATCH, SCORES, 0.1),
    "choose_pair_threshold, wrong": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH, wrong=0.1),
}


@pytest.mark.parametrize("call", CALLS)
def test_reversed_scores_are_told_and_others_are_not(call):
    with pytest.warns(UserWarning) as told:
        CALLS[call](-1)
    (one,) = told  # at the line of the caller, and by the name of the function that was called
    assert one.filename == __file__
    assert re.match(
        rf"{call.split(',')[0]}: \w+ look reversed, as distances are: their AUC is 0\.\d+, below", str(one.message)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CALLS[call](1)


def test_calibrate_says_that_labels_are_reversed():
    labels, pairs = np.arange(100).repeat(2), np.argwhere(np.triu(np.ones((200, 200)), 1))
    mu = RNG.normal(size=(100, 8))[labels] + 0.3 * RNG.normal(size=(200, 8))
    d, same = pe.Normal(mu, np.full(200, 0.09)), labels[pairs[:, 0]] == labels[pairs[:, 1]]
    message = r"^calibrate_variance: labels look reversed: pairs of one identity are further apart than others, by an A"
    with pytest.warns(UserWarning, match=message) as told:
        pe.calibrate_variance(d, pairs, ~same)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pe.calibrate_variance(d, pairs, same)
        pe.calibrate_variance(d, pairs[same], same[same])


def test_evaluate_says_that_a_score_separates_pairs_the_wrong_way_round():
    labels = np.arange(80).repeat(2)
    mu = np.repeat(RNG.normal(size=(80, 8)), 2, 0) * np.tile([1, -1], 80)[:, None]
    with pytest.warns(UserWarning, match=r"^evaluate: scores cosine look reversed, as distances are: their AUC is \d"):
        pe.evaluate(pe.Point(mu), None, labels, "cosine")


def test_no_threshold_above_which_most_are_wrong_is_handed_out():
    """Distances as scores once gave one that accepted 13 of 13 pairs wrongly."""
    rng, match = np.random.default_rng(0), np.arange(2500) < 500
    distance = np.r_[rng.normal(-3, 1, 500), rng.normal(0, 1, 2000)]
    message = (
        r"^choose_pair_threshold: scores look reversed, .* and 100% of those above the threshold for far=0\.01 are"
    )
    with pytest.warns(UserWarning, match="look reversed"), pytest.raises(ValueError, match=message):
        pe.choose_pair_threshold(distance, match, far=0.01)
    with pytest.warns(UserWarning, match="look reversed"):
        assert pe.choose_pair_threshold(distance, match, wrong=0.05).accept.threshold == np.inf
    # Where matches are rare most accepted pairs are wrong, and nothing is reversed.
    rare = pe.choose_pair_threshold(-distance[480:], match[480:], far=0.05)
    assert rare.chosen.wrong > 0.5 and np.isfinite(rare.accept.threshold)


def test_of_scores_that_say_nothing_few_are_called_reversed():
    """Independent ones by chance in one set of 30,000; pairs of few items, which go together, as rarely."""
    called = 0
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(20, 400))
        called += area_of_reversed(rng.normal(size=count), rng.random(count) < rng.uniform(0.05, 0.95)) is not None
    assert called <= 2  # more than two of 3,000 have a probability below 1e-3
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x, labels = rng.normal(size=(120, 16)), np.arange(120) // 4  # 30 classes that the items know nothing of
        one, other = np.triu_indices(120, 1)
        called += area_of_reversed((x @ x.T)[one, other], labels[one] == labels[other]) is not None
    assert called <= 2


def test_scores_that_say_nothing_are_not_said_to_be_reversed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(100):
            rng = np.random.default_rng(seed)
            pe.learn_then_test(rng.normal(size=60), rng.random(60) < 0.3, np.arange(60), 0.1)
        pe.learn_then_test(np.arange(20.0), np.arange(20) < 1, np.arange(20), 0.1)
        pe.learn_then_test(np.arange(20.0), np.ones(20, bool), np.arange(20), 0.1)
