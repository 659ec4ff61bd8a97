"""A case for each loss and kind of distribution, from which what holds of every loss is tested."""

import importlib
import pkgutil

import own_loss_cases
from own_loss_cases import CLASSES, DIM, DIRECTIONS, KINDS, OF_CLASSES

from peaccel import losses
from peaccel.losses._between import PairLoss
from peaccel.losses.margin import ClassDirections
from peaccel.losses.triplets import TripletLoss
from peaccel.published import (
    bayesian_triplet_listing,
    easy_margin,
    non_isotropic,
    revisited,
    spherical_confidence,
)

__all__ = ["CASES", "CLASSES", "DIM", "DIRECTIONS", "KINDS", "OF_CLASSES", "classes"]

CASES = [
    *own_loss_cases.CASES,
    (bayesian_triplet_listing.FlippedBayesianTriplet, {}, "isotropic"),
    (easy_margin.EasyMarginMagFace, OF_CLASSES, "point"),
    (non_isotropic.PaperProxyNCAPP, OF_CLASSES, "vmf"),
    (non_isotropic.PublishedProxyNCAPP, OF_CLASSES, "vmf"),
    (non_isotropic.PublishedProxyNCAPP, {**OF_CLASSES, "distance": "kl_vmf"}, "vmf"),
    (revisited.DrawnHIB, {"n": 3}, "isotropic"),
    (revisited.KappaDivergence, {}, "vmf"),
    (revisited.SelfPairedMLS, {}, "diagonal"),
    (spherical_confidence.FlooredClassLikelihood, {"weight": DIRECTIONS}, "vmf"),
]
"""Class, settings, kind of distribution."""


def classes(base=losses.Loss):
    """All losses of the package, of files that nothing imports too, and of published code."""
    for module in pkgutil.iter_modules(losses.__path__):
        importlib.import_module(f"{losses.__name__}.{module.name}")
    for own in base.__subclasses__():
        if own.__module__.startswith("peaccel.") and own not in (ClassDirections, PairLoss, TripletLoss):
            yield own
        yield from classes(own)
