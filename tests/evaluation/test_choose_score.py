"""`pe.choose_score`, the intervals that hold at once, and `peaccel choose-score`."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from command import run

import peaccel as pe
from peaccel import io, metrics
from peaccel.evaluation import choose_score as choosing
from peaccel.evaluation import mean_interval, simultaneous_intervals
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pages import choice
from peaccel.scores import Fitted

CLASSES, EACH, DIM = 60, 4, 24


def items(seed=0):
    """Items with very different variances per dimension, which are given five times too large."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), EACH)
    var = np.exp(rng.normal(0.5, 1.5, (len(labels), DIM)))
    mu = rng.normal(size=(CLASSES, DIM))[labels] + rng.normal(size=var.shape) * var**0.5
    return pe.Normal(mu.astype("f4"), (5 * var).astype("f4")), labels


def first_is_right(d, labels, score):
    scores = np.array(pe.pairwise(d, d, score), np.float64)
    np.fill_diagonal(scores, -np.inf)
    return labels[scores.argmax(1)] == labels


def test_numbers_are_those_of_a_loop_over_items_that_nothing_was_fitted_to():
    d, labels = items()
    found = pe.choose_score(d, labels, seed=3)
    assert (found.judged, found.fitted, found.classes) == (120, 120, 30)
    order = np.random.default_rng(3).permutation(CLASSES)
    judged = np.isin(labels, order[1::2])
    half, of_half = d[judged], labels[judged]
    other, of_other = d[~judged], labels[~judged]
    first, second = np.triu_indices(120, 1)
    pairs, same = np.stack([first, second], 1), of_other[first] == of_other[second]
    calibration, prior = pe.calibrate_variance(other, pairs, same), pe.fit_prior(other, of_other)
    with_prior = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    cosine = first_is_right(half, of_half, "cosine")
    flat = pe.Normal(half.mu, np.tile(half.var.mean(0), (120, 1)))
    for score, form, shown in (("mls", "raw", half), ("mls", "calibrated", calibration(half)), ("cosine", "raw", half)):
        result = next(s for s in found.scores if (s.score, s.form) == (score, form))
        right = first_is_right(shown, of_half, score)
        assert result.recall_at_1.value == pytest.approx(right.mean())
        assert result.gain.value == pytest.approx(right.mean() - cosine.mean(), abs=1e-12)
    llr = next(s for s in found.scores if s.score == "llr")
    assert llr.recall_at_1.value == pytest.approx(first_is_right(calibration(half), of_half, with_prior).mean())
    mls = next(s for s in found.scores if s.name == "mls, raw")
    right = first_is_right(half, of_half, "mls").mean() - first_is_right(flat, of_half, "mls").mean()
    assert mls.worth.value == pytest.approx(right, abs=1e-12)
    ids = pe.search(half, half, 120, "mls")[1]
    assert mls.map_at_r.value == pytest.approx(metrics.map_at_r(ids, of_half))
    upper, lower = np.triu_indices(120, 1)
    every = np.array(pe.pairwise(half, half, "mls"))
    assert mls.roc_auc == pytest.approx(
        metrics.roc_auc(every[upper, lower], of_half[upper] == of_half[lower]), abs=0.05
    )


def test_scores_are_ranked_and_llr_has_no_form_without_a_prior():
    found = pe.choose_score(*items())
    keys = [(s.recall_at_1.value, s.map_at_r.value) for s in found.scores]
    assert keys == sorted(keys, reverse=True)
    forms = [(s.score, s.form) for s in found.scores]
    assert ("llr", "raw") not in forms and ("llr", "calibrated") in forms and ("cosine", "calibrated") not in forms
    assert not [s for s in found.scores if s.score == "sampled_cosine"] and len(set(forms)) == len(forms)


def test_what_the_uncertainty_is_worth():
    d, labels = items()
    found = pe.choose_score(d, labels)
    assert found.best.score == "llr" and found.best.gain.low > 0 and found.best.worth.low > 0
    assert found.sentence() == str(found).splitlines()[0]
    assert re.match(
        r"Use llr, calibrated: Recall@1 is \S+ \[\S+, \S+\] points above that of cosine, with \d+ scores tried, and "
        r"\S+ \[\S+, \S+\] points above its own with equal uncertainties: the uncertainty is worth something here\. "
        r"As a confidence, ",
        found.sentence(),
    )
    shuffled = pe.Normal(d.mu, np.random.default_rng(1).permutation(d.var))
    assert "is worth something" not in pe.choose_score(shuffled, labels).sentence()


