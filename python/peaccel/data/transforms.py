"""The papers' transforms of images before a network, by torchvision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BN_INCEPTION", "FACES", "IMAGENET", "Normalisation", "eval_transform", "face_transform", "train_transform"]


@dataclass(frozen=True)
class Normalisation:
    """Mean of red, green and blue in [0, 1], which is subtracted, and the divisor of the difference."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The normalisation of torchvision's and timm's networks."""
BN_INCEPTION = Normalisation((128 / 255, 117 / 255, 104 / 255), (1 / 255, 1 / 255, 1 / 255))
"""The normalisation of BN-Inception: differences from its mean colour in 0..255 (published weights take blue first)."""
FACES = Normalisation((127.5 / 255,) * 3, (128 / 255,) * 3)
"""The normalisation of face networks: (x - 127.5) / 128 for x in 0..255."""


def train_transform(
    normalisation: Normalisation,
    side: int = 224,
    scale: tuple[float, float] = (0.16, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
    jitter: float = 0.25,
    degrees: float = 0.0,
) -> Callable[[Any], Any]:
    """Random crop, flip and change of colours: image -> float32 tensor [3, side, side].

    The defaults are those of "Probabilistic Embeddings Revisited"; scale (0.4, 1) and degrees 10 make those of the
    Bayesian triplet loss (which does not tell its jitter), scale (0.08, 1) and jitter 0 those of the non-isotropic
    proxies.

    Parameters
    ----------
    normalisation
        The normalisation that the backbone expects.
    side
        Height and width of the result, in pixels.
    scale
        Least and greatest area of the crop, as a share of the image's.
    ratio
        Least and greatest width of the crop, over its height.
    jitter
        Brightness, contrast and saturation change by factors in [1 - jitter, 1 + jitter].
    degrees
        Greatest angle of a rotation, to either side.
    """
    from torchvision.transforms import v2

    steps = [v2.RandomRotation(degrees)] if degrees else []
    steps += [v2.RandomResizedCrop(side, scale, ratio, antialias=True), v2.RandomHorizontalFlip()]
    steps += [v2.ColorJitter(jitter, jitter, jitter)] if jitter else []
    return _then(steps, normalisation)


def eval_transform(normalisation: Normalisation, shorter: int = 256, side: int = 224) -> Callable[[Any], Any]:
    """Resize the shorter side, then crop the middle: image -> float32 tensor [3, side, side].

    Parameters
    ----------
    normalisation
        The normalisation that the backbone expects.
    shorter
        Length that the shorter side gets, in pixels.
    side
        Height and width of the result.
    """
    from torchvision.transforms import v2

    return _then([v2.Resize(shorter, antialias=True), v2.CenterCrop(side)], normalisation)


def face_transform(side: int = 112, flip: bool = False, normalisation: Normalisation = FACES) -> Callable[[Any], Any]:
    """Resize of aligned faces and of small images: image -> float32 tensor [3, side, side].

    Parameters
    ----------
    side
        Height and width of the result, in pixels.
    flip
        Whether half of the images are mirrored, in training.
    normalisation
        The normalisation that the backbone expects; (x - 127.5) / 128 unless given.
    """
    from torchvision.transforms import v2

    return _then([v2.Resize((side, side), antialias=True)] + [v2.RandomHorizontalFlip()] * flip, normalisation)


def _then(steps: list[Any], normalisation: Normalisation) -> Callable[[Any], Any]:
    """The steps, then pixels as normalised floats."""
    import torch
    from torchvision.transforms import v2

    floats = v2.ToDtype(torch.float32, scale=True)
    normalise = v2.Normalize(list(normalisation.mean), list(normalisation.std))
    composed: Callable[[Any], Any] = v2.Compose([*steps, v2.ToImage(), floats, normalise, v2.ToPureTensor()])
    return composed
