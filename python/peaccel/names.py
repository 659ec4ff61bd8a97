"""What errors say of an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["unknown"]

LISTED = 50
"""How many names a message may list where none is near; of more the nearest is named in any case."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message such as "unknown score 'mlx'; did you mean 'mls'?", or one that lists the names where none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4 if len(names) <= LISTED else 0)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"
