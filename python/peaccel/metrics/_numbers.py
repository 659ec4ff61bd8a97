"""The arguments of metrics as checked arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import NotArrayError, array_from, bounded, is_torch, on_host, require_numbers
from peaccel._utils.labels import of_one_kind, plain, truths
from peaccel._utils.suggestions import require_classes

__all__ = [
    "as_array",
    "as_classes",
    "as_flags",
    "as_numbers",
    "as_ranks",
    "as_shares",
    "bin_edges",
    "require_length",
    "require_unit",
]


def as_array(owner: str, name: str, x: ArrayLike, shape: str, dtype: Any = None) -> NDArray[Any]:
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
    return of_one_kind(owner, name, x, as_array(owner, name, x, shape))


def as_numbers(owner: str, name: str, x: ArrayLike, shape: str = "(N,)", **reasons: str) -> NDArray[np.float64]:
    """Numbers in float64, at least one and none of them NaN, nor what `require_numbers` has a reason to refuse."""
    array = as_array(owner, name, x, shape, np.float64)
    if not array.size:
        raise ValueError(f"{owner}: {name} has shape {array.shape}, expected {shape} with {shape[1]} > 0")
    require_numbers(owner, name, array, **reasons)
    return array


def as_ranks(owner: str, name: str, x: ArrayLike, **reasons: str) -> NDArray[np.float64]:
    """[N] numbers as `as_numbers` checks them, to be ranked and parted by thresholds: `bounded` in their dtype."""
    return bounded(as_numbers(owner, name, x, **reasons), as_array(owner, name, x, "(N,)").dtype)


def as_flags(owner: str, name: str, x: ArrayLike) -> NDArray[np.bool_]:
    """Booleans, numbers that are 0 or 1, or such words as yes and no."""
    words = plain(owner, name, x)
    if words.dtype.kind == "U":
        yes, known = truths(as_array(owner, name, words, "(N,)"))
        if not known.all():
            other = str(words[np.argmin(known)])
            raise ValueError(
                f"{owner}: {name} has {other!r}, expected only 0 and 1, booleans, or words such as yes and no"
            )
        return yes
    array = as_numbers(owner, name, x)
    if not np.isin(array, (0, 1)).all():
        other = array[~np.isin(array, (0, 1))][0]
        raise ValueError(f"{owner}: {name} has {other:g}, expected only 0 and 1, or booleans")
    return array.astype(np.bool_)


def as_shares(owner: str, name: str, x: ArrayLike) -> NDArray[np.float64]:
    """Shares of items to reject, which must be in [0, 1)."""
    array = as_numbers(owner, name, x, "(S,)")
    if not np.all((array >= 0) & (array < 1)):
        raise ValueError(f"{owner}: {name} span {array.min()}..{array.max()}, expected [0, 1)")
    return array


def require_length(owner: str, name: str, x: NDArray[Any], other_name: str, other: NDArray[Any]) -> None:
    """Refuse two arrays of which one has another length."""
    if len(x) != len(other):
        raise ValueError(f"{owner}: {name} has shape {x.shape}, expected ({len(other)},) like {other_name}")


def require_unit(owner: str, name: str, x: NDArray[np.float64]) -> None:
    """Refuse numbers outside [0, 1]."""
    if not np.all((x >= 0) & (x <= 1)):
        raise ValueError(f"{owner}: {name} span {x.min():g}..{x.max():g}, expected [0, 1]")


def bin_edges(x: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """[bins + 1]: the edges of bins of equal width from the least number to the greatest.

    Numbers that rounding alone tells apart lie in the middle of bins that are wide enough to be told apart.
    """
    low, high = x.min() / 2, x.max() / 2  # halves, as the difference of large numbers may overflow
    least = 2 * bins * np.spacing(max(-low, high))
    if high - low < least:
        low, high = low - max(least, 0.25), high + max(least, 0.25)
    return 2 * np.linspace(low, high, bins + 1)
