"""Fits that commands read from files, and apply to the items of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel.distributions import Distribution
from peaccel.fits.plda import Plda
from peaccel.fits.records import Calibration, Centre, Prior
from peaccel.io.distribution_files import items_in_file
from peaccel.io.fits import fingerprint
from peaccel.scores import SCORES, Score

__all__ = ["AppliedFits", "read_fit", "with_prior"]

F = TypeVar("F")


@dataclass(frozen=True)
class AppliedFits:
    """Fits that are applied to items as they are read, in this order."""

    calibrations: tuple[Calibration | None, Calibration | None]
    """Of the queries and of the gallery."""
    centre: Centre | None
    plda: Plda | None
    skip_bad: bool = False
    """Whether items that are NaN or null are left out."""

    @property
    def of_two_sides(self) -> bool:
        """Whether the same items are others as queries than in the gallery."""
        return self.centre is not None or self.calibrations[0] != self.calibrations[1]

    def of_queries(self, path: Path) -> Distribution:
        """The items of a file as queries."""
        return self.read(path, 0)[0]

    def of_gallery(self, path: Path) -> Distribution:
        """The items of a file as those of a gallery."""
        return self.read(path, 1)[0]

    def __str__(self) -> str:
        """The fits that were applied, as files of thresholds have them."""
        one, other = self.calibrations
        fits = one, None if other == one else other, self.centre, self.plda
        return ", ".join(fingerprint(fit) for fit in fits if fit is not None) or "none"

    def read(self, path: Path, side: int) -> tuple[Distribution, NDArray[np.bool_] | None]:
        """The items of a file as queries (0) or as those of a gallery (1), and by row whether it was kept; None for
        all."""
        d: Distribution
        (d, _, kept), calibration = items_in_file(path, self.skip_bad), self.calibrations[side]
        try:
            d = d if calibration is None else calibration(d)
            if self.centre is not None:
                d = (self.centre.of_queries, self.centre.of_gallery)[side](d)
            return (d if self.plda is None else self.plda.transform(d)), kept
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None


def read_fit(path: Path, kind: type[F]) -> F:
    """The fit of a file, which must be of this kind."""
    fit = io.read_fit(path)
    if not isinstance(fit, kind):
        found = "shift" if isinstance(fit, float) else type(fit).__name__.lower()
        raise ValueError(f"{path}: is a {found}, expected a {kind.__name__.lower()}")
    return fit


def with_prior(named: Sequence[Score], path: Path | None) -> list[Score]:
    """The scores, with the prior of a file where they lack one; a file that no score needs is refused."""
    if path is None:
        return [*named]
    if not any(score.lacks("prior") for score in named):
        takers = ", ".join(score.name for score in SCORES.values() if score.lacks("prior"))
        found = ", ".join(score.label for score in named) or "none"
        raise ValueError(f"--prior is for score {takers} without a prior of its own, got score {found}")
    prior = read_fit(path, Prior)
    return [score.fitted("prior", prior) if score.lacks("prior") else score for score in named]
