"""Launches, bytes, operations and instructions of calls on a GPU, counted without one, and the time by arithmetic.

    python -m benches.gpu_counts [--nvdisasm PATH]

A driver that only writes down what it is asked for stands in for CUDA's (`tests/fake_cuda.cpp`), so launches and
products are those of the calls themselves. Instructions of a pair are counted in the machine code that the core holds
for compute capability 9.0, by nvdisasm (PyPI: nvidia-cuda-nvdisasm): in the loop over pairs, up to where a warp votes
on the few that are left over. All rates are those of the data sheet, so times are limits; kernels without a count,
which take few pairs, count as launches alone.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import peaccel as pe
from peaccel import _core
from peaccel.ops import _cuda, _dispatch
from peaccel.retrieval.plan import plan

ROOT = Path(__file__).parent.parent
# Of an H100 SXM, a second: bytes, lanes' instructions, operations of float32, and of tensor cores by bytes of a number.
MEMORY, ISSUE, SINGLE, TENSOR = 3.35e12, 132 * 128 * 1.755e9, 67e12, {4: 494e12, 2: 989e12}
LAUNCH = 2e-6  # seconds from one kernel to the next on a stream
# The pairs, or pairs in 128 dimensions, that a thread, or a warp's lane, takes in an iteration of its loop.
ARITHMETIC = re.compile(r"\b(FFMA|FADD|FMUL|MUFU|DFMA|DADD|DMUL)\b")
AT_ONCE = {"sieve": 16, "scores": 4, "weights": 4, "search": 16}


class Call(NamedTuple):
    """A call: its function, and the bytes of the device's memory that it cannot but read and write."""

    name: str
    run: Callable[[], Any]
    traffic: float
    pairs: float  # pairs that kernels over all pairs take, in 128 dimensions where they go through these


# ---- machine code ----------------------------------------------------------------------------------------------------


def images() -> Iterator[bytes]:
    """The fatbins that the core holds."""
    embedded = Path(_core.__file__).read_bytes()
    for header in re.finditer(rb"\xd8\0\0[^\0]\0.{4}\0{4}", embedded, re.DOTALL):
        with suppress(lzma.LZMAError):
            yield lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(embedded[header.start() :])


def machine_code(fatbin: bytes) -> Iterator[bytes]:
    """The ELF files in a fatbin."""
    for found in re.finditer(b"\x7fELF", fatbin):
        elf = fatbin[found.start() :]
        segments, sections = struct.unpack_from("<QQ", elf, 32)
        size, count, width, number = struct.unpack_from("<HHHH", elf, 54)
        yield elf[: max(segments + size * count, sections + width * number)]


