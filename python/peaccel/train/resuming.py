"""Whether a run that is resumed is the one that began, and where its log goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peaccel._utils.atomic_files import aside
from peaccel.train.sources import Items

__all__ = ["check_unchanged", "digest_of_file", "digest_of_images", "digest_of_items", "flat", "remove_lines"]

READ = 1000
"""How many of the images are read whole for a digest."""


def check_unchanged(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse what changes a run that goes on; values are compared as JSON has them.

    Parameters
    ----------
    path
        The record of the run, which a message names.
    before, now
        What the run began with, and what is asked for, nested. A name that either lacks is not compared, since records
        of earlier versions have fewer.

    Raises
    ------
    ValueError
        Some values differ: all are named.
    """
    began, asked = (dict(flat(json.loads(json.dumps(values, default=str)))) for values in (before, now))
    shared = [name for name in began if name in asked]
    others = [f"{name} is {asked[name]}, expected {began[name]}" for name in shared if asked[name] != began[name]]
    if others:
        raise ValueError(f"{path}: a run goes on as it began: {'; '.join(others)}")


def digest_of_items(items: Items | None) -> str | None:
    """A digest of the labels of items and of their data: of images their paths below a folder that all of them share.

    So it is the same where the folder has moved. What other datasets give is not read, nor is any image:
    `digest_of_images` tells of these.
    """
    if items is None:
        return None
    data = items.data if isinstance(items.data, tuple) else (items.data,)
    found = hashlib.sha256(np.ascontiguousarray(items.labels).data)
    for x in data:
        if isinstance(x, Tensor):
            found.update(f"{x.dtype} {tuple(x.shape)}".encode())
            found.update(x.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        elif paths := [os.path.abspath(path) for path in getattr(x, "paths", ())]:
            shared = len(os.path.commonpath(paths))
            found.update("\n".join(path[shared:] for path in paths).encode())
    return found.hexdigest()[:16]


def digest_of_images(items: Items | None) -> str | None:
    """A digest of the sizes of all files of images, and of the bytes of 1000 of these, evenly spaced; None without.

    So it takes seconds, where the bytes of millions of images take hours. A changed image is missed where it has as
    many bytes as before and is none of the 1000. Times are left out: they are others where a folder was copied.
    """
    paths = [] if items is None else [str(path) for path in getattr(items.data, "paths", ())]
    if not paths:
        return None
    with ThreadPoolExecutor(8) as pool:  # which wait where the disk is a network away
        together = [paths[i : i + 128] for i in range(0, len(paths), 128)]
        sizes = list(chain.from_iterable(pool.map(lambda some: [os.path.getsize(path) for path in some], together)))
    found = hashlib.sha256(np.array(sizes, np.int64).data)
    for path in paths[:: -(-len(paths) // READ)]:
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]


def digest_of_file(path: Path | None) -> str | None:
    """A digest of a file's bytes, wherever it lies."""
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def remove_lines(path: Path, stage: str, epoch: int) -> None:
    """Remove from a log the lines of a stage's epochs after so many, whose state was not kept, and half a line.

    A run that is killed may have written the line of an epoch and not its state, and then trains it again.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.is_file() else []
    kept = len(lines)
    while kept and _comes_again(lines[kept - 1], stage, epoch):
        kept -= 1
    if kept < len(lines):
        with aside(path, follow=False) as fresh:
            fresh.write_text("".join(lines[:kept]), encoding="utf-8")


def _comes_again(line: str, stage: str, epoch: int) -> bool:
    try:
        record = json.loads(line)
        return not line.endswith("\n") or (record["stage"] == stage and record["epoch"] > epoch)
    except (KeyError, TypeError, ValueError):
        return True


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by dotted name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
