"""Scores that compare positions: cosines, inner products and distances of means, and their expectations over draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peaccel._utils.arrays import Array
from peaccel.distributions.checks import EUCLIDEAN
from peaccel.ops import dot_scores
from peaccel.scores._inputs import (
    direction,
    like,
    location,
    moments,
    norm,
    resultant,
    root_norm,
    root_scale,
    scale,
    spread_diagonal,
    spread_isotropic,
)
from peaccel.scores._score import (
    ISOTROPIC,
    KINDS,
    SCALAR,
    ByWord,
    Choice,
    Fitted,
    KernelInputs,
    Pair,
    Params,
    Score,
    Shared,
    every,
)

__all__ = [
    "cosine",
    "expected_cosine",
    "inner_product",
    "neg_csd",
    "neg_expected_sq_l2",
    "neg_sq_l2",
    "neg_w2",
    "norm_cosine",
    "scale_cosine",
]

cosine = Score(
    "cosine",
    """Cosine of the two means or directions.

    ``mu1.mu2 / (|mu1| |mu2|)``: uncertainties do not enter.

    References
    ----------
    Karpukhin et al., "Probabilistic Embeddings Revisited", 2022, eq. 6.

    Examples
    --------
    >>> pe.paired(pe.Point([[0.0, 2.0]]), pe.Normal([[0.6, 0.8]], var=[0.5]), "cosine").round(3).tolist()
    [0.8]
    """,
    every(KINDS, Pair(dot_scores.cosine, direction, direction)),
)

neg_sq_l2 = Score(
    "neg_sq_l2",
    """Minus the squared Euclidean distance of the two means or directions.

    ``-|mu1 - mu2|^2``: uncertainties do not enter.

    References
    ----------
    Karpukhin et al., "Probabilistic Embeddings Revisited", 2022, eq. 6, there not squared, which ranks alike.

    Examples
    --------
    >>> pe.paired(pe.Point([[0.0, 2.0]]), pe.Normal([[0.6, 0.8]], var=[0.5]), "neg_sq_l2").round(3).tolist()
    [-1.8]
    """,
    every(KINDS, Pair(dot_scores.neg_sq_l2, location, location)),
)

inner_product = Score(
    "inner_product",
    """Inner product of the two means or directions.

    ``mu1.mu2``: uncertainties do not enter, lengths do. An item that is longer than the query may score higher than the
    query itself.

    References
    ----------
    Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020, eq. 1.

    Examples
    --------
    >>> pe.paired(pe.Point([[0.0, 2.0]]), pe.Normal([[0.6, 0.8]], var=[0.5]), "inner_product").round(3).tolist()
    [1.6]
    """,
    every(KINDS, Pair(dot_scores.inner_product, location, location)),
)

_LENGTHS = {"normal_isotropic": resultant, "point": direction}

expected_cosine = Score(
    "expected_cosine",
    """Expected cosine of two draws, in closed form.

    ``r1 r2 cos(mu1, mu2)``, where r is how long the mean direction of a draw is: 1 of a point, A of a von Mises-Fisher
    distribution, the `pe.special.iv_ratio` of D/2 and kappa, and of an isotropic normal, m = |mu|^2 / (2 var)::

        sqrt(m) Gamma((D + 1) / 2) / Gamma(D / 2 + 1) 1F1(1/2; D / 2 + 1; -m)

    References
    ----------
    Karpukhin et al., "Probabilistic Embeddings Revisited", 2022, eq. 7 with the cosine, there by draws; Mardia & Jupp,
    "Directional Statistics", 2000, for both mean directions.

    Examples
    --------
    >>> a, b = (pe.VonMisesFisher([[0.0, 1.0], [0.0, 1.0]], kappa=[1000.0, kappa]) for kappa in (1000.0, 2.0))
    >>> pe.paired(a, b, "expected_cosine").round(3).tolist()
    [0.999, 0.697]
    """,
    {
        **{(q, g): Pair(dot_scores.cosine, _LENGTHS[q], _LENGTHS[g]) for q in ISOTROPIC for g in ISOTROPIC},
        ("vmf", "vmf"): Pair(dot_scores.cosine, resultant, resultant),
    },
)

neg_expected_sq_l2 = Score(
    "neg_expected_sq_l2",
    """Minus the expected squared Euclidean distance of two draws, in closed form.

    ``-(|E z1 - E z2|^2 + tr Cov z1 + tr Cov z2)``: of a normal mu and the sum of its variances, of a von Mises-Fisher
    distribution A mu and 1 - A^2, A the `pe.special.iv_ratio` of D/2 and kappa. How far the squared distance of a pair
    varies says `pe.match_variance`.

    References
    ----------
    Chun, "Improved Probabilistic Image-Text Representations" (PCME++), ICLR 2024, for normals.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> pe.paired(a, pe.Point([[0.6, 0.8], [0.6, 0.8]]), "neg_expected_sq_l2").round(3).tolist()
    [-0.6, -1.4]
    """,
    {
        **every(EUCLIDEAN, Pair(dot_scores.neg_sq_l2, moments, moments)),
        **every(("vmf",), Pair(dot_scores.neg_sq_l2, moments, moments)),
    },
)

neg_csd = replace(
    neg_expected_sq_l2,
    name="neg_csd",
    doc="""Minus the closed-form sampled distance of PCME++: another name of neg_expected_sq_l2.

    ``-(|mu1 - mu2|^2 + sum var1 + sum var2)`` of normals.

    References
    ----------
    Chun, "Improved Probabilistic Image-Text Representations", ICLR 2024; github.com/naver-ai/pcmepp.

    Examples
    --------
    >>> captions = pe.Normal([[0.6, 0.8]], var=[[0.1, 0.2]])
    >>> pe.paired(pe.Normal([[0.0, 1.0]], var=[[0.1, 0.1]]), captions, "neg_csd").round(3).tolist()
    [-0.9]
    """,
)

neg_w2 = Score(
    "neg_w2",
    """Minus the squared 2-Wasserstein distance.

    ``-(|mu1 - mu2|^2 + sum (sigma1 - sigma2)^2)``, sigma the square roots of the variances, 0 of points.

    References
    ----------
    Dowson & Landau, "The Frechet distance between multivariate normal distributions", 1982.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.25, 0.25])
    >>> pe.paired(a, pe.Normal([[0.6, 0.8], [0.6, 0.8]], var=[0.25, 1.0]), "neg_w2").round(3).tolist()
    [-0.4, -0.9]
    """,
    {
        **every(EUCLIDEAN, Pair(dot_scores.neg_sq_l2, spread_diagonal, spread_diagonal)),
        **every(ISOTROPIC, Pair(dot_scores.neg_sq_l2, spread_isotropic, spread_isotropic)),
    },
)


def _shift(name: str, mu: Array, params: Params) -> Array:
    if tuple(np.shape(params["mu"])) not in SCALAR:
        raise ValueError(f"{name}: mu has shape {tuple(np.shape(params['mu']))}, expected a number")
    return like(params["mu"], mu).reshape(-1)


def _scale_shift(mu: Array, params: Params) -> Array:
    return _shift("scale_cosine", mu, params)


def _norm_shift(mu: Array, params: Params) -> Array:
    return _shift("norm_cosine", mu, params)


def _weighted(both: KernelInputs, query: KernelInputs, shift: Shared) -> Choice:
    """The pair weighted by the roots of both sides' scales, or by the query's scale alone."""
    return ByWord(
        "sides",
        {
            "both": Pair(dot_scores.shifted_cosine, both, both, shift),
            "query": Pair(dot_scores.shifted_cosine, query, direction, shift),
        },
    )


_SIDES = {"mu": 0.0, "sides": "both"}

scale_cosine = Score(
    "scale_cosine",
    """ScaleFace: sqrt(scale1 scale2) (cosine - mu), or scale1 (cosine - mu) with sides=query; pe.fit_shift finds mu.

    Pairs of one cosine are the further from 0 the surer both items are, and change their sign at mu.

    Parameters
    ----------
    mu
        The cosine between alike and different, a number; 0 is ScaleFace, another one mu-ScaleFace.
    sides
        "both", or "query", for a gallery of templates that are sure anyway.

    References
    ----------
    Kail et al., "ScaleFace: Uncertainty-aware Deep Metric Learning", 2022, eq. 5; with mu = 0 eq. 3 ("both") and eq. 4
    ("query").

    Examples
    --------
    >>> a = pe.Scaled([[0.0, 1.0], [0.0, 1.0]], scale=[30.0, 10.0])
    >>> b = pe.Scaled([[0.6, 0.8], [0.6, 0.8]], scale=[30.0, 10.0])
    >>> pe.paired(a, b, pe.scores.scale_cosine(mu=0.3)).round(3).tolist()
    [15.0, 5.0]
    """,
    {("scaled", "scaled"): _weighted(root_scale, scale, _scale_shift)},
    _SIDES,
    {"sides": ("both", "query")},
    {"mu": Fitted("shift")},
)

norm_cosine = Score(
    "norm_cosine",
    """scale_cosine with the norms of the means as scales: the score of features that were not normalised.

    ``sqrt(|mu1| |mu2|) (cosine - mu)``, or ``|mu1| (cosine - mu)``; variances do not enter.

    Parameters
    ----------
    mu, sides
        As of `scale_cosine`.

    References
    ----------
    Kail et al., "ScaleFace: Uncertainty-aware Deep Metric Learning", 2022, sec. 4.2.1, "Norm", by eq. 6.

    Examples
    --------
    >>> pe.paired(pe.Point([[0.0, 9.0]]), pe.Point([[2.4, 3.2]]), pe.scores.norm_cosine(mu=0.3)).round(3).tolist()
    [3.0]
    """,
    every(EUCLIDEAN, _weighted(root_norm, norm, _norm_shift)),
    _SIDES,
    {"sides": ("both", "query")},
    {"mu": Fitted("shift")},
)
