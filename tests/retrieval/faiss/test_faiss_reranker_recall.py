"""A shortlist is what it says: of neighbours that lie in clusters, as those of real embeddings do, the index proposes
the best, however long the shortlist is, whatever FAISS is set to.
"""

import functools

import faiss
import numpy as np
import pytest

import peaccel as pe

DIM = 48


def clustered(n, seed):
    """Points of subclusters of clusters: normal draws alone have no near neighbours."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(120, DIM))
    inner = centres[rng.integers(0, 120, 1200)] + 0.9 * rng.normal(size=(1200, DIM))
    rng = np.random.default_rng(seed)
    return (inner[rng.integers(0, 1200, n)] + 0.9 * rng.normal(size=(n, DIM))).astype(np.float32)


GALLERY, QUERIES = pe.Point(clustered(8000, 1)), pe.Point(clustered(400, 2))
TRUE = pe.search(QUERIES, GALLERY, 1, "cosine").ids


CENTRES = np.random.default_rng(3).normal(size=(120, DIM))
PLACES = (GALLERY.mu @ CENTRES.T).argmax(1)
"""The cluster that each item of the gallery is near, such as the city where a photograph was taken."""


@functools.cache
def built(factory):
    return pe.FaissReranker.build(GALLERY, factory, score="cosine")


def share_found(reranker, shortlist):
    return float((reranker.search(QUERIES, 1, shortlist=shortlist).ids == TRUE).mean())


@pytest.mark.parametrize("shortlist", [10, 100, 400])
@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "HNSW16,SQ8", "IVF64,Flat", "IVF64,SQ8", "PCA40,IVF64,Flat"])
def test_the_best_is_among_what_an_index_proposes(factory, shortlist):
    assert share_found(built(factory), shortlist) >= (0.98 if shortlist == 10 else 0.99)


@pytest.mark.parametrize(("factory", "setting"), [("HNSW32", "efSearch"), ("IVF64,Flat", "nprobe")])
def test_build_says_what_it_has_set_and_reached(factory, setting):
    found = {recall: pe.FaissReranker.build(GALLERY, factory, recall=recall).first_stage for recall in (0.5, 0.999)}
    assert all(x.setting == setting and x.recall >= recall - 1e-3 for recall, x in found.items())
    assert found[0.5].value <= found[0.999].value and (factory == "HNSW32" or found[0.5].value < 8)
    index = pe.FaissReranker.build(GALLERY, factory, recall=0.999).index
    assert getattr(getattr(index, "hnsw", index), setting) == found[0.999].value
    plain = pe.FaissReranker.build(GALLERY, factory, recall=None)
    assert plain.first_stage is None and pe.FaissReranker.build(GALLERY, "Flat").first_stage is None
    assert getattr(getattr(plain.index, "hnsw", plain.index), setting) == {"efSearch": 16, "nprobe": 1}[setting]
    for recall in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"^FaissReranker.build: recall is {recall}, expected a share above 0"):
            pe.FaissReranker.build(GALLERY, factory, recall=recall)


@pytest.mark.parametrize("factory", ["HNSW32", "IVF64,Flat"])
def test_an_index_of_the_caller_stays_as_it_is_set_and_finds_the_best(factory):
    index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
    unit = GALLERY.mu / np.linalg.norm(GALLERY.mu, axis=1, keepdims=True)
    index.train(unit)
    index.add(unit)
    set_to = getattr(getattr(index, "hnsw", index), "efSearch" if factory == "HNSW32" else "nprobe")
    reranker = pe.FaissReranker(index, GALLERY, score="cosine", features="unit")
    for shortlist in (10, 100, 400):
        assert share_found(reranker, shortlist) >= 0.985
    assert set_to == getattr(getattr(index, "hnsw", index), "efSearch" if factory == "HNSW32" else "nprobe")
    few = faiss.SearchParametersHNSW(efSearch=1) if factory == "HNSW32" else faiss.SearchParametersIVF(nprobe=1)
    assert (
        reranker.search(QUERIES, 1, shortlist=10, params=few).ids == TRUE
    ).mean() < 0.985  # what the caller says counts


@pytest.mark.parametrize("shortlist", [5, 10, 100])
@pytest.mark.parametrize("factory", ["IVF64,Flat", "IVF64,SQ8", "HNSW32"])
@pytest.mark.parametrize("some", ["near each other", "anywhere", "most"])
def test_the_best_of_the_allowed_are_found_wherever_they_lie(factory, shortlist, some):
    """Also where the lists near a query hold none of them, as of the photographs of one city."""
    near, anywhere = PLACES % 12 == 0, np.random.default_rng(0).random(len(GALLERY)) < 0.1
    allowed = {"near each other": near, "anywhere": anywhere, "most": ~near}[some]
    rows = np.flatnonzero(allowed)
    true = rows[pe.search(QUERIES, GALLERY[rows], 5, "cosine").ids]
    found = built(factory).search(QUERIES, 5, shortlist=shortlist, allowed=allowed).ids
    assert (found >= 0).all() and allowed[found].all()
    # Five that are found among five that bytes have ranked are not always the best five.
    assert (found[:, :, None] == true[:, None]).any(1).mean() >= 0.97


def test_a_caller_s_own_search_parameters_look_no_further_for_the_allowed():
    few, allowed = faiss.SearchParametersIVF(nprobe=1), PLACES % 12 == 0
    assert (built("IVF64,Flat").search(QUERIES, 5, allowed=allowed, params=few).ids < 0).any()
