"""Scores that are functions of one inner product (or squared distance) and a number per item.

Each op takes (mu, extra) per side and a shared row; see `peaccel.scores` for what is handed to them. The formulas
below are the definitions, in plain torch; the kernels (`rust/kernels/dot_scores.rs`) rearrange them so that nothing
cancels.
"""

from __future__ import annotations

import math

import numpy as np

from peaccel.ops._array import Array, namespace
from peaccel.ops._op import PairOp
from peaccel.ops.bessel import vmf_log_norm

__all__ = ["OPS", "cosine", "hib_isotropic", "llr_isotropic", "mls_isotropic", "mls_vmf", "neg_sq_l2"]


def _cosine(mu1: Array, weight1: Array, mu2: Array, weight2: Array, none: Array) -> Array:
    norms = (mu1 * mu1).sum(-1).sqrt() * (mu2 * mu2).sum(-1).sqrt()
    return (weight1 * weight2)[..., 0] * (mu1 * mu2).sum(-1) / norms


def _neg_sq_l2(mu1: Array, trace1: Array, mu2: Array, trace2: Array, none: Array) -> Array:
    return -(((mu1 - mu2) ** 2).sum(-1) + (trace1 + trace2)[..., 0])


def _mls_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, none: Array) -> Array:
    s = (var1 + var2)[..., 0]
    return -0.5 * (((mu1 - mu2) ** 2).sum(-1) / s + mu1.shape[-1] * (s.log() + math.log(2 * math.pi)))


def _llr_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, prior_var: Array) -> Array:
    v, w, p = var1[..., 0], var2[..., 0], prior_var[0]
    a, b, det = p + v, p + w, p * (v + w) + v * w
    spread = (mu1**2).sum(-1) * v / a + (mu2**2).sum(-1) * w / b - ((mu1 - mu2) ** 2).sum(-1)
    return 0.5 * (p * spread / det + mu1.shape[-1] * (a * b / det).log())


def _mls_vmf(mu1: Array, kappa1: Array, mu2: Array, kappa2: Array, offset: Array) -> Array:
    k1, k2 = kappa1[..., 0], kappa2[..., 0]
    square = (k1 + k2) ** 2 - k1 * k2 * ((mu1 - mu2) ** 2).sum(-1)
    resultant = square.clamp(min=1e-30).sqrt()
    dim = mu1.new_tensor(float(mu1.shape[-1])).double()
    log_norms = vmf_log_norm(dim, k1) + vmf_log_norm(dim, k2) - vmf_log_norm(dim, resultant)
    return log_norms + offset[0]


def _hib_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, line: Array) -> Array:
    s, dim = var1 + var2, mu1.shape[-1]
    length = (((mu1 - mu2) ** 2).sum(-1, keepdim=True) / s).clamp(min=1e-30).sqrt()
    nodes, weights = (mu1.new_tensor(x) for x in np.polynomial.legendre.leggauss(256))
    middle = (length.detach() ** 2 + dim).sqrt()
    low, high = (middle - 10).clamp(min=0), middle + 10
    t = low + (high - low) * (nodes + 1) / 2
    if dim == 1:
        log_norms = -(length * t).cosh().log()
    else:
        log_norms = vmf_log_norm(mu1.new_tensor(float(dim)).double(), length * t)
    log_f = (dim - 1) * t.log() - log_norms - (t * t + length * length) / 2 + weights.log()
    log_match = namespace(mu1).nn.functional.logsigmoid(line[1] - line[0] * s.sqrt() * t)
    return (log_f + log_match).logsumexp(-1) - log_f.logsumexp(-1)


cosine = PairOp("cosine", "weight", "none", _cosine, layout="panels")
neg_sq_l2 = PairOp("neg_sq_l2", "trace", "none", _neg_sq_l2, layout="panels")
mls_isotropic = PairOp("mls_isotropic", "var", "none", _mls_isotropic, layout="panels")
llr_isotropic = PairOp("llr_isotropic", "var", "prior_var", _llr_isotropic, layout="panels")
mls_vmf = PairOp("mls_vmf", "kappa", "offset", _mls_vmf)
hib_isotropic = PairOp("hib_isotropic", "var", "line", _hib_isotropic)

OPS = (cosine, neg_sq_l2, mls_isotropic, llr_isotropic, mls_vmf, hib_isotropic)
