"""Order, padding and exactness of rerank, search and FaissReranker; and what bad input gets told."""

import itertools
import re

import faiss
import numpy as np
import pytest
import torch
from conftest import CLASSES, as_library, build, make, to_numpy

import peaccel as pe

LLR = pe.scores.llr(prior_var=0.7)
# Every score that searches, by every kernel that it has: (score, query kind, gallery kind).
SEARCHES = [
    *(("mls", q, g) for q in ("normal_isotropic", "normal_diagonal", "point") for g in ("normal_isotropic",)),
    *(("mls", q, g) for q in ("normal_isotropic", "normal_diagonal", "point") for g in ("normal_diagonal",)),
    ("mls", "vmf", "vmf"),
    (LLR, "normal_isotropic", "normal_isotropic"),
    (LLR, "normal_diagonal", "normal_diagonal"),
    (LLR, "point", "normal_isotropic"),
    ("llr", "vmf", "vmf"),
    ("cosine", "point", "point"),
    ("neg_sq_l2", "point", "point"),
    ("expected_cosine", "normal_isotropic", "normal_isotropic"),
    ("expected_cosine", "vmf", "vmf"),
    ("neg_expected_sq_l2", "normal_diagonal", "normal_isotropic"),
    ("neg_expected_sq_l2", "vmf", "vmf"),
]
NAMES = [f"{s if isinstance(s, str) else s.name}-{q}-{g}" for s, q, g in SEARCHES]


def sorted_rows(scores, rows, k):
    """The contract, spelled out: higher first, NaN after all numbers, ties to the lower row, then padding."""
    order = np.lexsort((rows, -scores + 0.0, np.isnan(scores)))[:k]
    pad = k - len(order)
    return np.r_[scores[order], [-np.inf] * pad], np.r_[rows[order], [-1] * pad]


def brute_force(q, g, k, score):
    """The best k by sorting all scores."""
    found = [sorted_rows(row, np.arange(len(g)), k) for row in to_numpy(pe.pairwise(q, g, score))]
    return tuple(np.array(x).reshape(len(q), k) for x in zip(*found, strict=True))


def assert_ranking(ranking, expected, what=""):
    np.testing.assert_array_equal(ranking.ids, expected[1], err_msg=f"ids {what}")
    np.testing.assert_array_equal(to_numpy(ranking.scores), expected[0], err_msg=f"scores {what}")


# -- search is a sort of everything ------------------------------------------------------------------------------------