def test_equal_uncertainties_are_searched_once_for_each_ranking(monkeypatch):
    """Of diagonal normals most scores then rank by one weighted distance: each by its own says the same."""
    d, labels = items()
    made, search = [], choosing.answered

    def spy(owner, queries, gallery, truth, score, asked, **more):
        if not more.get("whole", True):
            made.append((score.name, queries.common_parameter() is not None))
        return search(owner, queries, gallery, truth, score, asked, **more)

    monkeypatch.setattr(choosing, "answered", spy)
    found = pe.choose_score(d, labels)
    once = ["neg_mahalanobis", "ppk", "inclusion", "neg_kl"]
    assert "neg_csd" not in {name for name, _ in made}  # another name of neg_expected_sq_l2
    csd, expected = ([s for s in found.scores if s.score == name] for name in ("neg_csd", "neg_expected_sq_l2"))
    assert [replace(s, score="neg_expected_sq_l2") for s in csd] == expected
    assert made.count(("mls", True)) == 2 and not {*once} & {name for name, _ in made} and all(one for _, one in made)
    order = np.random.default_rng(0).permutation(CLASSES)
    judged = np.isin(labels, order[1::2])
    half, of_half = d[judged], labels[judged]
    flat = pe.Normal(half.mu, np.tile(half.var.mean(0), (120, 1)))
    for name in ("mls", *once):
        result = next(s for s in found.scores if s.name == f"{name}, raw")
        right = first_is_right(half, of_half, name).mean() - first_is_right(flat, of_half, name).mean()
        assert result.worth.value == pytest.approx(right, abs=1e-12), name


def test_every_best_score_and_the_learned_confidence_are_held_against_that_of_cosine():
    """Errors of answers by cosine come of the variances, which `llr` and the learned confidence know."""
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(120), 4)
    sigma = rng.choice([0.3, 3.0], (len(labels), 1))
    mu = rng.normal(size=(120, 16))[labels] + sigma * rng.normal(size=(len(labels), 16))
    d = pe.Normal(mu, sigma**2)
    found = pe.choose_score(d, labels, seed=3)
    judged = np.isin(labels, np.random.default_rng(3).permutation(120)[1::2])
    half, of_half = d[judged], labels[judged]
    by_form = {s.name: s for s in found.scores}
    cosine, right = by_form["cosine, raw"], first_is_right(half, of_half, "cosine")
    for name in ("cosine", "mls", "neg_w2"):
        scores = np.array(pe.pairwise(half, half, name), np.float64)
        np.fill_diagonal(scores, -np.inf)
        auroc = metrics.r_auroc(of_half[scores.argmax(1)] == of_half, scores.max(1))
        shown = by_form[f"{name}, raw"]
        assert shown.best_auroc.value == pytest.approx(auroc)
        assert shown.best_auroc_gain.value == pytest.approx(auroc - cosine.best_auroc.value, abs=1e-12)
    learned = metrics.r_auroc(right, pe.confidence(half))
    assert found.learned_auroc.value == pytest.approx(learned)
    assert found.learned_auroc_gain.value == pytest.approx(learned - cosine.best_auroc.value)
    assert (cosine.best_auroc_gain.low, cosine.best_auroc_gain.high) == (0, 0)
    # All gains are held at once, so that an interval is wider than that of one pair of scores alone.
    alone = {s.score: s for s in pe.evaluate(half, None, of_half, ("cosine", "neg_w2"), seed=3).scores}["neg_w2"]
    together, one = by_form["neg_w2, raw"].best_auroc_gain, alone.best_auroc_gain
    assert together.value == pytest.approx(one.value) and together.high - together.low > 1.1 * (one.high - one.low)


