"""Records of numbers as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from peaccel._utils.atomic_files import PathLike, aside

__all__ = ["Table", "as_plain", "as_text", "number", "percent", "save_json", "six_digits"]

Table: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows."""


def as_text(summary: str, tables: Mapping[str, Table]) -> str:
    """A sentence and the tables by their titles, in columns."""
    blocks = [summary]
    for title, (header, rows) in tables.items():
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (header, *rows)]
        blocks.append("\n".join([title, *(line.rstrip() for line in lines)]))
    return "\n\n".join(blocks)


def save_json(path: PathLike, record: Any, **more: Any) -> None:
    """Write a dataclass as JSON, and more beside its fields; what is not finite becomes null."""
    values = {**as_plain(record), **_plain(more)}
    with aside(path) as fresh:
        fresh.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def as_plain(record: Any) -> Any:
    """A dataclass as JSON has it; what is not finite becomes None."""
    return _plain(asdict(record))


def percent(x: float, digits: int = 1) -> str:
    """A share in per cent; "-" for NaN."""
    return "-" if np.isnan(x) else f"{100 * x:.{digits}f}"


def number(x: float) -> str:
    """Three digits; "-" for NaN."""
    return "-" if np.isnan(x) else f"{x:.3f}"


def six_digits(x: float) -> str:
    """Six digits that count; "-" for what is not finite."""
    return f"{x:.6g}" if np.isfinite(x) else "-"


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return [_plain(value) for value in x]
    return None if isinstance(x, float) and not np.isfinite(x) else x
