"""Scores that integrate the product of two densities: how likely two items are one."""

from __future__ import annotations

import math

import numpy as np

from peaccel._utils.arrays import Array, is_torch, is_traced, namespace, on_host
from peaccel.distributions.checks import EUCLIDEAN, order
from peaccel.ops import PairOp, bessel, diag_scores, dot_scores
from peaccel.ops._dispatch import transformed
from peaccel.scores._inputs import centred_isotropic, centred_rows, is_centred, isotropic, like, normal_rows, vmf
from peaccel.scores._score import (
    ISOTROPIC,
    SCALAR,
    Choice,
    Fitted,
    Kinds,
    Pair,
    Params,
    Score,
    Shared,
    Weighted,
    WeightedSquares,
    every,
)

__all__ = ["inclusion", "llr", "mls", "neg_kl", "neg_mahalanobis", "ppk"]


def _prior_var(mu: Array, params: Params) -> Array:
    """The prior's variance [1], or [D] where it has one per dimension."""
    value = params["prior_var"]
    if value is None:
        raise ValueError("llr: prior_var must be given; pe.fit_prior(d, labels) estimates it with prior_mean")
    row = like(value, mu).reshape(-1)
    if tuple(np.shape(value)) not in (*SCALAR, (mu.shape[-1],)):
        raise ValueError(f"llr: prior_var has shape {tuple(np.shape(value))}, expected () or ({mu.shape[-1]},)")
    if not is_traced(mu) and (not is_torch(value) or (value.is_cpu and not transformed(value))):
        x = np.float64(value) if isinstance(value, float) else on_host(value)
        low, high = x.min(), x.max()
        if not (low >= 0 and high < math.inf):
            bad = high if low >= 0 else low
            expected = "finite numbers of at least 0: variances, not their logarithms"
            raise ValueError(f"llr: prior_var is {bad}, expected {expected}")
    return row


def _prior_var_row(mu: Array, params: Params) -> Array:
    row = _prior_var(mu, params)
    return row.expand(mu.shape[-1]) if is_torch(row) else np.broadcast_to(row, mu.shape[-1:])


def _uniform_prior(mu: Array, params: Params) -> Array:
    if params["prior_var"] is not None:
        raise ValueError("llr: prior_var has no meaning for vmf x vmf, whose prior is uniform")
    zero = like([0.0], mu)
    return -bessel.vmf_log_norm(order(float(mu.shape[-1]), zero), zero)


def _no_offset(mu: Array, params: Params) -> Array:
    return like([0.0], mu)


def _without_two_points(pairs: dict[Kinds, Choice]) -> dict[Kinds, Choice]:
    """The pairs without (point, point): the product of two points' densities has no integral."""
    return {kinds: pair for kinds, pair in pairs.items() if kinds != ("point", "point")}


def _normals(isotropic: Choice, diagonal: Choice) -> dict[Kinds, Choice]:
    return _without_two_points({**every(EUCLIDEAN, diagonal), **every(ISOTROPIC, isotropic)})


def _weighted_mls(v: Array, w: Array, none: Array) -> WeightedSquares:
    return WeightedSquares(0.5 / (v + w), -0.5 * namespace(v).log(2 * math.pi * (v + w)))


def _weighted_mahalanobis(v: Array, w: Array, none: Array) -> WeightedSquares:
    return WeightedSquares(1 / (v + w))


def _weighted_llr(v: Array, w: Array, p: Array) -> WeightedSquares:
    det = p * (v + w) + v * w
    logs = namespace(v).log((p + v) * (p + w) / det)
    return WeightedSquares(0.5 * p / det, 0.5 * logs, v / (p + v), w / (p + w))


mls = Score(
    "mls",
    """Mutual likelihood score: log of the integrated product of the two densities.

    Normals, sums over dimensions, s = var1 + var2::

        log int N(z; mu1, var1) N(z; mu2, var2) dz = -1/2 sum [(mu1 - mu2)^2 / s + log s + log 2 pi]

    Von Mises-Fisher: ``log C(kappa1) + log C(kappa2) - log C(|kappa1 mu1 + kappa2 mu2|)``, log C as
    `pe.special.vmf_log_norm`. A point has variance 0. Variances must be of the right scale (`pe.calibrate_variance`),
    and a sharp gallery item gains wherever it lies, which `llr` corrects.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings", 2019, eq. 3; Li et al., "Spherical Confidence Learning for Face
    Recognition", 2021, for von Mises-Fisher.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> b = pe.Normal([[0.6, 0.8], [0.6, 0.8]], var=[0.1, 0.5])
    >>> pe.paired(a, b, pe.scores.mls).round(3).tolist()
    [-1.228, -2.038]
    """,
    {
        **_normals(
            Pair(dot_scores.mls_isotropic, isotropic, isotropic),
            Pair(diag_scores.mls_diagonal, normal_rows, normal_rows, weighted=_weighted_mls),
        ),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, vmf, vmf, _no_offset),
    },
)