def items(kind, data, n, dim, seed):
    """Items of a kind that are hard to rank in one way; float32."""
    rng = np.random.default_rng([seed, n, dim])
    mu = rng.standard_normal((n, dim))
    extra = np.exp(rng.uniform(-2, 2, (n, dim)))
    if data == "clustered":  # all within rounding of a few centres, far from the origin
        mu = 100 + rng.standard_normal((3, dim))[rng.integers(0, 3, n)] + 1e-6 * mu
    elif data == "duplicated":
        rows = rng.integers(0, max(1, n // 10), n)
        mu, extra = mu[rows], extra[rows]
    elif data == "integers":  # few distinct scores: many ties
        mu, extra = rng.integers(-1, 2, (n, dim)).astype(float), 2.0 ** rng.integers(0, 2, (n, dim))
    elif data == "huge":  # squared norms of some overflow float32
        mu *= 10.0 ** rng.choice([0, 6, 15, 18, 19, 20], (n, 1))
    elif data == "tiny":  # squares of some underflow
        mu *= 10.0 ** rng.choice([0, -6, -15, -20, -23, -30], (n, 1))
    elif data == "uncertain":
        extra = 10.0 ** rng.uniform(-12, 12, (n, dim))
    elif data == "broken":  # NaN, infinite, negative, zero
        mu[rng.random(n) < 0.2, 0] = np.nan
        mu[rng.random(n) < 0.1, -1] = np.inf
        mu[rng.random(n) < 0.1] = 0
        extra[rng.random(n) < 0.2] = -1
    elif data == "identical":
        mu, extra = mu[:1].repeat(n, 0), extra[:1].repeat(n, 0)
    if CLASSES[kind][0]._unit and data in ("plain", "uncertain", "duplicated", "identical"):
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        return build(kind, mu, extra[:, 0] if CLASSES[kind][1] == 1 else extra, dtype="float32")


DATA = ("plain", "clustered", "duplicated", "integers", "huge", "tiny", "uncertain", "broken", "identical")
SIZES = [(1, 17, 8), (5, 1, 3), (3, 100, 33), (70, 211, 16), (4, 1000, 2), (300, 65, 4)]  # Q, G, D


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("score", "q_kind", "g_kind"), SEARCHES, ids=NAMES)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")  # numpy, of broken data
def test_search_is_a_sort_of_all_scores(score, q_kind, g_kind, data):
    for queries, gallery, dim in SIZES:
        q, g = items(q_kind, data, queries, dim, 1), items(g_kind, data, gallery, dim, 2)
        if data == "clustered":  # the hardest: queries among the gallery's own items
            q = items(q_kind, data, queries, dim, 2)
        prepared = pe.prepare(g, score)
        whole = brute_force(q, g, gallery + 3, score)
        for k in {1, 2, 10, gallery, gallery + 3}:
            expected = tuple(x[:, :k] for x in whole)
            assert_ranking(pe.search(q, g, k, score), expected, f"Q={queries} G={gallery} D={dim} k={k}")
            assert_ranking(pe.search(q, prepared, k, score), expected, f"prepared Q={queries} G={gallery} k={k}")


@pytest.mark.parametrize(("score", "kind"), [("mls", "normal_isotropic"), ("mls", "normal_diagonal"), ("cosine", "point")])
@pytest.mark.parametrize("data", ["duplicated", "integers", "identical", "broken"])
def test_ties_go_to_the_lower_row_over_shards_and_threads(score, kind, data):
    q, g = items(kind, data, 5, 3, 1), items(kind, data, 50_001, 3, 2)
    prepared = pe.prepare(g, score)
    expected = brute_force(q, g, 40, score)
    for threads in (1, 3):
        pe.set_num_threads(threads)
        assert_ranking(pe.search(q, g, 40, score), expected)
        assert_ranking(pe.search(q, prepared, 40, score), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 7, 16, 65, 130])
def test_search_holds_in_both_dtypes_and_all_widths(dim, dtype):
    for score, kind in (("mls", "normal_isotropic"), ("cosine", "point"), ("mls", "normal_diagonal"), (LLR, "point")):
        g = make("normal_isotropic" if score is LLR else kind, 333, dim, 1, dtype=dtype)
        q = make(kind, 20, dim, 2, dtype=dtype)
        assert_ranking(pe.search(q, g, 9, score), brute_force(q, g, 9, score))
        assert_ranking(pe.search(q, pe.prepare(g, score), 9, score), brute_force(q, g, 9, score))


# -- rerank ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "q_kind", "g_kind"), SEARCHES, ids=NAMES)
@pytest.mark.parametrize("data", ["plain", "integers", "broken"])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
def test_rerank_is_a_sort_of_the_candidates_without_the_missing(score, q_kind, g_kind, data):
    rng = np.random.default_rng(0)
    q, g = items(q_kind, data, 6, 12, 1), items(g_kind, data, 40, 12, 2)
    candidates = np.array([rng.permutation(np.arange(-10, 40).clip(min=-1))[:25] for _ in range(6)])
    candidates[0] = -1
    scores = pe.rescore(q, g, candidates, score)
    assert (scores[candidates == -1] == -np.inf).all()
    for k in (1, 7, 25, 30):
        kept = [(row[ids >= 0], ids[ids >= 0]) for row, ids in zip(scores, candidates, strict=True)]
        expected = [np.array(x) for x in zip(*(sorted_rows(row, ids, k) for row, ids in kept), strict=True)]
        assert_ranking(pe.rerank(q, g, candidates, k, score), expected, f"k={k}")
        assert_ranking(pe.rerank(q, pe.prepare(g, score), candidates, k, score), expected, f"prepared k={k}")


