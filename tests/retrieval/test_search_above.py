"""All items above a threshold, and the duplicates of a set: the pairs that scoring all pairs finds, and their bits."""

import faiss
import numpy as np
import pytest
import torch
from items import KINDS, hostile, make

import peaccel as pe
from peaccel.retrieval import duplicates as duplicates_module
from peaccel.retrieval import search_above as above_module

SCORES = {
    "normal_isotropic": ("mls", "neg_kl", "neg_w2"),
    "normal_diagonal": ("llr:prior_var=0.3", "neg_kl"),
    "vmf": ("mls",),
    "nivmf": ("cosine",),
    "scaled": ("scale_cosine",),
    "point": ("cosine", "neg_sq_l2"),
}
QUANTILES = (0.0, 0.5, 0.97, 0.999)


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch):
    """Many searches, of few queries each, as a large gallery has them."""
    monkeypatch.setattr(above_module, "FIRST", 2)
    monkeypatch.setattr(above_module, "HELD", 60)
    monkeypatch.setattr(duplicates_module, "BLOCK", 7)


def all_pairs(q, g, score):
    """Scores [Q, G] with the bits of `rescore`, in numpy."""
    rows = np.tile(np.arange(len(g)), (len(q), 1))
    return np.asarray(pe.rescore(q, g, torch.from_numpy(rows) if isinstance(g.mu, torch.Tensor) else rows, score))


def wanted(scores, threshold):
    """Offsets, ids and scores of a matrix by sorting all of it; ties go to the lower row, NaN never passes."""
    with np.errstate(invalid="ignore"):
        queries, ids = np.nonzero(scores.astype(np.float64) >= threshold)
    order = np.lexsort((ids, -scores[queries, ids], queries))
    offsets = np.append(0, np.bincount(queries, minlength=len(scores)).cumsum())
    return offsets, ids[order], scores[queries, ids][order]


