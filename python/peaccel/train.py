"""The training loop, for every method."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor, nn

from peaccel import Normal
from peaccel.methods import Schedule, Stage


def fit(stages: Sequence[Stage], images: Tensor, labels: Tensor, seed: int, description: str = "") -> None:
    """Train a method's stages one after the other, in place.

    Parameters
    ----------
    stages
        From a method's `build`.
    images
        [N, ...] whatever the backbone takes.
    labels
        [N] int64 in 0..C-1.
    seed
        Decides the order of batches.
    description
        Shown before each progress bar.
    """
    rng = np.random.default_rng(seed)
    for stage in stages:
        inputs = images if stage.frozen is None else torch.cat(_apply(stage.frozen, images))
        run_stage(stage, inputs, labels, rng, f"{description}{stage.name}")


def run_stage(stage: Stage, inputs: Tensor, labels: Tensor, rng: np.random.Generator, description: str) -> None:
    """Train one stage with Adam."""
    parameters = [p for module in stage.trains for p in module.parameters()]
    batches = [
        rows for _ in range(stage.schedule.epochs) for rows in class_batches(labels.numpy(), stage.schedule, rng)
    ]
    optimizer = torch.optim.Adam(parameters, stage.schedule.lr)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / len(batches)))
    for module in stage.trains:
        module.train().requires_grad_(True)
    for rows in track(batches, description):
        optimizer.zero_grad()
        stage.loss(inputs[rows], labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rates.step()
    for module in stage.trains:
        module.eval().requires_grad_(False)


def class_batches(labels: NDArray[np.int64], schedule: Schedule, rng: np.random.Generator) -> Iterator[Tensor]:
    """Deal all images into batches made of groups of one class.

    Every image comes up once an epoch, and so does every class, but for what does not fill a last batch; that waits for
    the next epoch's order.

    Parameters
    ----------
    labels
        [N]; a class whose size is no multiple of `schedule.images_per_class` lends its rest to another class's group.
    schedule
        Groups in a batch and images in a group.
    rng
        Shuffles images within classes, and groups.

    Yields
    ------
    Rows [classes_per_batch images_per_class], int64.
    """
    size, count = schedule.images_per_class, schedule.classes_per_batch
    by_class = np.lexsort((rng.random(len(labels)), labels))
    groups = rng.permutation(by_class[: len(labels) // size * size].reshape(-1, size))
    count = min(count, len(groups))
    for start in range(0, len(groups) - count + 1, count):
        yield torch.from_numpy(groups[start : start + count].ravel())


def embed(model: nn.Module, images: Tensor) -> Normal:
    """Apply a trained model to images.

    Parameters
    ----------
    model
        Module from images to `Normal`, in evaluation mode.
    images
        [N, ...].

    Returns
    -------
    N distributions, as numpy arrays.
    """
    parts = _apply(model, images)
    return Normal(torch.cat([d.mu for d in parts]).numpy(), torch.cat([d.var for d in parts]).numpy())


def _rate(done: float) -> float:
    """Share of the peak learning rate after a share of the steps: a short rise, then half a cosine."""
    return min(1, 0.02 + 10 * done) * (1 + math.cos(math.pi * done)) / 2


def _apply(module: nn.Module, images: Tensor) -> list[Any]:
    with torch.no_grad():
        return [module(batch) for batch in torch.split(images, 256)]
