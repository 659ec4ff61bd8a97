"""A case for each loss and kind of distribution, from which what holds of every loss is tested."""

import importlib
import pkgutil

import torch
from torch.nn.functional import normalize

from peaccel import losses
from peaccel.losses.margin import ClassDirections
from peaccel.published import (
    bayesian_triplet_listing,
    easy_margin,
    non_isotropic,
    revisited,
    spherical_confidence,
)

DIM, CLASSES = 6, 2
OF_CLASSES = {"dim": DIM, "classes": CLASSES}
DIRECTIONS = normalize(torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0)))

# Margins are so wide that a batch of four items has a gradient.
CASES = [
    (losses.ArcFace, OF_CLASSES, "point"),
    (losses.CosFace, OF_CLASSES, "point"),
    (losses.MagFace, OF_CLASSES, "point"),
    (losses.ScaleFace, OF_CLASSES, "scaled"),
    (losses.VMFFL, OF_CLASSES, "vmf"),
    (losses.VMFLoss, OF_CLASSES, "point"),
    (losses.ProxyAnchor, OF_CLASSES, "point"),
    (losses.ProxyNCA, OF_CLASSES, "point"),
    (losses.ProxyNCAPP, OF_CLASSES, "vmf"),
    (losses.ClassLikelihood, {"weight": DIRECTIONS}, "vmf"),
    (losses.PriorDivergence, {}, "diagonal"),
    (losses.NegativeMLS, {}, "diagonal"),
    (losses.NegativeMLS, {}, "vmf"),
    (losses.HIB, {}, "isotropic"),
    (losses.HIB, {"n": 3}, "diagonal"),
    (losses.ScoreNCE, {"prior_var": torch.rand(DIM) + 0.5, "prior_mean": torch.rand(DIM)}, "diagonal"),
    (losses.ScoreNCE, {"prior_var": 0.5}, "isotropic"),
    (losses.ScoreNCE, {"score": "mls"}, "vmf"),
    (losses.ScoreNCE, {"score": "cosine"}, "point"),
    (losses.Contrastive, {}, "point"),
    (losses.MultiSimilarity, {"margin": 2.0}, "point"),
    (losses.MarginLoss, {"far": 2.0, "margin": 2.0}, "point"),
    (losses.Triplet, {"margin": 2.0}, "point"),
    (losses.TripletRegression, {"margin": 2.0}, "isotropic"),
    (losses.BayesianTriplet, {}, "isotropic"),
    (losses.BayesianTriplet, {}, "diagonal"),
    (losses.BayesianTriplet, {}, "vmf"),
    (losses.BayesianTriplet, {"match_moments": True}, "vmf"),
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
        if own.__module__.startswith("peaccel.") and own is not ClassDirections:
            yield own
        yield from classes(own)