def assert_found(found, want, ids=None):
    assert isinstance(found, pe.RankingAbove)
    offsets, rows, scores = want
    np.testing.assert_array_equal(found.offsets, offsets)
    np.testing.assert_array_equal(found.ids, rows if ids is None else ids[rows])
    np.testing.assert_array_equal(found.scores, scores)
    np.testing.assert_array_equal(found.queries, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_everything_above_a_threshold_is_found_with_the_bits_of_search(kind, library):
    q, g = (hostile(kind, n, 5, dtype="float32", library=library) for n in (9, 83))
    for score in SCORES[kind]:
        scores = all_pairs(q, g, score)
        finite = scores[np.isfinite(scores)]
        for threshold in (*np.quantile(finite, QUANTILES), -np.inf, np.inf):
            for gallery in (g, pe.prepare(g, score), [g[:30], g[30:31], g[31:]]):
                found = pe.search_above(q, gallery, float(threshold), score)
                assert_found(found, wanted(scores, threshold))
                assert found.score.label == pe.scores.get(score).label
                assert all(type(x) is type(g.mu) for x in found) and found.scores.dtype == g.mu.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unlooked")
def test_duplicates_are_the_pairs_above_the_diagonal(kind):
    d = hostile(kind, 40, 4, dtype="float32")
    for score in SCORES[kind]:
        scores = all_pairs(d, d, score)
        scores = np.where(np.tri(40, dtype=bool), np.nan, scores)
        for threshold in np.nanquantile(scores[np.isfinite(scores)], QUANTILES):
            for items in (d, pe.prepare(d, score)):
                assert_found(pe.duplicates(items, float(threshold), score), wanted(scores, threshold))


def test_scores_that_are_drawn_are_drawn_once_for_each_item():
    d = make("normal_diagonal", 30, 4, dtype="float32")
    score = pe.scores.get("hib")(seed=3)
    scores = all_pairs(d, d, score)
    threshold = float(np.quantile(scores, 0.9))
    assert_found(pe.search_above(d, d, threshold, score), wanted(scores, threshold))
    assert_found(pe.search_above(d, [d[:11], d[11:]], threshold, score), wanted(scores, threshold))
    upper = np.where(np.tri(30, dtype=bool), np.nan, scores)
    assert_found(pe.duplicates(d, threshold, score), wanted(upper, threshold))


def test_items_of_one_variance_have_the_bits_that_all_of_them_have():
    """Where all items share one variance, scores are sums in another order, which one item alone must follow."""
    rng = np.random.default_rng(0)
    mu, var = rng.normal(size=(50, 9)), np.tile(rng.uniform(0.5, 2, 9), (50, 1))
    d = pe.Normal(*(x.astype(np.float32) for x in (mu, var)))
    scores = all_pairs(d, d, "mls")
    for threshold in np.quantile(scores, (0.3, 0.9)):
        assert_found(pe.search_above(d, d, threshold, "mls"), wanted(scores, threshold))
        upper = np.where(np.tri(50, dtype=bool), np.nan, scores)
        assert_found(pe.duplicates(d, threshold, "mls"), wanted(upper, threshold))


def test_an_empty_side_finds_nothing():
    d = make("point", 3, 4, dtype="float32")
    assert_found(pe.search_above(d, d[:0], -2, "cosine"), ([0] * 4, [], []))
    assert_found(pe.search_above(d[:0], d, -2, "cosine"), ([0], [], []))
    assert_found(pe.search_above(d, [d[:0]], -2, "cosine"), ([0] * 4, [], []))
    assert_found(pe.duplicates(d[:0], -2, "cosine"), ([0], [], []))
    assert_found(pe.duplicates(d[:1], -2, "cosine"), ([0, 0], [], []))


def test_too_many_pairs_are_refused_before_they_are_held():
    d = make("point", 40, 4)
    assert len(pe.search_above(d, d, -2, "cosine", most=1600).ids) == 1600
    says = "more than 1599 pairs reach the threshold, the most that were asked for; expected a higher threshold"
    with pytest.raises(ValueError, match=f"^search_above: {says}"):
        pe.search_above(d, d, -2, "cosine", most=1599)
    assert len(pe.duplicates(d, -2, "cosine", most=780).ids) == 780
    with pytest.raises(ValueError, match=r"^duplicates: more than 779 pairs"):
        pe.duplicates(d, -2, "cosine", most=779)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"threshold": float("nan")}, ValueError, "threshold is nan, expected a number"),
        ({"threshold": "0.5"}, TypeError, "threshold must be a number, got str"),
        ({"threshold": True}, TypeError, "threshold must be a number, got bool"),
        ({"threshold": None}, TypeError, "threshold must be a number, got NoneType"),
        ({"threshold": [0.1, 0.2]}, TypeError, "threshold must be a number, got list"),
        ({"most": 0}, ValueError, "most is 0, expected 1"),
        ({"most": None}, TypeError, "most must be an integer, got NoneType"),
        ({"score": "mls"}, TypeError, "mls: "),
    ],
)
def test_what_is_no_threshold_is_refused(given, error, says):
    d = make("point", 3, 4)
    given = {"threshold": 0.5, "score": "cosine"} | given
    for owner, sides in (("search_above", (d, d)), ("duplicates", (d,))):
        with pytest.raises(error, match=rf"^({owner}: )?{says}"):
            getattr(pe, owner)(*sides, **given)


def test_a_threshold_is_not_applied_to_what_reached_another():
    d, accept = make("point", 3, 4), pe.FalseMatchLimit(threshold=0.5, alpha=0.1, delta=0.1, number=100, allowed=1)
    with pytest.raises(ValueError, match=r"^accept: ranking is a RankingAbove of scores \(9,\), expected a pe.Ranking"):
        accept(pe.search_above(d, d, -2.0, "cosine"))


