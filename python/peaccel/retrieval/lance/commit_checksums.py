"""Checksums of what Lance has none for and no derived file repeats: the newest manifest, and which rows are deleted."""

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


def record(folder: Path, table: LanceTable) -> None:
    """Keep the checksums of a version that was committed just now, in place of those of earlier ones.

    What cannot be written is not there: the commit is.
    """
    path, sums = folder / f"commit-{table.version}.json", _sums(table)
    if not sums:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with aside(path, follow=False) as fresh:
            fresh.write_text(json.dumps(sums) + "\n")
        for other in folder.glob("commit-*.json"):
            if (found := NAME.fullmatch(other.name)) and int(found[1]) < table.version:
                other.unlink(missing_ok=True)


def damaged(folder: Path, table: LanceTable) -> list[str]:
    """The files of a version that are not what they were when it was committed, a line for each; none where its
    checksums are not known."""
    path = folder / f"commit-{table.version}.json"
    if not path.is_file():
        return []
    with reading(path):
        known, found = dict(json.loads(path.read_text())), _sums(table)
    wrong = sorted(name for name in known.keys() & found.keys() if known[name] != found[name])
    what = f"is not what was written for version {table.version}; delete {path} to read it nevertheless"
    return [f"{Path(table.uri, name)}: {what}" for name in wrong]


def _sums(table: LanceTable) -> dict[str, int]:
    """The crc32 of each file; a file is missing where `compact` of others has just deleted it."""
    sums = {}
    for name in table.files_of_commit():
        with suppress(FileNotFoundError):
            sums[name] = zlib.crc32(Path(table.uri, name).read_bytes())
    return sums
