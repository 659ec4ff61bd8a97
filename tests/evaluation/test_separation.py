"""Worth of a confidence: numbers that tell one that knows all from one that knows nothing, and their intervals."""

from functools import partial

import numpy as np
import pytest

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation import separation as confidences
from peaccel.evaluation.answers import Answers
from peaccel.evaluation.intervals import Interval, Resamples, at_once, compared
from peaccel.evaluation.pair_rates import PairRates, pair_rates
from peaccel.metrics.detection_cost import Costs

CLASSES, EACH = 250, 4


def worth(seed=0, classes=CLASSES):
    """Results of four confidences of queries answered rightly at 0.6, each handed on as the score of the best."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(classes), EACH)
    p = rng.beta(1.2, 0.8, len(cluster))
    right = (rng.random(len(cluster)) < p).astype(float)
    given = {"perfect": right, "calibrated": p, "monotone": np.exp(12 * p**3), "useless": rng.random(len(cluster))}
    points = pe.Point(np.c_[np.ones(len(cluster)), np.zeros(len(cluster))])
    resamples, found = Resamples(cluster, seed), {}
    for name, confidence in given.items():
        scores = np.stack([confidence, np.full(len(cluster), -np.inf)], 1)
        answers = Answers(np.zeros(len(cluster), int), scores, scores.dtype, {}, right, 0)
        found[name] = next(confidences.judged(points, answers, None, {}, cluster, resamples, seed))
    return found, right, given


def test_a_perfect_confidence_is_told_from_a_useless_one():
    found, right, given = worth()
    perfect, calibrated, useless = (found[name] for name in ("perfect", "calibrated", "useless"))
    for name, share in {"brier": 0.01, "aurc": 0.3, "ece": 0.01}.items():
        best, middle, worst = (getattr(x, name).value for x in (perfect, calibrated, useless))
        assert best < share * worst and best < middle, name
    for name in ("brier", "aurc"):
        assert getattr(perfect, name).high < getattr(calibrated, name).low
        assert getattr(calibrated, name).high < getattr(useless, name).low
    assert perfect.r_auroc.value == 1 and perfect.ausc.low > calibrated.ausc.high > useless.ausc.high
    ranks = [
        metrics.calibration_error(right, given[name], scale="rank", binning="equal-count").ece
        for name in ("perfect", "useless")
    ]
    assert abs(ranks[0] - ranks[1]) < 0.02  # the published form tells them not: why it was replaced


def test_a_confidence_on_another_scale_is_worth_as_much():
    found = worth()[0]
    for name in ("r_auroc", "ausc", "aurc", "brier", "ece", "calibration", "curve"):
        assert getattr(found["monotone"], name) == getattr(found["calibrated"], name)
    assert found["calibrated"].ece.value < 0.06


def test_intervals_are_those_of_queries_drawn_by_class():
    """Against draws that repeat the queries of each class that is drawn, and take the metric anew."""
    found, right, given = worth(1, classes=60)
    rng, rows = np.random.default_rng(0), np.arange(len(right)).reshape(60, EACH)
    areas = {kind: partial(metrics.rejection_area, kind=kind) for kind in ("ausc", "aurc")}
    for name, metric in {"r_auroc": metrics.r_auroc, **areas}.items():
        drawn = [rows[rng.integers(0, 60, 60)].ravel() for _ in range(400)]
        expected = np.quantile([metric(right[of], given["calibrated"][of]) for of in drawn], [0.025, 0.975])
        interval = getattr(found["calibrated"], name)
        # 400 draws have the ends within a sixth of the width of the interval.
        assert [interval.low, interval.high] == pytest.approx(expected, abs=(expected[1] - expected[0]) / 6), name


def test_a_gain_of_a_confidence_is_drawn_with_what_it_is_compared_with():
    """Against two AUROCs of one draw each; drawn apart they would vary four times as much."""
    right, given = worth(1, classes=60)[1:]
    blurred = given["calibrated"] + 0.1 * given["useless"]
    cluster, rng = np.repeat(np.arange(60), EACH), np.random.default_rng(0)
    resamples = Resamples(cluster, 1)
    counted = [confidences.CountedAnswers(right, x, resamples) for x in (given["calibrated"], blurred)]
    first, second = (x.separation() for x in counted)
    drawn = [np.arange(len(right)).reshape(60, EACH)[rng.integers(0, 60, 60)].ravel() for _ in range(400)]
    gains = [
        metrics.r_auroc(right[of], given["calibrated"][of]) - metrics.r_auroc(right[of], blurred[of]) for of in drawn
    ]
    expected = np.quantile(gains, [0.025, 0.975])
    gain = first.gain(second)
    assert gain.value == first.auroc.value - second.auroc.value
    assert [gain.low, gain.high] == pytest.approx(expected, abs=(expected[1] - expected[0]) / 5)
    assert first.auroc.high - first.auroc.low > 2 * (gain.high - gain.low)


def test_the_sentence_compares_confidences_with_the_best_score_of_the_first():
    x, labels = embedded(3)
    found = pe.evaluate(pe.Normal(x, np.exp(-(x[:, :1] ** 2))), None, labels, ("neg_sq_l2", "cosine"))
    first, second = found.scores
    learned = next(c for c in found.confidences if c.confidence == "learned")
    assert found.sentence() == (
        f"As a confidence, the best score by neg_sq_l2 has an AUROC of {first.best_auroc} %, at no cost. "
        f"The learned confidence has {learned.r_auroc} %: {compared(learned.gain)}. "
        f"The best score by cosine, in its own answers, has {second.best_auroc} %: {compared(second.best_auroc_gain)}."
    )
    assert found.sentence() in str(found)
    points = pe.evaluate(pe.Point(x), None, labels, "cosine")
    assert points.sentence().count(".") == str(points.scores[0].best_auroc).count(".") + 1


def test_a_number_that_no_draw_has_leaves_the_others_their_intervals():
    rng = np.random.default_rng(0)
    value, drawn = np.array([0.1, 0.3]), rng.normal([0.1, 0.3], 0.01, (500, 2))
    alone = at_once(value, drawn)
    first, missing, second = at_once(
        np.array([0.1, np.nan, 0.3]), np.insert(drawn, 1, np.nan, axis=1), np.array([1.0, 1.0, 1.0])
    )
    assert (first, second) == alone and alone[0].low < 0.1 < alone[0].high
    assert np.isnan([missing.value, missing.low, missing.high]).all()
    assert all(np.isnan(x.low) for x in at_once(value, np.where(rng.random((500, 2)) < 2, np.nan, 0)))


def test_in_words_whether_a_number_is_above_another():
    for value, low, high, expected in (
        (0.1, 0.05, 0.15, "better by 10.0 [5.0, 15.0] points"),
        (-0.1, -0.15, -0.05, "worse by 10.0 [5.0, 15.0] points"),
        (0.1, -0.05, 0.25, "not distinguishably better (10.0 [-5.0, 25.0] points)"),
        (0.0, 0.0, 0.0, "not distinguishably better (0.0 [0.0, 0.0] points)"),
        (-0.076, np.nan, np.nan, "not to be judged, as there is no interval (-7.6 [-, -] points)"),
        (np.nan, np.nan, np.nan, "not comparable, as all answers are right, or all are wrong"),
    ):
        assert compared(Interval(value, low, high)) == expected


def embedded(seed, classes=50, each=4):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    spread = np.exp(rng.normal(-0.7, 0.5, classes))[labels, None]
    return rng.normal(size=(classes, 4))[labels] + spread * rng.normal(size=(len(labels), 4)), labels


def scored_pairs(seed, classes=50):
    x, labels = embedded(seed, classes)
    pairs = np.argwhere(~np.eye(len(x), dtype=bool))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return -((x[pairs[:, 0]] - x[pairs[:, 1]]) ** 2).sum(1), same, labels[pairs]


def rates(scores, same, resamples):
    return PairRates(**pair_rates(scores, same, resamples, Costs("test", 0.5), False, 0))


def test_intervals_of_pairs_are_those_of_both_classes_drawn(monkeypatch):
    """Against weights n m of a pair of classes that are drawn n and m times; and wider than those of pairs apart."""
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 400)
    scores, same, classes = scored_pairs(0)
    found = rates(scores, same, Resamples(classes, 0))
    apart = rates(scores, same, Resamples(np.arange(len(same)), 0))
    rng, aucs = np.random.default_rng(1), []
    order = np.argsort(-scores)
    for _ in range(200):
        n = np.bincount(rng.integers(0, 50, 50), minlength=50)[classes[order]]
        weight = np.where(same[order], n[:, 0], n[:, 0] * n[:, 1])
        far, tar = (np.cumsum(weight * of) / (weight * of).sum() for of in (~same[order], same[order]))
        aucs.append(np.trapezoid(tar, far))
    low, high = np.quantile(aucs, [0.025, 0.975])
    assert [found.roc_auc.low, found.roc_auc.high] == pytest.approx([low, high], abs=(high - low) / 5)
    assert found.actual_dcf is None and found.cllr is None  # distances are no log-likelihood ratios
    for name in ("roc_auc", "equal_error_rate", "tar_at_far", "min_dcf"):
        by_class, by_pair = getattr(found, name), getattr(apart, name)
        assert by_class.low < by_class.value < by_class.high
        assert by_class.high - by_class.low > 1.5 * (by_pair.high - by_pair.low), name


def test_intervals_of_pairs_hold_what_is_of_other_classes(monkeypatch):
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 200)
    large = np.mean([metrics.roc_auc(*scored_pairs(900 + seed)[:2]) for seed in range(20)])
    held = []
    for seed in range(40):
        scores, same, classes = scored_pairs(seed)
        x = rates(scores, same, Resamples(classes, seed)).roc_auc
        held.append(x.low <= large <= x.high)
    assert np.mean(held) >= 0.84  # of 0.95, less three standard errors of 40 runs


def test_costs_of_an_evaluation_are_those_of_its_pairs():
    x, labels = embedded(0)
    d = pe.Normal(x, np.full(len(x), 0.25))
    found = pe.evaluate(d, None, labels, ["cosine", "llr:prior_var=1"], p_target=0.1)
    assert found.p_target == 0.1 and "p_target 0.1" in found.summary()
    one, other = np.nonzero(~np.eye(len(x), dtype=bool))
    for score, result in zip(("cosine", "llr:prior_var=1"), found.scores, strict=True):
        scores, same = pe.pairwise(d, d, score)[one, other], labels[one] == labels[other]
        cost, point = metrics.detection_cost(scores, same, 0.1), metrics.equal_error_rate(scores, same)
        assert result.min_dcf.value == pytest.approx(cost.min_dcf, abs=1e-12)
        assert result.eer_threshold == pytest.approx(point.threshold)
        assert result.min_dcf.low < result.min_dcf.value < result.min_dcf.high
        width = result.min_dcf.high - result.min_dcf.low
        assert width > 1.5 * np.ptp(cost.min_dcf_interval)  # pairs of a class are not independent
        if score != "cosine":
            assert result.cllr.value == pytest.approx(cost.cllr) and result.cllr.low < cost.cllr < result.cllr.high
            assert result.actual_dcf.value == pytest.approx(cost.actual_dcf)
            assert result.actual_dcf.low < cost.actual_dcf < result.actual_dcf.high
    assert found.scores[0].cllr is None and "Cllr" in str(found)
    assert "Cllr" not in str(pe.evaluate(d, None, labels, "cosine"))
    with pytest.raises(ValueError, match="evaluate: p_target is 1, expected a probability between 0 and 1"):
        pe.evaluate(d, None, labels, p_target=1)


def test_tar_is_of_all_pairs_of_two_classes_or_left_out():
    """50 classes of 4: of as many pairs of two as of one, 600, a FAR of 0.1 % was none at all; now there are 39 200."""
    d, labels = embedded(0)
    found = pe.evaluate(pe.Point(d), None, labels)
    assert found.pairs == (600, 39_200)
    assert found.scores[0].attained_far == pytest.approx(
        38 / 39_200
    )  # 39 are wished, of (i, j) and (j, i) both or none
    tars = [pe.evaluate(pe.Point(d), None, labels, seed=seed).scores[0].tar_at_far.value for seed in range(3)]
    assert len(set(tars)) == 1  # nothing is drawn that could change
    few = pe.evaluate(pe.Point(d[:80]), None, labels[:80], "cosine")
    assert few.pairs[1] == 80 * 76 and np.isnan(few.scores[0].tar_at_far.value)
    header, (row,) = few.tables()["Retrieval and verification"]
    shown = dict(zip(header, row, strict=True))
    assert (shown["TAR@FAR=0.1% %"], shown["FAR %"]) == ("-", "-")


def test_groups_of_very_many_clusters_have_the_spread_of_all(monkeypatch):
    values = np.random.default_rng(0).normal(size=3000)
    exact = Resamples(np.arange(3000), 0).mean(values)
    monkeypatch.setattr("peaccel.metrics._draws.GROUPS", 500)
    grouped = Resamples(np.arange(3000), 0)
    found = grouped.mean(values)
    assert grouped.times.shape == (2000, 500) and found.value == exact.value
    # The spread of 500 groups is known to 1 / sqrt(2 * 500), that of 2000 draws to half of it.
    assert found.high - found.low == pytest.approx(exact.high - exact.low, rel=0.12)


@pytest.mark.parametrize(
    "names", [[7, -3, 7, 900_000], [7, -3, 7, 8], [7, 2, 7, 8], ["d", "a", "d", "e"], np.int8([7, -128, 7, 127] * 99)]
)
def test_clusters_are_drawn_by_the_order_of_their_names(names):
    """Whether these are words, or numbers that are near enough for a table or not."""
    found, plain = Resamples(names, 0), Resamples([1, 0, 1, 2] * (len(names) // 4), 0)
    assert np.array_equal(found.sides, plain.sides) and np.array_equal(found.times, plain.times)


@pytest.mark.parametrize("times", [1.0, 2.0**24])
def test_counts_are_whole_numbers_however_many(times):
    """2^24 + 1 is the first whole number that float32 lacks."""
    resamples = Resamples([0, 1], 0)
    resamples.times = np.array([[times, 1.0]])
    assert resamples.counts(np.array([0, 0]), 1).tolist() == [[times + 1]]
