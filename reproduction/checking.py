"""Tables of the documentation that have a file of results, as that file gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reproduction import faces, frozen, kanji, novel
from reproduction.speakers import TABLES, as_text

__all__ = ["recomputed"]


def recomputed() -> Iterator[tuple[Path, str]]:
    """Paths of tables, and the text that each has by its file of results."""
    every = [*frozen.tables(), *faces.tables()]
    for name, header, rows in every:
        yield TABLES / f"{name}.csv", as_text(header, rows)
    yield TABLES / "kanji.csv", as_text(kanji.HEADER, kanji.table())
    yield TABLES / "novel.csv", as_text(novel.HEADER, novel.rows())
