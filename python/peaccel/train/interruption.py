"""Ctrl-C that never leaves a step half done."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self


class DeferredInterrupt:
    """While it is entered, the first Ctrl-C is noted in `asked`; a second one interrupts as usual.

    Signals reach the main thread only; in others it does nothing.
    """

    asked = False

    def __enter__(self) -> Self:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
