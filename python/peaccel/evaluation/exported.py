"""Results in the forms that other programs read: dicts, pandas, LaTeX and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.suggestions import unknown
from peaccel.evaluation.columns import columns
from peaccel.evaluation.formatting import Table, as_plain, save_json
from peaccel.evaluation.intervals import Interval

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Exported"]

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


class Exported(ABC):
    """The base class of results, which are dataclasses with tables of records."""

    @abstractmethod
    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as numbers, words, lists and dicts, as JSON has them; NaN and infinity are None."""
        found: dict[str, Any] = as_plain(self)
        return found

    def to_pandas(self, field: str | None = None) -> DataFrame:
        """Records as a pandas table: a row each, and of an interval the columns NAME, NAME_low and NAME_high.

        Parameters
        ----------
        field
            The field that holds the records; None: the first one, such as ``scores``.

        Raises
        ------
        ImportError
            pandas is not installed.
        ValueError
            No field of records has this name.
        """
        from pandas import DataFrame

        known = {x.name: records for x in fields(self) if (records := _records(getattr(self, x.name)))}  # type: ignore[arg-type]
        if field is not None and field not in known:
            raise ValueError(f"to_pandas: {unknown('field', field, known)}")
        return DataFrame([_row(x) for x in known[field or next(iter(known))]])

    def to_latex(self, title: str | None = None) -> str:
        """A table as LaTeX with the rules of booktabs, cells as in the text.

        Parameters
        ----------
        title
            The title of the table in ``tables()``; None: the first one.

        Raises
        ------
        ValueError
            No table has this title.
        """
        found = self.tables()
        if title is not None and title not in found:
            raise ValueError(f"to_latex: {unknown('title', title, found)}")
        header, rows = found[title or next(iter(found))]
        lines = [" & ".join(map(_escaped, cells)) + r" \\" for cells in (header, *rows)]
        body = ["\\toprule", lines[0], "\\midrule", *lines[1:], "\\bottomrule"]
        return "\n".join([f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", *body, "\\end{tabular}"])

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; what is not finite becomes null."""
        save_json(path, self)


def _records(value: Any) -> tuple[Any, ...]:
    """The value, if it is a tuple of dataclasses; else none."""
    return value if isinstance(value, tuple) and all(is_dataclass(x) for x in value) else ()


def _row(record: Any) -> dict[str, Any]:
    """The numbers and words of a record by name; curves and other records are left out."""
    row: dict[str, Any] = {}
    for name in {**columns(type(record)), **{x.name: None for x in fields(record)}}:
        value = getattr(record, name)
        parts = {f"{name}_{key}": x for key, x in value.items()} if isinstance(value, Mapping) else {name: value}
        for key, x in parts.items():
            if isinstance(x, Interval):
                row |= {key: x.value, f"{key}_low": x.low, f"{key}_high": x.high}
            elif x is None or isinstance(x, (str, int, float)):
                row[key] = x
    return row


def _escaped(cell: str) -> str:
    """Text as LaTeX has it."""
    return "".join(SPECIAL.get(x, f"\\{x}" if x in "&%$#_{}" else x) for x in cell)
