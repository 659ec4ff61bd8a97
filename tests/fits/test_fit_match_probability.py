"""Probabilities of matches, against second implementations."""

import pickle
import re

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import peaccel as pe


def pairs(n, seed=0):
    """Scores, confidences and labels: P(same) = expit(2 score + confidence - 1)."""
    rng = np.random.default_rng(seed)
    score, sure = rng.standard_normal(n), rng.standard_normal(n)
    return score, sure, rng.random(n) < special.expit(2 * score + sure - 1)


# -- the probability of a match ----------------------------------------------------------------------------------------


def test_logistic_is_the_likeliest_by_scikit_learn():
    score, sure, same = pairs(500)
    found = pe.fit_match_probability(100 * score - 7, same, sure)
    # Platt's targets are labels of both kinds, with these weights.
    target = np.where(same, (same.sum() + 1) / (same.sum() + 2), 1 / ((~same).sum() + 2))
    inputs = np.tile(np.c_[score, sure], (2, 1))
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    other.fit(inputs, np.repeat([1, 0], 500), sample_weight=np.r_[target, 1 - target])
    np.testing.assert_allclose(found.weights, other.coef_[0] * [0.01, 1], rtol=1e-5)
    np.testing.assert_allclose(found(100 * score - 7, sure), other.predict_proba(inputs[:500])[:, 1], rtol=1e-5)


def test_logistic_finds_what_pairs_were_drawn_from():
    score, sure, same = pairs(200_000, 1)
    found = pe.fit_match_probability(score, same, sure)
    np.testing.assert_allclose([found.bias, *found.weights], [-1, 2, 1], atol=0.03)
    curve = pe.reliability_curve(found(score, sure), same, bins=20)
    error = np.sqrt(curve.observed * (1 - curve.observed) / curve.count)
    assert (abs(curve.predicted - curve.observed) < 4 * error).all() and len(curve.count) == 20


