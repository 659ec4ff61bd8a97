"""Verification and error detection against scikit-learn and naive loops, with and without equal scores."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import f1_score, matthews_corrcoef, roc_auc_score, roc_curve

from peaccel import metrics
from peaccel.metrics.detection_cost import Costs

SAME = [1, 1, 0, 0]


def pairs(seed, ties):
    rng = np.random.default_rng(seed)
    same = rng.permutation(np.arange(200) < rng.integers(20, 180))
    scores = rng.normal(size=200) + same
    return np.round(scores, 1) if ties else scores, same


CASES = [pairs(seed, ties) for seed in range(6) for ties in (False, True)]
CASES += [
    (np.zeros(4), np.array(SAME)),
    (np.array([4.0, 3, 2, 1]), np.array(SAME)),
    (np.array([1.0, 2, 3, 4]), np.array(SAME)),
    (np.array([1.0, -1]), np.array([1, 0])),
    (np.array([-1.0, 1]), np.array([1, 0])),
]


@pytest.mark.parametrize("scores, same", CASES)
def test_accuracy_against_every_threshold(scores, same):
    tried = {t: ((scores >= t) == same).mean() for t in [*scores, -math.inf, math.inf]}
    best = metrics.best_threshold(scores, same)
    assert metrics.verification_accuracy(scores, same) == max(tried.values())
    assert ((scores >= best) == same).mean() == max(tried.values())
    assert all(t <= best for t, share in tried.items() if share == max(tried.values())) or best == -math.inf
    assert metrics.verification_accuracy(scores, same, 0.5) == ((scores >= 0.5) == same).mean()
    assert metrics.ceda(same, scores) == max(tried.values()) >= max(np.mean(same), 1 - np.mean(same))
    assert metrics.ceda(same, scores, 0.5) == ((scores >= 0.5) == same).mean()


@pytest.mark.parametrize("scores, same", CASES)
def test_areas_and_equal_errors_against_scikit_learn(scores, same):
    positive, negative = scores[same == 1], scores[same == 0]
    wins = (positive[:, None] > negative).mean() + (positive[:, None] == negative).mean() / 2
    assert metrics.roc_auc(scores, same) == pytest.approx(wins, abs=1e-14)
    assert metrics.r_auroc(same, scores) == pytest.approx(roc_auc_score(same, scores), abs=1e-14)
    fpr, tpr, _ = roc_curve(same, scores, drop_intermediate=False)
    # Two equal rates would make interpolation by them ambiguous: both are interpolated along the curve.
    place = np.arange(len(fpr))
    at = brentq(lambda x: np.interp(x, place, fpr) - 1 + np.interp(x, place, tpr), 0, len(fpr) - 1, xtol=1e-13)
    assert metrics.equal_error_rate(scores, same).rate == pytest.approx(np.interp(at, place, fpr), abs=1e-10)


def test_hand_cases():
    assert metrics.equal_error_rate([4, 3, 2, 1], SAME).rate == 0
    assert metrics.equal_error_rate([1, 2, 3, 4], SAME).rate == 1
    assert metrics.equal_error_rate([0, 0, 0, 0], SAME).rate == metrics.roc_auc([0, 0, 0, 0], SAME) == 0.5
    assert metrics.best_threshold([4, 3, 2, 1], SAME) == 3
    assert metrics.best_threshold([1, 2], [1, 1]) == -math.inf
    assert metrics.best_threshold([1, 2], [0, 0]) == math.inf
    assert metrics.ceda([1, 1], [1, 2]) == 1
    assert math.isnan(metrics.r_auroc([1, 1], [1, 2])) and math.isnan(metrics.r_auroc([0], [1]))
    assert metrics.r_auroc([True, False], [math.inf, -math.inf]) == 1


def naive_tar_at_far(scores, same, far):
    """The lowest threshold of the scores, or just above one, that accepts no more than a share of two classes."""
    negative = sorted(scores[same == 0], reverse=True)
    fitting = [t for t in scores if np.mean([s >= t for s in negative]) <= far]
    threshold = min(fitting) if fitting else np.nextafter(negative[0], math.inf)
    accepted = scores >= threshold
    return threshold, accepted[same == 1].mean(), accepted[same == 0].mean()


@pytest.mark.parametrize("n", [3, 10, 15, 29, 100, 1500])
@pytest.mark.parametrize("far", [0.001, 0.01, 0.1, 0.29, 0.3, 1 / 3, 0.5, 0.7])
def test_a_rate_that_is_asked_for_is_never_exceeded_and_reached_where_it_can_be(n, far):
    """Nearest numbers exceeded it up to twice: 2 of 1500 for 0.001."""
    rng = np.random.default_rng(n)
    scores, same = rng.normal(size=2 * n), np.arange(2 * n) % 2
    found = metrics.tar_at_far(scores, same, far, resamples=1)
    assert far - 1 / n < found.attained_far <= far
    as_searches = metrics.open_set(scores[same == 1], scores[same == 0]).at_fpir(far)
    assert (as_searches.fpir, 1 - as_searches.fnir) == (found.attained_far, pytest.approx(found.tar))


@pytest.mark.parametrize("far", [0, 1e-4, 0.02, 0.5, 1])
@pytest.mark.parametrize("scores, same", CASES)
def test_tar_at_far_against_a_loop(scores, same, far):
    found = metrics.tar_at_far(scores, same, far, resamples=50)
    assert (found.threshold, found.tar, found.attained_far) == naive_tar_at_far(scores, same, far)
    assert found.far == far and found.attained_far <= round((same == 0).sum() * far) / (same == 0).sum()


def test_thresholds_are_kept_in_the_dtype_of_the_scores():
    scores = np.array([-2435.0, -2435.25, -2436, -2437], np.float32)
    found = metrics.tar_at_far(scores, [0, 1, 1, 0], 0, resamples=1)
    assert found.threshold == np.nextafter(np.float32(-2435), np.float32(np.inf)) > -2435
    assert found.tar == 0 and not (scores >= np.float32(found.threshold)).any()


@pytest.mark.parametrize("far", [0, 0.01, 0.1])
def test_intervals_against_a_bootstrap_that_draws_the_pairs(far):
    rng = np.random.default_rng(1)
    positive, negative = rng.normal(1.5, 1, 300), np.sort(rng.normal(size=400))[::-1]
    k, draws = round(400 * far), []
    for _ in range(4000):
        chosen = np.sort(rng.integers(0, 400, 400))  # places; a pair drawn twice has no equals of its own
        threshold = np.nextafter(negative[chosen[k]], math.inf)
        tar = (positive[rng.integers(0, 300, 300)] >= threshold).mean()
        draws.append((tar, (negative >= threshold).mean()))
    expected = np.quantile(draws, [0.05, 0.95], axis=0).T
    scores, same = np.concatenate([positive, negative]), np.arange(700) < 300
    found = metrics.tar_at_far(scores, same, far, resamples=20000, level=0.9, seed=3)
    # Quantiles of 4000 draws: over 5 seeds at most 2 of the 300 pairs and 1 of the 400 away.
    assert found.tar_interval == pytest.approx(expected[0], abs=0.01)
    assert found.attained_far_interval == pytest.approx(expected[1], abs=1.01 / 400)
    rates = [(negative >= threshold).mean() for threshold in reversed(found.threshold_interval)]
    assert rates == pytest.approx(expected[1], abs=1.01 / 400)
    assert found.tar_interval[0] <= found.tar <= found.tar_interval[1]
    assert found == metrics.tar_at_far(scores, same, far, resamples=20000, level=0.9, seed=3)


def test_intervals_of_two_pairs():
    """Two draws of two pairs are both the higher one in 1 of 4 cases, in which the threshold lies above it."""
    found = metrics.tar_at_far([9, 5, 2], [1, 0, 0], 0.5, level=0.6)
    assert found.threshold_interval == (5, 9) and found.attained_far_interval == (0, 0.5)
    assert metrics.tar_at_far([9, 5, 2], [1, 0, 0], 0.5, level=0.4).threshold_interval == (5, 5)


@pytest.mark.parametrize("scores, same", CASES[:12])
def test_each_fold_is_decided_by_the_threshold_of_the_others(scores, same):
    """LFW's protocol: ten folds in the order of the pairs, and the same folds by name, in any order."""
    fold, shares = np.arange(200) // 20, []
    for number in range(10):
        threshold = metrics.best_threshold(scores[fold != number], same[fold != number])
        shares.append(((scores[fold == number] >= threshold) == same[fold == number]).mean())
    found = metrics.verification_accuracy(scores, same, folds=10)
    assert found == pytest.approx(np.mean(shares), abs=1e-15) and found <= metrics.verification_accuracy(scores, same)
    order = np.random.default_rng(0).permutation(200)
    names = np.array([f"fold {number}" for number in fold])[order]
    assert metrics.verification_accuracy(scores[order], same[order], folds=names) == pytest.approx(found, abs=1e-15)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"folds": 1}, "folds is 1, expected an integer from 2 to the 4 pairs"),
        ({"folds": 5}, "folds is 5, expected an integer from 2 to the 4 pairs"),
        ({"folds": 2.5}, "folds is 2.5, expected an integer"),
        ({"folds": [0, 1]}, r"folds has shape \(2,\), expected \(4,\) like scores"),
        ({"folds": [3, 3, 3, 3]}, "folds are all alike"),
        ({"folds": ["a", None, "a", "b"]}, "1 of the 4 folds are missing"),
        ({"folds": 2, "threshold": 0.5}, "threshold is given beside folds"),
    ],
)
def test_folds_refuse(bad, message):
    with pytest.raises(ValueError, match=f"verification_accuracy: {message}"):
        metrics.verification_accuracy([4.0, 3, 2, 1], SAME, **bad)


