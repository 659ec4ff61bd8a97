"""Items ranked among themselves, and average precision at k: against naive loops and pytorch-metric-learning."""

import itertools
import math

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel import metrics
from peaccel.published.non_isotropic import average_precision_with_query


def others(ids):
    """Each query's ids without its own row, cut to one column less, in plain Python."""
    return [[j for j in row if j != i][: len(row) - 1] for i, row in enumerate(ids)]


def naive(ids, queries, gallery, sizes, k):
    """Hit at k, AP at R, AP at k and what was published for it, for each query, None where R = 0."""
    values = []
    for row, q, r in zip(ids, queries, sizes, strict=True):
        right = [i >= 0 and gallery[i] == q for i in row]
        precision = [sum(right[: j + 1]) / (j + 1) if right[j] else 0 for j in range(len(row))]
        at_r, at_k = sum(precision[:r]), sum(precision[:k])
        values.append((any(right[:k]), at_r / r, at_k / min(r, k), at_k / (r + 1)) if r else (math.nan,) * 4)
    return np.array(values, float).T


def all_four(ids, *labels, k):
    return [
        metrics.hit_at_k(ids, *labels, k=k),
        metrics.average_precision_at_r(ids, *labels),
        metrics.average_precision_at_k(ids, *labels, k=k),
        average_precision_with_query(ids, *labels, k=k),
    ]


def all_means(ids, *labels, k):
    return [
        metrics.recall_at_k(ids, *labels, k=k),
        metrics.map_at_r(ids, *labels),
        metrics.map_at_k(ids, *labels, k=k),
    ]


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("seed", range(5))
def test_queries_and_gallery_against_loops(seed, k):
    rng = np.random.default_rng(seed)
    queries, gallery = rng.integers(0, 7, 30), rng.integers(0, 5, 40)  # classes 5 and 6 cannot be found
    ids = rng.permuted(np.tile(np.arange(40), (30, 1)), axis=1)
    ids[rng.random(ids.shape) < 0.1] = -1
    expected = naive(ids.tolist(), queries, gallery, [(gallery == q).sum() for q in queries], k)
    np.testing.assert_allclose(all_four(ids, queries, gallery, k=k), expected, rtol=1e-14)
    np.testing.assert_allclose(all_means(ids, queries, gallery, k=k), np.nanmean(expected[:3], 1), rtol=1e-14)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("seed", range(5))
def test_items_among_themselves_against_loops(seed, k):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 9, 40)
    labels[0] = 99  # the only one of its class
    ids = rng.permuted(np.tile(np.arange(40), (40, 1)), axis=1)[:, :25]  # own rows anywhere, or missing
    sizes = [(labels == label).sum() - 1 for label in labels]
    expected = naive(others(ids.tolist()), labels, labels, sizes, k)
    assert np.isnan(expected[:, 0]).all()
    np.testing.assert_allclose(all_four(ids, labels, k=k), expected, rtol=1e-14)
    np.testing.assert_allclose(all_means(ids, labels, k=k), np.nanmean(expected[:3], 1), rtol=1e-14)
    np.testing.assert_array_equal(metrics.without_self(ids), others(ids.tolist()))
    scores = ids / 7
    np.testing.assert_array_equal(metrics.without_self(ids, scores), metrics.without_self(ids) / 7)
    np.testing.assert_array_equal(metrics.relevance(ids, labels), labels[metrics.without_self(ids)] == labels[:, None])


def test_items_among_themselves_over_many_blocks():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 50, 3000)
    ids = rng.integers(0, 3000, (3000, 60))
    ids[:, 0] = np.where(rng.random(3000) < 0.5, np.arange(3000), -1)
    twice = (ids == np.arange(3000)[:, None]) & (np.arange(60) > 0)
    ids[twice] = -1
    np.testing.assert_array_equal(metrics.without_self(ids), others(ids.tolist()))
    expected = [labels[i] in labels[[j for j in row[:3] if j >= 0]] for i, row in enumerate(others(ids.tolist()))]
    np.testing.assert_array_equal(metrics.hit_at_k(ids, labels, k=3), expected)


def test_an_own_row_behind_its_duplicates_is_the_one_removed():
    ids, labels = [[1, 0, 2], [0, 1, 2], [1, 2, 0]], [5, 5, 6]
    assert metrics.without_self(ids).tolist() == [[1, 2], [0, 2], [1, 0]]
    assert metrics.recall_at_k(ids, labels) == 1  # 6 stands alone
    assert np.isnan(metrics.hit_at_k(ids, labels)).tolist() == [False, False, True]


def test_all_right_all_wrong_and_one_item():
    labels, ids = np.repeat([0, 1], 3), np.array([[0, 1, 2], [1, 0, 2], [2, 0, 1], [3, 4, 5], [4, 3, 5], [5, 3, 4]])
    assert all_means(ids, labels, k=2) == [1, 1, 1]
    assert all_means(ids[::-1], labels, k=2) == [0, 0, 0]
    assert all_means([[0, -1]], [3], k=1) == pytest.approx([math.nan] * 3, nan_ok=True)


