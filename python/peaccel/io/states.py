"""Distributions and fits as plain dicts, which any format keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias, cast

import numpy as np

from peaccel._utils.arrays import dtype_name
from peaccel.distributions import Distribution, NonIsotropicVonMisesFisher, Normal, Point, Scaled, VonMisesFisher
from peaccel.fits.records import Calibration, Prior
from peaccel.fits.saved_fit import SavedFit, fit_of, keys_of

__all__ = ["Fit", "Plain", "distribution_of", "from_state", "in_float32", "to_state"]

Plain: TypeAlias = SavedFit  # what is fitted, but for a prior, which is of arrays of either kind
Fit: TypeAlias = Prior | Plain


def to_state(x: Distribution | Fit) -> dict[str, Any]:
    """A distribution or a fit as a dict of arrays, numbers and words, which ``from_state`` reads back.

    ``torch.load(weights_only=True)`` loads it where arrays are tensors; safetensors files of a distribution's are what
    ``read_distribution`` reads. Scores need no dict: ``str(score)`` is a text that ``pe.scores.get`` reads back.

    Parameters
    ----------
    x
        A distribution, or what `fit_prior`, `calibrate_variance`, `fit_centre`, `fit_match_probability`,
        `learn_then_test`, `limit_false_matches`, `conformal_sets` or `fit_plda` found.

    Returns
    -------
    dict
        The attributes under their names; arrays are the detached arrays of x.

    Raises
    ------
    TypeError
        If x is anything else.

    Examples
    --------
    >>> pe.io.to_state(pe.Calibration(a=4.0, b=0.01, of="Normal"))
    {'a': 4.0, 'b': 0.01, 'of': 'Normal'}
    """
    if isinstance(x, Prior):
        state = x._asdict()
    elif isinstance(x, Distribution | Fit):
        state = {field.name: getattr(x, field.name) for field in fields(cast("Any", x))}
        if isinstance(x, Calibration) and not x.mean:  # of one side
            del state["mean"]
    else:
        raise TypeError(f"to_state: x must be a distribution or a fit, such as a Prior, got {type(x).__name__}")
    return {key: value.detach() if hasattr(value, "detach") else value for key, value in state.items()}


def from_state(state: Mapping[str, Any]) -> Distribution[Any] | Prior[Any] | Plain:
    """The distribution or fit of a dict that ``to_state`` made.

    Its keys say which: mu and at most one of var, kappa and scale; mean and var; a, b and of, with or without mean; or
    the keys of another fit.

    Raises
    ------
    TypeError
        If state is not a dict.
    ValueError
        If the keys are others. Arrays are checked as the constructors of distributions do, and no further:
        ``validate()`` scans the values.

    Examples
    --------
    >>> pe.io.from_state({"mu": [[0.6, 0.8]], "kappa": [5.0]})
    VonMisesFisher(N=1, D=2, float64, numpy)
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"from_state: state must be a dict, got {type(state).__name__}")
    keys = set(state)
    if "mu" in keys and keys <= {"mu", "var", "kappa", "scale"} and len(keys) <= 2:
        return distribution_of(**state)
    if keys == {"mean", "var"}:
        return Prior(**state)
    for kind in SavedFit.kinds.values():
        allowed, required = keys_of(kind)
        if required <= keys <= allowed:
            fit: SavedFit = fit_of(kind, state)
            return fit
    expected = "mu and at most one of var, kappa, scale; mean and var; a, b and of; or those of another fit"
    raise ValueError(f"from_state: keys are {', '.join(sorted(map(str, keys))) or 'none'}; expected {expected}")


def distribution_of(mu: Any, var: Any = None, kappa: Any = None, scale: Any = None) -> Distribution[Any]:
    """The distribution that has these arrays, at most one of them beside mu."""
    if var is not None:
        return Normal(mu, var)
    if scale is not None:
        return Scaled(mu, scale)
    if kappa is None:
        return Point(mu)
    shape = np.shape(kappa)
    # [N, 1] is taken as [N], since D >= 2 dimensions have more than one concentration.
    diagonal = len(shape) == 2 and shape[1] > 1
    return NonIsotropicVonMisesFisher(mu, kappa) if diagonal else VonMisesFisher(mu, kappa)


def in_float32(d: Distribution[Any]) -> Distribution[Any]:
    """Items of bfloat16 in float32, for files that lack it; others as they are. Directions get unit length again, which
    their rounding leaves with two digits."""
    if dtype_name(d.mu) != "bfloat16":
        return d
    wide = d.to("float32")
    if not d._unit:
        return wide
    return type(d)(wide.mu / (wide.mu * wide.mu).sum(-1)[:, None] ** 0.5, *wide.arrays[1:])