def loops(nvdisasm: str) -> dict[str, int]:
    """Instructions of the loop in which each kernel has most of its arithmetic, up to its first vote."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for elf in (elf for fatbin in images() for elf in machine_code(fatbin)):
            path = Path(folder, "x.cubin")
            path.write_bytes(elf)
            text = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
            for name, body in re.findall(r"\.section\s+\.text\.(\w+),(.*?)(?=\.section|\Z)", text, re.DOTALL):
                if name.split("_f")[0].endswith(tuple(AT_ONCE)):
                    found[name] = loop(body)
    return found


def loop(body: str) -> int:
    """As `loops`, of the text of a kernel."""
    instructions: list[str] = []
    labels, spans = {}, []
    for label, instruction in re.findall(r"^(\.L_\w+):|^\s+/\*[0-9a-f]+\*/\s+(.*?);", body, re.MULTILINE):
        if label:
            labels[label] = len(instructions)
            continue
        instructions.append(instruction)
        if jump := re.search(r"BRA.*?\((\.L_\w+)\)", instruction):
            spans += [(labels[jump[1]], len(instructions))] if jump[1] in labels else []
    # The shortest that has most of the arithmetic.
    work = {span: sum(ARITHMETIC.search(x) is not None for x in instructions[slice(*span)]) for span in spans}
    most = [span for span in spans if work[span] >= 0.75 * max(work.values())]
    first, last = min(most, key=lambda span: span[1] - span[0], default=(0, 0))
    votes = (i for i in range(first, last) if "VOTE" in instructions[i])
    return next(votes, last) - first


# ---- calls -----------------------------------------------------------------------------------------------------------


def calls() -> Iterator[Call]:
    """The calls of docs/cuda.md."""
    for rows, dim in ((1_000_000, 512), (1_000_000, 128)):
        gallery = pe.prepare(pe.Normal(torch.zeros(rows, dim), torch.zeros(rows)))
        for queries in (1, 32, 256, 2048):
            q = pe.Normal(torch.zeros(queries, dim), torch.zeros(queries))
            run = partial(pe.search, q, gallery, 10)
            yield Call(f"search mls, {queries} into {rows:,} x {dim}", run, rows * (2 * dim + 12), queries * rows)
    d = pe.Normal(torch.zeros(200_000, 512), torch.zeros(200_000, 512))
    run, each = partial(pe.search, d[:256], d, 10), 256 * 200_000 * 4
    yield Call("search diagonal mls, 256 into 200,000 x 512", run, 8 * 200_000 * 512, each)
    for n, dim in ((256, 128), (4096, 512)):
        mu, other = torch.zeros(n, dim), torch.zeros(n, dim)
        q, g, seed = pe.Normal(mu, torch.zeros(n)), pe.Normal(other, torch.zeros(n)), torch.zeros(n, n)
        traffic = 4 * n * (2 * dim + n)
        op = pe.ops.dot_scores.mls_isotropic
        for name, a, b in (("two sets", q, g), ("one set", q, q)):
            inputs = plan(a, b, "mls", detach=True).inputs
            run = partial(_cuda.score, op, inputs, None, True)
            yield Call(f"all pairs mls of {name}, {n} x {n} x {dim}", run, traffic, n * n)
            wanted = _core.EVERY_GRADIENT if a is not b else _core.QUERY | _core.TOGETHER
            run = partial(_cuda.score_backward, op, seed, inputs, None, True, wanted, torch.zeros(n, n))
            yield Call(f"gradients of all pairs mls of {name}, {n} x {n} x {dim}", run, 3 * traffic, n * n)


def trace(call: Call, path: Path) -> list[list[str]]:
    """The launches, products and fills of a call: names, and sizes."""
    call.run()
    path.write_text("")
    call.run()
    return [line.split() for line in path.read_text().splitlines()]


def product(path: Path, left: Any, right: Any, out: Any = None) -> Any:
    """A product by torch, which is written down."""
    with path.open("a") as file:
        file.write(f"torch.mm {len(left)} {right.shape[1]} {left.shape[1]}\n")
    return left.new_empty((len(left), right.shape[1])) if out is None else out


def times(call: Call, launches: list[list[str]], instructions: dict[str, int]) -> tuple[dict[str, float], float, float]:
    """Seconds by what takes them, operations of products and instructions of a pair."""
    spent, operations, each = {"memory": call.traffic / MEMORY}, 0.0, 0.0
    for name, *sizes in launches:
        if name in ("product", "torch.mm"):
            rows, columns, dim, *width = map(int, sizes)
            operations += 2.0 * rows * columns * dim
            rate = TENSOR[width[0]] if width else SINGLE
            spent["products"] = spent.get("products", 0) + 2.0 * rows * columns * dim / rate
    for driver, at_once in AT_ONCE.items():
        kernels = {name for name, *_ in launches if f"_{driver}_f" in name}
        for name in kernels & instructions.keys():
            each = instructions[name] / at_once
            lanes = 32 if driver == "search" else 1
            spent["instructions"] = spent.get("instructions", 0) + each * call.pairs * lanes / ISSUE
    spent["launches"] = LAUNCH * len(launches)
    return spent, operations, each


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    nvdisasm = parser.parse_args().nvdisasm
    with tempfile.TemporaryDirectory() as folder:
        library, path = Path(folder, "libcuda.so"), Path(folder, "trace")
        source = ROOT / "tests" / "fake_cuda.cpp"
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
        os.environ |= {"PEACCEL_LIBCUDA": str(library), "PEACCEL_LIBCUBLAS": str(library), "FAKE_CUDA_TRACE": str(path)}
        os.environ["FAKE_CUDA_MULTIPROCESSORS"] = "132"
        path.touch()
        _cuda.place, _cuda.blas, _cuda._product = lambda x: (0, 0), lambda x: 0, partial(product, path)
        _dispatch._on_gpu = lambda x: True
        instructions = loops(nvdisasm) if nvdisasm else {}
        print("call,MB,GFLOP,instructions of a pair,launches,bound by,microseconds")
        for call in calls():
            launches = trace(call, path)
            spent, operations, each = times(call, launches, instructions)
            # Memory is read while products are made; the others follow each other.
            busy = max(spent["memory"], spent.get("products", 0)) + spent.get("instructions", 0) + spent["launches"]
            bound, work = max(spent, key=lambda what: spent[what]), call.name.replace(",", "")
            cells = (
                f"{call.traffic / 1e6:.1f},{operations / 1e9:.1f},{each:.0f},{len(launches)},{bound},{1e6 * busy:.0f}"
            )
            print(f"{work},{cells}")


if __name__ == "__main__":
    main()