def test_the_sentence_says_what_is_worth_having_as_a_confidence():
    def interval(value, low, high):
        return pe.evaluation.Interval(value, low, high)

    found = pe.choose_score(*items(), seed=3)
    cosine = next(s for s in found.scores if s.score == "cosine")
    other, third = (s for s in found.scores if s.name in ("mls, raw", "neg_w2, raw"))
    flat, better, more = interval(0.0, 0.0, 0.0), interval(0.1, 0.05, 0.15), interval(0.2, 0.1, 0.3)
    worse, unclear = interval(-0.1, -0.15, -0.05), interval(0.1, -0.05, 0.25)
    for second, last, learned, expected in (
        (better, more, worse, f"; that by {third.name}, in its own answers, is better by 20.0 [10.0, 30.0] points; the "
         "learned confidence is worse by 10.0 [5.0, 15.0] points."),
        (worse, unclear, more, "; that of none of the 2 others is distinguishably better; the learned confidence is "
         "better by 20.0 [10.0, 30.0] points."),
        (flat, flat, unclear, "; the learned confidence is not distinguishably better (10.0 [-5.0, 25.0] points)."),
        (flat, flat, None, "; that of none of the 2 others is distinguishably better."),
    ):  # fmt: skip
        shown = (
            replace(cosine, best_auroc=interval(0.75, 0.7, 0.8), best_auroc_gain=flat),
            replace(other, best_auroc_gain=second),
            replace(third, best_auroc_gain=last),
        )
        said = replace(found, scores=shown, learned_auroc=learned, learned_auroc_gain=learned).sentence()
        assert "As a confidence, the best score by cosine has an AUROC of 75.0 [70.0, 80.0] %; " in said
        assert said.endswith(expected)


def test_a_gain_that_the_prior_alone_makes_is_not_put_down_to_the_uncertainty():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), EACH)
    mu = 20 + rng.normal(size=(100, 6))[labels] + 0.4 * rng.normal(size=(400, 6))  # far from the origin
    found = pe.choose_score(pe.Normal(mu, np.exp(rng.normal(size=400))), labels)
    assert found.best.score != "cosine" and found.best.gain.low > 0
    assert "nothing shows that the uncertainty is worth anything here." in found.sentence()


@pytest.mark.parametrize("kind", ["VonMisesFisher", "Scaled", "Point", "isotropic", "NonIsotropicVonMisesFisher"])
def test_other_kinds(kind):
    d, labels = items()
    unit = d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True)
    sphere = {"VonMisesFisher": pe.VonMisesFisher, "Scaled": pe.Scaled}
    other = {"Point": pe.Point(d.mu), "isotropic": pe.Normal(d.mu, d.var.mean(1))}
    other["NonIsotropicVonMisesFisher"] = pe.NonIsotropicVonMisesFisher(unit, 1 / d.var)
    found = pe.choose_score(sphere[kind](unit, 1 / d.var.mean(1)) if kind in sphere else other[kind], labels)
    names = {s.name for s in found.scores}
    expected = {
        "VonMisesFisher": {"mls, raw", "mls, calibrated", "llr, raw"},
        "Scaled": {"scale_cosine, raw", "scale_cosine, calibrated"},
        "Point": {"neg_sq_l2, raw", "norm_cosine, calibrated"},
        "isotropic": {"hib, raw", "llr, calibrated", "mls, raw"},
        "NonIsotropicVonMisesFisher": {"cosine, raw", "neg_sq_l2, raw"},
    }
    assert expected[kind] <= names
    without = kind in ("Point", "NonIsotropicVonMisesFisher")
    assert ("has no uncertainty that a score could use." in found.sentence()) == without
    assert all(s.worth is None for s in found.scores) == without


def test_draws_are_asked_for_and_repeat():
    d, labels = items()
    found = pe.choose_score(d, labels, draws=True, seed=2)
    assert {"sampled_cosine", "neg_sampled_l2"} <= {s.score for s in found.scores}
    assert found == pe.choose_score(d, labels, draws=True, seed=2)


def test_one_seed_decides_all_that_is_drawn(monkeypatch):
    """The sample, the halves, the pairs of both, the intervals, and the draws of scores."""
    found, d, labels = {}, *items()

    def spied(name, seed_of):
        real = getattr(choosing, name)

        def spy(*given, **named):
            found.setdefault(name, []).append(seed_of(given))
            return real(*given, **named)

        monkeypatch.setattr(choosing, name, spy)

    for name in ("_sampled", "_second_half", "fit", "_forms", "verification_pairs", "_compared"):
        spied(name, lambda given: getattr(given[-1], "seed", given[-1]))
    spied("answered", lambda given: given[4].params.get("seed", 7))  # closed forms have none
    pe.choose_score(d, labels, draws=True, items=100, seed=7)
    assert {seed for seeds in found.values() for seed in seeds} == {7}
    assert len(found) == 7 and len(found["verification_pairs"]) == 2