# -- detection costs ---------------------------------------------------------------------------------------------------

COSTS = [(0.01, 1, 1), (0.05, 1, 1), (0.01, 10, 1), (0.5, 1, 1), (0.9, 1, 3)]


def dcf_by_nist(scores, same, p_target, c_miss, c_fa):
    """NIST's plan, threshold by threshold: costs over that of the better decision without scores."""
    costs = {}
    for t in [math.inf, *sorted(scores, reverse=True)]:
        p_miss = np.mean([score < t for score in scores[same == 1]])
        p_fa = np.mean([score >= t for score in scores[same == 0]])
        costs[t] = c_miss * p_target * p_miss + c_fa * (1 - p_target) * p_fa
    return {t: cost / min(c_miss * p_target, c_fa * (1 - p_target)) for t, cost in costs.items()}


def min_dcf_by_voxceleb(scores, same, p_target, c_miss, c_fa):
    """The lines of VoxCeleb's and Kaldi's compute_min_dcf: each score in rising order is the threshold after it."""
    labels = np.asarray(same)[np.argsort(scores)]
    fnrs = np.cumsum(labels == 1) / (labels == 1).sum()
    fprs = 1 - np.cumsum(labels == 0) / (labels == 0).sum()
    costs = c_miss * fnrs * p_target + c_fa * fprs * (1 - p_target)
    return costs.min() / min(c_miss * p_target, c_fa * (1 - p_target))


