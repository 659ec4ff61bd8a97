"""Files are written under another name and then renamed, and errors are found before."""

import errno
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from peaccel._utils import atomic_files
from peaccel._utils.atomic_files import aside, check_output

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two folders")


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_when_all_went_well(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("one", "two"):
        with aside(path) as fresh:
            assert fresh.suffix == ".txt"
            fresh.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert names(tmp_path) == ["a.txt"]


def test_what_stood_there_stays_when_writing_fails(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("good")
    with pytest.raises(OSError, match="full"), aside(path) as fresh:
        fresh.write_text("to")
        raise OSError("the disk is full")
    assert path.read_text() == "good"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=LINUX)])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, at_once):
    """On Linux by one exchange, without a moment in which there is none."""
    path = tmp_path / "folder"
    if at_once:
        monkeypatch.setattr(type(path), "rename", lambda *_: pytest.fail("the folder was moved away"))
    else:
        monkeypatch.setattr(atomic_files, "_exchanged", lambda *_: False)
    for number in (1, 2):
        with aside(path, folder=True) as fresh:
            (fresh / str(number)).write_text("x")
        assert names(path) == [str(number)]
    assert names(tmp_path) == ["folder"]


def test_neither_takes_the_place_of_the_other(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError), aside(tmp_path / "folder") as fresh:
        fresh.write_text("y")
    with pytest.raises(OSError), aside(tmp_path / "file", folder=True):
        pass
    assert names(tmp_path) == ["file", "folder"]
    assert names(tmp_path / "folder") == ["kept"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with aside(tmp_path / "link") as fresh:
        fresh.write_text("x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "x"


def test_permissions_are_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    path.chmod(0o640)
    with aside(path) as fresh:
        fresh.write_text("two")
    assert path.stat().st_mode & 0o777 == 0o640


# -- before the work ---------------------------------------------------------------------------------------------------


def refuses(path, message, error=ValueError, **options):
    with pytest.raises(error, match="^" + re.escape(f"{path}: {message}")) as caught:
        check_output(path, **options)
    assert "\n" not in str(caught.value)


def test_what_can_be_written_is_left_as_it_is(tmp_path):
    (tmp_path / "old.txt").write_text("good")
    (tmp_path / "link.txt").symlink_to(tmp_path / "none.txt")
    for name in ("old.txt", "new.txt", "link.txt"):
        assert check_output(str(tmp_path / name), (".txt",), [tmp_path / "other.txt"]) == tmp_path / name
    assert names(tmp_path) == ["link.txt", "old.txt"]
    assert (tmp_path / "old.txt").read_text() == "good"


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    refuses(tmp_path / "folder.txt", "is a folder, expected a file")
    refuses(tmp_path / "pipe.txt", "is no regular file, expected a file")
    refuses(tmp_path / "no" / "a.txt", f"there is no folder {tmp_path / 'no'}", FileNotFoundError)
    refuses(tmp_path / "a.csv", "unsupported suffix '.csv', expected .txt or .md", suffixes=(".txt", ".md"))


def test_a_file_is_no_output_where_it_is_an_input(tmp_path):
    (tmp_path / "in.txt").write_text("good")
    (tmp_path / "link.txt").symlink_to("in.txt")
    os.link(tmp_path / "in.txt", tmp_path / "hard.txt")
    (tmp_path / "folder").mkdir()
    for name in ("in.txt", "folder/../in.txt", "link.txt", "hard.txt"):
        inputs = [tmp_path / "none.txt", tmp_path / "in.txt"]
        refuses(tmp_path / name, f"is also an input ({inputs[1]}), and would be overwritten", inputs=inputs)
    refuses(tmp_path / "in.txt", "is also an input", inputs=[tmp_path / "link.txt"])


def test_a_folder_or_file_that_is_read_only_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("good")
    with monkeypatch.context() as root_may_do_all:
        root_may_do_all.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        refuses(tmp_path / "a.txt", "is read-only", PermissionError)

    def full(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    reason = f"cannot write in the folder {tmp_path} (Read-only file system)"
    refuses(tmp_path / "b.txt", reason, PermissionError)


# -- links, permissions, and what is left ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [False, True])
def test_a_link_that_the_package_did_not_make_is_replaced(tmp_path, folder):
    """The file or folder to which it leads stays as it was."""
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.mkdir() if folder else theirs.write_text("theirs")
    link.symlink_to(theirs)
    with aside(link, folder=folder, follow=False) as fresh:
        (fresh / "x" if folder else fresh).write_text("ours")
    assert not link.is_symlink() and (link / "x" if folder else link).read_text() == "ours"
    assert names(theirs) == [] if folder else theirs.read_text() == "theirs"
    assert names(tmp_path) == ["link", "theirs"]


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


def test_nobody_else_reads_what_is_being_written(tmp_path, umask):
    (tmp_path / "private").write_text("one")
    (tmp_path / "private").chmod(0o600)
    for name, kept in (("private", 0o600), ("new", 0o644)):
        with aside(tmp_path / name) as fresh:
            fresh.write_text("two")
            assert mode(fresh) == 0o600
        assert mode(tmp_path / name) == kept
    with aside(tmp_path / "folder", folder=True) as fresh:
        assert mode(fresh) == 0o700
    assert mode(tmp_path / "folder") == 0o755


def test_files_in_a_folder_keep_their_permissions(tmp_path, umask):
    path = tmp_path / "folder"
    for _ in range(2):
        with aside(path, folder=True) as fresh:
            (fresh / "deep").mkdir()
            for name in ("deep/a", "b"):
                (fresh / name).write_text("x")
        assert (mode(path / "b"), mode(path / "deep")) == (0o644, 0o755)
        (path / "deep/a").chmod(0o640)
    with aside(path, folder=True) as fresh:
        (fresh / "deep").mkdir()
        (fresh / "deep/a").write_text("x")
    assert mode(path / "deep/a") == 0o640


KILLED = """
import sys, time
from pathlib import Path
from peaccel._utils.atomic_files import aside
with aside(sys.argv[1], folder=sys.argv[2] == "folder") as fresh:
    (fresh / "large" if fresh.is_dir() else fresh).write_text("x")
    print(fresh, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed_at_the_next_write(tmp_path, kind):
    """And what one that runs is writing is not, nor what has a name of another form."""
    path, theirs = tmp_path / "a.npz", tmp_path / ".a-old.npz"
    theirs.write_text("theirs")
    command = [sys.executable, "-c", KILLED, str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        left = Path(other.stdout.readline().strip())
        try:
            with aside(path) as fresh:
                fresh.write_text("y")
            assert left.exists() and left.parent == tmp_path
        finally:
            other.kill()
    assert left.exists()
    atomic_files._swept.clear()
    with aside(tmp_path / "b.npz") as fresh:
        fresh.write_text("y")
    assert names(tmp_path) == [".a-old.npz", "a.npz", "b.npz"]


def test_what_another_machine_left_is_removed_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "_machine", lambda: 7)
    left = atomic_files.temporary(tmp_path / "a.npz", "new")
    monkeypatch.undo()
    for hours, stays in ((23, True), (25, False)):
        left.write_text("x")
        os.utime(left, (time.time() - 3600 * hours,) * 2)
        atomic_files.sweep_temporary(tmp_path)
        assert left.exists() == stays


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), f"[Errno {errno.ENOSPC}] No space left on device: '{{}}'"),
        (OSError("16 requested and 4 written"), "{}: cannot be written (16 requested and 4 written)"),
    ],
)
def test_errors_of_a_disk_name_the_file(tmp_path, error, says):
    path = tmp_path / "a.txt"
    with pytest.raises(OSError) as caught, aside(path):
        raise error
    assert str(caught.value) == says.format(path)
    with pytest.raises(OSError) as caught, aside(tmp_path / "folder", folder=True) as fresh:
        (fresh / "none" / "a").write_text("x")
    assert caught.value.filename == str(tmp_path / "folder" / "none" / "a")
    with pytest.raises(OSError) as caught, aside(path):
        (tmp_path / "another").read_text()
    assert caught.value.filename == str(tmp_path / "another")
