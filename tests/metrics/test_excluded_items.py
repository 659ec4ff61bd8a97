"""Metrics without the items that a query may not find, as Market-1501, VeRi and wildlife protocols have them."""

from dataclasses import replace

import numpy as np
import pytest

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation.drawn_pairs import verification_pairs
from peaccel.metrics._relation import as_relation, count_compared
from peaccel.metrics._relation import denied as excluded

RNG = np.random.default_rng(3)


def by_protocol(scores, person, camera, ranks):
    """CMC at ranks and mAP in float64: images of the same person and camera are left out of each query's ranking."""
    hits, precisions = [], []
    for row, of_query, by in zip(scores, *person[:1], *camera[:1], strict=True):
        order = np.argsort(-row, kind="stable")
        order = order[~((person[1][order] == of_query) & (camera[1][order] == by))]
        right = person[1][order] == of_query
        if not right.any():
            continue
        hits.append([right[:rank].any() for rank in ranks])
        precisions.append((right.cumsum() / np.arange(1, len(right) + 1))[right].mean())
    return np.mean(hits, 0), np.mean(precisions)


def test_a_gallery_by_hand():
    """Query 0 is person 1 by camera 1: its ranking 0 (junk), 2, 1 has person 1 at the second place. Query 1 is person 2
    by camera 2: the only other image of person 2 is by the same camera, and it is not counted."""
    person, camera = (np.array([1, 2]), np.array([1, 1, 2])), (np.array([1, 2]), np.array([1, 2, 2]))
    ids = np.array([[0, 2, 1], [2, 1, 0]])
    queries, gallery = ({"person": p, "camera": c} for p, c in zip(person, camera, strict=True))
    exclude = pe.exclude_same(queries, gallery)
    assert [exclude.of_query(i).tolist() for i in range(2)] == [[0], [2]]
    assert metrics.hit_at_k(ids, *person, k=1, exclude=exclude).tolist()[0] == 0
    assert np.isnan(metrics.hit_at_k(ids, *person, k=1, exclude=exclude)[1])
    assert metrics.recall_at_k(ids, *person, k=2, exclude=exclude) == 1
    assert metrics.map_at_k(ids, *person, k=3, exclude=exclude) == 0.5
    assert metrics.relevance(ids, *person, exclude=exclude).tolist() == [[False, True, False], [False] * 3]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("words", [True, False])
def test_the_protocol_of_market_1501(full, words):
    queries, gallery = 40, 200
    person, camera = (tuple(RNG.integers(0, n, size) for size in (queries, gallery)) for n in (12, 4))
    scores = RNG.normal(size=(queries, gallery)) + 1.5 * (person[0][:, None] == person[1])
    labels = tuple(np.char.add("p", x.astype(str)) for x in person) if words else person
    columns = ({"person": p, "camera": c} for p, c in zip(labels, camera, strict=True))
    exclude = pe.exclude_same(*columns)
    cmc, mean = by_protocol(scores, person, camera, (1, 5, 10))
    found = np.argsort(-scores, axis=1, kind="stable")
    if not full:  # rankings that were searched without the excluded rows
        found = np.stack([row[~np.isin(row, exclude.of_query(i))][:150] for i, row in enumerate(found)])
        cmc_only = [metrics.recall_at_k(found, *labels, k=k, exclude=exclude) for k in (1, 5, 10)]
        np.testing.assert_allclose(cmc_only, cmc, rtol=1e-12)
        return
    for ids in (found, pe.Ranking(np.take_along_axis(scores, found, 1), found)):
        got = [metrics.recall_at_k(ids, *labels, k=k, exclude=exclude) for k in (1, 5, 10)]
        np.testing.assert_allclose(got, cmc, rtol=1e-12)
        np.testing.assert_allclose(metrics.map_at_k(ids, *labels, k=gallery, exclude=exclude), mean, rtol=1e-12)
        right = metrics.relevance(ids, *labels, exclude=exclude)
        sizes = as_relation("test", *labels, exclude=exclude).sizes()
        assert right.sum(1).tolist() == sizes.tolist()


def test_rankings_that_exclusions_shorten_have_fewer_columns():
    ids, labels = [[0, 1, 2], [3, 1, 2]], ([1, 1], [1, 2, 1, 2, 3])
    assert metrics.hit_at_k(ids, *labels, k=2, exclude=[0, 4]).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"^recall_at_k: k is 3, expected 1\.\.2$"):
        metrics.recall_at_k(ids, *labels, k=3, exclude=[0, 4])
    with pytest.raises(ValueError, match=r"^average_precision_at_r: ids has 2 columns, expected at least R = 3$"):
        metrics.average_precision_at_r([[0, 1, 2], [1, 3, 2]], [1, 1], [1, 2, 1, 2, 1], exclude=[0, 3])


