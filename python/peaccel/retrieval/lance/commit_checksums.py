"""Checksums of files that Lance has none for: the newest manifest, which rows are deleted, and the columns."""

from __future__ import annotations

import json
import re
import zlib
from contextlib import suppress
from pathlib import Path

from peaccel._utils.atomic_files import aside
from peaccel._utils.reading import reading
from peaccel.retrieval.lance.table import LanceTable

__all__ = ["damaged", "record"]

NAME = re.compile(r"commit-(\d+)\.json")
BLOCK = 1 << 20  # bytes that are read at a time


def record(folder: Path, table: LanceTable) -> None:
    """Keep the checksums of a version that was committed just now, in place of those of earlier ones.

    What cannot be written is not there: the commit is. Files of columns that an earlier version has are not read again.
    """
    path = folder / f"commit-{table.version}.json"
    earlier = {other: int(found[1]) for other in folder.glob("commit-*.json") if (found := NAME.fullmatch(other.name))}
    known: dict[str, int] = {}
    for other in earlier:
        with suppress(OSError, ValueError):
            known |= json.loads(other.read_text())
    items = table.files_of_items()
    sums = _sums(table, [*table.files_of_commit(), *(name for name in items if name not in known)])
    sums |= {name: known[name] for name in items if name in known}
    if not sums:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with aside(path, follow=False) as fresh:
            fresh.write_text(json.dumps(sums) + "\n")
        for other, version in earlier.items():
            if version < table.version:
                other.unlink(missing_ok=True)


def damaged(folder: Path, table: LanceTable, *, whole: bool = False) -> list[str]:
    """The files of a version that are not what they were when it was committed, a line for each; none where its
    checksums are not known. ``whole``: all files, which takes as long as it takes to read them."""
    path = folder / f"commit-{table.version}.json"
    if not path.is_file():
        return []
    with reading(path):
        known = dict(json.loads(path.read_text()))
    found = _sums(table, [*table.files_of_commit(), *(table.files_of_items() if whole else [])])
    wrong = sorted(name for name in known.keys() & found.keys() if known[name] != found[name])
    what = f"is not what was written for version {table.version}; delete {path} to read it nevertheless"
    return [f"{Path(table.uri, name)}: {what}" for name in wrong]


def _sums(table: LanceTable, names: list[str]) -> dict[str, int]:
    """The crc32 of each file; a file is missing where `compact` of others has just deleted it."""
    sums = {}
    for name in names:
        with suppress(FileNotFoundError), Path(table.uri, name).open("rb") as file:
            crc = 0
            while block := file.read(BLOCK):
                crc = zlib.crc32(block, crc)
            sums[name] = crc
    return sums
