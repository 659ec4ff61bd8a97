"""Probabilities of matches against second implementations, and thresholds whose promise is kept by simulation."""

import pickle
import re

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import peaccel as pe
from peaccel.measures import deciding


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
    selection = pe.learn_then_test(torch.tensor(score), same.tolist(), np.arange(50), 0.5)
    assert selection == pickle.loads(pickle.dumps(selection))


# -- selective retrieval -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "p"), [(1, 0, 0.3), (20, 20, 0.3), (400, 11, 0.05), (20_000, 900, 0.05), (0, 0, 0.5)]
)
def test_the_binomial_tail_is_exact(n, k, p):
    assert deciding._binomial_tail(n, k, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-10)


WRONG_AT_0, NOISE = -2.2, 0.5  # the logit of the error of a typical class; how far confidence is from its ease


def clustered(classes, each, seed):
    """Queries of classes that differ in how hard they are: all of a class are wrong with one probability,
    expit(WRONG_AT_0 - 2 ease), and their confidence is its ease and noise of their own."""
    rng = np.random.default_rng(seed)
    ease = np.repeat(rng.standard_normal(classes), each)
    confidence = ease + NOISE * rng.standard_normal(len(ease))
    return confidence, rng.random(len(ease)) > special.expit(WRONG_AT_0 - 2 * ease), np.repeat(np.arange(classes), each)


GRID = np.linspace(-5, 4, 200)
# P(wrong | confidence >= threshold) of a query of a new class, and P(confidence >= threshold), by the trapezoidal rule
# over its ease, which for functions that fall off on both sides is exact to rounding.
EASE = np.linspace(-8, 8, 1001)
ABOVE = stats.norm.pdf(EASE) * stats.norm.sf((GRID[:, None] - EASE) / NOISE)
SHARE = integrate.trapezoid(ABOVE, EASE)
RISK = integrate.trapezoid(ABOVE * special.expit(WRONG_AT_0 - 2 * EASE), EASE) / SHARE


def broken(alpha, delta, runs, classes, each, grouped=True):
    """In what share of the runs the risk is above alpha, and the mean share of queries that are accepted."""
    above, accepted = 0, 0.0
    for seed in range(runs):
        confidence, correct, names = clustered(classes, each, seed)
        groups = names if grouped else np.arange(len(names))
        threshold = pe.learn_then_test(confidence, correct, groups, alpha, delta, seed).threshold
        above += np.interp(threshold, GRID, RISK, right=0) > alpha
        accepted += np.interp(threshold, GRID, SHARE, right=0)
    return above / runs, accepted / runs


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.05, 0.2)])
def test_the_promise_is_kept_over_draws_of_classes(alpha, delta):
    above, accepted = broken(alpha, delta, 400, 1000, 5)
    assert above <= delta + 3 * (delta * (1 - delta) / 400) ** 0.5
    # And not by accepting little: of what could be accepted were the risk known, a good part.
    assert accepted > 0.65 * np.interp(-alpha, -RISK, SHARE)


def test_as_if_queries_of_a_class_were_independent_it_is_broken_far_more_often():
    above, _ = broken(0.1, 0.05, 200, 100, 60, grouped=False)
    assert above > 3 * 0.05
    above, _ = broken(0.1, 0.05, 200, 100, 60)
    assert above <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_the_numbers_of_a_selection_are_those_of_its_threshold():
    confidence, correct, classes = clustered(200, 1, 5)
    found = pe.learn_then_test(confidence, correct, classes, 0.15, 0.2, seed=3)
    assert found.number == 150 and 30 < found.accepted < 150
    assert stats.binom.cdf(found.wrong, found.accepted, 0.15) <= 0.2
    # One query a class: the tested ones are among all, which are few more.
    accepted = found(confidence)
    assert found.accepted <= accepted.sum() <= found.accepted + 50
    assert found.wrong <= (~correct[accepted]).sum() <= found.wrong + 50
    assert found([found.threshold, np.nan, -np.inf]).tolist() == [True, False, False]
    assert pe.learn_then_test(confidence, correct, classes, 0.15, 0.2, seed=3) == found


def test_answers_that_are_never_wrong_are_all_accepted_and_always_wrong_ones_never():
    confidence = np.random.default_rng(0).random(400)
    right = pe.learn_then_test(confidence, np.ones(400, bool), np.arange(400), 0.05)
    assert right.wrong == 0 and right.accepted >= 0.95 * right.number
    none = pe.learn_then_test(confidence, np.zeros(400, bool), np.arange(400), 0.05)
    assert none.threshold == np.inf and none.accepted == 0 and not none(confidence).any()


