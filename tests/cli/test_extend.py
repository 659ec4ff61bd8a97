"""Code of docs/extend runs as its pages show it, in an empty folder; methods from outside the package."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run
from layouts import put

import peaccel as pe
from peaccel import methods
from peaccel.data import datasets

PAGES = sorted(x for x in (Path(__file__).parents[2] / "docs" / "extend").glob("*.md") if x.stem != "index")
SMALL = "--dim 8 --schedule.epochs 1 --device cpu --threads 1"
MORE = {"peaccel train my_method.py --resume": "--device cpu --threads 1"}
"""Options with which commands that train take seconds, where these are not `SMALL`."""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty current folder; what files of it import and name is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for table in (datasets.READERS, datasets.USES):
        for name in ("my_data", "random_rows", "more_rows"):
            monkeypatch.setitem(table, name, None)
            del table[name]
    monkeypatch.setattr(pe.scores, "SCORES", pe.scores.SCORES.copy())
    yield tmp_path
    forget()


def forget():
    for name in ("my_loss", "my_metric", "my_score", "their_module"):
        sys.modules.pop(name, None)


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def written(page):
    """Write the blocks that begin with the name of a file, and give the others."""
    others = []
    for block in python_blocks(page):
        if named := re.match(r"# (\w+\.py)\n", block):
            Path(named[1]).write_text(block)
        else:
            others.append(block)
    return others


def test_there_is_a_page_for_all_that_grows():
    assert [page.stem for page in PAGES] == ["loss", "method", "metric", "reader", "score"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_in_an_empty_folder(page, empty, capsys, monkeypatch):
    others = written(page)
    put(empty / "data", {
        "features.txt": "".join(f"{i % 4} {i % 4 + i / 99} 1\n" for i in range(32)),
        "classes.txt": "".join(f"class{i % 4}\n" for i in range(32)),
    })  # fmt: skip
    commands = re.findall(r"^    (peaccel .*)$", page.read_text(), re.MULTILINE)
    assert others or commands
    with monkeypatch.context() as here:
        here.syspath_prepend(empty)  # as of Python in this folder; commands find files without
        for block in others:
            exec(compile(block, str(page), "exec"), {})
    forget()
    for command in commands:
        more = MORE.get(command, SMALL if " train " in command else "")
        code, out, err = run(capsys, *command.split()[1:], more)
        assert code == 0, f"{command}: {err}"
        assert " -> " in out


METHOD = next(page for page in PAGES if page.stem == "method")


def test_a_method_that_ranks_by_a_score_of_its_own(empty, capsys):
    for page in PAGES:
        if page.stem in ("loss", "score"):
            written(page)
    text = Path("my_method.py").read_text()
    Path("my_method.py").write_text("import my_score\n" + text.replace('score="mls"', 'score="sure_cosine:weight=0.5"'))
    assert run(capsys, "train my_method.py --quick", SMALL)[0] == 0
    from peaccel.train import load

    assert str(load(Path("runs/my_method"), "my_method.py").score) == "sure_cosine:weight=0.5"


def test_a_method_that_has_moved(empty, capsys):
    written(METHOD)
    code, out, _ = run(capsys, "train my_method.py --quick", SMALL)
    assert code == 0 and out.startswith("my_method on mnist, seed 0: Recall@1 ")
    record = json.loads(Path("runs/my_method/run.json").read_text())
    assert (record["name"], record["method"]) == ("my_method", str(empty / "my_method.py"))
    Path("new").mkdir()
    Path("my_method.py").rename("new/my_method.py")
    assert run(capsys, "train new/my_method.py --resume --device cpu --threads 1")[0] == 0
    embed = "embed --run runs/my_method --part query --out query.npz --method"
    code, _, err = run(capsys, f"{embed} my_method.py")
    assert code == 2 and err == "peaccel embed: my_method.py: no such file\n"
    assert run(capsys, f"{embed} new/my_method.py")[0] == 0


RUNS = "from pathlib import Path\nPath('was_run').touch()\n"


@pytest.mark.parametrize("method", ["theirs.py", "/theirs.py", "runs/../theirs.py"])
def test_no_method_runs_because_a_run_names_it(empty, capsys, method):
    written(METHOD)
    assert run(capsys, "train my_method.py --quick", SMALL)[0] == 0
    Path("theirs.py").write_text(RUNS + Path("my_method.py").read_text())
    folder = Path("runs/my_method")
    record = json.loads((folder / "run.json").read_text())
    method = f"{empty}{method}" if method.startswith("/") else method
    (folder / "run.json").write_text(json.dumps(record | {"method": method}))
    from peaccel.train import load

    told = f"run.json: method is {method!r}, a file, which is not run because a run names it; name it yourself: "
    with pytest.raises(ValueError, match=re.escape(told)):
        load(folder)
    code, _, err = run(capsys, f"embed --run {folder} --part query --out q.npz")
    assert code == 2 and told in err and "--method my_method.py" in err and err.count("\n") == 1
    assert load(folder, method="my_method.py").method.name == "my_method"
    assert run(capsys, "train my_method.py --resume --device cpu --threads 1")[0] == 0
    assert not Path("was_run").exists()


def test_no_reader_runs_because_a_run_names_it(empty, capsys):
    Path("my_reader.py").write_text(READER)
    assert run(capsys, f"train cosface --data my_reader.py --root . --out r {SMALL}")[0] == 0
    Path("theirs").mkdir()
    Path("theirs/my_reader.py").write_text(RUNS + READER.replace("random_rows", "more_rows"))
    record = json.loads(Path("r/run.json").read_text())
    record["run"]["data"] = f"{empty}/theirs/my_reader.py"
    Path("r/run.json").write_text(json.dumps(record))
    for words in ("embed --run r --out test.npz", "train cosface --resume --out r"):
        code, _, err = run(capsys, words)
        told = f"r/run.json: data is '{empty}/theirs/my_reader.py', a file, which is not run because a run names it"
        assert code == 2 and err == f"peaccel {words.split()[0]}: {told}; name it yourself: --data my_reader.py\n"
    from peaccel.train import load

    assert load(Path("r")).features == 6
    assert run(capsys, "embed --run r --data my_reader.py --root . --out test.npz")[0] == 0
    assert run(capsys, "train cosface --resume --data my_reader.py --root . --out r")[0] == 0
    assert not Path("was_run").exists()


def test_a_reader_and_its_data_are_found_from_another_folder(empty, capsys, monkeypatch):
    written(next(page for page in PAGES if page.stem == "reader"))
    Path("data").mkdir()
    np.savetxt("data/features.txt", np.eye(8).repeat(4, 0))
    np.savetxt("data/classes.txt", np.arange(8).repeat(4), "%d")
    assert run(capsys, f"train cosface --data my_reader.py --root data --out r {SMALL}")[0] == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    code, _, err = run(capsys, "embed --run ../r --out test.npz --data ../my_reader.py")
    assert code == 0, err
    code, _, err = run(capsys, "train cosface --resume --out ../r --data ../my_reader.py")
    assert code == 0, err


FILES = {
    "METHOD = 3": "bad.py: METHOD is int, expected a peaccel.methods.method.Method",
    "x = 3": "bad.py: has no METHOD, expected a peaccel.methods.method.Method of this name",
    "x = = 3": "bad.py:1: invalid syntax",
    "import missing_library": "bad.py: No module named 'missing_library'",
    "from dataclasses import replace\nfrom peaccel.methods import load\n"
    "METHOD = replace(load('pfe'), settings=dict)": "bad.py: settings of METHOD are <class 'dict'>, expected a frozen",
}


@pytest.mark.parametrize("text", FILES)
def test_files_that_are_no_methods_are_refused_in_one_line(text, empty, capsys):
    Path("bad.py").write_text(text)
    code, _, err = run(capsys, "train bad.py --quick")
    assert code == 2 and FILES[text] in err and err.count("\n") == 1


def test_recipes_beside_a_file(empty, capsys):
    written(METHOD)
    Path("my_method.toml").write_text("[settings]\nscale = 8.0\n[digits]\ndim = 4\n")
    from peaccel.train import recipe

    method, settings = recipe("my_method.py", "mnist")
    assert (settings.scale, settings.dim) == (8, 4)
    assert method is recipe("my_method.py", "cub200")[0], "the file was run again"
    for text, told in {
        "[settings]\nscal = 8.0": "my_method.py: unknown key 'scal'; did you mean 'scale'?",
        "scale = 8.0": "my_method.toml: scale is 8.0, expected tables: [settings], [tune], those of data sets",
    }.items():
        Path("my_method.toml").write_text(text)
        code, _, err = run(capsys, "train my_method.py --quick")
        assert code == 2 and err == f"peaccel train: {told}\n"


def test_a_copy_that_kept_its_name_is_loaded_again_from_its_file(empty, capsys):
    Path("copy.py").write_text("from dataclasses import replace\nfrom peaccel.methods import load\n"
                               "METHOD = replace(load('cosface'), score='neg_sq_l2')\n")  # fmt: skip
    assert run(capsys, "train copy.py --quick", SMALL)[0] == 0
    from peaccel.train import load

    assert load(Path("runs/copy"), Path("copy.py")).method.score == "neg_sq_l2"


@pytest.fixture
def package(empty, monkeypatch):
    """A package that is installed, with an entry point of the group."""
    monkeypatch.syspath_prepend(empty)
    written(METHOD)
    Path("their_package-1.0.dist-info").mkdir()
    Path("their_package-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n"
    )
    points = Path("their_package-1.0.dist-info/entry_points.txt")
    Path("my_method.py").rename("their_module.py")
    points.write_text("[peaccel.methods]\ntheir_method = their_module:METHOD\n")
    return points


def test_methods_of_other_packages(package, capsys):
    assert methods.installed() == ("their_method",) and methods.load("their_method").paper == "Mine, 2026"
    code, out, _ = run(capsys, "methods")
    assert code == 0 and "Mine, 2026" in out and re.search(r"\btheir_method\b", out)
    code, out, _ = run(capsys, "train their_method --quick", SMALL)
    assert code == 0 and out.startswith("their_method on mnist")
    assert run(capsys, "embed --run runs/their_method --part query --out query.npz")[0] == 0
    code, _, err = run(capsys, "train their_metod --quick")
    assert code == 2 and "did you mean 'their_method'?" in err


@pytest.mark.parametrize("value", ["missing_module:METHOD", "their_module:WRONG", "their_module:Settings"])
def test_a_package_that_is_damaged_is_named(value, package, capsys):
    package.write_text(f"[peaccel.methods]\ntheir_method = {value}\n")
    for command in ("methods", "train their_method"):
        code, _, err = run(capsys, command)
        assert code == 2 and err.startswith(f"peaccel {command.split()[0]}: entry point their_method = {value}: ")


READER = """from peaccel.data import reader
from peaccel.data.datasets import Features
import numpy as np

