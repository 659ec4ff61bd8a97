"""Measures of items without any doubt: variances of 0 and infinite concentrations."""

import numpy as np
import pytest
import torch
from conftest import as_library, to_numpy

import peaccel as pe

INF = np.inf
MU = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
NORMALS = {
    "isotropic": np.array([0.0, 0.0, 1.0]),
    "diagonal": np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", NORMALS)
def test_measures_of_certain_normals(kind, library):
    d = pe.Normal(as_library(MU, library), as_library(NORMALS[kind], library)).validate()
    there, away = (to_numpy(pe.log_prob(d, as_library(z, library))) for z in (MU, MU + 1))
    np.testing.assert_array_equal(np.isposinf(there), [True, True, False])
    np.testing.assert_array_equal(np.isneginf(away), [True, True, False])
    np.testing.assert_array_equal(np.isneginf(to_numpy(pe.entropy(d))), [True, True, False])
    broad = pe.Normal(d.mu, as_library(np.ones(3), library))
    np.testing.assert_array_equal(to_numpy(pe.kl(d, d)), 0)
    for p, q in ((d, broad), (broad, d), (d, pe.Normal(d.mu + 1, d.var))):
        np.testing.assert_array_equal(np.isposinf(to_numpy(pe.kl(p, q))), [True, True, False])
    assert not np.isnan(to_numpy(pe.confidence(d))).any()
    fused = pe.fuse(d, np.array([0, 0, 0]))
    if kind == "isotropic":  # of the first two alone
        np.testing.assert_allclose(to_numpy(fused.mu), [[0.5, 0.5]])
        np.testing.assert_array_equal(to_numpy(fused.var), 0)
    else:  # of the second in the second dimension
        np.testing.assert_allclose(to_numpy(fused.mu), [[0.5, 1.0]])
    apart = pe.fuse(d, np.array([0, 1, 1]))
    np.testing.assert_allclose(to_numpy(apart.mu)[0], MU[0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_measures_of_certain_directions(library):
    d = pe.VonMisesFisher(as_library(MU, library), as_library(np.array([INF, INF, 2.0]), library)).validate()
    there, away = (to_numpy(pe.log_prob(d, as_library(z, library))) for z in (MU, -MU))
    np.testing.assert_array_equal(np.isposinf(there), [True, True, False])
    np.testing.assert_array_equal(np.isneginf(away), [True, True, False])
    np.testing.assert_array_equal(np.isneginf(to_numpy(pe.entropy(d))), [True, True, False])
    np.testing.assert_allclose(to_numpy(pe.kl(d, d)), 0)
    broad = pe.VonMisesFisher(d.mu, as_library(np.ones(3), library))
    for p, q in ((d, broad), (broad, d), (d, pe.VonMisesFisher(-d.mu, d.kappa))):
        np.testing.assert_array_equal(np.isposinf(to_numpy(pe.kl(p, q))), [True, True, False])
    fused = pe.fuse(d, np.array([0, 0, 0]))
    np.testing.assert_allclose(to_numpy(fused.mu), [[0.5**0.5, 0.5**0.5]])
    np.testing.assert_array_equal(to_numpy(fused.kappa), INF)


def test_validate_refuses_what_has_no_limit():
    for d in (
        pe.NonIsotropicVonMisesFisher(MU, np.full((3, 2), INF)),
        pe.VonMisesFisher(MU, np.full(3, np.nan)),
        pe.Normal(MU, np.full(3, INF)),
        pe.Scaled(MU, np.full(3, INF)),
    ):
        with pytest.raises(ValueError, match=r"is not finite in row 0$"):
            d.validate()


@pytest.mark.parametrize("var", NORMALS.values(), ids=NORMALS)
def test_draws_of_certain_items_are_their_means_and_have_finite_gradients(var):
    mu, var = torch.tensor(MU, requires_grad=True), torch.tensor(var, requires_grad=True)
    z = pe.sample(pe.Normal(mu, var), 5, seed=1)
    assert (z[:, 1] == mu[1]).all()
    z.square().sum().backward()
    assert mu.grad.isfinite().all() and var.grad.isfinite().all() and (var.grad[var == 0] == 0).all()
    assert (var.grad[var > 0] != 0).all()
