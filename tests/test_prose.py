"""First sentences of public docstrings and help texts are short; phrases that hide a noun only become fewer."""

import ast
import importlib
import inspect
import pathlib
import re

import pytest

import peaccel as pe

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "peaccel"
LONGEST = 25
"""Words of a first sentence."""
PHRASES = re.compile(r"\b(of\s+which|those\s+of|what\s+is|it\s+is\s+of)\b", re.IGNORECASE)
CEILINGS = {"pages": 2, "docstrings": 0, "help texts": 0}
"""Phrases that are left, here the text of claim 28 on two pages. A number may only fall."""


def members(described):
    """A public object with the public methods and properties that a class of the package defines."""
    yield described
    for name, value in vars(described).items() if inspect.isclass(described) else ():
        if not name.startswith("_") and inspect.getattr_static(value, "__doc__", None):
            found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(found):
                yield found


def docstrings():
    """Docstrings of everything that a package or a public module names in its `__all__`."""
    paths = [path for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"]
    folders = {path.stem for path in paths if not path.stem.startswith("_")} - {"cli"}
    modules = [pe, *(importlib.import_module(f"peaccel.{name}") for name in sorted(folders))]
    named = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    found = {}
    for described in named:
        for member in members(described) if inspect.isclass(described) or inspect.isfunction(described) else ():
            if member.__module__.startswith("peaccel"):
                found[f"{member.__module__}.{member.__qualname__}"] = inspect.cleandoc(member.__doc__ or "")
    return found


def help_texts():
    """Heads of commands and texts of options, which are docstrings of modules, classes and fields of cli."""
    found = {}
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[path.stem] = ast.get_docstring(tree) or ""
        for node in (x for x in tree.body if isinstance(x, ast.ClassDef)):
            for part in node.body:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    found[f"{path.stem}:{part.lineno}"] = inspect.cleandoc(part.value.value)
    return found


def pages():
    """README and all pages of the site."""
    paths = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


WORDS = 25_000
"""Words of README and the pages, without code and without what a command writes."""


def test_pages_are_short_in_all():
    written = [text.partition("<!-- What follows is written by")[0] for text in pages().values()]
    prose = (re.sub(r"(?ms)^```.*?^```$|^(?: {4}|\t).*?$", "", text) for text in written)
    assert sum(len(text.split()) for text in prose) <= WORDS


TEXTS = {"pages": pages, "docstrings": docstrings, "help texts": help_texts}


def first_sentence(text):
    """The text before the first full stop or empty line."""
    return re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0]


@pytest.mark.parametrize("kind", ["docstrings", "help texts"])
def test_first_sentences_are_short(kind):
    found = TEXTS[kind]()
    assert len(found) > 100
    assert {name for name, text in found.items() if len(first_sentence(text).split()) > LONGEST} == set()


@pytest.mark.parametrize("kind", CEILINGS)
def test_phrases_that_hide_a_noun_become_fewer(kind):
    left = [f"{name}: {phrase[0]}" for name, text in TEXTS[kind]().items() for phrase in PHRASES.finditer(text)]
    assert len(left) == CEILINGS[kind], "\n".join(left)
