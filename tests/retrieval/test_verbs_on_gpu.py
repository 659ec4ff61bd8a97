"""On a GPU no verb waits: nobody looks at values, and nothing is copied between host and device.

Tensors that say they are on one (`stand_in_gpu`) show that here, under modes that see every operator.
"""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from conftest import assert_ranking, make, scored, to_numpy
from stand_in_gpu import _here, on_gpu, stand_in
from waits import NothingIsSent, NothingWaits

import peaccel as pe
from peaccel.ops import _dispatch
from peaccel.retrieval.ranking import best_first

CASES = sorted({(name, q, g) for name, score in pe.scores.SCORES.items() for q, g in score.pairs})
VAR = torch.tensor([[0.5, 0.3, 2.0, 1.0, 0.7, 0.1]])


@pytest.fixture(autouse=True)
def _on_stand_in(monkeypatch):
    with stand_in(monkeypatch):
        yield


def items(kind, n, seed, var=None):
    d = make(kind, n, 6, seed, dtype="float32", library="torch")
    arrays = d.arrays if var is None else (d.mu, var)
    return type(d)(*(on_gpu(x) if isinstance(x, torch.Tensor) else x for x in arrays))


def nothing_waits(q, g, score, prepared=True):
    """Calls every verb with a gallery, and with what is prepared of it, under the modes."""
    ids = on_gpu(torch.arange(9).expand(len(q), 9) % len(g))
    galleries = (g, pe.prepare(g, score)) if prepared else (g,)
    with NothingIsSent(), NothingWaits():
        for gallery in galleries:
            found = (
                pe.pairwise(q, gallery, score),
                pe.paired(q, gallery[: len(q)] if gallery is g else pe.prepare(g[: len(q)], score), score),
                pe.rescore(q, gallery, ids, score),
                *pe.rerank(q, gallery, ids, 3, score),
                *pe.search(q, gallery, 3, score),
            )
            assert all(x.is_cuda for x in found)


@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CASES)
def test_no_verb_waits(name, q_kind, g_kind):
    nothing_waits(items(q_kind, 5, 1), items(g_kind, 20, 2), scored(name, q_kind, g_kind))


WEIGHTED = ("mls", "neg_mahalanobis", "llr:prior_var=0.7", "ppk", "inclusion", "neg_kl")


@pytest.mark.parametrize("score", WEIGHTED)
@pytest.mark.parametrize("var", [0.3, VAR])
def test_no_verb_waits_for_the_one_variance_of_all_items(score, var):
    kind = "normal_diagonal"
    nothing_waits(items(kind, 5, 1, var), items(kind, 20, 2, VAR), score)


def test_no_verb_waits_for_parameters_that_are_tensors():
    q, g = items("normal_diagonal", 5, 1, VAR), items("normal_diagonal", 20, 2, VAR)
    rho, row = on_gpu(torch.tensor(0.7)), on_gpu(VAR[0] + 1)
    nothing_waits(q, g, pe.scores.ppk(rho=rho))
    nothing_waits(q, g, pe.scores.llr(prior_var=row, prior_mean=row))
    ready = pe.prepare(g, pe.scores.llr(prior_var=VAR[0].numpy()))  # which takes numbers to the device
    with NothingIsSent(), NothingWaits():
        pe.search(q, ready, 3)
        pe.search(q, ready, 3, ready.score)


@pytest.mark.parametrize("score", WEIGHTED)
def test_a_prepared_gallery_of_one_variance_takes_the_way_of_the_gallery(score):
    """For each variance of queries, which are told apart by their numbers or by their memory."""
    g = items("normal_diagonal", 300, 2, VAR)
    ready = pe.prepare(g, score)
    host = pe.Normal(*(x.as_subclass(torch.Tensor) for x in g.arrays))
    for var in (VAR, 0.3, 2 * VAR, 0.3, 0.9):
        q = items("normal_diagonal", 5, 1, var)
        with NothingWaits():
            plans = [pe.retrieval.plan.plan(q, x, ready.score, detach=True).pair.op for x in (g, ready)]
            found = [pe.search(q, x, 4, ready.score) for x in (g, ready, ready)]
        assert plans[0] is plans[1] is pe.ops.dot_scores.neg_sq_l2
        want = pe.search(pe.Normal(*(x.as_subclass(torch.Tensor) for x in q.arrays)), host, 4, score)
        for ranking in found:
            assert_ranking(pe.Ranking(*(x.cpu() for x in ranking)), tuple(map(to_numpy, want)), f"{score} {var}")


