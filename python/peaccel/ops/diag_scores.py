"""Scores of normals with a variance per dimension; an isotropic side is a row that repeats its one variance.

The formulas below are the definitions, in plain torch; the kernels are in `rust/kernels/diag_scores.rs`.
"""

from __future__ import annotations

import math

from peaccel._utils.arrays import Array
from peaccel.ops._definitions import pair_op
from peaccel.ops.dot_scores import uncertain


@pair_op
def mls_diagonal(mu1: Array, var1: Array, mu2: Array, var2: Array, none: Array) -> Array:
    certain = var1 + var2 == 0
    v, w = uncertain(var1, var2, certain)
    return -0.5 * ((mu1 - mu2) ** 2 / (v + w) + (2 * math.pi * (v + w)).log()).masked_fill(certain, 0).sum(-1)


@pair_op
def neg_mahalanobis_diagonal(mu1: Array, var1: Array, mu2: Array, var2: Array, none: Array) -> Array:
    certain = var1 + var2 == 0
    v, w = uncertain(var1, var2, certain)
    return -((mu1 - mu2) ** 2 / (v + w)).masked_fill(certain, 0).sum(-1)


@pair_op
def llr_diagonal(mu1: Array, var1: Array, mu2: Array, var2: Array, prior_var: Array) -> Array:
    certain = var1 + var2 == 0
    var1, var2 = uncertain(var1, var2, certain)
    a, b, det = prior_var + var1, prior_var + var2, prior_var * (var1 + var2) + var1 * var2
    spread = mu1**2 * var1 / a + mu2**2 * var2 / b - (mu1 - mu2) ** 2
    return 0.5 * (prior_var * spread / det + (a * b / det).log()).masked_fill(certain, 0).sum(-1)


@pair_op
def overlap_diagonal(mu1: Array, var1: Array, mu2: Array, var2: Array, powers: Array) -> Array:
    alpha, beta, certain = powers[0], powers[1], (var1 == 0) | (var2 == 0)
    var1, var2 = uncertain(var1, var2, certain)
    s = var1 / alpha + var2 / beta
    logs = s.log() - (1 - alpha) * var1.log() - (1 - beta) * var2.log() + (alpha * beta).log()
    terms = (mu1 - mu2) ** 2 / s + logs + (alpha + beta - 1) * math.log(2 * math.pi)
    return -0.5 * terms.masked_fill(certain, 0).sum(-1)


@pair_op
def neg_kl_diagonal(mu1: Array, var1: Array, mu2: Array, var2: Array, share: Array) -> Array:
    certain = (var1 == 0) | (var2 == 0)
    var1, var2 = uncertain(var1, var2, certain)
    square, log = (mu1 - mu2) ** 2, (var1 / var2).log()
    forth, back = (square + var1) / var2 - 1 - log, (square + var2) / var1 - 1 + log
    return -0.5 * (share[0] * forth + (1 - share[0]) * back).masked_fill(certain, 0).sum(-1)