def test_words_singletons_and_tensors():
    torch = pytest.importorskip("torch")
    d, labels = items()
    more, words = pe.concat([d, d[:3]]), [*(f"c{i}" for i in labels), "x", "y", "z"]
    found = pe.choose_score(more, words)
    assert found.judged + found.fitted == len(words) and found.classes in (31, 32)
    tensors = pe.Normal(torch.tensor(more.mu, requires_grad=True), torch.tensor(more.var))
    assert pe.choose_score(tensors, words).best == found.best


def test_means_that_say_nothing_and_equal_uncertainties():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 5)
    noise = pe.choose_score(pe.Normal(rng.normal(size=(200, 8)), np.exp(rng.normal(size=200))), labels)
    assert noise.best.score == "cosine" and "is distinguishably better; so nothing shows" in noise.sentence()
    d, labels = items()
    equal = pe.choose_score(pe.Normal(d.mu, np.ones_like(d.var)), labels)
    assert {(s.worth.value, s.worth.low, s.worth.high) for s in equal.scores if s.worth} == {(0, 0, 0)}
    assert "worth something" not in equal.sentence()


def test_intervals_that_hold_all_means_at_once(monkeypatch):
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 400)
    rng = np.random.default_rng(0)
    at_once, each, widths = [], [], []
    for seed in range(60):
        classes = np.repeat(np.arange(60), 3)
        values = rng.normal(size=(60, 12))[classes] + 0.1 * rng.normal(size=(180, 12))
        found = simultaneous_intervals(values, classes, seed=seed)
        alone = [mean_interval(column, classes, seed=seed) for column in values.T]
        at_once.append(all(x.low <= 0 <= x.high for x in found))
        each.append(all(x.low <= 0 <= x.high for x in alone))
        widths.append(np.mean([x.high - x.low for x in found]) / np.mean([x.high - x.low for x in alone]))
    assert np.mean(at_once) > 0.86 and np.mean(each) < 0.75  # of 0.95, and of 0.95^12 = 0.54
    assert 1.3 < np.mean(widths) < 1.6  # 2.86 / 1.96, the quantile of the largest of twelve
    same = simultaneous_intervals(np.repeat(values[:, :1], 12, 1), classes)
    assert same[0].high - same[0].low == pytest.approx(alone[0].high - alone[0].low, rel=0.1)


def test_intervals_of_nothing_of_one_class_and_of_constants():
    for found in (simultaneous_intervals(np.full((3, 2), np.nan), [0, 1, 2]), [mean_interval([np.nan], [0])]):
        assert all(np.isnan([x.value, x.low, x.high]).all() for x in found)
    one = [*simultaneous_intervals([[0.0], [1.0]], [7, 7]), mean_interval([0.0, 1.0], [7, 7])]
    assert [(x.value, np.isnan(x.low), np.isnan(x.high), str(x)) for x in one] == [(0.5, True, True, "50.0 [-, -]")] * 2
    constant = simultaneous_intervals([[1.0, 0.0], [1.0, 0.0], [np.nan, 5.0]], [0, 1, 2])
    assert [(x.value, x.low, x.high) for x in constant] == [(1, 1, 1), (0, 0, 0)]


def test_classes_are_drawn_of_too_many_items():
    d, labels = items()
    found = pe.choose_score(d, labels, items=160, seed=1)
    assert (found.items, found.fitted + found.judged) == (240, 160)
    assert found.summary().startswith("A sample of 160 of 240 items: ")
    kept = metrics.truncated_rows(labels, 160, 1)
    alone = pe.choose_score(d[kept], labels[kept], items=160, seed=1)
    assert found.scores == alone.scores and not str(alone).startswith("A sample")


def test_of_large_classes_some_items_are_drawn():
    labels = np.repeat([f"c{i}" for i in range(40)], 100)
    rows, classes, sizes = choosing._sampled(labels, 400, 3)
    assert (sizes == 10).all() and len(sizes) == 40 and (np.diff(rows) > 0).all()
    assert (np.unique(labels[rows], return_inverse=True)[1] == classes).all()
    assert not np.array_equal(rows, choosing._sampled(labels, 400, 4)[0])


