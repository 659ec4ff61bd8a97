"""Rejection: against naive loops, all orders of equals, all subsets, and scikit-learn."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score

from peaccel import metrics

SHARES = np.array([0, 0.1, 0.25, 0.5, 0.9])


def case(seed, ties, size=60):
    rng = np.random.default_rng(seed)
    confidence = rng.normal(size=size)
    right = rng.random(size) < 1 / (1 + np.exp(-confidence))
    return right, np.round(confidence, 0) if ties else confidence


def kept_at(values, share):
    return values[: math.ceil(round(len(values) * (1 - share), 9))]


def naive(values):
    """All of them for values in order of confidence: curve, ERC, AUSC, AUGRC."""
    curve = [np.mean(kept_at(values, share)) for share in SHARES]
    erc = np.mean([1 - np.mean(values[: n + 1]) for n in range(len(values))])
    steps = [np.mean(kept_at(values, i / 100)) for i in range(99)]
    risks = [sum(1 - v for v in values[:n]) / len(values) for n in range(len(values) + 1)]
    return [*curve, erc, trapezoid(steps, dx=1 / 98), trapezoid(risks, dx=1 / len(values))]


def ours(values, confidence):
    curve = metrics.rejection_curve(values, confidence, SHARES)
    return [
        *curve,
        *(metrics.rejection_area(values, confidence, kind) for kind in ("aurc", "ausc", "augrc")),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_areas_against_loops(seed):
    right, confidence = case(seed, False)
    assert ours(right, confidence) == pytest.approx(naive(right[np.argsort(-confidence)].tolist()), abs=1e-13)


@pytest.mark.parametrize("confidence", [[0, 0, 0, 0, 0], [1, 0, 1, 0, 1], [2, 2, 1, 0, 0]])
def test_equal_confidences_are_the_mean_over_their_orders(confidence):
    values = [1.0, 0.25, 0.0, 0.5, 1.0]
    orders = [p for p in itertools.permutations(range(5)) if sorted(confidence)[::-1] == [confidence[i] for i in p]]
    expected = np.mean([naive([values[i] for i in p]) for p in orders], axis=0)
    assert ours(values, confidence) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_generalised_risk_has_a_closed_form_in_the_roc_area(seed, ties):
    right, confidence = case(seed, ties)
    share = right.mean()
    expected = (1 - roc_auc_score(right, confidence)) * share * (1 - share) + (1 - share) ** 2 / 2
    assert metrics.rejection_area(right, confidence, "augrc") == pytest.approx(expected, abs=1e-13)


def naive_nauc(values, confidence):
    """By what retrieval benchmarks define: abstention from none to nine tenths, its area between flat and best."""

    def area(by):
        order = np.argsort(by, kind="stable")
        curve = [values[order[min(round(rate * len(order)), len(order) - 1) :]].mean() for rate in RATES]
        return trapezoid(curve, RATES)

    flat = values.mean() * 0.9
    return (area(confidence) - flat) / (area(values) - flat)


RATES = np.linspace(0, 1, 11)[:-1]
area_of_abstention = partial(metrics.rejection_area, kind="nauc")


@pytest.mark.parametrize("size", [2, 3, 7, 25, 60, 145])
@pytest.mark.parametrize("seed", range(3))
def test_the_area_of_abstention_is_that_of_retrieval_benchmarks(seed, size):
    rng = np.random.default_rng(seed)
    values, confidence = rng.random(size), rng.normal(size=size)
    for quality in (values, (values > np.median(values)).astype(float)):
        assert area_of_abstention(quality, confidence) == pytest.approx(naive_nauc(quality, confidence), abs=1e-12)
    assert area_of_abstention(values, values) == pytest.approx(1)
    assert area_of_abstention(values, np.zeros(size)) == pytest.approx(0, abs=1e-12)
    orders = [area_of_abstention([1.0, 0.25, 0.0], p) for p in itertools.permutations([1, 2, 3])]
    assert area_of_abstention([1.0, 0.25, 0.0], [5, 5, 5]) == pytest.approx(0) and min(orders) < 0 < max(orders)
    assert math.isnan(area_of_abstention(np.ones(size), confidence))


@pytest.mark.parametrize("seed", range(5))
def test_the_least_area_is_that_of_the_order_of_the_values(seed):
    values, confidence = np.random.default_rng(seed).random((2, 6))
    areas = [metrics.rejection_area(values, p) for p in itertools.permutations(range(6))]
    assert metrics.rejection_area(values, values) == pytest.approx(min(areas))
    assert metrics.rejection_area(values, -values) == pytest.approx(max(areas))
    assert min(areas) <= metrics.rejection_area(values, confidence) <= max(areas)


def test_all_right_all_wrong_one_query_and_a_constant_confidence():
    for value in (0.0, 1.0):
        for confidence in ([3.0], [1.0, 2, 3, math.inf]):
            found = ours([value] * len(confidence), confidence)
            assert found == pytest.approx([value] * 5 + [1 - value, value, (1 - value) / 2], abs=1e-15)
    assert ours([1, 0, 0, 0], [5, 5, 5, 5]) == pytest.approx([0.25] * 5 + [0.75, 0.25, 0.375])


@pytest.mark.parametrize("rule, power", [("harmonic", -1), ("arithmetic", 1), ("quadratic", 2)])
def test_uncertainties_of_pairs_are_power_means(rule, power):
    u, v = np.exp(np.random.default_rng(0).normal(size=(2, 50)) * 3)
    assert metrics.pair_uncertainty(u, v, rule) == pytest.approx(((u**power + v**power) / 2) ** (1 / power), rel=1e-14)


def test_uncertainties_of_pairs_neither_overflow_nor_vanish():
    assert metrics.pair_uncertainty([2, 1e300, 1e-300], [8, 4e300, 4e-300]) == pytest.approx([4, 2e300, 2e-300])
    assert metrics.pair_uncertainty([1e-320], [3e-320], "harmonic") == pytest.approx([1.5e-320], rel=1e-3)  # subnormal
    assert metrics.pair_uncertainty([1e300], [1e300], "quadratic") == pytest.approx([1e300])
    for rule, value in (("min", 1), ("max", 2)):
        assert metrics.pair_uncertainty([1], [2], rule) == [value]


def naive_tar(scores, same, far):
    negative = sorted((s for s, y in zip(scores, same, strict=True) if not y), reverse=True)
    positive = [s for s, y in zip(scores, same, strict=True) if y]
    if not negative or not positive:
        return math.nan, math.nan
    fitting = [t for t in scores if np.mean([s >= t for s in negative]) <= far]
    threshold = min(fitting, default=math.inf)
    return np.mean([s >= threshold for s in positive]), np.mean([s >= threshold for s in negative])


def verification(seed, size, ties):
    rng = np.random.default_rng(seed)
    same = np.arange(size) < size // 2
    scores = rng.normal(size=size) + same
    return np.round(scores) if ties else scores, same, rng.permutation(size) / 7


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("far", [0, 0.01, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_reject_verification_against_loops(seed, far, ties):
    scores, same, uncertainty = verification(seed, 120, ties)
    shares = np.array([0, 0.1, 0.2, 0.5])
    found = metrics.reject_verification(scores, same, uncertainty, far, shares)
    order = np.argsort(uncertainty)
    expected = [naive_tar(scores[order[:n]], same[order[:n]], far) for n in (120, 108, 96, 60)]
    np.testing.assert_allclose(np.array([found.tar, found.attained_far]).T, expected, rtol=1e-14)
    assert found.area == pytest.approx(trapezoid(found.tar, shares), rel=1e-14)
    assert found.area_by_width == pytest.approx(found.area / 0.5, rel=1e-14)
    assert found.area_by_oracle == pytest.approx(found.area / trapezoid(found.oracle_tar, shares), rel=1e-14)
    assert (found.oracle_tar >= found.tar).all() and found.tar[0] == found.oracle_tar[0]
    at_one_share = metrics.reject_verification(scores, same, uncertainty, far, [0.2])
    assert at_one_share.tar[0] == found.tar[2] and math.isnan(at_one_share.area_by_width)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("far", [0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_is_the_best_of_all_subsets(seed, far, ties):
    scores, same, uncertainty = verification(seed, 9, ties)
    shares = np.arange(8) / 9
    found = metrics.reject_verification(scores, same, uncertainty, far, shares)
    for share, best in zip(shares, found.oracle_tar, strict=True):
        subsets = itertools.combinations(range(9), round(9 * (1 - share)))
        tars = [naive_tar(scores[list(kept)], same[list(kept)], far)[0] for kept in subsets]
        assert best == pytest.approx(np.nanmax(tars), abs=1e-14)


def test_a_constant_uncertainty_rejects_at_random_and_not_one_class():
    scores, same, _ = verification(0, 2000, False)
    found = metrics.reject_verification(scores, same, np.ones(2000), 0.1)
    assert len(found.shares) == 21 and found.shares[-1] == 0.5
    # 500 pairs of each class are left at worst, and the standard error of their TAR is at most 0.022.
    assert found.tar == pytest.approx(found.tar[0], abs=0.09) and found.area_by_width == pytest.approx(
        found.tar[0], abs=0.05
    )
    again = metrics.reject_verification(scores, same, np.ones(2000), 0.1, seed=1)
    assert again.tar[0] == found.tar[0] and (again.tar[1:] != found.tar[1:]).any()


def test_where_a_class_is_gone_the_rate_and_the_areas_are_nan():
    found = metrics.reject_verification([3, 2, 1, 0], [1, 1, 0, 0], [1, 2, 3, 4], 0, [0, 0.5, 0.8])
    assert found.tar[0] == 1 and np.isnan(found.tar[1:]).all() and math.isnan(found.area)
    assert found.oracle_tar[1] == 1 and math.isnan(found.oracle_tar[2])
    assert math.isnan(found.area_by_width) and math.isnan(found.area_by_oracle)
    hopeless = metrics.reject_verification([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1] * 6, 0, [0, 0.2])
    assert hopeless.area == hopeless.area_by_width == 0 and math.isnan(hopeless.area_by_oracle)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: metrics.rejection_curve([1, math.nan], [1, 2], [0]),
            r"^rejection_curve: 1 of the 2 numbers of values",
        ),
        (
            lambda: metrics.rejection_curve([1, 0], [1, math.nan], [0]),
            r"1 of the 2 numbers of confidence are NaN, first in row 1$",
        ),
        (
            lambda: metrics.rejection_curve([1, 0], [1, 2], []),
            r"^rejection_curve: shares has shape \(0,\), expected \(S,",
        ),
        (
            lambda: metrics.rejection_curve([1], [1], [-0.1]),
            r"^rejection_curve: shares span -0.1..-0.1, expected \[0, 1",
        ),
        (lambda: metrics.rejection_area([2, 0], [1, 1]), r"^rejection_area: values span 0..2, expected \[0, 1\]$"),
        (
            lambda: area_of_abstention([1], [1, 2]),
            r"^rejection_area: confidence has shape \(2,\), expected \(1,\) like values$",
        ),
        (
            lambda: metrics.rejection_area([], []),
            r"^rejection_area: values has shape \(0,\), expected \(Q,\) with Q > 0$",
        ),
        (
            lambda: metrics.rejection_area([1], [1], "erc"),
            r"^rejection_area: kind is 'erc', expected one of aurc, augrc, ausc, nauc$",
        ),
        (
            lambda: metrics.pair_uncertainty([1, -2], [1, 1]),
            r"^pair_uncertainty: first has -2, expected positive numbers",
        ),
        (lambda: metrics.pair_uncertainty([1], [0]), r"^pair_uncertainty: second has 0, expected positive numbers"),
        (
            lambda: metrics.pair_uncertainty([1], [math.inf]),
            r"1 of the 1 numbers of second are NaN or infinite, first in row 0; so",
        ),
        (
            lambda: metrics.pair_uncertainty([1], [1], "sum"),
            r"^pair_uncertainty: rule is 'sum', expected one of geometri",
        ),
        (lambda: metrics.reject_verification([1, 2], [1, 0], [1], 0.1), r"verification: uncertainty has shape \(1,\)"),
        (
            lambda: metrics.reject_verification([1, 2], [1, 1], [1, 2], 0.1),
            r"^reject_verification: same is True for all",
        ),
        (
            lambda: metrics.reject_verification([1, 2], [1, 0], [1, 2], 0, [0.2, 0.1]),
            r"verification: shares do not asc",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- error versus discard ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_error_versus_discard_against_loops(ties):
    rng = np.random.default_rng(3)
    scores, pairs, quality = rng.normal(size=400), rng.integers(0, 150, (400, 2)), rng.permutation(150)
    shares = np.array([0, 0.05, 0.11, 0.2, 0.9])
    found = metrics.error_versus_discard(scores, pairs, quality // 9 if ties else quality, -0.2, shares, seed=5)
    order = np.lexsort((np.random.default_rng(5).random(150), quality // 9 if ties else quality))
    for share, fnmr, count in zip(shares, found.fnmr, found.pairs, strict=True):
        gone = set(order[: int(150 * share + 1e-9)].tolist())
        left = [score for score, (a, b) in zip(scores, pairs.tolist(), strict=True) if not {a, b} & gone]
        assert count == len(left) and fnmr == pytest.approx(np.mean(np.array(left) < -0.2))
    width = np.diff(shares)
    assert found.area == pytest.approx((width * (found.fnmr[1:] + found.fnmr[:-1]) / 2).sum() / 0.9)
    at_threshold = metrics.error_versus_discard([0.5, 0.4], [[0, 1], [0, 1]], [1, 2], 0.5, [0.0, 0.5])
    assert at_threshold.fnmr[0] == 0.5 and np.isnan(at_threshold.fnmr[1]) and at_threshold.pairs.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": [[0, 1, 2]]}, r"pairs is int64 of shape \(1, 3\), expected integers \(1, 2\)"),
        ({"pairs": [[0, 3]]}, "pairs holds rows 0 to 3, expected 0 to 2"),
        ({"pairs": [[0.0, 1.0]]}, "pairs is float64 of"),
        ({"shares": [0.1, 0.0]}, "shares do not ascend"),
        ({"threshold": np.nan}, "threshold is nan"),
        ({"quality": [1, np.nan, 2]}, "quality"),
    ],
)
def test_error_versus_discard_refuses(change, message):
    with pytest.raises(ValueError, match=f"^error_versus_discard: .*{message}"):
        metrics.error_versus_discard(
            **{"scores": [1.0], "pairs": [[0, 1]], "quality": [1, 2, 3], "threshold": 0} | change
        )
