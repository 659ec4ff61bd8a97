"""Keep a gallery in a Lance dataset, larger than memory if need be: 'peaccel gallery ACTION --help' lists options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from peaccel import io, scores
from peaccel._utils import options
from peaccel._utils.ids import are_strings
from peaccel._utils.progress_bar import ProgressBar
from peaccel._utils.suggestions import printable, unknown
from peaccel.cli._fitted_files import read_fit
from peaccel.cli._option_groups import QueryFiles, SkipBad
from peaccel.cli._outputs import check_files
from peaccel.cli._tables import print_table
from peaccel.fits.records import Threshold
from peaccel.io.table_of_items import table_of_items
from peaccel.retrieval.lance import Gallery

__all__ = ["ACTIONS", "main"]

COMMIT = 131_072


@dataclass(frozen=True, kw_only=True)
class GivenItems(SkipBad):
    """Which items to keep."""

    embeddings: Path
    """Items to keep, in a file as 'peaccel search' takes its gallery. Ids are its column id or ids, or the one that is
    named: items.parquet:mu=vector,id=key; of arrays without them, rows. All other columns, and arrays with a row for
    each item, become metadata. Tables of .parquet and .lance are read in blocks."""
    ids: Path | None = None
    """In place of the file's: the ids, in a file as 'peaccel search' takes it."""
    rows: int = COMMIT
    """How many items a commit has: after an interruption all of it is there, or nothing."""
    sync: bool = False
    """Bring each commit to the disk before the next, so that a power loss undoes none."""
    resume: bool = False
    """Go on with what was interrupted: items whose ids are there already are passed over."""


@dataclass(frozen=True, kw_only=True)
class Create(GivenItems):
    """Items of a new gallery, and its place."""

    out: Path
    """The folder to make, by custom one that ends in .lance."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which gallery."""

    gallery: Path
    """The gallery, a folder that 'peaccel gallery create' has made."""


@dataclass(frozen=True, kw_only=True)
class Add(GivenItems, Kept):
    """Items to add, and their gallery."""

    replace: bool = False
    """Items whose ids are there take the place of these, rather than being refused."""


@dataclass(frozen=True, kw_only=True)
class Index(Kept):
    """Index to build of a gallery."""

    factory: str = "HNSW32"
    """A FAISS factory string, such as "IVF1024,PQ32"."""
    first_stage: Literal["cosine", "surrogate"] = "cosine"
    """Vectors in the index: directions, or surrogates that follow the score."""
    score: str | None = None
    """The score that surrogates stand for, as 'peaccel scores' lists it; by default cosine of points, else mls."""


@dataclass(frozen=True, kw_only=True)
class SearchKept(Kept, QueryFiles):
    """Gallery, queries, score and output of a search."""

    shortlist: int | None = None
    """How many candidates to ask of the index for each query; what it has not seen is scored besides. By default all
    items are scored, and no index is asked."""
    filter: str | None = None
    """A condition in SQL over the gallery's columns, such as "year >= 2020": only such items are found."""


@dataclass(frozen=True, kw_only=True)
class Remove(Kept):
    """Items to remove: --ids, --id or both."""

    ids: Path | None = None
    """The ids of the items, in a file as 'peaccel search' takes it."""
    id: tuple[str, ...] = ()
    """Ids in words, one or more."""
    skip_missing: bool = False
    """Pass over ids that no item has, in place of an error."""


@dataclass(frozen=True, kw_only=True)
class Restore(Kept):
    """Version to go back to."""

    version: int
    """The number of an earlier version, as 'peaccel gallery versions' lists them."""


@dataclass(frozen=True, kw_only=True)
class Compact(Kept):
    """How long versions are kept."""

    keep_days: float = 14.0
    """Versions younger than this stay. With 0 nobody else may be changing the gallery."""


def _create(task: Create) -> None:
    if task.resume and task.out.exists():
        _keep(task, Gallery.open(task.out, sync=task.sync).add, skip_existing=True)
    else:
        _keep(task, lambda *items, **more: Gallery.create(task.out, *items, sync=task.sync, **more))
    _print_state(Gallery.open(task.out))


def _add(task: Add) -> None:
    if task.replace and task.resume:
        raise ValueError("expected at most one of --replace and --resume")
    gallery = Gallery.open(task.gallery, sync=task.sync)
    if task.replace:
        _keep(task, gallery.upsert)
    else:
        _keep(task, gallery.add, skip_existing=task.resume)
    _print_state(gallery)


def _keep(task: GivenItems, write: Callable[..., object], **more: Any) -> None:
    """Hand on the items of a file, in commits, each of which moves the bar."""
    ids = None if task.ids is None else io.read_ids(task.ids)
    items, total = table_of_items(task.embeddings, ids, task.skip_bad)
    with ProgressBar("keeping items", total) as bar:
        write(items, rows=task.rows, progress=bar.advance, **more)


def _print_state(gallery: Gallery) -> None:
    found = gallery.info()
    print(f"{found['path']}: {found['items']} items, version {found['version']}, {found['fragments']} fragments")


