"""Thresholds whose promises are kept by simulation, and what is returned by them."""

import math
import pickle
import re
import warnings

import faiss
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

import peaccel as pe
from peaccel.fits import learn_then_test as thresholds

# -- selective answers -------------------------------------------------------------------------------------------------


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


AXIS = np.linspace(-8, 8, 40001)


def risks(right, rounded):
    """P(wrong | confidence >= t) of a standard normal confidence, a function of t; `rounded` to so many a unit."""
    at = np.round(AXIS * rounded) / rounded if rounded else AXIS
    share = stats.norm.pdf(AXIS)
    above, wrong = (x[::-1].cumsum()[::-1] for x in (share, share * (1 - right(at))))
    return lambda t: wrong[i] / above[i] if (i := np.searchsorted(at, t)) < len(at) else 0.0


def found_and_broken(n, right, alpha, delta, runs, rounded=0):
    """The shares of draws in which a threshold is found, and in which more than alpha of what it accepts is wrong."""
    rng, risk = np.random.default_rng(n), risks(right, rounded)
    outcomes = np.zeros(2)
    for _ in range(runs):
        confidence = rng.standard_normal(n)
        confidence = np.round(confidence * rounded) / rounded if rounded else confidence
        correct = rng.random(n) < right(confidence)
        threshold = pe.learn_then_test(confidence, correct, np.arange(n), alpha, delta).threshold
        outcomes += np.isfinite(threshold), risk(threshold) > alpha
    return outcomes / runs


def allowed(delta, runs):
    """A share that a promise of delta keeps below, but for one in a thousand of such tests."""
    return delta + 3.1 * (delta * (1 - delta) / runs) ** 0.5


