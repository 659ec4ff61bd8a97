"""Search among some of the items only: those that are allowed, or that were not removed."""

from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest
import torch
from conftest import assert_ranking, flat_index, make

import peaccel as pe
from peaccel.retrieval.faiss import index as faiss_index

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

GALLERY, MORE, QUERIES = (make("normal_diagonal", n, 16, n, dtype="float32") for n in (500, 20, 7))
WHOLE = pe.concat([GALLERY, MORE])
RNG = np.random.default_rng(0)
NAMES = 1000 + 7 * RNG.permutation(520)
EXACT = [
    *("Flat", "SQ8", "IVF4,Flat", "IVF4,PQ8x4", "IVF4,SQ8", "IVF4,PQ8x4fs", "PCA8,Flat", "L2norm,IVF4,Flat"),
    *("Flat,RFlat", "IVF4,PQ8x4,RFlat", "PCA8,HNSW8,RFlat", "HNSW8", "HNSW8,SQ8"),
]
WITH_IDS = ["IDMap,Flat", "IDMap2,SQ8", "IDMap,HNSW8", "IDMap,PCA8,Flat", "IDMap,HNSW8,RFlat", "IVF4,Flat", "IVF4,SQ4"]


def thorough(index):
    """Sets an index to search all that it holds."""
    for setting in ("nprobe=4", "efSearch=600", "k_factor_rf=10"):
        try:
            faiss.ParameterSpace().set_index_parameters(index, setting)
        except RuntimeError:  # the index has no such setting
            continue
    return index


def built(factory, ids=None):
    """A reranker whose index was given ids where there are any."""
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    _ = index.add(GALLERY.mu) if ids is None else index.add_with_ids(GALLERY.mu, ids)
    return pe.FaissReranker(thorough(index), GALLERY, ids=ids)


def assert_exact_among(reranker, rows, ids, allowed, k=10, shortlist=520):
    """Assert that the reranker finds what a search of these rows alone finds."""
    best = pe.search(QUERIES, WHOLE[rows], k)
    expected = np.where(best.ids < 0, -1, np.append(ids, -1)[best.ids])
    assert_ranking(reranker.search(QUERIES, k, shortlist=shortlist, allowed=allowed), (best.scores, expected))


def assert_first_of_all(factory, reranker, ids, allowed, shortlist=20):
    """Assert that the shortlist holds the allowed items that come first in the index's own order of all items."""
    order = reranker.index.search(QUERIES.mu, 500)[1]
    first = np.array([row[np.isin(row, allowed)][:shortlist] for row in order])
    rows = {name: row for row, name in enumerate(ids.tolist())}
    expected = pe.rerank(QUERIES, GALLERY, np.vectorize(rows.get)(first), 20)
    found = reranker.search(QUERIES, 20, shortlist=shortlist, allowed=allowed)
    if "HNSW" in factory or "fs" in factory:  # a graph misses some; distances in bytes leave ties
        assert np.isin(found.ids, allowed).all()
        assert np.mean([np.isin(a, b).mean() for a, b in zip(first, found.ids, strict=True)]) > 0.8
    else:
        assert_ranking(found, (expected.scores, ids[expected.ids]))