def test_numbers_come_before_nan_and_nan_before_padding_and_minus_infinity_is_a_number():
    q = pe.Normal(np.zeros((1, 2)), np.ones(1))
    g = pe.Normal(np.array([[0, 1], [np.nan, 0], [0, 0.5], [0, 0], [np.nan, 1], [0, 0]]), np.array([1, 1, np.inf, 1, 1, 1]))
    for ranking in (pe.search(q, g, 8), pe.rerank(q, g, np.array([[5, 4, 3, 2, 1, 0]]), 8)):
        assert ranking.ids.tolist() == [[3, 5, 0, 2, 1, 4, -1, -1]]
        assert np.isnan(ranking.scores[0, 4:6]).all() and (ranking.scores[0, [3, 6, 7]] == -np.inf).all()


def test_a_candidate_listed_twice_is_ranked_twice():
    q, g = make("point", 1, 3), make("point", 4, 3, 1)
    ranking = pe.rerank(q, g, np.array([[2, 1, 2]]), 3, "neg_sq_l2")
    assert sorted(ranking.ids[0].tolist()) == [1, 2, 2]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("score", "q_kind", "g_kind"), SEARCHES, ids=NAMES)
def test_no_queries_no_gallery_and_no_candidates_are_empty_results(score, q_kind, g_kind, library):
    def ids(*shape):
        return as_library(np.zeros(shape), library).to(torch.int64) if library == "torch" else np.zeros(shape, np.int64)

    none_q, q = (make(q_kind, n, 6, library=library) for n in (0, 3))
    none_g, g = (make(g_kind, n, 6, library=library) for n in (0, 4))
    for gallery, empty in ((g, none_g), (pe.prepare(g, score), pe.prepare(none_g, score))):
        assert tuple(pe.pairwise(none_q, gallery, score).shape) == (0, 4)
        assert tuple(pe.pairwise(q, empty, score).shape) == (3, 0)
        assert tuple(pe.paired(none_q, empty, score).shape) == (0,)
        assert tuple(pe.rescore(q, gallery, ids(3, 0), score).shape) == (3, 0)
        assert tuple(pe.rescore(none_q, gallery, ids(0, 5), score).shape) == (0, 5)
        assert bool((pe.rescore(q, empty, ids(3, 2) - 1, score) == -np.inf).all())
        for ranking in (
            pe.search(q, empty, 2, score),
            pe.rerank(q, gallery, ids(3, 0), 2, score),
            pe.rerank(q, empty, ids(3, 2) - 1, 2, score),
        ):
            assert bool((ranking.ids == -1).all()) and bool((ranking.scores == -np.inf).all())
            assert tuple(ranking.ids.shape) == tuple(ranking.scores.shape) == (3, 2)
        assert tuple(pe.search(none_q, gallery, 2, score).ids.shape) == (0, 2)


def test_arrays_that_are_strided_reversed_expanded_or_read_only_score_as_their_copies():
    base, rows = np.random.default_rng(0).standard_normal((20, 24)), np.arange(5)
    constant = np.broadcast_to(np.float64(0.5), (5, 6))
    expected = pe.search(pe.Normal(base[:5, :6].copy(), constant.copy()), pe.Normal(base[:5, :6].copy(), np.ones(5)), 3)
    frozen = base[:5, :6].copy()
    frozen.flags.writeable = False
    transposed = np.asfortranarray(base[:5, :6])
    spread = np.zeros((10, 12))
    spread[::2, ::2] = base[:5, :6]
    backwards = base[:5, :6][::-1, ::-1].copy()[::-1, ::-1]
    swapped = base[:5, :6].astype(">f8")
    for mu in (base[:5, :6], frozen, transposed, spread[::2, ::2], backwards, swapped):
        ranking = pe.search(pe.Normal(mu, constant), pe.Normal(mu, np.broadcast_to(np.float64(1), 5)), 3)
        assert_ranking(ranking, expected)
        candidates = np.tile(rows[::-1], (5, 2))[:, ::2]
        full = pe.rerank(pe.Normal(mu, constant), pe.Normal(mu, np.ones(5)), candidates, 3)
        assert full.ids.shape == (5, 3)


