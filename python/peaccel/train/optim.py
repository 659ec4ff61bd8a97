"""Optimizers and learning rates, by torch.

torch wraps the methods of its optimizers so that torch.compile leaves them alone, and the wrappers import torch._dynamo
when they are first called, for seconds of a processor, though nothing is compiled. The classes here are torch's with
the methods inside those wrappers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from inspect import unwrap

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    StepLR,
)

from peaccel.methods.method import Schedule, Stage

__all__ = ["Rates", "optimizer_of", "schedule_of"]


class _Unwrapped(torch.optim.Optimizer):
    """Base of the optimizers, unwrapped."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(_Unwrapped, torch.optim.SGD):
    """torch's, unwrapped."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(_Unwrapped, torch.optim.Adam):
    """torch's, unwrapped."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(_Unwrapped, torch.optim.AdamW):
    """torch's, unwrapped."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def optimizer_of(stage: Stage) -> torch.optim.Optimizer:
    """The optimizer of a stage's groups, each with its own rate."""
    s = stage.schedule
    groups = [
        {
            "params": [
                p for part in group.trains for p in (part.parameters() if isinstance(part, nn.Module) else [part])
            ],
            "lr": s.lr * group.rate,
            "weight_decay": s.weight_decay if group.weight_decay is None else group.weight_decay,
        }
        for group in stage.groups
    ]
    if s.optimizer == "sgd":
        return SGD(groups, s.lr, momentum=s.momentum, nesterov=s.nesterov and s.momentum > 0)
    # One pass over a parameter and its moments in place of six.
    return (AdamW if s.optimizer == "adamw" else Adam)(groups, s.lr, fused=True)


@dataclass(frozen=True)
class Rates:
    """A schedule of learning rates, which changes after steps or after epochs, as it is made."""

    scheduler: LRScheduler | None
    by_step: bool

    def after_step(self) -> None:
        """Say that an optimisation step was made."""
        if self.by_step:
            self._move()

    def after_epoch(self) -> None:
        """Say that an epoch is over."""
        if not self.by_step:
            self._move()

    def _move(self) -> None:
        if self.scheduler is not None:
            with warnings.catch_warnings():  # a resumed run moves the schedule before the optimizer's first step
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.scheduler.step()


def schedule_of(optimizer: torch.optim.Optimizer, s: Schedule, steps: int, step: int = 0, epoch: int = 0) -> Rates:
    """The schedule of a stage, moved to where a resumed run stands.

    Parameters
    ----------
    optimizer
        The result of `optimizer_of`.
    s
        The stage's settings.
    steps
        Steps of the whole stage.
    step, epoch
        Those that are done.
    """
    if s.decay == "one_cycle":
        top = [group["lr"] for group in optimizer.param_groups]
        rising = max(0.1, 2 / (steps + 1))  # torch takes a share less than one step for a fall that began before
        rates = Rates(OneCycleLR(optimizer, top, total_steps=steps + 1, pct_start=rising, cycle_momentum=False), True)
    elif s.decay == "cosine":
        rates = Rates(CosineAnnealingLR(optimizer, steps), True)
    elif s.decay == "step":
        rates = Rates(StepLR(optimizer, s.every, s.gamma), False)
    elif s.decay == "multistep":
        rates = Rates(MultiStepLR(optimizer, list(s.milestones), s.gamma), False)
    elif s.decay == "exponential":
        rates = Rates(ExponentialLR(optimizer, s.gamma), False)
    else:
        rates = Rates(None, False)
    for _ in range(step if rates.by_step else epoch):
        (rates.after_step if rates.by_step else rates.after_epoch)()
    return rates