def test_a_variance_is_laid_out_once_where_it_lies_in_one_place():
    g = items("normal_diagonal", 300, 2, VAR)
    ready, q = pe.prepare(g, "mls"), items("normal_diagonal", 5, 1, 2 * VAR)

    def laid_out(queries):
        return ready.laid_out_for(queries)

    first = laid_out(q)
    assert laid_out(q) is laid_out(q[1:3]) is first
    q.var[:1].as_subclass(torch.Tensor).mul_(2)
    other = laid_out(q)
    assert other is not first
    assert laid_out(items("normal_diagonal", 5, 1, 0.5)) is laid_out(items("normal_diagonal", 3, 3, 0.5)[1:])


@pytest.mark.parametrize("score", ["mls", "neg_kl", "neg_mahalanobis", "llr:prior_var=0.7"])
def test_copies_are_the_best_where_all_variances_are_zero(score):
    """Nobody sees the zeros; they count as 1e-30, so that scores are finite and an exact copy is the best of all."""
    var = VAR.clone()
    var[0, :2] = 0
    g = items("normal_diagonal", 30, 2, var)
    q = g[3:8]
    for gallery in (g, pe.prepare(g, score)):
        found = pe.search(q, gallery, 4, score)
        assert found.ids[:, 0].cpu().tolist() == [3, 4, 5, 6, 7]
        assert not found.scores.isnan().any()


def test_galleries_in_blocks_of_one_variance_are_told_apart_without_waiting():
    q, g = items("normal_diagonal", 5, 1, 0.3), items("normal_diagonal", 40, 2, 0.5)
    cuts = [0, 9, 30, 40]
    with NothingIsSent(), NothingWaits():
        found = pe.search(q, [g[a:b] for a, b in itertools.pairwise(cuts)], 4, "mls")
    whole = pe.search(q, g, 4, "mls")
    assert torch.equal(found.ids, whole.ids) and torch.equal(found.scores, whole.scores)
    q, first, second = (items("normal_diagonal", 9, n, n * VAR) for n in (1, 2, 3))
    with pytest.raises(ValueError, match="has not the one variance that all items of block 0 have"):
        pe.search(q, [first, second], 4, "mls")


def test_merges_of_shards_do_not_wait(monkeypatch):
    """They are one selection by places, whose ties keep the order of the parts."""
    rng, parts = np.random.default_rng(0), []
    for start in (0, 50):
        scores = torch.from_numpy(rng.integers(-2, 3, (4, 6)).astype(np.float32)).sort(1, descending=True).values
        ids = torch.from_numpy(rng.permutation(24).reshape(4, 6)) + start
        scores[:, 5], scores[1, 4], ids[:, 5] = -torch.inf, torch.nan, -1
        parts.append(pe.Ranking(scores, ids))
    monkeypatch.setattr(_dispatch, "_ON_GPU", _dispatch._ON_GPU._replace(select=partial(_here(_sorted), None)))
    on = [pe.Ranking(*map(on_gpu, part)) for part in parts]
    for k in (3, 9, 20):
        for offsets in (None, [100, 0]):
            with NothingIsSent(), NothingWaits():
                found = pe.merge(on, k, offsets)
            assert_ranking(pe.Ranking(*(x.cpu() for x in found)), tuple(map(to_numpy, pe.merge(parts, k, offsets))))


def _sorted(_, scores, ids, k):
    """As the kernel's."""
    return tuple(x[:, :k] for x in best_first(scores, ids, by_row=True))


def test_exclusions_are_sent_and_nobody_waits():
    gallery = items("normal_isotropic", 20, 2)
    queries, candidates = gallery[:5], on_gpu(torch.arange(20).expand(5, 20))
    here = make("normal_isotropic", 20, 6, 2, dtype="float32", library="torch")
    for exclude in (range(5), pe.exclude_same({"x": range(5)}, {"x": np.arange(20) % 7})):
        with NothingWaits():
            found = pe.search(queries, gallery, 4, "mls", exclude=exclude)
            reranked = pe.rerank(queries, gallery, candidates, 4, "mls", exclude=exclude)
            allowed = pe.search(queries, gallery, 4, "mls", exclude=exclude, allowed=range(10))
        assert all(x.is_cuda for ranking in (found, reranked, allowed) for x in ranking)
        for ranking, options in ((found, {}), (reranked, {}), (allowed, {"allowed": range(10)})):
            want = pe.search(here[:5], here, 4, "mls", exclude=exclude, **options)
            np.testing.assert_array_equal(to_numpy(ranking.ids.cpu()), to_numpy(want.ids))