# -- allowed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "own"), [*((f, False) for f in EXACT), *((f, True) for f in WITH_IDS)], ids=lambda x: str(x)
)
def test_any_index_that_selects_finds_the_allowed(factory, own):
    ids = NAMES[:500] if own else np.arange(500)
    reranker = built(factory, ids if own else None)
    for count in (1, 60, 300):
        rows = np.sort(np.random.default_rng(count).permutation(500)[:count])
        assert_exact_among(reranker, rows, ids[rows], ids[rows])
    if "HNSW" in factory:
        faiss.ParameterSpace().set_index_parameters(reranker.index, "efSearch=24")  # compares fewer than are allowed
    assert_first_of_all(factory, reranker, ids, ids[np.r_[20:480]])
    assert_ranking(reranker.search(QUERIES, 5), reranker.search(QUERIES, 5, allowed=ids))


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW8", "IVF4,Flat"])
@pytest.mark.parametrize("external", [False, True])
def test_the_allowed_are_found_among_those_that_came_and_went(factory, external):
    reranker = pe.FaissReranker.build(GALLERY, factory, first_stage="surrogate", ids=NAMES[:500] if external else None)
    thorough(reranker.index)
    names = NAMES.copy() if external else np.arange(520)
    reranker.add(MORE, names[500:] if external else None)
    reranker.remove(names[np.r_[0:150, 505]])
    there = np.r_[150:505, 506:520]
    for step in range(2):
        rows = np.r_[160:400:7, 502, 510]
        asked = np.r_[names[rows], names[[3, 505]], 10**9]  # removed ones and unknown ones find nothing
        for allowed in (asked, asked.tolist(), torch.tensor(asked), asked.astype(np.uint32), np.isin(there, rows)):
            assert_exact_among(reranker, rows, names[rows], allowed)
        assert_exact_among(reranker, there, names[there], np.ones(len(there), bool), k=30)
        for nothing in ([], np.zeros(len(there), bool), [10**9]):
            found = reranker.search(QUERIES, 3, allowed=nothing)
            assert (found.ids == -1).all() and np.isneginf(found.scores).all()
        if step == 0:
            reranker.compact()


def test_an_exact_index_proposes_the_nearest_of_the_allowed():
    reranker = pe.FaissReranker.build(GALLERY, "Flat")
    reranker.remove(np.arange(0, 500, 5))
    rows = np.arange(1, 500, 5)
    nearest = pe.search(QUERIES, GALLERY[rows], 12, "cosine").ids
    expected = pe.rerank(QUERIES, GALLERY, rows[nearest], 20)
    found = reranker.search(QUERIES, 20, shortlist=12, allowed=rows)
    assert_ranking(found, (expected.scores, expected.ids))
    assert (found.ids[:, 12:] == -1).all()


def test_a_graph_finds_few_of_many():
    gallery = make("normal_isotropic", 4000, 8, 3, dtype="float32")
    queries = make("normal_isotropic", 20, 8, 4, dtype="float32")
    reranker = pe.FaissReranker.build(gallery, "HNSW8", first_stage="surrogate")
    for every in (2, 10, 50, 400):
        rows = np.arange(3, 4000, every)
        best = rows[pe.search(queries, gallery[rows], 5).ids]
        found = reranker.search(queries, 5, shortlist=50, allowed=rows)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(best, found.ids, strict=True)]) > 0.95
        assert np.isin(found.ids, rows).all()


def test_a_graph_goes_on_until_there_are_enough():
    gallery = make("normal_isotropic", 2000, 8, 3, dtype="float32")
    far = np.arange(0, 2000, 2)
    gallery.mu[far, 0] += 20  # on the other side of the graph
    index = faiss.index_factory(8, "HNSW8")
    index.add(gallery.mu)
    reranker = pe.FaissReranker(index, gallery)
    params = faiss.SearchParametersHNSW(efSearch=32)  # as deep as the share of the allowed asks for at first
    queries = pe.Normal(gallery.mu[1:20:2], 0.5)
    assert (reranker.search(queries, 10, params=params, allowed=far).ids == -1).any()
    found = reranker.search(queries, 100, allowed=far).ids
    assert np.isin(found, far).all()


