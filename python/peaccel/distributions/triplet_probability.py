"""How likely a triplet holds: that the negative is further from the anchor than the positive."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import Array, ArrayT, cast, namespace, quiet
from peaccel.distributions._numerics import double, ratio_dx, total
from peaccel.distributions.checks import NORMALS, compute_dtype, order, require_pair
from peaccel.distributions.classes import Distribution
from peaccel.ops import bessel
from peaccel.special import log_ndtr

__all__ = ["triplet_probability"]


@quiet
def triplet_probability(
    a: Distribution[ArrayT],
    p: Distribution[ArrayT],
    n: Distribution[ArrayT],
    margin: float = 0.0,
    match_moments: bool = False,
    log: bool = False,
) -> ArrayT:
    """Probability that a draw of the negative is further from the anchor's draw than the positive's draw.

    With ``tau = |a - p|^2 - |a - n|^2`` of draws, a sum over dimensions that is near normal, ``P(tau < -margin)`` is
    ``Phi((-margin - E) / sd)``, and in sums over dimensions, v the variances, where no terms cancel::

        E    = (p - n) (p + n - 2 a) + v_p - v_n
        sd^2 = 2 v_p^2 + 2 v_n^2 + 4 v_a (v_p + v_n) + 4 v_p (p - a)^2 + 4 v_n (n - a)^2 + 4 v_a (p - n)^2

    Parameters
    ----------
    a, p, n
        Anchors, positives, negatives, N items each: Normal, isotropic or diagonal, or VonMisesFisher, all three.
        Of one dim, kind of array, dtype and device; of a triplet one variance at least is above 0, kappa too.
    margin
        By how much the squared distance must be larger. (The paper's code has the other sign, ``P(tau < +margin)``, by
        which a larger margin makes the constraint easier, unlike in its equation 3.)
    match_moments
        For VonMisesFisher. False: mu and 1 / kappa stand for a normal's mean and variance, as in the paper, which holds
        for kappa far above D. True: E and sd are exact for the draws, by their means ``A(kappa) mu`` and covariances,
        ``A'(kappa)`` along mu and ``A(kappa) / kappa`` across.
    log
        True gives the log, which neither underflows nor loses its gradient however unlikely the triplet is: the loss
        is minus its mean. (The paper's code adds 1e-8 to the probability: gradients vanish beyond 5.6 sd.)

    Returns
    -------
    [N], in the compute dtype (float32 for 16-bit floats), in [0, 1]; or the log, <= 0. Differentiable in torch.

    Raises
    ------
    TypeError
        Not distributions, other kinds, normals beside von Mises-Fisher, numpy beside torch; margin is not a number.
    ValueError
        Different lengths, dims, dtypes or devices; match_moments of normals.

    Notes
    -----
    E and sd are exact for normals and for matched moments; that tau is near normal fails below D = 4. Measured error of
    the log at z = (-margin - E) / sd, beside scipy's, in float64: 1e-15 (1 + z^2) of its value, as the rounding of z.

    References
    ----------
    Warburg et al., "Bayesian Triplet Loss", eq. 3 and supplement 17, 18, 26. Errors of the paper: a sign of its eq. 12,
    and eq. 8, which is not divided by sd.

    Examples
    --------
    The positive is nearer than the negative; the less is known of it, the less certain that is:

    >>> a, n = pe.Normal([[0.0, 0.0]], var=[0.01]), pe.Normal([[0.0, 1.0]], var=[0.01])
    >>> sharp, blurred = (pe.Normal([[0.5, 0.0]], var=[var]) for var in (0.01, 0.5))
    >>> [pe.triplet_probability(a, p, n).round(3).tolist() for p in (sharp, blurred)]
    [[0.99], [0.429]]
    """
    accepted = [(x, y) for x in NORMALS for y in NORMALS] + [("vmf", "vmf")]
    require_pair("triplet_probability", {"a": a, "p": p}, accepted)
    require_pair("triplet_probability", {"a": a, "n": n}, accepted)
    if isinstance(margin, bool) or not isinstance(margin, (int, float, np.number)):
        raise TypeError(f"triplet_probability: margin must be a number, got {type(margin).__name__}")
    if match_moments and a.kind != "vmf":
        raise ValueError(f"triplet_probability: match_moments is of VonMisesFisher only, got {a.kind}")
    mean, var = (_moments_on_sphere if match_moments else _moments)(a, p, n)
    xp = namespace(mean)
    value = log_ndtr((-float(margin) - mean) / xp.sqrt(var))
    return cast(value if log else xp.exp(value), compute_dtype(a.mu))


def _moments(a: Any, p: Any, n: Any) -> tuple[Array, Array]:
    """Mean and variance of tau, of normals or of von Mises-Fisher distributions taken as normals."""
    (mu_a, v_a), (mu_p, v_p), (mu_n, v_n) = (_mean_and_variance(d) for d in (a, p, n))
    near, far, apart = mu_p - mu_a, mu_n - mu_a, mu_p - mu_n
    mean = total(apart * (near + far) + v_p - v_n)
    of_variances = 2 * (v_p**2 + v_n**2 + 2 * v_a * (v_p + v_n))
    return mean, total(of_variances + 4 * (v_p * near**2 + v_n * far**2 + v_a * apart**2))


def _mean_and_variance(d: Any) -> tuple[Array, Array]:
    """Means [N, D], and variances [N, D] or [N, 1]."""
    mu, uncertainty = (cast(x, compute_dtype(d.mu)) for x in d.arrays)
    if d.kind == "vmf":
        return mu, 1 / uncertainty[:, None]
    return mu, uncertainty if uncertainty.ndim == 2 else uncertainty[:, None]


def _moments_on_sphere(a: Any, p: Any, n: Any) -> tuple[Array, Array]:
    mus, kappas = ([double(x) for x in column] for column in zip(*(d.arrays for d in (a, p, n)), strict=True))
    squares = [total((mus[i] - mus[j]) ** 2) for i, j in ((0, 1), (0, 2), (1, 2))]
    return moments_on_sphere(a.dim, *(spread_on_sphere(a.dim, kappa) for kappa in kappas), *squares)


class Spread(NamedTuple):
    """Draws of a von Mises-Fisher distribution: the length of their mean, their variance along mu and across."""

    length: Array
    along: Array
    across: Array


def spread_on_sphere(dim: int, kappa: Array) -> Spread:
    """A(kappa), A'(kappa) and A(kappa) / kappa, kappa float64."""
    v, along = order(dim / 2, kappa), ratio_dx(dim, kappa)
    return Spread(bessel.iv_ratio(v, kappa), along, (bessel.iv_ratio_complement(v, kappa) - along) / (dim - 1))


def moments_on_sphere(
    dim: int, a: Spread, p: Spread, n: Spread, near: Array, far: Array, apart: Array
) -> tuple[Array, Array]:
    """Mean and variance of tau = 2 a.(n - p), of unit draws around directions with these squared distances.

    ``near`` is of anchor and positive, ``far`` of anchor and negative, ``apart`` of positive and negative; float64.
    """
    radial = p.length * (1 - near / 2) - n.length * (1 - far / 2)
    # The variance of a.x, x = p - n: E[a] in the covariance of x, E[x] in that of a, and the trace of their product.
    square = (p.length - n.length) ** 2 + p.length * n.length * apart
    var = a.along * radial**2 + a.across * (square - radial**2)
    for x, gap in ((p, near), (n, far)):
        sine, cosine = gap * (1 - gap / 4), (1 - gap / 2) ** 2  # squared, of the angle to the anchor
        var = var + a.length**2 * (x.along * cosine + x.across * sine)
        var = var + a.along * (x.along * cosine + x.across * sine)
        var = var + a.across * (x.along * sine + x.across * (dim - 2 + cosine))
    return -2 * a.length * radial, 4 * var
