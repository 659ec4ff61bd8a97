"""Signs that a training fails, as its first epochs show them: a sentence each, with what to try."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from peaccel.distributions import Distribution
from peaccel.heads import UncertaintyHead
from peaccel.methods.method import Stage

__all__ = ["EPOCHS", "Movement", "above_chance", "has_head", "probe_rows", "signs"]

EPOCHS = 2
"""The first epochs of a stage, after each of which it is looked at."""

CLASSES, ITEMS = 32, 8  # of the training items that are looked at
CONE = 0.9  # mean cosine of items of two classes: 0.99 where an untrained network ends in a ReLU, 0.1 once one learns
CERTAIN = 1e-3  # chance accuracy reaches what was found less often than this where anything was learned
RANGE = 1e3  # of uncertainties between their 1st and 99th percentiles; those of trained heads differ by 10 to 100
CLOSE = 1e-3  # uncertainties that differ by less, relatively, from the least or the greatest are at a bound


def probe_rows(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of up to eight items of each of up to 32 classes, which lie evenly among those of two items and more.

    Parameters
    ----------
    labels
        [N] int64.
    """
    order = np.argsort(labels, kind="stable")
    _, first, count = np.unique(labels[order], return_index=True, return_counts=True)
    several = np.flatnonzero(count > 1)
    chosen = several[np.linspace(0, len(several) - 1, min(CLASSES, len(several))).astype(np.int64)]
    return np.concatenate([order[first[i] : first[i] + min(count[i], ITEMS)] for i in chosen] or [order[:ITEMS]])


def has_head(stage: Stage) -> bool:
    """Whether a head of uncertainties learns in a stage."""
    parts = (part for group in stage.groups for part in group.trains if isinstance(part, nn.Module))
    return any(isinstance(module, UncertaintyHead) for part in parts for module in part.modules())


def signs(d: Distribution, labels: NDArray[np.int64], head: bool = True) -> dict[str, str]:
    """Signs, in a model's outputs for some training items, that it does not learn.

    Parameters
    ----------
    d
        N distributions on the CPU.
    labels
        [N] int64.
    head
        Whether uncertainties have a head, of which advice is given.

    Returns
    -------
    Sentences by what they are about: "cone", "chance", "bound", "range".
    """
    mu = np.asarray(d.mu, np.float64)
    unit = mu / np.maximum(np.linalg.norm(mu, axis=1, keepdims=True), 1e-300)
    cosine, same = unit @ unit.T, labels[:, None] == labels
    found = {}
    if not same.all() and (mean := float(cosine[~same].mean())) > CONE:
        found["cone"] = (
            f"embeddings of different classes lie in one cone (mean cosine {mean:.3f}): batch normalisation at the end "
            "of the backbone, a margin that is smaller or rises (classifier.warmup), or another seed may help"
        )
    np.fill_diagonal(cosine, -np.inf)
    right = labels[cosine.argmax(1)] == labels
    chance = (same.sum(1) - 1) / max(len(labels) - 1, 1)
    if not above_chance(int(right.sum()), len(right), float(chance.mean())):
        found["chance"] = (
            f"the nearest neighbour of a training item is of its class in {100 * right.mean():.1f} % of cases, where "
            f"chance is {100 * chance.mean():.1f} %: nothing is learned; another learning rate may help"
        )
    return found | _of_uncertainty(d, "rate of the uncertainty head" if head else "learning rate")


def _of_uncertainty(d: Distribution, rate: str) -> dict[str, str]:
    name = d._names[-1]
    if name == "mu":
        return {}
    x = np.sort(np.asarray(getattr(d, name), np.float64).reshape(len(d), -1).mean(1))
    if np.ptp(x) <= 100 * CLOSE * x[-1]:  # alike, as where training starts; at its end `ConsoleLogger` tells
        return {}
    found = {}
    for bound, at in (("least", x <= x[0] * (1 + CLOSE)), ("greatest", x >= x[-1] * (1 - CLOSE))):
        if at.mean() > 0.5:
            found["bound"] = (
                f"{name} of {100 * at.mean():.0f} % of the items is at its {bound} value, {x[at][0]:.3g}: a lower "
                f"{rate}, or a start nearer to what it should reach, may help"
            )
    low, high = np.quantile(x, (0.01, 0.99))
    if high > RANGE * max(low, 1e-300):
        found["range"] = f"{name} ranges from {low:.2g} to {high:.2g}: a lower {rate} or a clipped gradient may help"
    return found


def above_chance(right: int, of: int, chance: float) -> bool:
    """Whether so many right answers are more than chance gives, one-sided, at a level of 0.1 %."""
    return bool(stats.binom.sf(right - 1, of, chance) < CERTAIN)


class Movement:
    """Which layers that a stage trains have not changed by one bit since it was made.

    Parameters
    ----------
    everything
        All modules of the run.
    stage
        The stage, whose groups are about to learn.
    """

    def __init__(self, everything: nn.Module, stage: Stage) -> None:
        trained = {id(p) for group in stage.groups for part in group.trains for p in _parameters(part)}
        self._layers = {
            name: parameters
            for name, module in everything.named_modules()
            if (parameters := [p for p in module.parameters(recurse=False) if id(p) in trained and p.requires_grad])
        }
        self._before = {name: _bits(parameters) for name, parameters in self._layers.items()}

    def sign(self) -> dict[str, str]:
        """A sentence about the layers that stayed, if there are any."""
        still = [name for name, parameters in self._layers.items() if _bits(parameters) == self._before[name]]
        if not still:
            return {}
        names = ", ".join(still[:3]) + (f" and {len(still) - 3} more" if len(still) > 3 else "")
        return {"still": f"{names} did not change by one bit: no gradient reaches it, or its rate is too small"}


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())


@torch.no_grad()
def _bits(parameters: list[nn.Parameter]) -> tuple[Any, ...]:
    """Sums of the parameters' bits, as integers, and of their squares: a change leaves both only by a rare chance."""
    words = [p.detach().reshape(-1).view(torch.int32 if p.element_size() == 4 else torch.int16) for p in parameters]
    return tuple((int(x.sum(dtype=torch.int64)), int((x.long() * x.long()).sum())) for x in words)
