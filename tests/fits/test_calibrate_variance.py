"""Many pairs: fits do not depend on the sample that they start from, and memory does not grow with the pairs."""

import tracemalloc

import numpy as np
import pytest
from scipy import optimize

import peaccel as pe
from peaccel.fits import calibrate_variance as calibrating


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Blocks and samples so small that a thousand pairs are many."""
    monkeypatch.setattr(calibrating, "BLOCK", 100)
    monkeypatch.setattr(calibrating, "FEW", 1000)


def normals(kind, n, dim=6, seed=0):
    """Items in pairs (i, n + i) with s = 2 var + 0.3, and the pairs."""
    rng = np.random.default_rng(seed)
    var = np.exp(rng.standard_normal((n, dim) if kind == "diagonal" else (n, 1)))
    sides = [np.sqrt(2 * var + 0.3) * rng.standard_normal((n, dim)) for _ in range(2)]
    var = var if kind == "diagonal" else var[:, 0]
    return pe.Normal(np.r_[sides[0], sides[1]], np.r_[var, var]), np.c_[np.arange(n), n + np.arange(n)]


def loss(d, pairs, a, b):
    """Minus the mean log likelihood of the differences, without constants."""
    mu, var = d.mu[pairs], d.var[pairs].reshape(len(pairs), 2, -1)
    s = a * var.sum(1) + 2 * b
    return ((mu[:, 0] - mu[:, 1]) ** 2 / s + np.log(s)).mean()


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_of_many_pairs_the_likeliest_scale_is_that_of_all(kind):
    d, pairs = normals(kind, 3000)
    c = pe.calibrate_variance(d, pairs, np.ones(len(pairs), bool))
    found = optimize.minimize(lambda x: loss(d, pairs, *np.exp(x)), np.log([c.a, c.b]), options={"gtol": 1e-9})
    np.testing.assert_allclose([c.a, c.b], np.exp(found.x), rtol=1e-5)
    assert loss(d, pairs, c.a, c.b) <= found.fun + 1e-14


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
@pytest.mark.parametrize("step", [1, 2])
def test_pairs_that_are_looked_at_first_do_not_mislead(kind, step, monkeypatch):
    """The pairs of the first sample, taken at regular steps, have other scales than the rest, or are of equal items."""
    d, pairs = normals(kind, 2400)
    order = np.argsort(np.arange(2400) % (6 * step) != 0, kind="stable")
    mu = d.mu.copy()
    mu[pairs[order[:400], 1]] = mu[pairs[order[:400], 0]]
    d, labels = pe.Normal(mu, d.var), np.ones(2400, bool)
    found = pe.calibrate_variance(d, pairs, labels)
    monkeypatch.setattr(calibrating, "FEW", 1 << 30)
    whole = pe.calibrate_variance(d, pairs, labels)
    np.testing.assert_allclose([found.a, found.b], [whole.a, whole.b], rtol=1e-9)


def test_many_variances_that_are_one_give_the_factor_alone():
    d, pairs = normals("diagonal", 2000)
    c = pe.calibrate_variance(pe.Normal(d.mu, np.full(d.mu.shape, 0.7)), pairs, np.ones(2000, bool))
    assert c.b == 0 and c.a == pytest.approx(((d.mu[:2000] - d.mu[2000:]) ** 2).mean() / 1.4, rel=1e-13)


def test_of_many_concentrations_the_likeliest_factor_is_that_of_all(monkeypatch):
    rng = np.random.default_rng(1)
    kappa = np.exp(rng.uniform(2, 5, 2000))
    mean = rng.standard_normal((2000, 8))
    first, second = pe.sample(pe.VonMisesFisher(mean / np.linalg.norm(mean, axis=1)[:, None], 3 * kappa), 2, seed=0)
    d, pairs = (
        pe.VonMisesFisher(np.r_[first, second], np.r_[kappa, kappa]),
        np.c_[np.arange(2000), 2000 + np.arange(2000)],
    )
    found = pe.calibrate_variance(d, pairs, np.ones(2000, bool)).a
    assert found == pytest.approx(3, rel=0.05)
    monkeypatch.setattr(calibrating, "FEW", 1 << 30)
    assert pe.calibrate_variance(d, pairs, np.ones(2000, bool)).a == pytest.approx(found, rel=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_fitted_to_many_pairs_takes_their_numbers_and_little_more(dtype, monkeypatch):
    monkeypatch.setattr(calibrating, "BLOCK", 1 << 15)
    d, pairs = normals("diagonal", 20_000, 128)
    d, labels = d.to(dtype), np.arange(20_000) % 2 == 0  # as float64, means and variances of all are 80 MB
    for call in (pe.calibrate_variance, pe.fit_shift):
        tracemalloc.start()
        call(d, pairs, labels)
        assert tracemalloc.get_traced_memory()[1] < 20e6
        tracemalloc.stop()