def test_against_pytorch_metric_learning():
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, 90)
    x = rng.normal(size=(8, 4))[labels] + rng.normal(size=(90, 4))
    names = ("precision_at_1", "mean_average_precision_at_r", "mean_average_precision")
    theirs = calculator(include=names, k=89).get_accuracy(x.astype("f4"), labels)
    ids = ((x[:, None] - x) ** 2).sum(2).argsort(1)
    ours = metrics.recall_at_k(ids, labels), metrics.map_at_r(ids, labels), metrics.map_at_k(ids, labels, k=89)
    assert ours == pytest.approx([theirs[name] for name in names], abs=1e-6)  # the other library's values are float32


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.without_self([[0], [1]], [[0.5, 1]]), r"values has shape \(1, 2\), expected .* \(2, 1\)$"),
        (lambda: metrics.without_self([[], []]), r"^without_self: values has shape \(2, 0\), expected \(N, K\) with K"),
        (lambda: metrics.without_self([[1, 2], [1, 1]]), r"^without_self: ids of query 1 name its own row 2 times$"),
        (lambda: metrics.recall_at_k([[0, 1]], [1], k=1), r"^recall_at_k: ids span 0..1, expected -1..0$"),
        (lambda: metrics.recall_at_k([[0, 1]], [1], k=2), r"^recall_at_k: k is 2, expected 1..1$"),
        (lambda: metrics.average_precision_at_k([[0, 1]], [1]), r"^average_precision_at_k: k is 1000, expected 1..1$"),
        (lambda: metrics.map_at_k([[0, 1]], [1]), r"^map_at_k: k is 1000, expected 1..1$"),
        (lambda: metrics.hit_at_k([[0, 1]], [1, 2]), r"^hit_at_k: ids has shape \(1, 2\), expected \(2, K\)"),
        (
            lambda: metrics.map_at_r([[0], [1]], [1, 1]),
            r"^map_at_r: ids has 1 columns, expected at least R \+ 1 = 2, own rows included$",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- equal scores ------------------------------------------------------------------------------------------------------

METRICS = {
    "hit_at_k": lambda ids, *labels: metrics.hit_at_k(ids, *labels, k=2),
    "average_precision_at_r": metrics.average_precision_at_r,
    "average_precision_at_k": lambda ids, *labels: metrics.average_precision_at_k(ids, *labels, k=3),
}


def orders(ids, scores):
    """All rankings of one query in which items with a score stand in any order."""
    groups = [[i for i, s in zip(ids, scores, strict=True) if s == of] for of in sorted(set(scores), reverse=True)]
    for order in itertools.product(*map(itertools.permutations, groups)):
        yield list(itertools.chain(*order))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_equal_scores_count_by_the_mean_over_all_orders(metric, own, seed):
    rng = np.random.default_rng(seed)
    gallery = rng.integers(0, 3, 7)
    queries = gallery if own else rng.integers(0, 4, 7)
    labels = (gallery,) if own else (queries, gallery)
    ids = np.argsort(rng.random((7, 7)), 1)
    scores = -np.sort(rng.integers(0, 3, (7, 7)).astype("f4"), 1)  # at most seven items share one
    scores[0] = -np.arange(7)  # and of one query none do
    found = metric(pe.Ranking(scores, ids), *labels)
    for row in range(7):
        alone = np.tile(np.arange(7), (7, 1))  # what the others rank is of no matter
        values = []
        for order in orders(ids[row], scores[row]):
            alone[row] = order
            values.append(metric(alone, *labels)[row])
        assert found[row] == pytest.approx(np.mean(values), abs=1e-14, nan_ok=True)
    assert found[0] == pytest.approx(metric(ids, *labels)[0], abs=0, nan_ok=True)
    torch_found = metric(pe.Ranking(*map(torch.tensor, (scores, ids))), *labels)
    np.testing.assert_array_equal(torch_found, found)


def test_scores_that_all_differ_leave_every_bit():
    rng = np.random.default_rng(0)
    labels, gallery = rng.integers(0, 20, 500), rng.integers(0, 20, 900)
    ids, scores = rng.permuted(np.tile(np.arange(900), (500, 1)), axis=1)[:, :80], -np.arange(80.0) * np.ones((500, 1))
    for metric in METRICS.values():
        np.testing.assert_array_equal(metric(pe.Ranking(scores, ids), labels, gallery), metric(ids, labels, gallery))


def test_what_has_no_score_was_not_found():
    """A query of NaN once counted as answered by row 0."""
    ids, labels = np.array([[0, 1], [0, 1], [0, -1]]), ([7, 7, 7], [7, 8])
    ranking = pe.Ranking(np.array([[np.nan, np.nan], [2.0, 1.0], [2.0, -np.inf]]), ids)
    assert metrics.hit_at_k(ranking, *labels).tolist() == [0, 1, 1]
    assert metrics.relevance(ranking, *labels)[:, 0].tolist() == [False, True, True]
    assert metrics.recall_at_k(ranking, *labels) == pytest.approx(2 / 3)
    # What was not found, -1 with -inf, shares no score with an item that is as unlike as can be.
    nothing = pe.Ranking(np.full((1, 3), -np.inf), np.array([[0, -1, -1]]))
    assert metrics.hit_at_k(nothing, [7], [7]).tolist() == [1]


def test_a_ranking_of_other_shapes_is_refused():
    for scores in ([[0.5]], [["a", "b"]]):
        with pytest.raises(ValueError, match=r"^hit_at_k: scores has shape .*, expected numbers \(1, 2\) like ids$"):
            metrics.hit_at_k(pe.Ranking(np.array(scores), np.array([[0, 1]])), [1], [1, 2])
