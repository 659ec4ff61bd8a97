"""Log-Bessel functions, the von Mises-Fisher normaliser and the logarithm of the normal distribution function.

For numpy arrays, torch tensors, lists and numbers. Integers count as float64, 16-bit floats as float32.

Accuracy is stated as ``python -m benches.accuracy`` measures it, against arb at golden rows and random points.
Outside their domain the functions give NaN; at x = inf they give their limits, whatever the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from peaccel._utils.arrays import Array, Given, KindT, as_array, as_numpy, device_of, is_torch, namespace, widened
from peaccel._utils.words import answered
from peaccel.ops import bessel

__all__ = ["iv_ratio", "log_iv", "log_ive", "log_ndtr", "vmf_log_norm"]


@overload
def log_ive(v: float, x: float) -> np.float64: ...  # type: ignore[overload-overlap]  # Given has numbers too
@overload
def log_ive(v: KindT | Given, x: KindT | Given) -> KindT: ...
def log_ive(v: KindT | Given, x: KindT | Given) -> KindT | np.float64:
    """Logarithm of the exponentially scaled modified Bessel function of the first kind, log(I_v(x) exp(-x)).

    Parameters
    ----------
    v
        Order, real, >= 0; a number or an array that broadcasts with x. No gradient.
    x
        Argument >= 0.

    Returns
    -------
    Values of x's kind and dtype (float64 for integers, float32 for 16-bit floats); -inf at x = 0 for v > 0, 0 for
    v = 0.

    Raises
    ------
    ValueError
        A dtype of no numbers, or complex; shapes that do not broadcast; v requires grad.

    Notes
    -----
    The leading terms of Debye's uniform expansion (DLMF 10.41) at a shifted order, and a fitted remainder. Measured
    error relative to max(1, |value|), orders to 1e5: 1e-15 in float64, 2e-7 in float32. float32 with one order for all
    elements goes by a table of that order, eight times as fast. Two derivatives in x exist, with errors up to 2e-15
    and 6e-15 relative to max(|value|, 1/x) and max(|value|, 1/x^2).

    Examples
    --------
    At the order of 512 dimensions I_v itself is below the smallest float:

    >>> round(float(pe.special.log_ive(255, 10.0)), 3)
    -761.208
    >>> pe.special.log_ive([0, 1], 1.0).round(3).tolist()
    [-0.764, -1.571]
    """
    return _call(bessel.log_ive, "log_ive", ("v", "x"), v, x)


@overload
def log_iv(v: float, x: float) -> np.float64: ...  # type: ignore[overload-overlap]  # Given has numbers too
@overload
def log_iv(v: KindT | Given, x: KindT | Given) -> KindT: ...
def log_iv(v: KindT | Given, x: KindT | Given) -> KindT | np.float64:
    """Logarithm of the modified Bessel function of the first kind, log I_v(x) = log_ive(v, x) + x.

    Arguments, result and errors raised as `log_ive`. Measured error: 4 eps (|log_ive| + x), eps that of the dtype.

    Examples
    --------
    >>> pe.special.log_iv(255, np.array([10.0, 1000.0])).round(3).tolist()
    [-751.208, 963.272]
    """
    value = _call(bessel.log_ive, "log_iv", ("v", "x"), v, x)
    added = _argument("log_iv", "x", x)
    # At infinity log_ive is -inf, but it falls more slowly than x grows.
    xp, infinite = namespace(added), added == math.inf
    value = xp.where(infinite, added, value) + xp.where(infinite, 0, added)
    return _plain(value)


@overload
def iv_ratio(v: float, x: float) -> np.float64: ...  # type: ignore[overload-overlap]  # Given has numbers too
@overload
def iv_ratio(v: KindT | Given, x: KindT | Given) -> KindT: ...
def iv_ratio(v: KindT | Given, x: KindT | Given) -> KindT | np.float64:
    """Ratio of modified Bessel functions of the first kind, I_v(x) / I_{v-1}(x), in [0, 1].

    With v = D/2 it is the mean resultant length A_D(x) of a von Mises-Fisher distribution in D dimensions.

    Parameters
    ----------
    v
        Order, real, >= 1; a number or an array that broadcasts with x. No gradient.
    x
        Argument >= 0.

    Returns
    -------
    Values of x's kind and dtype, with full relative accuracy down to x = 0.

    Raises
    ------
    ValueError
        As `log_ive`.

    Notes
    -----
    Computed directly, never as a difference of logarithms. Measured relative error: 4.4e-16 in float64, 1.2e-7 in
    float32; of its first two derivatives 4e-15 and 5e-14 (v >= 3: 1e-15 and 6e-15).

    Examples
    --------
    How long the mean of draws in 128 dimensions is:

    >>> pe.special.iv_ratio(128 / 2, np.array([1.0, 100.0, 10000.0])).round(4).tolist()
    [0.0078, 0.5483, 0.9937]
    """
    return _call(bessel.iv_ratio, "iv_ratio", ("v", "x"), v, x)


@overload
def vmf_log_norm(dim: float, kappa: float) -> np.float64: ...  # type: ignore[overload-overlap]  # Given has numbers too
@overload
def vmf_log_norm(dim: KindT | Given, kappa: KindT | Given) -> KindT: ...
def vmf_log_norm(dim: KindT | Given, kappa: KindT | Given) -> KindT | np.float64:
    """Log normaliser of the von Mises-Fisher density, C_dim(kappa) exp(kappa mu.z) on the unit sphere.

    ``log C_D(k) = (D/2 - 1) log k - (D/2) log 2 pi - log I_{D/2-1}(k)``, with all constants.

    Parameters
    ----------
    dim
        Dimension >= 2; a number or an array that broadcasts with kappa. No gradient.
    kappa
        Concentration >= 0.

    Returns
    -------
    Values of kappa's kind and dtype; at kappa = 0 minus the log surface of the sphere.

    Raises
    ------
    ValueError
        As `log_ive`.

    Notes
    -----
    Measured error relative to max(1, dim/2 - 1, |value|): 2e-15 in float64, 1.2e-7 in float32. The derivative in
    kappa is minus `iv_ratio` of order dim/2.

    Examples
    --------
    >>> pe.special.vmf_log_norm(512, np.array([0.0, 500.0])).round(3).tolist()
    [867.968, 682.027]
    """
    return _call(bessel.vmf_log_norm, "vmf_log_norm", ("dim", "kappa"), dim, kappa)


@overload
def log_ndtr(x: float) -> np.float64: ...  # type: ignore[overload-overlap]  # Given has numbers too
@overload
def log_ndtr(x: KindT | Given) -> KindT: ...
def log_ndtr(x: KindT | Given) -> KindT | np.float64:
    """Logarithm of the normal distribution function, log Phi(x).

    Parameters
    ----------
    x
        Anywhere.

    Returns
    -------
    Values of x's kind and dtype, accurate in both tails: about -x^2 / 2 far below 0, and -Phi(-x) far above.

    Raises
    ------
    ValueError
        A dtype of no numbers, or complex.

    Notes
    -----
    By a polynomial for the hazard rate phi(a) / Phi(-a), a = abs(x). Measured relative error, where the value is a
    normal number: 1e-15 in float64, 1.2e-7 in float32. Two derivatives exist, with the same errors.

    Examples
    --------
    >>> [f"{x:.6g}" for x in pe.special.log_ndtr(np.array([-40.0, 0.0, 10.0]))]
    ['-804.608', '-0.693147', '-7.61985e-24']
    """
    return _plain(bessel.log_ndtr(_argument("log_ndtr", "x", x)))


def _call(function: Callable[..., Array], owner: str, names: tuple[str, str], order: Any, x: Any) -> Array:
    """The function of an order and an argument after checks; numbers in, numpy scalars out."""
    x = _argument(owner, names[1], x)
    order = float(order) if isinstance(order, (int, float)) else _argument(owner, names[0], order)
    if is_torch(order) and order.requires_grad:
        raise ValueError(f"{owner}: {names[0]} must not require grad: derivatives exist in {names[1]} only")
    several = not isinstance(order, float) and tuple(order.shape)
    if several and is_torch(order) != is_torch(x):
        raise TypeError(f"{owner}: {names[0]} and {names[1]} must both be numpy arrays or both torch tensors")
    if several and device_of(order) != device_of(x):
        raise ValueError(f"{owner}: {names[0]} is on {device_of(order)}, expected {device_of(x)} like {names[1]}")
    if not is_torch(x):
        order = np.asarray(as_numpy(order) if is_torch(order) else order, np.float64)
    elif not is_torch(order):
        order = float(order)
    try:
        value = function(order, x)
    except (ValueError, RuntimeError) as error:
        if "broadcast" not in str(error) and "match the size" not in str(error):
            raise
        shapes = f"{names[0]} has shape {tuple(np.shape(order))}, {names[1]} {tuple(x.shape)}"
        raise ValueError(f"{owner}: {shapes}: they do not broadcast") from None
    return _plain(value)


def _plain(value: Array) -> Array:
    """The value, or the numpy scalar that it is."""
    return value if is_torch(value) or value.ndim else value[()]


def _argument(owner: str, name: str, x: Any) -> Array:
    """An array of either kind, float32 or float64: integers, numbers and lists become float64, halves float32."""
    return widened(as_array(x, owner, name))


if not TYPE_CHECKING:  # which would take every attribute for known
    __getattr__ = answered(__name__)
