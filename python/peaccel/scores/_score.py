"""The record of a score. It is data, so that it can be compared and pickled: its functions are those of modules."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from peaccel._utils.arrays import Array, is_torch, on_host, require_plain
from peaccel._utils.seeds import SEEDS, as_integer, as_seed, is_source
from peaccel._utils.suggestions import unknown
from peaccel.distributions import Distribution
from peaccel.ops._definitions import Draws, PairOp

__all__ = [
    "INTEGERS",
    "ISOTROPIC",
    "KINDS",
    "KNOWN",
    "SCALAR",
    "ByWord",
    "Choice",
    "Fitted",
    "KernelInputs",
    "Kinds",
    "Pair",
    "Params",
    "Score",
    "Shared",
    "Weighted",
    "WeightedSquares",
    "every",
]

Kinds: TypeAlias = tuple[str, str]  # kind of the query, kind of the gallery
Params: TypeAlias = Mapping[str, Any]
KernelInputs: TypeAlias = Callable[[Distribution, Params], tuple[Array, Array]]

Shared: TypeAlias = Callable[[Array, Params], Array]
Weighted: TypeAlias = Callable[[Array, Array, Array], "WeightedSquares"]

KINDS = ("normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled", "point")
ISOTROPIC = ("normal_isotropic", "point")
SCALAR = ((), (1,))  # shapes of a parameter that is one number
INTEGERS = {"n": (1, 1024), "seed": SEEDS}  # parameters that are integers, with their bounds


def _nothing_shared(mu: Array, params: Params) -> Array:
    return mu.new_empty(0) if is_torch(mu) else np.empty(0, mu.dtype)


class WeightedSquares(NamedTuple):
    """``sum constant - weight ((mu1 - mu2)^2 - query mu1^2 - gallery mu2^2)``, each [1] or [D] in float64."""

    weight: Array
    constant: Array | None = None
    query: Array | None = None
    gallery: Array | None = None


@dataclass(frozen=True)
class Pair:
    """How a pair of kinds is scored: the op, its inputs from each side, and the row that all pairs share.

    `weighted` says what the score is where all queries have one variance, and all gallery items one, of these
    variances, [1] or [D], and the shared row, all in float64.
    """

    op: PairOp
    query: KernelInputs
    gallery: KernelInputs
    shared: Shared = _nothing_shared
    weighted: Weighted | None = None


class Fitted(NamedTuple):
    """The fit that gives a parameter its value.

    Examples
    --------
    >>> pe.scores.llr.fits["prior_var"].kind
    'prior'
    """

    kind: str
    """The kind of the fit, as files of fits name it, such as "prior"."""
    part: str | None = None
    """The attribute of the fit that is the value; None where the fit is a number."""
    positive: bool = False
    """Whether the value is above 0, so that losses learn its logarithm."""


@dataclass(frozen=True)
class ByWord:
    """A choice of the pair by a parameter that is a word."""

    param: str
    pairs: Mapping[str | None, Pair]

    def __call__(self, params: Params) -> Pair:
        return self.pairs[params[self.param]]


Choice: TypeAlias = Pair | Callable[[Params], Pair]  # a pair, or a function of the parameters that chooses one


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """A score of pairs. Calling it returns a copy with other parameters.

    ``str(score)`` is a text that verbs, and `pe.scores.get`, read back without loss: parameters to the last bit, arrays
    in brackets. Scores are equal where names, pairs and values of parameters are.

    Attributes
    ----------
    name
        The name by which verbs take it.
    doc
        A sentence, the formula, parameters, source and an example: what ``help`` shows, and ``peaccel scores NAME``.
    pairs
        (query kind, gallery kind) -> `Pair`, or a function of the parameters that chooses one.
    params
        Parameters and their values; numbers, arrays or, to be trained, tensors; words where `choices` has some. None =
        must be given, or, of a seed, drawn at every call, as from a generator.
    choices
        Parameter -> the words it takes.
    fits
        Parameter -> the fit to labelled items that gives its value; losses can learn these parameters.

    Examples
    --------
    >>> score = pe.scores.llr(prior_var=0.5)
    >>> str(score), score == pe.scores.get("llr:prior_var=0.5")
    ('llr:prior_var=0.5,prior_mean=0.0', True)
    """

    name: str
    doc: str
    pairs: Mapping[Kinds, Choice]
    params: Params = field(default_factory=dict)
    choices: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    fits: Mapping[str, Fitted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.doc)

    def __call__(self, **params: Any) -> Score:
        for name, value in params.items():
            require_plain(self.name, name, value)
            if name not in self.params:
                raise ValueError(f"{self.name}: {unknown('parameter', name, self.params)}")
            if name in self.choices:
                if value not in self.choices[name]:
                    words = ", ".join(map(repr, self.choices[name]))
                    raise ValueError(f"{self.name}: {name} is {value!r}, expected one of {words}")
            elif name in INTEGERS:
                if not (name == "seed" and is_source(value)):
                    as_integer(self.name, name, value, *INTEGERS[name])
            elif not (value is None or is_torch(value) or _numeric(value)):
                raise TypeError(f"{self.name}: {name} must be a number or an array of numbers, got {value!r}")
        return replace(self, params={**self.params, **params})

    def fitted(self, kind: str, fit: Any) -> Score:
        """A copy with the parameters that a fit of this kind gives; the score itself where it has none of them."""
        found = {name: getattr(fit, x.part) if x.part else fit for name, x in self.fits.items() if x.kind == kind}
        return self(**found) if found else self

    def lacks(self, kind: str) -> bool:
        """Whether a parameter has no value that a fit of this kind gives."""
        return any(x.kind == kind and self.params[name] is None for name, x in self.fits.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        if (self.name, self.pairs, set(self.params)) != (other.name, other.pairs, set(other.params)):
            return False
        return all(_equal(value, other.params[name]) for name, value in self.params.items())

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        """Text to be read back: "llr:prior_var=0.5,prior_mean=[0.25 -1.0]"; ValueError where a parameter has none."""
        return self._text(_spelled)

    def __repr__(self) -> str:
        return f"Score({self.label!r})"

    @property
    def label(self) -> str:
        """`str` for messages: arrays are abbreviated."""
        return self._text(_abbreviated)

    @property
    def fingerprint(self) -> str:
        """`label` with a checksum of each array, so that it tells scores apart: files of thresholds hold it."""
        return self._text(_summed)

    def _text(self, spell: Callable[[Any], str]) -> str:
        named = [f"{name}={spell(value)}" for name, value in self.params.items() if value is not None]
        return f"{self.name}:{','.join(named)}" if named else self.name

    def snapshot(self) -> Score:
        """The score with copies of arrays, and detached ones of tensors, as parameters that nobody else changes."""
        copies = {
            name: value.detach().clone() if is_torch(value) else np.array(value)
            for name, value in self.params.items()
            if np.ndim(value) or is_torch(value)
        }
        return replace(self, params={**self.params, **copies}) if copies else self

    def pair(self, query: str, gallery: str) -> Pair:
        """How these kinds are scored; TypeError listing what the score accepts."""
        found = self.pairs.get((query, gallery))
        if found is None:
            accepted = ", ".join(sorted(f"{q} x {g}" for q, g in self.pairs))
            others = [score.name for score in KNOWN.values() if (query, gallery) in score.pairs]
            hint = f"; score {min(others, key='cosine'.__ne__)!r} takes these" if others else ""
            raise TypeError(f"{self.name}: cannot score {query} x {gallery} (query x gallery), only {accepted}{hint}")
        return found if isinstance(found, Pair) else found(self.params)

    def draws(self, pair: Pair, mu: Array) -> Draws | None:
        """The seed, as an array like mu, and the number of draws, where the pair's op draws."""
        return Draws(as_seed(self.name, self.params["seed"], mu), self.params["n"]) if pair.op.draws else None


