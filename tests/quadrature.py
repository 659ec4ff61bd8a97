"""Quadratures over the circle and the sphere, for tests of densities on them."""

import numpy as np


def circle(n=512):
    """Unit rows and weights of a quadrature over the circle, exact for what a trapezoid rule of n points resolves."""
    t = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(t), np.sin(t)], 1), np.full(n, 2 * np.pi / n)


def sphere(n=96):
    """The same over the sphere in three dimensions: Gauss-Legendre in height, a trapezoid rule around."""
    height, weight = np.polynomial.legendre.leggauss(n)
    around, _ = circle(2 * n)
    rows = np.concatenate([np.c_[np.sqrt(1 - h * h) * around, np.full(2 * n, h)] for h in height])
    return rows, np.repeat(weight * np.pi / n, 2 * n)


SPHERES = {2: circle(), 3: sphere()}
