"""Open-set identification against its definition, search by search and threshold by threshold."""

import math

import numpy as np
import pytest

from peaccel import metrics

INF = math.inf


def rates(mated, non_mated, threshold):
    """FPIR and FNIR as ISO/IEC 19795-1 defines them, of what searches return: none returns what scores -inf."""
    false_positives = [x for x in non_mated if x != -INF and x >= threshold]
    misses = [x for x in mated if x == -INF or x < threshold]
    return len(false_positives) / len(non_mated), len(misses) / len(mated)


def best_at(mated, non_mated, fpir):
    """The threshold, FPIR and FNIR of least FNIR whose FPIR is at most the given one, the lowest of several."""
    tried = [(t, *rates(mated, non_mated, t)) for t in {INF, *mated, *non_mated} - {-INF}]
    return min((x for x in tried if x[1] <= fpir), key=lambda x: (x[2], x[0]))


def drawn(seed, ties, lost, non_mated=50):
    rng = np.random.default_rng(seed)
    mated, others = rng.normal(1, 1, 80), rng.normal(size=non_mated)
    mated[rng.random(80) < lost], others[rng.random(non_mated) < lost] = -INF, -INF
    return (np.round(mated, 1), np.round(others, 1)) if ties else (mated, others)


CASES = [drawn(seed, ties, lost) for seed in range(3) for ties in (False, True) for lost in (0, 0.3, 1)]
CASES += [
    drawn(5, True, 0.2, non_mated=1),
    ([0.5], [0.5]),
    ([0.5, 0.5], [0.5, -INF]),
    ([-INF], [0.0]),
    ([0, 1], [-INF]),
]
CASES += [(np.float32([0.1, 0.3]), np.float32([0.2, 0.3])), (-np.arange(9.0), np.zeros(3))]


@pytest.mark.parametrize(("mated", "non_mated"), CASES)
def test_rates_at_every_threshold(mated, non_mated):
    found = metrics.open_set(mated, non_mated)
    assert found.thresholds.tolist() == sorted({INF, *map(float, [*mated, *non_mated])} - {-INF}, reverse=True)
    for at, *pair in zip(found.thresholds, found.fpir, found.fnir, strict=True):
        assert tuple(pair) == rates(mated, non_mated, at)
    for at in [*found.thresholds, *(found.thresholds[1:] + 1e-9), *(found.thresholds[1:] - 1e-9), -INF]:
        point = found.at_threshold(at)
        assert (point.fpir, point.fnir) == rates(mated, non_mated, at)
        assert point.threshold >= at and point.threshold in found.thresholds


@pytest.mark.parametrize(("mated", "non_mated"), CASES)
def test_the_least_fnir_that_keeps_an_fpir(mated, non_mated):
    found = metrics.open_set(mated, non_mated)
    for fpir in (0, 0.01, 0.02, 0.1, 0.29, 1 / 3, 0.5, 0.999, 1):
        point = found.at_fpir(fpir)
        assert (point.threshold, point.fpir, point.fnir) == best_at(mated, non_mated, fpir)
        assert point.detection_identification_rate == 1 - point.fnir


def test_equal_scores_are_returned_together():
    """Two of four searches without a mate score .5: an FPIR of a quarter can be had above it alone."""
    found = metrics.open_set([0.5, 0.6, 0.4], [0.5, 0.5, 0.1, -INF]).at_fpir(0.25)
    assert (found.threshold, found.fpir, round(found.fnir, 3)) == (0.6, 0, 0.667)
    assert metrics.open_set([0.5], [0.5]).at_fpir(0.5).threshold == INF


def test_a_share_that_is_attained_is_kept():
    """29 of 100 is 0.29, whose product with 100 lies below 29."""
    assert metrics.open_set([0.0], np.arange(100)).at_fpir(0.29).fpir == 0.29


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 5, 9])
def test_mates_by_search(ties, rank):
    rng = np.random.default_rng(rank)
    scores = -np.sort(-rng.normal(size=(60, 6)), 1)
    scores = scores.round(1) if ties else scores
    scores[7, 3:] = -INF
    relevant = rng.random((60, 6)) < 0.2
    expected = [
        max((x for x, mate in zip(row[:rank], hits, strict=False) if mate), default=-INF)
        for row, hits in zip(scores.tolist(), relevant, strict=True)
    ]
    assert metrics.mate_scores(scores, relevant, rank).tolist() == expected
    assert metrics.mate_scores(scores.tolist(), relevant.astype(int).tolist(), rank).tolist() == expected


def test_the_share_of_mates_within_a_rank_is_recall():
    rng = np.random.default_rng(3)
    labels, of_gallery = rng.integers(0, 9, 40), np.arange(25) % 9  # so that every search is mated
    scores = rng.normal(size=(40, 25))
    ids = np.argsort(-scores, 1)
    ranked, relevant = np.take_along_axis(scores, ids, 1), metrics.relevance(ids, labels, of_gallery)
    for k in (1, 3):
        found = metrics.open_set(metrics.mate_scores(ranked, relevant, k), [-9.0])
        assert 1 - found.fnir[-1] == pytest.approx(metrics.recall_at_k(ids, labels, of_gallery, k=k), abs=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.open_set([], [1]), r"^open_set: mated has shape \(0,\), expected \(N,\) with N > 0$"),
        (lambda: metrics.open_set([1], []), r"^open_set: non_mated has shape \(0,\), expected"),
        (
            lambda: metrics.open_set([1, math.nan], [1]),
            "^open_set: 1 of the 2 numbers of mated are NaN, first in row 1$",
        ),
        (
            lambda: metrics.open_set([1], [math.nan]),
            "^open_set: 1 of the 1 numbers of non_mated are NaN, first in row 0$",
        ),
        (lambda: metrics.open_set([1], [1]).at_fpir(1.5), r"^at_fpir: fpir is 1.5, expected \[0, 1\]$"),
        (lambda: metrics.open_set([1], [1]).at_fpir(math.nan), r"^at_fpir: fpir is nan, expected \[0, 1\]$"),
        (lambda: metrics.open_set([1], [1]).at_threshold(math.nan), "^at_threshold: threshold is NaN, expected a num"),
        (lambda: metrics.mate_scores([[1, 2]], [[1]]), r"^mate_scores: relevant has shape \(1, 1\), expected \(1, 2\)"),
        (lambda: metrics.mate_scores([[1]], [[2]]), "^mate_scores: relevant has numbers other than 0 and 1, expected"),
        (lambda: metrics.mate_scores([[1]], [[1]], 0), "^mate_scores: rank is 0, expected at least 1$"),
        (
            lambda: metrics.mate_scores([[math.nan]], [[1]]),
            "^mate_scores: 1 of the 1 numbers of scores are NaN, first in row 0$",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
