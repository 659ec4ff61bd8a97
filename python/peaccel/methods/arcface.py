"""ArcFace, the baseline of most of the papers: points and a softmax with an angular margin."""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import PointHead
from peaccel.methods.method import Schedule, Training, described
from peaccel.methods.parts import Classifier, Embedding, classify, mean_head


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of ArcFace, and of CosFace."""

    classifier: Classifier = Classifier()
    schedule: Schedule = Schedule()


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point`, means of any length.

    Their length is no part of the loss; it is the confidence of the norm baseline.
    """
    mean, dim = mean_head(features, settings, unit=False)
    head = PointHead(mean)
    loss = settings.classifier.build(dim, classes)
    stage = classify(backbone, head, loss, settings.schedule, settings.classifier)
    return Training(nn.Sequential(backbone, head), loss, (stage,))


METHOD = described("arcface", Settings, build)
