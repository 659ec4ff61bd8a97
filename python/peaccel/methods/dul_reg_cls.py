"""DUL-reg on the class directions of DUL-cls.

Three stages: a point classifier from which draws can start, DUL-cls, and DUL-reg with an uncertainty head made anew.
The first is what "Revisited" calls a warm start and may have no epochs; the last starts from the data, at the mean
squared distance of an item from its class direction.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from peaccel.heads import UncertaintyHead
from peaccel.methods import dul_cls, dul_reg
from peaccel.methods.parts import classify, distribution_head
from peaccel.methods.records import Batch, Schedule, Training


@dataclass(frozen=True, kw_only=True)
class Settings(dul_cls.Settings):
    """Settings of DUL-reg-cls."""

    classify: Schedule = Schedule(epochs=0)
    """Stage 1, of means alone; `draw` is stage 2."""
    regress: Schedule = Schedule()
    """Stage 3."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put the heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    first = dul_cls.build(backbone, features, classes, settings)
    head, classifier = first.model[1], first.criterion  # type: ignore[index]
    fresh, _ = distribution_head(features, settings)
    regress = dul_reg.regression("DUL-reg", backbone, head, classifier, settings.regress, "all")

    def restart(batches: Iterable[Batch]) -> None:
        head.uncertainty.load_state_dict(fresh.uncertainty.state_dict())
        squares: list[Tensor] = []
        for batch in batches:
            mu = normalize(head.mean(backbone(batch.inputs)).float(), dim=1)
            squares.append((mu - normalize(classifier.weight[batch.labels], dim=1)).square().mean(1))  # type: ignore[index]
        if isinstance(head.uncertainty, UncertaintyHead):
            head.uncertainty.start.copy_(torch.cat(squares).mean())

    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier.rate),  # type: ignore[arg-type]
        *first.stages,
        replace(regress, start=restart),
    )
    return Training(first.model, nn.ModuleList([classifier, fresh]), stages)


METHOD = replace(dul_cls.METHOD, name="dul_reg_cls", loss="DUL-cls, then DUL-reg", settings=Settings, build=build)
