"""Ids, labels and matches, as lists, data frames and files hold them, as plain arrays."""

from __future__ import annotations

from collections.abc import Set
from numbers import Integral
from typing import Any

import numpy as np

from peaccel._utils.arrays import Numpy, on_host

__all__ = ["plain", "truths"]

NO, YES = "0 0.0 false no nontarget", "1 1.0 true yes target"
WORDS = {word: value for value, words in ((False, NO), (True, YES)) for word in words.split()}


def plain(owner: str, name: str, x: Any) -> Numpy:
    """The array of labels in numpy: objects that are all strings, integers or booleans in the dtype of these, and a set
    in the order that it has. Other objects stay."""
    if isinstance(x, Set):
        x = list(x)
    found = on_host(x, owner, name)
    if found.dtype.kind == "U" and not isinstance(x, np.ndarray):
        found = np.array(x, object)  # numpy made strings of the numbers among them
    if found.dtype.kind == "T":
        return found.astype(str)
    if found.dtype.kind == "O":
        for kind, dtype in ((str, str), (bool | np.bool_, bool), (Integral, np.int64)):
            if found.size and all(isinstance(label, kind) for label in found.flat):
                return _as(found, dtype)
    return found


def _as(x: Numpy, dtype: Any) -> Numpy:
    try:
        return x.astype(dtype)
    except OverflowError:  # integers beyond int64, which whoever asks for labels refuses by their dtype
        return x


def truths(x: Numpy) -> tuple[Numpy, Numpy]:
    """Which matches say yes, and which say yes or no at all: booleans, 0 and 1, or such words as yes and no, target and
    nontarget."""
    if x.dtype.kind == "U":
        words, places = np.unique(x, return_inverse=True)
        means = [WORDS.get(str(word).strip().lower()) for word in words]
        of_words = np.array([[value is True, value is not None] for value in means]).reshape(-1, 2)
        return of_words[places.reshape(x.shape), 0], of_words[places.reshape(x.shape), 1]
    known = (x == 0) | (x == 1) if x.dtype.kind in "biuf" else np.zeros(x.shape, bool)
    return known & (x == 1), known