def test_logistic_exists_where_a_score_tells_all_apart_and_where_inputs_say_the_same():
    score = np.r_[-2.0, -1, 1, 2]
    found = pe.fit_match_probability(score, score > 0)
    p = found(np.array([-np.inf, -1e308, -1, 1, 1e308, np.inf]))
    assert p[0] == p[1] == 0 and p[4] == p[5] == 1 and 0.1 < p[2] < 0.4 and p[3] == pytest.approx(1 - p[2])
    twice = pe.fit_match_probability(score, score > 0, 3 * score + 1, np.ones(4))
    np.testing.assert_allclose(twice(score, 3 * score + 1, 1.0), found(score), rtol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_isotonic_is_that_of_scikit_learn(ties):
    score, _, same = pairs(2000, 2)
    score = score.round(1) if ties else score
    found = pe.fit_match_probability(score, same, method="isotonic")
    other = IsotonicRegression(out_of_bounds="clip").fit(score, same)
    at = np.r_[np.linspace(-5, 5, 1001), score]
    np.testing.assert_allclose(found(at), other.predict(at), atol=1e-12)
    assert (np.diff(found.scores) > 0).all() and (np.diff(found.probabilities) >= 0).all()


def test_isotonic_of_no_order_at_all_is_one_probability():
    found = pe.fit_match_probability([1.0, 2, 3, 4], [1, 1, 0, 0], method="isotonic")
    assert found.probabilities == (0.5, 0.5) and (found([[0.0, 2.5], [9.0, -9.0]]) == 0.5).all()


def test_reliability_is_of_bins_of_as_many_pairs():
    rng = np.random.default_rng(3)
    p = rng.random(1000) ** 3
    same = rng.random(1000) < p
    curve = pe.reliability_curve(p, same, bins=10)
    for i, rows in enumerate(np.argsort(p).reshape(10, 100)):
        assert (curve.count[i], curve.observed[i]) == (100, same[rows].mean())
        assert curve.predicted[i] == pytest.approx(p[rows].mean())


def test_equal_probabilities_share_a_bin():
    curve = pe.reliability_curve(np.repeat([0.0, 0.25, 1.0], [70, 20, 10]), np.arange(100) >= 80, bins=5)
    assert curve.count.tolist() == [70, 20, 10]
    assert curve.observed.tolist() == [0, 0.5, 1] and curve.predicted.tolist() == [0, 0.25, 1]


def test_tensors_and_lists_are_taken_and_fits_are_sent():
    score, sure, same = pairs(50)
    found = pe.fit_match_probability(torch.tensor(score), torch.tensor(same), sure.tolist())
    assert found == pe.fit_match_probability(score, same, sure) == pickle.loads(pickle.dumps(found))


S, _, YES = pairs(6)
WRONG = [
    (
        lambda: pe.fit_match_probability(S, YES, method="platt"),
        "fit_match_probability: method is 'platt', expected 'log",
    ),
    (
        lambda: pe.fit_match_probability(S, YES, S, method="isotonic"),
        "fit_match_probability: confidences are given, whi",
    ),
    (
        lambda: pe.fit_match_probability(S, YES | True),
        "fit_match_probability: labels name 6 same of 6 pairs, expected s",
    ),
    (
        lambda: pe.fit_match_probability(S, YES[:3]),
        "fit_match_probability: labels has shape (3,), expected",
    ),
    (
        lambda: pe.fit_match_probability(S, 2 * YES),
        "fit_match_probability: labels has 2 in row 1, expected only 0 and 1",
    ),
    (
        lambda: pe.fit_match_probability(S[:, None], YES),
        "fit_match_probability: scores has shape (6, 1), expected",
    ),
    (
        lambda: pe.fit_match_probability(S, YES, S[:2]),
        "fit_match_probability: confidences has shape (2,), expected",
    ),
    (
        lambda: pe.fit_match_probability(S * np.nan, YES),
        "fit_match_probability: 6 of the 6 numbers of scores are NaN or infin",
    ),
    (
        lambda: pe.LogisticProbability(0.0, (1.0, 2.0))(S),
        "fit_match_probability: fitted with 1 confidences beside scores, got 0",
    ),
    (
        lambda: pe.reliability_curve([0.5, 1.5], [0, 1]),
        "reliability_curve: probabilities are 0.5 to 1.5, expected 0 to 1",
    ),
    (
        lambda: pe.reliability_curve([], []),
        "reliability_curve: probabilities has shape (0,), expected",
    ),
    (lambda: pe.reliability_curve([0.5], [1], bins=0), "reliability_curve: bins is 0, expected an integer >= 1"),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_cannot_be_decided_is_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_fitted_probability_is_printed_in_a_sentence():
    logistic = pe.LogisticProbability(-1.0, (2.5, -0.125))
    says = "the probability of a match is 1 / (1 + exp(-z)) with z = -1 +2.5 * score -0.125 * confidence 1"
    assert str(logistic) == says and "weights=" in repr(logistic)
    isotonic = pe.IsotonicProbability((0.0, 0.5, 1.0), (0.25, 0.25, 0.75))
    says = "the probability of a match rises from 0.25 at a score of 0 to 0.75 at a score of 1, by 3 points"
    assert str(isotonic) == says and "scores=" in repr(isotonic)


def test_scores_that_are_all_equal_leave_the_share_of_same_pairs():
    """The mean of six times 0.1 is not 0.1, and no slope may come of the difference."""
    scores = np.full(6, 0.1)
    assert scores.std() > 0
    fit = pe.fit_match_probability(scores, [1, 1, 1, 1, 0, 0])
    assert fit(scores) == pytest.approx([(4 * 5 / 6 + 2 * 1 / 4) / 6] * 6)


@pytest.mark.parametrize("width", [1e200, 1e-200])
def test_scores_that_cannot_be_scaled_are_refused(width):
    with pytest.raises(ValueError, match=rf"confidences span {re.escape(f'{width:g}')}, expected 0, or 1e-150 to"):
        pe.fit_match_probability([0.1, 0.2], [0, 1], [0, width])


@pytest.mark.parametrize("method", ["logistic", "isotonic"])
def test_a_probability_moves_to_another_share_of_matches(method):
    """Fitted where half match, used where 1 in 200 does: pairs above one half then match as often as said."""
    rng = np.random.default_rng(0)
    same = np.arange(8000) < 4000
    p = pe.fit_match_probability(rng.normal(size=8000) + 2 * same, same, method=method)
    used = rng.random(400_000) < 1 / 200
    scores = rng.normal(size=400_000) + 2 * used
    assert p.prior == 0.5 and p(scores).mean() > 10 * used.mean()
    found = p(scores, prior=1 / 200)
    np.testing.assert_allclose(found.mean(), used.mean(), rtol=0.2)  # 2,000 matches, and a fit to 4,000
    np.testing.assert_allclose(p(scores[:100], prior=0.5), p(scores[:100]), rtol=1e-12)
    inner = (p(scores) > 0) & (p(scores) < 1)
    ratio = p.log_likelihood_ratio(scores[inner])
    np.testing.assert_allclose(ratio, np.log(p(scores[inner]) / (1 - p(scores[inner]))), rtol=1e-9, atol=1e-9)
    if method == "logistic":  # of normals 2 apart it is 2 x - 2
        assert abs(ratio - (2 * scores[inner] - 2)).max() < 0.6
        above = found > 0.2
        np.testing.assert_allclose(found[above].mean(), used[above].mean(), atol=0.15)  # some 200 pairs
    for prior in (0, 1, -0.5, "0.5"):
        with pytest.raises(ValueError, match=r"^fit_match_probability: prior is .*, expected a number between 0 and 1"):
            p(scores, prior=prior)


def test_the_likelihood_ratio_does_not_depend_on_the_fitted_share():
    rng = np.random.default_rng(1)
    few = np.arange(40_000) < 4_000
    p = pe.fit_match_probability(rng.normal(size=40_000) + 2 * few, few)
    assert p.prior == 0.1
    x = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(p.log_likelihood_ratio(x), 2 * x - 2, atol=0.15)  # normals 2 apart
    np.testing.assert_allclose(p(x, prior=0.5), 1 / (1 + np.exp(-(2 * x - 2))), atol=0.03)
