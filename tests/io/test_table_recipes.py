"""The recipes of docs/tables.md run on the real clients, and print what they show."""

import ast
import re
import runpy
from pathlib import Path

import pytest

import peaccel as pe

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tables.md"
FILES, SIX_LINES, *RECIPES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
CLIENTS = ("pyarrow.dataset", "polars", "duckdb", "datasets", "lancedb", "qdrant_client", "llama_index")


def imported(block):
    """Imports of a block."""
    for node in ast.walk(ast.parse(block)):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [x.name for x in getattr(node, "names", ())]
        yield from filter(None, names)


def carried(block, folder):
    """The file of a block."""
    (folder / "block.py").write_text(block)
    return str(folder / "block.py")


def carried_out(block, capsys, folder):
    """Run a block as a script; what it prints must be what comments behind its prints, and at its end, say."""
    capsys.readouterr()
    runpy.run_path(carried(block, folder))
    shown = re.findall(r"^(?:print\(.*\)  )?# (.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == shown
    return shown


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder with the files that the first block of the page writes."""
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "first.py").write_text(FILES)
        runpy.run_path("first.py")
    return folder


@pytest.mark.filterwarnings("default")  # of the clients
@pytest.mark.parametrize("client", CLIENTS)
def test_a_recipe_prints_what_it_shows(client, tables, monkeypatch, capsys):
    monkeypatch.chdir(tables)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (block,) = (b for b in RECIPES if any(name.startswith(client) for name in imported(b)))
    assert carried_out(block, capsys, tables)


def test_every_recipe_is_of_a_client():
    assert len(RECIPES) == len(CLIENTS)
    assert all(len(re.findall(r"^\S.*$", block, re.MULTILINE)) <= 16 for block in RECIPES)


def test_a_table_becomes_a_gallery_in_six_lines(tables, monkeypatch, capsys):
    """They find, under the table's ids, what an exact search finds."""
    monkeypatch.chdir(tables)
    assert len(SIX_LINES.splitlines()) <= 6
    found = runpy.run_path(carried(SIX_LINES, tables))
    gallery, ids, queries = (found[name] for name in ("gallery", "ids", "queries"))
    exact = ids[pe.search(queries, gallery, 10, "mls").ids]
    (printed,) = capsys.readouterr().out.replace("\n ", " ").splitlines()
    assert re.findall(r"'(.*?)'", printed) == found["reranker"].search(queries, 10).ids[0].tolist()
    assert len({*re.findall(r"'(.*?)'", printed)} & {*exact[0].tolist()}) >= 8
