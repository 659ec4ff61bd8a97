"""The lines that a run prints before it begins: the data, the network, and the time by a step that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peaccel._utils.progress_bar import duration
from peaccel.distributions import Distribution
from peaccel.methods.method import Stage, Training
from peaccel.train.batch_sampling import augmented, balanced, deliver, move
from peaccel.train.encoder import Encoder
from peaccel.train.loop import learn, statistics_kept
from peaccel.train.sources import Items

__all__ = ["outline"]

WARM = 2.0
"""Seconds; a first step that takes less is followed by a second one, since the first also prepares the device."""


def outline(
    name: str, run: Any, encoder: Encoder, training: Training, parts: Mapping[str, Items], device: torch.device
) -> str:
    """The lines that a run prints before it begins.

    Parameters
    ----------
    name
        Begins each line.
    run
        A `peaccel.train.Run`.
    encoder, training, parts
        What is trained, and on what. A step forward and back is made and leaves no trace.
    device
        The device of the training.
    """
    sizes = (f"{part} {len(x)} items of {len(np.unique(x.labels))} classes" for part, x in parts.items())
    lines = [f"data {run.data}: {', '.join(sizes)}", _network(run, encoder)]
    steps, seconds, reading = 0, 0.0, 0.0
    for stage in training.stages:
        if stage.schedule.epochs:
            batches, step, read = _tried(training, stage, parts["train"], device)
            step = max(step, read / run.workers) if run.workers else step + read
            epochs = 1 if stage.frozen is not None else stage.schedule.epochs  # its network is run once
            made = batches * epochs
            steps, seconds, reading = steps + made, seconds + made * step, reading + made * read
    epochs_named = ", ".join(f"{stage.name} {stage.schedule.epochs} epochs" for stage in training.stages)
    if steps:
        more = ", half of it to read images: more --workers" if reading > seconds / 2 and not run.workers else ""
        about = f"about {duration(max(seconds, 1))} on {device.type}: a step takes {seconds / steps:.2g} s{more}"
        lines.append(f"{epochs_named}: {about}")
    return "\n".join(f"{name}: {line}" for line in lines)


def _network(run: Any, encoder: Encoder) -> str:
    """The network, its weights and its images."""
    if encoder.module is None:
        return f"no backbone, features of width {encoder.features}"
    start = run.begin or run.weights
    weights = f"weights of {start}" if start else "random weights (--weights FILE)"
    size = f", images of {encoder.image_size} x {encoder.image_size} pixels" if encoder.image_size else ""
    return f"backbone {'small_cnn' if encoder.name == 'auto' else encoder.name}, {weights}{size}"


def _tried(training: Training, stage: Stage, items: Items, device: torch.device) -> tuple[int, float, float]:
    """The batches of an epoch, and the seconds of a step forward and back and of reading its items."""
    rows = np.stack(list(balanced(items.labels, stage.schedule, np.random.default_rng(0))))
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion}).to(device)
    learn(everything, stage)
    step = reading = 0.0
    with torch.random.fork_rng([device] if device.type == "cuda" else []), statistics_kept(everything):
        for _ in range(2):
            start = perf_counter()
            _, inputs = next(deliver(augmented(items.data), rows, 0))
            reading, start = perf_counter() - start, perf_counter()
            d = training.model(move(inputs, device))
            arrays = [x for found in (d if isinstance(d, tuple) else (d,)) for x in _arrays(found)]
            total = sum(x.sum() for x in arrays if x.requires_grad)
            if isinstance(total, Tensor):
                torch.autograd.backward(total)
                total.item()  # waits for the device
            step = perf_counter() - start
            if step + reading > WARM:
                break
    for parameter in everything.parameters():
        parameter.grad = None
    return len(rows), step, reading


def _arrays(d: Any) -> tuple[Tensor, ...]:
    return d.arrays if isinstance(d, Distribution) else (d,)
