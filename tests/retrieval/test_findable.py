"""Searches of allowed items and with exclusions, against all pairs sorted in plain Python."""

import numpy as np
import pytest
import torch
from items import KINDS, make

import peaccel as pe
from peaccel.retrieval import findable as module

SCORES = {
    "normal_isotropic": ("mls", "neg_kl"),
    "normal_diagonal": ("llr:prior_var=0.3",),
    "vmf": ("mls", "sampled_cosine:n=3,seed=1"),
    "nivmf": ("cosine",),
    "scaled": ("scale_cosine",),
    "point": ("cosine", "neg_sq_l2"),
}
Q, G, K = 23, 157, 9
RNG = np.random.default_rng(5)
ROWS = np.arange(Q) * 3  # of the gallery, which the queries are
PLACE, DAY = RNG.integers(0, 4, G), RNG.integers(0, 30, G)


def denied(rule):
    """The rows that each query may not find, by comparing each pair, and the argument that says so."""
    if rule == "own":
        return [{row} for row in ROWS.tolist()], ROWS
    if rule == "padded":
        listed = np.where(RNG.random((Q, 6)) < 0.4, -1, RNG.integers(0, G + 20, (Q, 6)))
        return [set(row) for row in listed.tolist()], listed
    if rule == "ragged":
        listed = [RNG.integers(0, G, RNG.integers(0, 40)) for _ in range(Q)]
        return [set(row.tolist()) for row in listed], listed
    columns = {"place": PLACE, "day": DAY} if rule == "place and day" else {"place": PLACE}
    exclude = pe.exclude_same({name: x[ROWS] for name, x in columns.items()}, columns)
    same = np.all([x[ROWS][:, None] == x for x in columns.values()], 0)
    return [set(np.flatnonzero(row).tolist()) for row in same], exclude


RULES = ("own", "padded", "ragged", "place and day", "place")


def every_pair(queries, gallery, score):
    """Scores [Q, G], with the bits of the verbs."""
    rows = np.tile(np.arange(len(gallery)), (len(queries), 1))
    return np.asarray(
        pe.rescore(queries, gallery, torch.from_numpy(rows) if torch.is_tensor(gallery.mu) else rows, score)
    )


def best(scores, excluded, k, allowed=None):
    """The best k rows of each query, and their scores."""
    ids, found = np.full((len(scores), k), -1), np.full((len(scores), k), -np.inf, scores.dtype)
    for query, row in enumerate(scores.tolist()):
        may = [j for j in range(len(row)) if j not in excluded[query] and (allowed is None or j in allowed)]
        may = sorted(may, key=lambda j: (-row[j], j))[:k]
        ids[query, : len(may)], found[query, : len(may)] = may, scores[query, may]
    return ids, found


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch):
    """Blocks of few queries, and copies of the others where many rows are excluded."""
    monkeypatch.setattr(module, "HELD", 200)
    monkeypatch.setattr(module, "MANY", 30)
    monkeypatch.setattr(module, "SHARING", 4)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_searches_find_the_best_of_the_others_with_the_same_bits(kind, rule, library):
    gallery = make(kind, G, 8, library=library)
    queries = gallery[ROWS]
    some = np.flatnonzero(RNG.random(G) < 0.4)
    for score in SCORES[kind]:
        scores, (excluded, exclude) = every_pair(queries, gallery, score), denied(rule)
        galleries = [gallery, pe.prepare(gallery, score)]
        if "seed" not in score:
            galleries.append([gallery[:50], gallery[50:51], gallery[51:]])
        for searched in galleries:
            for k in (K, G + 2):
                found = pe.search(queries, searched, k, score, exclude=exclude)
                ids, want = best(scores, excluded, k)
                np.testing.assert_array_equal(found.ids, ids)
                np.testing.assert_array_equal(found.scores, want)
            for allowed in (some, [*some.tolist(), G + 5], *([np.isin(np.arange(G), some)] * (searched is gallery))):
                found = pe.search(queries, searched, K, score, exclude=exclude, allowed=allowed)
                np.testing.assert_array_equal(found.ids, best(scores, excluded, K, set(some.tolist()))[0])


