"""Which columns of a table, or arrays of a file, are the items', and which rows of these are kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import Numpy
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.reading import named
from peaccel._utils.table_paths import columns_in, file_of
from peaccel.distributions import Distribution
from peaccel.io._arrow_columns import require_column
from peaccel.io.states import distribution_of

__all__ = ["MEANS", "PARAMETERS", "ReadItems", "checked_items", "chosen_columns", "chosen_in"]

MEANS = ("mu", "embeddings", "embedding", "vectors", "vector", "features", "x")
PARAMETERS = ("var", "kappa", "scale")
# Names of uncertainties that are none of the parameters: items without theirs would be points without a word.
OTHERS = "sigma sigma_sq std log_var logvar log_sigma log_variance variance variances precision concentration cov"

SHOWN = 3  # rows that an error names


class ReadItems(NamedTuple):
    """Items as a file holds them."""

    distribution: Distribution[Numpy]
    ids: NDArray[Any] | None
    """[N] int64 or strings; None where none are asked for."""
    kept: NDArray[np.bool_] | None
    """By row of the file, whether it was kept; None for all."""


def chosen_columns(
    owner: str, names: Sequence[str], columns: Mapping[str, str], name_it: str = "mu=NAME"
) -> dict[str, str]:
    """The column of each array of the items, by "mu", "var", "kappa", "scale" and "id", of which some are named.

    `name_it` is how the caller of the reader names a column, for messages.
    """
    means = [columns["mu"]] if "mu" in columns else [name for name in MEANS if name in names]
    if "mu" not in means and len(means) != 1:
        what = f"{' and '.join(means)} could both be the means" if means else "no array of means"
        raise ValueError(f"{owner}: {what}, found {named(names)}; expected {' or '.join(MEANS)}, or {name_it}")
    mu = columns.get("mu", "mu" if "mu" in means else means[0])
    found = {key: columns[key] for key in PARAMETERS if key in columns}
    if not found:
        found = {key: key for key in PARAMETERS if key in names and key != mu}
    if len(found) > 1:
        raise ValueError(f"{owner}: {' and '.join(found)} are both there, expected one; name it: var=NAME, say")
    if not (found or columns) and (other := [name for name in OTHERS.split() if name in names]):
        expected = f"var (VARIANCE), kappa or scale, or {name_it} for the means alone"
        raise ValueError(f"{owner}: {other[0]} is no parameter, found {named(names)}; expected {expected}")
    chosen = {"mu": mu, **found} | ({"id": columns["id"]} if "id" in columns else {})
    for name in chosen.values():
        require_column(owner, names, name)
    return chosen


def chosen_in(path: PathLike, names: Sequence[str]) -> dict[str, str]:
    """The column of each array of a file's items, some of which the path names; an .npy file's array has no name."""
    if tuple(names) == ("",):
        return {"mu": ""}
    columns = {key or "mu": name for key, name in columns_in(path).items()}
    return chosen_columns(f"{path}", names, columns, f"{file_of(path)}:mu=NAME")


def checked_items(
    owner: str,
    arrays: Mapping[str, Any],
    ids: NDArray[Any] | None = None,
    first: int = 0,
    skip_bad: bool | None = None,
) -> ReadItems:
    """The validated items of arrays, whose rows errors count from `first`.

    Rows with NaN, which null became, are left out or refused; None of a caller that cannot leave them out.
    """
    try:
        d: Distribution[Numpy] = distribution_of(**arrays)
        try:
            return ReadItems(d.validate(first), ids, None)
        except ValueError:
            found = {name: np.isnan(x).reshape(len(d), -1).any(1) for name, x in zip(d._names, d.arrays, strict=True)}
            bad = np.logical_or.reduce(list(found.values()))
            if not bad.any():
                raise
        where = " and ".join(name for name, x in found.items() if x.any())
        rows = first + np.flatnonzero(bad)
        count = f"in {len(rows)} of {len(d)} rows:" if len(rows) > 1 else "in row"
        if not skip_bad:
            more = ", ..." if len(rows) > SHOWN else ""
            hint = "" if skip_bad is None else "; skip_bad=True or --skip-bad leaves such rows out"
            raise ValueError(f"{where} is NaN or null {count} {named(rows[:SHOWN])}{more}{hint}")
        kept = ReadItems(d[~bad].validate(), None if ids is None else ids[~bad], ~bad)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None
    warnings.warn(f"{owner}: left out what is NaN or null {count} {named(rows)}", stacklevel=3)
    return kept
