"""Mu-ScaleFace: ScaleFace whose score counts cosines from halfway between matching and other pairs."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from peaccel import scores
from peaccel.distributions import Distribution
from peaccel.methods import scaleface
from peaccel.methods.method import Training, described


def build(backbone: nn.Module, features: int, classes: int, settings: scaleface.Settings) -> Training:
    """Put ScaleFace's heads on a backbone; mu is fitted on pairs of held-out items."""
    return replace(scaleface.build(backbone, features, classes, settings), score=score)


def score(d: Distribution, labels: NDArray[np.int64]) -> scores.Score:
    """The score with mu halfway between the mean cosines of all pairs of one class and of all others, as of
    `pe.fit_shift`, by the sums of all directions and of those of a class: the squared length of a sum is that of all
    cosines."""
    mu = np.asarray(d.detach().mu, np.float64)
    units = mu / np.linalg.norm(mu, axis=1, keepdims=True)
    _, number, count = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), d.dim))
    np.add.at(sums, number, units)
    ordered, of_class = len(d) * (len(d) - 1), int((count * (count - 1)).sum())
    if not 0 < of_class < ordered:
        alike = "different" if of_class == 0 else "equal"
        raise ValueError(f"mu_scaleface: labels are all {alike}, expected pairs of one class and of two")
    same, every = ((x**2).sum() - len(d) for x in (sums, sums.sum(0)))
    return scores.scale_cosine(mu=float(same / of_class + (every - same) / (ordered - of_class)) / 2)


METHOD = described("mu_scaleface", scaleface.Settings, build)
