"""Embed a data set by a trained model or a backbone, into a file."""

from __future__ import annotations

from collections.abc import Sequence

from peaccel._utils import options
from peaccel.cli._embed_options import Embed, check, check_words

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    check_words(arguments)
    task = options.parse(Embed, "peaccel embed", __doc__, arguments)
    check(task)
    from peaccel.cli._embed_data import write

    write(task)
