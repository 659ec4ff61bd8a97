"""A Lance dataset of items: opened, changed in atomic commits, and read. The only module that imports Lance."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from peaccel._utils.atomic_files import synchronise
from peaccel.distributions import Distribution
from peaccel.io import from_arrow
from peaccel.io._arrow_columns import is_common
from peaccel.io._arrow_sources import arrow
from peaccel.retrieval.lance.item_tables import ITEM, ids_of

__all__ = ["ConflictError", "LanceTable", "deletions_of", "is_local", "name_of"]

PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}
"""Metadata of the column of ids, by which other programs' `merge_insert` conflicts with what is inserted beside it."""

NO_FRAGMENT = 2**32 - 1
"""The number of a fragment that there never is. Each change, whatever else it does, says that it removes this one too.

Lance refuses a change that removes a fragment which another change has removed since the version that it has read: so
none is committed but on the version in which its ids were looked for, and two that insert one id do not both land.
Compaction rewrites other fragments, and does not conflict with what is only added beside it.
"""

WRITTEN, COMMITTED = ("data", "_deletions"), ("_transactions", "_versions")
"""Folders of a dataset: those whose files a commit names, and those of the commit."""

FORMAT = "2.0"
"""The format of Lance's files. Later ones copy wide rows more often, and take twice the time to be read; this one lacks
maps, and structs of which some are null."""

TRIES = 30  # how often a change is made anew after others have come first; each time one of these is through
READ = {"batch_size": 8192, "batch_readahead": 2, "fragment_readahead": 1, "io_buffer_size": 1 << 26}
MANIFEST = "_versions/{:020}.manifest"
LAST_VERSION = 2**64 - 1  # manifests are named after what is left to it, so that the newest is listed first

T = TypeVar("T")


