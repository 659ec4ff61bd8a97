"""Monte Carlo dropout: the triplet loss, and at test time the spread of several passes with dropout."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from peaccel.distributions import Normal, Point
from peaccel.methods import triplet
from peaccel.methods.method import AtLeast1, Share, Training, described


@dataclass(frozen=True, kw_only=True)
class Settings(triplet.Settings):
    """Settings of Monte Carlo dropout."""

    feature_dropout: Share = 0.2
    """Rate of dropout of the features, beside the backbone's."""
    passes: AtLeast1 = 50
    """How many passes the model makes at test time."""


class Passes(nn.Module):
    """A model of points, of which several passes with dropout make one distribution.

    Parameters
    ----------
    model
        The module from inputs to `peaccel.Point` with rows of length 1.
    passes
        How many.

    Notes
    -----
    Dropout is drawn under a separate seed, so that equal inputs in equal batches are embedded alike.
    """

    def __init__(self, model: nn.Module, passes: int) -> None:
        super().__init__()
        self.model = model
        self.passes = passes

    def forward(self, inputs: Tensor) -> Point | Normal:
        """Points while training; else normals: the mean direction and the variance of the passes, per dimension."""
        if self.training:
            point: Point = self.model(inputs)
            return point
        modes = {part: part.training for part in self.model.modules() if isinstance(part, nn.Dropout)}
        with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            torch.manual_seed(0)
            for part in modes:
                part.train()
            try:
                draws = torch.stack([self.model(inputs).mu for _ in range(self.passes)])
            finally:
                for part, mode in modes.items():
                    part.train(mode)
        return Normal(normalize(draws.mean(0), dim=1), draws.var(0, correction=0))


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put dropout and a location head on a backbone; the trained model gives diagonal `peaccel.Normal`."""
    dropped = nn.Sequential(backbone, nn.Dropout(settings.feature_dropout))
    training = triplet.build(dropped, features, classes, settings)
    return replace(training, model=Passes(training.model, settings.passes))


METHOD = described("mc_dropout", Settings, build)