neg_mahalanobis = Score(
    "neg_mahalanobis",
    """Minus the squared distance of the means over the summed variances.

    ``-sum (mu1 - mu2)^2 / (var1 + var2)`` of normals: `mls` without its logarithm, times 2. What the logarithm does
    shows beside it: without it an item that is uncertain enough is near to everything. A point has variance 0.

    References
    ----------
    Mahalanobis, "On the generalised distance in statistics", 1936, here under the covariance of the difference.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> b = pe.Normal([[0.6, 0.8], [0.6, 0.8]], var=[0.1, 0.5])
    >>> pe.paired(a, b, "neg_mahalanobis").round(3).tolist()
    [-2.0, -0.4]
    """,
    _normals(
        Pair(dot_scores.neg_mahalanobis_isotropic, isotropic, isotropic),
        Pair(diag_scores.neg_mahalanobis_diagonal, normal_rows, normal_rows, weighted=_weighted_mahalanobis),
    ),
)

# The pair that reads items as they lie, and the one that centres their means.
_LLR_ISOTROPIC = (
    Pair(dot_scores.llr_isotropic, isotropic, isotropic, _prior_var),
    Pair(dot_scores.llr_isotropic, centred_isotropic, centred_isotropic, _prior_var),
)
_LLR_DIAGONAL = (
    Pair(diag_scores.llr_diagonal, normal_rows, normal_rows, _prior_var_row, _weighted_llr),
    Pair(diag_scores.llr_diagonal, centred_rows, centred_rows, _prior_var_row, _weighted_llr),
)


def _llr_diagonal(params: Params) -> Pair:
    return _LLR_DIAGONAL[is_centred(params)]


def _llr_isotropic(params: Params) -> Pair:
    """The pair of isotropic normals, which needs a pass over dimensions where the prior has a variance for each."""
    pairs = _LLR_ISOTROPIC if tuple(np.shape(params["prior_var"])) in SCALAR else _LLR_DIAGONAL
    return pairs[is_centred(params)]


llr = Score(
    "llr",
    """Log-likelihood ratio of the same against different identities under a prior on their positions.

    Normals, of one position drawn from N(prior_mean, p), p = prior_var, against two; sums over dimensions, means less
    prior_mean, v and w the variances, ``det = p (v + w) + v w``::

        1/2 sum [p (mu1^2 v / (p + v) + mu2^2 w / (p + w) - (mu1 - mu2)^2) / det + log((p + v) (p + w) / det)]

    Von Mises-Fisher, whose prior is uniform: `mls` plus the log of the sphere's surface. Above 0 where one identity is
    the likelier one.

    Parameters
    ----------
    prior_var
        Variance of true positions between identities, above 0: a number, or [D]. Must be given for normals
        (`pe.fit_prior` finds it), and for normals only.
    prior_mean
        Their mean: a number, or [D].

    References
    ----------
    Ioffe, "Probabilistic Linear Discriminant Analysis", 2006, here with a variance for each item.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> b = pe.Normal([[0.6, 0.8], [-0.6, -0.8]], var=[0.1, 0.5])
    >>> pe.paired(a, b, pe.scores.llr(prior_var=0.5)).round(3).tolist()
    [1.034, -0.579]
    """,
    {
        **_normals(_llr_isotropic, _llr_diagonal),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, vmf, vmf, _uniform_prior),
    },
    {"prior_var": None, "prior_mean": 0.0},
    fits={"prior_var": Fitted("prior", "var", positive=True), "prior_mean": Fitted("prior", "mean")},
)


# -- integrals of powers -----------------------------------------------------------------------------------------------


def _rho(mu: Array, params: Params) -> Array:
    """The row [rho, rho], the powers of both densities."""
    value = params["rho"]
    unseen = is_torch(value) and not value.is_cpu  # a look would wait for the device
    if tuple(np.shape(value)) not in SCALAR or not (unseen or 0 < value < math.inf):
        raise ValueError(f"ppk: rho is {value}, expected a finite number above 0")
    row = like(value, mu).reshape(-1)
    return namespace(mu).concatenate((row, row))


def _twice_the_query(mu: Array, params: Params) -> Array:
    return like([2.0, 1.0], mu)


def _densities(
    isotropic_op: PairOp, diagonal_op: PairOp, vmf_op: PairOp, shared: Shared, weighted: Weighted
) -> dict[Kinds, Choice]:
    """A score of two densities, neither of which may be a point."""
    diagonal = Pair(diagonal_op, normal_rows, normal_rows, shared, weighted)
    return {
        **every(("normal_isotropic", "normal_diagonal"), diagonal),
        ("normal_isotropic", "normal_isotropic"): Pair(isotropic_op, isotropic, isotropic, shared),
        ("vmf", "vmf"): Pair(vmf_op, vmf, vmf, shared),
    }