@pytest.mark.parametrize("p_target, c_miss, c_fa", COSTS)
@pytest.mark.parametrize("scores, same", CASES)
def test_detection_costs_against_all_thresholds(scores, same, p_target, c_miss, c_fa):
    found = metrics.detection_cost(scores, same, p_target, c_miss=c_miss, c_fa=c_fa, resamples=10)
    costs = dcf_by_nist(scores, same, p_target, c_miss, c_fa)
    assert found.min_dcf == pytest.approx(min(costs.values()), abs=1e-12) and found.min_dcf <= 1 + 1e-12
    least = max(t for t, cost in costs.items() if cost <= min(costs.values()) + 1e-12)
    assert found.threshold == (-math.inf if least == scores.min() else least)
    assert found.bayes_threshold == pytest.approx(math.log(c_fa * (1 - p_target) / (c_miss * p_target)), abs=1e-12)
    above = [t for t in costs if t >= found.bayes_threshold]
    assert found.actual_dcf == pytest.approx(costs[min(above)], abs=1e-12) and found.actual_dcf >= found.min_dcf - 1e-12
    if len(set(scores)) == len(scores):
        accept_all = c_fa * (1 - p_target) / min(c_miss * p_target, c_fa * (1 - p_target))
        theirs = min(min_dcf_by_voxceleb(scores, same, p_target, c_miss, c_fa), accept_all)
        assert found.min_dcf == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("scores, same", CASES)