RULES = {
    "labels": lambda n, m: (RNG.integers(0, 5, n), RNG.integers(0, 5, m)),
    "one set": lambda n, m: (RNG.integers(0, 5, m), None),
    "words": lambda n, m: (RNG.choice(["a", "b"], n), RNG.choice(["b", "c", "a"], m)),
    "places": lambda n, m: (metrics.Relevance.within(RNG.normal(size=(n, 2)), RNG.normal(size=(m, 2)), 0.8), None),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("by", ["rows", "column"])
def test_pairs_sizes_and_counts_are_those_of_a_matrix(rule, by):
    for _ in range(20):
        n, m = RNG.integers(1, 9), RNG.integers(1, 12)
        labels = RULES[rule](n, m)
        whole = as_relation("test", *labels)
        n, m = whole.queries, whole.gallery
        if by == "rows":
            listed = RNG.integers(-1, m + 2, (n, 3))
            exclude, denied = listed, (listed[:, :, None] == np.arange(m)).any(1)
        else:
            day, days = RNG.integers(0, 3, m), RNG.integers(0, 3, n)
            days = day if whole.leave_one_out else days
            exclude, denied = pe.exclude_same({"day": days}, {"day": day}), days[:, None] == day
        if whole.leave_one_out:
            denied = denied | np.eye(m, dtype=bool)
        queries, items = np.arange(n)[:, None], np.tile(np.arange(m), (n, 1))
        right = whole.right(queries, items) & ~denied
        relation = as_relation("test", *labels, exclude=exclude)
        assert (relation.right(queries, items) & ~excluded(relation, queries, items) == right).all()
        assert relation.sizes().tolist() == right.sum(1).tolist()
        assert count_compared(relation) == (~denied).sum()
        assert relation.pairs(np.arange(right.sum())).tolist() == np.argwhere(right).tolist()
        part = relation.part(1, n)
        assert part.sizes().tolist() == right.sum(1)[1:].tolist()
        assert part.pairs(np.arange(right[1:].sum())).tolist() == np.argwhere(right[1:]).tolist()
        for different in (None, 10_000):
            pairs, same = verification_pairs(relation, None, 0, different=different)
            assert not denied[pairs[:, 0], pairs[:, 1]].any() and (right[pairs[:, 0], pairs[:, 1]] == same).all()
            if len(pairs):
                assert same.sum() == right.sum()
                assert different is None or (~same).sum() == (~denied & ~right).sum()


# -- evaluations -------------------------------------------------------------------------------------------------------


def photographs():
    """People seen by four cameras, each of which moves the embeddings; queries are a part of the gallery."""
    person, camera = np.repeat(np.arange(40), 12), np.tile(np.repeat(np.arange(4), 3), 40)
    x = RNG.normal(size=(40, 32))[person] + 0.72 * RNG.normal(size=(4, 32))[camera] + 1.1 * RNG.normal(size=(480, 32))
    return person, camera, x


def test_evaluate_leaves_out_images_of_the_same_camera():
    person, camera, x = photographs()
    q = np.arange(0, 480, 3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cmc, mean = by_protocol(unit[q] @ unit.T, (person[q], person), (camera[q], camera), (1, 5, 10))
    exclude = pe.exclude_same({"p": person[q], "c": camera[q]}, {"p": person, "c": camera})
    found = pe.evaluate(
        pe.Point(x[q]),
        pe.Point(x),
        (person[q], person),
        "cosine",
        k=(5, 10, 480),
        metrics={"mAP": lambda ids, truth: metrics.average_precision_at_k(ids, truth, k=ids.shape[1])},
        exclude=exclude,
    )
    [row] = found.scores
    got = row.recall_at_1.value, row.recall_at_k["5"], row.recall_at_k["10"], row.metrics["mAP"].value
    np.testing.assert_allclose(got, [*cmc, mean], rtol=1e-9)
    assert found.pairs[0] == 160 * 9  # of one person by two cameras


@pytest.mark.filterwarnings("error")
def test_queries_that_are_a_part_of_the_gallery_leave_out_themselves():
    """Of labels, and of a Relevance: what a search among the others finds, without a warning of copies."""
    person, _, x = photographs()
    q = np.arange(0, 480, 4)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    scores = unit[q] @ unit.T
    scores[np.arange(len(q)), q] = -9
    right = person[scores.argmax(1)] == person[q]
    pairs = np.argwhere(person[q][:, None] == person)
    for labels in ((person[q], person), metrics.Relevance.from_pairs(pairs, len(q), 480)):
        found = pe.evaluate(pe.Point(x[q]), pe.Point(x), labels, "cosine", exclude=q)
        assert found.scores[0].recall_at_1.value == right.mean()


@pytest.mark.filterwarnings("error")
def test_a_gallery_without_each_query_is_the_set_itself():
    person, _, x = photographs()
    d, rows = pe.Point(x), np.arange(480)
    one, two = (
        pe.evaluate(d, gallery, labels, "cosine", exclude=exclude).scores[0]
        for gallery, labels, exclude in ((None, person, None), (d, (person, person), rows))
    )
    assert (one.recall_at_1, one.map_at_r, one.recall_at_k) == (two.recall_at_1, two.map_at_r, two.recall_at_k)
    one, two = (
        pe.choose_threshold(d, gallery, labels, "cosine", wrong=0.3, confidence="auto", exclude=exclude)
        for gallery, labels, exclude in ((None, person, None), (d, (person, person), rows))
    )
    assert replace(one.accept, fitted_on="") == replace(two.accept, fitted_on="")


def test_the_warning_of_copies_names_the_argument():
    person, _, x = photographs()
    with pytest.warns(UserWarning, match=r"^evaluate: the best item of 120 of 120 queries .* exclude=rows, "):
        pe.evaluate(pe.Point(x[::4]), pe.Point(x), (person[::4], person), "cosine")


def test_pairs_that_are_excluded_are_not_verified():
    person, _, x = photographs()
    q = np.arange(0, 480, 4)
    with pytest.raises(ValueError, match=r"^evaluate: pairs hold \[1, 4\], which exclude leaves out$"):
        pe.evaluate(pe.Point(x[q]), pe.Point(x), (person[q], person), "cosine", pairs=[[0, 1], [1, 4]], exclude=q)
