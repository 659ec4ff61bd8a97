"""Docstrings are right: their examples run, every public object has one, and the names in them exist."""

import ast
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re

import numpy as np
import pytest

import peaccel as pe
from peaccel import losses, train
from peaccel.published import non_isotropic

PACKAGE = pathlib.Path(pe.__file__).parent
SOURCES = {
    ".".join(("peaccel", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
}
WITH_EXAMPLES = [name for name, text in SOURCES.items() if ">>> " in text]
PUBLIC = (pe, pe.special, pe.scores, pe.io, pe.metrics, losses, train)
# Users construct none of these: peaccel raises the error, a pair is how a score calls its kernel, `train` returns the
# result, `load` what is trained.
EXEMPT = {"CudaError", "Pair", "Result", "Trained"}


def examples():
    """Every docstring with examples, once: of modules, their functions and classes, and of scores."""
    names = {"np": np, "pe": pe}
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in map(importlib.import_module, WITH_EXAMPLES):
        yield from (test for test in finder.find(module, globs=names) if test.examples)
    for score in (*pe.scores.SCORES.values(), non_isotropic.nivmf_paper, non_isotropic.nivmf_published):
        yield doctest.DocTestParser().get_doctest(score.doc, dict(names), f"pe.scores.{score.name}", None, None)


EXAMPLES = {test.name: test for test in examples()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    doctest.DocTestRunner(verbose=False).run(EXAMPLES[name], out=said.append)
    assert not said, "".join(said)


def test_every_example_is_among_those_that_run():
    written = sum(len(re.findall(r"^ *>>> ", text, re.MULTILINE)) for text in SOURCES.values())
    assert written == sum(len(test.examples) for test in EXAMPLES.values())


def test_all_that_is_public_has_an_example():
    for module in PUBLIC:
        for name in set(module.__all__) - EXEMPT:
            found = getattr(module, name)
            if inspect.isroutine(found) or inspect.isclass(found) or isinstance(found, pe.scores.Score):
                assert re.search(r"Examples\n *-{8}\n(.*\n)*? *>>> ", found.__doc__), f"{module.__name__}.{name}"


def test_help_on_a_score_is_about_the_score():
    assert inspect.getdoc(pe.scores.ppk(rho=1)) == inspect.cleandoc(pe.scores.ppk.doc)


TREES = {name: ast.parse(text) for name, text in SOURCES.items()}
CLASSES = {node.name: node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def members(owner):
    """The names that a class and its bases in the package define."""
    for node in CLASSES[owner].body:
        yield getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None)
    for base in CLASSES[owner].bases:
        if isinstance(base, ast.Name) and base.id in CLASSES:
            yield from members(base.id)


def docstrings(tree):
    """The docstrings of a file, and the texts of scores in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr | ast.Call):
            values = [node.value] if isinstance(node, ast.Expr) else node.args
            yield from (x.value for x in values if isinstance(x, ast.Constant) and isinstance(x.value, str))


@pytest.mark.parametrize("name", TREES)
def test_names_in_docstrings_exist(name):
    for text in docstrings(TREES[name]):
        for found in re.findall(r"(?<![\w./-])(?:pe|peaccel)((?:\.[A-Za-z_]\w*)+)", text):
            pkgutil.resolve_name(f"peaccel{found}")  # or an error that names it
        for owner, member in re.findall(r"(?<!`)`([A-Z]\w*)\.(\w+)`", text):
            assert member in members(owner), f"{owner}.{member}"