def _info(task: Kept) -> None:
    found = Gallery.open(task.gallery).info()
    print_table((), ([key, ", ".join(x) if isinstance(x, tuple) else str(x)] for key, x in found.items()))


def _index(task: Index) -> None:
    gallery, start = Gallery.open(task.gallery), perf_counter()
    with ProgressBar("building the index"):
        gallery.build_index(task.factory, task.first_stage, task.score)
    print(f"{task.gallery}: {task.factory} of {len(gallery)} items in {perf_counter() - start:.1f} s")


def _search(task: SearchKept) -> None:
    if Path(task.out).resolve().is_relative_to(Path(task.gallery).resolve()):
        raise ValueError(f"--out is {task.out}, inside the gallery, expected a place of its own")
    check_files([(task.out, io.RANKINGS)], [task.queries])
    gallery, queries, start = Gallery.open(task.gallery), io.read_distribution(task.queries), perf_counter()
    score = scores.named(task.score, queries, gallery)
    accept = None if task.accept is None else read_fit(task.accept, Threshold)
    if accept is not None:
        accept.check(str(task.accept), score, task.k, dim=queries.dim, applied="none")
        if accept.of_classes:
            raise ValueError(f"{task.accept}: is of the {accept.confidence}, expected one that needs no labels")
    ranking = gallery.search(queries, task.k, score, shortlist=task.shortlist, filter=task.filter)
    if accept is not None:
        ranking = accept.select(ranking)
    io.write_ranking(task.out, ranking)
    seconds = f"{perf_counter() - start:.3f} s"
    print(f"{score.label}: {len(queries)} queries, {len(gallery)} items, top {task.k} in {seconds} -> {task.out}")


def _remove(task: Remove) -> None:
    if task.ids is None and not task.id:
        raise ValueError("expected --ids or --id, found none")
    gallery = Gallery.open(task.gallery)
    ids = [] if task.ids is None else io.read_ids(task.ids).tolist()
    words: list[Any] = list(task.id)
    if not are_strings(gallery.ids):
        if wrong := [word for word in words if not word.isdecimal()]:
            raise ValueError(f"--id is {wrong[0]!r}, expected an integer, as the gallery's ids are")
        words = list(map(int, words))
    count = gallery.remove(list(dict.fromkeys([*ids, *words])), skip_missing=task.skip_missing)
    print(f"{count} items removed; 'peaccel gallery restore --version {gallery.version - (count > 0)}' undoes it")
    _print_state(gallery)


def _versions(task: Kept) -> None:
    found = Gallery.open(task.gallery).versions()
    print_table(("version", "committed"), ([str(number), f"{time:%Y-%m-%d %H:%M:%S}"] for number, time in found))


def _restore(task: Restore) -> None:
    gallery = Gallery.open(task.gallery)
    gallery.restore(task.version)
    _print_state(gallery)


def _compact(task: Compact) -> None:
    gallery = Gallery.open(task.gallery)
    gallery.compact(task.keep_days)
    _print_state(gallery)


def _verify(task: Kept) -> None:
    gallery = Gallery.open(task.gallery)
    with ProgressBar("reading the gallery"):
        found = gallery.verify()
    for line in found:
        print(printable(line))
    if found:
        raise ValueError(f"{task.gallery}: {len(found)} things are wrong")
    print(f"{task.gallery}: version {gallery.version} is as it was written, as far as can be told")


ACTIONS: dict[str, tuple[type[Any], Callable[[Any], None], str]] = {
    "create": (Create, _create, "Make a gallery of the items of a file."),
    "add": (Add, _add, "Add the items of a file to a gallery."),
    "remove": (Remove, _remove, "Remove items of a gallery."),
    "versions": (Kept, _versions, "List the versions of a gallery, which each change adds to."),
    "restore": (Restore, _restore, "Go back to an earlier version, in a new one."),
    "compact": (Compact, _compact, "Free the room of removed items and of old versions."),
    "info": (Kept, _info, "Print what a gallery holds."),
    "index": (Index, _index, "Build a FAISS index, which proposes what 'search' scores."),
    "search": (SearchKept, _search, "Find the best items of a gallery for each query."),
    "verify": (Kept, _verify, "Read all of a gallery, and say what is damaged; exit code 2 where anything is."),
}


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        rows = "\n".join(f"    {action:8} {about}" for action, (_, _, about) in ACTIONS.items())
        print(f"usage: peaccel gallery ACTION [OPTIONS]\n\n{options.about(__doc__)}\n\nACTION is one of\n{rows}")
        return
    if name not in ACTIONS:
        # For another word, such as "erase", none is suggested: the nearest changes a gallery in another way.
        wrong = unknown("action", name, ACTIONS, nearness=0.75)
        raise ValueError(wrong if name else "the action is missing: 'peaccel gallery ACTION'")
    kind, run, about = ACTIONS[name]
    run(options.parse(kind, f"peaccel gallery {name}", about, arguments[1:]))
