"""All pairs, whose sums run in another order than those of the other verbs: how far apart they are, and gradients."""

import math

import numpy as np
import pytest
import torch
from conftest import EPS, apart, build, make, roundings, scored, to_numpy

import peaccel as pe

NEAR = 1 / 16  # rust/kernels/dot_scores/all_pairs.rs
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def pairs(q, g, score):
    """The scores of all pairs by `paired`."""
    i, j = np.divmod(np.arange(len(q) * len(g)), len(g))
    return to_numpy(pe.paired(q[i], g[j], score)).reshape(len(q), len(g))


@each_dtype
@pytest.mark.parametrize("dim", [1, 2, 15, 16, 17, 33, 127, 128, 129, 300, 600])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cosine", "point"),
        ("inner_product", "point"),
        ("neg_sq_l2", "point"),
        ("mls", "normal_isotropic"),
        ("llr", "normal_isotropic"),
        ("neg_kl", "normal_isotropic"),
        ("ppk", "normal_isotropic"),
    ],
)
def test_scores_are_as_near_those_of_other_verbs_as_is_proved(name, kind, dim, dtype):
    q, g = make(kind, 23, dim, 1, dtype=dtype), make(kind, 37, dim, 2, dtype=dtype)
    found, other = pe.pairwise(q, g, scored(name, kind)), pairs(q, g, scored(name, kind))
    assert (abs(found.astype(np.float64) - other) <= apart(name, q, g, dtype)).all()


@pytest.mark.parametrize("prior_var", [1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9])
def test_llr_keeps_its_digits_in_float32_whatever_the_prior_variance(prior_var):
    q, g = (make("normal_isotropic", n, 16, n, dtype="float32") for n in (20, 30))
    score = pe.scores.llr(prior_var=prior_var)
    a, b = ((d.mu.astype(np.float64), np.asarray(d.var, np.float64).reshape(-1, 1)) for d in (q, g))
    v, w = a[1], b[1].T
    s = v + w + v * w / prior_var
    x = ((a[0][:, None] - b[0]) ** 2).sum(-1)
    norms = (a[0] ** 2).sum(1)[:, None] + (b[0] ** 2).sum(1)
    of_items = [(m**2).sum(1, keepdims=True) * u / (prior_var + u) for m, u in (a, b)]
    logs = 16 * np.log1p(prior_var / s)
    exact = ((of_items[0] + of_items[1].T - x) / s + logs) / 2
    lost = EPS["float32"] / 2 * (30 * norms / s + 6 * logs)
    assert (abs(pe.pairwise(q, g, score) - exact) <= lost).all()
    assert (abs(pe.pairwise(q.to("float64"), g.to("float64"), score) - exact) <= 1e-8 * lost).all()


@pytest.mark.parametrize("dim", [3, 16, 130])
@pytest.mark.parametrize("flat", [1.0, 1e2, 1e4, 1e6])
def test_llr_of_diagonal_normals_keeps_its_digits_however_flat_the_items_are_beside_the_prior(flat, dim):
    rng = np.random.default_rng(dim)
    draw = [rng.uniform(0.5, 2, (20, dim)) * flat for _ in range(2)]
    (v, w), prior = draw, rng.uniform(0.5, 2, dim)
    a, b = (np.sqrt(u) * rng.standard_normal((20, dim)) * rng.choice([0.0, 1.0], (20, 1)) for u in (v, w))
    a, v, b, w, prior = (x.astype("float32") for x in (a, v, b, w, prior))
    found = pe.paired(pe.Normal(a, v), pe.Normal(b, w), pe.scores.llr(prior_var=prior))
    a, v, b, w, prior = (x.astype("float64") for x in (a, v, b, w, prior))
    det = prior * (v + w) + v * w
    parts = [a**2 * v / (prior + v), b**2 * w / (prior + w), -((a - b) ** 2)]
    logs = np.log1p(prior**2 / det)
    exact = (sum(parts) * prior / det + logs).sum(1) / 2
    size = (sum(map(abs, parts)) * prior / det + logs).sum(1) / 2
    assert (abs(found - exact) <= EPS["float32"] * (4 + dim / 32) * size).all()


@each_dtype
@pytest.mark.parametrize("dim", [1, 3, 64, 130, 700])
def test_squared_distances_are_as_exact_as_is_proved_whatever_the_size_of_rows(dim, dtype):
    rng = np.random.default_rng(dim)
    for scale in (1e-25, 1e-18, 1e-3, 1.0, 1e15):
        shift = rng.standard_normal(dim)
        for level in (0.0, 1.0, 3.0, 30.0):
            a, b = (((rng.standard_normal((n, dim)) + level * shift) * scale).astype(dtype) for n in (19, 40))
            a[3], b[5] = b[7], a[4]
            x = ((a[:, None].astype(np.longdouble) - b[None]) ** 2).sum(-1)
            found = -pe.pairwise(pe.Point(a), pe.Point(b), "neg_sq_l2").astype(np.longdouble)
            smallest = (6 * dim + 20) * np.finfo(dtype).smallest_subnormal
            assert (abs(found - x) <= 1.01 * roundings(dim, dtype)[1] / NEAR * EPS[dtype] / 2 * x + smallest).all()
            assert found[3, 7] == found[4, 5] == 0


@each_dtype
def test_pairs_that_are_near_have_the_bits_of_other_verbs(dtype):
    rng = np.random.default_rng(3)
    centre = rng.standard_normal(200)
    q, g = ((centre + 0.2 * rng.standard_normal((n, 200))).astype(dtype) for n in (21, 50))
    for name, d in (("neg_sq_l2", pe.Point), ("neg_kl", lambda x: pe.Normal(x, np.full(len(x), 0.3, dtype)))):
        np.testing.assert_array_equal(pe.pairwise(d(q), d(g), name), pairs(d(q), d(g), name))


