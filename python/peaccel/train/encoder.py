"""The network under the heads of a run: a backbone by name, one chosen by the size of the images, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from peaccel._utils.python_files import is_function
from peaccel.data import COMPOSED, of_features
from peaccel.heads import Covariates
from peaccel.train import backbones
from peaccel.train.backbones.small_cnn import FEATURES, SmallCNN, small_cnn
from peaccel.train.sources import Items

__all__ = ["Encoder", "check_backbone", "encoder", "in_place_of_backbone", "input_of", "shrunk"]

SMALL = 128
"""Shorter side of images, in pixels, up to which a small network is chosen."""

STEP = 32
"""Sides of images are multiples of it, by which most networks divide them."""


@dataclass(frozen=True)
class Encoder:
    """A network from inputs to features, with what its making again needs."""

    name: str
    """Name of the backbone; "auto" of digits and of features, whose networks have no options."""
    module: nn.Module | None
    """The network; None where the inputs are features."""
    features: int
    """Width of the features."""
    image_size: int | None = None
    """Side of the images in pixels, where these are square."""


def check_backbone(run: Any) -> None:
    """Refuse options of a backbone where there is none, or the small network, which takes none."""
    features = of_features(run.data)
    if run.backbone != "auto" or not (features or run.data in COMPOSED):
        return
    for name in ("weights", "pooling", "frozen_bn", "dropout", "image_size"):
        if (value := getattr(run, name)) != getattr(type(run), name):
            what = "but features need no backbone" if features else "which auto does not take: name a backbone"
            raise ValueError(f"data {run.data}: {name} is {value}, {what}")


def encoder(run: Any, on_features: bool, side: int | None = None) -> Encoder:
    """The backbone that a run asks for.

    Parameters
    ----------
    run
        A `peaccel.train.Run`.
    on_features
        Whether the data are features, which need none.
    side
        The images' shorter side in pixels, by which "auto" is a small network, up to 128, or resnet50.
    """
    name = run.backbone
    if name == "auto":
        if run.data in COMPOSED:
            return Encoder(name, small_cnn(), FEATURES)
        if on_features:
            return Encoder(name, None, 0)
        name = "small_cnn" if side is not None and side <= SMALL else "resnet50"
    asked = {key: getattr(run, key) for key in ("weights", "pooling", "frozen_bn", "dropout", "image_size")}
    if is_function(name) and run.data in COMPOSED:
        asked["expected"] = SmallCNN().input
    elif name == "small_cnn" and run.data not in COMPOSED:
        asked["colours"] = 3
    made = backbones.create(name, **asked)
    expected = made.input
    if not isinstance(expected, backbones.ImageInput) or expected.size[0] != expected.size[1]:
        return Encoder(name, made, made.features)
    return Encoder(name, made, made.features, expected.size[0])


def shrunk(found: Encoder, side: int | None) -> Encoder:
    """The same encoder for images of this shorter side, which are enlarged to a multiple of 32 pixels at most."""
    made = found.module
    if side is None or not isinstance(made, backbones.Backbone) or not made.network.any_size:
        return found
    expected, smaller = made.input, -(-side // STEP) * STEP
    if found.image_size is None or smaller >= found.image_size:
        return found
    assert isinstance(expected, backbones.ImageInput)
    made.input = made.network.input = replace(expected, size=(smaller, smaller))
    return replace(found, image_size=smaller)


def input_of(model: nn.Module) -> Any:
    """The input that a model's backbone expects; None where it expects none in particular."""
    return next((part.input for part in model.modules() if isinstance(part, backbones.Backbone)), None)


def in_place_of_backbone(items: Items) -> tuple[nn.Module, int]:
    """A module in place of the backbone where the data are features, and their width."""
    first = items.data[0] if isinstance(items.data, tuple) else items.data
    assert isinstance(first, torch.Tensor)
    module = Covariates(items.covariates).fit(first) if items.covariates else nn.Identity()
    return module, int(first.shape[1])
