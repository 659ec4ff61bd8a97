"""Types of all that is public, of arguments and results; those of arrays and of tensors are in typed_user.py."""

import functools
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import peaccel as pe
from peaccel.scores._score import WeightedSquares

# What is public and yet Any, and why.
OPEN = {
    "io.from_state": "the dict says what it is, and of which kind of array",
    "io.to_state": "arrays, numbers and words by their names",
    "Exported.to_dict": "the same",
    "Score.params": "numbers, words, arrays of either kind",
    "Pretrained.fits": "a prior among them is of arrays of either kind",
    "Score.pairs": "by functions of these",
    "LaidOut.panels": "what the kernels of either kind of array read",
    # A score is declared by functions of arrays of either kind, which they ask for what both have.
    **dict.fromkeys(("Pair.query", "Pair.gallery", "Pair.shared", "Pair.weighted"), "functions of either kind"),
    **dict.fromkeys((f"WeightedSquares.{name}" for name in WeightedSquares._fields), "what these return"),
}

# What takes any number of arguments.
VARIADIC = {
    *("Distribution.to", "LogisticProbability.__call__", "LogisticProbability.log_likelihood_ratio", "Score.__call__"),
    *("fit_match_probability", "io.to_arrow"),
}

# Types of modules that are imported when a function is called.
LATE = {"DataFrame": pd.DataFrame, "Threshold": pe.Threshold}

CALLED = ("__init__", "__call__", "__getitem__", "__iter__", "__len__", "__contains__")


def is_open(hint):
    """Whether a type is Any, or made of it, or a class for either kind of array that leaves the kind open."""
    if hint in (Any, inspect.Signature.empty):
        return True
    if inspect.isclass(hint):
        return bool(getattr(hint, "__parameters__", ()))
    return typing.get_origin(hint) not in (np.ndarray, np.dtype) and any(map(is_open, parts_of(hint)))


def parts_of(hint):
    """The types that a type is made of, such as those of a union, or of a function's arguments."""
    if typing.get_origin(hint) is typing.Literal:
        return []
    parts = typing.get_args(hint)
    return [x for part in parts for x in (part if isinstance(part, list) else [part]) if x is not ...]


def classes_in(hint):
    """The package's own classes that a type names, but for the records of kernels."""
    kind = typing.get_origin(hint) or hint
    return {kind} if is_own(kind) else set().union(*map(classes_in, parts_of(hint)))


def is_own(kind):
    return inspect.isclass(kind) and kind.__module__.startswith("peaccel.") and ".ops." not in kind.__module__


def members_of(kind):
    """(name, its type, or its function) of each public attribute and method that a class adds to those of its bases."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in inspect.get_annotations(kind) and not name.startswith("_"):
            yield name, hint, None
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function) and (name in CALLED or not name.startswith("_")):
            yield name, None, function


@functools.cache
def public():
    """Types by their places: what attributes are and functions return; and functions. All are reached from `pe`."""
    types, functions, seen, left = {}, {}, set(), []

    def add(place, hint, function):
        if function is None:
            types[place] = hint
        else:
            functions[place] = function
            for form in typing.get_overloads(function) or [function]:
                hint = typing.get_type_hints(form, localns=LATE).get("return", inspect.Signature.empty)
                types[place] = typing.Union[types[place], hint] if place in types else hint  # noqa: UP007
                left.extend(classes_in(hint))
        left.extend(classes_in(types[place]))

    def describe(module, prefix):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.ismodule(found):
                describe(found, f"{name}.")
            elif inspect.isfunction(found):
                add(prefix + name, None, found)
            else:
                left.extend(classes_in(found if inspect.isclass(found) else type(found)))

    describe(pe, "")
    while left:
        kind = left.pop()
        if kind not in seen:
            seen.add(kind)
            left.extend(filter(is_own, kind.__bases__))
            for name, hint, function in members_of(kind):
                add(f"{kind.__name__}.{name}", hint, function)
    return types, functions


def test_nothing_public_is_any():
    types, _ = public()
    assert {"pairwise", "_Ranked.ids", "Normal.var", "Prior.mean", "special.log_iv", "metrics.roc_auc"} <= types.keys()
    assert {place for place, hint in types.items() if is_open(hint)} == set(OPEN)


def test_every_name_is_in_the_file_that_type_checkers_read():
    used = set(re.findall(r"\bpe\.(\w+)", Path(__file__).with_name("typed_user.py").read_text()))
    assert set(pe.__all__) - used == {
        "CudaError",
        "__version__",
        "enable_torch",
        "set_num_threads",
    }  # which return none


def test_every_parameter_has_a_type():
    _, functions = public()
    forms = [(place, form) for place, f in functions.items() for form in typing.get_overloads(f) or [f]]
    untyped = [
        f"{place}: {name}"
        for place, form in forms
        for name in inspect.signature(form).parameters
        if name not in ("self", "cls", *typing.get_type_hints(form, localns=LATE))
    ]
    assert not untyped


def test_signatures_show_parameters():
    _, functions = public()
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    shown = {place: inspect.signature(function).parameters.values() for place, function in functions.items()}
    assert {place for place, parameters in shown.items() if any(p.kind in many for p in parameters)} == VARIADIC
    assert list(inspect.signature(pe.calibrate_variance).parameters) == ["d", "pairs", "labels", "offset"]
    assert list(inspect.signature(pe.fit_prior).parameters) == ["d", "labels"]
