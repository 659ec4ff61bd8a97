"""Numbers, flags, classes and shares as checked arrays: arguments of metrics, fits and evaluations."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import NotArrayError, array_from, bounded, is_torch, on_host, require_numbers
from peaccel._utils.labels import of_one_kind, plain, truths
from peaccel._utils.suggestions import require_classes

__all__ = [
    "array_of",
    "as_classes",
    "as_flags",
    "as_numbers",
    "as_ranks",
    "as_shares",
    "class_numbers",
    "require_length",
    "require_probabilities",
    "require_shares",
]


def array_of(owner: str, name: str, x: ArrayLike, shape: str, dtype: Any = None) -> NDArray[Any]:
    """An array, a list, a column of a table or a tensor as an array of as many axes as "(Q, K)" has."""
    x = on_host(x, owner, name) if is_torch(x) else x
    try:
        array = array_from(owner, name, x, dtype)
    except NotArrayError:
        raise
    except (TypeError, ValueError) as error:  # rows of different lengths, words for numbers
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{owner}: {name} cannot be an array of shape {shape} ({reason})") from None
    if array.ndim != len(shape.strip("(),").split(",")):
        raise ValueError(f"{owner}: {name} has shape {array.shape}, expected {shape}")
    return array


def as_classes(owner: str, name: str, x: ArrayLike, shape: str = "(N,)") -> NDArray[Any]:
    """The classes of items, by labels of one kind, of which none is missing."""
    require_classes(owner, name, x)
    return of_one_kind(owner, name, x, array_of(owner, name, x, shape))


def class_numbers(owner: str, name: str, classes: ArrayLike, length: int) -> NDArray[np.int64]:
    """[length] the number of each item's class, from 0 on."""
    names = as_classes(owner, name, classes, f"({length},)")
    if len(names) != length:
        raise ValueError(f"{owner}: {name} has shape {names.shape}, expected ({length},)")
    return np.asarray(np.unique(names, return_inverse=True)[1])


def as_numbers(owner: str, name: str, x: Any, shape: str = "(N,)", **reasons: str) -> NDArray[np.float64]:
    """Numbers in float64, at least one and none of them NaN, nor what `require_numbers` has a reason to refuse."""
    array = array_of(owner, name, x, shape, np.float64)
    if not array.size:
        raise ValueError(f"{owner}: {name} has shape {array.shape}, expected {shape} with {shape[1]} > 0")
    require_numbers(owner, name, array, **reasons)
    return array


def as_ranks(owner: str, name: str, x: ArrayLike, **reasons: str) -> NDArray[np.float64]:
    """[N] numbers as `as_numbers` checks them, to be ranked and parted by thresholds: `bounded` in their dtype."""
    return bounded(as_numbers(owner, name, x, **reasons), array_of(owner, name, x, "(N,)").dtype)


def as_flags(owner: str, name: str, x: ArrayLike, shape: tuple[int, ...] | None = None) -> NDArray[np.bool_]:
    """Booleans of a shape, or [N] and at least one, of booleans, of 0 and 1, or of such words as yes and no."""
    found = plain(owner, name, x)
    if found.dtype.kind == "O":
        require_classes(owner, name, x, "booleans")
        found = array_of(owner, name, found, "(N,)" if shape is None else str(shape), np.float64)
    if found.shape != shape and (shape is not None or found.ndim != 1 or not len(found)):
        raise ValueError(f"{owner}: {name} has shape {found.shape}, expected {shape or '(N,) with N > 0'}")
    yes, known = truths(found)
    if not known.all():
        place = tuple(map(int, np.argwhere(~known)[0]))
        what = f"{name} has {found[place]} in row {place[0]}"
        raise ValueError(f"{owner}: {what}, expected only 0 and 1, booleans, or words such as yes and no")
    return np.asarray(yes, np.bool_)


def as_shares(owner: str, name: str, x: ArrayLike) -> NDArray[np.float64]:
    """Shares of items to reject, which must be in [0, 1)."""
    array = as_numbers(owner, name, x, "(S,)")
    if not np.all((array >= 0) & (array < 1)):
        raise ValueError(f"{owner}: {name} span {array.min()}..{array.max()}, expected [0, 1)")
    return array


def require_shares(owner: str, **shares: Any) -> None:
    """Refuse what is no number between 0 and 1."""
    for name, value in shares.items():
        if not (isinstance(value, (int, float, np.floating)) and 0 < value < 1):
            raise ValueError(f"{owner}: {name} is {value!r}, expected a number between 0 and 1")


def require_length(owner: str, name: str, x: NDArray[Any], other_name: str, other: NDArray[Any]) -> None:
    """Refuse two arrays of which one has another length."""
    if len(x) != len(other):
        raise ValueError(f"{owner}: {name} has shape {x.shape}, expected ({len(other)},) like {other_name}")


def require_probabilities(owner: str, name: str, x: NDArray[np.float64]) -> None:
    """Refuse numbers outside [0, 1]."""
    if not np.all((x >= 0) & (x <= 1)):
        raise ValueError(f"{owner}: {name} span {x.min():g}..{x.max():g}, expected [0, 1]")