class LanceTable:
    """One version of a dataset.

    Parameters
    ----------
    uri
        A folder, or a URI of an object store.
    options
        Lance's ``storage_options``: keys and endpoints of an object store.
    sync
        Whether each commit ends with its files and folders on the disk, as far as the system tells.
    """

    def __init__(self, dataset: Any, uri: str, options: dict[str, str] | None, sync: bool) -> None:
        self.dataset, self.uri, self.options, self.sync = dataset, uri, options, sync
        self.is_new = False  # whether this object has committed it

    @classmethod
    def create(cls, uri: str, rows: Any, options: dict[str, str] | None, sync: bool) -> LanceTable:
        """A new dataset of the rows of an Arrow table, its first version."""
        lance, started = _lance(), time.time()
        if is_local(uri) and (os.path.exists(uri) and (not os.path.isdir(uri) or os.listdir(uri))):
            raise FileExistsError(f"{uri}: is there already, expected a new or an empty folder")
        key = rows.schema.field("id").with_nullable(False).with_metadata(PRIMARY_KEY)
        rows = rows.cast(rows.schema.set(rows.schema.get_field_index("id"), key))
        with _one_line(f"Gallery.create: {uri}"):
            options_of_all = {"enable_stable_row_ids": True, "data_storage_version": FORMAT}
            dataset = lance.write_dataset(rows, uri, mode="create", storage_options=options, **options_of_all)
        table = cls(dataset, uri, options, sync)
        table._synchronise(started, (*WRITTEN, *COMMITTED))
        return table

    @classmethod
    def open(cls, uri: str, version: int | None, options: dict[str, str] | None, sync: bool) -> LanceTable:
        """A version of a dataset, by default the newest."""
        lance = _lance()
        if is_local(uri) and not any(Path(uri, "_versions").glob("*")):
            begun = os.path.isdir(uri) and {*os.listdir(uri)} & {*WRITTEN, *COMMITTED}
            what = ": Gallery.create was interrupted here; remove the folder and create it again" if begun else ""
            raise FileNotFoundError(f"{uri}: no such gallery{what}")
        try:
            dataset = lance.dataset(uri, version=version, storage_options=options)
            schema = dataset.schema
        except BaseException as error:
            if not (isinstance(error, ValueError | OSError) or type(error).__name__ == "PanicException"):
                raise  # Lance panics over a schema in which a bit is flipped
            what = f"version {version}" if version is not None else "the newest version"
            raise ValueError(f"{uri}: {what} cannot be opened{_others(uri, version)}: {_reason(error)}") from None
        key = schema.field("id").metadata if "id" in schema.names else None
        if not dataset.has_stable_row_ids or key != {k.encode(): v.encode() for k, v in PRIMARY_KEY.items()}:
            raise ValueError(f"{uri}: is a Lance dataset that Gallery.create has not made, expected one of its")
        return cls(dataset, uri, options, sync)

    @property
    def version(self) -> int:
        """The number of this version."""
        return int(self.dataset.version)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.dataset.schema.names)

    def versions(self) -> list[tuple[int, datetime]]:
        """The numbers of all versions, ascending, and when each was committed."""
        return sorted((int(x["version"]), x["timestamp"]) for x in self.dataset.versions())

    def __len__(self) -> int:
        """Count the items that are there."""
        return int(self.dataset.count_rows())

    # -- reading -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def nothing(self) -> tuple[Distribution, np.ndarray[Any, Any]]:
        """A distribution of the dataset's kind, dim and dtype without items, and no ids of its kind."""
        found: tuple[Distribution, np.ndarray[Any, Any]] = from_arrow(self.dataset.schema.empty_table(), ids="id")
        return found

    @property
    def has_common(self) -> bool:
        """Whether the first items had one parameter, which all may have."""
        *_, name = self.nothing[0]._names
        return is_common(self.dataset.schema, name)

    def fragments(self) -> list[Any]:
        """The fragments of this version."""
        return list(self.dataset.get_fragments())

    def files_of_commit(self) -> list[str]:
        """The files within a dataset on this machine that say which fragments and which rows are there."""
        if not is_local(self.uri):
            return []
        deletions = ((fragment.fragment_id, fragment.metadata.deletion_file) for fragment in self.fragments())
        return [MANIFEST.format(LAST_VERSION - self.version), *(x.path(number) for number, x in deletions if x)]

    def files_of_items(self) -> list[str]:
        """The files within a dataset on this machine that hold its columns; they never change."""
        if not is_local(self.uri):
            return []
        return [f"data/{x.path}" for fragment in self.fragments() for x in fragment.metadata.files]

    def batches(self, fragment: Any, columns: Sequence[str]) -> Iterator[Any]:
        """All rows of a fragment, deleted ones too, in their order; ValueError where it cannot be read."""
        selected = {
            "columns": list(columns),
            "fragments": [fragment],
            "include_deleted_rows": True,
            "with_row_id": True,
        }
        try:
            yield from self.dataset.scanner(**selected, **READ).to_batches()
        except (OSError, ValueError, RuntimeError) as error:
            what = f"fragment {fragment.fragment_id} of version {self.version} cannot be read"
            raise ValueError(f"{self.uri}: {what} ({_reason(error)})") from None

    def addresses(
        self, filter: str | None = None, fragments: Sequence[Any] | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The addresses of rows that are there: the fragment's number times 2^32, and the place in the fragment."""
        with _one_line(f"{self.uri}: version {self.version}" if filter is None else f"Gallery: filter {filter!r}"):
            found = self.dataset.scanner(columns=["_rowaddr"], filter=filter, fragments=fragments).to_table()
        return np.asarray(found.column("_rowaddr").to_numpy().astype(np.int64))

    def fitting(self, owner: str, table: Any, *, partly: bool = False) -> Any:
        """A table with the dataset's columns in their order, which must be those that it has, metadata perhaps not."""
        stored = {field.name: field.type for field in self.dataset.schema}
        got = {field.name: field.type for field in table.schema}
        for name in (*stored, *got):
            kinds = stored.get(name), got.get(name)
            if partly and kinds[1] is None and name not in ITEM:
                continue
            if None in kinds or (name in ITEM and str(kinds[0]) != str(kinds[1])):
                found, expected = kinds[1] or "missing", kinds[0] or "no such column"
                raise ValueError(f"{owner}: column {name} is {found}, expected {expected} as in {self.uri}")
        try:
            names = [name for name in stored if name in got]
            return table.select(names).cast(self.dataset.schema.empty_table().select(names).schema)
        except ValueError as error:
            raise ValueError(f"{owner}: metadata do not fit those of {self.uri}: {_reason(error)}") from None

    def completed(self, rows: Any, gone: Sequence[tuple[Any, np.ndarray[Any, Any]]]) -> Any:
        """A table with all columns, those that it lacks from the rows that it replaces, given by their places."""
        absent = [name for name in self.columns if name not in rows.column_names]
        pa = arrow()
        old = pa.concat_tables(
            pa.Table.from_batches(list(self.batches(fragment, ["id", *absent]))).take(places)
            for fragment, places in gone
        )
        places = np.argsort(ids_of(old))[np.argsort(np.argsort(ids_of(rows)))]
        for name in absent:
            rows = rows.append_column(self.dataset.schema.field(name), old.column(name).take(places))
        return rows.select(list(self.columns))

    # -- changes: each is one commit, of all or of nothing ------------------------------------------------------------

    def newest(self) -> LanceTable:
        """The newest version."""
        return LanceTable.open(self.uri, None, self.options, self.sync)

    def changed(self, owner: str, change: Callable[[LanceTable], tuple[LanceTable, T]]) -> tuple[LanceTable, T]:
        """Commit a change of the newest version; repeated on the newest one then, where other commits came first."""
        started = time.time()
        for left in reversed(range(TRIES)):
            table = self.newest()
            try:
                with _one_line(owner):
                    table, result = change(table)
            except ConflictError:
                if not left:
                    raise
                continue
            table._synchronise(started, (*WRITTEN, *COMMITTED))
            return table, result
        raise AssertionError("unreachable")

    def written(self, rows: Any) -> list[Any]:
        """New fragments of an Arrow table's rows, which are no part of the dataset until `replaced` puts them there."""
        fragments: list[Any] = _lance().fragment.write_fragments(rows, self.dataset)
        return fragments

    def replaced(self, gone: Iterable[tuple[Any, np.ndarray[Any, Any]]], new: list[Any]) -> LanceTable:
        """The version without rows of fragments, given by their places, and with the fragments that are new."""
        lance, started = _lance(), time.time()
        removed, updated = [NO_FRAGMENT], []
        for fragment, places in gone:
            left = fragment.delete_rows(places.tolist())
            if left is None:
                removed.append(fragment.fragment_id)
            else:
                updated.append(left)
        self._synchronise(started, WRITTEN)
        change = lance.LanceOperation.Update(removed, updated, new, update_mode="rewrite_rows")
        return self._now(lance.LanceDataset.commit(self.dataset, change, self.version, storage_options=self.options))

    def compacted(self) -> LanceTable:
        """The version with large fragments in place of small ones, without deleted rows."""
        dataset = self.newest().dataset
        dataset.optimize.compact_files()
        return self._now(dataset)

    def restored(self) -> LanceTable:
        """The version whose rows are those of this one, after all others."""
        dataset = _lance().dataset(self.uri, version=self.version, storage_options=self.options)
        dataset.restore()
        return self._now(dataset)

    def _now(self, dataset: Any) -> LanceTable:
        table = LanceTable(dataset, self.uri, self.options, self.sync)
        table.is_new = True
        return table

    def clean(self, keep: timedelta) -> None:
        """Delete versions that are older, and files that no version has."""
        with _one_line("Gallery.compact"):
            self.dataset.cleanup_old_versions(older_than=keep, error_if_tagged_old_versions=False)

    def _synchronise(self, since: float, folders: Sequence[str]) -> None:
        """Bring files that were written lately to the disk: Lance itself asks the system for nothing."""
        if not (self.sync and is_local(self.uri)):
            return
        for folder in (Path(self.uri, name) for name in folders):
            if folder.is_dir():
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.stat().st_mtime > since - 2:  # clocks of file systems are coarse
                            synchronise(Path(entry.path))
                synchronise(folder)
        synchronise(Path(self.uri))


def name_of(fragment: Any) -> str:
    """A name for what a fragment holds, which is never written again: of its data files, whose names are random."""
    found = fragment.metadata
    text = repr([[file.path for file in found.files], found.overlays, found.physical_rows])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def deletions_of(fragment: Any) -> str:
    """A name for the rows of a fragment that are deleted; empty where none is."""
    found = fragment.metadata.deletion_file
    return "" if found is None else f"{found.read_version}-{found.id}"


def is_local(uri: str) -> bool:
    """Whether a URI is a path of this machine."""
    return "://" not in uri


class ConflictError(OSError):
    """Others have changed the gallery at the same time, again and again."""


@contextmanager
def _one_line(owner: str) -> Iterator[None]:
    """Lance's errors in one line, without places in its code, behind a text."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        text, reason = str(error), _reason(error)
        if "conflict" in text.lower() or "concurrent" in text.lower():
            raise ConflictError(f"{owner}: others change the gallery, try again ({reason})") from None
        if re.search(r"No space left|File too large|[Oo]s error (27|28|122)\b", text):
            raise OSError(f"{owner}: the disk is full, nothing was changed ({reason})") from None
        raise type(error)(f"{owner}: {reason}") from None


def _reason(error: BaseException) -> str:
    """Message of an error of Lance in one line, without the places in its code."""
    text = re.sub(r",? /[\w./-]+\.rs:\d+:\d+", "", " ".join(str(error).split()))
    return re.sub(r"^(LanceError\(\w+\): |Invalid user input: |External error: |Query Execution error: )+", "", text)


def _others(uri: str, version: int | None) -> str:
    """Which versions there are beside one that cannot be opened, for a dataset on this machine."""
    if not is_local(uri):
        return ""
    manifests = [path for path in Path(uri, "_versions").glob("*.manifest") if path.stem.isdigit()]
    found = sorted(LAST_VERSION - int(path.stem) for path in manifests if path.stat().st_size)
    empty = [path for path in manifests if not path.stat().st_size]
    if version is None and empty:
        what = f"{empty[0]} is empty, as a power loss leaves it"
        return f" ({what}; without that file version {max(found)} is the newest)"
    return f" (there are {found[0]} .. {found[-1]})" if found else ""


def _lance() -> Any:
    try:
        import lance
    except ImportError:
        raise ImportError("Gallery needs Lance: pip install peaccel[gallery]") from None
    return lance