def test_candidates_of_any_integer_dtype_and_layout_give_the_same():
    q, g = make("point", 3, 5), make("point", 9, 5, 1)
    ids = np.array([[0, 3, 8, 1], [4, 4, 2, 0], [8, 7, 6, 5]])
    expected = pe.rerank(q, g, ids, 4, "cosine")
    for dtype in (np.int8, np.int16, np.int32, np.uint8, np.uint64, ">i8"):
        assert_ranking(pe.rerank(q, g, ids.astype(dtype), 4, "cosine"), (expected.scores, expected.ids))
    for same in (ids.tolist(), np.asfortranarray(ids), ids[:, ::-1].copy()[:, ::-1]):
        assert_ranking(pe.rerank(q, g, same, 4, "cosine"), (expected.scores, expected.ids))


# -- torch -------------------------------------------------------------------------------------------------------------


def test_rankings_of_tensors_are_detached_tensors_and_rescore_differentiates():
    mu, var = torch.randn(8, 5, dtype=torch.float64), torch.rand(8, dtype=torch.float64) + 0.5
    q = pe.Normal(mu[:3].clone().requires_grad_(), var[:3].clone().requires_grad_())
    g = pe.Normal(mu[3:].clone().requires_grad_(), var[3:].clone().requires_grad_())
    candidates = torch.tensor([[0, 1], [-1, 4], [2, -1]])
    for ranking in (pe.search(q, g, 2), pe.rerank(q, g, candidates, 2)):
        assert isinstance(ranking.scores, torch.Tensor) and ranking.scores.dtype == torch.float64
        assert ranking.ids.dtype == torch.int64 and not ranking.scores.requires_grad
    scores = pe.rescore(q, g, candidates)
    scores[candidates >= 0].sum().backward()
    for x in (*q.arrays, *g.arrays):
        assert x.grad.isfinite().all() and x.grad.abs().sum() > 0
    assert (g.mu.grad[3] == 0).all()  # row 3 is nobody's candidate


def test_a_prepared_gallery_is_detached_but_its_queries_are_not():
    q, g = make("normal_isotropic", 2, 4, library="torch"), make("normal_isotropic", 5, 4, 1, library="torch")
    q.mu.requires_grad_()
    g.mu.requires_grad_()
    pe.pairwise(q, pe.prepare(g)).sum().backward()
    assert q.mu.grad is not None and g.mu.grad is None


# -- Prepared ----------------------------------------------------------------------------------------------------------


def test_prepared_says_what_it_holds():
    g = make("normal_isotropic", 100, 16)
    prepared = pe.prepare(g, "mls")
    assert (len(prepared), prepared.dim, prepared.kind) == (100, 16, "normal_isotropic")
    assert prepared.nbytes >= 2 * g.mu.nbytes  # the rows and their panels
    assert "mls" in repr(prepared)


