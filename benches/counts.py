"""Instructions of every kernel against those of `counts.toml`: `python -m benches.counts [--update | --bits]`.

Counts do not depend on how busy a machine is, so a kernel that got slower shows on any. They are callgrind's, of the
compiled core as it is installed, on each SIMD level that valgrind can run (it knows no AVX-512); those of Python,
numpy and libc are left out. Exit 1 where a count moved by more than the tolerance, up or down: gains are to be kept.

Counts are the compiler's as much as the source's: with another compiler or family of processors than those of
`counts.toml`, or in a build without CUDA, among whose functions others are inlined, they are shown and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import candidates, distribution, fields, kernels, pe

TOLERANCE = 0.02
FILE = Path(__file__).with_name("counts.toml")
DIM, QUERIES, CANDIDATES, K = 128, 4, 32, 4
Case = tuple[str, Callable[[], Any]]
Counts = Mapping[str, int]


# ---- what is counted -------------------------------------------------------------------------------------------------


def elements(dtype: str) -> Iterator[Case]:
    """The Bessel family on 1,024 elements of one order; 2 draws of 16 items, and their gradient."""
    x = np.random.default_rng(0).uniform(1, 1000, 1024).astype(dtype)
    for op in (op for op in pe.ops.OPS if isinstance(op, pe.ops.Op)):
        call = partial(pe.ops.elementwise, op, *([np.array(64.0)] if op.has_order else []), x)
        call()  # makes the order's table
        yield f"{op.name} {dtype}", call
    weights = np.ones((2, 16, DIM), dtype)
    for op, kind in ((pe.ops.samplers.sample_normal, "isotropic"), (pe.ops.samplers.sample_vmf, "vmf")):
        drawn = [field.astype(dtype) for field in fields(kind, 16, DIM, seed=1)]
        yield f"{op.name} {dtype}", partial(pe.ops._numpy.sample, op, *drawn, seed=1, n=2, first_row=0, stream=0)
        yield f"{op.name} backward {dtype}", partial(pe.ops._numpy.sample_backward, op, weights, *drawn, 1, 0, 0)


def clustered(kind: str, rows: int, seed: int, dtype: str = "float32") -> Any:
    """Items in clusters, so that bounds rule some pairs out."""
    return distribution(kind, tuple(x.astype(dtype) for x in fields(kind, rows, DIM, seed, classes=4)))


def scores() -> Iterator[Case]:
    """Every kernel of scores: pairs, their gradient and that of all pairs, the best of a shortlist and of a gallery."""
    for name, kernel in kernels().items():
        rows = 8 if kernel.costly else 32
        a, b = (clustered(kind, rows, seed, "float64") for seed, kind in enumerate(kernel.kinds))
        yield f"{name} paired float64", partial(pe.paired, a, b, kernel.score)
        a, b = (clustered(kind, rows, seed) for seed, kind in enumerate(kernel.kinds))
        for verb, call in kernel.calls(a, b, b, QUERIES, CANDIDATES, K).items():
            yield f"{name} {'paired float32' if verb == 'paired' else verb}", call


def ways() -> Iterator[Case]:
    """Calls that are large enough for the verbs' other paths."""
    q, g = clustered("isotropic", 32, 1), clustered("isotropic", 1024, 2)
    ready, search = pe.prepare(g), partial(pe.search, k=K)
    yield "mls_isotropic prepare", partial(pe.prepare, g)
    yield "mls_isotropic all pairs", partial(pe.pairwise, q[:QUERIES], g)
    yield "mls_isotropic search of a plain gallery of 1024", partial(search, q, g)
    yield "mls_isotropic search of 1024", partial(search, q, ready)
    yield "mls_isotropic search of 1024, one query", partial(search, q[:1], ready)
    coded = pe.prepare(g, codes=True)
    yield "mls_isotropic prepare with codes", partial(pe.prepare, g, codes=True)
    yield "mls_isotropic search of 1024, by codes", partial(search, q, coded, prune="always")
    yield "mls_isotropic search of 1024, by codes, one query", partial(search, q[:1], coded, prune="always")
    yield "mls_isotropic search of 1024, the best 100", partial(search, q[:QUERIES], ready, k=100)
    yield "mls_vmf search of 1024", partial(search, clustered("vmf", 8, 1), pe.prepare(clustered("vmf", 1024, 2)))
    q, g = clustered("diagonal", 16, 1), clustered("diagonal", 1280, 2)
    yield "mls_diagonal search of 1280, scanned", partial(search, q[:QUERIES], g, prune="never")
    yield "mls_diagonal search of 1280, pruned", partial(search, q, g, prune="always")
    ids, half = candidates(QUERIES, CANDIDATES, len(g)), pe.prepare(g, dtype="float16")
    yield "mls_diagonal rerank of float16", partial(pe.rerank, q[:QUERIES], half, ids, K)


def cases() -> Iterator[Case]:
    """All that is counted."""
    yield from elements("float32")
    yield from elements("float64")
    yield from scores()
    yield from ways()


