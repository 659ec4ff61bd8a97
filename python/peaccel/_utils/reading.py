"""Limits of what files of other people may ask for, and their faults told in one sentence with the file's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["named", "reading", "require_proportion", "strings_of"]

LEAST = 1 << 28  # bytes that any file may ask for
FACTOR = 100  # so many times its own size a file may ask for: what is worth keeping seldom shrinks further


def require_proportion(owner: object, what: str, needed: int, size: int) -> None:
    """Refuse to allocate what is out of all proportion to a file, or to a column of a table: ValueError.

    Parameters
    ----------
    owner, what
        The file, and what is to be made of it.
    needed, size
        Bytes: of memory, and of the file.
    """
    if needed > (most := max(LEAST, FACTOR * size)):
        expected = f"of {size:,} that hold it; expected at most {most:,}"
        raise ValueError(f"{owner}: {what} takes {needed:,} bytes of memory, out of all proportion to the {expected}")


def strings_of(owner: object, name: str, texts: Sequence[str], size: int) -> NDArray[np.str_]:
    """Strings as an array of one width, which a single long one makes wide for all."""
    width = max(map(len, texts), default=0)
    what = f"{name}, of which one has {width:,} characters in {len(texts):,} rows,"
    require_proportion(owner, what, 4 * width * len(texts), size)
    return np.array(texts, str)


def named(names: Iterable[Any]) -> str:
    """Names that a file holds, for a message: in quotes where they hold what is not printed."""
    texts = map(str, names)
    return ", ".join(text if text.isprintable() else repr(text) for text in texts) or "none"


@contextmanager
def reading(path: object, at: str = "") -> Iterator[None]:
    """Turn what parsers raise over a file into one sentence that names it; sentences that do so already stay.

    `at` is the part of the file, such as "key mu ". Parsers raise nearly anything over damaged files: RecursionError,
    OverflowError, zlib.error, tokenize.TokenError.
    """
    try:
        yield
    except Exception as error:
        if str(error).startswith(f"{path}: ") or (isinstance(error, OSError) and error.filename):
            raise
        if isinstance(error, ImportError):
            raise ImportError(f"{path}: {error}") from None
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: {at}cannot be read, truncated or damaged? ({named([reason])})") from None
