"""triplet_probability against the moments of draws, scipy's normal tail, published signs; derivatives; bad input."""

import itertools

import numpy as np
import pytest
import torch
from conftest import build, make, to_numpy
from scipy import special

import peaccel as pe

LIBRARIES = ("numpy", "torch")
NORMALS = ("normal_isotropic", "normal_diagonal")


def standardised(draws):
    """-E / sd of tau from draws of the three [S, N, D], and what Monte Carlo knows it to."""
    a, p, n = draws
    tau = ((a - p) ** 2).sum(-1) - ((a - n) ** 2).sum(-1)
    mean, sd = tau.mean(0), tau.std(0)
    return -mean / sd, 5 * np.sqrt((1 + (mean / sd) ** 2) / len(tau))


def score(triplet, **options):
    """The argument of Phi, recovered from its log."""
    log = to_numpy(pe.triplet_probability(*triplet, log=True, **options))
    z = special.ndtri_exp(log)
    np.testing.assert_allclose(special.log_ndtr(z), log, rtol=1e-12)
    return z


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kinds", list(itertools.product(NORMALS, repeat=3)))
def test_moments_of_normals_are_those_of_draws(kinds, library):
    rng = np.random.default_rng(1)
    triplet = [make(kind, 3, 5, seed) for seed, kind in enumerate(kinds)]
    draws = [d.mu + rng.standard_normal((100_000, 3, 5)) * np.sqrt(d.var.reshape(3, -1)) for d in triplet]
    expected, error = standardised(draws)
    given = [build(d.kind, *d.arrays, library=library) for d in triplet]
    assert (np.abs(score(given) - expected) <= error).all()


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_matched_moments_of_von_mises_fisher_are_those_of_draws(dim):
    rng = np.random.default_rng(0)
    a = make("vmf", 4, dim)
    others = [a.mu + c * make("vmf", 4, dim, seed).mu for seed, c in ((1, 0.6), (2, 0.8))]
    kappas = [rng.uniform(0.3, 6, 4) * dim for _ in range(3)]
    means = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a.mu, *others)]
    triplet = [pe.VonMisesFisher(m, k) for m, k in zip(means, kappas, strict=True)]
    draws = [pe.sample(d, 40_000, seed=seed) for seed, d in enumerate(triplet)]
    expected, error = standardised(draws)
    matched = score(triplet, match_moments=True)
    assert (np.abs(matched - expected) <= error).all()
    assert np.abs(score(triplet) - expected).sum() > np.abs(matched - expected).sum()


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_tail_of_phi_is_scipys(library):
    z = np.r_[np.linspace(-60, 12, 1001), -1e3, -1e6, -1e100, 30, 1e10]
    # Of variance 1, the anchor at 0, both others at 1: E = 0, sd^2 = 2 + 2 + 8 + 4 + 4.
    a, p, n = (build("normal_isotropic", np.array([[m]]), np.ones(1), library=library) for m in (0.0, 1.0, 1.0))
    sd = np.sqrt(20)
    found = [to_numpy(pe.triplet_probability(a, p, n, margin=-x * sd, log=True))[0] for x in z]
    rounding = 1e-15 * (1 + np.where(z > 0, z, 0) ** 2)  # of z, in the tail where it counts
    assert (np.abs(found - special.log_ndtr(z)) <= rounding * np.abs(special.log_ndtr(z))).all()
    plain = [to_numpy(pe.triplet_probability(a, p, n, margin=-x * sd))[0] for x in z]
    np.testing.assert_allclose(plain, special.ndtr(z), rtol=1e-12, atol=1e-300)


def test_nothing_cancels_in_float32():
    # The paper's polynomial is 1.6 % off here, in float32, and can turn negative.
    rng = np.random.default_rng(0)
    far = 100 + rng.standard_normal((50, 8))
    wide = [pe.Normal(far + 1e-2 * rng.standard_normal((50, 8)), np.full(50, 1e-6)) for _ in range(3)]
    narrow = [d.to("float32") for d in wide]
    exact = pe.triplet_probability(*(d.to("float64") for d in narrow), log=True)
    np.testing.assert_allclose(pe.triplet_probability(*narrow, log=True), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", [*NORMALS, "vmf", "vmf matched"])
def test_gradients(kind, log):
    matched = kind.endswith("matched")
    triplet = [make(kind.split()[0], 2, 4, seed, library="torch") for seed in range(3)]
    arrays = [x.requires_grad_() for d in triplet for x in d.arrays]

    def value(*xs):
        given = [type(triplet[0])(*xs[i : i + 2]) for i in (0, 2, 4)]
        return pe.triplet_probability(*given, margin=0.2, match_moments=matched, log=log)

    assert torch.autograd.gradcheck(value, arrays)


def test_gradients_of_isotropic_normals_are_those_in_closed_form_and_do_not_vanish():
    a, p, n = (make("normal_isotropic", 3, 6, seed, library="torch") for seed in range(3))
    p = pe.Normal(p.mu + 200, p.var)  # some 50 standard deviations from holding
    leaves = [x.requires_grad_() for d in (a, p, n) for x in d.arrays]
    log = pe.triplet_probability(a, p, n, log=True)
    found = torch.autograd.grad(-log.sum(), leaves)
    with torch.no_grad():
        dim, (mu_a, v_a, mu_p, v_p, mu_n, v_n) = 6, leaves

        def square(x):
            return (x * x).sum(-1)

        mean = square(mu_p - mu_a) - square(mu_n - mu_a) + dim * (v_p - v_n)
        var = 2 * dim * (v_p**2 + v_n**2 + 2 * v_a * (v_p + v_n)) + 4 * (
            v_p * square(mu_p - mu_a) + v_n * square(mu_n - mu_a) + v_a * square(mu_p - mu_n)
        )
        z = -mean / var.sqrt()
        rate = torch.exp(-z * z / 2 - 0.5 * np.log(2 * np.pi) - torch.special.log_ndtr(z))
        by_mean, by_var = (rate / var.sqrt())[:, None], (rate * z / (2 * var))[:, None]
        col = [v[:, None] for v in (v_a, v_p, v_n)]
        expected = [
            by_mean * 2 * (mu_n - mu_p) + by_var * 8 * (col[1] * (mu_a - mu_p) + col[2] * (mu_a - mu_n)),
            (by_var[:, 0]) * 4 * (dim * (v_p + v_n) + square(mu_p - mu_n)),
            by_mean * 2 * (mu_p - mu_a) + by_var * 8 * (col[1] * (mu_p - mu_a) + col[0] * (mu_p - mu_n)),
            by_mean[:, 0] * dim + by_var[:, 0] * 4 * (dim * (v_p + v_a) + square(mu_p - mu_a)),
            -by_mean * 2 * (mu_n - mu_a) + by_var * 8 * (col[2] * (mu_n - mu_a) + col[0] * (mu_n - mu_p)),
            -by_mean[:, 0] * dim + by_var[:, 0] * 4 * (dim * (v_n + v_a) + square(mu_n - mu_a)),
        ]
    assert (z < -20).all()
    for one, two in zip(found, expected, strict=True):
        assert (one != 0).all()
        np.testing.assert_allclose(to_numpy(one), to_numpy(two), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_are_of_the_compute_dtype(dtype, library):
    triplet = [make("normal_diagonal", 3, 4, seed, dtype=dtype, library=library) for seed in range(3)]
    found = pe.triplet_probability(*triplet)
    assert str(found.dtype).removeprefix("torch.") == ("float64" if dtype == "float64" else "float32")
    assert ((to_numpy(found) >= 0) & (to_numpy(found) <= 1)).all()