KNOWN: dict[str, Score] = {}  # the scores of `peaccel.scores`, by name


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):  # torch.compile cannot trace numpy's comparison
        return x == y
    return x is y or np.array_equal(_host(x), _host(y))


def _host(value: Any) -> Any:
    return on_host(value) if is_torch(value) else value


def _spelled(value: Any) -> str:
    """A parameter as the text that `pe.scores.get` reads; floats as the shortest text that is exact in float64."""
    value = _host(value)
    if isinstance(value, str):
        return value
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1:
        raise ValueError(f"a parameter that is {value!r} has no text: expected a word, a number or a row of numbers")
    return f"[{' '.join(map(repr, numbers.tolist()))}]" if numbers.ndim else repr(numbers.item())


def _abbreviated(value: Any) -> str:
    return "[...]" if np.ndim(value) else str(value)


def _summed(value: Any) -> str:
    """A parameter as text, whatever its dtype; the checksum of an array."""
    if isinstance(value, str) or not (is_torch(value) or _numeric(value)):
        return str(value)
    numbers = np.asarray(_host(value), np.float64)
    return f"[{zlib.crc32(numbers.tobytes()):08x}]" if numbers.ndim else repr(numbers.item()).removesuffix(".0")


def _numeric(value: Any) -> bool:
    if isinstance(value, (int, float)):  # torch.compile cannot trace numpy's test
        return not isinstance(value, bool)
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except ValueError:  # rows of different lengths
        return False


def every(kinds: tuple[str, ...], pair: Choice) -> dict[Kinds, Choice]:
    """One pair, or choice, for all pairs of these kinds."""
    return {(q, g): pair for q in kinds for g in kinds}
