"""A report as one HTML file."""

import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from peaccel._utils.report import Section, Table, write


def body(tmp_path, *sections):
    write(tmp_path / "report.html", "Of <us> & them", sections, ["evaluate", "--gallery", "a<b.npz"])
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def table_of(page):
    return ElementTree.fromstring(re.search(r"<table>.*</table>", page, re.DOTALL)[0])


def test_text_is_escaped(tmp_path):
    page = body(tmp_path, Section("a < b", 'c & "d"', Table(["<x>"], [["<y>"]], 1, {"<x>": "<z>"})))
    assert "Of &lt;us&gt; &amp; them" in page and "<h2>a &lt; b</h2>" in page and "<dt>&lt;x&gt;</dt>" in page
    assert table_of(page).find(".//td").text == "<y>" and "peaccel evaluate --gallery" in page and "a<b.npz" not in page


def test_a_table_has_its_cells_in_place_and_intervals_below_their_values(tmp_path):
    rows = [["cosine", "1", "78.1 [73.8, 82.3]"], ["", "2", "-"], ["mls [raw]", "3", "39.0 [30.2, 48.1]"]]
    found = table_of(body(tmp_path, Section("s", "t", Table(["score", "n", "R@1 %"], rows, 1, chosen=2))))
    header, *lines = found.findall("tr")
    assert [cell.text for cell in header] == ["score", "n", "R@1 %"]
    assert [[" ".join(cell.itertext()) for cell in line] for line in lines] == rows
    assert [line.get("class").split() for line in lines] == [["group"], [], ["group", "chosen"]]
    assert [cell.get("class") for cell in lines[2]] == ["text", None, None]
    assert lines[0][2].find("small").text == "[73.8, 82.3]" and lines[2][0].find("small") is None


def test_a_section_has_its_picture_or_nothing(tmp_path):
    page = body(tmp_path, Section("picture", "t", Figure()), Section("words", "alone"))
    assert page.count('<img alt="picture" src="data:image/png;base64,iVBOR') == page.count("<img ") == 1
    assert "<table>" not in page and "<p>alone</p>" in page
