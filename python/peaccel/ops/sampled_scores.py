"""Scores that compare draws of two items, and the densities that draws are put into.

Draws come from the samplers, made once for a call inside the kernels: a pair's draws are those of its two rows'
numbers, whatever the verb. The kernels are in `rust/kernels/sampled_scores.rs`; what they draw can be differentiated
once.
"""

from __future__ import annotations

from peaccel.ops._array import Array
from peaccel.ops._op import PairOp
from peaccel.ops.bessel import vmf_log_norm
from peaccel.ops.samplers import sample_normal, sample_vmf

__all__ = ["OPS", "el_nivmf", "hib_sampled", "neg_sampled_l2", "nivmf", "sampled_cosine"]


def _nivmf(mu1: Array, none1: Array, mu2: Array, kappa2: Array, none: Array) -> Array:
    stretched = (kappa2 * mu1).norm(dim=-1)
    return _peak(mu1, mu2, kappa2) - mu1.shape[-1] * stretched.log()


def _nivmf_published(mu1: Array, none1: Array, mu2: Array, kappa2: Array, none: Array) -> Array:
    return _peak(mu1, mu2, kappa2) - (kappa2 * mu2).norm(dim=-1).log()


def _peak(mu1: Array, mu2: Array, kappa2: Array) -> Array:
    x, y = kappa2 * mu1, kappa2 * mu2
    length = y.norm(dim=-1)
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * length)
    dim = mu1.new_tensor(float(mu1.shape[-1])).double()
    return vmf_log_norm(dim, length) + length * cosine + kappa2.log().sum(-1)


def _drawn(name: str, extra: str, samplers: tuple[str, str], shared: str = "none") -> PairOp:
    return PairOp(name, extra, shared, None, samplers=samplers, sampled=True)


_NORMAL, _VMF = sample_normal.name, sample_vmf.name
hib_sampled = _drawn("hib_sampled", "var", (_NORMAL, _NORMAL), "line")
sampled_cosine, neg_sampled_l2 = (
    {"normal": _drawn(f"{name}_normal", "var", (_NORMAL, _NORMAL))}
    | {
        sides: _drawn(f"{name}_{sides}", "kappa", samplers)
        for sides, samplers in {"vmf": (_VMF, _VMF), "vmf_point": (_VMF, ""), "point_vmf": ("", _VMF)}.items()
    }
    for name in ("sampled_cosine", "neg_sampled_l2")
)
el_nivmf = {
    None: _drawn("el_nivmf", "kappa", (_VMF, "")),
    "published": _drawn("el_nivmf_published", "kappa", (_VMF, "")),
}
nivmf = {
    None: PairOp("nivmf", "kappa", "none", _nivmf, sampled=True),
    "published": PairOp("nivmf_published", "kappa", "none", _nivmf_published, sampled=True),
}

OPS = (
    hib_sampled,
    *sampled_cosine.values(),
    *neg_sampled_l2.values(),
    *el_nivmf.values(),
    *nivmf.values(),
)