def test_cllr_against_its_definition(scores, same):
    targets = [math.log2(1 + math.exp(-score)) for score in scores[same == 1]]
    others = [math.log2(1 + math.exp(score)) for score in scores[same == 0]]
    expected = (sum(targets) / len(targets) + sum(others) / len(others)) / 2
    assert metrics.detection_cost(scores, same, resamples=1).cllr == pytest.approx(expected, abs=1e-12)


def test_known_costs():
    """Ratios that say nothing cost 1 bit and 1 decision; so sure that they overflow, nothing, or what they err by."""
    nothing = metrics.detection_cost([0, 0, 0, 0], SAME)
    assert (nothing.cllr, nothing.min_dcf, nothing.actual_dcf, nothing.threshold) == (1, 1, 1, math.inf)
    sure = metrics.detection_cost([2000, 1000, -1000, -2000], SAME)
    assert (sure.cllr, sure.min_dcf, sure.actual_dcf, sure.threshold) == (0, 0, 0, 1000)
    wrong = metrics.detection_cost([-1000.0, 1000], [1, 0])
    assert wrong.cllr == pytest.approx(1000 / math.log(2)) and (wrong.min_dcf, wrong.actual_dcf) == (1, 100)
    # LLRs of two normals, at distance d and variance 1 of either: at p = 1/2 the least cost is 2 Phi(-d / 2).
    rng, d = np.random.default_rng(0), 2.0
    x, same = np.concatenate([rng.normal(d, 1, 200_000), rng.normal(0, 1, 200_000)]), np.arange(400_000) < 200_000
    found = metrics.detection_cost(d * x - d * d / 2, same, 0.5, resamples=20)
    assert found.min_dcf == pytest.approx(math.erfc(d / 2 / math.sqrt(2)), abs=0.003)
    assert found.actual_dcf == pytest.approx(found.min_dcf, abs=0.001) and found.bayes_threshold == 0
    assert metrics.equal_error_rate(x, same, resamples=1).threshold == pytest.approx(d / 2, abs=0.02)


def test_intervals_of_costs_against_a_bootstrap_of_the_pairs():
    rng = np.random.default_rng(1)
    positive, negative = rng.normal(2.5, 2, 300), rng.normal(-2.5, 2, 900)
    scores, same = np.concatenate([positive, negative]), np.arange(1200) < 300
    draws = []
    for _ in range(500):
        again = np.concatenate([rng.choice(positive, 300), rng.choice(negative, 900)])
        cost, point = (
            metrics.detection_cost(again, same, resamples=1),
            metrics.equal_error_rate(again, same, resamples=1),
        )
        draws.append((cost.actual_dcf, cost.cllr, point.rate, point.threshold))
    expected = np.quantile(draws, [0.05, 0.95], axis=0).T
    cost, point = (call(scores, same, level=0.9) for call in (metrics.detection_cost, metrics.equal_error_rate))
    found = [cost.actual_dcf_interval, cost.cllr_interval]
    found += [point.rate_interval, point.threshold_interval]
    # Ends of percentiles of 500 draws scatter by a tenth of what lies between them.
    width = np.diff(expected, axis=1)
    assert (np.abs(np.array(found) - expected) < 0.15 * width).all()