def test_too_few_classes_accept_nothing():
    """log(0.1) / log(0.95) = 44.9: with 44 right answers none can be told from a risk of 0.05, with 45 it can."""
    for classes, accepted in ((58, 0), (60, 45)):
        found = pe.learn_then_test(np.ones(classes), np.ones(classes, bool), np.arange(classes), 0.05, 0.1)
        assert (found.number, found.accepted) == (classes - classes // 4, accepted)


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_after_the_first_failure_is_not_looked_at(seed):
    """Answers of three confidences: sure and right, less sure and all wrong, unsure and right. All of them together
    would pass (4 % are wrong, 10 % may be), but the second threshold fails, and a test after it voids the promise."""
    confidence = np.repeat([3.0, 2, 1], [400, 60, 1040])
    found = pe.learn_then_test(confidence, confidence != 2, np.arange(1500), alpha=0.05, delta=0.5, seed=seed)
    assert stats.binom.cdf(45, 1125, 0.05) < 0.5
    assert (found.threshold, found.wrong) == (3, 0) and 280 < found.accepted < 320


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
        "fit_match_probability: labels have shape (3,) and dtype bool, expec",
    ),
    (
        lambda: pe.fit_match_probability(S, 2 * YES),
        "fit_match_probability: labels have shape (6,) and dtype int64, exp",
    ),
    (
        lambda: pe.fit_match_probability(S[:, None], YES),
        "fit_match_probability: scores have shape (6, 1) and dtype floa",
    ),
    (
        lambda: pe.fit_match_probability(S, YES, S[:2]),
        "fit_match_probability: confidences have shape (2,) and dtype fl",
    ),
    (lambda: pe.fit_match_probability(S * np.nan, YES), "fit_match_probability: scores are not finite in place 0"),
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
        "reliability_curve: probabilities have shape (0,) and dtype float64, expected",
    ),
    (lambda: pe.reliability_curve([0.5], [1], bins=0), "reliability_curve: bins is 0, expected an integer >= 1"),
    (
        lambda: pe.learn_then_test(S, YES, np.arange(6), 0),
        "learn_then_test: alpha is 0, expected a number between 0 an",
    ),
    (
        lambda: pe.learn_then_test(S, YES, np.arange(6), 0.1, 1.0),
        "learn_then_test: delta is 1.0, expected a number betw",
    ),
    (
        lambda: pe.learn_then_test(S, YES, np.zeros(6, int), 0.1),
        "learn_then_test: classes name 1 class, expected at lea",
    ),
    (
        lambda: pe.learn_then_test(S, YES, np.arange(5), 0.1),
        "learn_then_test: classes have shape (5,), expected (6,) lik",
    ),
    (
        lambda: pe.learn_then_test(S, YES * 0.5, np.arange(6), 0.1),
        "learn_then_test: correct have shape (6,) and dtype fl",
    ),
    (
        lambda: pe.learn_then_test(S / 0, YES, np.arange(6), 0.1),
        "learn_then_test: confidence are not finite in place 0",
    ),
]


LABELLED = {
    "fit_prior": lambda labels: pe.fit_prior(pe.Point(np.eye(6)), labels),
    "learn_then_test": lambda labels: pe.learn_then_test(S, YES, labels, 0.1),
    "choose_score": lambda labels: pe.choose_score(pe.Point(np.eye(6)), labels),
    "nmi": lambda labels: pe.metrics.nmi(np.eye(6), labels),
    "truncated_rows": lambda labels: pe.metrics.truncated_rows(labels, 6),
}


@pytest.mark.parametrize("missing", [float("nan"), None])
@pytest.mark.parametrize("name", LABELLED)
def test_items_of_unknown_classes_are_no_class(name, missing):
    for known in ([0.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"]):
        labels = np.array([*known, missing, missing], dtype=None if known[0] == 0 and missing else object)
        says = rf"\w+ hold {missing} in row 4, expected the class of each item"
        if name == "choose_score" and missing is None:  # its labels are read as those of metrics
            says = "labels holds None, expected a number or a word for each item"
        with pytest.raises(ValueError, match=rf"^{name}: {says}$"):
            LABELLED[name](labels)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_cannot_be_decided_is_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
