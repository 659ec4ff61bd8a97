"""A command of peaccel as a shell sees it, within this process, and what its options say of themselves."""

import ast
import inspect
from dataclasses import is_dataclass
from itertools import pairwise

from peaccel import cli


def run(capsys, *words, main=cli.main):
    """Its exit code, stdout and stderr; words may hold several, parted by spaces."""
    code = 0
    try:
        main(" ".join(words).split())
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capsys.readouterr()


def sentences(kind):
    """By field of a dataclass, inherited ones too, the docstring below it: what help prints."""
    found = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        body = ast.parse(inspect.getsource(base)).body[0].body
        for field, after in pairwise(body):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and told:
                found[field.target.id] = after.value.value
    return found
