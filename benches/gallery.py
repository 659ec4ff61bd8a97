"""Galleries that are not in memory: `python -m benches.gallery --only streaming` (or mapped; by default all sections).

**streaming**: isotropic normals of 256 dimensions, three times what the process may have in memory, are searched once
by 32 queries. Each source is read alone, a block of it is scored alone as often as there are blocks, and both go on at
once, each in a process of its own under the limit: a memory cgroup where one can be made, which counts pages of files
too, so that nothing is left in memory from one pass to the next, else RLIMIT_DATA. In seconds by the clock and of the
processor; what counts is the time of both over the longer of either alone.

**mapped**: a FaissReranker of a million items of 128 dimensions, loaded and mapped: seconds until it is open, memory
that is its own (anonymous), and seconds of a search.

**append**, **open**, **rerank**, **upserts**: a `pe.Gallery` beside the disk and beside memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import peaccel as pe
from benches import lance_galleries

DIM, QUERIES, K, ROWS = 256, 32, 10, 65_536
MEGABYTE = 2**20
ITEMS, NARROW = 1_000_000, 128


# -- streaming ---------------------------------------------------------------------------------------------------------


def streaming(limit: int) -> None:
    """The table of sources, under a limit of so many megabytes."""
    blocks = -(-3 * limit * MEGABYTE // (ROWS * (DIM + 1) * 4))
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        folder = Path(name)
        _write(folder, blocks)
        size = (folder / "mu.npy").stat().st_size / MEGABYTE
        said, row = "", "{:20} {:>8} {:>8} {:>8} {:>8} {:>10} {:>12}"
        print(f"{blocks * ROWS} x {DIM}, {size:.0f} MB in {blocks} blocks, {QUERIES} queries")
        print(row.format("s (s of processor)", "read", "score", "both", "", "both over", "own memory"))
        for source in SOURCES:
            told = {work: _told(work, source, folder, limit) for work in ("read", "score", "both")}
            if any("error" in x for x in told.values()):
                print(f"{source:20} {next(x['error'] for x in told.values() if 'error' in x)}")
                continue
            said = told["both"]["limit"]
            ratio = told["both"]["seconds"] / max(told["read"]["seconds"], told["score"]["seconds"])
            for what, last in (("seconds", (f"{ratio:.2f}", f"{told['both']['own']:.0f} MB")), ("processor", ("", ""))):
                numbers = [f"{told[work][what]:.2f}" for work in ("read", "score", "both")]
                print(row.format(source if what == "seconds" else "  processor", *numbers, "", *last))
        print(f"limit: {said}")
    _remove_groups()


def _write(folder: Path, blocks: int) -> None:
    """The gallery in .npy files, block by block, and as Parquet and Lance where these are installed."""
    rng = np.random.default_rng(0)
    shapes = {"mu": (blocks * ROWS, DIM), "var": (blocks * ROWS,)}
    files = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, x) for name, x in shapes.items()}
    for i in range(blocks):
        rows = slice(i * ROWS, (i + 1) * ROWS)
        files["mu"][rows] = rng.standard_normal((ROWS, DIM), np.float32)
        files["var"][rows] = rng.uniform(0.1, 2, ROWS)
    del files
    if not hasattr(pe.io, "arrow_blocks"):
        return
    import lance
    import pyarrow as pa
    from pyarrow import parquet

    def batches() -> Iterator[Any]:
        for block in pe.io.read_blocks(folder / "mu.npy", var=folder / "var.npy"):
            mu = pa.FixedSizeListArray.from_arrays(pa.array(block.mu.reshape(-1)), DIM)
            yield pa.record_batch([mu, pa.array(block.var)], names=["mu", "var"])

    schema = next(batches()).schema
    with parquet.ParquetWriter(folder / "gallery.parquet", schema) as file:
        for batch in batches():
            file.write_batch(batch)
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), folder / "gallery.lance")


def _mapped(folder: Path) -> list[pe.Distribution]:
    whole = pe.Normal(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("mu", "var")))
    return [whole[start : start + ROWS] for start in range(0, len(whole), ROWS)]


def _parquet(folder: Path) -> Any:
    from pyarrow import parquet

    # Without a buffer, pyarrow holds whole row groups as they lie in the file, beside what it makes of them.
    file = parquet.ParquetFile(folder / "gallery.parquet", pre_buffer=False, buffer_size=MEGABYTE)
    return pe.io.arrow_blocks(file, rows=ROWS)


def _lance(folder: Path) -> Any:
    import lance

    ahead = {"batch_readahead": 1, "fragment_readahead": 1, "io_buffer_size": 64 * MEGABYTE}
    return pe.io.arrow_blocks(
        lance.dataset(folder / "gallery.lance").scanner(batch_size=8192, **ahead).to_reader(), rows=ROWS
    )


SOURCES: dict[str, Callable[[Path], Iterable[pe.Distribution]]] = {
    "raw files, read": lambda folder: pe.io.read_blocks(folder / "mu.npy", var=folder / "var.npy"),
    "raw files, mapped": _mapped,
    "Parquet": _parquet,
    "Lance": _lance,
}


def _told(work: str, source: str, folder: Path, limit: int) -> dict[str, Any]:
    """What a process that does the work under the limit says of it."""
    command = [sys.executable, "-m", "benches.gallery", "--work", work, source, str(folder), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        killed = "killed, as it took more memory than the limit"
        return {"error": killed if done.returncode == -9 else (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def work(what: str, source: str, folder: str, limit: str) -> None:
    """Read, score or both, in this process, under the limit."""
    rng = np.random.default_rng(1)
    queries = pe.Normal(*np.float32([rng.standard_normal((QUERIES, DIM)), np.full((QUERIES, DIM), 0.5)]))
    queries = pe.Normal(queries.mu, queries.var[:, 0].copy())
    gallery, said = SOURCES[source](Path(folder)), _limit(int(limit) * MEGABYTE)
    if what == "score":
        first = next(iter(gallery))
        block = pe.Normal(first.mu.copy(), first.var.copy())
        count = -(-Path(folder, "mu.npy").stat().st_size // (ROWS * DIM * 4 + 128))
        gallery = itertools.repeat(block, count)
    with OwnMemory() as own:
        before, start = _processor(), time.perf_counter()
        if what == "read":
            for block in gallery:
                block.mu.reshape(-1)[:: 4096 // 4].max()  # a number of each page, which a map reads then
                del block
        else:
            pe.search(queries, gallery, K)
        seconds, processor = time.perf_counter() - start, _processor() - before
    print(json.dumps({"seconds": seconds, "processor": processor, "own": own.most - own.first, "limit": said}))


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _limit(size: int) -> str:
    """Limit the memory of this process, and say how."""
    for group, name in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
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


def _remove_groups() -> None:
    for group in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        own = group / f"peaccel-bench-{os.getpid()}"
        if own.is_dir():
            own.rmdir()


class OwnMemory:
    """Megabytes of memory that are this process's own, and the most of them while it watches, as Linux counts them."""

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
        while not self._ended.wait(0.01):
            self.most = max(self.most, self.now())

    @staticmethod
    def now() -> float:
        """Megabytes at this moment."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


# -- mapped ------------------------------------------------------------------------------------------------------------


def mapped(limit: int) -> None:
    """The table of rerankers, loaded and mapped; without a limit."""
    rng = np.random.default_rng(0)
    gallery = pe.Normal(rng.standard_normal((ITEMS, NARROW), np.float32), rng.uniform(0.1, 2, ITEMS).astype(np.float32))
    row = "{:16} {:8} {:>12} {:>16} {:>14}"
    print(f"{ITEMS} x {NARROW}, {gallery.mu.nbytes / MEGABYTE:.0f} MB of means")
    print(row.format("index", "", "open, ms", "own memory, MB", "search, ms"))
    with tempfile.TemporaryDirectory(prefix="peaccel-gallery-") as name:
        for factory in ("Flat", "IVF256,Flat"):
            folder = Path(name) / factory
            pe.FaissReranker.build(gallery, factory, score="mls").save(folder)
            found = []
            for how in ("loaded", "mapped"):
                command = [sys.executable, "-m", "benches.gallery", "--work", "open", how, str(folder), ""]
                told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(row.format(factory, how, *(f"{told[x]:.0f}" for x in ("open", "own", "search"))))
                found.append(told["found"])
            assert found[0] == found[1]
            shutil.rmtree(folder)


def opened(how: str, folder: str) -> None:
    """Open a reranker in this process and search once."""
    load = pe.FaissReranker.load
    pe.FaissReranker.build(pe.Point(np.eye(NARROW, dtype=np.float32)), "Flat", score="neg_sq_l2")  # imports FAISS
    __import__("safetensors.numpy")
    with OwnMemory() as own:
        start = time.perf_counter()
        reranker = load(folder, mmap=how == "mapped")
        opened = time.perf_counter() - start
        taken = own.now() - own.first
        queries = pe.Normal(np.eye(NARROW, dtype=np.float32)[:QUERIES], np.full(QUERIES, 0.5, np.float32))
        start = time.perf_counter()
        ranking = reranker.search(queries, K)
        searched = time.perf_counter() - start
    told = {"open": 1e3 * opened, "own": taken, "search": 1e3 * searched}
    print(json.dumps({**told, "found": [ranking.ids.tolist(), ranking.scores.tolist()]}))


SECTIONS: dict[str, Callable[[int], None]] = {
    "streaming": streaming,
    "mapped": mapped,
    **{name: lambda _, name=name: lance_galleries.show(name) for name in lance_galleries.SECTIONS},
}


def main() -> None:
    """The sections that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benches.gallery", description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, nargs="*", default=list(SECTIONS), help="sections; by default all")
    parser.add_argument("--limit", type=int, default=768, help="megabytes of memory that streaming may take")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)  # what the processes are told that it starts
    given = parser.parse_args()
    if given.work and given.work[0] == "open":
        return opened(*given.work[1:3])
    if given.work:
        return work(*given.work)
    for name in given.only:
        SECTIONS[name](given.limit)
    return None


if __name__ == "__main__":
    main()
