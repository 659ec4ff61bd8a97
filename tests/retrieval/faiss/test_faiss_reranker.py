"""FaissReranker: whatever the index, the gallery's own parameters decide; ids, parameters and features pass through."""

import copy
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest
import torch
from conftest import assert_ranking, flat_index, make, to_numpy

import peaccel as pe
from peaccel.retrieval.faiss import index as faiss_index

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

GALLERY = make("normal_diagonal", 400, 16, 1, dtype="float32")
QUERIES = make("normal_diagonal", 9, 16, 2, dtype="float32")


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW16", "PQ4x4", "IVF4,PQ4x4", "SQ8"])
def test_whatever_the_index_the_galleries_own_parameters_decide(factory):
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    index.add(GALLERY.mu)
    # faiss.contrib.torch_utils, which a test may have imported, replaces `search` by one that takes no parameters.
    search = getattr(index, "search_numpy", index.search)
    shortlist = search(QUERIES.mu, 60, params=faiss_index.deep_enough(index, 60))[1]
    expected = pe.rerank(QUERIES, GALLERY, shortlist, 10)
    for gallery in (GALLERY, pe.prepare(GALLERY)):
        ranking = pe.FaissReranker(index, gallery).search(QUERIES, 10, shortlist=60)
        assert_ranking(ranking, (expected.scores, expected.ids))


def test_a_shortlist_of_everything_is_an_exact_search():
    expected = pe.search(QUERIES, GALLERY, 10)
    found = pe.FaissReranker(flat_index(GALLERY), GALLERY).search(QUERIES, 10, shortlist=400)
    assert_ranking(found, (expected.scores, expected.ids))


def test_answers_below_a_threshold_are_left_out():
    whole = pe.FaissReranker(flat_index(GALLERY), GALLERY).search(QUERIES, 10)
    limit = pe.FalseMatchLimit(float(np.median(whole.scores)), 0.01, 0.05, 1000, 4)
    found = pe.FaissReranker(flat_index(GALLERY), GALLERY).search(QUERIES, 10, accept=limit)
    left = whole.scores >= limit.threshold
    assert left.sum() == left.size // 2
    assert_ranking(found, (np.where(left, whole.scores, -np.inf), np.where(left, whole.ids, -1)))


def test_search_parameters_reach_the_index():
    quantizer = faiss.IndexFlatL2(16)
    index = faiss.IndexIVFFlat(quantizer, 16, 20)
    index.train(GALLERY.mu)
    index.add(GALLERY.mu)
    reranker, expected = pe.FaissReranker(index, GALLERY), pe.search(QUERIES, GALLERY, 400)
    few = reranker.search(QUERIES, 400, shortlist=400, params=faiss.SearchParametersIVF(nprobe=1))
    every = reranker.search(QUERIES, 400, shortlist=400, params=faiss.SearchParametersIVF(nprobe=20))
    assert (few.ids == -1).sum() > 1000
    assert_ranking(every, (expected.scores, expected.ids))
    selected = faiss.SearchParametersIVF(nprobe=20, sel=faiss.IDSelectorBatch(np.array([3, 5])))
    assert set(reranker.search(QUERIES, 5, params=selected).ids.ravel().tolist()) == {3, 5, -1}


@pytest.mark.parametrize("as_given", [np.asarray, torch.tensor, list], ids=["numpy", "torch", "list"])
def test_external_ids_come_back_in_place_of_rows(as_given):
    ids = np.random.default_rng(0).permutation(10**12 + np.arange(400) * 7)
    expected = pe.search(QUERIES, GALLERY, 10)
    reranker = pe.FaissReranker(flat_index(GALLERY, ids), GALLERY, ids=as_given(ids))
    assert_ranking(reranker.search(QUERIES, 10, shortlist=400), (expected.scores, ids[expected.ids]))
    padded = reranker.search(QUERIES, 5, shortlist=3)
    assert (padded.ids[:, 3:] == -1).all() and (padded.ids[:, :3] >= 10**12).all()


def test_more_than_the_shortlist_or_the_index_holds_is_padding():
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY)
    assert (reranker.search(QUERIES, 12, shortlist=5).ids[:, 5:] == -1).all()
    assert (reranker.search(QUERIES, 403, shortlist=500).ids[:, 400:] == -1).all()
    assert reranker.search(QUERIES[:0], 3).ids.shape == (0, 3)