@pytest.mark.parametrize("rule", RULES)
def test_items_above_a_threshold_and_candidates_are_without_the_excluded(rule):
    gallery = make("normal_isotropic", G, 8)
    queries, (excluded, exclude) = gallery[ROWS], denied(rule)
    scores, some = every_pair(queries, gallery, "mls"), set(range(0, G, 2))
    threshold = float(np.quantile(scores, 0.8))
    ids, found = best(scores, excluded, G, some)
    for searched in (gallery, [gallery[:70], gallery[70:]]):
        above = pe.search_above(queries, searched, threshold, "mls", exclude=exclude, allowed=sorted(some))
        assert above.ids.tolist() == ids[found >= threshold].tolist()
        assert np.diff(above.offsets).tolist() == (found >= threshold).sum(1).tolist()
    candidates = np.tile(np.arange(0, G, 2), (Q, 1))
    reranked = pe.rerank(queries, gallery, candidates, K, "mls", exclude=exclude)
    np.testing.assert_array_equal(reranked.ids, ids[:, :K])


def test_draws_stay_with_the_rows_that_they_are_of():
    gallery = make("normal_diagonal", G, 8)
    queries, score = gallery[ROWS], "hib:n=4,seed=3"
    scores, (excluded, exclude) = every_pair(queries, gallery, score), denied("place")
    found = pe.search(queries, gallery, K, score, exclude=exclude, allowed=range(0, G, 3))
    np.testing.assert_array_equal(found.ids, best(scores, excluded, K, set(range(0, G, 3)))[0])


def test_nothing_to_find():
    gallery = make("point", 3, 4)
    for wanted, options in {
        -1: {"exclude": [[0, 1, 2]]},
        -2: {"allowed": []},
        -3: {"exclude": [[1]], "allowed": [1]},
    }.items():
        found = pe.search(gallery[:1], gallery, 2, **options)
        assert found.ids.tolist() == [[-1, -1]] and np.isneginf(found.scores).all(), wanted
        assert pe.search_above(gallery[:1], gallery, -9.0, **options).ids.tolist() == []
    assert pe.search(gallery[:0], gallery, 2, exclude=np.empty((0, 3), int)).ids.shape == (0, 2)
    assert pe.search(gallery[:0], gallery, 2, exclude=[]).ids.shape == (0, 2)


def test_answers_that_are_not_accepted_go():
    gallery = make("point", G, 4)
    accept = pe.FalseMatchLimit(threshold=0.9, alpha=0.1, delta=0.1, number=100, allowed=1)
    for searched in (gallery, [gallery[:9], gallery[9:]]):
        found = pe.search(gallery[ROWS], searched, 3, exclude=ROWS)
        kept = pe.search(gallery[ROWS], searched, 3, exclude=ROWS, accept=accept)
        np.testing.assert_array_equal(kept.ids, np.where(found.scores >= 0.9, found.ids, -1))
        with pytest.raises(ValueError, match="accept: the threshold is of"):
            pe.search(gallery[ROWS], searched, 3, accept=pe.FalseMatchLimit(0.9, 0.1, 0.1, 100, 1, score="mls"))


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ([1, 2, 3], r"cosine: exclude has shape \(3,\), expected ids \(2,\) or \(2, E\), or a list of 2 arrays of ids"),
        ([[1], [2], [3, 4]], "cosine: exclude is a list of 3, expected ids"),
        ([[1], ["a", "b"]], "cosine: exclude is a list of 2, expected ids"),
        ([0.5, 1.0], "cosine: exclude has dtype float64, expected ids"),
        ([True, False], "cosine: exclude has dtype bool, expected ids"),
        ([-2, 1], r"cosine: exclude holds -2, expected -1 \(none\) or ids"),
        (["a", "b"], "cosine: exclude holds strings, expected rows like the gallery's"),
        (pe.exclude_same({"x": [1]}, {"x": [1]}), "cosine: exclude is of 1 queries, expected 2"),
    ],
)
def test_exclusions_that_are_refused(exclude, message):
    d = make("point", 4, 3)
    for call in (
        lambda: pe.search(d[:2], d, 1, exclude=exclude),
        lambda: pe.search(d[:2], [d], 1, exclude=exclude),
        lambda: pe.rerank(d[:2], d, [[1], [2]], 1, exclude=exclude),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            call()


@pytest.mark.parametrize("allowed", [[0.5], [[1]], ["a"], [True, False]])
def test_allowed_items_that_are_refused(allowed):
    d = make("point", 4, 3)
    for searched in (d, [d]):
        with pytest.raises(ValueError, match=r"^cosine: allowed "):
            pe.search(d, searched, 1, allowed=allowed)
