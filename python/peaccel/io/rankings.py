"""Files of candidates, which go into a ranking, and of rankings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import on_host
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.ids import are_strings, none_like, there
from peaccel._utils.reading import reading, require_proportion, strings_of
from peaccel.io._array_files import SEVERAL, existing, names_in, read, read_array, write, write_table, write_text
from peaccel.io._arrow_columns import column_of_file
from peaccel.io._arrow_sources import opened_file
from peaccel.io._text_columns import TextColumns, csv_text, floats_of, integers_of

__all__ = ["RANKINGS", "read_candidates", "read_ranking", "write_ranking"]

LINES = (".csv", ".parquet")  # suffixes of files that have a line for each item found
RANKED = ("query", "rank", "id", "score")  # the columns of these lines
RANKINGS = (*SEVERAL, ".json", *LINES)  # suffixes that `write_ranking` takes


def read_candidates(path: PathLike, *, strings: bool = False) -> NDArray[Any]:
    """Read candidates: gallery rows, or their ids, for each query, [Q, K] ints, -1 = none, or strings, empty = none.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``candidates``; a table
        with lists of one length in such a column, or in one that the path names: "queries.parquet:found"; or a ranking,
        in any file that ``write_ranking`` writes, whose queries go by their rows.
    strings
        Whether the ids of a .csv file are strings also where all of them could be integers. Else they are only where
        one could not: "007" is no integer.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``; ids beyond the gallery are for the verbs to find.

    Examples
    --------
    >>> np.save("candidates.npy", [[3, 0], [1, -1]])
    >>> pe.io.read_candidates("candidates.npy").tolist()
    [[3, 0], [1, -1]]
    """
    candidates = _ids_of_ranking(Path(path), strings)
    if candidates is None:
        candidates = read_array(path, "candidates")
    _check_matrix(path, "candidates", candidates, "int", "str")
    if are_strings(candidates):
        return candidates
    bad = (candidates < -1) | (candidates > np.iinfo(np.int64).max)
    if bad.any():
        row, place = np.argwhere(bad)[0]
        what = f"candidates is {candidates[row, place]} in row {row}"
        raise ValueError(f"{path}: {what}, expected gallery rows, or -1 for none")
    return candidates.astype(np.int64, copy=False)


def write_ranking(path: PathLike, ranking: tuple[Any, ...], queries: Any = None) -> None:
    """Write a ranking, that is (scores [Q, k], ids [Q, k]) of either kind, or what `pe.search_above` found.

    Parameters
    ----------
    path : path
        .npz, or .safetensors where ids are numbers, which ``read_ranking`` reads. For other programs .json, an object
        of two lists of lists, ``scores``, null where not finite, and ``ids``; or .csv or .parquet, with
        ``query,rank,id,score`` of each item found, ranks from 1. An existing file is replaced once the new one is
        whole.
    ranking
        Best first; padded with ids of -1, or empty ones among strings. A `pe.RankingAbove` is written as its three
        arrays, and in .json as lists of different lengths.
    queries
        [Q] integers or strings: the ids of the queries, for .csv and .parquet; None for their rows.

    Raises
    ------
    ValueError, FileNotFoundError, PermissionError, ImportError, OSError
        As ``write_distribution``.

    Examples
    --------
    >>> pe.io.write_ranking("ranking.csv", (np.array([[-0.5, -1.5]]), np.array([[20, 10]])))
    >>> from pathlib import Path
    >>> print(Path("ranking.csv").read_text(), end="")
    query,rank,id,score
    0,1,20,-0.5
    0,2,10,-1.5
    """
    above = hasattr(ranking, "offsets")
    *offsets, first, second = (on_host(x) for x in ranking)
    ids, scores = (first, second) if above else (second, first)
    suffix = Path(path).suffix
    if queries is not None and suffix not in LINES:
        raise ValueError(f"{path}: has no place for ids of queries, expected {' or '.join(LINES)}")
    if suffix in LINES:
        _write_lines(path, scores, ids, queries, *offsets)
    elif suffix == ".json":
        finite = scores.astype(object)
        finite[~np.isfinite(scores)] = None
        parts = [slice(*ends) for ends in itertools.pairwise(offsets[0])] if above else range(len(ids))
        lists = {"scores": [finite[i].tolist() for i in parts], "ids": [ids[i].tolist() for i in parts]}
        write_text(path, RANKINGS, json.dumps(lists) + "\n")
    elif suffix == ".safetensors" and are_strings(ids):
        raise ValueError(f"{path}: safetensors holds no strings, as the ids are; expected another suffix")
    else:
        write(path, RANKINGS, {"scores": scores, "ids": ids} | ({"offsets": offsets[0]} if above else {}))


def _write_lines(
    path: PathLike, scores: NDArray[Any], ids: NDArray[Any], queries: Any, offsets: NDArray[Any] | None = None
) -> None:
    """A line for each item found."""
    count = len(ids) if offsets is None else len(offsets) - 1
    named = on_host(np.arange(count) if queries is None else queries, "write_ranking", "queries")
    if named.shape != (count,):
        raise ValueError(f"write_ranking: queries has shape {named.shape}, expected ({count},)")
    if offsets is None:
        rows, places = np.nonzero(there(ids))
        ids, scores = ids[rows, places], scores[rows, places]
    else:
        rows, places = _places(offsets)
    columns = named[rows], places + 1, ids, scores
    if Path(path).suffix == ".parquet":
        write_table(path, RANKINGS, dict(zip(RANKED, columns, strict=True)))
        return
    write_text(path, RANKINGS, csv_text(RANKED, columns))


def _places(offsets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The query of each item, and its place among those of the query."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return rows, np.arange(len(rows)) - offsets[rows]


def _placed(
    path: PathLike, shape: tuple[int, int], where: Any, scores: NDArray[Any], ids: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores and ids [Q, k] that hold these at their places, else padding."""
    asked = shape[0] * shape[1] * (8 + ids.dtype.itemsize)
    file_size = Path(path).stat().st_size
    require_proportion(path, f"a ranking of {shape[0]:,} queries x {shape[1]:,} ranks, padded,", asked, file_size)
    padded = np.full(shape, -np.inf, scores.dtype), np.full(shape, none_like(ids), ids.dtype)
    for whole, x in zip(padded, (scores, ids), strict=True):
        whole[where] = x
    return padded


