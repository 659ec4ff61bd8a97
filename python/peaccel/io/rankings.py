"""Files of candidates and ids, which go into a ranking, and of rankings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel.io._array_files import SEVERAL, on_host, read, write, write_text

__all__ = ["RANKINGS", "read_candidates", "read_ids", "read_labels", "read_ranking", "write_ranking"]

RANKINGS = (*SEVERAL, ".json", ".csv")  # suffixes that `write_ranking` takes


def read_candidates(path: PathLike) -> NDArray[np.int64]:
    """Read candidates: gallery rows for each query, [Q, K] ints, -1 = none.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``candidates``.

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
    candidates = read(path, ("candidates",))["candidates"]
    _check_matrix(path, "candidates", candidates, "int")
    bad = (candidates < -1).any(axis=1)
    if bad.any():
        raise ValueError(f"{path}: candidates is below -1 in row {bad.argmax()}, expected gallery rows, or -1 for none")
    return candidates.astype(np.int64, copy=False)


def read_ids(path: PathLike) -> NDArray[np.int64]:
    """Read the ids by which others know the rows of a gallery: [G] ints, none negative, none twice.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``ids``.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``.

    Examples
    --------
    >>> np.save("ids.npy", [10, 20, 30])
    >>> pe.io.read_ids("ids.npy").tolist()
    [10, 20, 30]
    """
    ids = read(path, ("ids",))["ids"]
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"{path}: ids has shape {ids.shape} and dtype {ids.dtype}, expected an integer for each row")
    outside = ids[(ids < 0) | (ids > np.iinfo(np.int64).max)]
    if len(outside):
        raise ValueError(f"{path}: ids holds {outside[0]}, expected 0 .. 2^63 - 1")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{path}: ids holds {values[counts > 1][0]} twice")
    return ids.astype(np.int64, copy=False)


def read_labels(path: PathLike) -> NDArray[Any]:
    """Read a label, or another number, of each item: [N] numbers or strings.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``labels``.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``.

    Examples
    --------
    >>> np.save("labels.npy", ["cat", "dog", "cat"])
    >>> pe.io.read_labels("labels.npy").tolist()
    ['cat', 'dog', 'cat']
    """
    labels = read(path, ("labels",))["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iufbUS":
        found = f"labels has shape {labels.shape} and dtype {labels.dtype}"
        raise ValueError(f"{path}: {found}, expected a number or a string for each row")
    return labels


def write_ranking(path: PathLike, ranking: tuple[Any, Any]) -> None:
    """Write a ranking, that is (scores [Q, k], ids [Q, k]) of either kind.

    Parameters
    ----------
    path : path
        .npz or .safetensors, which ``read_ranking`` reads. For other programs .json, an object of two lists of lists,
        ``scores``, null where not finite, and ``ids``; or .csv, ``query,rank,id,score`` in a line for each item found,
        ranks from 1. An existing file is replaced once the new one is whole.
    ranking
        Best first; padded with ids of -1.

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
    scores, ids = map(on_host, ranking)
    suffix = Path(path).suffix
    if suffix == ".json":
        finite: Any = np.where(np.isfinite(scores), scores, None)
        write_text(path, RANKINGS, json.dumps({"scores": finite.tolist(), "ids": ids.tolist()}) + "\n")
    elif suffix == ".csv":
        rows, places = np.nonzero(ids >= 0)
        columns = rows, places + 1, ids[rows, places], scores[rows, places]
        lines = [",".join(map(str, line)) for line in zip(*(x.tolist() for x in columns), strict=True)]
        write_text(path, RANKINGS, "\n".join(["query,rank,id,score", *lines]) + "\n")
    else:
        write(path, RANKINGS, {"scores": scores, "ids": ids})


def read_ranking(path: PathLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read a ranking that ``write_ranking`` wrote: scores, float [Q, k], and ids, int64 [Q, k], best first.

    Parameters
    ----------
    path : path
        An .npz or .safetensors file.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``.

    Examples
    --------
    >>> pe.io.write_ranking("ranking.npz", (np.array([[-0.5, -1.5]]), np.array([[20, 10]])))
    >>> scores, ids = pe.io.read_ranking("ranking.npz")
    >>> scores.tolist(), ids.tolist()
    ([[-0.5, -1.5]], [[20, 10]])
    """
    arrays = read(path, ("scores", "ids"))
    scores, ids = arrays["scores"], arrays["ids"]
    _check_matrix(path, "scores", scores, "float")
    _check_matrix(path, "ids", ids, "int")
    if ids.shape != scores.shape:
        raise ValueError(f"{path}: ids has shape {ids.shape}, expected {scores.shape} like scores")
    return scores, ids.astype(np.int64, copy=False)


def _check_matrix(path: PathLike, key: str, x: NDArray[Any], expected: str) -> None:
    if x.ndim != 2:
        raise ValueError(f"{path}: {key} has shape {x.shape}, expected a row for each query: (Q, K)")
    if expected not in x.dtype.name:  # "uint8" is one of the ints
        raise ValueError(f"{path}: {key} has dtype {x.dtype}, expected {expected}")
