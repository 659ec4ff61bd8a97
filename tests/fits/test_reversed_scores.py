"""Distances in place of scores are said to look reversed, wherever a threshold is found or pairs are judged."""

import warnings

import numpy as np
import pytest

import peaccel as pe

RNG = np.random.default_rng(0)
MATCH = np.arange(400) % 2 == 0
SCORES = RNG.normal(size=400) + 1.5 * MATCH

CALLS = {
    "learn_then_test": lambda sign: pe.learn_then_test(sign * SCORES, MATCH, np.arange(400), 0.1),
    "best_threshold": lambda sign: pe.metrics.best_threshold(sign * SCORES, MATCH),
    "tar_at_far": lambda sign: pe.metrics.tar_at_far(sign * SCORES, MATCH, 0.1),
    "choose_pair_threshold, cost": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH, p_target=0.1),
    "choose_pair_threshold": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH, far=0.1),
    "choose_pair_threshold, wrong": lambda sign: pe.choose_pair_threshold(sign * SCORES, MATCH, wrong=0.1),
}


@pytest.mark.parametrize("call", CALLS)
def test_reversed_scores_are_told_and_others_are_not(call):
    with pytest.warns(
        UserWarning, match=r"look reversed, as distances are: their AUC is 0\.\d+, below one half by more"
    ):
        CALLS[call](-1)
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


def test_scores_that_say_nothing_are_not_said_to_be_reversed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(100):
            rng = np.random.default_rng(seed)
            pe.learn_then_test(rng.normal(size=60), rng.random(60) < 0.3, np.arange(60), 0.1)
        pe.learn_then_test(np.arange(20.0), np.arange(20) < 1, np.arange(20), 0.1)
        pe.learn_then_test(np.arange(20.0), np.ones(20, bool), np.arange(20), 0.1)
