"""Print what this build can do here: version, SIMD path, threads, CUDA or why not, and versions of libraries."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

from peaccel._utils import options
from peaccel._utils.runtime import build_info
from peaccel.cli._tables import print_table

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    options.parse(options.Nothing, "peaccel info", __doc__, arguments)
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "faiss-cpu", "faiss-gpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    rows = {**build_info(), **versions}.items()
    print_table((), ([key.replace("_", " "), str(value)] for key, value in rows))
