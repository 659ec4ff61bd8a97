"""Pages and tables of the documentation beside their files of results."""

import pytest

from reproduction import __main__ as commands
from reproduction import checking
from reproduction.speakers import TABLES

PAGE = TABLES.parent / "reproduction.md"


def test_tables_are_as_their_results_give_them():
    expected = dict(checking.recomputed())
    assert len(expected) == 13
    for path, text in expected.items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_a_table_of_other_numbers_is_named(capsys, monkeypatch):
    written = PAGE.read_text(encoding="utf-8").partition(f"{commands.MARK}\n\n")[2]
    monkeypatch.setattr(commands.ledger, "read", lambda path: {})
    monkeypatch.setattr(commands, "files", lambda plan, records: {})
    monkeypatch.setattr(commands, "page_of", lambda plan, records, results: written)
    monkeypatch.setattr(checking, "recomputed", lambda: iter([(TABLES / "kanji.csv", "Row\n")]))
    with pytest.raises(SystemExit, match="2"):
        commands.main(["--check"])
    out, err = capsys.readouterr()
    assert not out and err == "python -m reproduction: --check: other than their results: docs/data/kanji.csv\n"


@pytest.mark.slow  # half a minute; the page of the reproduction by itself is compared in test_reproduction.py
def test_everything_is_as_its_results_give_it(capsys):
    commands.main(["--check"])
    assert capsys.readouterr().out == "30 files are as their results give them\n"
