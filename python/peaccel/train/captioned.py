"""Numbers with captions: features of both, for heads of text-to-image, without a pretrained pair of encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peaccel.data.corruption import corrupted
from peaccel.data.digits import HIDDEN, WORDS, DigitsSettings, captions, describes, make
from peaccel.train.embedding import embed

__all__ = ["captioned_numbers"]


def captioned_numbers(
    model: nn.Module, source: Any, settings: DigitsSettings, seed: int, hidden: float
) -> dict[str, Mapping[str, NDArray[Any]]]:
    """Features of corrupted images of numbers and of a caption of each, digits of which are left open.

    Images are encoded by a trained model. The encoder of captions is linear: the sum of a vector for each digit at each
    place, by least squares on the training images; a digit that is left open has the mean of its place.

    Parameters
    ----------
    model
        The module from images to a distribution, whose mu is taken.
    source, settings, seed
        As for `peaccel.data.digits.make`: those by which the model was trained keep its test numbers unseen.
    hidden
        Probability that a digit is left open, in [0, 1].

    Returns
    -------
    For "train", "validation" and "test" (gallery and query together): images [N, D], captions [N, D], image [N], the
    row of the image that each caption was made for, and relevance [M, 2], a caption and an image that it describes.
    """
    parts = make(source, settings, seed)
    mixed = corrupted(parts, settings.corruption, seed)
    means = {part: embed(model, torch.from_numpy(x.images)[:, None]).mu for part, x in mixed.items()}
    of = {"train": ("train",), "validation": ("validation",), "test": ("gallery", "query")}
    known = _shares(captions(mixed["train"].labels, settings.digits))
    vectors = np.linalg.lstsq(known, means["train"], rcond=None)[0]
    found: dict[str, Mapping[str, NDArray[Any]]] = {}
    for part, names in of.items():
        numbers = np.concatenate([mixed[name].labels for name in names])
        texts = captions(numbers, settings.digits, hidden, seed)
        found[part] = {
            "images": np.concatenate([means[name] for name in names]).astype(np.float32),
            "captions": (_shares(texts) @ vectors).astype(np.float32),
            "image": np.arange(len(numbers)),
            "relevance": np.argwhere(describes(texts, numbers)),
        }
    return found


def _shares(texts: Sequence[str]) -> NDArray[np.float64]:
    """[T, 10 digits]: for each place 1 at the digit that the caption tells, or 0.1 at all ten if it tells none."""
    words = np.array([text.split(" ") for text in texts])
    shares = np.where((words == HIDDEN)[..., None], 1 / len(WORDS), words[..., None] == np.array(WORDS))
    return np.asarray(shares.reshape(len(texts), -1), np.float64)
