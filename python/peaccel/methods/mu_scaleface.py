"""Mu-ScaleFace: ScaleFace whose score counts cosines from halfway between matching and other pairs."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from peaccel import measures, scores
from peaccel.distributions import Distribution
from peaccel.methods import scaleface
from peaccel.methods.method import Training


def build(backbone: nn.Module, features: int, classes: int, settings: scaleface.Settings) -> Training:
    """Put ScaleFace's heads on a backbone; mu is fitted on pairs of held-out items."""
    return replace(scaleface.build(backbone, features, classes, settings), score=score)


def score(d: Distribution, labels: NDArray[np.int64]) -> scores.Score:
    """The score with mu halfway between the mean cosines of all pairs of one class and of all others."""
    pairs = np.argwhere(np.triu(np.ones((len(d), len(d)), bool), k=1))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return scores.scale_cosine(mu=measures.fit_shift(d, pairs, same))


METHOD = replace(scaleface.METHOD, name="mu_scaleface", score="scale_cosine", build=build)
