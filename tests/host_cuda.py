"""A CUDA device that is the host: kernels compiled by the host's compiler, under a driver of our own."""

import hashlib
import os
import pathlib
import subprocess
import tempfile

from filelock import FileLock

ROOT = pathlib.Path(__file__).parent.parent
DRIVER, PRELUDE = (ROOT / "tests" / name for name in ("fake_cuda.cpp", "host_cuda.hpp"))
FAMILIES = sorted((ROOT / "cuda" / "families").iterdir())
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra")
# Multiply-adds are written out where they matter; a compiler that adds some would hide where they are missing.
KERNEL = ("-mfma", "-ffp-contract=off", "-Wno-unknown-pragmas", "-include", PRELUDE, "-x", "c++")
if os.environ.get("PEACCEL_SANITIZERS"):  # `make test-memory`; without a look at stacks, which are the fibers'
    CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "--param", "asan-stack=0", "-g1")
    KERNEL = (*CHECKED, "-w", *KERNEL)  # the usual build has shown the warnings, of which sanitizers add false ones


def compiled():
    """The environment in which the core finds that device; libraries are compiled once for the same sources."""
    sources = [pathlib.Path(__file__), DRIVER, PRELUDE, *sorted((ROOT / "cuda").rglob("*.cu*"))]
    made_of = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + str(KERNEL).encode()).hexdigest()
    folder = ROOT / "target" / "host_cuda" / made_of[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # other processes may want them too
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                compile_all(pathlib.Path(unfinished) / "made")
                (pathlib.Path(unfinished) / "made").rename(folder)
    kernels = os.pathsep.join(str(folder / f"lib{family.stem}.so") for family in FAMILIES)
    driver = str(folder / "libfakecuda.so")
    return {"PEACCEL_LIBCUDA": driver, "PEACCEL_LIBCUBLAS": driver, "FAKE_CUDA_KERNELS": kernels}


def compile_all(folder):
    """The driver and a library for each family, in a new folder."""
    folder.mkdir()
    commands = [["g++", *FLAGS, DRIVER, "-o", folder / "libfakecuda.so", "-ldl"]]
    commands += [["g++", *FLAGS, *KERNEL, family, "-o", folder / f"lib{family.stem}.so"] for family in FAMILIES]
    running = [(command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) for command in commands]
    for command, process in running:
        messages = process.communicate()[1]
        assert process.returncode == 0, f"{command}: {messages}"
        assert not messages, messages


def compile_kernels(source, library):
    """A library of functions that tests call, of a source that includes files of cuda/."""
    command = ["g++", *FLAGS, *KERNEL, "-I", ROOT / "cuda", source, "-o", library]
    subprocess.run(command, check=True, capture_output=True, text=True)