@each_dtype
@pytest.mark.parametrize(
    ("name", "kind"), [("mls", "normal_isotropic"), ("cosine", "point"), ("mls", "vmf"), ("llr", "normal_isotropic")]
)
def test_scores_are_the_same_in_whichever_part_of_the_work(name, kind, dtype):
    q, g = make(kind, 70, 40, 1, dtype=dtype), make(kind, 1100, 40, 2, dtype=dtype)
    score = scored(name, kind)
    whole = pe.pairwise(q, g, score)
    for queries, rows in ((slice(8), slice(None)), (slice(60, 70), slice(5, 1000)), (slice(3, 45), slice(700, 708))):
        np.testing.assert_array_equal(pe.pairwise(q[queries], g[rows], score), whole[queries, rows])
    np.testing.assert_array_equal(pe.pairwise(g, q, score).T, whole)


@each_dtype
def test_few_queries_or_gallery_items_have_the_bits_of_other_verbs(dtype):
    for queries, rows in ((7, 40), (40, 7), (1, 9)):
        for name, kind in (("mls", "normal_isotropic"), ("cosine", "point")):
            q, g = make(kind, queries, 40, 1, dtype=dtype), make(kind, rows, 40, 2, dtype=dtype)
            np.testing.assert_array_equal(pe.pairwise(q, g, name), pairs(q, g, name))


@each_dtype
def test_a_set_with_itself_has_a_symmetric_matrix(dtype):
    for name, kind in (("neg_sq_l2", "point"), ("mls", "normal_isotropic"), ("cosine", "point"), ("mls", "vmf")):
        d = make(kind, 75, 33, 1, dtype=dtype)
        found = pe.pairwise(d, d, scored(name, kind))
        np.testing.assert_array_equal(found, found.T)
        if name == "neg_sq_l2":
            assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gallery_in_halves_has_the_scores_of_its_rows_widened(dtype):
    q, g = make("normal_isotropic", 9, 70, 1, dtype="float32"), make("normal_isotropic", 41, 70, 2, dtype=dtype)
    for rows in (q, make("normal_isotropic", 30, 70, 1, dtype="float32")):
        found = to_numpy(pe.pairwise(rows, pe.prepare(g, "mls"), "mls"))
        np.testing.assert_array_equal(found, to_numpy(pe.pairwise(rows, g.to("float32"), "mls")))


@each_dtype
def test_what_is_not_finite_stays_in_its_pairs(dtype):
    clean = [make("normal_isotropic", n, 130, n, dtype=dtype) for n in (20, 45)]
    with np.errstate(all="ignore"):
        for name, bad in (("mls", np.nan), ("mls", np.inf), ("neg_sq_l2", -np.inf), ("cosine", np.nan)):
            q, g = (build("normal_isotropic", np.array(d.mu), np.array(d.var), dtype=dtype) for d in clean)
            q.mu[3, 7], g.mu[11, 100] = bad, bad
            found, want = pe.pairwise(q, g, name), pe.pairwise(*clean, name)
            rest = np.ones(want.shape, bool)
            rest[3], rest[:, 11] = False, False
            np.testing.assert_array_equal(found[rest], want[rest])
            np.testing.assert_array_equal(found[~rest], pairs(q, g, name)[~rest])


# -- gradients ---------------------------------------------------------------------------------------------------------


def gradients(q, g, score, weights):
    """By mean and variance of both sides, from peaccel in float32 and by the formula in float64."""
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (*q, *g)]
        a, v, b, w = leaves
        if dtype == torch.float32:
            scores = pe.pairwise(pe.Normal(a, v), pe.Normal(b, w), score)
        else:
            x, s = ((a[:, None] - b[None]) ** 2).sum(-1), v[:, None] + w[None]
            scores = -0.5 * (x / s + a.shape[1] * torch.log(2 * math.pi * s))
        found.append(torch.autograd.grad((scores * weights.to(dtype)).sum(), leaves))
    return found


@pytest.mark.parametrize("spread", [1e-4, 0.05, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("var", [1e-12, 1e-4, 1.0])
def test_gradients_keep_their_digits_for_rows_near_and_far_and_tiny_variances(spread, var):
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((7, 96))
    labels = rng.integers(0, 7, 100), rng.integers(0, 7, 150)
    q, g = (
        tuple(
            torch.from_numpy(x.astype("f"))
            for x in (centres[y] + spread * rng.standard_normal((len(y), 96)), var * rng.uniform(0.5, 2, len(y)))
        )
        for y in labels
    )
    weights = torch.from_numpy(rng.standard_normal((100, 150), dtype="f"))
    for a, b in zip(*gradients(q, g, "mls", weights), strict=True):
        assert ((a.double() - b).abs() <= 2e-4 * b.abs().amax(-1, keepdim=True)).all()


def test_gradients_of_a_set_with_itself():
    d = make("normal_isotropic", 90, 40, 1, dtype="float32", library="torch")
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((90, 90), dtype="f"))
    mu, var = d.mu.clone().requires_grad_(), d.var.clone().requires_grad_()
    same = pe.Normal(mu, var)
    by_mu, by_var = torch.autograd.grad((pe.pairwise(same, same, "mls") * weights).sum(), (mu, var))
    a, v, b, w = gradients((d.mu, d.var), (d.mu, d.var), "mls", weights)[1]
    torch.testing.assert_close(by_mu.double(), a + b, rtol=1e-4, atol=1e-4 * float((a + b).abs().max()))
    torch.testing.assert_close(by_var.double(), v + w, rtol=1e-4, atol=1e-4 * float((v + w).abs().max()))
