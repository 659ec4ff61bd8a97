"""Normals that all have one variance: scores by one weighted product in every verb, and what keeps the variance one."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import assert_ranking, every_score, expected

import peaccel as pe
from peaccel.ops import diag_scores, dot_scores
from peaccel.retrieval.plan import plan

DIM = 7
PSI = np.exp(np.random.default_rng(5).normal(0, 1, DIM))
MEAN = np.arange(DIM) / 4 + 1
SCORES = {
    "llr": pe.scores.llr(prior_var=PSI),
    "llr centred": pe.scores.llr(prior_var=PSI, prior_mean=MEAN),
    "mls": pe.scores.mls,
    "neg_mahalanobis": pe.scores.neg_mahalanobis,
    "ppk": pe.scores.ppk(rho=0.7),
    "inclusion": pe.scores.inclusion,
    "neg_kl": pe.scores.neg_kl,
    "neg_kl back": pe.scores.neg_kl(direction="gallery_to_query"),
    "neg_kl symmetric": pe.scores.neg_kl(direction="symmetric"),
}
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


def rows(seed):
    return np.exp(np.random.default_rng(seed).normal(0, 1, (1, DIM)))


SIDES = {"one row": (rows(1), rows(1)), "two rows": (rows(1), rows(2)), "a number and a row": (0.3, rows(2))}


def items(count, var, seed, dtype="float64", library="numpy"):
    """Items far from the origin that lie near to each other in some dimensions."""
    mu = (3 + np.random.default_rng(seed).normal(0, rows(9)[0], (count, DIM))).astype(dtype)
    var = np.asarray(var, dtype)
    return pe.Normal(*(torch.tensor(x) if library == "torch" else x for x in (mu, var)))


def own(d):
    """The same with a variance of its own in the memory of each item."""
    return pe.Normal(d.mu, d.var.clone() if isinstance(d.mu, torch.Tensor) else d.var.copy())


def op_of(q, g, score):
    return plan(q, g, score, detach=True).pair.op


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_of_the_formula(name, sides, dtype):
    score, (v, w) = SCORES[name], SIDES[sides]
    q, g = items(9, v, 0, dtype), items(33, w, 1, dtype)
    assert op_of(q, g, score) is dot_scores.neg_sq_l2
    assert op_of(own(q), own(g), score) in vars(diag_scores).values()
    centred = [pe.Normal(d.mu - MEAN.astype(dtype), d.var) if name == "llr centred" else d for d in (q, g)]
    found, (want, size) = pe.pairwise(q, g, score), expected(score, *centred, dtype)
    # Scaled coordinates are rounded, of means ten times as long as what lies between them.
    assert (np.abs(found - want) / size).max() < 30 * EPS[dtype]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("name", ["llr", "llr centred", "mls", "neg_kl"])
def test_a_pair_has_the_same_bits_in_every_verb_and_subset(name, sides, library):
    score, (v, w) = SCORES[name], SIDES[sides]
    q, g = (items(n, x, n, "float32", library) for n, x in ((40, v), (300, w)))
    scores, numbers = np.asarray(every_score(q, g, score)), np.random.default_rng(0)
    candidates = numbers.integers(-1, 300, (40, 11))
    given = torch.tensor(candidates) if library == "torch" else candidates
    padded = np.where(candidates < 0, -np.inf, np.take_along_axis(scores, candidates.clip(0), 1))
    np.testing.assert_array_equal(pe.rescore(q, g, given, score), padded)
    np.testing.assert_array_equal(pe.paired(q, g[:40], score), scores[np.arange(40), np.arange(40)])
    np.testing.assert_array_equal(pe.paired(q[[3, 9]], g[np.array([250, 4])], score), scores[[3, 9], [250, 4]])
    order = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    whole = np.take_along_axis(scores, order, 1), order
    prepared = pe.prepare(g, score)
    for gallery in (g, prepared, pickle.loads(pickle.dumps(prepared)), copy.deepcopy(prepared)):
        for some in (q, q[:3], q[:1], q[39]):
            first = len(q) - 1 if some is not q and len(some) == 1 and some.mu[0, 0] == q.mu[39, 0] else 0
            part = tuple(x[first : first + len(some)] for x in whole)
            assert_ranking(pe.search(some, gallery, 20, score), part)
        assert_ranking(pe.rerank(q, gallery, given, 5, score), _best(padded, candidates, 5))


def _best(scores, ids, k):
    """The best k candidates of each query, ties by the lower id and each id once as often as it is named."""
    order = np.lexsort((np.where(ids < 0, np.iinfo(np.int64).max, ids), -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


@pytest.mark.parametrize("name", ["llr", "neg_kl"])
def test_a_search_loses_nothing_where_what_is_added_to_distances_has_any_sign(name):
    """Numbers beside the distances are of both signs, NaN and infinite; enough queries sort the rows by them."""
    score = SCORES[name]
    q, g = (items(n, 1.0, n, "float32") for n in (80, 4000))
    g.mu[::2] *= 5  # far rows, of which the prior makes much
    g.mu[7], g.mu[1000, 2], g.mu[2000] = np.nan, np.inf, -np.nan
    row = np.ones((1, DIM), np.float32)
    q, g = pe.Normal(q.mu, row), pe.Normal(g.mu, row)
    assert op_of(q, g, score) is dot_scores.neg_sq_l2
    scores = every_score(q, g, score)
    keys = np.where(np.isnan(scores), -np.inf, scores)
    for count, k in ((80, 10), (80, 200), (5, 10), (1, 4000)):
        order = np.lexsort((np.arange(4000) + np.isnan(scores[:count]) * 10**6, -keys[:count]), axis=1)[:, :k]
        for gallery in (g, pe.prepare(g, score)):
            found = pe.search(q[:count], gallery, k, score)
            assert_ranking(found, (np.take_along_axis(scores[:count], order, 1), order))
    assert pe.search(q, pe.prepare(g, score), 10, score).scored < 0.2


@pytest.mark.parametrize("name", SCORES)
def test_gradients_are_those_of_variances_of_ones_own(name):
    score = SCORES[name]
    q, g = items(5, rows(1), 0, library="torch"), items(6, 0.7, 1, library="torch")
    weight = torch.tensor(np.random.default_rng(3).normal(size=(5, 6)))
    gradients = []
    for make in (lambda d: d, own):
        mus = [d.mu.clone().requires_grad_() for d in (q, g)]
        one, two = (make(pe.Normal(mu, d.var)) for mu, d in zip(mus, (q, g), strict=True))
        value = (weight * pe.pairwise(one, two, score)).sum()
        first = torch.autograd.grad(value, mus, create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in first), mus)
        gradients.append([*first, *second])
    for found, want in zip(*gradients, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11 * want.abs().max().item())


def test_variances_and_priors_that_are_trained_keep_their_gradients():
    mu, weight = torch.tensor(items(6, 1.0, 0).mu), torch.tensor(np.random.default_rng(3).normal(size=(6, 6)))
    var = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    shared = pe.Normal(mu, var)
    assert shared.common_parameter() is None
    score = pe.scores.llr(prior_var=PSI)
    found = torch.autograd.grad((weight * pe.pairwise(shared, shared, score)).sum(), [var, shared.var])
    each = torch.full((6,), 0.5, dtype=torch.float64, requires_grad=True)
    other = pe.Normal(mu, each)
    (want,) = torch.autograd.grad((weight * pe.pairwise(other, other, score)).sum(), each)
    torch.testing.assert_close(found[1], want)
    torch.testing.assert_close(found[0], want.sum())

    d = pe.Normal(mu, 0.5)
    assert op_of(d, d, score) is dot_scores.neg_sq_l2
    by_gallery = []
    for gallery in (own(d), d, pe.prepare(d, score)):
        prior = torch.tensor(PSI, requires_grad=True)
        by_gallery += torch.autograd.grad(
            (weight * pe.pairwise(d, gallery, pe.scores.llr(prior_var=prior))).sum(), prior
        )
    torch.testing.assert_close(by_gallery[1], by_gallery[0])
    torch.testing.assert_close(by_gallery[2], by_gallery[0])


def test_a_prepared_gallery_is_laid_out_for_one_variance_of_queries_at_a_time():
    score = SCORES["llr"]
    g = items(500, 1.0, 1, "float32")
    prepared = pe.prepare(g, score)
    held = prepared.nbytes
    for var in (1.0, 0.3, rows(1), 1.0):
        q = items(40, var, 2, "float32")
        assert_ranking(pe.search(q, prepared, 9, score), pe.search(q, g, 9, score))
        assert prepared.nbytes == held
    own_var = own(q)
    assert_ranking(pe.search(own_var, prepared, 9, score), pe.search(own_var, own(g), 9, score))
    point = pe.Point(q.mu)
    assert op_of(point, prepared, score) is dot_scores.neg_sq_l2
    assert_ranking(pe.search(point, prepared, 9, score), pe.search(point, g, 9, score))


def test_a_gallery_that_grows_keeps_its_variance_or_is_scored_by_its_own():
    score = SCORES["mls"]
    q, g = items(20, rows(1), 0, "float32"), items(60, rows(1), 1, "float32")
    for added, op in (
        (items(9, rows(1), 2, "float32"), "neg_sq_l2"),
        (items(9, rows(2), 2, "float32"), "mls_diagonal"),
    ):
        whole = pe.concat([g, added])
        grown = pe.prepare(g, score).extended(whole)
        assert op_of(q, whole, score).name == op_of(q, grown, score).name == op
        assert_ranking(pe.search(q, grown, 7, score), pe.search(q, whole, 7, score))


def test_halves_stay_halves():
    q, g = items(20, rows(1), 0, "float32"), items(60, rows(1), 1, "float32")
    ready = pe.prepare(g, "mls", dtype="float16")
    assert op_of(q, ready, ready.score) is diag_scores.mls_diagonal
    assert ready.nbytes < pe.prepare(own(g), "mls", dtype="float16").nbytes < pe.prepare(own(g), "mls").nbytes


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("var", [0.5, rows(1)])
def test_what_is_one_variance_stays_one(var, library):
    d = items(6, var, 0, library=library)
    other = "float32" if library == "numpy" else torch.float32
    mask = np.arange(6) % 2 == 0
    for taken in (d, d[2], d[1:4], d[[5, 0]], d[mask], d.to(other), d.detach(), copy.copy(d), copy.deepcopy(d),
                  pickle.loads(pickle.dumps(d)), pickle.loads(pickle.dumps(d[2])), copy.deepcopy(d[2]),
                  pe.concat([d, d[:2]]), pe.concat([d[:0], d])):  # fmt: skip
        row = taken.common_parameter()
        assert tuple(row.shape) == ((1,) if np.ndim(var) == 0 else (1, DIM)) and len(taken.var) == len(taken)
        np.testing.assert_allclose(np.asarray(row)[0], np.asarray(var).reshape(-1) if np.ndim(var) else var, rtol=1e-7)
    for taken in (own(d), pe.concat([d, items(2, 2 * np.asarray(var), 1, library=library)]), pe.concat([d, own(d)])):
        assert taken.common_parameter() is None
    assert len(pickle.dumps(items(10**5, var, 0))) < 10**5 * (DIM + 1) * 8
    assert d[:0].common_parameter() is None and pe.Point(d.mu).common_parameter() is None


def test_compiled_and_eager_take_the_same_way():
    q, g = items(5, 1.0, 0, library="torch"), items(30, 1.0, 1, library="torch")
    score = pe.scores.llr(prior_var=torch.tensor(PSI))

    def best(x, y):
        return pe.pairwise(pe.Normal(x, 1.0), pe.Normal(y, 1.0), score)

    torch.testing.assert_close(torch.compile(best, fullgraph=True, backend="aot_eager")(q.mu, g.mu), best(q.mu, g.mu))


def test_a_reranker_keeps_one_variance_while_items_come_and_go():
    psi = pe.scores.llr(prior_var=PSI)
    g, added = items(60, 1.0, 1, "float32"), items(9, 1.0, 2, "float32")
    q, own_added = items(20, 1.0, 0, "float32"), items(9, 2.0, 2, "float32")
    reranker = pe.FaissReranker.build(g, "Flat", first_stage="cosine", score=psi)
    reranker.add(added)
    reranker.remove([3])
    whole = pe.concat([g, added])
    assert whole.common_parameter() is not None
    kept = np.delete(np.arange(69), 3)
    expected = pe.search(q, whole[kept], 7, psi)
    found = reranker.search(q, 7, shortlist=69)
    np.testing.assert_array_equal(found.ids, kept[expected.ids])
    np.testing.assert_array_equal(found.scores, expected.scores)
    reranker.add(own_added)
    whole = pe.concat([whole, own_added])
    kept = np.delete(np.arange(78), 3)
    found, expected = reranker.search(q, 7, shortlist=78), pe.search(q, whole[kept], 7, psi)
    np.testing.assert_array_equal(found.ids, kept[expected.ids])
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("count", [1, 400])
@pytest.mark.parametrize("var", [0.5, rows(1)])
def test_a_reranker_of_a_folder_has_the_variance_that_was_saved(var, count, library, dtype, mmap, tmp_path):
    kind = getattr(torch, dtype) if library == "torch" else dtype
    g, q = items(count, var, 1, "float32", library).to(kind), items(30, var, 0, "float32", library).to(kind)
    for gallery in (g, own(g)):
        reranker = pe.FaissReranker.build(gallery, "Flat", score="mls")
        reranker.save(tmp_path / "r")
        loaded = pe.FaissReranker.open(tmp_path / "r", mmap=mmap)
        assert (loaded.gallery.common_parameter() is None) == (gallery.common_parameter() is None)
        for x, y in zip(loaded.gallery.arrays, gallery.arrays, strict=True):
            assert bool((x == y).all())
        if dtype == "float32":
            found, expected = (pe.search_above(q, x.gallery, -9.0, "mls") for x in (loaded, reranker))
            np.testing.assert_array_equal(*(np.asarray(x.scores) for x in (found, expected)))


def test_threads_whose_queries_have_other_variances_leave_nothing_behind():
    """Each goes on with what was laid out for it; what is kept is of one variance, and no array of another."""
    g, queries = items(300, rows(2), 1), [items(2, rows(seed), seed) for seed in range(4)]
    ready, candidates = pe.prepare(g, codes=True), np.tile(np.arange(300), (2, 1))
    found = [pe.rerank(q, ready, candidates, 3) for q in queries]
    held = ready.nbytes
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            calls = [(i % 4, pool.submit(pe.rerank, queries[i % 4], ready, candidates, 3)) for i in range(400)]
            for i, call in calls:
                assert_ranking(call.result(), found[i])
    finally:
        sys.setswitchinterval(interval)
    assert ready.nbytes == held