def _weighted_overlap(v: Array, w: Array, powers: Array) -> WeightedSquares:
    alpha, beta, log = powers[0], powers[1], namespace(v).log
    s = v / alpha + w / beta
    logs = log(s) - (1 - alpha) * log(v) - (1 - beta) * log(w) + log(alpha * beta)
    return WeightedSquares(0.5 / s, -0.5 * (logs + (alpha + beta - 1) * math.log(2 * math.pi)))


_OVERLAPS = (dot_scores.overlap_isotropic, diag_scores.overlap_diagonal, dot_scores.overlap_vmf)

ppk = Score(
    "ppk",
    """Probability product kernel: log of the integral of (p q)^rho; rho = 1 is MLS, rho = 1/2 the Bhattacharyya kernel.

    Normals, sums over dimensions, v and w the variances::

        sum [(1 - rho) / 2 (log 2 pi v + log 2 pi w) - log rho + log N(mu1; mu2, (v + w) / rho)]

    Von Mises-Fisher: ``rho (log C(kappa1) + log C(kappa2)) - log C(rho |kappa1 mu1 + kappa2 mu2|)``. With rho = 1/2
    equal items score 0, all others less.

    Parameters
    ----------
    rho
        A number above 0.

    References
    ----------
    Jebara, Kondor & Howard, "Probability Product Kernels", JMLR 5, 2004; Kirchhof et al., "A non-isotropic
    probabilistic take on proxy-based deep metric learning", 2022, supplement C, for von Mises-Fisher.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.1])
    >>> b = pe.Normal([[0.0, 1.0], [0.6, 0.8]], var=[0.4, 0.1])
    >>> pe.paired(a, b, pe.scores.ppk(rho=0.5)).round(3).tolist()
    [-0.223, -0.5]
    """,
    _densities(*_OVERLAPS, _rho, _weighted_overlap),
    {"rho": 0.5},
)

inclusion = Score(
    "inclusion",
    """Log of the integral of p^2 q, query p, gallery q: high where the query lies inside what the gallery item covers.

    Normals, sums over dimensions, v and w the variances::

        sum [-1/2 log 4 pi v + log N(mu1; mu2, v / 2 + w)]

    Von Mises-Fisher: ``2 log C(kappa1) + log C(kappa2) - log C(|2 kappa1 mu1 + kappa2 mu2|)``. The sides play different
    parts: a text that says little covers many images.

    References
    ----------
    Chun et al., "Probabilistic Language-Image Pre-Training" (ProLIP), ICLR 2025.

    Examples
    --------
    A sharp item in a broad one, and the other way round:

    >>> sharp, broad = pe.Normal([[0.0, 1.0]], var=[0.01]), pe.Normal([[0.1, 0.9]], var=[0.5])
    >>> pe.paired(sharp, broad, "inclusion").round(3).tolist(), pe.paired(broad, sharp, "inclusion").round(3).tolist()
    ([0.9], [-2.367])
    """,
    _densities(*_OVERLAPS, _twice_the_query, _weighted_overlap),
)

_SHARES = {"query_to_gallery": 1.0, "gallery_to_query": 0.0, "symmetric": 0.5}


def _share(mu: Array, params: Params) -> Array:
    return like([_SHARES[params["direction"]]], mu)


def _weighted_kl(v: Array, w: Array, share: Array) -> WeightedSquares:
    log = namespace(v).log
    logs = share * (v / w - 1 - log(v / w)) + (1 - share) * (w / v - 1 - log(w / v))
    return WeightedSquares(0.5 * (share / w + (1 - share) / v), -0.5 * logs)


neg_kl = Score(
    "neg_kl",
    """Minus the Kullback-Leibler divergence, KL(query || gallery), KL(gallery || query) or the mean of both.

    KL(query || gallery) of normals, sums over dimensions, v and w the variances, and of von Mises-Fisher, with
    A the `pe.special.iv_ratio` of order D/2::

        1/2 sum [(mu1 - mu2)^2 / w + v / w - 1 - log(v / w)]
        log C(kappa1) - log C(kappa2) + A(kappa1) (kappa1 - kappa2 mu1.mu2)

    Parameters
    ----------
    direction
        "query_to_gallery", "gallery_to_query" or "symmetric".

    References
    ----------
    Diethe, "A Note on the Kullback-Leibler Divergence for the von Mises-Fisher distribution", 2015.

    Examples
    --------
    >>> a, b = pe.Normal([[0.0, 1.0]], var=[0.1]), pe.Normal([[0.6, 0.8]], var=[0.5])
    >>> [pe.paired(a, b, pe.scores.neg_kl(direction=x)).round(3).item() for x in ("query_to_gallery", "symmetric")]
    [-1.209, -2.8]
    """,
    _densities(dot_scores.neg_kl_isotropic, diag_scores.neg_kl_diagonal, dot_scores.neg_kl_vmf, _share, _weighted_kl),
    {"direction": "query_to_gallery"},
    {"direction": tuple(_SHARES)},
)
