"""Files of the reproduction: settings in TOML, results that are never half written, and how far work is."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

__all__ = ["merged", "progress", "read_toml", "written"]


def read_toml(name: str) -> dict[str, Any]:
    """A file of this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings with some values replaced, table by table."""
    found = dict(values)
    for key, value in changes.items():
        under = found.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        found[key] = merged(under, value) if both else value  # type: ignore[arg-type]
    return found


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A file beside `path`, to be written, which takes its place once the block is done."""
    fresh = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
    """A function that counts steps as done, on a bar; without a terminal the bar is printed once, at the end."""
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps=1: bar.advance(task, steps)