@reader("random_rows", "features")
def random_rows(root):
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
    known = Features(rows, np.arange(40) // 4, tuple(map(str, range(10))))
    return {"train": known.of_classes(0, 5), "test": known.of_classes(5, 10)}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (READER.replace("@reader", "# @reader"), "has 0 functions under peaccel.data.reader, expected one"),
        (
            READER + READER.replace("random_rows", "more_rows"),
            "has 2 functions under peaccel.data.reader, expected one",
        ),
        (READER.replace("return {", "return 3; {"), "gave int, expected a mapping of parts"),
        (READER.replace("known.of_classes(0, 5)", "rows"), "part train is ndarray, expected a record of data.datasets"),
        (READER.replace('"random_rows"', '"cub200"'), "reader: 'cub200' is the name of another data set"),
        (READER.replace('"train"', '"training"'), "has no labelled items to train on, only test"),
    ],
)
def test_files_that_are_no_readers_are_refused_in_one_line(text, message, empty, capsys):
    Path("bad_reader.py").write_text(text)
    code, _, err = run(capsys, "train cosface --data bad_reader.py --root . --out runs/x", SMALL)
    assert code == 2 and message in err and err.count("\n") == 1, err
    assert not Path("runs/x").exists()


def test_readers_are_looked_for_before_work(empty, capsys):
    Path("my_reader.py").write_text(READER)
    for words, message in {
        "--data none.py --root .": "data none.py: there is no such file",
        "--data my_reader.py": "data my_reader.py: root is missing, expected the folder where it lies",
        "--data my_reader.py --root none": "data my_reader.py: root is none, which is not there",
    }.items():
        code, _, err = run(capsys, f"train cosface {words}")
        assert code == 2 and err == f"peaccel train: {message}\n"
