"""Python code of README and docs runs, block after block, in an empty folder; the site builds."""

import csv
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benches import charts, record
from peaccel._utils.words import WORDS
from tools import check_site

ROOT = Path(__file__).parent.parent
# Of which tests of their own hold what is printed, or write files of several blocks.
OWN = ("galleries", "plda", "tables", "thresholds")
ELSEWHERE = {*(f"{name}.md" for name in OWN), *(f"extend/{p.name}" for p in (ROOT / "docs/extend").iterdir())}
PAGES = {str(p.relative_to(ROOT / "docs")): p for p in (ROOT / "docs").rglob("*.md")}
BLOCKS = {
    name: re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for name, page in {"README": ROOT / "README.md", **PAGES}.items()
}


@pytest.mark.parametrize("page", [name for name in BLOCKS if BLOCKS[name] and name not in ELSEWHERE])
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in BLOCKS[page]:
        exec(block, names)
    printed, shown = capsys.readouterr().out, "".join(BLOCKS[page])
    for line in re.findall(r"^print\(.*\)(?:\n# |  # (?=[\[\d]))(.*)$", shown, re.MULTILINE):
        assert line.removesuffix(" ...") in printed


def kept(name):
    """The rows of a table of measurements, by the names of its columns."""
    with (record.FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_of_measurements_has_its_command_and_is_shown_under_it():
    runs = {run["table"]: run for run in kept("runs")}
    assert runs.keys() == {path.stem for path in record.FOLDER.glob("*.csv")} - {"runs", "summary"}
    page = PAGES["measurements.md"].read_text()
    for table, run in runs.items():
        assert f"```{{csv-table}} {run['command']}\n:file: performance/{table}.csv\n" in page
        assert importlib.util.find_spec(run["command"].split()[2])
        assert run["machine"] and re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"])


def test_what_the_page_of_performance_says_is_in_its_tables():
    for line in kept("summary"):
        reached, goal = re.match(r"[\d.]+(x| us|)", line["reached"])[0], line["goal"]
        found = [row for row in kept("ratios") if reached in (row["time"], *re.split("[; ]+", row["ratio"]))]
        assert any(goal in row["goal"] for row in found), line


def test_the_bars_are_of_the_tables():
    """To the byte; `python -m benches.charts` draws them."""
    assert charts.charts() == {path.name: path.read_text(encoding="utf-8") for path in record.FOLDER.glob("*.svg")}


def test_each_table_that_a_benchmark_prints_is_kept(tmp_path):
    (tmp_path / "runs.csv").write_text("table,command,machine,date\n")
    record.record("a,b", "python -m benches.a", ["| x |\n", "| 1 |\n", "and\n", "| y |\n"], tmp_path)
    assert [(tmp_path / f"{name}.csv").read_text() for name in "ab"] == ["x\n1\n", "y\n"]


def test_what_a_benchmark_prints_is_kept(tmp_path):
    (tmp_path / "runs.csv").write_text("table,command,machine,date\na,old,there,2020-01-01\nb,stays,there,2020-01-01\n")
    printed = ["cpu: x\n", "| work | goal |\n", "| --- | --- |\n", "| 1,000 x 2 | |\n", "| y | >= 2x |\n", "\n"]
    record.record("a", "python -m benches.a", printed, tmp_path)
    assert (tmp_path / "a.csv").read_text() == 'work,goal\n"1,000 x 2",\ny,≥ 2x\n'
    _, new, other = (tmp_path / "runs.csv").read_text().splitlines()
    assert new.startswith("a,python -m benches.a,") and other == "b,stays,there,2020-01-01"


def test_no_cell_of_a_table_begins_a_list():
    """A page shows a dash alone as a bullet."""
    for table in (ROOT / "docs").rglob("*.csv"):
        with table.open(newline="") as file:
            assert not {cell for row in csv.reader(file) for cell in row} & set("-*+"), table.name


def test_no_page_has_the_name_of_one_that_sphinx_writes():
    assert not {"search.md", "genindex.md", "py-modindex.md"} & PAGES.keys()


@pytest.mark.slow
def test_the_site_builds_and_every_name_in_it_resolves(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-n",
        "-W",
        "--keep-going",
        "-d",
        "trees",
        str(ROOT / "docs"),
        "out",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/api/generated/peaccel.search.html").exists()
    page = (tmp_path / "out/words.html").read_text(encoding="utf-8")
    assert {word for word in WORDS if f'id="term-{word}"' not in page} == set()


@pytest.mark.skipif(not any(map(shutil.which, check_site.NAMES)), reason="there is no chromium")
def test_a_page_that_is_wider_than_its_window_is_named(tmp_path, capsys):
    scrolls = '<pre style="overflow: auto">' + 900 * "x" + "</pre>"
    (tmp_path / "fits.html").write_text(f"<!doctype html><body><main>{scrolls}</main>")
    (tmp_path / "wide.html").write_text('<!doctype html><body><main><div style="width: 1000px">x</div></main>')
    assert check_site.main(tmp_path) == 1
    named, last = capsys.readouterr().out.splitlines()
    assert named.startswith("wide.html: 10") and "pixels wide in a window of 390: <div" in named
    assert last == "check_site: 2 pages at 390 and 1400 pixels, 1 too wide"


def test_a_site_without_a_browser_is_not_checked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check_site.shutil, "which", lambda name: None)
    assert check_site.main(tmp_path) == 0 and "the widths of pages are not checked" in capsys.readouterr().out