@pytest.mark.parametrize(
    ("matches", "others", "apart", "p_target"),
    [(300, 900, 3, 0.01), (1000, 10_000, 3, 0.01), (300, 900, 2, 0.5), (100, 1000, 4, 0.01), (500, 500, 2.5, 0.01)],
)
def test_intervals_of_the_least_cost_hold_that_of_all_pairs(matches, others, apart, p_target):
    """Percentiles of each draw's own least cost held it in 20 to 87 % of such draws."""
    threshold = np.linspace(-10, 14, 20_001)
    cost = Costs("", p_target).of(norm.sf(threshold), norm.sf(threshold - apart)).min()
    rng, held = np.random.default_rng(0), 0
    same = np.arange(matches + others) < matches
    for seed in range(60):
        scores = rng.normal(size=len(same)) + apart * same
        found = metrics.detection_cost(scores, same, p_target, resamples=200, seed=seed)
        low, high = found.min_dcf_interval
        assert low <= found.min_dcf <= high
        held += low <= cost <= high
    # Of 60, where 88 % is the least that 150 draws of each of eight populations had: less three standard errors.
    assert held >= 60 * (0.88 - 3 * math.sqrt(0.88 * 0.12 / 60))


def speakers(seed, voices=30, enrolled=3, tested=3):
    """Trials of all enrolments with all tests; a voice has its own difficulty, so that its trials go together."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(voices, 6))
    hard = np.exp(rng.normal(0, 0.7, voices))
    sides = [np.arange(voices).repeat(n) for n in (enrolled, tested)]
    a, b = (x[of] + 0.6 * hard[of, None] * rng.normal(size=(len(of), 6)) for of in sides)
    scores = -((a[:, None] - b) ** 2).sum(2).ravel()
    i, j = np.divmod(np.arange(len(scores)), len(sides[1]))
    names = [np.array([f"{side}{n}" for n in range(len(of))]) for side, of in zip("et", sides, strict=True)]
    return scores, sides[0][i] == sides[1][j], names[0][i], names[1][j]


def test_intervals_of_trials_draw_speakers():
    """Trials one by one are too sure of other speakers: of 40 lists their intervals hold the rates of all in fewer."""
    truth = [np.mean([call(*speakers(900 + seed)[:2], resamples=1)[0] for seed in range(40)]) for call in RATES]
    held = np.zeros((2, 2))
    for seed in range(40):
        scores, same, enrol, test = speakers(seed)
        clusters = metrics.trial_clusters(enrol, test, same)
        assert len(np.unique(clusters)) == 30 and ((clusters[:, 0] == clusters[:, 1]) == same).all()
        for i, of in enumerate((None, clusters)):
            found = [call(scores, same, clusters=of, resamples=300, seed=seed)[1] for call in RATES]
            held[i] += [low <= value <= high for (low, high), value in zip(found, truth, strict=True)]
    # Of 95 % with 30 speakers, whose percentiles are a little narrow, less three standard errors of 40 lists.
    assert (held[1] >= 40 * (0.93 - 3 * math.sqrt(0.93 * 0.07 / 40))).all() and (held[0] < held[1] - 5).all()


def equal_error(*pairs, **named):
    found = metrics.equal_error_rate(*pairs, **named)
    return found.rate, found.rate_interval


def least_cost(*pairs, **named):
    found = metrics.detection_cost(*pairs, 0.2, **named)
    return found.min_dcf, found.min_dcf_interval


RATES = equal_error, least_cost


def test_clusters_of_other_shapes_are_refused_and_one_of_them_has_no_interval():
    scores, same = [4.0, 3, 2, 1], SAME
    with pytest.raises(ValueError, match=r"^detection_cost: clusters has shape \(3,\), expected \(4,\) or \(4, 2\)$"):
        metrics.detection_cost(scores, same, clusters=[1, 2, 3])
    with pytest.raises(ValueError, match=r"^equal_error_rate: 1 of the 4 clusters are missing"):
        metrics.equal_error_rate(scores, same, clusters=["a", None, "b", "c"])
    with pytest.raises(ValueError, match=r"clusters has shape \(4, 3\), expected"):
        metrics.equal_error_rate(scores, same, clusters=np.zeros((4, 3), int))
    alone = metrics.detection_cost(scores, same, clusters=[7, 7, 7, 7])
    assert np.isnan([*alone.min_dcf_interval, *alone.cllr_interval]).all() and alone.min_dcf == 0


# -- thresholds --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*look reversed")
@pytest.mark.parametrize("by", ["f1", "mcc"])
@pytest.mark.parametrize("scores, same", CASES)
def test_thresholds_by_f1_and_mcc_against_scikit_learn(scores, same, by):
    measure = {"f1": lambda *x: f1_score(*x, zero_division=0), "mcc": matthews_corrcoef}[by]
    tried = {t: measure(same, scores >= t) for t in [*scores, -math.inf, math.inf]}
    best = metrics.best_threshold(scores, same, by=by)
    assert measure(same, scores >= best) == pytest.approx(max(tried.values()), abs=1e-12)
    assert all(t <= best for t, x in tried.items() if x > max(tried.values()) - 1e-12) or best == -math.inf


INF = math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(20))
def test_thresholds_part_infinite_scores_as_they_say(dtype, seed):
    rng = np.random.default_rng(seed)
    scores = rng.choice([-INF, -1.0, 0.0, 2.0, INF], 8).astype(dtype)
    same = rng.permutation(np.arange(8) < 4)
    for far in (0, 0.25, 0.5, 1):
        found = metrics.tar_at_far(scores, same, far, resamples=2)
        accepted = scores >= found.threshold
        assert (accepted[same].mean(), accepted[~same].mean()) == (found.tar, found.attained_far)
    for by in ("accuracy", "f1", "mcc"):
        best = metrics.best_threshold(scores, same, by=by)
        good = {t: best_by(scores >= t, same, by) for t in (-INF, -1, 0, 2, INF)}
        assert good.get(best, best_by(scores >= best, same, by)) == pytest.approx(max(good.values()), abs=1e-12)
    at_equal = metrics.equal_error_rate(scores, same, resamples=2).threshold
    assert at_equal == -INF or at_equal in np.nan_to_num(scores)


def best_by(accepted, same, by):
    measures = {"accuracy": lambda x, y: (x == y).mean(), "f1": lambda x, y: f1_score(x, y, zero_division=0)}
    return {**measures, "mcc": matthews_corrcoef}[by](same, accepted)


def test_infinite_scores_of_impostors():
    """inf accepts them: it was said to have a FAR of 0, and to decide best."""
    assert math.isnan(metrics.tar_at_far([INF, 0.0], [0, 1], 0, resamples=2).threshold)
    assert metrics.best_threshold([INF, 0.0], [0, 1]) == -INF
    found = metrics.tar_at_far([-INF, 0.0], [1, 0], 1, resamples=2)
    assert (found.tar, found.threshold) == (1, -INF)
    with pytest.raises(ValueError, match=r"^best_threshold: unknown by 'f2'; did you mean 'f1'\?$"):
        metrics.best_threshold([1, 2], [0, 1], by="f2")


@pytest.mark.parametrize("scores, same", CASES)
def test_the_threshold_at_the_equal_error_is_where_voxceleb_has_it(scores, same):
    found = metrics.equal_error_rate(scores, same, resamples=5)
    gaps = {t: abs((scores[same == 1] < t).mean() - (scores[same == 0] >= t).mean()) for t in scores}
    assert found.threshold == max(t for t, gap in gaps.items() if gap <= min(gaps.values()) + 1e-12)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"p_target": 0}, "p_target is 0, expected a probability between 0 and 1"),
        ({"p_target": 1.0}, "p_target is 1.0"),
        ({"p_target": math.nan}, "p_target is nan"),
        ({"c_miss": 0}, "c_miss is 0, expected a finite number above 0"),
        ({"c_fa": -1.0}, "c_fa is -1.0"),
        ({"c_fa": math.inf}, "c_fa is inf"),
        ({"resamples": 0}, "resamples is 0"),
        ({"level": 1}, "level 1"),
    ],
)
def test_costs_refuse(bad, message):
    with pytest.raises(ValueError, match=message):
        metrics.detection_cost([4.0, 3, 2, 1], SAME, **bad)


def test_truncated_rows_keep_whole_classes():
    labels = np.array(list("abacabadabacabae"))
    for seed in range(20):
        kept = metrics.truncated_rows(labels, 9, seed)
        assert len(kept) <= 9 and (np.diff(kept) > 0).all()
        assert not set(labels[kept]) & set(np.delete(labels, kept))
    assert len(metrics.truncated_rows(labels, 16)) == 16
    np.testing.assert_array_equal(metrics.truncated_rows(labels, 9, 1), metrics.truncated_rows(labels, 9, 1))


def test_truncated_rows_are_as_many_as_fit():
    labels = np.repeat(np.arange(10), 3)
    assert [len(metrics.truncated_rows(labels, items)) for items in range(3, 32)] == [
        n // 3 * 3 for n in range(3, 31)
    ] + [30]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.roc_auc([1, 2], [1, 1]), r"^roc_auc: same is True for all 2 pairs, expected both$"),
        (lambda: metrics.equal_error_rate([1], [0]), r"^equal_error_rate: same is False for all 1 pairs"),
        (lambda: metrics.tar_at_far([1, 2], [0, 0], 0.1), r"^tar_at_far: same is False for all 2 pairs"),
        (
            lambda: metrics.verification_accuracy([1, 2], [1]),
            r"^verification_accuracy: same has shape \(1,\), expected",
        ),
        (
            lambda: metrics.verification_accuracy([1, 2], [1, 0], math.nan),
            r"accuracy: threshold is NaN, expected a num",
        ),
        (lambda: metrics.roc_auc([1, math.nan], [1, 0]), r"1 of the 2 numbers of scores are NaN, first in row 1$"),
        (
            lambda: metrics.best_threshold([1, math.nan], [1, 0]),
            r"1 of the 2 numbers of scores are NaN, first in row 1$",
        ),
        (
            lambda: metrics.best_threshold([1, 2], [1, 2]),
            r"^best_threshold: same has 2 in row 1, expected only 0 and 1",
        ),
        (
            lambda: metrics.best_threshold([], []),
            r"^best_threshold: scores has shape \(0,\), expected \(N,\) with N > 0$",
        ),
        (lambda: metrics.tar_at_far([1, 2], [0, 1], 1.1), r"^tar_at_far: far is 1.1, expected \[0, 1\]$"),
        (lambda: metrics.tar_at_far([1, 2], [0, 1], math.nan), r"^tar_at_far: far is nan, expected \[0, 1\]$"),
        (lambda: metrics.tar_at_far([1, 2], [0, 1], 0, resamples=0), r"^tar_at_far: resamples is 0 and level 0.95"),
        (lambda: metrics.tar_at_far([1, 2], [0, 1], 0, level=1), r"^tar_at_far: resamples is 2000 and level 1, exp"),
        (lambda: metrics.ceda([1, 0], [1]), r"^ceda: confidence has shape \(1,\), expected \(2,\) like right$"),
        (lambda: metrics.ceda([1, 0], [math.nan] * 2), r"^ceda: 2 of the 2 numbers of confidence are NaN"),
        (lambda: metrics.ceda([], []), r"^ceda: right has shape \(0,\)"),
        (lambda: metrics.r_auroc([1, 0.5], [1, 2]), r"^r_auroc: right has 0.5 in row 1, expected only 0 and 1"),
        (
            lambda: metrics.truncated_rows([1, 1, 2, 2], 1),
            r"^truncated_rows: items is 1, expected at least the size of a class",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_area_under_a_roc_curve_is_the_share_of_pairs_won_and_half_of_the_ties():
    rng = np.random.default_rng(0)
    for size in (2, 7, 60):
        scores, same = rng.integers(0, 9, size) / 2, np.arange(size) % 3 == 0
        won = (scores[same][:, None] > scores[~same]) + (scores[same][:, None] == scores[~same]) / 2
        assert metrics.roc_auc(scores, same) == won.mean() == pytest.approx(roc_auc_score(same, scores), abs=1e-15)
    assert metrics.r_auroc([True, False, False], [np.inf, np.inf, -np.inf]) == 0.75


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_threshold_above_a_score_is_the_same_in_the_other_byte_order(dtype):
    scores, same = np.array([1, 0.25, 0.75, 0.5], dtype), [0, 0, 1, 1]
    above = metrics.tar_at_far(scores, same, 0, resamples=2).threshold
    assert above == float(np.nextafter(dtype(1), dtype(2)))
    assert metrics.tar_at_far(scores.astype(np.dtype(dtype).newbyteorder()), same, 0, resamples=2).threshold == above
