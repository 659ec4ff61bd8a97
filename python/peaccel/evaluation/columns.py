"""Columns of results: a field says in its annotation how it is shown and what it means, and text and page follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.evaluation.formatting import Table
from peaccel.metrics._judged_ranking import ScoredIds
from peaccel.metrics._relation import Relation

__all__ = ["Column", "Metric", "RankedMetric", "by_row", "columns", "explained", "ranked", "table"]

Metric: TypeAlias = Callable[[NDArray[np.int64], Relation], ArrayLike]
"""A function from ranked ids [Q, K], the queries' rows among them, and what is right for each query to its number."""
RankedMetric: TypeAlias = Callable[[ScoredIds, Relation], ArrayLike]
"""The same from ids with their scores, which says what of it equal scores leave to chance."""


@dataclass(frozen=True)
class Column:
    """How a field of a result is shown: ``Annotated[Interval, Column("MAP@R %", "...")]``."""

    head: str
    """The head of the column; of a mapping it holds {} for the key."""
    about: str = ""
    """Meaning of the column, and its better direction."""
    show: Callable[[Any], str] = str
    metric: RankedMetric | None = None
    """The metric of single rankings whose mean the field is, if it is one."""
    pairs: Any = None
    """The `pair_rates.PairMetric` that gives the field, if it is one of pairs."""


def columns(kind: type[Any]) -> dict[str, Column]:
    """The columns of a result by field, in their order, what it inherits last; fields without one are not shown."""
    hints = get_type_hints(kind, include_extras=True)
    inherited = [field.name for base in kind.__bases__ if is_dataclass(base) for field in fields(base)]
    names = [name for name in hints if name not in inherited] + inherited
    found = {name: getattr(hints[name], "__metadata__", (None,))[0] for name in names}
    return {name: column for name, column in found.items() if isinstance(column, Column)}


def ranked(kind: type[Any]) -> dict[str, RankedMetric]:
    """The metrics of a result's fields."""
    return {name: column.metric for name, column in columns(kind).items() if column.metric is not None}


def by_row(metric: Metric) -> RankedMetric:
    """A metric of ids alone, in which items of equal scores stand as searches return them, by their rows; without the
    last column, which is there to show such items."""
    return lambda ranking, truth: metric(ranking.ids[:, :-1], truth)


def explained(*kinds: type[Any]) -> dict[str, str]:
    """Meanings of the columns of some results, by their heads."""
    found = [column for kind in kinds for column in columns(kind).values() if column.about]
    return {column.head.format("k"): column.about for column in found}


def table(results: Sequence[Any], blank: Callable[[Any, str], bool] = lambda result, name: False) -> Table:
    """Results of one kind, a row each; None is blank, as is what `blank` says; what is None in all has no column."""
    rows = []
    for result in results:
        cells: dict[str, str] = {}
        for name, column in columns(type(result)).items():
            value = getattr(result, name)
            if all(getattr(each, name) is None for each in results):
                continue
            for key, x in (value if isinstance(value, Mapping) else {"": value}).items():
                cells[column.head.format(key)] = "" if x is None or blank(result, name) else column.show(x)
        rows.append(cells)
    return tuple(rows[0]), [tuple(row.values()) for row in rows]
