"""The Bessel family: modified Bessel functions of the first kind in log space, their ratio, and the vMF normaliser.

The family includes two functions of normal distributions.

Gradients are with respect to x. The first and second derivatives of `log_ive` and `iv_ratio` are separate kernels,
so that neither subtracts nearly equal numbers.
"""

from __future__ import annotations

from peaccel.ops._definitions import Op
from peaccel.ops._dispatch import as_function

__all__ = [
    "iv_ratio",
    "iv_ratio_complement",
    "iv_ratio_dx",
    "log_ive",
    "log_ndtr",
    "normal_length",
    "vmf_log_norm",
]

_log_ive_dxx = Op("log_ive_dxx")
_log_ive_dx = Op("log_ive_dx", derivative=lambda call, v, x: call("log_ive_dxx", v, x))
log_ive = as_function(Op("log_ive", derivative=lambda call, v, x: call("log_ive_dx", v, x)))

_iv_ratio_dxx = Op("iv_ratio_dxx")
iv_ratio_dx = as_function(Op("iv_ratio_dx", derivative=lambda call, v, x: call("iv_ratio_dxx", v, x)))
iv_ratio = as_function(Op("iv_ratio", derivative=lambda call, v, x: call("iv_ratio_dx", v, x)))

# 1 - iv_ratio^2 without cancellation: the trace of the covariance of a von Mises-Fisher distribution.
iv_ratio_complement = as_function(
    Op("iv_ratio_complement", derivative=lambda call, v, x: -2 * call("iv_ratio", v, x) * call("iv_ratio_dx", v, x))
)

# The derivative of log C_D(k) with respect to k is -iv_ratio of order D/2.
_vmf_log_norm_dx = Op("vmf_log_norm_dx", derivative=lambda call, dim, kappa: -call("iv_ratio_dx", dim / 2, kappa))
vmf_log_norm = as_function(Op("vmf_log_norm", derivative=lambda call, dim, kappa: call("vmf_log_norm_dx", dim, kappa)))

# The length of E[z / |z|], z ~ N(mu, var I) in dim dimensions, at x = |mu|^2 / (2 var). Its second derivative
# follows from Kummer's equation, x L'' + (dim/2 + x) L' = (dim - 1) L / 4x.
_normal_length_dx = Op(
    "normal_length_dx",
    derivative=lambda call, dim, x: (
        (dim - 1) / (4 * x * x) * call("normal_length", dim, x) - (dim / (2 * x) + 1) * call("normal_length_dx", dim, x)
    ),
)
normal_length = as_function(Op("normal_length", derivative=lambda call, dim, x: call("normal_length_dx", dim, x)))

# log Phi(x), Phi being the distribution function of the standard normal.
_log_ndtr_dxx = Op("log_ndtr_dxx", has_order=False)
_log_ndtr_dx = Op("log_ndtr_dx", derivative=lambda call, x: call("log_ndtr_dxx", x), has_order=False)
log_ndtr = as_function(Op("log_ndtr", derivative=lambda call, x: call("log_ndtr_dx", x), has_order=False))
