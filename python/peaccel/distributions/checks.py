"""Checks of arguments that scores, verbs and measures share, and the dtypes and orders that their kernels take."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from peaccel._utils.arrays import (
    HALVES,
    Array,
    array_from,
    describe,
    device_of,
    dtype_name,
    is_torch,
    require_same_kind,
)
from peaccel.distributions.classes import Distribution

__all__ = [
    "EUCLIDEAN",
    "NORMALS",
    "checked_candidates",
    "checked_k",
    "compute_dtype",
    "converted",
    "order",
    "plural",
    "require_distribution",
    "require_kind",
    "require_pair",
]

NORMALS = ("normal_isotropic", "normal_diagonal")
EUCLIDEAN = (*NORMALS, "point")  # kinds of items whose means may lie anywhere in space

K_MAX = 2**31 - 1


# -- dtypes and orders -------------------------------------------------------------------------------------------------


def compute_dtype(x: Array) -> str:
    """The name of the dtype in which kernels compute: that of x, but float32 for 16-bit floats."""
    name = dtype_name(x)
    return "float32" if name in HALVES else name


def converted(d: Distribution, dtype: str) -> Distribution:
    """The items in the dtype of this name; d itself where it has it already."""
    return d if d.home.dtype == dtype else d.to(dtype)


def order(v: float, like: Array) -> Any:
    """The order of a Bessel function, as an op takes it beside an array of this kind."""
    return v if is_torch(like) else np.asarray(v, np.float64)


# -- distributions -----------------------------------------------------------------------------------------------------


def require_distribution(owner: str, name: str, d: object) -> None:
    """Refuse anything but a distribution: TypeError."""
    if not isinstance(d, Distribution):
        hint = "; plain vectors go in pe.Point(x)" if is_torch(d) or isinstance(d, np.ndarray) else ""
        raise TypeError(f"{owner}: {name} must be a distribution, got {type(d).__name__}{hint}")


def require_kind(owner: str, name: str, d: object, kinds: tuple[str, ...], what: str) -> str:
    """The kind of d, which must be one of these and not negative; `what` says in the error what they have in common."""
    kind = d.kind if isinstance(d, Distribution) else type(d).__name__
    if kind not in kinds:
        raise TypeError(f"{owner}: {name} must be a distribution {what} ({', '.join(kinds)}), got {kind}")
    assert isinstance(d, Distribution)
    d.check_rows()
    return kind


def require_pair(owner: str, pair: dict[str, Any], accepted: list[tuple[str, str]]) -> None:
    """Refuse two distributions, by the names of the arguments, that are negative or cannot be taken row by row."""
    for name, d in pair.items():
        if not isinstance(d, Distribution):
            raise TypeError(f"{owner}: {name} must be a distribution, got {type(d).__name__}")
    (first, a), (second, b) = pair.items()
    if (a.kind, b.kind) not in accepted:
        known = ", ".join(f"{x} x {y}" for x, y in accepted)
        raise TypeError(f"{owner}: no closed form for {a.kind} x {b.kind} ({first} x {second}), only {known}")
    require_same_kind(owner, second, b.mu, first, a.mu)
    if a.dim != b.dim:
        raise ValueError(f"{owner}: dim of {second} is {b.dim}, expected {a.dim} like {first}")
    if len(a) != len(b):
        raise ValueError(f"{owner}: {second} has {len(b)} items, expected {len(a)} like {first}")
    if a.mu.dtype != b.mu.dtype:
        raise ValueError(f"{owner}: {second} has dtype {dtype_name(b.mu)}, expected {dtype_name(a.mu)} like {first}")
    for d in (a, b):
        d.check_rows()


def plural(device: str) -> str:
    """How error messages describe arrays on a device, such as "torch tensors on cpu"."""
    return describe(device).removeprefix("a ").replace("array", "arrays").replace("tensor", "tensors")


# -- retrieval ---------------------------------------------------------------------------------------------------------


def checked_k(owner: str, k: int, name: str = "k") -> int:
    """How many items are to be found, an integer from 1 on."""
    if isinstance(k, bool):
        raise TypeError(f"{owner}: {name} must be an integer, got bool")
    try:
        k = k if isinstance(k, int) else operator.index(k)  # torch.compile makes constants of it
    except TypeError:
        raise TypeError(f"{owner}: {name} must be an integer, got {type(k).__name__}") from None
    if not 1 <= k <= K_MAX:
        raise ValueError(f"{owner}: {name} is {k}, expected 1 .. {K_MAX}")
    return k


def checked_candidates(owner: str, queries: Distribution, candidates: Array) -> Array:
    """The candidates as int64 [Q, K], of the kind of array of the queries."""
    if type(candidates) is not np.ndarray and not is_torch(candidates):
        try:
            candidates = array_from(owner, "candidates", candidates)
            candidates = candidates if candidates.size else candidates.astype(np.int64)  # an empty list has no dtype
        except ValueError:
            raise ValueError(f"{owner}: candidates have rows of different lengths, expected [Q, K]") from None
    if candidates.ndim != 2 or candidates.shape[0] != len(queries.mu):
        shape = tuple(candidates.shape)
        raise ValueError(f"{owner}: candidates have shape {shape}, expected ({len(queries)}, K): a row per query")
    name = dtype_name(candidates)
    if not name.startswith(("int", "uint")):
        raise ValueError(f"{owner}: candidates have dtype {name}, expected an integer dtype")
    device, expected = device_of(candidates), queries.home.device
    if device != expected:
        raise TypeError(f"{owner}: candidates are {plural(device)}, expected {plural(expected)} like queries")
    if expected != "numpy":
        return candidates.long()
    if name == "uint64" and candidates.size and candidates.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{owner}: candidates hold id {candidates.max()}, beyond int64")
    return candidates.astype(np.int64, copy=False)
