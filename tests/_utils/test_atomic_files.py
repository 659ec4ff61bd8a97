"""Files are written under another name and then renamed, and errors are found before."""

import errno
import os
import re
import sys
import tempfile

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
        with aside(path) as fresh:
            fresh.mkdir()
            (fresh / str(number)).write_text("x")
        assert names(path) == [str(number)]
    assert names(tmp_path) == ["folder"]


def test_neither_takes_the_place_of_the_other(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError), aside(tmp_path / "folder") as fresh:
        fresh.write_text("y")
    with pytest.raises(OSError), aside(tmp_path / "file") as fresh:
        fresh.mkdir()
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
