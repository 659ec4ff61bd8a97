"""Scores and gradients at the edges of their domains: variances of 0, infinite concentrations, subnormal variances."""

import numpy as np
import pytest
import torch
from conftest import EPS, NUMPY, build, by_verb, every_score, expected_limits, is_drawn, make, scored, to_numpy
from test_every_score import NORMALS, PARAMETERS, SUPPORTED

import peaccel as pe

# The kinds that may be certain. Scores by quadrature, hib, have no edge there, and cost most.
KINDS = (*NORMALS, "vmf", "point")
CELLS = [cell for cell in SUPPORTED if cell[0] != "hib" and cell[1] in KINDS and cell[2] in KINDS]


def hostile(kind, n, dim, seed, dtype, tiny=None):
    """Items of which many are copies of few, certain altogether, in some dimensions, nearly or not at all."""
    rng = np.random.default_rng([seed, dim])
    mu = make("vmf" if kind == "vmf" else kind, 5, dim, 11).mu[rng.integers(0, 5, n)]
    apart = rng.random(n) < 0.4
    mu = np.where(apart[:, None], make("vmf" if kind == "vmf" else kind, n, dim, seed).mu, mu)
    if kind == "vmf":
        return build(kind, mu, rng.choice([np.inf, 0.0, 0.5, 20.0, 3e4], n), dtype=dtype)
    shape = (n, dim) if kind == "normal_diagonal" else n
    tiny = {"float32": 1e-42, "float64": 1e-310}[dtype] if tiny is None else tiny
    var = rng.choice([0.0, 0.0, 0.3, 2.0, 1e-6, tiny], n)
    if kind == "normal_diagonal":
        var = np.where(rng.random(shape) < rng.choice([0.0, 0.3, 1.0], n)[:, None], var[:, None], 0.7)
        var[:, 0] = np.where(rng.random(n) < 0.3, 0, var[:, 0])
    return build(kind, mu, var, dtype=dtype)


