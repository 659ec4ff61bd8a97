"""Wording of errors about unknown names and unlabelled items."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from peaccel._utils.arrays import array_from, is_masked, is_torch, on_host
from peaccel._utils.words import place_of, plain_name, targets

__all__ = ["printable", "require_classes", "unknown"]

LISTED = 50
"""How many names a message may list where none is near; of more the nearest is named in any case."""


def unknown(what: str, name: str, known: Iterable[str], nearness: float = 0.4) -> str:
    """A message such as "unknown score 'mlx'; did you mean 'mls'?", or one that lists the names where none is near.

    A word of the field, such as "euclidean", names what it means among these. `nearness`, 0 .. 1, is how near another
    name must be, such as .75 for a slip of the finger.
    """
    names = list(known)
    spelled, place = {plain_name(known): known for known in names}, place_of(name)
    meant = [spelled[last] for target in targets(place or "") if (last := target.rpartition(".")[2]) in spelled]
    if place and meant and targets(place) != [place]:
        return f"unknown {what} {name!r}; {place}"
    if same := spelled.get(plain_name(name), meant[0] if meant else None):
        return f"unknown {what} {name!r}; did you mean {same!r}?"
    near = difflib.get_close_matches(name, names, n=1, cutoff=nearness if len(names) <= LISTED else 0)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


def printable(text: str) -> str:
    """A text, perhaps of somebody else's file, without characters that move a terminal's cursor: they are spelled."""
    return "".join(x if x.isprintable() or x == "\n" else repr(x)[1:-1] for x in text)


def require_classes(owner: str, name: str, x: Any, expected: str = "the class of each item") -> None:
    """Refuse classes of items, an array, a list or a column, of which some are missing: None, NaN, pd.NA, NaT, masked.

    They would be taken for one class, or for one each.
    """
    missing = _missing(owner, name, x)
    if missing.any():
        what = f"{missing.sum()} of the {missing.size} {name} are missing (None, NaN or masked)"
        row = np.argwhere(missing)[0, 0]
        raise ValueError(f"{owner}: {what}, the first in row {row}; expected {expected}")


def _missing(owner: str, name: str, x: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if is_masked(x):
        return np.asarray(x.mask | np.zeros(x.shape, bool))
    array = x if isinstance(x, np.ndarray) else on_host(x) if is_torch(x) else array_from(owner, name, x, object)
    if not array.ndim:  # no classes of items, which the shape will say
        return np.zeros(0, bool)
    if array.dtype.kind != "O":
        return np.asarray(array != array)  # noqa: PLR0124  (NaN and NaT are not themselves)
    return np.array([label is None or _is_not_itself(label) for label in array.ravel()], bool)


def _is_not_itself(label: Any) -> bool:
    try:
        return isinstance(label, Hashable) and bool(label != label)  # noqa: PLR0124
    except TypeError:  # pandas.NA says of nothing whether it is equal
        return True