@pytest.mark.parametrize(("n", "share"), [(100, 0.40), (200, 0.50), (400, 0.80), (1000, 0.99)])
@pytest.mark.parametrize("runs", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_few_labels_find_a_threshold_that_keeps_its_promise(n, share, runs):
    found, broken = found_and_broken(n, lambda z: special.expit(0.6 + 2.2 * z), 0.1, 0.1, runs)
    assert broken <= allowed(0.1, runs)
    assert found >= share - 3.1 * (share * (1 - share) / runs) ** 0.5


@pytest.mark.parametrize("runs", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_of_a_small_share_too_some_hundred_labels_find_a_threshold(runs):
    """Two sequences of ranks would waste half of delta: in the first of them there is no rank at which anything passes,
    and 17 and 27 % find one."""
    for n, alpha, at_0, share in ((600, 0.01, 4.0, 0.4), (400, 0.02, 3.0, 0.45)):
        found, broken = found_and_broken(n, lambda z, at_0=at_0: special.expit(at_0 + 2.2 * z), alpha, 0.1, runs)
        assert broken <= allowed(0.1, runs)
        assert found >= share - 3.1 * (share * (1 - share) / runs) ** 0.5


ZIGZAG = ((1.2, 0.97), (0.6, 0.7), (0.0, 0.97), (-0.3, 0.5), (-9.0, 0.96))


def zigzag(z):
    """Risk rises and falls along the confidence."""
    return np.select([z > low for low, _ in ZIGZAG], [p for _, p in ZIGZAG])


POPULATIONS = {
    "nearly all right": lambda z: special.expit(2.6 + 2.2 * z),
    "surest half wrong": lambda z: np.where(z > 1.88, 0.5, special.expit(1.6 + 2.2 * z)),
    "risk rises and falls": zigzag,
    "flat, a little too much": lambda z: np.full(np.shape(z), 0.9 - 1e-9),  # any threshold found breaks the promise
}


@pytest.mark.filterwarnings("ignore:learn_then_test. confidences look reversed")  # as they are
@pytest.mark.parametrize("rounded", [0, 1, 3])
@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_shape_of_the_risk_and_no_ties_break_the_promise(population, rounded, runs):
    for n in (80, 400):
        found, broken = found_and_broken(n, POPULATIONS[population], 0.1, 0.1, runs, rounded)
        assert broken <= allowed(0.1, runs)
        assert population != "flat, a little too much" or found == broken
    if population == "surest half wrong" and not rounded:
        assert found > 0.1  # the last sequence of ranks finds what the first cannot: by one alone 0.05 are found


@pytest.mark.parametrize("runs", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_rare_right_answers_are_found_and_the_promise_is_kept(runs):
    """1.5 % of answers are right, most of the surest ones. Sequences that begin at 10 and 30 % of the sample find
    none."""
    for n, share in ((6000, 0.9), (20_000, 0.99)):
        found, broken = found_and_broken(n, lambda z: special.expit(60 * (z - 2.17)), 0.05, 0.1, runs)
        assert broken <= allowed(0.1, runs)
        assert found >= share - 3.1 * (share * (1 - share) / runs) ** 0.5


@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_classes_of_unequal_size_keep_the_promise_of_one_query_of_a_new_class(runs):
    """Classes have 1 to some 300 queries, greater ones easier. RISK is of a class of the sizes' distribution."""
    sizes = np.minimum(np.random.default_rng(4).pareto(0.8, 10**5).astype(int) + 1, 300)
    ease = np.linspace(-8, 8, 1001)
    easier = np.log(sizes).mean()
    above, hist = np.zeros((2, len(GRID))), np.bincount(sizes)
    for size in np.flatnonzero(hist):  # each class counts alike, whatever its size
        shifted = ease + 0.5 * (np.log(size) - easier)
        part = stats.norm.pdf(ease) * stats.norm.sf((GRID[:, None] - shifted) / NOISE) * hist[size] / len(sizes)
        above += [integrate.trapezoid(x, ease) for x in (part, part * special.expit(WRONG_AT_0 - 2 * shifted))]
    risk, broken = above[1] / above[0], 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        each = rng.choice(sizes, 400)
        of = np.repeat(rng.standard_normal(400) + 0.5 * (np.log(each) - easier), each)
        confidence = of + NOISE * rng.standard_normal(len(of))
        correct = rng.random(len(of)) > special.expit(WRONG_AT_0 - 2 * of)
        found = pe.learn_then_test(confidence, correct, np.repeat(np.arange(400), each), 0.1, 0.1, seed)
        broken += np.interp(found.threshold, GRID, risk, right=0) > 0.1
    assert broken / runs <= allowed(0.1, runs)


@pytest.mark.parametrize(
    ("n", "alpha", "delta"), [(60, 0.1, 0.1), (400, 0.1, 0.1), (1000, 0.02, 0.05), (20_000, 0.01, 0.1)]
)
def test_tests_are_at_ranks_at_which_one_more_wrong_answer_passes(n, alpha, delta):
    ranks = thresholds._ranks(n, alpha, delta)
    shares = [share for _, share in ranks if share]
    level = delta / len(shares)
    many = (n, alpha) in ((400, 0.1), (20_000, 0.01))
    assert sum(shares) == pytest.approx(delta) and len(shares) == (3 if many else 1)
    assert [rank for rank, _ in ranks] == sorted({rank for rank, _ in ranks}) and ranks[-1][0] == n

    def passes(k):
        return np.searchsorted(stats.binom.cdf(np.arange(k + 1), k, alpha), level, "right")

    latest = min(k for k in range(max(0, n - 2 * math.ceil(1 / alpha)), n + 1) if passes(k) == passes(n))
    for rank, _ in ranks:
        assert rank > latest or passes(rank) == passes(rank - 1) + 1
    assert [rank for rank, _ in ranks if rank >= latest] == list(range(latest, n + 1))


def test_the_binomial_distribution_is_exact():
    for n, p in ((1, 0.3), (400, 0.05), (20_000, 0.05), (0, 0.5)):
        found = np.exp(thresholds._log_binomial(n, p, thresholds._log_factorials(n)))
        np.testing.assert_allclose(found.cumsum(), stats.binom.cdf(np.arange(n + 1), n, p), 1e-9, 1e-300)


def test_the_numbers_of_a_selection_are_those_of_its_threshold():
    confidence, correct, classes = clustered(200, 1, 5)
    found = pe.learn_then_test(confidence, correct, classes, 0.15, 0.2)
    accepted = found(confidence)
    assert (found.number, found.accepted, found.wrong) == (200, accepted.sum(), (~correct[accepted]).sum())
    assert 30 < found.accepted < 150 and stats.binom.cdf(found.wrong, found.accepted, 0.15) <= 0.2
    # It lies just above the surest answer that is refused.
    assert found.threshold == np.nextafter(confidence[~accepted].max(), np.inf)
    assert found([found.threshold, np.nan, -np.inf]).tolist() == [True, False, False]
    single = pe.learn_then_test(confidence.astype(np.float32), correct, classes, 0.15, 0.2)
    assert np.float32(single.threshold) == single.threshold > confidence.astype(np.float32)[~accepted].max()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_ranking_is_accepted_where_its_scores_are(library):
    """A threshold just above a number that float32 holds is no number of float32."""
    scores = np.random.default_rng(0).normal(size=2000).round(1).astype(np.float32)
    found = pe.learn_then_test(scores.tolist(), scores > -0.2, np.arange(2000), 0.05)
    assert np.float32(found.threshold) in scores and found.threshold not in scores.tolist()
    ranking = pe.Ranking(scores[:, None], np.arange(2000)[:, None])
    ranking.scored = 0.5
    given = ranking if library == "numpy" else pe.Ranking(*map(torch.from_numpy, ranking))
    accepted = found(given)
    np.testing.assert_array_equal(np.asarray(accepted.ids)[:, 0] >= 0, found(scores))
    assert found(scores).sum() == found(scores.tolist()).sum() > 100
    assert library == "torch" or accepted.scored == 0.5
    for tensor in (torch.from_numpy(scores).bfloat16(), torch.from_numpy(scores).requires_grad_()):
        np.testing.assert_array_equal(found(tensor), found(tensor.detach().float().numpy()))
        kept = np.asarray(found.select(given, tensor).ids)[:, 0] >= 0
        np.testing.assert_array_equal(kept, found(tensor))
        pe.metrics.r_auroc(scores > 0, tensor)
        p = pe.fit_match_probability(scores, scores > 0)
        np.testing.assert_array_equal(p(tensor), p(tensor.detach().float().numpy()))


def test_one_answer_of_each_class_is_tested_and_the_seed_says_which():
    confidence, correct, classes = clustered(100, 7, 5)
    found = [pe.learn_then_test(confidence, correct, classes, 0.3, 0.2, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2] and {s.number for s in found} == {100}


def test_answers_that_are_never_wrong_are_all_accepted_and_always_wrong_ones_never():
    confidence = np.random.default_rng(0).random(400)
    right = pe.learn_then_test(confidence, np.ones(400, bool), np.arange(400), 0.05)
    assert right.wrong == 0 and right.accepted == right.number
    with pytest.warns(UserWarning, match=r"^learn_then_test: none of the 400 answers is right: expected "):
        none = pe.learn_then_test(confidence, np.zeros(400, bool), np.arange(400), 0.05)
    assert none.threshold == np.inf and none.accepted == 0 and not none(confidence).any()
    # Equal confidences are accepted together.
    alike = pe.learn_then_test(np.ones(60), np.ones(60, bool), np.arange(60), 0.05)
    assert (alike.threshold, alike.accepted) == (1, 60)


def test_answers_beyond_the_last_rank_at_which_more_wrong_ones_pass_are_tested_too():
    """Of 300 right answers 230 show that at most 1 % are wrong, and the 70 that follow harm nothing."""
    assert pe.learn_then_test(np.arange(300), np.ones(300, bool), np.arange(300), 0.01).accepted == 300
    correct = np.arange(300) != 20  # the only wrong one: those that are surer are accepted
    assert pe.learn_then_test(np.arange(300), correct, np.arange(300), 0.01).accepted == 279


@pytest.mark.parametrize(
    ("alpha", "delta", "needed"), [(0.05, 0.1, 45), (0.01, 0.1, 230), (0.014, 0.1, 164), (0.001, 0.05, 2995)]
)
def test_too_few_classes_accept_nothing_and_say_how_many_are_missing(alpha, delta, needed):
    """log(0.1) / log(0.95) = 44.9: with 44 right answers none can be told from a risk of 0.05, with 45 it can."""
    for classes in (needed - 1, needed):
        found = pe.learn_then_test(np.arange(classes), np.ones(classes, bool), np.arange(classes), alpha, delta)
        assert (found.number, found.accepted) == (classes, needed * (classes == needed))
        assert found.missing == needed - classes


@pytest.mark.filterwarnings("ignore:learn_then_test. confidences look reversed")  # as they are
def test_what_comes_after_a_failure_has_no_level_left():
    """Answers of three confidences: sure and right, less sure and all wrong, unsure and right. All of them together
    would pass (7 % are wrong, 10 % may be), but the second threshold fails, and a test after it voids the promise."""
    confidence = np.repeat([3.0, 2, 1], [400, 100, 1000])
    found = pe.learn_then_test(confidence, confidence != 2, np.arange(1500), alpha=0.1, delta=0.5)
    assert stats.binom.cdf(100, 1500, 0.1) < 0.5 / 3
    assert (found.threshold, found.accepted, found.wrong) == (np.nextafter(2, 3), 400, 0)


EIGHT = np.arange(2400) % 8


def broken_within(runs, shared):
    """Share of draws in which any of eight groups has a threshold; in each a little too much is wrong."""
    rng, any_ = np.random.default_rng(5), 0
    for _ in range(runs):
        confidence, right = rng.standard_normal(2400), rng.random(2400) < 0.9 - 1e-9
        if shared:
            found = pe.learn_then_test(confidence, right, np.arange(2400), 0.1, 0.1, within=EIGHT).values()
        else:
            parts = (np.flatnonzero(i == EIGHT) for i in range(8))
            found = (pe.learn_then_test(confidence[x], right[x], np.arange(300), 0.1, 0.1) for x in parts)
        any_ += any(math.isfinite(s.threshold) for s in found)
    return any_ / runs


@pytest.mark.filterwarnings("ignore:learn_then_test. confidences look reversed")
@pytest.mark.parametrize("runs", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_within_groups_the_promise_is_kept_in_all_of_them_at_once(runs):
    assert broken_within(runs, shared=True) <= allowed(0.1, runs)
    assert broken_within(runs, shared=False) > 2 * allowed(0.1, runs)


def test_each_group_has_the_threshold_of_its_own_answers_at_a_share_of_delta():
    rng, ease = np.random.default_rng(2), {"de": 1.0, "en": 2.0, "fr": 3.0}
    confidence, names = rng.standard_normal(4000).astype("f4"), rng.choice([*ease], 4000, p=[0.2, 0.3, 0.5])
    right = rng.random(4000) < special.expit(np.vectorize(ease.get)(names) + 2 * confidence)
    classes = np.arange(4000) // 2
    found = pe.learn_then_test(confidence, right, classes, 0.1, 0.09, 4, within=names)
    assert [*found] == [*ease]
    for name, accept in found.items():
        x = names == name
        assert accept == pe.learn_then_test(confidence[x], right[x], classes[x], 0.1, 0.03, 4)
    assert math.inf > found["de"].threshold > found["en"].threshold > found["fr"].threshold
    of_ranking = pe.learn_then_test(BEST, np.arange(60) > 0, np.arange(60), 0.2, 0.2, within=np.arange(60) % 2)
    assert {(s.score, s.dim, s.gallery_size) for s in of_ranking.values()} == {("ppk:rho=0.5", 6, 80)}


def test_a_group_of_too_few_answers_is_refused_by_name():
    n = thresholds.fewest(0.05, 0.1 / 2)
    names = np.repeat(["de", "en"], [n, 300])
    accepted = pe.learn_then_test(np.ones(n + 300), np.ones(n + 300, bool), np.arange(n + 300), 0.05, within=names)
    assert accepted["de"].threshold == 1
    for classes, got in ((np.arange(n + 299), n - 1), (np.arange(n + 299) // 2, (n - 1) // 2)):
        with pytest.raises(
            ValueError, match=rf"^learn_then_test: within: group 'de' has {got} .*expected at least {n} "
        ):
            pe.learn_then_test(np.ones(n + 299), np.ones(n + 299, bool), classes, 0.05, within=names[1:])
    with pytest.raises(ValueError, match=r"^learn_then_test: within has shape \(3,\), expected \(4,\)$"):
        pe.learn_then_test(np.ones(4), np.ones(4, bool), np.arange(4), 0.5, within=[0, 1, 1])


# -- searches without a mate -------------------------------------------------------------------------------------------


def passed(n, alpha, delta, runs, correlation=0.0, each=1, rounded=0, **settings):
    """In what share of draws more than alpha of searches (or of persons) would return something; the scores of a
    person's searches are normal with this correlation."""
    rng, above = np.random.default_rng(3), 0
    for _ in range(runs):
        person, own = rng.standard_normal(n), rng.standard_normal((n, each))
        scores = correlation**0.5 * person[:, None] + (1 - correlation) ** 0.5 * own
        scores = np.round(scores * rounded) / rounded if rounded else scores
        groups = None if settings.get("ungrouped") else np.repeat(np.arange(n), each)
        limit = pe.limit_false_matches(scores.ravel(), alpha, delta, groups, settings.get("of", "one"))
        at = (np.ceil(limit.threshold * rounded) - 0.5) / rounded if rounded else limit.threshold
        if settings.get("of") == "greatest":
            of_person = stats.norm.cdf((at - correlation**0.5 * EASE) / (1 - correlation) ** 0.5)
            inside = integrate.trapezoid(stats.norm.pdf(EASE) * of_person**each, EASE)
            above += 1 - inside > alpha
        else:
            above += stats.norm.sf(at) > alpha
    return above / runs


@pytest.mark.parametrize("runs", [400, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n", "alpha", "delta", "rounded"), [(299, 0.01, 0.05, 0), (1000, 0.05, 0.1, 0), (1000, 0.05, 0.1, 10)]
)
def test_few_searches_without_a_mate_return_anything(n, alpha, delta, rounded, runs):
    share = passed(n, alpha, delta, runs, rounded=rounded)
    assert share <= allowed(delta, runs)
    if not rounded:  # and it is no stricter than it must be: m + 1 would break the promise
        m = np.searchsorted(stats.binom.cdf(np.arange(n), n, alpha), delta, "right") - 1
        assert abs(share - stats.binom.cdf(m, n, alpha)) < 3.1 * (delta / runs) ** 0.5


def test_searches_of_one_person_are_not_independent():
    runs = 300
    assert passed(300, 0.05, 0.05, runs, 0.8, 10) <= allowed(0.05, runs)
    assert passed(300, 0.05, 0.05, runs, 0.8, 10, ungrouped=True) > 0.15
    assert passed(300, 0.05, 0.05, 100, 0.8, 10, of="greatest") <= allowed(0.05, 100)


def test_the_limit_is_just_above_the_score_after_those_that_are_allowed():
    scores = np.random.default_rng(0).permutation(1000) / 1000
    found = pe.limit_false_matches(scores, 0.02, 0.1)
    m = np.searchsorted(stats.binom.cdf(np.arange(1000), 1000, 0.02), 0.1, "right") - 1
    assert (found.number, found.allowed) == (1000, m) and found(scores).sum() == m
    assert found.threshold == np.nextafter(np.sort(scores)[::-1][m], 1)
    # Equal scores are refused together.
    ties = np.r_[np.zeros(980), np.ones(20)]
    assert not pe.limit_false_matches(ties, 0.02, 0.1)(ties).any()
    single = pe.limit_false_matches(scores.astype(np.float32), 0.02, 0.1)
    assert (scores.astype(np.float32) >= np.float32(single.threshold)).sum() == m


@pytest.mark.parametrize(("alpha", "delta", "needed"), [(0.01, 0.05, 299), (0.001, 0.05, 2995), (0.5, 0.1, 4)])
def test_too_few_searches_promise_nothing_and_say_how_many_are_missing(alpha, delta, needed):
    scores = np.arange(needed, dtype=float)
    enough = pe.limit_false_matches(scores, alpha, delta)
    assert (enough.threshold, enough.allowed, enough.missing) == (np.nextafter(needed - 1, needed), 0, 0)
    few = pe.limit_false_matches(scores[:-3], alpha, delta)
    assert (few.threshold, few.missing) == (np.inf, 3) and "takes 3 more searches" in str(few)


def test_of_a_person_one_search_or_the_greatest_score_counts():
    groups = np.repeat([5, 2, 9], [3, 1, 2])
    scores = np.array([1.0, 2, 3, 10, 5, 4])
    found = {pe.limit_false_matches(scores, 0.5, 0.2, groups, seed=seed).threshold for seed in range(20)}
    assert found == {np.nextafter(10, 11)}
    greatest = [pe.limit_false_matches(np.minimum(scores, x), 0.5, 0.2, groups, "greatest") for x in (9, 3)]
    assert [x.number for x in greatest] == [3, 3] and greatest[1].threshold == np.nextafter(3, 4)
    drawn = {pe.limit_false_matches(-scores, 0.5, 0.2, groups, seed=seed).threshold for seed in range(30)}
    assert drawn == {np.nextafter(-x, 0) for x in (1, 2, 3)}


# -- what is returned --------------------------------------------------------------------------------------------------


SELECTION = pe.Selection(0.5, 0.05, 0.1, 400, 288, 8)
LIMIT = pe.FalseMatchLimit(0.5, 0.01, 0.05, 1000, 4)
SCORES, IDS = (
    np.array([[0.9, 0.5, 0.4], [0.4, 0.3, -np.inf], [np.nan, np.nan, np.nan]]),
    np.array([[3, 1, 2], [0, 1, -1], [0, 1, 2]]),
)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
@pytest.mark.parametrize("accept", [SELECTION, LIMIT])
def test_refused_answers_are_taken_out_of_a_ranking(accept, kind):
    k = 1 if accept is SELECTION else 3
    found = accept(pe.Ranking(kind(SCORES[:, :k]), kind(IDS[:, :k])))
    assert type(found) is pe.Ranking and type(found.ids) is type(kind(IDS))
    assert found.ids.tolist() == [row[:k] for row in ([3, 1, -1], [-1, -1, -1], [-1, -1, -1])]
    assert found.scores.tolist() == [row[:k] for row in ([0.9, 0.5, -np.inf], [-np.inf] * 3, [-np.inf] * 3)]
    by_query = accept.select(pe.Ranking(kind(SCORES), kind(IDS)), confidence=[0.1, 0.7, np.nan])
    assert by_query.ids.tolist() == [[-1] * 3, [0, 1, -1], [-1] * 3]
    assert by_query.ids.dtype == kind(IDS).dtype and by_query.scores.dtype == kind(SCORES).dtype


def searched(score, k=1, **sides):
    return pe.search(sides.get("queries", ITEMS[:60]), ITEMS, k, score)


ITEMS = pe.Normal(np.random.default_rng(0).normal(size=(80, 6)), np.random.default_rng(1).gamma(2, size=80))
BEST = searched("ppk:rho=0.5")
FITTED = {
    "learn_then_test": pe.learn_then_test(BEST, np.arange(60) > 0, np.arange(60), 0.1),
    "limit_false_matches": pe.limit_false_matches(BEST, 0.1),
}


@pytest.mark.parametrize("accept", FITTED.values(), ids=FITTED)
def test_a_threshold_found_on_a_ranking_belongs_to_its_score(accept):
    assert (accept.score, accept.of, accept.normalisation) == ("ppk:rho=0.5", "answers", "")
    assert accept(BEST).ids.shape == (60, 1)  # and of a ranking that does not know its score
    assert accept(pe.Ranking(*BEST)).ids.tolist() == accept(BEST).ids.tolist()
    norms = pe.pairwise(ITEMS[:60], ITEMS, "ppk:rho=0.5"), pe.pairwise(ITEMS, ITEMS, "ppk:rho=0.5")
    normed = pe.normalise_scores(BEST, queries=norms[0], gallery=norms[1])
    for ranking, got in (
        (searched("cosine"), "cosine"),
        (searched("ppk:rho=0.6"), "ppk:rho=0.6"),
        (normed, "ppk:rho=0.5 with S-norm"),
    ):
        with pytest.raises(
            ValueError, match=f"^accept: the threshold is of ppk:rho=0.5, and scores are of {got}; choo"
        ):
            accept(ranking)
    of_normed = pe.learn_then_test(normed, np.arange(60) > 0, np.arange(60), 0.1)
    assert of_normed(normed).ids.shape == (60, 1) and of_normed.normalisation == "S-norm"


def test_a_selection_refuses_lists_and_a_threshold_of_pairs_refuses_rankings():
    with pytest.raises(
        ValueError, match=r"^accept: the threshold is of the best answer of each query, expected k = 1, g"
    ):
        FITTED["learn_then_test"](searched("ppk:rho=0.5", 2))
    assert FITTED["limit_false_matches"](searched("ppk:rho=0.5", 2)).ids.shape == (60, 2)
    with pytest.raises(
        ValueError, match=r"^learn_then_test: confidence is a ranking of 2, expected one of the best answ"
    ):
        pe.learn_then_test(searched("cosine", 2), np.arange(60) > 0, np.arange(60), 0.1)
    scores = np.linspace(0, 1, 400)
    for promise in ({"wrong": 0.1}, {"far": 0.1}):
        of_pairs = pe.choose_pair_threshold(scores, scores > 0.3, **promise).accept
        assert of_pairs(scores).any()
        with pytest.raises(
            ValueError, match=r"^accept: the threshold is of scored pairs, and a search takes the best of"
        ):
            of_pairs(BEST)


def test_rankings_know_their_score_on_every_way():
    score = pe.scores.llr(prior_var=np.full(6, 2.0))
    accept = pe.learn_then_test(searched(score), np.arange(60) > 0, np.arange(60), 0.1)
    queries, flat = ITEMS[:60], faiss.IndexFlatIP(6)
    flat.add(np.float32(ITEMS.mu))
    rankings = [
        pe.rerank(queries, ITEMS, np.tile(np.arange(4), (60, 1)), 1, score),
        pe.search(queries, [ITEMS[:50], ITEMS[50:]], 1, score),
        pe.merge([pe.search(queries, x, 1, score) for x in (ITEMS[:50], ITEMS[50:])], 1, [0, 50]),
        accept(searched(score)),
        pe.FaissReranker(flat, ITEMS, score=score).search(queries, 1),
        pe.search(queries, pe.prepare(ITEMS, score), 1),
    ]
    for ranking in rankings:
        assert accept(ranking).ids.shape == (60, 1) and ranking.score == score
        assert (ranking.dim, ranking.gallery_size) == (accept.dim, accept.gallery_size) == (6, 80)
    other = pe.scores.llr(prior_var=np.full(6, 2.5))
    assert str(other.label) == str(score.label) and other.fingerprint != score.fingerprint
    with pytest.raises(
        ValueError, match=r"^accept: the threshold is of llr:prior_var=\[\w{8}\],prior_mean=0, and scores a"
    ):
        pe.FaissReranker(flat, ITEMS, score=other).search(queries, 1, accept=accept)
    assert score.fingerprint == pe.scores.llr(prior_var=torch.full((6,), 2.0)).fingerprint
    unlike = pe.merge([searched(score), searched(other)], 1, [0, 80])
    assert (unlike.score, unlike.dim, unlike.gallery_size) == (None, 0, 0)


@pytest.mark.parametrize("accept", FITTED.values(), ids=FITTED)
def test_a_threshold_found_on_a_ranking_refuses_items_of_another_dimension(accept):
    few = pe.search(ITEMS[:60].truncate(4), ITEMS.truncate(4), 1, "ppk:rho=0.5")
    norms = (pe.pairwise(*x, "ppk:rho=0.5") for x in ((ITEMS[:60], ITEMS), (ITEMS, ITEMS)))
    normed = pe.normalise_scores(few, queries=next(norms), gallery=next(norms))
    for ranking in (few, pe.merge([few], 1), normed):
        with pytest.raises(ValueError, match=r"^accept: the threshold is of items of 6 dimensions, got 4$"):
            accept(ranking)
    accept(pe.merge([few, BEST], 1))  # of which nothing is known


@pytest.mark.parametrize(
    ("accept", "says"),
    [
        (FITTED["learn_then_test"], "it may accept more wrong answers: choose a threshold for this gallery"),
        (FITTED["limit_false_matches"], "at most 10 % of searches without a mate, times the growth, return anything"),
    ],
    ids=FITTED,
)
def test_in_a_larger_gallery_the_caller_is_warned_once(accept, says):
    def found(size):
        return pe.search(ITEMS[:60], pe.concat([ITEMS, ITEMS[: size - 80]]), 1, "ppk:rho=0.5")

    accept(found(100))
    accept(searched("ppk:rho=0.5"))
    with pytest.warns(UserWarning, match="^accept: the gallery has more than 1.25 times the 80 items") as warned:
        accept(found(101))
    assert warned[0].filename == __file__ and says in str(warned[0].message)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for size in (110, 120):
            accept(found(size))
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            SELECTION,
            "accept answers from a confidence of 0.5 on: at most 5 % of them are wrong, with a certainty of 90 % "
            "(288 of 400 labelled answers, 8 of them wrong)",
        ),
        (
            pe.Selection(np.inf, 0.05, 0.1, 40, 0, 0, 5),
            "accept no answers: of 40 labelled ones none could be shown to be such that at most 5 % of them are wrong, "
            "with a certainty of 90 %; about 5 more may do, if they are like these",
        ),
        (
            LIMIT,
            "return matches from a score of 0.5 on: at most 1 % of searches without a mate return anything, with a "
            "certainty of 95 % (1000 searches)",
        ),
        (
            pe.FalseMatchLimit(np.inf, 0.01, 0.05, 100, 0),
            "return no matches: to promise that at most 1 % of searches without a mate return anything, with a "
            "certainty of 95 %, takes 199 more searches than 100",
        ),
    ],
)
def test_a_threshold_says_what_it_promises(record, says):
    assert str(record) == says and "threshold=" in repr(record)
    assert pickle.loads(pickle.dumps(record)) == record


def test_tensors_and_lists_are_taken():
    score, sure, _ = np.random.default_rng(0).random((3, 50))
    right = sure < 0.9
    found = pe.learn_then_test(torch.tensor(score), right.tolist(), np.arange(50), 0.5)
    assert found == pe.learn_then_test(score, torch.tensor(right), torch.arange(50), 0.5)
    assert pe.limit_false_matches(torch.tensor(score), 0.5) == pe.limit_false_matches(score.tolist(), 0.5)


S, YES = np.arange(6.0), np.arange(6) > 2
WRONG = [
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
        "learn_then_test: classes has shape (5,), expected (6,)",
    ),
    (
        lambda: pe.learn_then_test(S, YES * 0.5, np.arange(6), 0.1),
        "learn_then_test: correct has 0.5 in row 3, expected only 0 and 1",
    ),
    (
        lambda: pe.learn_then_test(S * np.inf, YES, np.arange(6), 0.1),
        "learn_then_test: 1 of the 6 numbers of confidence are NaN or -inf, first in row 0; no answer",
    ),
    (lambda: pe.limit_false_matches(S, 2.0), "limit_false_matches: alpha is 2.0, expected a number between 0 and 1"),
    (lambda: pe.limit_false_matches([], 0.1), "limit_false_matches: scores has shape (0,), expected"),
    (
        lambda: pe.limit_false_matches(S, 0.1, groups=np.arange(5)),
        "limit_false_matches: groups has shape (5,), expected (6,)",
    ),
    (
        lambda: pe.limit_false_matches(S, 0.1, groups=S, each="all"),
        "limit_false_matches: each is 'all', expected 'one' or 'greatest'",
    ),
    (
        lambda: SELECTION.select(pe.Ranking(SCORES, IDS), [0.1, 0.2]),
        "select: confidence has shape (2,), expected (3,)",
    ),
]


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_cannot_be_decided_is_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
