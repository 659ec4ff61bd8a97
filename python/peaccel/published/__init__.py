"""The authors' code where it does what it should not, to compare with its numbers; everybody else has one form, right.

A paper is a file. The name of a class or a score says what is other in it, and its docstring what is wrong with that.
``peaccel train published.pfe`` trains any row of the papers' table whose method is one of `NAMES`, by the settings of
its recipe.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from peaccel._utils.suggestions import unknown

if TYPE_CHECKING:
    from peaccel.methods.method import Method

__all__ = ["NAMES", "PREFIX", "load"]

PREFIX = "published."
"""Beginning of the names of rows and methods in their published form."""

FILES = {
    **dict.fromkeys(("dul_cls", "dul_reg", "dul_reg_cls", "hib", "pfe", "vmf_fl"), "revisited"),
    **dict.fromkeys(("el_nivmf", "kl_vmf", "nivmf", "panc_el_nivmf"), "non_isotropic"),
    "bayesian_triplet": "bayesian_triplet_listing",
    "scf": "spherical_confidence",
}

NAMES = tuple(PREFIX + name for name in sorted(FILES))
"""The methods that have a published form."""


def load(name: str) -> Method:
    """Import the published form of a method.

    Parameters
    ----------
    name
        One of `NAMES`.

    Raises
    ------
    ValueError
        There is none of this name; the nearest is named.

    Examples
    --------
    >>> from peaccel import published
    >>> published.load("published.pfe").name
    'pfe'
    """
    if name not in NAMES:
        raise ValueError(unknown("published method", name, NAMES))
    row = name.removeprefix(PREFIX)
    return cast("Method", import_module(f"peaccel.published.{FILES[row]}").METHODS[row])


def built_of(method: Method, **parts: Any) -> Method:
    """A method with other parts: arguments of its `build`, such as the class of its loss."""
    return replace(method, build=partial(method.build, **parts))
