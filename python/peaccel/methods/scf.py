"""Spherical Confidence Face: concentrations for a trained classifier's directions, by the density of the class."""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import UncertaintyHead
from peaccel.losses.regression import ClassLikelihood
from peaccel.methods import dul_reg
from peaccel.methods.method import Schedule, Training, described
from peaccel.methods.parts import Classifier, Kind, Uncertain, classify, distribution_head


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of SCF. With distribution normal it is the "scl-gmm" of "Revisited"."""

    distribution: Kind = "vmf"
    classifier: Classifier = Classifier()
    classify: Schedule = Schedule()
    """Settings of stage 1."""
    regress: Schedule = Schedule()
    """Settings of stage 2."""


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
    likelihood: type[ClassLikelihood] = ClassLikelihood,
) -> Training:
    """Put SCF's heads on a backbone; the model gives `peaccel.VonMisesFisher` or `peaccel.Normal`."""
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = settings.classifier.build(dim, classes)
    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        dul_reg.regression("SCF", backbone, head, likelihood(classifier.weight), settings.regress, "uncertainty"),
    )
    return Training(nn.Sequential(backbone, head), classifier, stages)


METHOD = described("scf", Settings, build)