def _padded(
    path: PathLike, offsets: NDArray[Any], scores: NDArray[Any], ids: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores and ids of one query after the other as [Q, k], padded."""
    shape = len(offsets) - 1, int(np.diff(offsets).max(initial=0))
    return _placed(path, shape, _places(offsets), scores, ids)


def read_ranking(path: PathLike, *, strings: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read a ranking that ``write_ranking`` wrote: scores, float [Q, k], and ids, int64 or strings [Q, k], best first.

    Parameters
    ----------
    path : path
        An .npz, .safetensors or .json file, or a .csv or .parquet with a line for each item found, whose queries go by
        their rows: those beyond the last that found any are not there. Lists of different lengths are padded.
    strings
        As in `read_candidates`.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``; lines of queries that go by names; two lines of one query and rank; a .csv file that
        does not end with a newline, as where it was cut off; a ranking that takes memory out of all proportion to the
        file once it is padded.

    Examples
    --------
    >>> pe.io.write_ranking("ranking.npz", (np.array([[-0.5, -1.5]]), np.array([[20, 10]])))
    >>> scores, ids = pe.io.read_ranking("ranking.npz")
    >>> scores.tolist(), ids.tolist()
    ([[-0.5, -1.5]], [[20, 10]])
    """
    suffix = Path(path).suffix
    if suffix in LINES:
        scores, ids = _read_lines(existing(path, LINES), strings)
    elif suffix == ".json":
        scores, ids = _read_json(existing(path, (".json",)))
    else:
        arrays = read(path, ("scores", "ids"), one_of=("offsets",))
        scores, ids = arrays["scores"], _signed(path, arrays["ids"])
        if "offsets" in arrays:
            scores, ids = _padded(path, _checked_offsets(path, **arrays), scores, ids)
    _check_matrix(path, "scores", scores, "float")
    _check_matrix(path, "ids", ids, "int", "str")
    if ids.shape != scores.shape:
        raise ValueError(f"{path}: ids has shape {ids.shape}, expected {scores.shape} like scores")
    return scores, ids


def _signed(path: PathLike, ids: NDArray[Any]) -> NDArray[Any]:
    """Integers as int64; what is beyond these would become -1, which is none."""
    if ids.dtype.kind == "u" and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: ids holds {ids.max()}, expected at most 2^63 - 1")
    return ids.astype(np.int64, copy=False) if ids.dtype.kind in "iu" else ids


def _checked_offsets(path: PathLike, offsets: NDArray[Any], scores: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Offsets that cut [M] scores and ids into those of each query."""
    alike = ids.shape == scores.shape == (len(scores),) and offsets.ndim == 1 and offsets.dtype.kind in "iu"
    if not (alike and len(offsets) and offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) >= 0).all()):
        raise ValueError(f"{path}: offsets are not those of {scores.shape} scores and {ids.shape} ids, from 0 on")
    return offsets.astype(np.int64)


def _ids_of_ranking(path: Path, strings: bool) -> NDArray[Any] | None:
    """The ids [Q, K] of a file that holds a ranking; None of any other file."""
    if path.suffix in (".json", ".csv"):
        return read_ranking(path, strings=strings)[1]
    if not path.is_file() or path.suffix not in (".parquet", *SEVERAL):
        return None  # "queries.parquet:found" too, or what `read_array` refuses
    if path.suffix == ".parquet":
        return read_ranking(path)[1] if {*RANKED} <= {*opened_file(path).names} else None
    names = names_in(existing(path, SEVERAL))
    return read_ranking(path)[1] if {"scores", "ids"} <= {*names} and "candidates" not in names else None


def _read_json(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The ranking of a .json file, of whose scores null is -inf."""
    wrong = ValueError(f"{path}: is no ranking, expected an object of two lists of lists, scores and ids")
    with reading(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        try:
            rows, named = found["scores"], found["ids"]
            counts = [len(row) for row in rows]
            if counts != [len(row) for row in named]:
                raise wrong
            scores, ids = ([x for row in lists for x in row] for lists in (rows, named))
            numbers = np.array([-np.inf if x is None else x for x in scores], np.float64)
        except (KeyError, TypeError, ValueError):
            raise wrong from None
        kinds = {type(x) for x in ids}
        if kinds == {str}:
            words = strings_of(path, "ids", ids, path.stat().st_size)
        elif kinds <= {int}:
            words = np.array(ids, np.int64)
        else:
            raise wrong
        return _padded(path, np.append(0, np.cumsum(counts, dtype=np.int64)), numbers, words)


def _read_lines(path: Path, strings: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """The ranking of a file with a line for each item found."""
    queries: NDArray[Any] | None
    ranks: NDArray[Any] | None
    scores: NDArray[Any] | None
    if path.suffix == ".parquet":
        queries, ranks, ids, scores = columns = [column_of_file(f"{path}:{name}", name) for name in RANKED]
        if len(sizes := {len(x) for x in columns}) > 1:
            raise ValueError(f"{path}: columns have {sorted(sizes)} rows, expected as many in each")
        ids = _signed(path, ids)
    else:
        lines = TextColumns(path, (".csv",), ",")
        if tuple(lines.names) != RANKED:
            raise ValueError(f"{path}: is no ranking, expected lines of {','.join(RANKED)}")
        queries, ranks, numbers = (None if strings and i == 2 else integers_of(lines.columns[i]) for i in range(3))
        ids = lines.strings(2) if numbers is None else numbers
        scores = floats_of(lines.columns[3])
        if scores is None:
            raise ValueError(f"{path}: score holds what is no number")
    for name, x in (("query", queries), ("rank", ranks)):
        if x is None or x.dtype.kind not in "iu" or (x.size and not (name == "rank") <= x.min() <= x.max() < 2**62):
            raise ValueError(f"{path}: {name} holds what is no number of a row, as write_ranking writes them")
    assert queries is not None and ranks is not None
    shape = int(queries.max(initial=-1)) + 1, int(ranks.max(initial=0))
    where = queries.astype(np.int64), ranks.astype(np.int64) - 1
    found = _placed(path, shape, where, scores.astype(np.float64), ids)
    twice = np.zeros(shape, bool)
    twice[where] = True
    if twice.sum() != len(ids):
        pairs, counts = np.unique(np.stack(where, 1), axis=0, return_counts=True)
        query, rank = pairs[counts > 1][0]
        raise ValueError(f"{path}: query {query} has rank {rank + 1} twice, expected one line for each")
    return found


def _check_matrix(path: PathLike, key: str, x: NDArray[Any], *expected: str) -> None:
    if x.ndim != 2:
        raise ValueError(f"{path}: {key} has shape {x.shape}, expected a row for each query: (Q, K)")
    if not any(kind in x.dtype.name for kind in expected):  # "uint8" is one of the ints, "str96" of the strings
        raise ValueError(f"{path}: {key} has dtype {x.dtype}, expected {' or '.join(expected)}")