def test_parameters_and_allowed_items_go_together():
    reranker = built("IVF4,Flat")
    reranker.index.nprobe = 1
    rows = np.arange(0, 500, 2)
    assert (reranker.search(QUERIES, 250, shortlist=250, allowed=rows[:249]).ids >= 0).sum() == 7 * 249
    every = faiss.SearchParametersIVF(nprobe=4)
    assert_ranking(
        reranker.search(QUERIES, 9, shortlist=120, params=every, allowed=rows),
        built("IVF4,Flat").search(QUERIES, 9, shortlist=120, allowed=rows),
    )
    assert every.sel is None and every.nprobe == 4
    few = reranker.search(QUERIES, 250, shortlist=249, params=faiss.SearchParametersIVF(nprobe=1), allowed=rows)
    assert (few.ids[:, :249] == -1).any() and np.isin(few.ids, [-1, *rows]).all()
    reranker = built("HNSW8")
    found = reranker.search(
        QUERIES, 5, params=faiss.SearchParametersHNSW(efSearch=300, bounded_queue=False), allowed=rows
    )
    assert np.isin(found.ids, rows).all()


def selecting(ids, kind=faiss.SearchParameters, **own):
    return kind(sel=faiss.IDSelectorBatch(np.asarray(ids)), **own)


def test_selectors_in_parameters_select_what_the_index_returns():
    reranker = built("IVF4,Flat", NAMES[:500])
    params = selecting(NAMES[:9], faiss.SearchParametersIVF, nprobe=4)
    assert set(reranker.search(QUERIES, 9, params=params).ids.ravel()) == set(NAMES[:9])
    numbered = pe.FaissReranker.build(GALLERY, "Flat")
    numbered.remove(np.arange(5))
    assert set(numbered.search(QUERIES, 9, params=selecting(np.arange(9))).ids.ravel()) == {-1, 5, 6, 7, 8}
    for not_by_row in (pe.FaissReranker.build(GALLERY, "Flat", ids=NAMES[:500]), compacted(numbered)):
        with pytest.raises(ValueError, match=r"^FaissReranker.search: params select rows of the index, not ids;"):
            not_by_row.search(QUERIES, 9, params=selecting(np.arange(9)))


def compacted(reranker):
    reranker.compact()
    return reranker


def refine(**own):
    return faiss.IndexRefineSearchParameters(k_factor=2.0, **own)


@pytest.mark.parametrize(
    ("factory", "given", "error", "begins"),
    [
        ("Flat", {"allowed": 0.5}, ValueError, "allowed has shape (1,) and dtype float64, expected int"),
        ("Flat", {"allowed": [[3]]}, ValueError, "allowed has shape (1, 1) and dtype int64, expected"),
        ("Flat", {"allowed": [0.5]}, ValueError, "allowed has shape (1,) and dtype float64, expected integer ids"),
        ("Flat", {"allowed": ["a"]}, ValueError, "allowed has shape (1,) and dtype <U1, expected integer ids"),
        ("Flat", {"allowed": np.ones(499, bool)}, ValueError, "allowed has shape (499,) and dtype bool, expected"),
        ("PQ8x4", {"allowed": [3]}, TypeError, "allowed must be None, FAISS cannot select in this IndexPQ"),
        ("IDMap,PQ8x4", {"allowed": [3]}, TypeError, "allowed must be None, FAISS cannot select in this IndexIDMap"),
        ("LSH", {"allowed": [3]}, TypeError, "allowed must be None, FAISS cannot select in this IndexLSH"),
        ("IVF4,PQ4+4", {"allowed": [3]}, TypeError, "allowed must be None, FAISS cannot select in this IndexIVFPQR"),
        (
            "Flat",
            {"allowed": [3], "params": selecting([3])},
            ValueError,
            "params have a selector, expected none beside allowed",
        ),
        (
            "Flat,RFlat",
            {"allowed": [3], "params": refine(base_index_params=selecting([3]))},
            ValueError,
            "params have a selector, expected none beside allowed",
        ),
        (
            "Flat,RFlat",
            {"allowed": [3], "params": refine()},
            TypeError,
            "allowed must be None, FAISS cannot select in this IndexRefineFlat with such params",
        ),
    ],
)
def test_what_does_not_fit_is_refused(factory, given, error, begins):
    reranker = built(factory, NAMES[:500] if factory.startswith("IDMap") else None)
    with pytest.raises(error) as caught:
        reranker.search(QUERIES, 3, **given)
    assert str(caught.value).startswith(f"FaissReranker.search: {begins}") and "\n" not in str(caught.value)