def test_prepared_for_another_score_or_other_parameters_is_refused_by_every_verb():
    g, prior = make("normal_isotropic", 5, 4), torch.tensor(0.5, requires_grad=True)
    ids = np.zeros((5, 1), np.int64)
    pairs = [("mls", "llr:prior_var=1"), (LLR, pe.scores.llr(prior_var=0.6)), ("mls", "neg_expected_sq_l2")]
    for own, other in [*pairs, (pe.scores.llr(prior_var=prior), LLR)]:
        prepared = pe.prepare(g if own != "torch" else g, own)
        for call in (
            lambda p=prepared, s=other: pe.paired(g, p, s),
            lambda p=prepared, s=other: pe.pairwise(g, p, s),
            lambda p=prepared, s=other: pe.rescore(g, p, ids, s),
            lambda p=prepared, s=other: pe.rerank(g, p, ids, 1, s),
            lambda p=prepared, s=other: pe.search(g, p, 1, s),
            lambda p=prepared, s=other: pe.FaissReranker(flat(g), p, s),
        ):
            with pytest.raises(ValueError, match=r"gallery is prepared for score .+, got "):
                call()
    same = pe.prepare(g, "llr:prior_var=0.7")
    np.testing.assert_array_equal(pe.pairwise(g, same, LLR), pe.pairwise(g, g, LLR))


# -- FAISS -------------------------------------------------------------------------------------------------------------


def flat(g, ids=None):
    index = faiss.IndexFlatL2(g.dim)
    index = index if ids is None else faiss.IndexIDMap(index)
    vectors = np.ascontiguousarray(to_numpy(g.mu), np.float32)
    _ = index.add(vectors) if ids is None else index.add_with_ids(vectors, ids)
    return index


GALLERY = make("normal_diagonal", 400, 16, 1, dtype="float32")
QUERIES = make("normal_diagonal", 9, 16, 2, dtype="float32")


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW16", "PQ4x4", "IVF4,PQ4x4", "SQ8"])
def test_whatever_the_index_the_galleries_own_parameters_decide(factory):
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    index.add(GALLERY.mu)
    shortlist = index.search(QUERIES.mu, 60)[1]
    expected = pe.rerank(QUERIES, GALLERY, shortlist, 10)
    for gallery in (GALLERY, pe.prepare(GALLERY)):
        ranking = pe.FaissReranker(index, gallery).search(QUERIES, 10, shortlist=60)
        assert_ranking(ranking, (expected.scores, expected.ids))


def test_a_shortlist_of_everything_is_an_exact_search():
    expected = pe.search(QUERIES, GALLERY, 10)
    assert_ranking(pe.FaissReranker(flat(GALLERY), GALLERY).search(QUERIES, 10, shortlist=400), (expected.scores, expected.ids))


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
    reranker = pe.FaissReranker(flat(GALLERY, ids), GALLERY, ids=as_given(ids))
    assert_ranking(reranker.search(QUERIES, 10, shortlist=400), (expected.scores, ids[expected.ids]))
    padded = reranker.search(QUERIES, 5, shortlist=3)
    assert (padded.ids[:, 3:] == -1).all() and (padded.ids[:, :3] >= 10**12).all()


def test_more_than_the_shortlist_or_the_index_holds_is_padding():
    reranker = pe.FaissReranker(flat(GALLERY), GALLERY)
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


# -- bad input ---------------------------------------------------------------------------------------------------------

ISO, DIAG, VMF, POINT = (make(k, 5, 4, dtype="float32") for k in ("normal_isotropic", "normal_diagonal", "vmf", "point"))
TENSORS = make("normal_isotropic", 5, 4, dtype="float32", library="torch")
X, IDS = ISO.mu, np.zeros((5, 2), np.int64)
INDEX = flat(ISO)
META = pe.Normal(torch.empty(5, 4, device="meta"), torch.empty(5, device="meta"))


def ids_with(value):
    ids = IDS.copy()
    ids[3, 1] = value
    return ids


