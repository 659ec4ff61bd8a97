"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peaccel._utils.suggestions import printable

__all__ = ["print_table"]


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, show_header=bool(header), show_lines=bool(header))
    for row in rows:
        table.add_row(*map(printable, row))
    Console().print(table, markup=False)
