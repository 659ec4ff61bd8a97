"""Wording of errors about unknown names and unlabelled items."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["require_classes", "unknown"]

LISTED = 50
"""How many names a message may list where none is near; of more the nearest is named in any case."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message such as "unknown score 'mlx'; did you mean 'mls'?", or one that lists the names where none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4 if len(names) <= LISTED else 0)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


def require_classes(owner: str, name: str, labels: np.ndarray[Any, Any]) -> None:
    """Refuse labels [N] with NaN or None among them: items of unknown classes would be taken for one class."""
    missing = (labels != labels) | (labels == None)  # noqa: PLR0124, E711  (NaN is not itself; both by element)
    if missing.any():
        row = int(np.argmax(missing))
        raise ValueError(f"{owner}: {name} hold {labels[row]} in row {row}, expected the class of each item")
