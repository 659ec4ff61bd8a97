"""Maps from enrolled speakers to their utterances, in Kaldi's form."""

from __future__ import annotations

from pathlib import Path

from peaccel._utils.atomic_files import PathLike
from peaccel.io._array_files import text_rows

__all__ = ["read_enrolment"]


def read_enrolment(path: PathLike) -> dict[str, tuple[str, ...]]:
    """Read which utterances each speaker is enrolled with: Kaldi's spk2utt.

    Parameters
    ----------
    path : path
        A text file: in each line a speaker, and after it, apart by spaces or tabs, the utterances.

    Returns
    -------
    By speaker its utterances, in the order of the lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no text, a speaker has no utterance or is there twice; the line is named.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("spk2utt").write_text("ann u1 u2\\nbob u3\\n")
    >>> pe.io.read_enrolment("spk2utt")
    {'ann': ('u1', 'u2'), 'bob': ('u3',)}
    """
    path, found = Path(path), dict[str, tuple[str, ...]]()
    for number, (speaker, *utterances) in text_rows(path):
        if not utterances:
            raise ValueError(f"{path}: line {number}: {speaker} has no utterance, expected 'speaker utterance ...'")
        if speaker in found:
            twice = "is there twice, expected one line of all of its utterances (spk2utt, not utt2spk)"
            raise ValueError(f"{path}: line {number}: {speaker} {twice}")
        found[speaker] = tuple(utterances)
    if not found:
        raise ValueError(f"{path}: holds no speaker")
    return found
