"""A case for each loss of `peaccel.losses` and kind of distribution; torch and numpy are all that they need."""

import torch
from torch.nn.functional import normalize

import peaccel as pe
from peaccel import losses

KINDS = {
    "point": lambda mu, kappa: pe.Point(3 * mu),
    "isotropic": lambda mu, kappa: pe.Normal(mu, 1 / kappa),
    "diagonal": lambda mu, kappa: pe.Normal(mu, mu**2 + 1 / kappa[:, None]),
    "vmf": pe.VonMisesFisher,
    "scaled": pe.Scaled,
}

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
    (losses.Contrastive, {"negative_margin": 9.0, "score": "neg_w2"}, "isotropic"),
    (losses.MultiSimilarity, {"margin": 9.0, "threshold": -3.0, "score": "mls"}, "vmf"),
    (losses.Triplet, {"margin": 2.0, "score": "mls"}, "diagonal"),
    (losses.MarginLoss, {"far": 2.0, "margin": 2.0}, "point"),
    (losses.Triplet, {"margin": 2.0}, "point"),
    (losses.TripletRegression, {"margin": 2.0}, "isotropic"),
    (losses.BayesianTriplet, {}, "isotropic"),
    (losses.BayesianTriplet, {}, "diagonal"),
    (losses.BayesianTriplet, {}, "vmf"),
    (losses.BayesianTriplet, {"match_moments": True}, "vmf"),
]
"""Class, settings, kind of distribution."""
