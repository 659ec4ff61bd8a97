"""Places in photographs that come inside scikit-image, seen from near by: a task as of visual place recognition.

A place is a point of a photograph, an image of it a patch about it, shifted, turned, scaled, and lit in another way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peaccel.data.corruption import Corruption, Pictures

__all__ = ["PHOTOGRAPHS", "Patches", "PlacesSettings", "make"]

PHOTOGRAPHS = (
    "astronaut",
    "brick",
    "camera",
    "chelsea",
    "coffee",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "immunohistochemistry",
    "moon",
    "page",
    "retina",
    "rocket",
)
APART = 10_000
"""Pixels between photographs in `Patches.position`, so that no two places of two of them are near each other."""


@dataclass(frozen=True)
class PlacesSettings:
    """Sizes of the task; lengths are pixels of a photograph."""

    photographs: tuple[int, int, int]
    """How many photographs are for train, for validation, and for test (gallery and query)."""
    places: int
    """How many places a photograph has at most; which ones is drawn."""
    step: int
    """Distance between neighbouring places."""
    patch: int
    """Side of the patch that an image shows, at scale 1."""
    side: int
    """Side of an image, in its own pixels."""
    contrast: float
    """Least standard deviation of a patch whose centre is a place."""
    shift: float
    """Greatest shift of a view, along each axis."""
    turn: float
    """Greatest angle of a view, in degrees."""
    zoom: float
    """Greatest factor of a view's scale; the least one is its inverse."""
    light: float
    """Greatest relative change of a view's brightness."""
    images_per_class: tuple[int, int, int, int]
    """Views of each place in train, validation, gallery, query."""
    corruption: Corruption


@dataclass(frozen=True)
class Patches(Pictures):
    """Views [N, side, side] of places, which are their labels."""

    position: NDArray[np.float64]
    """[N, 2], where the view was taken, in pixels; photographs lie side by side, far apart."""


def make(settings: PlacesSettings, seed: int) -> dict[str, Patches]:
    """Draw photographs for each part, and the clean views of their places.

    Parameters
    ----------
    settings
        Sizes.
    seed
        Equal seeds give equal arrays.

    Returns
    -------
    `Patches` by "train", "validation", "gallery", "query". No photograph stands in two parts but gallery and query,
    which are other views of the same places.

    Raises
    ------
    ValueError
        More photographs are asked for than there are.
    """
    if sum(settings.photographs) > len(PHOTOGRAPHS):
        raise ValueError(f"make: photographs sum to {sum(settings.photographs)}, expected at most {len(PHOTOGRAPHS)}")
    rng = np.random.default_rng(seed)
    grey = [_grey(name) for name in PHOTOGRAPHS]
    places = [rng.permutation(_places(photograph, settings))[: settings.places] for photograph in grey]
    cuts = np.cumsum(settings.photographs)
    train, validation, test = np.split(rng.permutation(len(PHOTOGRAPHS))[: cuts[-1]], cuts[:-1])
    parts = zip(
        ("train", "validation", "gallery", "query"),
        (train, validation, test, test),
        settings.images_per_class,
        strict=True,
    )
    return {
        part: _views([(i, grey[i], places[i]) for i in photographs], views, settings, rng)
        for part, photographs, views in parts
    }


def _views(
    photographs: Sequence[tuple[int, NDArray[np.float32], NDArray[np.float64]]],
    views: int,
    settings: PlacesSettings,
    rng: np.random.Generator,
) -> Patches:
    """Views of the places of photographs, each given with its number in `PHOTOGRAPHS`."""
    images, labels, position = [], [], []
    for photograph, grey, places in photographs:
        for number, place in enumerate(places):
            for _ in range(views):
                centre = place + rng.uniform(-settings.shift, settings.shift, 2)
                images.append(_view(grey, centre, settings, rng))
                labels.append(1000 * photograph + number)
                position.append(centre + np.array([0, APART * photograph]))
    n = len(labels)
    clean = np.zeros(n, np.int64), np.zeros(n, np.float32)
    return Patches(np.stack(images), np.array(labels, np.int64), *clean, np.stack(position))


def _grey(name: str) -> NDArray[np.float32]:
    """A photograph in [0, 1]."""
    from skimage import color, data  # half a second of import

    pixels = getattr(data, name)()
    return np.asarray(color.rgb2gray(pixels) if pixels.ndim == 3 else pixels / 255, np.float32)


def _places(grey: NDArray[np.float32], settings: PlacesSettings) -> NDArray[np.float64]:
    """Points of a grid, [P, 2], with enough contrast around them, and far enough from the edges for every view."""
    half = settings.patch // 2
    margin = int(np.ceil(settings.patch * settings.zoom * np.sqrt(0.5) + settings.shift)) + 1
    rows, columns = (np.arange(margin, length - margin, settings.step) for length in grey.shape)
    grid = [(r, c) for r in rows for c in columns]
    return np.array(
        [(r, c) for r, c in grid if grey[r - half : r + half, c - half : c + half].std() >= settings.contrast],
        np.float64,
    ).reshape(-1, 2)


def _view(
    grey: NDArray[np.float32], centre: NDArray[np.float64], settings: PlacesSettings, rng: np.random.Generator
) -> NDArray[np.float32]:
    from scipy.ndimage import map_coordinates

    angle = np.deg2rad(rng.uniform(-settings.turn, settings.turn))
    scale = settings.patch / settings.side * settings.zoom ** rng.uniform(-1, 1)
    along = (np.arange(settings.side) - (settings.side - 1) / 2) * scale
    down, across = np.meshgrid(along, along, indexing="ij")
    turned = np.cos(angle) * down - np.sin(angle) * across, np.sin(angle) * down + np.cos(angle) * across
    seen = map_coordinates(grey, [turned[0] + centre[0], turned[1] + centre[1]], order=1)
    lit = seen * (1 + rng.uniform(-settings.light, settings.light))
    return np.asarray(lit.clip(0, 1), np.float32)
