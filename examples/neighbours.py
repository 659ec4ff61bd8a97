"""A method of one's own: a mean and a variance per image, by neighbourhood components with the mutual likelihood score.

`peaccel train examples/neighbours.py --quick` trains it; examples/plot_custom_method.py shows what comes out.
"""

from dataclasses import dataclass

import torch
from torch import nn

import peaccel as pe
from peaccel.heads import MeanHead, NormalHead, UncertaintyHead
from peaccel.methods.method import Group, Method, Schedule, Stage, Training


@dataclass(frozen=True, kw_only=True)
class Settings:
    dim: int = 16
    """Dimension of the embedding."""
    schedule: Schedule = Schedule(epochs=15, lr=3e-3)


def neighbours(d, labels):
    """Minus the log probability that an item's neighbour, drawn by likelihood, is of its class."""
    itself = torch.eye(len(d), dtype=torch.bool, device=labels.device)
    log_p = pe.pairwise(d, d, "mls").masked_fill(itself, -torch.inf).log_softmax(1)
    same = (labels[:, None] == labels) & ~itself
    return -log_p.masked_fill(~same, -torch.inf)[same.any(1)].logsumexp(1).mean()


def build(backbone, features, classes, settings):
    head = NormalHead(MeanHead(features, settings.dim), UncertaintyHead(features, out=1, start=0.1))

    def terms(batch, step):
        return {"neighbours": neighbours(head(backbone(batch.inputs)), batch.labels)}

    stage = Stage("neighbours", settings.schedule, (Group((backbone, head)),), terms)
    return Training(nn.Sequential(backbone, head), nn.Module(), (stage,))


METHOD = Method(
    name="neighbours",
    paper="Goldberger et al., Neighbourhood Components Analysis, 2004, with the score of PFE",
    distribution="normal",
    sampling=False,
    loss="neighbourhood components",
    score="mls",
    confidence="default",
    settings=Settings,
    build=build,
)
