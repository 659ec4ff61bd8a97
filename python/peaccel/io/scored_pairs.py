"""Pairs that somebody scored, and which of them match, in files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import require_numbers
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.labels import truths
from peaccel._utils.reading import named
from peaccel._utils.table_paths import TABLES
from peaccel.io._array_files import SEVERAL, existing, read, read_array
from peaccel.io._arrow_sources import opened_file
from peaccel.io._text_columns import TextColumns, floats_of

__all__ = ["ScoredPairs", "read_scored_pairs"]

TEXT = (".csv", ".tsv")
DELIMITERS = ",\t;"
NAMES = ("score", "match", "group")
YES_OR_NO = "expected 0 or 1, or such words as yes and no"


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
        A .csv or .tsv file, its columns apart by commas, tabs or semicolons, whose first line names them, among them
        ``score``, ``match`` (0 and 1, false and true, no and yes, or nontarget and target) and, where pairs are of
        groups, ``group``, any text; .parquet, .arrow, .feather or .lance with these columns; names in any case; .npz or
        .safetensors with these keys, [P] each; or .npy, [P, 2], a score and 0 or 1 in each row.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not what its suffix says, a column is missing, a score is no finite number, or a match says
        neither yes nor no.
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
    if path.suffix in TEXT:
        return _from_csv(path)
    if path.suffix not in TABLES:
        path = existing(path, (*TEXT, *TABLES, ".npy", *SEVERAL))
    if path.suffix == ".npy":
        rows = read_array(path, "pairs")
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
    require_numbers(str(path), "score", scores, above="no threshold accepts it")
    yes, known = truths(match)
    if not known.all():
        row = int(np.argmin(known))
        raise ValueError(f"{path}: match is {match[row].item()!r} in row {row}, {YES_OR_NO}")
    return ScoredPairs(scores, yes, groups)


def _from_csv(path: Path) -> ScoredPairs:
    """The columns of a text file; an error names the line."""
    lines = TextColumns(path, TEXT, DELIMITERS)
    names = [name.strip().lower() for name in lines.names]
    _require(path, names)
    if not len(lines):
        raise ValueError(f"{path}: holds no pairs below its first line")
    places = [names.index(name) if name in names else -1 for name in NAMES]
    scores, match = floats_of(lines.columns[places[0]]), lines.strings(places[1])
    if scores is None or not (scores > -math.inf).all():
        row, text = next((i, x) for i, x in enumerate(lines.strings(places[0])) if not _number(x) > -math.inf)
        raise ValueError(f"{lines.line(row)}: score is {str(text)!r}, expected a number")
    yes, known = truths(match)
    if not known.all():
        row = int(np.argmin(known))
        raise ValueError(f"{lines.line(row)}: match is {str(match[row])!r}, {YES_OR_NO}")
    groups = None if places[2] < 0 else np.char.strip(lines.strings(places[2]))
    if groups is not None and (groups == "").any():
        row = int(np.argmax(groups == ""))
        raise ValueError(f"{lines.line(row)}: group is empty, expected what the pair shares with others")
    return ScoredPairs(scores, yes, groups)


def _table(path: Path) -> dict[str, Any]:
    source = opened_file(path)
    names = [str(name).strip().lower() for name in source.names]
    _require(path, names)
    wanted = {name: source.names[names.index(name)] for name in NAMES if name in names}
    table = source.table(list(wanted.values()))
    found = {name: table.column(column) for name, column in wanted.items()}
    for name, column in found.items():
        if column.null_count:
            raise ValueError(f"{path}: {name} is missing in {column.null_count} of {len(column)} rows")
    return {name: np.asarray(column.to_pylist()) for name, column in found.items()}


def _require(path: Path, names: list[str]) -> None:
    for name in NAMES:
        if names.count(name) > 1:
            raise ValueError(f"{path}: column {name} is there {names.count(name)} times, expected once")
    for name in ("score", "match"):
        if name not in names:
            raise ValueError(f"{path}: column {name} is missing, found {named(names)}; expected score, match[, group]")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
