"""Metrics against hand cases and naive loops."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from peaccel import metrics


def naive_recall(ids, queries, gallery, k):
    hits = [
        any(i >= 0 and gallery[i] == q for i in row[:k]) for row, q in zip(ids, queries, strict=True) if q in gallery
    ]
    return sum(hits) / len(hits)


def naive_map_at_r(ids, queries, gallery):
    values = []
    for row, q in zip(ids, queries, strict=True):
        r = sum(label == q for label in gallery)
        if r == 0:
            continue
        found, total = 0, 0.0
        for rank in range(r):
            if row[rank] >= 0 and gallery[row[rank]] == q:
                found += 1
                total += found / (rank + 1)
        values.append(total / r)
    return sum(values) / len(values)


def naive_rejection(values, confidence, share):
    kept = sorted(range(len(values)), key=lambda i: -confidence[i])[: math.ceil(round(len(values) * (1 - share), 9))]
    return sum(values[i] for i in kept) / len(kept)


@pytest.fixture(params=range(20))
def case(request):
    rng = np.random.default_rng(request.param)
    queries, gallery = rng.integers(0, 7, 30), rng.integers(0, 5, 40)  # classes 5 and 6 cannot be found
    ids = np.argsort(rng.random((30, 40)), axis=1)[:, :25].copy()
    ids[rng.random(ids.shape) < 0.1] = -1
    return ids, queries, gallery


def test_recall_against_loops(case):
    ids, queries, gallery = case
    for k in (1, 2, 5, 25):
        assert metrics.recall_at_k(ids, queries, gallery, k) == pytest.approx(
            naive_recall(ids.tolist(), queries.tolist(), gallery.tolist(), k), abs=1e-15
        )


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64, np.float64, str, object, bool])
def test_classes_are_the_same_in_every_dtype_over_many_blocks(dtype):
    rng = np.random.default_rng(3)
    queries, gallery = rng.integers(0, 9, 500), rng.integers(2, 7, 300)
    ids = rng.permuted(np.tile(np.arange(300), (500, 1)), axis=1)
    ids[rng.random(ids.shape) < 0.1] = -1
    if dtype is bool:
        queries, gallery = queries % 2, gallery % 2
    q, g = queries.astype(dtype), gallery.astype(dtype)
    expected = (gallery[ids] == queries[:, None]) & (ids >= 0)
    np.testing.assert_array_equal(metrics.relevance(ids, q, g), expected)
    in_gallery = np.isin(queries, gallery)
    assert metrics.recall_at_k(ids, q, g, 3) == expected[:, :3].any(1)[in_gallery].mean()
    np.testing.assert_array_equal(np.isnan(metrics.average_precision_at_r(ids, q, g)), ~in_gallery)
    assert metrics.map_at_r(ids, q, g) == pytest.approx(naive_map_at_r(ids, queries, gallery), abs=1e-14)


def test_labels_far_from_0_and_far_apart():
    ids = np.array([[0, 1, 2], [2, 1, 0]])
    for labels in ([-(2**62), -1, 2**62], [2**62, 2**62 + 1, 2**62 + 2], [2**64 - 1, 2**63, 2**63 + 1]):
        gallery = np.array(labels)
        for i in (0, 2):
            found = metrics.average_precision_at_r(ids, gallery[[i, 1]], gallery)
            np.testing.assert_array_equal(found, [i == 0, 0])
    gallery = np.array([2, 3, 4], np.uint8)
    assert math.isnan(metrics.recall_at_k(ids, np.array([-5, 7]), gallery))
    assert np.isnan(metrics.average_precision_at_r(ids, np.array([-5, 7]), gallery)).all()


def test_map_at_r_against_loops(case):
    ids, queries, gallery = case
    expected = naive_map_at_r(ids.tolist(), queries.tolist(), gallery.tolist())
    assert metrics.map_at_r(ids, queries, gallery) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("n", [1, 2, 10, 97])
def test_rejection_against_loops(n):
    rng = np.random.default_rng(n)
    values, confidence, shares = rng.random(n), rng.random(n), np.array([0, 0.1, 0.5, 0.9, 0.99])
    expected = [naive_rejection(values.tolist(), confidence.tolist(), share) for share in shares]
    assert metrics.rejection_curve(values, confidence, shares) == pytest.approx(expected, abs=1e-14)


GALLERY = np.array(["a", "a", "b", "a", "c"])


def test_hand_case():
    queries = np.array(["a", "b", "z"])
    ids = np.array([[2, 0, 1], [2, 0, 1], [0, 1, 2]])
    assert metrics.relevance(ids, queries, GALLERY).tolist() == [[False, True, True], [True, False, False], [False] * 3]
    assert metrics.recall_at_k(ids, queries, GALLERY) == 1 / 2  # z is in no gallery and does not count
    assert metrics.recall_at_k(ids, queries, GALLERY, 2) == 1
    expected = [(1 / 2 + 2 / 3) / 3, 1.0, math.nan]
    assert metrics.average_precision_at_r(ids, queries, GALLERY) == pytest.approx(expected, nan_ok=True)
    assert metrics.map_at_r(ids, queries, GALLERY) == pytest.approx((expected[0] + 1) / 2)


def test_perfect_and_hopeless():
    queries = np.array(["a"])
    assert metrics.map_at_r(np.array([[3, 0, 1]]), queries, GALLERY) == 1
    assert metrics.map_at_r(np.array([[2, 4, -1]]), queries, GALLERY) == 0


def test_what_was_not_found_counts_as_a_miss():
    assert metrics.map_at_r(np.array([[0, -1]]), np.array(["d"]), np.array(["d", "d"])) == 0.5


def test_what_lies_past_r_does_not_count():
    ids = np.array([[0, 2, 1]])
    assert metrics.map_at_r(ids, np.array(["b"]), GALLERY) == 0


def test_padding_is_never_right():
    assert metrics.recall_at_k(np.array([[-1, -1]]), np.array(["c"]), GALLERY, 2) == 0  # -1 would index the last, a c


def test_nothing_to_answer_is_nan():
    assert math.isnan(metrics.recall_at_k(np.array([[0]]), np.array(["z"]), GALLERY))
    assert math.isnan(metrics.map_at_r(np.array([[0]]), np.array(["z"]), GALLERY))
    assert math.isnan(metrics.map_at_r(np.array([[-1]]), np.array(["a"]), GALLERY[:0]))


def test_rejection_hand_case():
    right, confidence = np.array([1, 0, 1, 0]), np.array([4.0, 1.0, 3.0, 2.0])
    curve = metrics.rejection_curve(right, confidence, np.array([0, 0.25, 0.5, 0.75]))
    assert curve.tolist() == [0.5, 2 / 3, 1, 1]
    assert metrics.rejection_curve(right, -confidence, np.array([0.5])).tolist() == [0]


def as_columns(x):
    return pd.DataFrame(x) if np.ndim(x) > 1 else pd.Series(x, index=range(7, 7 + len(x)))


def as_tensors(x):
    x = torch.as_tensor(x)
    return x.requires_grad_() if x.is_floating_point() else x


@pytest.mark.parametrize(
    "kind",
    [np.ndarray.tolist, lambda x: tuple(map(tuple, x.tolist())) if x.ndim > 1 else tuple(x), as_columns, as_tensors],
    ids=["list", "tuple", "pandas", "torch"],
)
def test_lists_columns_and_tensors_are_as_good_as_arrays(kind):
    rng = np.random.default_rng(3)
    queries, gallery = rng.integers(0, 7, 30), rng.integers(0, 5, 40)
    ids = np.argsort(rng.random((30, 40)), axis=1)[:, :25].copy()
    ids[rng.random(ids.shape) < 0.1] = -1
    case = ids, queries, gallery
    for metric in (metrics.relevance, metrics.recall_at_k, metrics.average_precision_at_r, metrics.map_at_r):
        np.testing.assert_array_equal(metric(*map(kind, case)), metric(*case))
    curve = rng.random(30), rng.random(30), np.array([0, 0.25, 0.9])
    np.testing.assert_array_equal(metrics.rejection_curve(*map(kind, curve)), metrics.rejection_curve(*curve))
    right = queries > 3
    np.testing.assert_array_equal(
        metrics.rejection_curve(kind(right), *map(kind, curve[1:])), metrics.rejection_curve(right * 1.0, *curve[1:])
    )


@pytest.mark.parametrize("dtype", [object, "str", "category"])
def test_labels_may_be_words_in_a_column(dtype):
    words, ids = pd.Series(["a", "c", "b"], dtype=dtype), [[0, 2], [1, 0], [0, 1]]
    assert metrics.recall_at_k(ids, words, words) == 2 / 3
    assert metrics.map_at_r(ids, ["a", "b", "z"], words) == 0.5


def test_no_ids_at_all_are_a_ranking_too():
    assert metrics.relevance([[], []], [1, 2], []).shape == (2, 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: metrics.relevance(np.zeros(3, int), np.arange(3), GALLERY),
            r"ids has shape \(3,\), expected \(Q, K\)",
        ),
        (lambda: metrics.relevance(np.zeros((2, 1), int), ["a"] * 3, GALLERY), r"ids has shape \(2, 1\)"),
        (lambda: metrics.relevance(np.array([[5]]), np.array(["a"]), GALLERY), r"ids span 5..5, expected -1..4"),
        (lambda: metrics.recall_at_k(np.array([[0]]), np.array(["a"]), GALLERY, 2), r"k is 2, expected 1..1"),
        (lambda: metrics.recall_at_k(np.array([[0]]), np.array(["a"]), GALLERY, 0), r"k is 0, expected 1..1"),
        (
            lambda: metrics.map_at_r(np.array([[0]]), np.array(["a"]), GALLERY),
            r"ids has 1 columns, expected at least R = 3",
        ),
        (lambda: metrics.rejection_curve(np.ones(2), np.ones(3), np.zeros(1)), r"confidence has shape \(3,\)"),
        (lambda: metrics.rejection_curve(np.ones(0), np.ones(0), np.zeros(1)), r"Q > 0"),
        (
            lambda: metrics.recall_at_k([[0, 1], [2]], ["a", "b"], GALLERY),
            r"^recall_at_k: ids cannot be an array of sh",
        ),
        (
            lambda: metrics.recall_at_k([[0.0, 1.0]], ["a"], GALLERY),
            r"^recall_at_k: ids has dtype float64, expected int",
        ),
        (lambda: metrics.map_at_r([[0, 1, 3]], [["a"]], GALLERY), r"query_labels has shape \(1, 1\), expected \(Q,\)"),
        (lambda: metrics.relevance([[0]], None, GALLERY), r"^relevance: query_labels has shape \(\), expected \(Q,\)"),
        (
            lambda: metrics.recall_at_k([[0]], [1], pd.Series(GALLERY)),
            r"^recall_at_k: query_labels are numbers, gallery_labels words: no class is in both$",
        ),
        (lambda: metrics.rejection_curve([1], ["sure"], [0]), r"confidence cannot be an array .* to float: 'sure'\)$"),
        (lambda: metrics.rejection_curve([1], [1], 0.5), r"shares has shape \(\), expected \(S,\)"),
        (
            lambda: metrics.rejection_curve(torch.ones(1, device="meta"), [1], [0]),
            r"^rejection_curve: values is on meta, where tensors have no values$",
        ),
        (
            lambda: metrics.rejection_curve(np.ones(2), np.ones(2), np.ones(1)),
            r"shares span 1.0..1.0, expected \[0, 1\)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_k_must_be_an_integer():
    with pytest.raises(TypeError, match=r"^recall_at_k: k must be an integer, got float$"):
        metrics.recall_at_k([[0, 1]], ["a"], GALLERY, 1.0)


def test_an_id_that_a_ranking_repeats_counts_once():
    """An index that returns an item for each of its vectors, or twice by mistake, finds one right item by it."""
    ids, labels = np.array([[0, 0, 0, 1], [2, -1, 2, -1], [1, 0, 1, 0]]), ([5, 6, 6], [5, 6, 6, 5])
    once = np.array([[0, -1, -1, 1], [2, -1, -1, -1], [1, 0, -1, -1]])
    np.testing.assert_array_equal(metrics.relevance(ids, *labels), np.tile([True, False, False, False], (3, 1)))
    for name in ("hit_at_k", "average_precision_at_r"):
        np.testing.assert_array_equal(getattr(metrics, name)(ids, *labels), getattr(metrics, name)(once, *labels))
    assert metrics.map_at_k([[0, 0, 0]], [5], [5, 5, 5], k=3) == pytest.approx(1 / 3)  # it was 1
    many = np.random.default_rng(0).integers(0, 300, (500, 300))  # over many blocks
    first = np.array([[i not in row[:k] for k, i in enumerate(row)] for row in many.tolist()])
    gallery = np.random.default_rng(1).integers(0, 3, 300)
    right = (gallery[many] == 1) & first
    np.testing.assert_array_equal(metrics.relevance(many, np.ones(500, int), gallery), right)
    own = [[0, 1, 1, 2], [1, 0, 0, 2], [2, 0, 1, 1]]
    assert metrics.relevance(own, [5, 5, 5]).tolist() == [[True, False, True], [True, False, True], [True, True, False]]
