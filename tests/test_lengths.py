"""Cosines of rows of any length, in every verb: zeros, rows whose squares leave the range, rounding beyond 1."""

import numpy as np
import pytest
import torch
from conftest import EPS, NUMPY, build, by_verb, every_score

import peaccel as pe
from peaccel.losses import ScoreNCE
from peaccel.retrieval.faiss.vectors import first_vectors

FARTHEST = {"float32": 36, "float64": 300}  # powers of ten
COSINES = (
    *("cosine", "expected_cosine", "sampled_cosine:n=2,seed=1"),
    *("norm_cosine:mu=0.2", "norm_cosine:mu=0.2,sides=query"),
)


def rows(n, dim, dtype, seed=0, farthest=300):
    """Rows of all lengths, of zeros, and copies of earlier ones at another length."""
    rng = np.random.default_rng([seed, dim])
    mu = rng.standard_normal((n, dim))
    mu[n // 2 :] = mu[: n - n // 2]
    farthest = min(farthest, FARTHEST[dtype])
    mu *= 10.0 ** rng.uniform(-farthest, farthest, (n, 1)) / dim**0.5
    mu[rng.random(n) < 0.4] = rng.standard_normal(dim)
    mu[3] = 0
    return mu.astype(NUMPY[dtype])


def exact(a, b):
    a, b = (x.astype(np.longdouble) for x in (a, b))
    a, b = (x / np.where(x.any(1), np.sqrt((x * x).sum(1)), 1)[:, None] for x in (a, b))
    return a @ b.T


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 2, 17, 130])
@pytest.mark.parametrize("score", COSINES)
def test_cosines_of_every_verb_are_right_at_any_length(score, dim, dtype):
    # Lengths themselves are roots of squares in float64.
    farthest = 150 if score.startswith("norm") else 300
    a, b = rows(12, dim, dtype, 1, farthest), rows(40, dim, dtype, 2, farthest)
    b[:12] = a
    q, g = build("point", a, None, dtype=dtype), build("point", b, None, dtype=dtype)
    wanted = exact(a, b)
    if score.startswith("norm"):
        length = [np.sqrt((x.astype(np.longdouble) ** 2).sum(1)) for x in (a, b)]
        weight = length[0][:, None] if "query" in score else np.sqrt(np.outer(*length))
        wanted = weight * (wanted - np.longdouble(np.dtype(dtype).type(0.2)))
    for found in (by_verb(q, g, score), by_verb(q, g, score, prepared=pe.prepare(g, score))):
        for verb, scores in found.items():
            with np.errstate(over="ignore", invalid="ignore"):
                size = 1 if "norm" not in score else 2 * weight
                error = np.where(scores == wanted.astype(NUMPY[dtype]), 0, abs(scores - wanted))
            assert (error <= 60 * EPS[dtype] * size).all(), verb
            if "norm" not in score:
                assert (abs(scores) <= 1).all() and (scores[3] == 0).all(), verb
            if verb != "pairwise":
                np.testing.assert_array_equal(scores, found["rescore"], err_msg=verb)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("score", ["cosine", "norm_cosine:mu=0.2"])
def test_searches_of_rows_of_any_length_lose_none(score, dtype):
    q, g = (build("point", rows(n, 24, dtype, n), None, dtype=dtype) for n in (30, 900))
    whole, prepared, every = every_score(q, g, score), pe.prepare(g, score), np.tile(np.arange(900), (30, 1))
    coded = pe.prepare(g, score, codes=True)
    order = np.lexsort((every, -whole), axis=1)
    for k in (1, 3, 20, 900):
        ids = order[:, :k]
        for ranking in (
            pe.search(q, g, k, score),
            pe.search(q, prepared, k, score),
            pe.rerank(q, g, every, k, score),
            pe.rerank(q, coded, every, k, score),
        ):
            np.testing.assert_array_equal(ranking.ids, ids)
            np.testing.assert_array_equal(ranking.scores, np.take_along_axis(whole, ids, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("verb", ["paired", "pairwise", "rescore"])
def test_gradients_at_any_length_are_those_of_rows_scaled(verb, dtype):
    """The gradient of a cosine is across the row, and the larger the shorter it is; at zeros it is 0."""
    torch_dtype = getattr(torch, dtype)
    lengths = 10.0 ** np.linspace(-30, 30, 9) if dtype == "float32" else 10.0 ** np.linspace(-250, 250, 9)
    rng = np.random.default_rng(3)
    unit = [torch.tensor(rng.standard_normal((10, 13)), dtype=torch.float64) for _ in range(2)]
    scale = [torch.tensor(np.append(x, 1.0)) for x in (lengths, lengths[::-1].copy())]
    mu = [(x * s[:, None]).to(torch_dtype) for x, s in zip(unit, scale, strict=True)]
    for x in mu:
        x[9] = 0
    ids = torch.arange(10).repeat(10, 1)
    call = {"paired": pe.paired, "pairwise": pe.pairwise, "rescore": lambda a, b, s: pe.rescore(a, b, ids, s)}[verb]
    leaves = [x.clone().requires_grad_() for x in mu]
    found = torch.autograd.grad(call(*map(pe.Point, leaves), "cosine").sum(), leaves)
    near = [(x.double() / s[:, None]).requires_grad_() for x, s in zip(mu, scale, strict=True)]
    a, b = (torch.nn.functional.normalize(x[:9], dim=1) for x in near)
    cosines = (a * b).sum() if verb == "paired" else (a @ b.T).sum()
    for one, other, s in zip(found, torch.autograd.grad(cosines, near), scale, strict=True):
        assert (one[9] == 0).all()
        torch.testing.assert_close(
            one[:9].double() * s[:9, None], other[:9], rtol=2e3 * EPS[dtype], atol=1e3 * EPS[dtype]
        )


@pytest.mark.parametrize("score", ["cosine", "norm_cosine:mu=0.1", "expected_cosine", "sampled_cosine:n=2,seed=1"])
def test_derivatives_at_zeros_are_finite(score):
    mu = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    mu[2] = 0
    leaf, other = mu.clone().requires_grad_(), mu.flip(0).clone().requires_grad_()
    (first, _) = torch.autograd.grad(
        pe.pairwise(pe.Point(leaf), pe.Point(other), score).sum(), (leaf, other), create_graph="sampled" not in score
    )
    assert first.isfinite().all()
    if score == "cosine":
        assert (first[2] == 0).all()
    if "sampled" not in score:
        second = torch.autograd.grad((first * first).sum(), (leaf, other))
        assert all(x.isfinite().all() for x in second)


def test_a_row_of_zeros_leaves_a_loss_and_its_gradients_finite():
    mu = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    mu[2] = 0
    leaf = mu.clone().requires_grad_()
    loss = ScoreNCE("cosine")(pe.Point(leaf), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all() and leaf.grad[[0, 1, 3, 4]].any(1).all()


def test_copies_never_score_above_one():
    mu = np.random.default_rng(0).standard_normal((3000, 33)).astype(np.float32)
    for d in (pe.Point(mu), pe.Point(mu * np.float32(1.7))):
        for scores in (pe.paired(d, pe.Point(mu), "cosine"), pe.search(d, pe.Point(mu), 1, "cosine").scores):
            assert (scores <= 1).all() and (scores > 1 - 1e-6).all()


def test_first_stages_take_directions_of_any_length():
    mu = rows(40, 8, "float32")
    _, _, vectors = first_vectors(pe.Point(mu), pe.scores.cosine, "cosine", "Flat")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, mu.any(1), atol=1e-5)
