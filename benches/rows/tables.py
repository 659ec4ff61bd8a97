"""The cost of making a distribution of a table that a client holds in its own way.

400,000 x 128 float32 means and a variance each: `pe.io.from_arrow`; what a user would write with pyarrow, which asks
the client for a table and takes numpy arrays of it; and the look at all values, which only the first of them has.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import optional, pe
from benches.table import Row, Run, Side, beside, same_arrays

pa = optional("pyarrow")


def clients(table: Any, folder: Path) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """By client what holds the table, and how its own library makes a table of pyarrow of it."""
    optional("pyarrow.parquet").write_table(table, folder / "t.parquet")
    hugging = optional("datasets").Dataset.from_parquet(str(folder / "t.parquet"), cache_dir=str(folder))
    chunked = pa.concat_tables(table.slice(i, len(table) // 8) for i in range(0, len(table), len(table) // 8))
    some, columns = hugging.shuffle(seed=0).select(range(len(table) // 4)), ["mu", "var"]
    return {
        "pyarrow, one chunk": (table, lambda t: t),
        "pyarrow, 8 chunks": (chunked, lambda t: t),
        "Parquet": (optional("pyarrow.dataset").dataset(folder / "t.parquet"), lambda d: d.to_table(columns)),
        "Lance": (optional("lance").write_dataset(table, folder / "t.lance"), lambda d: d.to_table(columns)),
        "Polars": (optional("polars").from_arrow(table), lambda d: d.to_arrow()),
        "DuckDB": (optional("duckdb").connect().from_arrow(table), lambda r: r.to_arrow_table()),
        "datasets": (hugging, lambda d: d.with_format("arrow")[:]),
        "datasets, a quarter, shuffled": (some, lambda d: d.with_format("arrow")[:]),
    }


def by_pyarrow(source: Any, to_table: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of a table's columns, as one would write it."""
    mu, var = (to_table(source)[name].combine_chunks() for name in ("mu", "var"))
    return mu.flatten().to_numpy().reshape(len(var), -1), var.to_numpy()


def allocated(call: Run) -> float:
    """Bytes that numpy and pyarrow hold after a call for what it gave."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    kept = call()
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    del kept
    return float(held)


def tables(quick: bool) -> Iterator[Row]:
    """By client: processor seconds, and the memory that is held."""
    items, dim, rng = 20_000 if quick else 400_000, 128, np.random.default_rng(0)
    d = pe.Normal(rng.standard_normal((items, dim), np.float32), rng.random(items, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, to_table) in clients(pe.io.to_arrow(d), Path(folder)).items():
            run = partial(pe.io.from_arrow, source)
            sides = {
                "peaccel": Side(run, {"by pyarrow": None}),
                "by pyarrow": partial(by_pyarrow, source, to_table),
                "the look at all values": d.validate,
            }
            work = f"from_arrow of {items:,} x {dim}, {name}"
            yield Row(work, sides, same_arrays, clock=time.process_time, threads=2)
            peers = {"the arrays": float(sum(x.nbytes for x in d.arrays))}
            yield beside(f"{work}, memory held", allocated(run), peers, unit="B")
