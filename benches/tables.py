"""What it takes to make a distribution of a table: `python -m benches.tables`.

400,000 x 128 float32 means and a variance each, which each client holds in its own way. Processor seconds, the least of
some rounds, of `pe.io.from_arrow`; of what a user would write with pyarrow, which asks the client for a table and takes
numpy arrays of it, by turns; and of the look at all values, which only the first of them has. Then the memory held.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
from pyarrow import parquet

import peaccel as pe

ITEMS, DIM, ROUNDS = 400_000, 128, 3


def clients(table: Any, folder: Path) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """By client what holds the table, and how its own library makes a table of pyarrow of it."""
    import datasets
    import duckdb
    import lance
    import polars

    parquet.write_table(table, folder / "t.parquet")
    hugging = datasets.Dataset.from_parquet(str(folder / "t.parquet"), cache_dir=str(folder))
    chunked = pa.concat_tables(table.slice(i, ITEMS // 8) for i in range(0, ITEMS, ITEMS // 8))
    columns = ["mu", "var"]
    return {
        "pyarrow, one chunk": (table, lambda t: t),
        "pyarrow, 8 chunks": (chunked, lambda t: t),
        "Parquet": (pa.dataset.dataset(folder / "t.parquet"), lambda d: d.to_table(columns)),
        "Lance": (lance.write_dataset(table, folder / "t.lance"), lambda d: d.to_table(columns)),
        "Polars": (polars.from_arrow(table), lambda d: d.to_arrow()),
        "DuckDB": (duckdb.connect().from_arrow(table), lambda r: r.to_arrow_table()),
        "datasets": (hugging, lambda d: d.with_format("arrow")[:]),
        "datasets, a quarter, shuffled": (
            hugging.shuffle(seed=0).select(range(ITEMS // 4)),
            lambda d: d.with_format("arrow")[:],
        ),
    }


def by_pyarrow(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of a table's columns, as one would write it."""
    mu, var = (table[name].combine_chunks() for name in ("mu", "var"))
    return mu.flatten().to_numpy().reshape(-1, DIM), var.to_numpy()


def least(calls: list[Callable[[], Any]]) -> list[float]:
    """The least processor seconds of each call, by turns."""
    found = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            found[i] = min(found[i], time.process_time() - start)
    return found


def allocated(call: Callable[[], Any]) -> float:
    """MB that numpy and pyarrow hold after a call for what it gave."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    kept = call()
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    del kept
    return held / 1e6


def main() -> None:
    rng = np.random.default_rng(0)
    d = pe.Normal(rng.standard_normal((ITEMS, DIM), np.float32), rng.random(ITEMS, np.float32))
    table = pe.io.to_arrow(d)
    print("| source | from_arrow s | of these to look at all values | by pyarrow s | MB held |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, to_table) in clients(table, Path(folder)).items():
            own, other, look = least(
                [
                    lambda s=source: pe.io.from_arrow(s),
                    lambda s=source, f=to_table: by_pyarrow(f(s)),
                    d.validate,
                ]
            )
            held = allocated(lambda s=source: pe.io.from_arrow(s))
            print(f"| {name} | {own:.2f} | {look:.2f} | {other:.2f} | {held:.0f} |", flush=True)


if __name__ == "__main__":
    main()
