"""Data sets: readers of what is published on disk, numbers composed of digits, pairs, and pixels when asked for.

Readers give numpy arrays and paths (``datasets``); ``images`` reads pixels, by Pillow, and ``transforms`` needs
torchvision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.python_files import load_file
from peaccel._utils.suggestions import unknown
from peaccel._utils.words import answered
from peaccel.data import captions, faces, features, metric_learning, places  # noqa: F401  (each names its readers)
from peaccel.data.datasets import READERS, USES, Part, reader

__all__ = [
    "CAPTIONED",
    "COMPOSED",
    "DIGITS",
    "EVALUATED",
    "READERS",
    "TRAINED",
    "check_known",
    "check_name",
    "of_features",
    "read",
    "reader",
]

DIGITS = ("mnist", "digits8")
"""Sources of numbers composed of scans, which come inside Python packages and need no folder."""

COMPOSED = (*DIGITS, "fashion")
"""Sources of strips of scans: of digits, or of photographs of garments, which lie in a folder."""

CAPTIONED = tuple(sorted(name for name, use in USES.items() if use == "captions"))
"""Data sets of images with captions."""

EVALUATED = (*CAPTIONED, *sorted(name for name, use in USES.items() if use == "evaluation"))
"""Data sets that have no labelled items to train on: captions, places, and faces that are there to be verified."""

TRAINED = (*COMPOSED, *sorted(READERS.keys() - {*EVALUATED}))
"""The data sets of this package that a model can be trained on."""


def check_known(name: str, names: Sequence[str]) -> None:
    """Refuse a data set that is none of these, or a file that is not there; arguments and errors as of `check_name`."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"data {name}: there is no such file")
    elif name not in names:
        if name in (*COMPOSED, *READERS):
            raise ValueError(f"data {name}: has no labelled items to train on, expected one of {', '.join(names)}")
        raise ValueError(unknown("data", name, names))


def check_name(name: str, root: PathLike | None, names: Sequence[str]) -> None:
    """Refuse a data set that is unknown, or whose root is missing where one is needed, or given where none is.

    Parameters
    ----------
    name
        A data set, or the path of a Python file with a reader.
    root
        Where it lies.
    names
        Those that are allowed; any reader of a file is.

    Raises
    ------
    ValueError
        As said.
    FileNotFoundError
        There is nothing at the root, or no such file.
    """
    check_known(name, names)
    if name in DIGITS:
        if root is not None:
            raise ValueError(f"data {name}: root is {root}, but its scans come inside a package")
    elif root is None:
        raise ValueError(f"data {name}: root is missing, expected the folder where it lies")
    elif not Path(root).exists():
        raise FileNotFoundError(f"data {name}: root is {root}, which is not there")


def read(name: str, root: PathLike, check: bool = False, **options: Any) -> Mapping[str, Part]:
    """Read a data set's lists.

    Parameters
    ----------
    name
        A key of `READERS`, or the path of a Python file with a `reader`.
    root
        Where the data set lies; see its reader for the files expected there.
    check
        Look whether every listed image is there; otherwise a missing one is named when it is read.
    options
        Options of the reader.

    Returns
    -------
    Its parts: "train", "validation", "test", "query", "gallery", as far as it has them.

    Raises
    ------
    ValueError
        The name is unknown, the file has no reader or several, its parts are none, or a list is of another form.
    FileNotFoundError
        A file, a list or, with check, an image is missing.
    """
    if not name.endswith(".py") and name not in READERS:
        raise ValueError(f"read: {unknown('data', name, READERS)}")
    reader = READERS[_registered(name)]
    try:
        parts = reader(root, **options)
    except ValueError as error:  # of a list that is whole, but too short for what is asked
        raise error if f"{root}" in f"{error}" else ValueError(f"{root}: {error}") from None
    if not isinstance(parts, Mapping):
        raise ValueError(f"data {name}: gave {type(parts).__name__}, expected a mapping of parts")
    for part, items in parts.items():
        if not isinstance(items, Part):
            raise ValueError(f"data {name}: part {part} is {type(items).__name__}, expected a record of data.datasets")
    if check:
        for part, items in parts.items():
            missing = [path for path in getattr(items, "paths", ()) if not Path(path).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"{missing[0]}: no such image ({len(missing)} of {len(items)} in part {part} are missing)"
                )
    return parts


def of_features(name: str) -> bool:
    """Whether a data set is of features, which need no backbone."""
    return USES.get(_registered(name)) == "features"


def _registered(name: str) -> str:
    """The name of a data set, or of that which a file's only reader reads."""
    if not name.endswith(".py"):
        return name
    module = load_file(Path(name))
    found = [known for known, function in READERS.items() if function.__module__ == module.__name__]
    if len(found) != 1:
        raise ValueError(f"data {name}: has {len(found)} functions under peaccel.data.reader, expected one")
    return found[0]


if not TYPE_CHECKING:  # which would take every attribute for known
    __getattr__ = answered(__name__)
