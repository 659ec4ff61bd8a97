"""How likely a triplet holds: that the negative is further from the anchor than the positive."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peaccel.distributions import Distribution
from peaccel.measures._checks import NORMALS, cast, compute_dtype, double, order, require_pair, total
from peaccel.measures.density import ratio_dx
from peaccel.ops import bessel
from peaccel.ops._array import Array, is_torch, namespace

__all__ = ["triplet_probability"]

# log Phi(z) below this: the asymptotic series, whose 16th term is 1e-17 of the first here.
FAR = -12.0


def triplet_probability(
    a: Distribution,
    p: Distribution,
    n: Distribution,
    margin: float = 0.0,
    match_moments: bool = False,
    variant: str | None = None,
    log: bool = False,
) -> Array:
    """Probability that draws of the negative are further from those of the anchor than those of the positive.

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
        By how much the squared distance must be larger.
    match_moments
        Of VonMisesFisher. False: mu and 1 / kappa stand for a normal's mean and variance, as in the paper, which holds
        for kappa far above D. True: E and sd are those of the draws, by their means ``A(kappa) mu`` and covariances,
        ``A'(kappa)`` along mu and ``A(kappa) / kappa`` across.
    variant
        None, or "published": the sign of margin as in the paper's code, ``P(tau < +margin)``, by which a larger margin
        makes the constraint easier; equation 3 of the paper has it the other way.
    log
        True gives the log, which neither underflows nor loses its gradient however unlikely the triplet is: the loss
        is minus its mean. (The paper's code adds 1e-8 to the probability: gradients vanish beyond 5.6 sd.)

    Returns
    -------
    [N], in the compute dtype (float32 for halves), in [0, 1]; or the log, <= 0. Differentiable in torch.

    Raises
    ------
    TypeError
        Not distributions, other kinds, normals beside von Mises-Fisher, numpy beside torch; margin is not a number.
    ValueError
        Different lengths, dims, dtypes or devices; unknown variant; match_moments of normals.

    Notes
    -----
    E and sd are exact for normals and for matched moments; that tau is near normal fails below D = 4. Measured error of
    the log at z = (-margin - E) / sd, beside scipy's, in float64: 1e-15 (1 + z^2) of its value, as the rounding of z.

    References
    ----------
    Warburg et al., "Bayesian Triplet Loss", eq. 3 and supplement 17, 18, 26. What is wrong in the paper: a sign of its
    eq. 12, and eq. 8, which is not divided by sd.
    """
    accepted = [(x, y) for x in NORMALS for y in NORMALS] + [("vmf", "vmf")]
    require_pair("triplet_probability", {"a": a, "p": p}, accepted)
    require_pair("triplet_probability", {"a": a, "n": n}, accepted)
    if isinstance(margin, bool) or not isinstance(margin, (int, float, np.number)):
        raise TypeError(f"triplet_probability: margin must be a number, got {type(margin).__name__}")
    if variant not in (None, "published"):
        raise ValueError(f"triplet_probability: variant {variant!r}, expected None or 'published'")
    if match_moments and a.kind != "vmf":
        raise ValueError(f"triplet_probability: match_moments is of VonMisesFisher only, got {a.kind}")
    mean, var = (_moments_on_sphere if match_moments else _moments)(a, p, n)
    bound = float(margin) if variant == "published" else -float(margin)
    xp = namespace(mean)
    value = _log_ndtr((bound - mean) / xp.sqrt(var))
    return cast(value if log else xp.exp(value), compute_dtype(a.mu))


def _moments(a: Any, p: Any, n: Any) -> tuple[Array, Array]:
    """Mean and variance of tau, of normals or what stands for such."""
    (mu_a, v_a), (mu_p, v_p), (mu_n, v_n) = (_mean_and_variance(d) for d in (a, p, n))
    near, far, apart = mu_p - mu_a, mu_n - mu_a, mu_p - mu_n
    mean = total(apart * (near + far) + v_p - v_n)
    own = 2 * (v_p**2 + v_n**2 + 2 * v_a * (v_p + v_n))
    return mean, total(own + 4 * (v_p * near**2 + v_n * far**2 + v_a * apart**2))


def _mean_and_variance(d: Any) -> tuple[Array, Array]:
    """[N, D], and [N, D] or [N, 1]."""
    mu, spread = (cast(x, compute_dtype(d.mu)) for x in d.arrays)
    if d.kind == "vmf":
        return mu, 1 / spread[:, None]
    return mu, spread if spread.ndim == 2 else spread[:, None]


def _moments_on_sphere(a: Any, p: Any, n: Any) -> tuple[Array, Array]:
    """Mean and variance of tau = 2 a.(n - p), of unit vectors with these means and covariances.

    The covariance of a von Mises-Fisher is A'(kappa) along mu and A(kappa) / kappa across.
    """
    dim = a.dim
    mus, kappas = ([double(x) for x in column] for column in zip(*(d.arrays for d in (a, p, n)), strict=True))
    lengths = [bessel.iv_ratio(order(dim / 2, k), k) for k in kappas]
    along = [ratio_dx(dim, k) for k in kappas]
    across = [
        (bessel.iv_ratio_complement(order(dim / 2, k), k) - x) / (dim - 1) for k, x in zip(kappas, along, strict=True)
    ]
    apart = lengths[1][:, None] * mus[1] - lengths[2][:, None] * mus[2]
    radial = total(mus[0] * apart)
    # Of a.x with x = p - n: E[a] in the covariance of x, E[x] in that of a, and the trace of both.
    var = along[0] * radial**2 + across[0] * (total(apart**2) - radial**2)
    for mu, own, other in zip(mus[1:], along[1:], across[1:], strict=True):
        square = total((mus[0] - mu) ** 2)
        sine, cosine = square * (1 - square / 4), (1 - square / 2) ** 2  # squared, of the angle to the anchor
        var = var + lengths[0] ** 2 * (own * cosine + other * sine)
        var = var + along[0] * (own * cosine + other * sine) + across[0] * (own * sine + other * (dim - 2 + cosine))
    return -2 * lengths[0] * radial, 4 * var


def _log_ndtr(z: Array) -> Array:
    """log Phi(z), float64: the normal distribution's tail keeps its digits."""
    if is_torch(z):
        return namespace(z).special.log_ndtr(z)
    tail = 0.5 * np.vectorize(math.erfc, otypes=[float])(abs(z) / math.sqrt(2))
    middle = np.where(z > 0, np.log1p(-tail), np.log(np.where((z < FAR) | (z > 0), 1.0, tail)))
    far = np.minimum(z, FAR)
    series = np.ones_like(far)
    for odd in range(31, 0, -2):
        series = 1 - odd * series / far**2
    return np.where(z < FAR, np.log(series) - far**2 / 2 - np.log(-far) - 0.5 * math.log(2 * math.pi), middle)
