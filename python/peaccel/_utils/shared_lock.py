"""A lock that readers hold together and a writer alone."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SharedLock"]


class SharedLock:
    """A lock that any number of threads hold together to read, and one alone to change; no thread takes it twice.

    Readers that come after a writer wait for it, so that it comes to its turn. In the child of a fork nobody holds it.
    """

    def __init__(self) -> None:
        self._reset()
        _locks.add(self)

    def _reset(self) -> None:
        self._entry = threading.Lock()  # held by a writer from when it waits until it is done
        self._left = threading.Condition()
        self._readers = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
        with self._entry, self._left:
            self._readers += 1
        try:
            yield
        finally:
            with self._left:
                self._readers -= 1
                self._left.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._entry, self._left:
            self._left.wait_for(lambda: not self._readers)
            yield


_locks: weakref.WeakSet[SharedLock] = weakref.WeakSet()


def _reset_all() -> None:
    for lock in _locks:
        lock._reset()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_all)
