"""Facts of this build, and the number of threads of its kernels."""

from __future__ import annotations

import os
from typing import TypedDict

from peaccel import _core

__all__ = ["BuildInfo", "build_info", "set_num_threads"]

_ENVIRONMENT = ("PEACCEL_SIMD", "PEACCEL_NUM_THREADS", "OMP_NUM_THREADS")


class BuildInfo(TypedDict):
    """Facts of a build, as `build_info` returns them."""

    version: str
    simd: str
    threads: int
    cpus: int | None
    environment: str
    cuda: str


def build_info() -> BuildInfo:
    """Version, SIMD level and threads of this build, the origin of these two, and CUDA or the reason for its absence.

    Examples
    --------
    >>> pe.build_info()["version"] == pe.__version__
    True
    """
    targets, driver, why = _core.cuda_info()
    cuda = f"{targets}; driver of CUDA {driver // 1000}.{driver % 1000 // 10}" if why is None else f"no: {why}"
    return {
        "version": _core.__version__,
        "simd": _core.simd_level(),
        "threads": _core.num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": " ".join(f"{name}={os.environ[name]}" for name in _ENVIRONMENT if os.environ.get(name)) or "-",
        "cuda": cuda,
    }


def set_num_threads(n: int) -> None:
    """Sets the number of threads that kernels use, for the whole process.

    Parameters
    ----------
    n
        At least 1. The start value is ``PEACCEL_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the number of CPUs of the
        process.

    Raises
    ------
    TypeError, ValueError
        n is not an integer, or below 1.

    Examples
    --------
    >>> before = pe.build_info()["threads"]
    >>> pe.set_num_threads(1)
    >>> pe.build_info()["threads"]
    1
    >>> pe.set_num_threads(before)
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"set_num_threads: n must be an integer, got {type(n).__name__}")
    if not 1 <= n <= 4096:
        raise ValueError(f"set_num_threads: n is {n}, expected 1 .. 4096")
    _core.set_num_threads(n)
