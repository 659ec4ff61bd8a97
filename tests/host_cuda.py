"""A CUDA device that is the host: kernels compiled by the host's compiler, under a driver of our own."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra")


def compiled(folder):
    """The environment in which the core finds that device; libraries are made in the folder."""
    driver = folder / "libfakecuda.so"
    commands = [["g++", *FLAGS, ROOT / "tests" / "fake_cuda.cpp", "-o", driver, "-ldl"]]
    kernels = []
    for family in sorted((ROOT / "cuda").glob("*.cu")):
        kernels.append(folder / f"lib{family.stem}.so")
        # Multiply-adds are written out where they matter; a compiler that adds some would hide where they are missing.
        flags = [
            *FLAGS,
            "-mfma",
            "-ffp-contract=off",
            "-Wno-unknown-pragmas",
            "-include",
            ROOT / "tests" / "host_cuda.hpp",
        ]
        commands.append(["g++", *flags, "-x", "c++", family, "-o", kernels[-1]])
    running = [(command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) for command in commands]
    for command, process in running:
        messages = process.communicate()[1]
        assert process.returncode == 0, f"{command[-1]}: {messages}"
        assert not messages, messages
    return {"PEACCEL_LIBCUDA": str(driver), "FAKE_CUDA_KERNELS": os.pathsep.join(map(str, kernels))}
