"""The site's settings: `make docs` builds it into target/docs."""

import contextlib
import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import peaccel
from peaccel._utils.words import WORDS

project = "peaccel"
author = copyright = "The peaccel authors"
release = version = peaccel.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
# What `make bench-pages` has drawn, if it has.
benchmarks = Path(__file__).parents[1] / "benches/.asv/html"
html_extra_path = [str(benchmarks)] if benchmarks.is_dir() else []
templates_path = ["_templates"]
default_role = "py:obj"
nitpicky = True
smartquotes = False  # tables hold commands, whose two hyphens are no dash
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autosummary_ignore_module_all = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": "/plot_",
    "ignore_pattern": "serve|neighbours",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 10,
}

# Pages whose tables need the width of the list of headings.
WIDE = ("measurements", "choosing-a-score", "score-comparison", "differences", "demo", "reproduction", "claims")

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = "peaccel"
html_show_sourcelink = False
html_sidebars = {"**": ["sections"]}
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": False,
    "navbar_center": [],  # the sidebar has all sections
    "secondary_sidebar_items": {"**": ["page-toc"], **{page: [] for page in WIDE}},
}

# The modules whose names users write, and what their names are where they are defined.
MODULES = ["peaccel"] + [
    f"peaccel.{name}"
    for name in (
        "scores", "special", "io", "metrics", "evaluation", "distributions.torch_distributions", "losses",
        "losses.score_distance", "heads", "train.backbones", "data", "methods", "published", "train", "hub",
        "retrieval.ray",
    )
]  # fmt: skip
EXPORTED = {name: importlib.import_module(name).__all__ for name in MODULES}
# What the package exports too is described there.
autosummary_context = {"exported": {name: set(names) - set(peaccel.__all__) for name, names in EXPORTED.items()}}


def public_names() -> dict[str, str]:
    """The name under which the site has an object, by every other name that docstrings and annotations call it."""
    found = {f"pe.{name.removeprefix('peaccel.')}": name for name in MODULES}
    for path, names in EXPORTED.items():
        module = importlib.import_module(path)
        for name in names:
            full, target = f"{path}.{name}", getattr(module, name)
            own = f"{getattr(target, '__module__', path)}.{name}"
            for alias in (name, f"pe.{full.removeprefix('peaccel.')}", full, own):
                found.setdefault(alias, full)
    return found


def arguments() -> set[str]:
    """The names of all arguments and attributes of what is public, which docstrings quote as they quote functions."""
    found = set()
    for path, names in EXPORTED.items():
        for name in names:
            described = getattr(importlib.import_module(path), name)
            members = inspect.getmembers(described, callable) if inspect.isclass(described) else []
            found.update(dir(described) if inspect.isclass(described) else ())
            for function in (described, *(member for _, member in members)):
                with contextlib.suppress(TypeError, ValueError):  # some of C's have no signature
                    found |= inspect.signature(function).parameters.keys()
    return found


NAMES = public_names()
ARGUMENTS = arguments()
OTHERS = ("copy", "datasets", "faiss", "numpy", "pickle", "torch")  # their documentation is not at hand here


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node) -> Any:
    """Find what is called `pe.search`, `search` or `peaccel.retrieval.verbs.search` at the place that describes it.

    Arguments, expressions and names of other libraries stay code; what is left is a mistake, of which Sphinx warns.
    """
    written = node["reftarget"]
    owner, _, member = written.rpartition(".")
    target = NAMES.get(written) or (f"{NAMES[owner]}.{member}" if owner in NAMES else None)
    if node.get("refdomain") != "py":
        return None
    if target is None:
        quoted = written in ARGUMENTS or written.split(".")[0] in OTHERS or not re.fullmatch(r"[\w.]+", written)
        return content if quoted else None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)


def escape(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let |x| stand for a length, as docstrings have it, not for one of reStructuredText's substitutions."""
    lines[:] = [line if line.lstrip().startswith((">>>", "...")) else line.replace("|", r"\|") for line in lines]


def overloads(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show what a function of `*given` may be called with, a line each, in place of that."""
    if not signature or not signature.startswith("(*given"):
        return None
    shown = []
    for each in typing.get_overloads(obj):
        found = inspect.signature(each)
        bare = [argument.replace(annotation=argument.empty) for argument in found.parameters.values()]
        shown.append(str(found.replace(parameters=bare, return_annotation=found.empty)))
    return f"\n{obj.__name__}".join(shown), returns


def words(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the table of the field's words into its page, as a glossary, whose terms the search finds first."""
    if page == "words":
        places: dict[str, list[str]] = {}
        for word, place in WORDS.items():
            places.setdefault(re.sub(r"peaccel(\.\w+)+", r"{py:obj}`\g<0>`", place), []).append(word)
        entries = ("\n".join((*terms, f"  {place}\n")) for place, terms in places.items())
        source[0] = re.sub(r"<!--.*-->", lambda _: "\n".join(("```{glossary}", *entries, "```")), source[0])


def setup(app: Sphinx) -> None:
    """Add what Sphinx asks for names that it does not find, and what it reads docstrings by."""
    if html_extra_path:
        app.tags.add("benchmarks")
    app.connect("source-read", words)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", escape, priority=400)
    app.connect("autodoc-process-signature", overloads)
