"""Peaccel beside its peers: `python -m benches.ratios [--quick] [--only NAME ...]` prints one table.

A name is a group of rows or one of the tables that they make up: "peers" (a quarter of an hour) beside FAISS, torch and
scipy; "cliffs" (ten minutes), where the peer is a neighbour, another path of peaccel or what one writes with numpy;
"train-step" (ten minutes); "galleries" (half an hour), on disks and in shards. A ratio is the time (or bytes) of
peaccel over that of a peer, a goal the largest that is wanted; one that is not met is printed as "no". One thread each
unless the row says two. The run fails (exit 1) only where the comparison is unsound: sides that do not compute the
same, one that takes more threads than it should, or a peer that looks starved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from benches import blas
from benches.data import pe
from benches.peers import torch
from benches.table import Row, machine, show

# The file in rows/ of each group.
TABLES: dict[str, dict[str, str]] = {
    "peers": {
        **dict.fromkeys(("rerank", "search", "codes", "plda", "prune"), "retrieval"),
        "main_job": "main_job",
        **dict.fromkeys(("log_ive", "samplers"), "special"),
        "training": "training",
        "imports": "machine",
    },
    "cliffs": {
        **dict.fromkeys(("rescore_halves", "layouts", "derived", "expected_cosine", "nivmf"), "neighbours"),
        **dict.fromkeys(
            ("long_lists", "removals", "not_finite", "common_mean", "odd_dimensions", "few_queries"), "neighbours"
        ),
        **dict.fromkeys(("diagonal_scores", "wide_concentrations", "memory"), "neighbours"),
        **dict.fromkeys(("many_orders", "float32_tables"), "special"),
        **dict.fromkeys(("densities", "fusing", "first_stages"), "fits"),
        **dict.fromkeys(("threads", "halves"), "machine"),
    },
    "train-step": dict.fromkeys(("losses", "losses_of_draws", "losses_by_batch", "compiled_losses", "steps"), "losses"),
    "galleries": {
        **dict.fromkeys(("streaming", "mapped", "append", "opening", "reranking", "upserts"), "galleries"),
        "tables": "tables",
        "shards": "machine",
        "user_metrics": "user_metrics",
    },
}


def facts() -> str:
    """The machine and the versions."""
    versions = ", ".join(f"{m} {sys.modules[m].__version__}" for m in ("numpy", "torch", "faiss", "scipy"))
    mkl = "; torch: MKL, which does not say" if torch.backends.mkl.is_available() else ""
    return (
        f"machine: {machine()}\npeaccel: {pe.build_info()}\nversions: {versions}\n"
        f"BLAS kernels: {blas.kernels()}{mkl}\n"
        "a rate stands beside what the core did just before: multiply-adds of float32, or sums of an array in memory\n"
    )


def groups(only: list[str]) -> dict[str, Callable[[bool], Iterator[Row]]]:
    """The groups of rows that are asked for, by name."""
    files = {
        group: file
        for table, groups in TABLES.items()
        for group, file in groups.items()
        if not only or {table, group} & {*only}
    }
    return {group: getattr(import_module(f"benches.rows.{file}"), group) for group, file in files.items()}


def main() -> int:
    """Print the table; 1 where a comparison was unsound."""
    parser = argparse.ArgumentParser(prog="python -m benches.ratios", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: shows that all of it runs")
    names = [*TABLES, *(group for groups in TABLES.values() for group in groups)]
    parser.add_argument("--only", choices=names, nargs="+", metavar="NAME", default=[], help=", ".join(names))
    options = parser.parse_args()
    print(facts())
    return show(groups(options.only), options.quick)


if __name__ == "__main__":
    sys.exit(main())
