"""Losses, one family a file. Each is called with a distribution and labels, and gives a scalar."""

from peaccel.losses.base import Loss
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.likelihood import NegativeMLS
from peaccel.losses.margin import VMFFL, ArcFace, CosFace, MagFace, ScaleFace
from peaccel.losses.matches import HIB
from peaccel.losses.nca import ProxyNCAPP
from peaccel.losses.nce import ScoreNCE
from peaccel.losses.pairs import Contrastive, MarginLoss, MultiSimilarity
from peaccel.losses.proxies import ProxyAnchor, ProxyNCA
from peaccel.losses.regression import ClassLikelihood
from peaccel.losses.triplets import BayesianTriplet, Triplet, TripletRegression
from peaccel.losses.vmf import VMFLoss

__all__ = [
    "HIB",
    "VMFFL",
    "ArcFace",
    "BayesianTriplet",
    "ClassLikelihood",
    "Contrastive",
    "CosFace",
    "Loss",
    "MagFace",
    "MarginLoss",
    "MultiSimilarity",
    "NegativeMLS",
    "PriorDivergence",
    "ProxyAnchor",
    "ProxyNCA",
    "ProxyNCAPP",
    "ScaleFace",
    "ScoreNCE",
    "Triplet",
    "TripletRegression",
    "VMFLoss",
]
