"""Trial lists of speaker verification, in VoxCeleb's form and Kaldi's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.labels import truths
from peaccel._utils.reading import strings_of
from peaccel.io._array_files import text_rows
from peaccel.io._text_columns import spaced_columns

__all__ = ["Trials", "read_trials"]


class Trials(NamedTuple):
    """Pairs of names to be compared, as `read_trials` reads them.

    Attributes
    ----------
    enrol, test
        [P] strings: who, or which utterance, was enrolled, and the utterance that is tested.
    match
        [P] booleans.

    Examples
    --------
    >>> trials = pe.io.Trials(np.array(["ann", "ann"]), np.array(["u1", "u2"]), np.array([True, False]))
    >>> trials.test[trials.match].tolist()
    ['u1']
    """

    enrol: NDArray[np.str_]
    test: NDArray[np.str_]
    match: NDArray[np.bool_]


def read_trials(path: PathLike) -> Trials:
    """Read a trial list: a line for each pair, in VoxCeleb's form or in Kaldi's.

    Parameters
    ----------
    path : path
        A text file, three columns apart by spaces or tabs: ``1 enrol test`` or ``enrol test target``, the match being 0
        or 1, or nontarget or target. All lines have it in the same column.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no text, a line has not three columns, or no column says which pairs match; the line is named.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("trials").write_text("ann u1 target\\nann u2 nontarget\\n")
    >>> trials = pe.io.read_trials("trials")
    >>> trials.enrol.tolist(), trials.test.tolist(), trials.match.tolist()
    (['ann', 'ann'], ['u1', 'u2'], [True, False])
    """
    path = Path(path)
    texts = spaced_columns(path, 3, "'1 enrol test' or 'enrol test target'")
    if not texts[0]:
        raise ValueError(f"{path}: holds no trials")
    columns = [strings_of(path, "names", words, path.stat().st_size) for words in texts]
    (first, first_known), (last, last_known) = truths(columns[0]), truths(columns[2])
    if first_known.all() and last_known.all():
        raise ValueError(
            f"{path}: both the first and the last column could be the match, expected names in one of them"
        )
    if first_known.all() or last_known.all():
        kaldi = bool(last_known.all())
        enrol, test = columns[not kaldi], columns[1 + (not kaldi)]
        return Trials(enrol, test, last if kaldi else first)
    column, known = (0, first_known) if first_known.mean() > last_known.mean() else (2, last_known)
    row = int(np.argmin(known))
    where = "first" if column == 0 else "last"
    number = next(itertools.islice(text_rows(path), row, None))[0]
    found = f"line {number}: the {where} column is {str(columns[column][row])!r}"
    raise ValueError(f"{path}: {found}, expected whether the pair matches: 0 or 1, or nontarget or target")
