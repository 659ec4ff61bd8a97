"""CosFace, a baseline: points and a softmax with a margin between cosines."""

from dataclasses import dataclass

from peaccel.methods import arcface
from peaccel.methods.method import described
from peaccel.methods.parts import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(arcface.Settings):
    """Settings of CosFace."""

    classifier: Classifier = Classifier(loss="cosface", margin=0.35)


METHOD = described("cosface", Settings, arcface.build)