def test_gains_are_drawn_over_classes_and_all_numbers_by_one_set_of_draws(monkeypatch):
    d, labels = items()
    drawn = []

    def spy(clusters, seed):
        drawn.append((clusters, seed))
        return Resamples(clusters, seed)

    monkeypatch.setattr(choosing, "Resamples", spy)
    found = pe.choose_score(d, labels, seed=3)
    judged = labels[np.isin(labels, np.random.default_rng(3).permutation(CLASSES)[1::2])]
    ((clusters, seed),) = drawn
    np.testing.assert_array_equal(clusters, np.unique(judged, return_inverse=True)[1])
    assert seed == 3 and found.classes == 30


def test_what_was_fitted_is_what_scores_are_given():
    d, labels = items()
    fits = choosing.fit(pe.Normal(d.mu + 20, d.var), labels, None, 0)
    given = fits(pe.scores.llr).params
    np.testing.assert_array_equal(given["prior_mean"], fits.of_scores["prior"].mean)
    np.testing.assert_array_equal(given["prior_var"], fits.of_scores["prior"].var)
    assert abs(np.mean(given["prior_mean"]) - 20) < 0.5
    assert fits(pe.scores.norm_cosine).params["mu"] == fits.of_scores["shift"]


@pytest.mark.parametrize("by", ["eer", "dcf", "answered"])
def test_scores_are_compared_by_what_the_user_needs(by):
    d, labels = items()
    found = pe.choose_score(d, labels, by=by, wrong=0.2, p_target=0.1, seed=3)
    judged = np.isin(labels, np.random.default_rng(3).permutation(CLASSES)[1::2])
    half, of_half = d[judged], labels[judged]
    first, second = np.nonzero(~np.eye(len(half), dtype=bool))
    same = of_half[first] == of_half[second]

    def number(score):
        scores = np.array(pe.pairwise(half, half, score), np.float64)
        if by == "eer":
            return metrics.equal_error_rate(scores[first, second], same).rate
        if by == "dcf":
            return metrics.detection_cost(scores[first, second], same, 0.1).min_dcf
        np.fill_diagonal(scores, -np.inf)
        right, best = of_half[scores.argmax(1)] == of_half, scores.max(1)
        shares = [(best >= t).mean() for t in best if (~right[best >= t]).mean() <= 0.2]
        return max(shares, default=0)

    field, sign = {"eer": ("equal_error_rate", -1), "dcf": ("min_dcf", -1), "answered": ("answered", 1)}[by]
    base = number("cosine")
    for name in ("cosine", "mls"):
        result = next(s for s in found.scores if s.name == f"{name}, raw")
        assert getattr(result, field).value == pytest.approx(number(name), abs=1e-9)
        assert result.gain.value == pytest.approx(sign * (number(name) - base), abs=1e-9)
        assert getattr(result, field).low <= getattr(result, field).value <= getattr(result, field).high
    values = [sign * getattr(s, field).value for s in found.scores]
    assert values == sorted(values, reverse=True) and found.by == by
    assert pe.choose_score(d, labels, seed=3).scores[0].answered is None


def test_listed_pairs_of_judged_items_are_verified_in_place_of_drawn_ones():
    d, labels = items()
    rng = np.random.default_rng(5)
    pairs = np.stack([rng.permutation(len(d)), rng.permutation(len(d))], 1)
    pairs = np.concatenate([pairs[pairs[:, 0] != pairs[:, 1]], np.arange(len(d)).reshape(-1, 2)])
    found = pe.choose_score(d, labels, by="eer", pairs=pairs, seed=3)
    judged = np.isin(labels, np.random.default_rng(3).permutation(CLASSES)[1::2])
    a, b = pairs[judged[pairs].all(1)].T
    rate = metrics.equal_error_rate(pe.paired(d[a], d[b], "cosine"), labels[a] == labels[b]).rate
    assert next(s for s in found.scores if s.name == "cosine, raw").equal_error_rate.value == pytest.approx(rate)


def test_scores_far_from_log_likelihood_ratios_are_said_to_be_so():
    d, labels = items()
    found = pe.choose_score(d, labels, by="eer")
    llr = next(s for s in found.scores if s.score == "llr")
    assert 0 < llr.min_cllr < llr.cllr and next(s for s in found.scores if s.score == "cosine").cllr is None
    far = replace(found, scores=(replace(found.best, cllr=0.8, min_cllr=0.03), *found.scores))
    text = "not calibrated: Cllr is 0.8, 0.03 would do. As log-likelihood ratios use pe.fit_match_probability("
    assert (
        text in far.sentence()
        and "not calibrated"
        not in replace(far, scores=(replace(found.best, cllr=0.05, min_cllr=0.03), *found.scores)).sentence()
    )


