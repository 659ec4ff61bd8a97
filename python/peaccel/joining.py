"""Several batches of distributions as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from peaccel.distributions import Distribution
from peaccel.ops._array import namespace, require_same_kind

__all__ = ["concat"]

D = TypeVar("D", bound=Distribution)


def concat(distributions: Sequence[D]) -> D:
    """One distribution with the items of all, in order.

    Parameters
    ----------
    distributions : sequence of distributions
        At least one; all of one class, dimension, dtype and device, and isotropic with isotropic only.

    Raises
    ------
    TypeError
        If the classes or kinds differ.
    ValueError
        If there is none, or dimensions, dtypes or devices differ.

    Examples
    --------
    >>> pe.concat([pe.Point([[0.0, 1.0]]), pe.Point([[1.0, 0.0], [0.6, 0.8]])])
    Point(N=3, D=2, float64, numpy)
    """
    if not isinstance(distributions, Sequence) or not all(isinstance(d, Distribution) for d in distributions):
        raise TypeError("concat: expected a sequence of distributions")
    if not distributions:
        raise ValueError("concat: expected at least one distribution, got none")
    first = distributions[0]
    for i, d in enumerate(distributions):
        if d.kind != first.kind:
            raise TypeError(f"concat: item {i} is {d!r}, expected the kind of item 0, {first!r}")
        require_same_kind("concat", f"item {i}", d.mu, "item 0", first.mu)
        if (d.dim, d.mu.dtype) != (first.dim, first.mu.dtype):
            raise ValueError(f"concat: item {i} is {d!r}, expected the dimension and dtype of item 0, {first!r}")
    columns = zip(*(d.arrays for d in distributions), strict=True)
    return type(first)(*[namespace(first.mu).concatenate(column) for column in columns])