BAD = [
    # kinds of object
    (lambda: pe.paired(X, ISO), TypeError, "mls: queries must be a distribution, got ndarray; plain vectors go in pe.Point"),
    (lambda: pe.pairwise(ISO, X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (lambda: pe.search(ISO, None, 1), TypeError, "mls: gallery must be a distribution, got NoneType"),
    (lambda: pe.search([ISO], ISO, 1), TypeError, "mls: queries must be a distribution, got list"),
    (lambda: pe.search(pe.prepare(ISO), ISO, 1), TypeError, "mls: queries must be a distribution, got Prepared"),
    (lambda: pe.search(torch.zeros(2, 4), TENSORS, 1), TypeError, "mls: queries must be a distribution, got Tensor"),
    (lambda: pe.prepare(X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (lambda: pe.prepare(pe.prepare(ISO)), TypeError, "prepare: gallery is prepared for 'mls' already"),
    (lambda: pe.prepare(make("scaled")), TypeError, "mls: no query can be scored against scaled"),
    (lambda: pe.prepare(ISO, dtype="float16"), ValueError, "prepare: dtype 'float16', expected 'float32' or 'float64'"),
    # scores
    (lambda: pe.search(ISO, ISO, 1, "msl"), ValueError, "unknown score 'msl'; did you mean 'mls'?"),
    (lambda: pe.search(ISO, ISO, 1, "zzz"), ValueError, "unknown score 'zzz'; expected one of mls, llr, cosine,"),
    (lambda: pe.search(ISO, ISO, 1, 3), TypeError, "score must be a name or a Score, got int"),
    (lambda: pe.search(ISO, ISO, 1, None), TypeError, "score must be a name or a Score, got NoneType"),
    (lambda: pe.search(ISO, ISO, 1, "mls:rho=1"), ValueError, "mls: unknown parameter 'rho'; expected one of none"),
    (lambda: pe.scores.llr(prior=1), ValueError, "llr: unknown parameter 'prior'; did you mean 'prior_var'?"),
    (lambda: pe.search(ISO, ISO, 1, "llr:prior_var=big"), ValueError, "score 'llr:prior_var=big': prior_var must be a number"),
    (lambda: pe.search(ISO, ISO, 1, "llr"), ValueError, "llr: prior_var must be given; pe.fit_prior"),
    (lambda: pe.search(VMF, VMF, 1, LLR), ValueError, "llr: prior_var has no meaning for vmf x vmf"),
    (
        lambda: pe.search(DIAG, DIAG, 1, pe.scores.llr(prior_var=np.ones(3))),
        ValueError,
        "llr: prior_var has shape (3,), expected () or (4,)",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=np.ones(4))),
        ValueError,
        "llr: prior_var has shape (4,), expected () for isotropic variances",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=1.0, prior_mean=np.zeros(3))),
        ValueError,
        "llr: prior_mean has shape (3,), expected () or (4,)",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=1.0, prior_mean=np.zeros((5, 1)))),
        ValueError,
        "llr: prior_mean has shape (5, 1), expected () or (4,)",
    ),
    (lambda: pe.search(ISO, VMF, 1), TypeError, "mls: cannot score normal_isotropic x vmf (query x gallery), only "),
    # shapes, dtypes, devices
    (lambda: pe.search(make("point", 2, 3), ISO, 1), ValueError, "mls: queries have dim 3, expected 4 like gallery"),
    (lambda: pe.paired(ISO, ISO[:3]), ValueError, "mls: b has 3 items, expected 5 like a"),
    (lambda: pe.paired(ISO, ISO.to("float64")), ValueError, "mls: b has dtype float64, expected float32 like a"),
    (
        lambda: pe.search(TENSORS, ISO, 1),
        TypeError,
        "mls: queries are torch tensors on cpu, expected numpy arrays like gallery",
    ),
    (lambda: pe.pairwise(ISO, TENSORS), TypeError, "mls: queries are numpy arrays, expected torch tensors on cpu"),
    (
        lambda: pe.pairwise(META, TENSORS),
        ValueError,
        "mls: queries are torch tensors on meta, expected torch tensors on cpu like gallery",
    ),
    (lambda: pe.pairwise(META, META), pe.CudaError, "mls: queries and gallery are on meta, and this build has no kernels"),
    # k
    (lambda: pe.search(ISO, ISO, 0), ValueError, "mls: k is 0, expected at least 1"),
    (lambda: pe.rerank(ISO, ISO, IDS, -3), ValueError, "mls: k is -3, expected at least 1"),
    (lambda: pe.search(ISO, ISO, 1.5), TypeError, "mls: k must be an integer, got float"),
    (lambda: pe.search(ISO, ISO, "2"), TypeError, "mls: k must be an integer, got str"),
    (lambda: pe.search(ISO, ISO, None), TypeError, "mls: k must be an integer, got NoneType"),
    # candidates
    (
        lambda: pe.rescore(ISO, ISO, IDS[:3]),
        ValueError,
        "mls: candidates have shape (3, 2), expected (5, K): a row per query",
    ),
    (lambda: pe.rescore(ISO, ISO, IDS[:, 0]), ValueError, "mls: candidates have shape (5,), expected (5, K)"),
    (lambda: pe.rescore(ISO, ISO, IDS[None]), ValueError, "mls: candidates have shape (1, 5, 2), expected (5, K)"),
    (lambda: pe.rescore(ISO, ISO, IDS * 1.0), ValueError, "mls: candidates have dtype float64, expected an integer dtype"),
    (lambda: pe.rescore(ISO, ISO, IDS > 0), ValueError, "mls: candidates have dtype bool, expected an integer dtype"),
    (lambda: pe.rescore(ISO, ISO, ids_with(5)), ValueError, "mls: candidates of query 3 hold id 5, expected -1 (none) or 0 .. 4"),
    (lambda: pe.rerank(ISO, ISO, ids_with(-2), 1), ValueError, "mls: candidates of query 3 hold id -2, expected -1 (none)"),
    (lambda: pe.rerank(ISO, ISO[:0], IDS, 1), ValueError, "mls: candidates of query 0 hold id 0, expected -1 (none)"),
    (lambda: pe.rerank(DIAG, DIAG, ids_with(2**62), 1), ValueError, f"mls: candidates of query 3 hold id {2**62}, expected -1"),
    (
        lambda: pe.rescore(ISO, ISO, ids_with(0).astype(np.uint64) + np.uint64(2**63)),
        ValueError,
        f"mls: candidates hold id {2**63}, beyond int64",
    ),
    (
        lambda: pe.rescore(ISO, ISO, torch.zeros(5, 2, dtype=torch.int64)),
        TypeError,
        "mls: candidates are torch tensors on cpu, expected numpy arrays like queries",
    ),
    (
        lambda: pe.rescore(TENSORS, TENSORS, IDS),
        TypeError,
        "mls: candidates are numpy arrays, expected torch tensors on cpu like queries",
    ),
    (
        lambda: pe.rescore(TENSORS, TENSORS, torch.full((5, 2), 5)),
        ValueError,
        "mls: candidates of query 0 hold id 5, expected -1 (none) or 0 .. 4",
    ),
    (lambda: pe.rescore(ISO, ISO, "abc"), ValueError, "mls: candidates have shape (), expected (5, K)"),
    # FAISS
    (lambda: pe.FaissReranker(np.ones(3), ISO), TypeError, "FaissReranker: index must be a FAISS index, got ndarray"),
    (lambda: pe.FaissReranker(INDEX, X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (lambda: pe.FaissReranker(INDEX, ISO[:4]), ValueError, "FaissReranker: index holds 5 items, expected 4 like gallery"),
    (lambda: pe.FaissReranker(INDEX, ISO, features="mean"), ValueError, "FaissReranker: features 'mean', expected 'mu',"),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(4)),
        ValueError,
        "FaissReranker: ids have shape (4,) and dtype int64, expected integers (5,)",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.ones(5)),
        ValueError,
        "FaissReranker: ids have shape (5,) and dtype float64, expected integers (5,)",
    ),
    (lambda: pe.FaissReranker(INDEX, ISO, ids=[3, 1, 4, 1, 5]), ValueError, "FaissReranker: ids hold 1 twice"),
    (lambda: pe.FaissReranker(INDEX, ISO, ids=[3, -1, 4, 2, 5]), ValueError, "FaissReranker: ids hold -1"),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(5).astype(np.uint64) + np.uint64(2**63)),
        ValueError,
        f"FaissReranker: ids hold {2**63}",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(1, 6)).search(ISO, 2),
        ValueError,
        "FaissReranker: index returned id 0, which ids lacks",
    ),
    (
        lambda: pe.FaissReranker(flat(ISO, np.arange(5) + 100), ISO).search(ISO, 2),
        ValueError,
        "FaissReranker: index returned id 104, gallery has 5 rows; pass its ids",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, features=lambda d: d.mu[:, :3]).search(ISO, 1),
        ValueError,
        "FaissReranker: features of the queries have shape (5, 3), the index takes (5, 4)",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, features=lambda d: d.mu[:3]).search(ISO, 1),
        ValueError,
        "FaissReranker: features of the queries have shape (3, 4), the index takes (5, 4)",
    ),
    (lambda: pe.FaissReranker(INDEX, ISO).search(X, 1), TypeError, "mls: queries must be a distribution, got ndarray"),
    (lambda: pe.FaissReranker(INDEX, ISO).search(ISO, 0), ValueError, "mls: k is 0, expected at least 1"),
    (
        lambda: pe.FaissReranker(INDEX, ISO).search(ISO, 1, shortlist=0),
        ValueError,
        "mls: shortlist is 0, expected at least 1",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO).search(TENSORS, 1),
        TypeError,
        "mls: queries are torch tensors on cpu, expected numpy arrays like gallery",
    ),
    (
        lambda: pe.FaissReranker.build(ISO, "Nonsense"),
        ValueError,
        "FaissReranker.build: factory 'Nonsense' is not a FAISS factory string",
    ),
    (
        lambda: pe.FaissReranker.build(ISO, "Flat", first_stage="l2"),
        ValueError,
        "FaissReranker.build: first_stage 'l2', expected 'cosine'",
    ),
    (lambda: pe.FaissReranker.build(X, "Flat"), TypeError, "mls: gallery must be a distribution, got ndarray"),
    # measures, threads
    (lambda: pe.fit_prior(VMF, np.arange(5)), TypeError, "fit_prior: d must be a Normal or a Point, got vmf"),
    (lambda: pe.fit_prior(ISO, np.arange(4)), ValueError, "fit_prior: labels have shape (4,), expected (5,)"),
    (lambda: pe.fit_prior(ISO, np.zeros(5)), ValueError, "fit_prior: labels name 1 classes of 5 items"),
    (lambda: pe.fit_prior(ISO, np.arange(5)), ValueError, "fit_prior: labels name 5 classes of 5 items"),
    (lambda: pe.set_num_threads(0), ValueError, "set_num_threads: n is 0, expected 1 .. 4096"),
    (lambda: pe.set_num_threads(2.0), TypeError, "set_num_threads: n must be an integer, got float"),
    (lambda: pe.set_num_threads(True), TypeError, "set_num_threads: n must be an integer, got bool"),
]


@pytest.mark.parametrize(("call", "error", "begins"), BAD, ids=[re.sub(r"\W+", "-", b[2])[:60] for b in BAD])
def test_bad_input_gets_one_line_that_names_what_was_expected_and_what_came(call, error, begins):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(begins), message
    assert "\n" not in message and type(caught.value) is error


def test_a_wrong_pair_of_kinds_is_told_before_any_work():
    # The gallery is big enough for a search of minutes.
    big = pe.VonMisesFisher(np.broadcast_to(np.float32(1), (10**9, 4)), np.broadcast_to(np.float32(1), 10**9))
    for verb in itertools.product((pe.search,), (1, 0)):
        with pytest.raises(TypeError, match="cannot score"):
            verb[0](ISO, big, verb[1])
