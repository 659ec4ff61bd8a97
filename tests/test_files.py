"""Files that are written beside their place and renamed into it."""

import pytest

from peaccel.files import aside


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


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "folder"
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
