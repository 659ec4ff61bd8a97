"""How files and folders are written: beside their place, then renamed into it, so that none is ever half written."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import shutil
import stat
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

from peaccel._utils.table_paths import file_of

__all__ = [
    "PathLike",
    "aside",
    "check_output",
    "check_outputs",
    "check_suffix",
    "names_within",
    "naming_errors",
    "sweep_temporary",
    "synchronise",
    "temporary",
    "unlinked",
]

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
def aside(path: PathLike, *, folder: bool = False, follow: bool = True) -> Iterator[Path]:
    """A file or an empty folder beside `path`, to be written; it takes the place of `path` when the block is done.

    What stood at `path` stays as it was until then, and for good when the block raises; what was written is then
    removed. Two folders change places at once on Linux; elsewhere there is none at the place for a moment. A file does
    not take the place of a folder, nor a folder that of a file: OSError. Nobody but the owner can read what is being
    written. Permissions of a file or a folder, and of the files in it, are kept; new ones have those of any new file.
    The content is on the disk before the rename, as far as the system tells. What a process that was killed has left
    is removed. Errors of the system name `path`.

    Parameters
    ----------
    path
        The file or the folder.
    folder
        Whether it is a folder.
    follow
        Whether a link at `path` is followed, so that it stays one, as where a caller has named it; where the package
        has chosen the name, the link itself is replaced.
    """
    target = Path(os.path.realpath(path) if follow else path)
    fresh, old = temporary(target, "new"), temporary(target, "old")
    with naming_errors(target, fresh):
        _sweep_once(target.parent)
        mode = _mode_of_new_files(target.parent)
        fresh.mkdir(0o700) if folder else os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with naming_errors(target, fresh):
            yield fresh
            _finish(fresh, None if target.is_symlink() else target, mode)
            if target.is_symlink() and folder:
                target.unlink()
            if target.is_dir() and not target.is_symlink() and folder:  # no rename replaces a folder that is not empty
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
        _remove(fresh)


def _finish(fresh: Path, target: Path | None, mode: int) -> None:
    """Give files and folders the permissions of those that they replace, or of new ones, and bring them to the disk."""
    for written in (*fresh.rglob("*"), fresh) if fresh.is_dir() else (fresh,):
        before = None if target is None else target / written.relative_to(fresh)
        if before is not None and not before.is_symlink() and before.exists() and before.is_dir() == written.is_dir():
            shutil.copymode(before, written)
        else:
            written.chmod(mode | (mode & 0o444) >> 2 if written.is_dir() else mode)
        synchronise(written)


def _mode_of_new_files(folder: Path) -> int:
    """The permissions that the system gives a new file in a folder."""
    plain = temporary(folder / "mode", "new")
    plain.touch()
    try:
        return stat.S_IMODE(plain.stat().st_mode)
    finally:
        plain.unlink()


@contextmanager
def naming_errors(target: Path, fresh: Path | None = None) -> Iterator[None]:
    """Let errors of the system name the file that was to be written, not the one aside, nor none."""
    try:
        yield
    except OSError as error:
        if type(error).__module__ != "builtins" or str(target) in str(error):
            raise
        where = target if error.filename is None else Path(os.fsdecode(error.filename))
        if fresh is not None and fresh in (where, *where.parents):
            where = target / where.relative_to(fresh)
        elif error.filename is not None:
            raise
        if error.errno is None:
            raise type(error)(f"{where}: cannot be written ({error})") from error
        raise type(error)(error.errno, error.strerror, str(where)) from error


# -- what is aside -----------------------------------------------------------------------------------------------------

ABANDONED = 86400.0
"""Seconds after which what is aside is taken for what a killed process has left, if nothing else tells."""

SWEPT_EVERY = 60.0
"""Seconds for which a folder is not looked through again, since work may write many files in one."""

_TEMPORARY = re.compile(r"\.(?P<stem>.+)-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{12}-(new|old)(\.[^.]*)?")

_swept: dict[Path, float] = {}


def temporary(target: Path, what: Literal["new", "old"]) -> Path:
    """A name in the same folder for what is aside, which says whose it is."""
    whose = f"{_machine():08x}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    return target.with_name(f".{target.stem}-{whose}-{what}{target.suffix}")


def sweep_temporary(folder: Path) -> None:
    """Remove from a folder what processes have put aside that are gone, or more than a day ago."""
    for entry in list(os.scandir(folder)):
        if not (named := _TEMPORARY.fullmatch(entry.name)):
            continue
        with suppress(OSError):  # another process has removed it, or has it open where that forbids to
            here = int(named["machine"], 16) == _machine()
            if (here and not _runs(int(named["process"]))) or _age(entry) > ABANDONED:
                _remove(Path(entry.path))


def _sweep_once(folder: Path) -> None:
    now = time.monotonic()
    if now - _swept.get(folder, -math.inf) > SWEPT_EVERY:
        _swept[folder] = now
        with suppress(OSError):  # a folder that cannot be listed can perhaps be written in
            sweep_temporary(folder)


def _age(entry: os.DirEntry[str]) -> float:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


@functools.cache
def _machine() -> int:
    """A number of the running system, or of the container, by which it is told whose processes can be seen here."""
    known = platform.node()
    with suppress(OSError):  # of Linux
        known = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    return zlib.crc32(known.encode())


def _runs(process: int) -> bool:
    """Whether there is a process of this number."""
    if os.name == "nt":  # where a signal of 0 is none
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _exchanged(a: Path, b: Path) -> bool:
    """Let two folders take each other's place at once, so that each name leads to one; False where no system can."""
    try:
        rename = ctypes.CDLL(None).renameat2  # of Linux
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE; some file systems have no such rename
    return bool(rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def unlinked(path: Path) -> Path:
    """The path of a file that the package adds to, without a link or a pipe that others have put in its place."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    return path


def synchronise(path: Path) -> None:
    """Ask the system to bring a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
