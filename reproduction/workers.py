"""Processes that train side by side, and end when the one that began them does."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

__all__ = ["workers"]


def workers(count: int) -> ProcessPoolExecutor:
    """A pool of processes, none of which outlives this one, however it ends.

    They are spawned, because torch's threads do not live through a fork. They keep freed memory, where the allocator is
    glibc's: asking the kernel for pages at each training step took an eighth of a step's time.
    """
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 30))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 25))  # the most that it takes
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_watch_parent)


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
