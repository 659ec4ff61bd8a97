"""Scores that compare draws of two items, and the densities that they evaluate at draws.

The kernels (`rust/kernels/sampled_scores.rs`) make the draws, once for a call, by the samplers. A pair's draws depend
on the numbers of its two rows alone, so they are the same for every verb. Scores of draws can be differentiated once.
"""

from __future__ import annotations

from peaccel._utils.arrays import Array
from peaccel.ops._definitions import PairOp
from peaccel.ops.bessel import vmf_log_norm


def _nivmf(mu1: Array, none1: Array, mu2: Array, kappa2: Array, none: Array) -> Array:
    stretched = (kappa2 * mu1).norm(dim=-1)
    return _peak(mu1, mu2, kappa2) - mu1.shape[-1] * stretched.log()


def _nivmf_paper(mu1: Array, none1: Array, mu2: Array, kappa2: Array, none: Array) -> Array:
    return _peak(mu1, mu2, kappa2) - mu1.shape[-1] * (kappa2 * mu2).norm(dim=-1).log()


def _nivmf_published(mu1: Array, none1: Array, mu2: Array, kappa2: Array, none: Array) -> Array:
    return _peak(mu1, mu2, kappa2) - (kappa2 * mu2).norm(dim=-1).log()


def _peak(mu1: Array, mu2: Array, kappa2: Array) -> Array:
    x, y = kappa2 * mu1, kappa2 * mu2
    length = y.norm(dim=-1)
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * length)
    dim = mu1.new_tensor(float(mu1.shape[-1])).double()
    return vmf_log_norm(dim, length) + length * cosine + kappa2.log().sum(-1)


hib_sampled = PairOp("hib_sampled")
sampled_cosine, neg_sampled_l2 = (
    {sides: PairOp(f"{name}_{sides}") for sides in ("normal", "vmf", "vmf_point", "point_vmf")}
    for name in ("sampled_cosine", "neg_sampled_l2")
)
el_nivmf, nivmf = PairOp("el_nivmf"), PairOp("nivmf", _nivmf)

# Of `peaccel.published`.
el_nivmf_paper, nivmf_paper = PairOp("el_nivmf_paper"), PairOp("nivmf_paper", _nivmf_paper)
el_nivmf_published, nivmf_published = PairOp("el_nivmf_published"), PairOp("nivmf_published", _nivmf_published)
