"""What is fitted to labelled items, as data that can be kept: a prior of positions, a scale of uncertainties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import Array, is_torch

__all__ = ["Calibration", "Prior"]

D = TypeVar("D", bound=Distribution)


class Prior(NamedTuple):
    """The prior of ``llr``, as `fit_prior` finds it: ``pe.scores.llr(prior_mean=p.mean, prior_var=p.var)``.

    Attributes
    ----------
    mean
        [D]: the mean of the true positions of classes.
    var
        Their variance: a number, or [D].
    """

    mean: Array
    var: Any


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found. Calling it on a distribution returns that with its uncertainty corrected.

    Attributes
    ----------
    a
        Factor: var <- a var + b of a Normal, kappa <- a kappa of a VonMisesFisher.
    b
        Offset of a Normal's variances, >= 0; 0 for a VonMisesFisher.
    of
        The class it was fitted on, the only one it applies to.
    mean
        D numbers, the mean of one side of two, which is subtracted from mu; none where one side was fitted.
    """

    a: float
    b: float
    of: str
    mean: tuple[float, ...] = ()

    def __call__(self, d: D) -> D:
        """The items of d, in their dtype, with their uncertainty corrected; differentiable in torch.

        Raises
        ------
        TypeError
            d is of another class than the one it was fitted on.
        ValueError
            d has another dimension than the mean.
        """
        if type(d).__name__ != self.of:
            raise TypeError(f"calibrate: fitted on {self.of}, cannot be applied to {type(d).__name__}")
        mu, spread = d.arrays
        if self.mean:
            if len(self.mean) != d.dim:
                raise ValueError(f"calibrate: fitted on {len(self.mean)} dimensions, cannot be applied to {d.dim}")
            mu = mu - (mu.new_tensor(self.mean) if is_torch(mu) else np.asarray(self.mean, mu.dtype))
        corrected = self.a * spread + self.b
        return type(d)(*[mu, corrected.to(mu.dtype) if is_torch(mu) else corrected.astype(mu.dtype, copy=False)])