# -- with FAISS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF4,PQ4x4"])
def test_a_reranker_finds_all_whatever_its_index_would_miss(factory, library):
    q, g = (make("normal_diagonal", n, 8, seed=n, dtype="float32", library=library) for n in (6, 90))
    names = np.array([f"item {i * 37 % 90}" for i in range(90)])
    scores = all_pairs(q, g, "mls")
    threshold = float(np.quantile(scores, 0.8))
    for ids in (None, 5 + np.arange(90), names):
        known = np.arange(90) if ids is None else ids
        reranker = pe.FaissReranker.build(g, factory, ids=ids, recall=None)
        assert_found(reranker.search_above(q, threshold), wanted(scores, threshold), known)
        some = np.arange(90) % 3 == 0
        among = np.where(some, scores, np.nan)
        for allowed in (some, known[some]):
            assert_found(reranker.search_above(q, threshold, allowed=allowed), wanted(among, threshold), known)
        if ids is not None:
            reranker.remove(known[[0, 1, 7]])
            left = scores.copy()
            left[:, [0, 1, 7]] = np.nan
            assert_found(reranker.search_above(q, threshold), wanted(left, threshold), known)
            there = np.delete(np.arange(90), [0, 1, 7])
            own = g[there]
            pairs, alone = reranker.duplicates(-9.0), pe.duplicates(own, -9.0)
            assert_found(pairs, (alone.offsets, np.asarray(alone.ids), alone.scores), known[there])


def test_an_id_of_several_photographs_is_found_once_by_its_best():
    rng = np.random.default_rng(0)
    g, persons = make("normal_isotropic", 40, 8, dtype="float32"), rng.integers(0, 9, 40)
    index = faiss.IndexIDMap(faiss.IndexFlatL2(8))
    index.add_with_ids(g.mu, persons)
    reranker = pe.FaissReranker(index, g, ids=persons)
    best = reranker.search(g[:5], 9, shortlist=40)
    threshold = float(np.median(best.scores))
    found = reranker.search_above(g[:5], threshold)
    for query in range(5):
        own = slice(*found.offsets[query : query + 2])
        kept = best.scores[query] >= threshold
        np.testing.assert_array_equal(found.ids[own], best.ids[query][kept])
        np.testing.assert_array_equal(found.scores[own], best.scores[query][kept])


# -- with Lance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strings", [False, True])
def test_a_gallery_on_disk_finds_what_one_in_memory_does(strings, tmp_path):
    q, g = (make("normal_diagonal", n, 6, seed=n, dtype="float32") for n in (5, 60))
    ids = np.sort([f"é{i * 37 % 97}" for i in range(60)]) if strings else 3 * np.arange(60)
    order = np.random.default_rng(0).permutation(60)
    gallery = pe.Gallery.create(tmp_path / "g.lance", g[order[:35]], ids[order[:35]], {"old": order[:35] < 30})
    gallery.add(g[order[35:]], ids[order[35:]], {"old": order[35:] < 30})
    gallery.remove(ids[[4, 50]])
    there = np.delete(np.arange(60), [4, 50])
    scores, left = all_pairs(q, g, "mls"), np.full((5, 60), np.nan)
    left[:, there] = scores[:, there]
    threshold = float(np.quantile(scores, 0.7))
    assert_found(gallery.search_above(q, threshold), wanted(left, threshold), ids)
    left[:, 30:] = np.nan
    assert_found(gallery.search_above(q, threshold, "mls", filter="old"), wanted(left, threshold), ids)
    alone = pe.duplicates(g[there], threshold)
    assert_found(gallery.duplicates(threshold), (alone.offsets, alone.ids, alone.scores), ids[there])
    assert len(alone.ids) > 20
    assert_found(gallery.search_above(q, np.inf), ([0] * 6, np.empty(0, int), []), ids)
    with pytest.raises(ValueError, match=r"^Gallery.search_above: more than 3 pairs"):
        gallery.search_above(q, -1e9, most=3)


@pytest.mark.parametrize("score", ["hib:n=4,seed=1", "sampled_cosine:n=3,seed=2"])
def test_draws_of_an_item_are_the_same_where_others_are_not_allowed(score):
    items = make("normal_diagonal", 40, 6)
    allowed = np.flatnonzero(np.arange(40) % 3 == 0)
    threshold = float(np.median(pe.pairwise(items[:5], items, score)))
    every, some = (pe.search_above(items[:5], items, threshold, score, **x) for x in ({}, {"allowed": allowed}))
    kept = np.isin(every.ids, allowed)
    assert 0 < kept.sum() < len(kept)
    assert some.ids.tolist() == every.ids[kept].tolist() and some.scores.tolist() == every.scores[kept].tolist()
    best = pe.search(items[:5], items, 5, score, allowed=allowed)
    np.testing.assert_array_equal(best.scores, pe.rescore(items[:5], items, best.ids, score))