def test_features_are_what_the_index_is_asked_with():
    unit = GALLERY.mu / np.linalg.norm(GALLERY.mu, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(16)
    index.add(unit)
    shortlist = index.search(QUERIES.mu / np.linalg.norm(QUERIES.mu, axis=1, keepdims=True), 30)[1]
    expected = pe.rerank(QUERIES, GALLERY, shortlist, 5)
    found = pe.FaissReranker(index, GALLERY, features="unit").search(QUERIES, 5, shortlist=30)
    assert_ranking(found, (expected.scores, expected.ids))

    index = faiss.IndexFlatL2(3)  # the index may hold anything
    index.add(np.ascontiguousarray(GALLERY.var[:, :3]))
    expected = pe.rerank(QUERIES, GALLERY, index.search(QUERIES.var[:, :3].copy(), 30)[1], 5)
    for features in (lambda d: d.var[:, :3], lambda d: torch.tensor(d.var[:, :3]), lambda d: d.var[:, :3].astype("f8")):
        found = pe.FaissReranker(index, GALLERY, features=features).search(QUERIES, 5, shortlist=30)
        assert_ranking(found, (expected.scores, expected.ids))


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF8,Flat", "IVF4,PQ4x4"])
def test_build_makes_an_index_of_directions(factory):
    reranker = pe.FaissReranker.build(GALLERY, factory, score="mls")
    ranking = reranker.search(QUERIES, 5, shortlist=50)
    assert (ranking.ids >= 0).all()
    np.testing.assert_array_equal(pe.rescore(QUERIES, GALLERY, ranking.ids), ranking.scores)
    if factory == "Flat":
        expected = pe.rerank(QUERIES, GALLERY, pe.search(QUERIES, GALLERY, 50, "cosine").ids, 5)
        assert_ranking(ranking, (expected.scores, expected.ids))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_faiss_reranker_takes_tensors_and_halves_and_gives_tensors(dtype):
    q, g = (make("normal_diagonal", n, 16, n, dtype=dtype, library="torch") for n in (9, 50))
    q.mu.requires_grad_()
    ranking = pe.FaissReranker.build(g, "Flat").search(q, 5, shortlist=50)
    expected = pe.search(q, g, 5)
    assert isinstance(ranking.scores, torch.Tensor) and not ranking.scores.requires_grad
    assert_ranking(ranking, (to_numpy(expected.scores), np.asarray(expected.ids)))


def test_a_gallery_prepared_for_another_score_is_refused():
    with pytest.raises(ValueError, match=r"^FaissReranker: gallery is prepared for score mls, got neg_sq_l2"):
        pe.FaissReranker(flat_index(GALLERY), pe.prepare(GALLERY), score="neg_sq_l2")


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("IDMap2,Flat", "'IDMap2,Flat' keeps ids of its own; leave IDMap out, and give build the ids"),
        ("PQ5", "'PQ5' at 16 dimensions: The dimension of the vector (d) should be a multiple of the number of"),
        ("IVF401,Flat", "'IVF401,Flat' cannot be trained on 400 items: Number of training points (400) should be at"),
        ("PCA20,Flat", "'PCA20,Flat' cannot be trained on 400 items: PCA matrix cannot output 20 dimensions from 16"),
        ("PQ5x", "'PQ5x' is not a FAISS factory string"),
    ],
)
def test_build_says_what_is_wrong_with_a_factory(factory, says):
    with pytest.raises(ValueError) as caught:
        pe.FaissReranker.build(GALLERY, factory)
    assert str(caught.value).startswith(f"FaissReranker.build: factory {says}") and "\n" not in str(caught.value)


def test_a_reference_for_another_score_is_refused():
    index = faiss.IndexFlatIP(3 * 16 + 5)
    index.add(pe.first_stage_features(GALLERY, "mls"))
    reference = pe.first_stage_reference(GALLERY, "mls")
    with pytest.raises(ValueError, match=r"^FaissReranker: features are for score mls, got llr:prior_var=1"):
        pe.FaissReranker(index, GALLERY, score=pe.scores.llr(prior_var=1), features=reference)


