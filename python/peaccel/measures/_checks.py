"""What measures check of distributions, and the dtypes in which they compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import HALVES, Array, dtype_name, is_torch, namespace, require_same_kind

__all__ = ["NORMALS", "cast", "compute_dtype", "double", "order", "require_kind", "require_pair", "total"]

NORMALS = ("normal_isotropic", "normal_diagonal")


def require_kind(owner: str, name: str, d: object, kinds: tuple[str, ...], what: str) -> str:
    """The kind of d, which must be one of these."""
    kind = d.kind if isinstance(d, Distribution) else type(d).__name__
    if kind not in kinds:
        raise TypeError(f"{owner}: {name} must be a distribution {what} ({', '.join(kinds)}), got {kind}")
    return kind


def require_pair(owner: str, pair: dict[str, Any], accepted: list[tuple[str, str]]) -> None:
    """Two distributions of accepted kinds that can be taken row by row."""
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


def compute_dtype(x: Array) -> str:
    """The name of the dtype to compute in: x's own, float32 for halves."""
    name = dtype_name(x)
    return "float32" if name in HALVES else name


def cast(x: Array, dtype: str) -> Array:
    """x in the dtype of this name; x itself where it has it."""
    return x.to(getattr(namespace(x), dtype)) if is_torch(x) else x.astype(dtype, copy=False)


def double(x: Array) -> Array:
    """x in float64."""
    return cast(x, "float64")


def total(x: Array) -> Array:
    """The sum over the last axis, in float64."""
    if is_torch(x):
        return x.sum(-1, dtype=namespace(x).float64)
    return np.einsum("...d->...", x, dtype=np.float64)  # twice as fast as sum, which converts float32 in small pieces


def order(v: float, like: Array) -> Any:
    """An order as the ops take it beside an array of this kind."""
    return v if is_torch(like) else np.asarray(v, np.float64)