def run() -> None:
    """Make every call between two marks, and say which it was."""
    mark = pe._core.num_threads
    for name, call in cases():
        mark()
        call()
        mark()
        print(name, flush=True)


def print_bits() -> None:
    """Print a hash of the arrays that every call returns, by which levels and machines are compared."""
    for name, call in cases():
        found = call()
        arrays = [x for x in (found if isinstance(found, tuple) else [found]) if isinstance(x, np.ndarray)]
        print(name, sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:16])


# ---- counting --------------------------------------------------------------------------------------------------------


def counted(level: str) -> dict[str, int]:
    """Instructions of each case: callgrind counts inside the core's functions, and writes that down at each mark."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--collect-atstart=no", f"--callgrind-out-file={folder}/out"]
        options += ["--toggle-collect=peaccel::python::*::__pyfunction_*"]
        options += ["--dump-before=peaccel::python::__pyfunction_num_threads"]
        command = ["valgrind", "--tool=callgrind", *options, sys.executable, "-m", "benches.counts", "--run"]
        env = os.environ | {"PEACCEL_SIMD": level}
        names = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        return {name: total(Path(folder, f"out.{2 * i}")) for i, name in enumerate(names, 1)}


def total(dump: Path) -> int:
    """Instructions that callgrind counted in the core's own functions since the dump before.

    Not in libc's: how much of its memory is clean or moved depends on what the process did before.
    """
    objects: dict[str, str] = {}
    count, own, call = 0, False, False
    for line in dump.read_text().splitlines():
        if line.startswith(("ob=", "cob=")):  # a number, with its name at the first occurrence
            number, _, name = line.partition("=")[2].partition(" ")
            objects[number] = name or objects[number]
            own = "_core" in objects[number] if line.startswith("ob=") else own
        elif line.startswith("calls="):
            call = True  # the next line is of the function that is called
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            count += int(line.split()[1]) if own and not call else 0
            call = False
    if not count:
        raise RuntimeError("callgrind counted nothing: are the functions of peaccel._core called otherwise?")
    return count


def same(now: int, before: int | None) -> bool:
    """Whether a count is what it was, within the tolerance."""
    return before is not None and abs(now - before) <= TOLERANCE * before


def moved(now: Counts, before: Counts) -> Iterator[str]:
    """A line for each count that is not what it was."""
    for name, count in now.items():
        old = before.get(name)
        if old is None:
            yield f"{name}: {count:,} instructions, not in counts.toml"
        elif not same(count, old):
            yield f"{name}: {count:,} instructions, {count / old:.3f} times the {old:,} of counts.toml"
    yield from (f"{name}: in counts.toml alone" for name in before.keys() - now.keys())


def least(level: str, before: Counts) -> Counts:
    """Counts; if one moved, the lesser of two: a call that takes more than 50 ms also asks Python about signals."""
    first = counted(level)
    if not any(moved(first, before)):
        return first
    second = counted(level)
    return {name: min(count, second[name]) for name, count in first.items()}


def build() -> str:
    """The environment that counts depend on beside the source."""
    rustc = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"{rustc}, {platform.machine()}, {'with' if pe._core.cuda_info()[0] else 'without'} CUDA"


def update(found: Mapping[str, Counts], kept: Mapping[str, Any]) -> None:
    """Write the file; counts that did not move stay as they are, so that the difference shows what did."""
    lines = ["# Written by `make counts-update`.", f"build = {json.dumps(build())}"]
    for level, counts in found.items():
        before = kept.get(level, {})
        lines += ["", f"[{level}]"]
        lines += [f'"{name}" = {before[name] if same(now, before.get(name)) else now}' for name, now in counts.items()]
    FILE.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Count and compare, or write the counts down."""
    parser = argparse.ArgumentParser(prog="python -m benches.counts", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write counts.toml")
    parser.add_argument("--run", action="store_true", help="make the calls alone, for valgrind")
    parser.add_argument("--bits", action="store_true", help="print a hash of what each call returns, and count nothing")
    options = parser.parse_args()
    if options.run or options.bits:
        run() if options.run else print_bits()
        return 0
    if shutil.which("valgrind") is None:
        print("counts: nothing was counted, there is no valgrind (Debian: apt-get install valgrind)")
        return 1
    kept = tomllib.loads(FILE.read_text())
    judged = kept["build"] == build()
    levels = ("baseline",) if pe.build_info()["simd"] == "baseline" else ("baseline", "avx2")
    with ThreadPoolExecutor() as pool:
        found = dict(zip(levels, pool.map(lambda level: least(level, kept[level]), levels), strict=True))
    if options.update:
        update(found, kept if judged else {})
        return 0
    lines = [f"{level}, {line}" for level, counts in found.items() for line in moved(counts, kept[level])]
    why = "if that is meant: make counts-update" if judged else f"not judged: {kept['build']} then, {build()} now"
    lines.append(f"counts: of {sum(map(len, found.values()))}, {len(lines)} moved by more than {TOLERANCE:.0%}; {why}")
    print(*lines, sep="\n")
    return 1 if judged and len(lines) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
