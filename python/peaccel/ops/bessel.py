"""The Bessel family: modified Bessel functions of the first kind in log space, their ratio, and the vMF normaliser.

With it two functions of normal distributions.

Gradients are in x; those of `log_ive` and `iv_ratio` are kernels, as are theirs, so that no order of differentiation
subtracts nearly equal numbers.
"""

from __future__ import annotations

from peaccel.ops._op import Op

__all__ = ["iv_ratio", "iv_ratio_complement", "log_ive", "log_ndtr", "normal_length", "vmf_log_norm"]

_log_ive_dxx = Op("log_ive_dxx")
_log_ive_dx = Op("log_ive_dx", derivative=lambda call, v, x: call("log_ive_dxx", v, x))
log_ive = Op("log_ive", derivative=lambda call, v, x: call("log_ive_dx", v, x))

_iv_ratio_dxx = Op("iv_ratio_dxx")
_iv_ratio_dx = Op("iv_ratio_dx", derivative=lambda call, v, x: call("iv_ratio_dxx", v, x))
iv_ratio = Op("iv_ratio", derivative=lambda call, v, x: call("iv_ratio_dx", v, x))

# 1 - iv_ratio^2 without the cancellation: the trace of a von Mises-Fisher distribution's covariance.
iv_ratio_complement = Op(
    "iv_ratio_complement", derivative=lambda call, v, x: -2 * call("iv_ratio", v, x) * call("iv_ratio_dx", v, x)
)

# d/dk log C_D(k) = -A_D(k), the ratio of order D/2.
_vmf_log_norm_dx = Op("vmf_log_norm_dx", derivative=lambda call, dim, kappa: -call("iv_ratio_dx", dim / 2, kappa))
vmf_log_norm = Op("vmf_log_norm", derivative=lambda call, dim, kappa: call("vmf_log_norm_dx", dim, kappa))

# The length of E[z / |z|], z ~ N(mu, var I) in dim dimensions, at x = |mu|^2 / (2 var). Its second derivative is
# that of Kummer's equation, x L'' + (dim/2 + x) L' = (dim - 1) L / 4x.
_normal_length_dx = Op(
    "normal_length_dx",
    derivative=lambda call, dim, x: (
        (dim - 1) / (4 * x * x) * call("normal_length", dim, x) - (dim / (2 * x) + 1) * call("normal_length_dx", dim, x)
    ),
)
normal_length = Op("normal_length", derivative=lambda call, dim, x: call("normal_length_dx", dim, x))

# log Phi(x) of the normal distribution; none of the three looks at the order.
_log_ndtr_dxx = Op("log_ndtr_dxx")
_log_ndtr_dx = Op("log_ndtr_dx", derivative=lambda call, none, x: call("log_ndtr_dxx", none, x))
log_ndtr = Op("log_ndtr", derivative=lambda call, none, x: call("log_ndtr_dx", none, x))