def test_a_score_of_ones_own_is_fitted_as_it_says(monkeypatch):
    d, labels = items()
    power = replace(pe.scores.ppk, name="power", fits={"rho": Fitted("power")})
    monkeypatch.setitem(pe.scores.SCORES, "power", power)
    monkeypatch.setitem(choosing.OF_SCORES, "power", lambda d, labels, pairs, same: 0.25)
    assert choosing.fit(d, labels, None, 0)(power) == power(rho=0.25)
    forms = {s.form for s in pe.choose_score(d, labels).scores if s.score == "power"}
    assert forms == {"raw", "calibrated"}


def test_how_long_it_takes_is_said_first(capsys):
    pe.choose_score(*items(), progress=True)
    assert re.match(r"choose-score: 0 %, about \d+ s\n", capsys.readouterr().err)


WRONG = {
    "NaN labels": (
        lambda d, y: pe.choose_score(d, np.where(y > 2, y, np.nan)),
        "choose_score: 12 of the 240 labels are missing",
    ),
    "no labels": (
        lambda d, y: pe.choose_score(d, None),
        "choose_score: labels is None, expected labels of the queries",
    ),
    "a label of None": (lambda d, y: pe.choose_score(d, [None, *y[1:]]), "choose_score: 1 of the 240 labels"),
    "a sample too small": (
        lambda d, y: pe.choose_score(d, y, items=30),
        "labels name 15 classes of two items or more among the 30 items that are drawn, expected 20",
    ),
    "labels": (lambda d, y: pe.choose_score(d, y[:5]), "choose_score: labels has shape (5,), expected (240,)"),
    "few classes": (lambda d, y: pe.choose_score(d, y % 7), "labels name 7 classes of two items or more, expected 20"),
    "by": (lambda d, y: pe.choose_score(d, y, by="auc"), "by is 'auc', expected one of 'recall', 'eer', 'dcf', 'answ"),
    "wrong": (lambda d, y: pe.choose_score(d, y, wrong=1.0), "choose_score: wrong is 1.0, expected"),
    "p_target": (lambda d, y: pe.choose_score(d, y, p_target=0.0), "choose_score: p_target is 0.0, expected"),
    "pairs of one kind": (
        lambda d, y: pe.choose_score(d, y, pairs=[[0, 1], [0, 2]]),
        "choose_score: 2 of 2 pairs are right, expected some of either kind",
    ),
    "singletons": (lambda d, y: pe.choose_score(d, np.arange(240)), "labels name 0 classes of two items or more"),
    "NaN": (
        lambda d, y: pe.choose_score(pe.Point(d.mu * np.nan), y),
        "choose_score: d or gallery holds numbers that are not finite: see v",
    ),
}


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    d, labels = items()
    monkeypatch.chdir(tmp_path)
    io.write_distribution("e.npz", d)
    io.write_distribution("unit.npz", pe.Scaled(d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True), 1 / d.var.mean(1)))
    np.save("y.npy", [f"c{i}" for i in labels])
    np.save("few.npy", labels % 3)
    return tmp_path


# -- points ------------------------------------------------------------------------------------------------------------


def of_points(seed=0, offset=3.0, even=False):
    """Queries and a gallery whose means differ, and directions whose variances within classes do, unless even."""
    rng = np.random.default_rng(seed)
    labels = np.arange(100).repeat(4)
    centres, means = rng.normal(size=(100, 12)), offset * rng.normal(size=(2, 12))
    noise = 1.0 if even else np.logspace(0.5, -1, 12)
    sides = [centres[labels] + mean + rng.normal(size=(400, 12)) * noise for mean in means]
    return *(pe.Point(x.astype("f4")) for x in sides), labels


