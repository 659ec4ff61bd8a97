"""Galleries that are not in memory: read from files while they are searched, mapped, and kept in Lance.

What is measured under a limit of memory is a process of its own: `python -m benches.rows.galleries WORK ...` does the
work and prints what it took.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import items, optional, pe
from benches.table import Row, Side, beside, by_turns, equal
from peaccel._utils.atomic_files import synchronise

QUERIES, K, BLOCK, MEGABYTE = 32, 10, 65_536, 2**20
LIMIT = 768  # megabytes of memory that streaming may take


def in_process(*words: object) -> dict[str, Any]:
    """The report of a process that does some work."""
    command = [sys.executable, "-m", "benches.rows.galleries", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        killed = "killed, as it took more memory than the limit"
        return {"error": killed if done.returncode == -9 else (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    return json.loads(done.stdout)


# ---- streaming -------------------------------------------------------------------------------------------------------


def streaming(quick: bool) -> Iterator[Row]:
    """Isotropic normals of 256 dimensions, three times what the process may have in memory, searched by 32 queries.

    Each source is read alone, a block of it is scored alone as often as there are blocks, and both go on at once, each
    in a process of its own under the limit: a memory cgroup where one can be made, which counts pages of files too, so
    that nothing is left in memory from one pass to the next, else RLIMIT_DATA.
    """
    dim, limit = 256, LIMIT
    blocks = 2 if quick else -(-3 * limit * MEGABYTE // (BLOCK * (dim + 1) * 4))
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        write(Path(name), blocks, dim)
        for source in SOURCES:
            yield from streamed(source, Path(name), f"{blocks * BLOCK:,} x {dim}", limit)
    for group in GROUPS:
        own = group / f"peaccel-bench-{os.getpid()}"
        if own.is_dir():
            own.rmdir()


def streamed(source: str, folder: Path, size: str, limit: int) -> Iterator[Row]:
    """The time of reading and scoring at once over the longer of either alone, by the clock and of the processor."""
    took = {work: in_process(work, source, folder, limit) for work in ("read", "score", "both")}
    errors = [x["error"] for x in took.values() if "error" in x]
    if errors:
        yield beside(f"search {size}, {source}: {errors[0]}", float("nan"), {"alone": float("nan")})
        return
    work, longer = f"search {size}, {source}, under {took['both']['limit']}", "the longer of either alone"
    for what in ("seconds", "processor"):
        read, score, both = (took[work][what] for work in ("read", "score", "both"))
        sides = {"read and score": Side(both, {longer: None}), longer: max(read, score), "read": read, "score": score}
        yield Row(f"{work}{', of the processor' if what == 'processor' else ''}", sides)
    yield beside(f"{work}, memory", took["both"]["own"], {"that limit": float(limit * MEGABYTE)}, unit="B")


def write(folder: Path, blocks: int, dim: int) -> None:
    """The gallery in .npy files, block by block, and as Parquet and Lance."""
    import lance
    import pyarrow as pa
    from pyarrow import parquet

    shapes = {"mu": (blocks * BLOCK, dim), "var": (blocks * BLOCK,)}
    files = [np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, x) for name, x in shapes.items()]
    for i in range(blocks):
        for file, x in zip(files, items("isotropic", BLOCK, dim, i + 2).arrays, strict=True):
            file[i * BLOCK : (i + 1) * BLOCK] = x
    del files

    def batches() -> Iterator[Any]:
        for block in pe.io.read_blocks(folder / "mu.npy", var=folder / "var.npy"):
            mu = pa.FixedSizeListArray.from_arrays(pa.array(block.mu.reshape(-1)), dim)
            yield pa.record_batch([mu, pa.array(block.var)], names=["mu", "var"])

    schema = next(batches()).schema
    with parquet.ParquetWriter(folder / "gallery.parquet", schema) as file:
        for batch in batches():
            file.write_batch(batch)
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), folder / "gallery.lance")


def mapped_files(folder: Path) -> list[Any]:
    """Blocks of the mapped files."""
    whole = pe.Normal(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("mu", "var")))
    return [whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK)]


def of_parquet(folder: Path) -> Any:
    """Blocks of the file of Parquet."""
    # Without a buffer, pyarrow holds whole row groups as they lie in the file, beside what it makes of them.
    how = {"pre_buffer": False, "buffer_size": MEGABYTE}
    return pe.io.arrow_blocks(optional("pyarrow.parquet").ParquetFile(folder / "gallery.parquet", **how), rows=BLOCK)


def of_lance(folder: Path) -> Any:
    """Blocks of the dataset of Lance."""
    ahead = {"batch_readahead": 1, "fragment_readahead": 1, "io_buffer_size": 64 * MEGABYTE}
    scanner = optional("lance").dataset(folder / "gallery.lance").scanner(batch_size=8192, **ahead)
    return pe.io.arrow_blocks(scanner.to_reader(), rows=BLOCK)


SOURCES: dict[str, Callable[[Path], Iterable[Any]]] = {
    "raw files, read": lambda folder: pe.io.read_blocks(folder / "mu.npy", var=folder / "var.npy"),
    "raw files, mapped": mapped_files,
    "Parquet": of_parquet,
    "Lance": of_lance,
}


def stream(what: str, source: str, folder: str, limit: str) -> dict[str, Any]:
    """Read, score or both, in this process, under the limit."""
    gallery, queries = SOURCES[source](Path(folder)), items("isotropic", QUERIES, 256, 1)
    limited = limit_memory(int(limit) * MEGABYTE)
    if what == "score":
        first = next(iter(gallery))
        block = pe.Normal(first.mu.copy(), first.var.copy())
        count = -(-Path(folder, "mu.npy").stat().st_size // (block.mu.nbytes + 128))
        gallery = itertools.repeat(block, count)
    with OwnMemory() as own:
        processor, start = time.process_time(), time.perf_counter()
        if what == "read":
            for block in gallery:
                block.mu.reshape(-1)[:: 4096 // 4].max()  # a number of each page, which a map reads then
                del block
        else:
            pe.search(queries, gallery, K)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return {"seconds": seconds, "processor": processor, "own": own.most - own.first, "limit": limited}


GROUPS = {Path("/sys/fs/cgroup"): "memory.max", Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes"}


def limit_memory(size: int) -> str:
    """Limit the memory of this process, and say how."""
    for group, name in GROUPS.items():
        try:
            own = group / f"peaccel-bench-{os.getppid()}"
            own.mkdir(exist_ok=True)
            if not (own / name).exists():
                own.rmdir()
                continue
            (own / name).write_text(str(size))
            (own / "cgroup.procs").write_text(str(os.getpid()))
            return f"a memory cgroup of {size // MEGABYTE} MB, which counts pages of files too"
        except OSError:
            continue
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    return f"RLIMIT_DATA of {size // MEGABYTE} MB, which counts no pages of files"


class OwnMemory:
    """Bytes of memory that are this process's own, and the most of them while it watches, as Linux counts them."""

    def __enter__(self) -> OwnMemory:
        self.first = self.most = self.now()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watching)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _watching(self) -> None:
        """Look every ten milliseconds."""
        while not self._ended.wait(0.01):
            self.most = max(self.most, self.now())

    @staticmethod
    def now() -> float:
        """Bytes at this moment."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


# ---- mapped ----------------------------------------------------------------------------------------------------------


def mapped(quick: bool) -> Iterator[Row]:
    """A FaissReranker, mapped and loaded: seconds until it is open, memory that is its own, seconds of a search."""
    rows, dim = 20_000 if quick else 1_000_000, 128
    gallery = items("isotropic", rows, dim)
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        for factory in ("Flat", "IVF256,Flat"):
            folder = Path(name) / factory
            pe.FaissReranker.build(gallery, factory, score="mls").save(folder)
            own, other = (in_process("open", how, folder, dim) for how in ("mapped", "loaded"))
            same = partial(equal, own["found"], other["found"])
            for what, unit in {"open": "s", "own memory": "B", "search": "s"}.items():
                sides = {"mapped": Side(own[what], {"loaded": None}), "loaded": other[what]}
                yield Row(f"FaissReranker over {factory}, {rows:,} x {dim}, {what}", sides, same, unit=unit)


def opened(how: str, folder: str, dim: str) -> dict[str, Any]:
    """Open a reranker in this process and search once."""
    pe.FaissReranker.build(pe.Point(np.eye(int(dim), dtype=np.float32)), "Flat", score="neg_sq_l2")  # imports FAISS
    __import__("safetensors.numpy")
    with OwnMemory() as own:
        start = time.perf_counter()
        reranker = pe.FaissReranker.open(folder, mmap=how == "mapped")
        opened, taken = time.perf_counter() - start, own.now() - own.first
        queries = pe.Normal(np.eye(int(dim), dtype=np.float32)[:QUERIES], np.full(QUERIES, 0.5, np.float32))
        start = time.perf_counter()
        ranking = reranker.search(queries, K)
        searched = time.perf_counter() - start
    return {"open": opened, "own memory": taken, "search": searched, "found": ranking.scores.tolist()}


# ---- Lance beside the disk and beside memory -------------------------------------------------------------------------


def append(quick: bool) -> Iterator[Row]:
    """Appending, flushed to the disk, beside Lance's own append without a look for ids, and beside a plain file.

    All write what was not there before: a file that is written over takes pages of memory that it had, which on a
    virtual machine is several times faster than taking new ones.
    """
    import lance

    d, rounds = items("isotropic", 10_000 if quick else 100_000, 512), itertools.count()
    part = len(d) // 5
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        folder = Path(name)
        gallery = pe.Gallery.create(folder / "a.lance", d[:1], [10**9], sync=True)
        pe.Gallery.create(folder / "b.lance", d[:1], [10**9])

        def blocks() -> Iterator[tuple[Any, Any]]:
            first = next(rounds) * len(d)
            for start in range(0, len(d), part):
                yield d[start : start + part], first + start + np.arange(part)

        def kept() -> None:
            for block, ids in blocks():
                gallery.add(block, ids)

        def plain_lance() -> None:
            for block, ids in blocks():
                lance.write_dataset(pe.io.to_arrow(block, ids), folder / "b.lance", mode="append")
            for path in (folder / "b.lance").rglob("*"):
                synchronise(path)

        def plain() -> None:
            with (folder / f"plain {next(rounds)}").open("wb") as file:
                for x in d.arrays:
                    file.write(x.data)
                file.flush()
                os.fsync(file.fileno())

        sides = {"peaccel": Side(kept, {"a file": 1 / 0.7}), "Lance alone": plain_lance, "a file": plain}
        megabytes = (sum(x.nbytes for x in d.arrays) // 10**6, "MB")
        for clock, how in ((time.perf_counter, ""), (time.process_time, ", of the processor")):
            work = f"append {len(d):,} x 512, flushed{how}"
            yield Row(work, sides, per=megabytes, seconds=10, clock=clock, threads=os.cpu_count() or 1)


def opening(quick: bool) -> Iterator[Row]:
    """Opening a gallery until a first candidate is scored; the first time it makes the map of its ids."""
    d = items("isotropic", 20_000 if quick else 1_000_000, 32)
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        path = Path(name, "o.lance")
        pe.Gallery.create(path, d, np.arange(len(d)))

        def whole() -> None:
            pe.Gallery.open(path).rescore(d[:1], [[7]])

        first = by_turns({"": whole}, 0)[""].seconds
        sides = {
            "open and score one candidate": Side(whole, {"the goal": 1.0}),
            "open": lambda: pe.Gallery.open(path),
            "the first time": first,
            "the goal": 0.1,
        }
        yield Row(f"open a gallery of {len(d):,} x 32", sides, threads=os.cpu_count() or 1)


def reranking(quick: bool) -> Iterator[Row]:
    """Candidates by their ids from a gallery whose map is cached, and from memory, where ids are looked up too."""
    rows, dim, queries, count = 20_000 if quick else 200_000, 512, 1000, 100
    d, rng = items("isotropic", rows, dim), np.random.default_rng(1)
    ids = np.sort(rng.choice(10**9, rows, replace=False))
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        gallery = pe.Gallery.create(Path(name, "r.lance"), d, ids, rows=rows // 4)
        q, candidates = items("isotropic", queries, dim, 1), rng.choice(ids, (queries, count))
        peers = {"peaccel in memory": lambda: pe.rerank(q, d, np.searchsorted(ids, candidates), K)}
        for _ in range(2):
            work = f"rerank of {queries} x {count} from {rows:,} x {dim}, {gallery.info()['fragments']} fragments"
            yield beside(
                work,
                lambda: gallery.rerank(q, candidates, K),
                peers,
                lambda own, other: np.testing.assert_array_equal(own.ids, ids[other.ids]),
                goal=1.3,
                clock=time.process_time,
                threads=os.cpu_count() or 1,
            )
            gallery.compact(keep_days=0)


def upserting(path: Path, rows: int, dim: int, stop: Any) -> None:
    """Upsert one per cent of a gallery, again and again, until it is told to stop."""
    gallery = pe.Gallery.open(path)
    for seed in itertools.count(10):
        if stop.is_set():
            return
        ids = np.random.default_rng(seed).choice(rows, rows // 100, replace=False)
        gallery.upsert(items("isotropic", len(ids), dim, seed), ids)
        time.sleep(0.2)


def upserts(quick: bool) -> Iterator[Row]:
    """Searches through an index while another process upserts one per cent of the items at a time, and alone."""
    rows, dim = 20_000 if quick else 100_000, 128
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        path = Path(name, "u.lance")
        gallery = pe.Gallery.create(path, items("isotropic", rows, dim), np.arange(rows))
        queries = items("isotropic", 64, dim, 1)
        gallery.build_index("IVF256,Flat")

        def search() -> Any:
            return gallery.refresh().search(queries, K, shortlist=100)

        search()
        alone = by_turns({"": search}, 1, time.process_time)[""].seconds
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        process = context.Process(target=upserting, args=(path, rows, dim, stop))
        process.start()
        while gallery.refresh().info()["unseen"] == 0:
            time.sleep(0.05)
        at_once = by_turns({"": search}, 1, time.process_time)[""].seconds
        stop.set()
        process.join()
        work = f"64 queries through an index of {rows:,} x {dim}, up to {gallery.refresh().info()['unseen']} unseen"
        sides = {"while 1 % is upserted at a time": Side(at_once, {"alone": None}), "alone": alone}
        yield Row(f"{work}, of the processor", sides)


if __name__ == "__main__":
    word, *words = sys.argv[1:]
    print(json.dumps(opened(*words) if word == "open" else stream(word, *words)))
