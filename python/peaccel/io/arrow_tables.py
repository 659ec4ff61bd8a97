"""Distributions of Arrow tables, and back: what Parquet, Lance, Polars, DuckDB, pandas and `datasets` hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Numpy, is_torch, on_host, repeated
from peaccel._utils.reading import named
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.io._arrow_columns import COMMON, column_of, ids_of, is_common, numbers_of
from peaccel.io._arrow_sources import Table, arrow, in_blocks, opened
from peaccel.io._item_columns import PARAMETERS, ReadItems, checked_items, chosen_columns
from peaccel.io.states import in_float32, to_state

__all__ = ["ArrowBlocks", "arrow_blocks", "from_arrow", "items_of_table", "to_arrow", "without_bad"]


@overload
def from_arrow(
    source: Any,
    mu: str | None = None,
    var: str | None = None,
    kappa: str | None = None,
    scale: str | None = None,
    ids: None = None,
    *,
    skip_bad: bool = False,
) -> Distribution[Numpy]: ...
@overload
def from_arrow(
    source: Any,
    mu: str | None = None,
    var: str | None = None,
    kappa: str | None = None,
    scale: str | None = None,
    *,
    ids: str,
    skip_bad: bool = False,
) -> tuple[Distribution[Numpy], Numpy]: ...
def from_arrow(
    source: Any,
    mu: str | None = None,
    var: str | None = None,
    kappa: str | None = None,
    scale: str | None = None,
    ids: str | None = None,
    *,
    skip_bad: bool = False,
) -> Distribution[Numpy] | tuple[Distribution[Numpy], Numpy]:
    """The distribution whose items are the rows of a table, and on request their ids.

    Parameters
    ----------
    source
        What gives Arrow: a table, batch, reader, dataset or file of pyarrow; a data frame of Polars or pandas; a
        relation of DuckDB; a dataset or a scanner of Lance; a table or a query of LanceDB; a dataset of Hugging Face's
        `datasets`, selected and shuffled as it is; whatever has ``__arrow_c_stream__`` or ``__arrow_c_array__``, or
        gives such an object by ``.to_reader()``, ``.to_arrow()`` or ``.to_table()``.
    mu
        The column of means, lists of D numbers, all float16, float32 or float64: FixedSizeList, or List where all have
        the same length. None for ``mu``, or else the only one of ``embeddings``, ``embedding``, ``vectors``,
        ``vector``, ``features`` and ``x``.
    var, kappa, scale
        The column of what stands beside mu, of its dtype: numbers, or for ``var`` and ``kappa`` lists of D. ``var`` is
        the VARIANCE, neither sigma nor its logarithm. At most one; without any, the column of one of these three names
        if there is one.
    ids
        The column of ids, integers or strings; None for none.
    skip_bad
        Whether rows that hold NaN or null are left out, which a warning lists, rather than refused.

    Returns
    -------
    distribution or (distribution, ids)
        As `read_distribution` tells its class, of numpy arrays, validated. A column of one chunk is not copied but read
        where it lies; its array cannot be written to. Of several chunks each is copied once. With ids, these too: int64
        [N], or strings [N].

    Raises
    ------
    TypeError
        If the source holds no table.
    ValueError
        If columns are missing, of other types, lengths or dtypes, or values are missing or wrong: naming the column and
        the first such row.
    ImportError
        If pyarrow is not installed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"id": ["a", "b"], "vector": [[0.0, 1.0], [1.0, 0.0]], "var": [0.1, 0.5]})
    >>> pe.io.from_arrow(table, mu="vector")
    Normal(N=2, D=2, isotropic, float64, numpy)
    >>> gallery, ids = pe.io.from_arrow(table, mu="vector", ids="id")
    >>> ids.tolist()
    ['a', 'b']
    """
    opening = opened("from_arrow", source)
    columns = chosen_columns("from_arrow", opening.names, _named(mu=mu, var=var, kappa=kappa, scale=scale, id=ids))
    table = opening.table(list(dict.fromkeys(columns.values())))
    items = items_of_table("from_arrow", table, columns, skip_bad=skip_bad)
    return items.distribution if items.ids is None else (items.distribution, items.ids)


def to_arrow(distribution: Distribution, ids: ArrayLike | None = None, **columns: Any) -> Table:
    """The table of a distribution, which `from_arrow` reads back bit for bit.

    A parameter that is one for all items is that again, where the column's metadata were kept, as by Parquet and Lance.

    Parameters
    ----------
    distribution
        N items, numpy or torch, on any device; bfloat16 becomes float32, directions of unit length. numpy arrays and
        tensors on the CPU whose rows lie side by side are not copied.
    ids
        [N] integers or strings, the column ``id``; None for none.
    columns
        More columns by their names: [N] or [N, D] arrays, or what ``pyarrow.array`` takes.

    Returns
    -------
    pyarrow.Table
        The columns ``id``, ``mu`` and one of ``var``, ``kappa`` and ``scale``, as far as there are any, and the others.
        What has a number in each dimension is a FixedSizeList.

    Raises
    ------
    TypeError
        If distribution is none.
    ValueError
        If a column has another length or no Arrow type, or its name is taken.
    ImportError
        If pyarrow is not installed.

    Examples
    --------
    >>> table = pe.io.to_arrow(pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5]), ids=["a", "b"], year=[2001, 2002])
    >>> table.column_names
    ['id', 'mu', 'var', 'year']
    >>> pe.io.from_arrow(table)
    Normal(N=2, D=2, isotropic, float64, numpy)
    """
    require_distribution("to_arrow", "distribution", distribution)
    pa = arrow()
    stored = in_float32(distribution).detach()
    state = {key: on_host(x) for key, x in to_state(stored).items()}
    fields = state if ids is None else {"id": on_host(ids, "to_arrow", "ids"), **state}
    if taken := fields.keys() & columns.keys():
        raise ValueError(f"to_arrow: column {min(taken)} is there already, expected another name")
    fields |= {name: on_host(x) if is_torch(x) else x for name, x in columns.items()}
    table = pa.table({name: column_of("to_arrow", name, x, len(distribution)) for name, x in fields.items()})
    if stored.common_parameter() is None:
        return table
    place = table.column_names.index(list(state)[-1])
    return table.set_column(place, table.field(place).with_metadata(COMMON), table.column(place))


class ArrowBlocks:
    """The rows of a table as distributions of so many rows each, read anew each time that it is iterated over.

    Attributes
    ----------
    rows
        How many rows a block has; the last one has those that are left.
    ids
        int64 [N], or strings [N]: the ids of all rows, in order, once all blocks were read, so that ``blocks.ids[row]``
        names a row that was found.
    """

    def __init__(self, source: Any, columns: dict[str, str | None], rows: int) -> None:
        self._source = opened("arrow_blocks", source)
        self._columns = chosen_columns("arrow_blocks", self._source.names, _named(**columns))
        self.rows = rows
        self._started = False
        self._ids: Numpy | None = None

    def __iter__(self) -> Iterator[Distribution[Numpy]]:
        if self._started and self._source.once:
            raise ValueError("arrow_blocks: source is a reader that was read already, expected a table or a dataset")
        return self._blocks()

    def _blocks(self) -> Iterator[Distribution[Numpy]]:
        self._started, first, common = True, 0, False
        names: list[Numpy] = []
        batches = self._source.batches(list(dict.fromkeys(self._columns.values())), self.rows)
        for table in in_blocks(batches, self.rows):
            common = common if first else self._has_common(table)
            d, ids, _ = items_of_table("arrow_blocks", table, self._columns, first, common)
            first += len(d)
            if ids is not None:
                names.append(ids)
            yield d
        if names:
            self._ids = np.concatenate(names)

    def _has_common(self, table: Any) -> bool:
        """Whether the first block's parameter is that of all items, for which its column is read before the others.

        A reader, which is read once, could have shown others when items were scored by it already: there it is none.
        """
        row, name = 0, next((self._columns[key] for key in PARAMETERS if key in self._columns), None)
        if name is None or self._source.once or not is_common(table.schema, name):
            return False
        one = numbers_of("arrow_blocks", table.slice(0, 1), name, numbers=True)
        for part in in_blocks(self._source.batches([name], self.rows), self.rows):
            x = numbers_of("arrow_blocks", part, name, row, numbers=True)
            if (x != one).any():
                return False
            row += len(x)
        return True

    @property
    def ids(self) -> Numpy:
        if "id" not in self._columns:
            raise ValueError("arrow_blocks: no column of ids was named")
        if self._ids is None:
            raise ValueError("arrow_blocks: ids are known once all blocks were read")
        return self._ids

    def __repr__(self) -> str:
        columns = ", ".join(f"{'ids' if key == 'id' else key}={name!r}" for key, name in self._columns.items())
        return f"ArrowBlocks({columns}, rows={self.rows})"


def arrow_blocks(
    source: Any,
    mu: str | None = None,
    var: str | None = None,
    kappa: str | None = None,
    scale: str | None = None,
    ids: str | None = None,
    rows: int = 65_536,
) -> ArrowBlocks:
    """The rows of a table as distributions of so many rows each, in order; never are all of them in memory.

    Parameters
    ----------
    source, mu, var, kappa, scale, ids
        As in `from_arrow`. A dataset, a file, a relation or a table can be iterated over more than once, a reader once.
    rows
        How many rows a block has, >= 1; the last one has those that are left.

    Returns
    -------
    ArrowBlocks
        An iterable of validated distributions. Once all were read, its ``ids`` hold the id of each row.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `from_arrow`: of columns at once, of values while they are read, with the number of the row in the table.

    Examples
    --------
    >>> table = pe.io.to_arrow(pe.Point(np.eye(5)), ids=[10, 20, 30, 40, 50])
    >>> blocks = pe.io.arrow_blocks(table, ids="id", rows=2)
    >>> [len(block) for block in blocks]
    [2, 2, 1]
    >>> blocks.ids.tolist()
    [10, 20, 30, 40, 50]
    """
    if not isinstance(rows, int) or rows < 1:
        raise ValueError(f"arrow_blocks: rows is {rows!r}, expected an integer from 1 on")
    return ArrowBlocks(source, {"mu": mu, "var": var, "kappa": kappa, "scale": scale, "id": ids}, rows)


def items_of_table(
    owner: str,
    table: Any,
    columns: Mapping[str, str],
    first: int = 0,
    common: bool = True,
    skip_bad: bool | None = None,
) -> ReadItems:
    """The validated items and ids of a table, whose rows errors count from `first`; `common` is whether a parameter
    that was one for all items may be that again."""
    arrays = {
        key: numbers_of(owner, table, name, first, numbers=key != "mu") for key, name in columns.items() if key != "id"
    }
    for key in arrays.keys() - {"mu"} if common else ():
        x = arrays[key]
        if is_common(table.schema, columns[key]) and len(x) and (x.min(0) == x.max(0)).all():
            arrays[key] = repeated(x[:1].copy(), len(x))
    ids = ids_of(owner, table, columns["id"], first) if "id" in columns else None
    return checked_items(owner, arrays, ids, first, skip_bad)


def without_bad(owner: str, table: Any, columns: Sequence[str], first: int) -> Any:
    """A table, whose rows count from `first`, without those that are NaN or null in some columns, which a warning
    names."""
    bad = np.zeros(len(table), bool)
    for name in columns:
        bad |= np.isnan(numbers_of(owner, table, name, first, numbers=name != "mu")).reshape(len(table), -1).any(1)
    if bad.any():
        rows = named(first + np.flatnonzero(bad))
        warnings.warn(f"{owner}: left out what is NaN or null in row {rows}", stacklevel=2)
    return table.filter(arrow().array(~bad))


def _named(**columns: str | None) -> dict[str, str]:
    return {key: name for key, name in columns.items() if name is not None}
