"""A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning (Kirchhof et al., ECCV 2022)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from peaccel import metrics, retrieval, scores, special
from peaccel.distributions import Point, VonMisesFisher
from peaccel.heads import from_embedding
from peaccel.losses import nca
from peaccel.methods import el_nivmf, panc_el_nivmf
from peaccel.metrics._judged_ranking import JudgedRanking
from peaccel.metrics._relation import Relation
from peaccel.ops import PairOp, sampled_scores
from peaccel.published import built_of

__all__ = [
    "PaperProxyNCAPP",
    "PublishedProxyNCAPP",
    "average_precision_with_query",
    "el_nivmf_paper",
    "el_nivmf_published",
    "nivmf_paper",
    "nivmf_published",
]


def _by(score: scores.Score, name: str, op: PairOp, doc: str) -> scores.Score:
    """A score of the same inputs by another kernel."""
    pairs: Any = {kinds: replace(pair, op=op) for kinds, pair in score.pairs.items()}  # type: ignore[type-var]
    return replace(score, name=name, pairs=pairs, doc=doc)


nivmf_paper = _by(
    scores.nivmf,
    "nivmf_paper",
    sampled_scores.nivmf_paper,
    """`peaccel.scores.nivmf` by eq. 4, whose last factor D(K) does not depend on z: det K / |K mu|^D.

    It does not integrate to 1. D(K) is the exact factor at the mode, so that a K of equal kappas is von Mises-Fisher:
    our reading, as the paper leaves it to its supplement.

    Examples
    --------
    >>> from peaccel.published import non_isotropic
    >>> proxies = pe.NonIsotropicVonMisesFisher([[0.6, 0.8], [0.8, 0.6]], kappa=[[50.0, 20.0], [50.0, 20.0]])
    >>> pe.pairwise(pe.Point([[0.6, 0.8]]), proxies, non_isotropic.nivmf_paper).round(3).tolist()
    [[0.696, -0.432]]
    """,
)

nivmf_published = _by(
    scores.nivmf,
    "nivmf_published",
    sampled_scores.nivmf_published,
    """`peaccel.scores.nivmf` with det K / |K mu| for its last factor, as the code has it.

    Its integral grows as the power D - 1 of kappa: a bonus for sharp items. log C is exact here; the code fits
    quadratics at D = 128 and 512 that hold for kappa below about 50.

    Examples
    --------
    >>> from peaccel.published import non_isotropic
    >>> proxies = pe.NonIsotropicVonMisesFisher([[0.6, 0.8], [0.8, 0.6]], kappa=[[50.0, 20.0], [50.0, 20.0]])
    >>> pe.pairwise(pe.Point([[0.6, 0.8]]), proxies, non_isotropic.nivmf_published).round(3).tolist()
    [[4.222, 3.3]]
    """,
)

el_nivmf_paper = _by(
    scores.el_nivmf,
    "el_nivmf_paper",
    sampled_scores.el_nivmf_paper,
    "`peaccel.scores.el_nivmf` of the density of `nivmf_paper`.",
)

el_nivmf_published = _by(
    scores.el_nivmf,
    "el_nivmf_published",
    sampled_scores.el_nivmf_published,
    """`peaccel.scores.el_nivmf` by cos(z, K mu) in place of cos(K z, K mu), as the code has it.

    The last factor is that of `nivmf_published`. Without K on the draws, kappa only turns and sharpens an isotropic
    density.
    """,
)


class PublishedProxyNCAPP(nca.ProxyNCAPP):
    """`peaccel.losses.ProxyNCAPP` as the code has its distances el_nivmf, nivmf and kl_vmf; others are the right ones.

    The first two are by `el_nivmf_published` and `nivmf_published`, whose densities do not integrate to 1. The code's
    el_nivmf also divides by t each draw's log density, before the mean: that is the same at t = 1 only, and is not
    offered. kl_vmf has A(kappa_z) = 1 and the divergence for a similarity, so that training moves images away from
    their proxy.

    Examples
    --------
    The divergence of an image from a proxy at its place is less than from another, and so is this similarity:

    >>> import torch
    >>> from peaccel.published import non_isotropic
    >>> loss = non_isotropic.PublishedProxyNCAPP(dim=3, classes=2, distance="kl_vmf")
    >>> d = pe.VonMisesFisher(torch.eye(3)[:2], torch.tensor([20.0, 20.0]))
    >>> loss.start(d.mu, torch.tensor([0, 1]))
    >>> (loss.similarities(d).argmax(1) == torch.tensor([1, 0])).all()
    tensor(True)
    """

    similarity_of = MappingProxyType({**nca.SIMILARITIES, "el_nivmf": el_nivmf_published, "nivmf": nivmf_published})

    def similarities(self, d: VonMisesFisher | Point, seed: int | None = None) -> Tensor:
        """Minus the distances of N images and C proxies, [N, C]."""
        if self.distance != "kl_vmf":
            return super().similarities(d, seed)
        images: Any = from_embedding(d.mu) if isinstance(d, Point) else d
        proxies: Any = self._proxies(d.mu.dtype)
        norms = [special.vmf_log_norm(x.dim, x.kappa) for x in (images, proxies)]
        cosines = retrieval.pairwise(images, proxies, "cosine")
        divergences: Tensor = (norms[0] + images.kappa)[:, None] - norms[1] - proxies.kappa * cosines
        return divergences


class PaperProxyNCAPP(nca.ProxyNCAPP):
    """`peaccel.losses.ProxyNCAPP` by eq. 4 of the paper: of el_nivmf and nivmf the density of `nivmf_paper`.

    Examples
    --------
    >>> from peaccel.published import non_isotropic
    >>> non_isotropic.PaperProxyNCAPP(dim=3, classes=2).score
    Score('el_nivmf_paper:n=5')
    """

    similarity_of = MappingProxyType({**nca.SIMILARITIES, "el_nivmf": el_nivmf_paper, "nivmf": nivmf_paper})


def average_precision_with_query(
    ids: ArrayLike,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    k: int = 1000,
) -> NDArray[np.float64]:
    """`peaccel.metrics.average_precision_at_k` divided by R + 1, the size of the class with the query in it.

    Not by min(R, k): what is perfect has R / (R + 1), and less where R > k. With k = 1000 its mean is the code's mAP.

    Parameters
    ----------
    ids, query_labels, gallery_labels, k
        As of `peaccel.metrics.average_precision_at_k`.

    Returns
    -------
    [Q] in [0, 1); NaN where R = 0.

    Raises
    ------
    TypeError, ValueError
        As of `peaccel.metrics.average_precision_at_k`.

    Examples
    --------
    The only cat of the gallery is found first:

    >>> from peaccel.published import non_isotropic
    >>> non_isotropic.average_precision_with_query([[0, 1]], ["cat"], ["cat", "dog"], k=2).tolist()
    [0.5]
    """
    found = metrics.average_precision_at_k(ids, query_labels, gallery_labels, k)
    r = JudgedRanking.of("average_precision_with_query", ids, query_labels, gallery_labels).class_sizes()
    return np.asarray(found * np.minimum(r, k) / (r + 1))


METHODS = {
    "el_nivmf": built_of(el_nivmf.METHOD, loss=PublishedProxyNCAPP),
    "kl_vmf": built_of(el_nivmf.KL_VMF, loss=PublishedProxyNCAPP),
    "nivmf": built_of(el_nivmf.NIVMF, loss=PublishedProxyNCAPP),
    "panc_el_nivmf": built_of(panc_el_nivmf.METHOD, loss=PublishedProxyNCAPP),
}
