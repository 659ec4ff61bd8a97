"""Warnings that name the caller's line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = ["warn"]

PACKAGE = f"{Path(__file__).parents[1]}/"


def warn(message: str) -> None:
    """Warn at the line outside the package that has led here, however many of its functions lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
