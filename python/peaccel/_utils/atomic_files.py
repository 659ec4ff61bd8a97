"""How files and folders are written: beside their place, then renamed into it, so that none is ever half written."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from peaccel._utils.table_paths import file_of

__all__ = ["PathLike", "aside", "check_output", "check_outputs", "check_suffix", "names_within", "synchronise"]

PathLike: TypeAlias = str | os.PathLike[str]


def check_output(path: PathLike, suffixes: Sequence[str] | None = None, inputs: Iterable[PathLike] = ()) -> Path:
    """The path, if a file can be written there; work that takes long asks before it starts.

    Parameters
    ----------
    path : path
        The file that is to be written; an existing one will be replaced.
    suffixes : strings
        Those that the file may have; None for any.
    inputs : paths
        Files that the work reads: none of them may be what the path leads to, by whatever spelling or link.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    PermissionError
        If nothing can be written in the folder, or the file that is there is read-only.
    ValueError
        If the suffix is another one; if the path leads to anything but a file, or to one of the inputs.

    Examples
    --------
    >>> pe.io.check_output("ranking.npz", suffixes=(".npz", ".csv")).name
    'ranking.npz'
    """
    path = Path(path)
    if suffixes is not None:
        check_suffix(path, suffixes)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if path.exists():
        if not path.is_file():
            raise ValueError(f"{path}: is {'a folder' if path.is_dir() else 'no regular file'}, expected a file")
        for name in map(file_of, inputs):
            if os.path.exists(name) and path.samefile(name):
                raise ValueError(f"{path}: is also an input ({name}), and would be overwritten")
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path}: is read-only")
    folder = Path(os.path.realpath(path)).parent
    try:
        tempfile.TemporaryFile(dir=folder).close()  # permissions do not show that a mount is read-only, writing does
    except OSError as error:
        raise PermissionError(f"{path}: cannot write in the folder {folder} ({error.strerror})") from None
    return path


def check_outputs(outputs: Iterable[tuple[Path, Sequence[str] | None]], inputs: Iterable[PathLike] = ()) -> None:
    """Check several outputs, each with its suffixes, as `check_output` does; two of them must not be one file."""
    inputs, seen = list(inputs), set()
    for path, suffixes in outputs:
        check_output(path, suffixes, inputs)
        if path.resolve() in seen:
            raise ValueError(f"{path}: is the file of two outputs, expected one for each")
        seen.add(path.resolve())


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a path with another suffix than these: ValueError."""
    if path.suffix not in suffixes:
        what = f"unsupported suffix {path.suffix!r}, expected" if path.suffix else "has no suffix, expected a file,"
        raise ValueError(f"{path}: {what} {' or '.join(suffixes)}")


def names_within(folder: Path) -> set[str]:
    """The names in a folder that is to be replaced, none where it is still to be made: callers refuse those of others.

    Raises
    ------
    FileNotFoundError
        There is no folder to make it in.
    ValueError
        It is a file.
    """
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"{folder}: there is no folder {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file, expected a folder")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@contextmanager
def aside(path: PathLike) -> Iterator[Path]:
    """A path in the same folder, to write a file or a folder to; it takes the place of `path` when the block is done.

    What stood at `path` stays as it was until then, and for good when the block raises; what was written is then
    removed. Two folders change places at once on Linux; elsewhere there is none at the place for a moment. A file does
    not take the place of a folder, nor a folder that of a file: OSError. A link is followed, so that it stays one, and
    permissions are kept; a new file has those of any new file. The content is on the disk before the rename, as far as
    the system tells.
    """
    target = Path(os.path.realpath(path))
    name = uuid.uuid4().hex[:12]
    fresh, old, plain = (
        target.with_name(f".{target.stem}-{name}-{what}{target.suffix}") for what in ("new", "old", "plain")
    )
    try:
        yield fresh
        plain.touch()
        for written in (fresh, *fresh.rglob("*")) if fresh.is_dir() else (fresh,):
            if written.is_file():  # safetensors makes files that only their owner can read
                shutil.copymode(plain, written)
            synchronise(written)
        if target.exists():
            shutil.copymode(target, fresh)
        if target.is_dir() and fresh.is_dir():  # no rename replaces a folder that is not empty
            if _exchanged(fresh, target):
                return
            target.rename(old)
            try:
                fresh.rename(target)
            except BaseException:
                old.rename(target)
                raise
            shutil.rmtree(old)
        else:
            fresh.replace(target)
    finally:
        plain.unlink(missing_ok=True)
        shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink(missing_ok=True)


def _exchanged(a: Path, b: Path) -> bool:
    """Let two folders take each other's place at once, so that each name leads to one; False where no system can."""
    try:
        rename = ctypes.CDLL(None).renameat2  # of Linux
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE; some file systems have no such rename
    return bool(rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def synchronise(path: Path) -> None:
    """Ask the system to bring a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
