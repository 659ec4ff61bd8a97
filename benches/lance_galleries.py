"""Galleries in Lance beside the disk and beside memory: sections of `python -m benches.gallery`.

Processor seconds, and ratios of things that were measured by turns in one process; each is printed beside its goal.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import peaccel as pe
from peaccel._utils.atomic_files import synchronise

ROUNDS, ROWS, DIM, QUERIES, CANDIDATES, K = 5, 200_000, 512, 1000, 100, 10


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call: by the clock, and of this process's processors."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    start, before = time.perf_counter(), spent()
    call()
    return time.perf_counter() - start, spent() - before


def by_turns(*calls: Callable[[], Any], rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """Of each call the least seconds by the clock, which others here lengthen, and the median of the processor's."""
    found = [[seconds(call) for call in calls] for _ in range(rounds)]
    return [(min(x[0] for x in column), median(x[1] for x in column)) for column in zip(*found, strict=True)]


def normals(rows: int, dim: int, seed: int = 0) -> pe.Normal[Any]:
    rng = np.random.default_rng(seed)
    return pe.Normal(rng.standard_normal((rows, dim), np.float32), rng.uniform(0.1, 1, rows).astype(np.float32))


def append(folder: Path) -> str:
    """Appending, flushed to the disk, beside Lance's own append without a look for ids, and beside a plain file.

    All write what was not there before: a file that is written over takes pages of memory that it had, which on a
    virtual machine is several times faster than taking new ones.
    """
    import lance

    items, part, rounds = normals(ROWS // 2, DIM), ROWS // 10, itertools.count()
    gallery = pe.Gallery.create(folder / "a.lance", items[:1], [10**9], sync=True)
    pe.Gallery.create(folder / "b.lance", items[:1], [10**9])

    def blocks() -> Iterator[tuple[Any, Any]]:
        first = next(rounds) * len(items)
        for start in range(0, len(items), part):
            yield items[start : start + part], first + start + np.arange(part)

    def kept() -> None:
        for block, ids in blocks():
            gallery.append(block, ids)

    def plain_lance() -> None:
        for block, ids in blocks():
            lance.write_dataset(pe.io.to_arrow(block, ids), folder / "b.lance", mode="append")
        for path in (folder / "b.lance").rglob("*"):
            synchronise(path)

    def plain() -> None:
        with (folder / f"plain {next(rounds)}").open("wb") as file:
            for x in items.arrays:
                file.write(x.data)
            file.flush()
            os.fsync(file.fileno())

    calls = {"append": kept, "Lance alone": plain_lance, "a file": plain}
    turns = [[seconds(call) for call in calls.values()] for _ in range(2 * ROUNDS)]
    size, told = sum(x.nbytes for x in items.arrays) / 1e6, []
    for name, times in zip(calls, zip(*turns, strict=True), strict=True):
        clock, processor = (median(x) for x in zip(*times, strict=True))
        told.append(f"{name} {size / clock:.0f} MB/s, {processor:.2f} s of processor")
    for what, number in (("the clock", 0), ("the processor", 1)):
        own, lances = (median(turn[2][number] / turn[i][number] for turn in turns) for i in (0, 1))
        told.append(f"by {what} {own:.2f} of the file's speed (goal 0.70), Lance alone {lances:.2f}")
    return "; ".join(told)


def opening(folder: Path) -> str:
    """Opening a gallery of a million items until a first candidate is scored."""
    items, path = normals(1_000_000, 32), folder / "o.lance"
    pe.Gallery.create(path, items, np.arange(len(items)))
    queries = items[:1]
    first, _ = seconds(lambda: pe.Gallery.open(path).rescore(queries, [[7]]))

    def whole() -> None:
        pe.Gallery.open(path).rescore(queries, [[7]])

    ((clock, cpu),) = by_turns(whole, rounds=2 * ROUNDS)
    ((alone, _),) = by_turns(lambda: pe.Gallery.open(path), rounds=2 * ROUNDS)
    told = f"open {1e3 * alone:.1f} ms, with a first score {1e3 * clock:.1f} ms, {1e3 * cpu:.1f} ms of processor"
    return f"{told} (goal 100); the first time, which makes its map, {first:.2f} s"


def reranking(folder: Path) -> str:
    """Candidates by their ids from a gallery whose map is cached, and from memory, where ids are looked up too."""
    items, path, rng = normals(ROWS, DIM), folder / "r.lance", np.random.default_rng(1)
    ids = np.sort(rng.choice(10**9, ROWS, replace=False))
    gallery = pe.Gallery.create(path, items, ids, rows=ROWS // 4)
    queries, candidates = normals(QUERIES, DIM, 2), rng.choice(ids, (QUERIES, CANDIDATES))

    def memory() -> Any:
        return pe.rerank(queries, items, np.searchsorted(ids, candidates), K)

    def mapped() -> Any:
        return gallery.rerank(queries, candidates, K)

    assert np.array_equal(mapped().ids, ids[memory().ids])
    told = []
    for _ in range(2):
        (_, own_cpu), (_, other_cpu) = by_turns(mapped, memory)
        fragments = gallery.info()["fragments"]
        times = f"{1e3 * own_cpu:.0f} ms of processor, memory {1e3 * other_cpu:.0f}"
        told.append(f"rerank of {QUERIES} x {CANDIDATES}, {fragments} fragments: {times}; {own_cpu / other_cpu:.2f}")
        gallery.compact(keep_days=0)
        gallery.rerank(queries, candidates, K)
    return "; ".join(told) + " (goal 1.3)"


def upserting(path: Path, rows: int, dim: int, stop: Any) -> None:
    """Upsert one per cent of a gallery, again and again, until it is told to stop."""
    gallery, seed = pe.Gallery.open(path), 10
    while not stop.is_set():
        ids = np.random.default_rng(seed).choice(rows, rows // 100, replace=False)
        gallery.upsert(normals(len(ids), dim, seed), ids)
        seed += 1
        time.sleep(0.2)


def upserts(folder: Path) -> str:
    """Searches through an index, alone, and while another process upserts one per cent of the items at a time."""
    rows, dim, path = 100_000, 128, folder / "u.lance"
    gallery, queries = pe.Gallery.create(path, normals(rows, dim), np.arange(rows)), normals(64, dim, 2)
    gallery.build_index("IVF256,Flat")

    def search() -> Any:
        return gallery.refresh().search(queries, K)

    search()
    ((_, alone),) = by_turns(search, rounds=20)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=upserting, args=(path, rows, dim, stop))
    process.start()
    while gallery.refresh().info()["unseen"] == 0:
        time.sleep(0.05)
    ((_, beside),) = by_turns(search, rounds=20)
    stop.set()
    process.join()
    unseen = gallery.refresh().info()["unseen"]
    told = f"64 queries through an index: {1e3 * alone:.0f} ms of processor; while 1 % is upserted at a time"
    return f"{told} {1e3 * beside:.0f}, {beside / alone:.2f} times, with up to {unseen} of {rows} items unseen"


SECTIONS = {"append": append, "open": opening, "rerank": reranking, "upserts": upserts}


def show(name: str) -> None:
    """Print what a section has measured."""
    folder = Path(tempfile.mkdtemp(prefix="galleries-"))
    try:
        print(SECTIONS[name](folder), flush=True)
    finally:
        shutil.rmtree(folder)
