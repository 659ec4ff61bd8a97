"""How files and folders are written: beside their place, then renamed into it, so that none is ever half written."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

__all__ = ["PathLike", "aside"]

PathLike: TypeAlias = str | os.PathLike[str]


@contextmanager
def aside(path: PathLike) -> Iterator[Path]:
    """A path in the same folder, to write a file or a folder to; it takes the place of `path` when the block is done.

    What stood at `path` stays as it was until then, and for good when the block raises; what was written is then
    removed. A file does not take the place of a folder, nor a folder that of a file: OSError. A link is followed, so
    that it stays one. The content is on the disk before the rename, as far as the system tells.
    """
    target = Path(os.path.realpath(path))
    name = uuid.uuid4().hex[:12]
    fresh, old = (target.with_name(f".{target.stem}-{name}-{what}{target.suffix}") for what in ("new", "old"))
    try:
        yield fresh
        for written in (fresh, *fresh.rglob("*")) if fresh.is_dir() else (fresh,):
            _synchronise(written)
        if target.is_dir() and fresh.is_dir():  # which no rename replaces while it holds anything
            target.rename(old)
            try:
                fresh.rename(target)
            except BaseException:
                old.rename(target)
                raise
            shutil.rmtree(old)
        else:
            fresh.replace(target)
    finally:
        shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink(missing_ok=True)


def _synchronise(path: Path) -> None:
    """Ask the system to bring a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # where folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
