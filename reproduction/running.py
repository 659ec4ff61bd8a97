"""One cell: a training and what is measured of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import torch

from peaccel.train import Options, embed, fit
from peaccel.train.backbones import small_cnn
from peaccel.train.evaluation import map_at_r, scored
from peaccel.train.runs import versions
from reproduction.defects import first_classes, with_blended_draws
from reproduction.hedging import measure_hedging
from reproduction.ledger import Record
from reproduction.measuring import measure
from reproduction.occlusion import ComposedAnew, occluded_parts
from reproduction.photographs import PlacesSettings
from reproduction.plan import Cell, read_plan, resolved, task_settings, variation
from reproduction.tasks import images, parts

__all__ = ["run"]


def run(quick: bool, cell: Cell, chosen: Mapping[str, Any], fashion_root: Path | None = None) -> Record:
    """Train and measure a cell, on one thread, so that it comes out the same beside any others.

    Parameters
    ----------
    quick
        By the small plan.
    cell
        Which.
    chosen
        Changes of the recipe's settings.
    fashion_root
        The folder of Fashion-MNIST, of which garments are.

    Returns
    -------
    What a line of results holds; of a trial and of a reference MAP@R of validation classes alone. Where the loss was
    not finite that is 0, and no numbers are taken. Its seconds are the processor's, whatever else the machine does.
    """
    torch.set_num_threads(1)
    plan = read_plan(quick)
    method, settings, decides = resolved(plan, cell, chosen)
    start = process_time()
    sizes = task_settings(plan, cell.task)
    if cell.task == "hib":
        data = occluded_parts(plan.hib.numbers, cell.split)
    else:
        data = parts(sizes, plan.trained_kinds, cell.split, fashion_root if cell.task == "garments" else None)
    train, validation = data["train"], data["validation"]
    inputs = ComposedAnew(train.clean, plan.hib.numbers.corruption) if cell.task == "hib" else images(train.mixed)
    torch.manual_seed(cell.initialisation)
    classes = int(train.labels.max()) + 1
    training = method.build(small_cnn.small_cnn(), small_cnn.FEATURES, classes, settings)
    varied = variation(plan, cell)
    if varied.one_batch:
        training = replace(training, stages=tuple(replace(stage, batches=first_classes) for stage in training.stages))
    about = {"settings": decides, "commit": versions()["commit"], "machine": _machine()}
    try:
        with with_blended_draws() if varied.blended_draws else nullcontext():
            fit(training, inputs, train.labels, Options(seed=cell.initialisation), name=cell.row)
    except FloatingPointError:
        nothing: Record = {"recall_at_1": {}, "map_at_r": {}, "numbers": {}} if cell.measured else {}
        return {**about, "validation": 0.0, **nothing, "seconds": round(process_time() - start, 1)}
    d = embed(training.model, images(validation.mixed))
    reached = map_at_r(d, validation.labels, scored(method, training, d, validation.labels)).map_at_r
    record: Record = {**about, "validation": round(reached, 6)}
    if cell.measured and cell.task == "hib":
        record |= measure_hedging(method, training, data)
    elif cell.measured:
        radius = sizes.step / 2 if isinstance(sizes, PlacesSettings) else None
        record |= measure(method, training, data, radius)
    return {**record, "seconds": round(process_time() - start, 1)}


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores"