def test_points_are_tried_centred_whitened_by_plda_and_normalised():
    queries, gallery, labels = of_points()
    order = np.random.default_rng(1).permutation(400)
    found = pe.choose_score(queries, (labels, labels[order]), gallery=gallery[order])
    of_cosine = ["raw", "centred", "whitened", "S-norm"]
    assert {s.name for s in found.scores} == {
        *(f"cosine, {form}" for form in of_cosine), "neg_sq_l2, raw", "norm_cosine, raw", "norm_cosine, calibrated",
        "llr, PLDA",
    }  # fmt: skip
    assert (found.judged, found.gallery, found.fitted, found.classes) == (200, 200, 400, 50)
    assert found.best.name == "llr, PLDA" and str(found).splitlines()[0].startswith("Use llr, PLDA: Recall@1 is ")
    assert "200 queries of 50 classes searched for in 200 items, 12 dimensions, Point" in found.summary()
    halves = choosing._second_half(np.full(100, 8), 0)[labels]
    one, other, fitted = np.flatnonzero(halves), np.flatnonzero(halves[order]), np.flatnonzero(~halves)
    q, g, cohort = queries[one], gallery[order[other]], gallery[order[~halves[order]]]
    of = {s.name: s.recall_at_1.value for s in found.scores}

    def recall(ranking):
        return (labels[order[other]][ranking.ids[:, 0]] == labels[one]).mean()

    def expected(x, y, score="cosine"):
        return recall(pe.search(x, y, 1, score))

    centre, whitening = (pe.fit_centre(queries[fitted], gallery[fitted], whiten=x) for x in (False, True))
    assert of["cosine, raw"] == expected(q, g)
    for name, c in (("centred", centre), ("whitened", whitening)):
        assert of[f"cosine, {name}"] == pytest.approx(expected(c.of_queries(q), c.of_gallery(g)), abs=0.011)
    left = pe.concat([centre.of_queries(queries[fitted]), centre.of_gallery(gallery[fitted])])
    plda = pe.fit_plda(left, np.r_[labels[fitted], labels[fitted]])
    moved = plda.transform(centre.of_queries(q)), plda.transform(centre.of_gallery(g))
    assert of["llr, PLDA"] == pytest.approx(expected(*moved, plda.score), abs=0.011)
    norms = {name: pe.search(d, cohort, 200, "cosine") for name, d in (("queries", q), ("gallery", g))}
    assert of["cosine, S-norm"] == recall(pe.normalise_scores(pe.search(q, g, 100, "cosine"), **norms))


def test_cosine_of_points_whose_means_are_gone_needs_nothing_else():
    queries, _, labels = of_points(offset=0, even=True)
    found = pe.choose_score(queries, labels)
    assert found.best.name == "cosine, raw" and found.sentence().startswith("Use cosine: none of the 7 others, tried ")
    few = pe.choose_score(pe.Point(np.random.default_rng(0).normal(size=(90, 60))), np.arange(30).repeat(3))
    assert not {"cosine, whitened", "llr, PLDA"} & {s.name for s in few.scores}
    alike = pe.choose_score(pe.Point(np.ones((80, 3))), np.arange(40).repeat(2))
    assert "cosine, raw" in {s.name for s in alike.scores} and "cosine, S-norm" not in {s.name for s in alike.scores}


@pytest.mark.parametrize("even", [False, True])
def test_the_line_that_is_printed_searches_by_what_was_chosen(folder, capsys, even):
    queries, gallery, labels = of_points(even=even)
    for name, d in (("q", queries), ("g", gallery)):
        io.write_distribution(f"{name}.npz", d)
    np.save("l.npy", labels)
    line = "choose-score --queries q.npz --gallery g.npz --query-labels l.npy --gallery-labels l.npy --out o"
    code, out, err = run(capsys, line)
    assert code == 0, err
    fits = choosing.fit_all(queries, (labels, labels), gallery, 0)
    centre, plda = io.read_fit("o/centre.json"), io.read_fit("o/plda.json")
    assert out.startswith("Use ") and centre == fits.centre == pe.fit_centre(queries, gallery)
    search = out.splitlines()[-1]
    if not even:
        assert search.startswith("peaccel search --centre o/centre.json --plda o/plda.json --gallery ")
        q, g = (plda.transform(x) for x in (centre.of_queries(queries), centre.of_gallery(gallery)))
        expected = pe.search(q, g, 3, plda.score)
    else:
        assert search.startswith("peaccel search --score cosine --centre o/centre.json --gallery ")
        expected = pe.search(centre.of_queries(queries), centre.of_gallery(gallery), 3, "cosine")
    search = search.replace(
        "--gallery ... --queries ... --out ...", "--gallery g.npz --queries q.npz --out r.npz --k 3"
    )
    code, _, err = run(capsys, search.removeprefix("peaccel "))
    assert code == 0, err
    assert io.read_ranking("r.npz")[1].tolist() == expected.ids.tolist()


