"""The rows of the papers' table on a network of one layer, for tests of how they are put together."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch
from torch import nn

from peaccel import train
from peaccel.methods.method import Schedule

ROWS = [row for row in train.RECIPES if row != "text_to_image"]
CLASSES, EACH, FEATURES, DIM = 12, 32, 12, 8
LABELS = np.repeat(np.arange(CLASSES), EACH)  # sorted: rows side by side are of few classes, unlike those of a batch
TRAINS = Schedule(epochs=1, lr=1e-12, decay="constant", classes_per_batch=48, images_per_class=2)
"""Steps that are made, and move nothing."""


def pictures():
    """Little pictures of classes; their pixels vary by a tenth, as those of an image that is mostly background."""
    rng = np.random.default_rng(0)
    pixels = 0.1 * (rng.normal(size=(CLASSES, 1, 4, 4))[LABELS] + 0.5 * rng.normal(size=(len(LABELS), 1, 4, 4)))
    return torch.tensor(0.3 + pixels, dtype=torch.float32)


IMAGES = pictures()


def changed(settings, over, path=""):
    """Settings, nested, with `over` asked for each of their fields: its dotted name, its value -> the new value."""
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    new = {
        name: changed(x, over, f"{path}{name}.") if is_dataclass(x) and not isinstance(x, Schedule) else x
        for name, x in known.items()
    }
    return replace(settings, **{name: over(path + name, x) for name, x in new.items()})


def build(row, over=lambda name, value: value, dropout=0.0):
    """A row on a small network with batch normalisation; stages that only classify have no epochs."""

    def short(name, value):
        if isinstance(value, Schedule):
            value = replace(TRAINS, epochs=int(name != "classify"))
        return over(name, {"dim": DIM}.get(name, value))

    method, settings = train.recipe(row, "mnist")
    settings = changed(settings, short)
    torch.manual_seed(0)
    linear, norm = nn.Linear(16, FEATURES), nn.BatchNorm1d(FEATURES)
    backbone = nn.Sequential(nn.Flatten(), linear, norm, nn.ReLU(), nn.Dropout(dropout))
    return method, settings, method.build(backbone, FEATURES, CLASSES, settings)


def everything(training):
    return nn.ModuleDict({"model": training.model, "criterion": training.criterion})