def assert_limits(q, g, score, dtype):
    found, (value, size) = every_score(q, g, score), expected_limits(score, q, g, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        same = found == value.astype(NUMPY[dtype])  # infinite too where it leaves the range
        error = np.where(same, 0, abs(found - value))
    bound = 8 * EPS[dtype] * size + (1e-12 if q.kind == "vmf" or score.name == "expected_cosine" else 0)
    where = np.argwhere(~(error <= bound))
    assert not len(where), (
        f"{score}: {len(where)} pairs, {where[0]}: {found[tuple(where[0])]}, {value[tuple(where[0])]}"
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CELLS)
def test_every_verb_gives_limits_at_certain_items(name, q_kind, g_kind, dtype):
    for dim in (2, 17, 64):
        q, g = hostile(q_kind, 9, dim, 1, dtype), hostile(g_kind, 40, dim, 2, dtype)
        spelled = [x for x in PARAMETERS if str(x).startswith(f"{name}:")]
        for score in (scored(name, q_kind), *map(pe.scores.get, spelled)):
            if is_drawn(score, q, g):
                continue
            found = by_verb(q, g, score)
            prepared = by_verb(q, g, score, prepared=pe.prepare(g, score))
            for verb, scores in (*found.items(), *prepared.items()):
                assert not np.isnan(scores).any(), (verb, score)
                if verb == "pairwise":
                    np.testing.assert_array_equal(np.isinf(scores), np.isinf(found["rescore"]))
                else:
                    np.testing.assert_array_equal(scores, found["rescore"], err_msg=f"{verb} {score}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CELLS)
def test_limits_are_what_scores_tend_to(name, q_kind, g_kind, dtype):
    q, g = hostile(q_kind, 12, 7, 1, dtype, 1e-12), hostile(g_kind, 60, 7, 2, dtype, 1e-12)
    for score in (scored(name, q_kind), *(pe.scores.get(x) for x in PARAMETERS if str(x).startswith(f"{name}:"))):
        if (
            score.name == "neg_kl" and q_kind == "vmf"
        ):  # of which the reference loses the digits: equal items alone are near
            certain = np.isinf(q.kappa)[:, None] | np.isinf(g.kappa)
            equal = (q.mu[:, None] == g.mu).all(-1) & (q.kappa[:, None] == g.kappa)
            scores = every_score(q, g, score)
            np.testing.assert_array_equal(scores[certain], np.where(equal, 0, -np.inf)[certain])
        elif not is_drawn(score, q, g):
            assert_limits(q, g, score, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CELLS)
def test_searches_lose_no_certain_item(name, q_kind, g_kind, dtype):
    score = scored(name, q_kind)
    q, g = hostile(q_kind, 30, 24, 3, dtype), hostile(g_kind, 700, 24, 4, dtype)
    if is_drawn(score, q, g):
        return
    whole, prepared, every = every_score(q, g, score), pe.prepare(g, score), np.tile(np.arange(len(g)), (len(q), 1))
    order = np.lexsort((every, -whole), axis=1)
    for k in (1, 3, 20, len(g)):
        ids = order[:, :k]
        for ranking in (
            pe.search(q, g, k, score),
            pe.search(q, g, k, score, prune="always"),
            pe.search(q, prepared, k, score),
            pe.rerank(q, g, every, k, score),
        ):
            np.testing.assert_array_equal(ranking.ids, ids)
            np.testing.assert_array_equal(ranking.scores, np.take_along_axis(whole, ids, 1))


COPIES = {"mls": np.inf, "llr": np.inf, "ppk": 0, "inclusion": np.inf, "neg_kl": 0, "neg_mahalanobis": 0, "neg_w2": 0}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", [*NORMALS, "vmf"])
@pytest.mark.parametrize("name", COPIES)
def test_an_exact_copy_of_a_certain_item_is_the_best_of_all(name, kind, dtype):
    if (name, kind, kind) not in SUPPORTED:
        return
    mu = make("vmf", 60, 16, 1).mu  # of which exp(-18) in float16 and exp(-110) in float32 make zeros
    certain = np.full((60, 16) if kind == "normal_diagonal" else 60, np.inf if kind == "vmf" else 0.0)
    d, score = build(kind, mu, certain, dtype=dtype), scored(name, kind)
    for library in ("numpy", "torch"):
        items = build(kind, *(to_numpy(x) for x in d.arrays), dtype=dtype, library=library)
        ranking = pe.search(items, items, 2, score)
        assert (to_numpy(ranking.ids)[:, 0] == np.arange(60)).all()
        assert (to_numpy(ranking.scores)[:, 0] == COPIES[name]).all()
        assert (to_numpy(ranking.scores)[:, 1] < COPIES[name]).all()


GRADIENTS = ("mls", "llr", "ppk", "inclusion", "neg_kl", "neg_mahalanobis", "neg_w2", "expected_cosine")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), [cell for cell in CELLS if cell[0] in GRADIENTS])
def test_gradients_are_finite_at_certain_items_and_those_of_other_pairs_as_without_them(name, q_kind, g_kind, dtype):
    """A pair of whose score a derivative has no finite limit adds 0 to it."""
    score = scored(name, q_kind)
    q, g = make(q_kind, 12, 9, 1, dtype=dtype, library="torch"), make(g_kind, 12, 9, 2, dtype=dtype, library="torch")
    for d in (q, g):
        if d.kind != "point":
            d.arrays[1][:5] = torch.inf if d.kind == "vmf" else 0
    g.mu[:3] = q.mu[:3]
    ids = torch.arange(12).repeat(12, 1)
    for verb in (pe.paired, pe.pairwise, lambda q, g, score: pe.rescore(q, g, ids, score)):
        found, without = [], []
        for out, rows in ((found, slice(None)), (without, slice(5, None))):
            leaves = [x.detach().clone().requires_grad_() for x in (*q.arrays, *g.arrays)]
            sides = type(q)(*leaves[: len(q.arrays)]), type(g)(*leaves[len(q.arrays) :])
            scores = verb(*sides, score)
            weights = torch.zeros_like(scores)
            weights[rows if scores.ndim == 1 else (rows, rows)] = 1
            out.extend(torch.autograd.grad(scores, leaves, weights, allow_unused=True, materialize_grads=True))
        for whole, rest in zip(found, without, strict=True):
            assert whole.isfinite().all() and rest.isfinite().all()
            if verb is pe.paired:
                torch.testing.assert_close(whole[5:], rest[5:])


def test_a_density_at_a_point_has_its_gradient():
    """The limit of mls at an infinite concentration is the other item's log density, and so are its derivatives."""
    q, g = make("vmf", 4, 7, 1, library="torch"), make("vmf", 4, 7, 2, library="torch")
    g.kappa[:] = torch.inf
    leaves = [x.requires_grad_() for x in (q.mu, q.kappa, g.mu)]
    found = torch.autograd.grad(pe.paired(q, g, "mls").sum(), leaves)
    cosine = 1 - ((q.mu - g.mu) ** 2).sum(-1) / 2
    density = pe.special.vmf_log_norm(7, q.kappa) + q.kappa * cosine
    for one, other in zip(found, torch.autograd.grad(density.sum(), leaves), strict=True):
        torch.testing.assert_close(one, other)
