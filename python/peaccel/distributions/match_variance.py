"""The variance of the distance of two distributions' draws."""

from __future__ import annotations

from peaccel._utils.arrays import ArrayT, cast, quiet
from peaccel.distributions._numerics import columns, double, square_distance, total
from peaccel.distributions.checks import EUCLIDEAN, compute_dtype, require_pair
from peaccel.distributions.classes import Distribution

__all__ = ["match_variance"]


@quiet
def match_variance(q: Distribution[ArrayT], g: Distribution[ArrayT]) -> ArrayT:
    """Variance of the squared distance of two draws, item by item: how far the distance of a match is to be trusted.

    ``sum [2 (s_q + s_g)^2 + 4 (s_q + s_g) (mu_q - mu_g)^2]`` over dimensions, s the variances, 0 for points. Its mean
    is minus the score ``neg_expected_sq_l2``.

    Parameters
    ----------
    q, g
        N items each, Normal or Point, of one dim, kind of array, dtype and device.

    Returns
    -------
    [N], in the compute dtype (float32 for 16-bit floats), >= 0. Differentiable in torch, twice.

    Raises
    ------
    TypeError, ValueError
        As `kl`.

    References
    ----------
    Warburg et al., "Bayesian Triplet Loss", sec. 3; the moments of a non-central chi-square.

    Examples
    --------
    >>> q, g = pe.Normal([[0.0, 0.0]], var=[0.1]), pe.Normal([[0.0, 1.0]], var=[0.5])
    >>> pe.match_variance(q, g).round(3).tolist()
    [3.84]
    """
    require_pair("match_variance", {"q": q, "g": g}, [(a, b) for a in EUCLIDEAN for b in EUCLIDEAN])
    dtype = compute_dtype(q.mu)
    mu_q, mu_g = cast(q.mu, dtype), cast(g.mu, dtype)
    spreads = [columns(cast(d.arrays[1], dtype)) for d in (q, g) if d.kind != "point"]
    if not spreads:
        return cast(0 * square_distance(mu_q, mu_g), dtype)
    var = spreads[0] if len(spreads) == 1 else spreads[0] + spreads[1]
    if var.shape[-1] == q.dim:
        return cast(total(var * (2 * var + 4 * (mu_q - mu_g) ** 2)), dtype)
    var = double(var[:, 0])
    return cast(var * (2 * q.dim * var + 4 * square_distance(mu_q, mu_g)), dtype)
