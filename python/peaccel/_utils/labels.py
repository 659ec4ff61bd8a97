"""Ids, labels and matches, as lists, data frames and files hold them, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence, Set
from numbers import Integral
from typing import Any

import numpy as np

from peaccel._utils.arrays import Numpy, on_host
from peaccel._utils.suggestions import require_classes

__all__ = ["alike", "classes_of", "of_one_kind", "plain", "truths"]

NO, YES = "0 0.0 false n no nontarget", "1 1.0 true y yes target"
WORDS = {word: value for value, words in ((False, NO), (True, YES)) for word in words.split()}


def plain(owner: str, name: str, x: Any) -> Numpy:
    """The array of labels in numpy: objects that are all strings, integers or booleans in the dtype of these, and a set
    in the order that it has. Other objects stay."""
    if isinstance(x, Set):
        x = list(x)
    found = on_host(x, owner, name)
    if not found.size and isinstance(x, (list, tuple)):  # of which numpy makes floats
        return found.astype(np.int64)
    if found.dtype.kind == "U" and not isinstance(x, np.ndarray):
        found = np.array(x, object)  # numpy made strings of the numbers among them
    if found.dtype.kind == "T":
        return _strings(found)
    if found.dtype.kind == "O":
        for kind, dtype in ((str, str), (bool | np.bool_, bool), (Integral, np.int64)):
            if found.size and all(isinstance(label, kind) for label in found.flat):
                return _as(found, dtype)
    return found


def _strings(x: Numpy) -> Numpy:
    """Strings of any length as those of one; numpy casts them to objects alone."""
    return x.astype(object).astype(str)


def _as(x: Numpy, dtype: Any) -> Numpy:
    try:
        return x.astype(dtype)
    except OverflowError:  # integers beyond int64, which whoever asks for labels refuses by their dtype
        return x


def classes_of(owner: str, name: str, x: Any) -> Numpy:
    """The class of each item, by labels of one kind, none missing."""
    require_classes(owner, name, x)
    return of_one_kind(owner, name, x, on_host(x, owner, name))


def of_one_kind(owner: str, name: str, x: Any, found: Numpy) -> Numpy:
    """The array of the labels x, which are all words, bytes or numbers: numpy would make words of a list of both."""
    if found.dtype.kind == "T":
        return _strings(found)
    if found.dtype.kind in "OUS" and not (isinstance(x, np.ndarray) and found.dtype.kind in "US"):
        kinds = sorted({_kind(label) for label in np.asarray(x, object).flat})
        if len(kinds) > 1:
            raise ValueError(f"{owner}: {name} holds {' and '.join(kinds)}, expected all of one kind")
    return found


def _kind(label: Any) -> str:
    """Labels of two of these kinds are never equal."""
    return "words" if isinstance(label, str) else "bytes" if isinstance(label, bytes) else "numbers"


def alike(owner: str, names: Sequence[str], one: Numpy, other: Numpy) -> tuple[Numpy, Numpy]:
    """The labels of two sides such that numpy can join them: of integers with and without a sign it would make floats,
    in which large ones that differ are equal.

    Raises
    ------
    ValueError
        One side's labels are of another kind than the other's.
    """
    sides = one, other
    kinds = [_kind(x.flat[0]) for x in sides if x.size]
    if len(set(kinds)) > 1:
        raise ValueError(f"{owner}: {names[0]} are {kinds[0]}, {names[1]} {kinds[1]}: no class is in both")
    if {x.dtype.kind for x in sides} == {"i", "u"}:
        fit = all(x.max(initial=0) <= np.iinfo(np.int64).max for x in sides)
        dtype: Any = np.int64 if fit else object
        return one.astype(dtype), other.astype(dtype)
    return sides


def truths(x: Numpy) -> tuple[Numpy, Numpy]:
    """Which matches say yes, and which say yes or no at all: booleans, 0 and 1, or such words as yes and no, target and
    nontarget."""
    if x.dtype.kind == "U":
        words = x.ravel().tolist()
        means = {word: value for word in set(words) if (value := WORDS.get(word.strip().lower())) is not None}
        known = np.fromiter(map(means.__contains__, words), bool, len(words)).reshape(x.shape)
        yes = {word for word, value in means.items() if value}
        return np.fromiter(map(yes.__contains__, words), bool, len(words)).reshape(x.shape), known
    known = (x == 0) | (x == 1) if x.dtype.kind in "biuf" else np.zeros(x.shape, bool)
    return known & (x == 1), known
