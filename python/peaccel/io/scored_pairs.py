"""Pairs that somebody scored, and which of them match, in files."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.table_paths import TABLES
from peaccel.io._array_files import SEVERAL, existing, read
from peaccel.io._arrow_sources import opened_file

__all__ = ["ScoredPairs", "read_scored_pairs"]

WORDS = {"0": False, "1": True, "false": False, "true": True}


class ScoredPairs(NamedTuple):
    """Pairs with their scores, as `read_scored_pairs` reads them.

    Attributes
    ----------
    scores
        [P], higher = more similar.
    match
        [P] booleans.
    groups
        [P] numbers or words: what pairs have in common; None where the file does not say.

    Examples
    --------
    >>> pairs = pe.io.ScoredPairs(np.array([0.9, 0.2]), np.array([True, False]), None)
    >>> pairs.scores[pairs.match].tolist()
    [0.9]
    """

    scores: NDArray[Any]
    match: NDArray[np.bool_]
    groups: NDArray[Any] | None


def read_scored_pairs(path: PathLike) -> ScoredPairs:
    """Read pairs that somebody scored, and which of them match.

    Parameters
    ----------
    path : path
        A .csv file whose first line names its columns, among them ``score``, ``match`` (0 and 1, or false and true)
        and, where pairs are of groups, ``group``, any text; .parquet, .arrow, .feather or .lance with these columns;
        .npz or .safetensors with these keys, [P] each; or .npy, [P, 2], a score and 0 or 1 in each row.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not what its suffix says, a column is missing, a score is no finite number, or a match neither 0
        nor 1.
    ImportError
        If the file is a table and pyarrow is not installed; as ``read_distribution``.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("pairs.csv").write_text("score,match,group\\n0.9,1,ann\\n0.2,0,bob\\n")
    >>> pairs = pe.io.read_scored_pairs("pairs.csv")
    >>> pairs.scores.tolist(), pairs.match.tolist(), pairs.groups.tolist()
    ([0.9, 0.2], [True, False], ['ann', 'bob'])
    """
    path = Path(path)
    if path.suffix not in TABLES:
        path = existing(path, (".csv", *TABLES, ".npy", *SEVERAL))
    if path.suffix == ".csv":
        return _from_csv(path)
    if path.suffix == ".npy":
        rows = read(path, ("pairs",))["pairs"]
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iuf":
            raise ValueError(f"{path}: has shape {rows.shape} and dtype {rows.dtype}, expected (P, 2): score and match")
        columns: dict[str, Any] = {"score": rows[:, 0], "match": rows[:, 1]}
    else:
        columns = _table(path) if path.suffix in TABLES else read(path, ("score", "match"), one_of=("group",))
    scores, match, groups = columns["score"], columns["match"], columns.get("group")
    if scores.ndim != 1 or scores.dtype.kind not in "iuf" or not len(scores):
        raise ValueError(f"{path}: score has shape {scores.shape} and dtype {scores.dtype}, expected numbers (P,)")
    for name, x in (("match", match), ("group", groups)):
        if x is not None and x.shape != scores.shape:
            raise ValueError(f"{path}: {name} has shape {x.shape}, expected {scores.shape} like score")
    if not np.isfinite(scores).all():
        raise ValueError(f"{path}: score is not finite in row {int(np.argmin(np.isfinite(scores)))}")
    known = (match == 0) | (match == 1)
    if match.dtype.kind not in "biuf" or not known.all():
        row = int(np.argmin(known))
        raise ValueError(f"{path}: match is {match[row]} in row {row}, expected 0 or 1")
    return ScoredPairs(scores, match == 1, groups)


def _from_csv(path: Path) -> ScoredPairs:
    """The columns of a text file; an error names the line."""
    scores, match, groups = [], [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            names = [name.strip() for name in next(lines, [])]
            _require(path, names)
            places = [names.index(name) if name in names else -1 for name in ("score", "match", "group")]
            for line in lines:
                if not line:
                    continue
                at = f"{path}: line {lines.line_num}"
                if len(line) != len(names):
                    raise ValueError(f"{at}: has {len(line)} columns, expected {len(names)} like the first line")
                scores.append(_number(at, line[places[0]]))
                match.append(_match(at, line[places[1]]))
                groups.append(line[places[2]].strip())
                if places[2] >= 0 and not groups[-1]:
                    raise ValueError(f"{at}: group is empty, expected what the pair shares with others")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read as text in columns ({error})") from None
    if not scores:
        raise ValueError(f"{path}: holds no pairs below its first line")
    return ScoredPairs(np.array(scores), np.array(match), np.array(groups) if "group" in names else None)


def _table(path: Path) -> dict[str, Any]:
    source = opened_file(path)
    _require(path, list(source.names))
    table = source.table(source.names)
    found = {name: table.column(name) for name in ("score", "match", "group") if name in table.column_names}
    for name, column in found.items():
        if column.null_count:
            raise ValueError(f"{path}: {name} is missing in {column.null_count} of {len(column)} rows")
    return {name: np.asarray(column.to_pylist()) for name, column in found.items()}


def _require(path: Path, names: list[str]) -> None:
    for name in ("score", "match", "group"):
        if names.count(name) > 1:
            raise ValueError(f"{path}: column {name} is there {names.count(name)} times, expected once")
    for name in ("score", "match"):
        if name not in names:
            raise ValueError(
                f"{path}: column {name} is missing, found {', '.join(names) or 'none'}; expected score, match[, group]"
            )


def _number(at: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{at}: score is {text!r}, expected a finite number")
    return value


def _match(at: str, text: str) -> bool:
    try:
        return WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{at}: match is {text!r}, expected 0 or 1") from None