def test_other_objects_with_the_interface_of_an_index_select_nothing():
    class Own:
        ntotal, d = 500, 16
        index = flat_index(GALLERY)

        def search(self, vectors, k, params=None):
            return self.index.search(vectors, k)

    reranker = pe.FaissReranker(Own(), GALLERY)
    assert_ranking(reranker.search(QUERIES, 5), built("Flat").search(QUERIES, 5))
    with pytest.raises(TypeError, match=r"FAISS cannot select in this Own$"):
        reranker.search(QUERIES, 5, allowed=[1])
    reranker.remove([1])
    assert 1 not in reranker.search(QUERIES, 400, shortlist=400).ids


# -- removed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "IVF4,Flat", "PCA8,Flat", "HNSW8"])
def test_removed_items_cost_the_index_no_second_question(factory, monkeypatch):
    reranker = built(factory)
    if factory == "HNSW8":
        reranker.index.hnsw.efSearch = 16  # that it would compare fewer items than are there
    reranker.remove(np.arange(100))
    asked, made = [], []
    search, selector = faiss_index.search, faiss_index.row_selector
    monkeypatch.setattr(faiss_index, "search", lambda i, v, k, p: (asked.append((k, p)), search(i, v, k, p))[1])
    monkeypatch.setattr(faiss_index, "row_selector", lambda *a: (made.append(1), selector(*a))[1])
    for _ in range(3):
        assert (reranker.search(QUERIES, 5, shortlist=20).ids >= 100).all()
    assert [k for k, _ in asked] == [20] * 3 and all(p.sel is not None for _, p in asked)
    assert len(made) == 1  # one selector for all searches between two changes
    for change in (lambda: reranker.remove([100]), lambda: reranker.add(MORE), reranker.compact):
        change()
        reranker.search(QUERIES, 5, shortlist=20)
    assert len(made) == 3 and asked[-1][0] == 20 and getattr(asked[-1][1], "sel", None) is None


def test_parameters_are_kept_where_removed_items_are_passed_over():
    reranker = built("IVF4,Flat")
    reranker.remove(np.arange(10))
    one = reranker.search(QUERIES, 400, shortlist=400, params=faiss.SearchParametersIVF(nprobe=1))
    assert (one.ids == -1).any() and ((one.ids == -1) | (one.ids >= 10)).all()
    assert_exact_among(reranker, np.arange(10, 500), np.arange(10, 500), None)
    with pytest.raises(TypeError, match=r"^FaissReranker: params of type SearchParametersHNSW do not fit"):
        reranker.search(QUERIES, 3, params=faiss.SearchParametersHNSW(efSearch=3))
    with pytest.raises(TypeError, match=r"^FaissReranker: params of type str do not fit IndexIVFFlat$"):
        reranker.search(QUERIES, 3, params="nprobe=3")


@pytest.mark.parametrize("factory", ["PQ8x4", "LSH", "IVF4,PQ4+4"])
def test_an_index_without_selectors_is_asked_for_more(factory):
    reranker = built(factory)
    reranker.remove(np.arange(0, 500, 3))
    found = reranker.search(QUERIES, 30, shortlist=30)
    assert ((found.ids >= 0) & (found.ids % 3 > 0)).all()
    assert_exact_among(reranker, reranker.ids, reranker.ids, None)


def test_threads_may_search_at_once_each_among_its_own():
    reranker = built("IDMap,HNSW8", NAMES[:500])
    choices = [np.sort(NAMES[np.random.default_rng(i).permutation(500)[:250]]) for i in range(8)]
    expected = [reranker.search(QUERIES, 5, shortlist=20, allowed=a) for a in choices]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda a: reranker.search(QUERIES, 5, shortlist=20, allowed=a), choices)
            for one, two in zip(found, expected, strict=True):
                assert_ranking(one, (two.scores, two.ids))
