"""CosFace, a baseline: points and a softmax with a margin between cosines."""

from dataclasses import dataclass

from peaccel.methods import arcface
from peaccel.methods.method import Method
from peaccel.methods.parts import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(arcface.Settings):
    """Settings of CosFace."""

    classifier: Classifier = Classifier(loss="cosface", margin=0.35)


METHOD = Method(
    "cosface",
    "Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018, arXiv:1801.09414",
    distribution="point",
    sampling=False,
    loss="softmax, margin of cosines",
    score="cosine",
    confidence="norm",
    settings=Settings,
    build=arcface.build,
)
