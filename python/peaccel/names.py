"""What is said of a name that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["unknown"]

LISTED = 50
"""Names at most that are listed where none is near."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Such as "unknown score 'mlx'; did you mean 'mls'?", or the names that there are where none of them is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4 if len(names) <= LISTED else 0)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"
