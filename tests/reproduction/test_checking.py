"""Pages and tables of the documentation beside their files of results."""

import pytest
from command import run

from reproduction import __main__ as commands
from reproduction import checking
from reproduction.speakers import TABLES

PAGE = TABLES.parent / "reproduction.md"


def test_tables_are_as_their_results_give_them():
    expected = dict(checking.recomputed())
    assert len(expected) == 11
    for path, text in expected.items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_a_table_of_other_numbers_is_named(capsys, monkeypatch):
    written = PAGE.read_text(encoding="utf-8").partition(f"{commands.MARK}\n\n")[2]
    monkeypatch.setattr(commands.ledger, "read", lambda path: {})
    monkeypatch.setattr(commands, "files", lambda plan, records: {})
    monkeypatch.setattr(commands, "page_of", lambda plan, records, results: written)
    monkeypatch.setattr(checking, "recomputed", lambda: iter([(TABLES / "kanji.csv", "Row\n")]))
    code, out, err = run(capsys, "--check", main=commands.main)
    assert code == 2 and not out
    assert err == "python -m reproduction: --check: other than their results: docs/data/kanji.csv\n"


@pytest.mark.slow  # half a minute; the page of the reproduction by itself is compared in test_reproduction.py
def test_everything_is_as_its_results_give_it(capsys):
    code, out, _ = run(capsys, "--check", main=commands.main)
    assert code == 0 and out == "28 files are as their results give them\n"