def test_where_whitening_is_chosen_the_file_whitens(folder, capsys, monkeypatch):
    queries, gallery, labels = of_points()
    for name, d in (("q", queries), ("g", gallery)):
        io.write_distribution(f"{name}.npz", d)
    np.save("l.npy", labels)
    whitened = property(lambda found: next(s for s in found.scores if s.name == "cosine, whitened"))
    monkeypatch.setattr(choosing.ScoreChoice, "best", whitened)
    line = "choose-score --queries q.npz --gallery g.npz --query-labels l.npy --gallery-labels l.npy --out o"
    code, out, err = run(capsys, line)
    assert code == 0, err
    assert io.read_fit("o/centre.json") == pe.fit_centre(queries, gallery, whiten=True)
    assert out.splitlines()[-1].startswith("peaccel search --score cosine --centre o/centre.json --gallery ")


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call(*items())
    assert "\n" not in str(error.value)


def test_what_the_command_writes_is_what_search_takes(folder, capsys):
    code, out, err = run(
        capsys, *["choose-score", "--embeddings", "e.npz", "--labels", "y.npy", "--seed", "4", "--out", "new/o"]
    )
    assert code == 0, err
    held = json.loads((folder / "new" / "o" / "choice.json").read_text())
    assert held["scores"][0]["score"] == "llr" and held["seed"] == 4 and "worth something here." in out
    d, labels = items()
    assert io.read_fit("new/o/prior.json").var == pytest.approx(pe.fit_prior(d, labels).var, rel=1e-6)
    line = out.splitlines()[-1]
    assert line.startswith("peaccel search --score llr --prior new/o/prior.json --calibration new/o/calibration.json ")
    files = ["e.npz", "e.npz", "ranking.npz"]
    assert run(capsys, *[files.pop() if part == "..." else part for part in line.split()[1:][::-1]][::-1])[0] == 0


def test_the_command_has_nothing_to_write_for_scaled_items(folder, capsys):
    code, out, err = run(capsys, *["choose-score", "--embeddings", "unit.npz", "--labels", "y.npy", "--out", "o"])
    assert code == 0, err
    assert sorted(p.name for p in (folder / "o").iterdir()) == ["choice.json", "report.html"]
    assert "peaccel search --score cosine --gallery" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--embeddings e.npz --labels few.npy --out o", "labels name 3 classes of two items or more, expected 20"),
        ("--embeddings e.npz --labels y.npy --items 30 --out o", "among the 30 items that are drawn, expected 20"),
        (
            "--embeddings e.npz --out o",
            "expected one of these together: --embeddings --labels; --queries --gallery --q",
        ),
        (
            "--queries e.npz --gallery e.npz --query-labels y.npy --gallery-labels y.npy --out o",
            "choose_score: d and gallery are Normal of 24 dimensions and Normal of 24 dimensions, expected points",
        ),
        ("--embeddings none.npz --labels y.npy --out o", "none.npz: no such file"),
        ("--embeddings e.npz --labels y.npy --out y.npy", "--out is y.npy, a file, expected a folder"),
    ],
)
def test_the_command_refuses_in_one_line(folder, capsys, line, message):
    code, _, err = run(capsys, "choose-score", *line.split())
    assert code == 2 and err.count("\n") == 1 and message in err


def test_an_uncertainty_that_is_nan_is_refused():
    """Of non-isotropic directions, of which no score reads it."""
    d, labels = items()
    d.var[:, 0] = np.nan
    directions = pe.NonIsotropicVonMisesFisher(d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True), d.var)
    with pytest.raises(ValueError, match=r"^choose_score: d has an uncertainty that is NaN: see its validate\(\)$"):
        pe.choose_score(directions, labels)


def test_of_too_few_wrong_answers_no_confidence_is_compared():
    classes = np.repeat(np.arange(40), 6)
    d = pe.Point(np.eye(40)[classes] + 0.01 * np.random.default_rng(0).normal(size=(240, 40)))
    said = pe.choose_score(d, classes).sentence()
    assert said.endswith("Fewer than ten of cosine's answers are wrong, or right: too few to compare confidences by.")


def test_the_page_marks_the_score_to_use():
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(40), 6)
    d = pe.Point(rng.normal(size=(40, 8))[classes] * 1.5 + rng.normal(size=(240, 8)))
    found = pe.choose_score(d, classes)
    table = choice(found)[0].content
    row = table.rows[table.chosen]
    assert (found.best.score, found.best.form) == tuple(row[:2])