def test_what_a_third_argument_would_mean_is_said_by_name():
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY)
    for call in (
        lambda: pe.FaissReranker.build(GALLERY, "Flat", "cosine"),
        lambda: pe.FaissReranker(flat_index(GALLERY), GALLERY, "cosine"),
        lambda: reranker.search(QUERIES, 5, 100),
    ):
        with pytest.raises(TypeError, match=r"positional argument|score must be a name or a Score, got int"):
            call()


WITH_NAN = pe.Normal(np.where(np.arange(400)[:, None] == 7, np.float32(np.nan), GALLERY.mu), GALLERY.var)


@pytest.mark.parametrize(
    ("take", "owner"),
    [
        (lambda reranker, items: pe.FaissReranker(reranker.index, items), "FaissReranker: gallery"),
        (lambda reranker, items: pe.FaissReranker(reranker.index, pe.prepare(items)), "FaissReranker: gallery"),
        (lambda reranker, items: pe.FaissReranker.build(items, "HNSW8"), "FaissReranker.build: gallery"),
        (lambda reranker, items: reranker.add(items), "FaissReranker.add: items"),
        (lambda reranker, items: reranker.upsert(items, range(400)), "FaissReranker.upsert: items"),
        (lambda reranker, items: reranker.search(items, 3), "mls: queries"),
        (lambda reranker, items: reranker.search_above(items, 3.0), "mls: queries"),
    ],
)
def test_rows_that_are_not_finite_are_refused_and_named(take, owner):
    reranker = pe.FaissReranker.build(GALLERY, "Flat")
    with pytest.raises(
        ValueError, match=f"^{re.escape(owner)}: 1 of 400 rows are not finite, first 7; leave these out$"
    ):
        take(reranker, WITH_NAN)
    assert len(reranker) == 400


# -- threads and processes ---------------------------------------------------------------------------------------------

CHANGES = {
    "add": lambda reranker: reranker.add(GALLERY[:1]),
    "remove": lambda reranker: reranker.remove([7]),
    "upsert": lambda reranker: reranker.upsert(GALLERY[:1], [7]),
    "compact": lambda reranker: reranker.compact(),
}


class Slow:
    """Features of queries that take until they are let go on, and say when they begin."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, items):
        if len(items) == len(QUERIES):
            self.begun.set()
            assert self.go_on.wait(30)
        return items.mu


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_waits_for_searches_that_run(change):
    features = Slow()
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY, features=features)
    before = reranker.search_above(QUERIES, -np.inf).ids
    with ThreadPoolExecutor(2) as pool:
        search = pool.submit(reranker.search, QUERIES, 400, shortlist=400)
        assert features.begun.wait(30)
        changed = pool.submit(change, reranker)
        with pytest.raises(TimeoutError):
            changed.result(0.05)
        features.go_on.set()
        np.testing.assert_array_equal(search.result(30).ids.ravel(), before)
        changed.result(30)


def test_searches_run_beside_each_other():
    meet = threading.Barrier(2)
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY, features=lambda d: (meet.wait(30), d.mu)[1])
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: reranker.search(QUERIES, 3), range(2))
    assert_ranking(one, (two.scores, two.ids))


def test_a_copy_beside_changes_is_of_one_moment():
    many = make("point", 20_000, 16, dtype="float32")
    reranker, stop = pe.FaissReranker.build(many, "Flat"), threading.Event()

    def change():
        while not stop.is_set():
            reranker.remove(reranker.add(many[:50]))

    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(change)
        try:
            for _ in range(20):
                twin = copy.copy(reranker)
                assert len(twin) - 20_000 in (0, 50) and twin.index.ntotal == len(twin._items) == len(twin._prepared)
        finally:
            stop.set()
        changed.result(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("kind", ["FaissReranker", "Gallery"])
def test_the_child_of_a_fork_searches(kind, tmp_path):
    code = f"""
import os, signal, sys
import faiss, numpy as np
import peaccel as pe
items = pe.Normal(np.random.default_rng(0).normal(size=(3000, 16)).astype("float32"), np.ones(3000, "float32"))
if {kind!r} == "Gallery":
    gallery = pe.Gallery.create({str(tmp_path / "gallery")!r}, items, np.arange(3000))
    gallery.build_index("HNSW8")
else:
    gallery = pe.FaissReranker.build(items, "HNSW8")
faiss.omp_set_num_threads(2)
expected = gallery.search(items[:300], 3).ids  # FAISS's threads have been started
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(0 if (gallery.search(items[:300], 3).ids == expected).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
