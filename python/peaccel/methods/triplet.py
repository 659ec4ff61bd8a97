"""The triplet loss, a baseline: the negative further from the anchor than the positive by a margin."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from peaccel import retrieval
from peaccel.distributions import Point
from peaccel.losses.triplets import Triplet
from peaccel.methods.method import AtLeast1, Embed, NonNegative, Schedule, Training, described
from peaccel.methods.parts import PointSettings, point_training

POOL = 5000  # how many items the negatives of an epoch are chosen from


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of the triplet loss."""

    margin: NonNegative = 0.2
    """Margin of squared distances of unit means."""
    only_violating: bool = False
    """Leave out triplets that keep the margin."""
    negatives: AtLeast1 | None = None
    """Hard negatives in a batch for each anchor and its positive; None makes batches of groups of one class."""


def hard_negatives(
    labels: NDArray[np.int64], schedule: Schedule, rng: np.random.Generator, embed: Embed, negatives: int
) -> Iterator[NDArray[np.int64]]:
    """Deal anchors, each with a positive and with the nearest items of other classes.

    A pool of items is embedded when the epoch begins; negatives are the nearest in it to the anchor's mean. Each item
    of the pool that has another of its class there is an anchor once.

    Parameters
    ----------
    labels
        [N].
    schedule
        A batch has as many items as `classes_per_batch` groups of `images_per_class`, rounded down to whole groups of
        an anchor, its positive and its negatives.
    rng
        Draws the pool, the positives and the order.
    embed
        The current means of the model, of given rows.
    negatives
        How many negatives an anchor has, at least 1.

    Yields
    ------
    Rows, [batch].

    Raises
    ------
    ValueError
        No class has two items in the pool, or the pool holds fewer items of other classes than negatives.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, sec. 4: five negatives out of a cache of 5000.
    """
    pool = rng.permutation(len(labels))[:POOL]
    classes, points = labels[pool], Point(embed(pool))
    # As many nearest neighbours as these surely contain the nearest of other classes.
    k = min(len(pool), int(np.bincount(classes).max()) + negatives)
    near = retrieval.search(points, points, k, score="neg_sq_l2").ids
    others = classes[near] != classes[:, None]
    nearest = np.take_along_axis(near, np.argsort(~others, axis=1, kind="stable")[:, :negatives], 1)
    groups = []
    for i in np.flatnonzero(others.sum(1) >= negatives):
        positives = np.flatnonzero(classes == classes[i])
        if len(positives) > 1:
            groups.append(pool[[i, rng.choice(positives[positives != i]), *nearest[i]]])
    if not groups:
        raise ValueError(f"hard negatives: no anchor has a positive and {negatives} negatives among {len(pool)} items")
    count = max(1, min(len(groups), schedule.classes_per_batch * schedule.images_per_class // (2 + negatives)))
    batches = np.resize(np.stack(groups), (-(-len(groups) // count), count * (2 + negatives)))
    yield from batches


def batches_of(negatives: int | None) -> Callable[..., Iterator[NDArray[np.int64]]] | None:
    """How a stage of triplets makes its batches: with hard negatives, or of groups of one class."""
    return None if negatives is None else partial(hard_negatives, negatives=negatives)


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> Triplet:
        return Triplet(margin=settings.margin, only_violating=settings.only_violating)

    training = point_training("triplet", backbone, features, settings, make)
    stages: Any = tuple(replace(stage, batches=batches_of(settings.negatives)) for stage in training.stages)
    return replace(training, stages=stages)


METHOD = described("triplet", Settings, build)
