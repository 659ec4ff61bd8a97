"""match_variance against the distances of draws."""

import itertools

import numpy as np
import pytest
from conftest import build, make, to_numpy

import peaccel as pe

LIBRARIES = ("numpy", "torch")
NORMALS = ("normal_isotropic", "normal_diagonal")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("q", "g"), list(itertools.product((*NORMALS, "point"), repeat=2))[:-1])
def test_match_variance_is_that_of_the_squared_distance_of_draws(q, g, library):
    rng = np.random.default_rng(3)
    first, second = make(q, 3, 4, 1), make(g, 3, 4, 2)
    draws = []
    for d in (first, second):
        var = np.zeros((3, 1)) if d.kind == "point" else d.var.reshape(3, -1)
        draws.append(d.mu + rng.standard_normal((400_000, 3, 4)) * np.sqrt(var))
    square = ((draws[0] - draws[1]) ** 2).sum(-1)
    deviation = (square - square.mean(0)) ** 2
    found = to_numpy(pe.match_variance(*(build(d.kind, *d.arrays, library=library) for d in (first, second))))
    assert (np.abs(found - deviation.mean(0)) <= 4.5 * deviation.std(0) / 400_000**0.5).all()
    mean = -pe.paired(first, second, "neg_expected_sq_l2")
    assert (np.abs(mean - square.mean(0)) <= 4.5 * np.sqrt(found / 400_000) + 1e-13 * mean).all()


def test_match_variance_of_equal_variances_is_the_isotropic_one():
    q, g = make("normal_isotropic", 6, 9), make("normal_isotropic", 6, 9, 4)
    expanded = [pe.Normal(d.mu, np.repeat(d.var[:, None], 9, 1)) for d in (q, g)]
    value = pe.match_variance(q, g)
    for pair in (expanded, (q, expanded[1]), (expanded[0], g)):
        np.testing.assert_allclose(pe.match_variance(*pair), value, rtol=1e-14)


@pytest.mark.parametrize("library", LIBRARIES)
def test_points_match_without_variance(library):
    q, g = (make("point", 3, 4, seed, library=library) for seed in (1, 2))
    np.testing.assert_array_equal(pe.match_variance(q, g), np.zeros(3))
