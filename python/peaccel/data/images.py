"""Pixels, read when they are asked for, and the corruption by which image quality is known."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageRows", "centre_crop", "crop_sizes", "shorter_side", "unreadable"]

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that images are read as, those of the suffixes of `_listings`. Pillow goes by content, and hands others to
other programs, such as EPS to Ghostscript. Published data sets name some images by the suffix of another of these."""

# Threads that open images, which wait where the disk is a network away, and how many images each takes at a time.
OPENERS, TOGETHER = 8, 128
LOOKED_AT = 100  # images whose headers tell the size of all


@dataclass(frozen=True)
class ImageRows:
    """Images by row: a data set as torch's `DataLoader` takes it.

    An image that is missing or damaged is named when its row is asked for: FileNotFoundError, ValueError. Sizes must be
    as many as paths: ValueError.
    """

    paths: Sequence[str]
    """The paths of N images, such as `Images.paths`."""
    transform: Callable[[Image], Any] | None = None
    """The transform of an RGB image, see `peaccel.data.transforms`; None for its pixels, uint8 [H, W, 3]."""
    augmentation: Callable[[Image], Any] | None = None
    """The transform in the passes of training, if that is another."""
    sizes: NDArray[np.float64] | None = None
    """[N] in (0, 1], of the square that is cut out of each image first, see `centre_crop`; None for whole images."""

    def __post_init__(self) -> None:
        """Refuse sizes of other images."""
        if self.sizes is not None and len(self.sizes) != len(self.paths):
            raise ValueError(f"ImageRows: sizes has {len(self.sizes)} items, expected {len(self.paths)} like paths")

    def augmented(self) -> ImageRows:
        """The same images as the passes of training see them."""
        return self if self.augmentation is None else replace(self, transform=self.augmentation)

    def __len__(self) -> int:
        """Count the images."""
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        """Read an image, crop it, and transform it."""
        image = _read(self.paths[row])
        if self.sizes is not None:
            image = centre_crop(image, float(self.sizes[row]))
        return np.asarray(image) if self.transform is None else self.transform(image)


def unreadable(
    paths: Sequence[str], done: Callable[[int], None] = lambda count: None, whole: bool = False
) -> dict[str, str]:
    """The images that cannot be read, with the reason: by path, in the order of `paths`.

    Of headers that takes 0.1 ms for each on a local disk, 20 s for 200 000; of pixels some milliseconds for each.

    Parameters
    ----------
    paths
        The paths of N images.
    done
        Is told how many were looked at since it was last told.
    whole
        Whether all pixels are read, or headers alone: then an image that is cut off further down is named when its row
        is asked for.
    """
    faults: dict[str, str] = {}
    with ThreadPoolExecutor(OPENERS) as pool:
        together = [paths[i : i + TOGETHER] for i in range(0, len(paths), TOGETHER)]
        for some in pool.map(partial(_faults, whole=whole), together):
            faults |= {path: fault for path, fault in some if fault}
            done(len(some))
    return faults


def shorter_side(paths: Sequence[str]) -> int | None:
    """The median of the images' shorter sides, in pixels, of 100 images evenly spaced; None where none can be read."""
    sides, pillow = [], _pillow()
    for path in paths[:: -(-len(paths) // LOOKED_AT) or 1]:
        bad = suppress(OSError, ValueError, SyntaxError, pillow.DecompressionBombError)  # which `unreadable` names
        with bad, pillow.open(_regular(path), formats=FORMATS) as image:
            sides.append(min(image.size))
    return int(np.median(sides)) if sides else None


def crop_sizes(n: int, seed: int = 0, least: float = 0.5) -> NDArray[np.float64]:
    """How much of each image of a corrupted test set is left, its quality label: drawn from U(least, 1).

    Parameters
    ----------
    n
        Images.
    seed
        Equal seeds give equal sizes.
    least
        In (0, 1]: 0.5 as the paper says, 0.25 as its code has it.

    Returns
    -------
    [n].

    Raises
    ------
    ValueError
        least is out of its range.

    Source: "Probabilistic Embeddings Revisited", section 5.1.
    """
    if not 0 < least <= 1:
        raise ValueError(f"crop_sizes: least is {least}, expected a share above 0, at most 1")
    return np.random.default_rng(seed).uniform(least, 1, n)


def centre_crop(image: Image, size: float) -> Image:
    """The square in the middle of an image.

    Parameters
    ----------
    image
        An image of any mode.
    size
        Side of the square as a share of the image's shorter side, in (0, 1]; rounded to pixels, to 1 at least.
    """
    width, height = image.size
    side = max(1, round(min(width, height) * size))
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("images need Pillow: pip install peaccel[train]") from None
    return Image


def _regular(path: str) -> str:
    """The path of what is a file, and no pipe or device, which would be waited for."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("is no regular file")
    return path


def _faults(paths: Sequence[str], whole: bool) -> list[tuple[str, str]]:
    """Paths of images with the faults of their headers, or of all of them, "" where there is none."""
    pillow, faults = _pillow(), []
    for path in paths:
        fault, bad = "", "is no image"
        try:
            with pillow.open(_regular(path), formats=FORMATS) as image:
                bad = "is damaged"
                if min(image.size) < 1:
                    fault = "has no pixels"
                elif whole:
                    image.convert("RGB")
        except FileNotFoundError:
            fault = "is missing"
        except pillow.DecompressionBombError:
            fault = "has more pixels than Pillow takes"
        except (OSError, ValueError, SyntaxError, MemoryError) as error:
            fault = getattr(error, "strerror", None) or bad
        faults.append((path, fault))
    return faults


def _read(path: str) -> Image:
    pillow = _pillow()
    try:
        with pillow.open(_regular(path), formats=FORMATS) as image:
            rgb: Image = image.convert("RGB")
            return rgb
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such image, though it is listed") from None
    # Pillow raises these for damaged files.
    except (OSError, ValueError, SyntaxError, MemoryError, pillow.DecompressionBombError) as error:
        raise ValueError(f"{path}: cannot be read as an image ({error})") from None
