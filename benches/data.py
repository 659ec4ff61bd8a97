"""The data of every benchmark, and a list of all kernels of scores; needs numpy and peaccel alone."""

from __future__ import annotations

import importlib
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import peaccel as pe

Arrays = tuple[Any, ...]  # the fields of a distribution: (mu,), (mu, var) or (mu, kappa); numpy arrays or torch tensors
PRIOR = 0.01
ROWS, DIM = 100_000, 128  # of the usual gallery

pe.set_num_threads(1)


def optional(name: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def unit(x: np.ndarray) -> np.ndarray:
    """`x` with rows of length one, in place.

    Sums in float64 round to the same float32 on every machine, in whatever order numpy takes them there.
    """
    x /= np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64)).astype(x.dtype)[:, None]
    return x


def doubled(x: np.ndarray) -> np.ndarray:
    """`x` in float64, for the truth."""
    return x.astype(np.float64)


def log_uniform(low: float, high: float, count: int, seed: int = 0) -> np.ndarray:
    """Random numbers whose logarithms are uniform."""
    return np.exp(np.random.default_rng(seed).uniform(np.log(low), np.log(high), count))


def fields(kind: str, rows: int, dim: int, seed: int, classes: int = 0) -> Arrays:
    """float32 fields of `rows` distributions with unit means, as embedding networks give them.

    `classes` > 0 scatters the means around that many centres, the same for every seed. Variances (and scales) are
    lognormal around 1 / dim, concentrations between dim and 10 dim, where scipy's Bessel functions do not underflow.
    """
    rng, kind = np.random.default_rng(seed), kind.removeprefix("normal_")
    mu = unit(rng.standard_normal((rows, dim), dtype=np.float32))
    if classes:
        centres = unit(np.random.default_rng(0).standard_normal((classes, dim), dtype=np.float32))
        mu = unit(mu + centres[rng.integers(0, classes, rows)])
    if kind == "point":
        return (mu,)
    if kind in ("vmf", "nivmf"):
        return mu, rng.uniform(dim, 10 * dim, rows if kind == "vmf" else (rows, dim)).astype(np.float32)
    var = rng.standard_normal((rows, dim) if kind == "diagonal" else rows, dtype=np.float32)
    var *= np.float32(0.7)
    return mu, (np.exp(var, dtype=np.float64) / dim).astype(np.float32)


def distribution(kind: str, arrays: Arrays) -> Any:
    """The fields as a peaccel distribution."""
    classes = {"point": "Point", "vmf": "VonMisesFisher", "nivmf": "NonIsotropicVonMisesFisher", "scaled": "Scaled"}
    return getattr(pe, classes.get(kind.removeprefix("normal_"), "Normal"))(*arrays)


def items(kind: str, rows: int, dim: int = DIM, seed: int = 2, classes: int = 0) -> Any:
    """Distributions of such fields."""
    return distribution(kind, fields(kind, rows, dim, seed, classes))


def clusters(
    rows: int,
    dim: int,
    het: float,
    noise: float = 1.0,
    spread: float = 1.0,
    *,
    kind: str = "diagonal",
    queries: int = 200,
    centres: int | None = None,
) -> tuple[Any, Any]:
    """Items in clusters, moved by noise of their own, of lognormal variances; queries, of `spread` times these."""
    rng = np.random.default_rng(0)
    middle = rng.standard_normal((centres or rows // 50, dim), dtype=np.float32)

    def draw(count: int, scale: float) -> Any:
        shape = (count, dim) if kind == "diagonal" else (count, 1)
        var = np.float32(scale) * np.exp(np.float32(het) * rng.standard_normal(shape, dtype=np.float32))
        moved = np.sqrt(var) * rng.standard_normal((count, dim), dtype=np.float32)
        mu = middle[rng.integers(0, len(middle), count)] + moved
        return pe.Normal(mu, var if kind == "diagonal" else var[:, 0])

    return draw(rows, noise**2), draw(queries, noise**2 * spread)


# ---- what rows share -------------------------------------------------------------------------------------------------


@cache
def gallery(kind: str, rows: int = ROWS, dim: int = DIM) -> Any:
    """The usual gallery of a kind."""
    return items(kind, rows, dim)


@cache
def queries(kind: str, count: int = 256, dim: int = DIM) -> Any:
    """The usual queries of a kind."""
    return items(kind, count, dim, seed=1)


@cache
def prepared(kind: str, score: Any = "mls", rows: int = ROWS, dim: int = DIM) -> Any:
    """The usual gallery, prepared."""
    return pe.prepare(gallery(kind, rows, dim), score)


def candidates(count: int, each: int = 100, rows: int = ROWS) -> np.ndarray:
    """Random rows of a gallery for each query."""
    return np.random.default_rng(3).integers(0, rows, (count, each))


# ---- kernels ---------------------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel of scores: its op, a score that it computes, and the kinds of query and gallery."""

    op: Any
    score: Any
    kinds: tuple[str, str]

    @property
    def costly(self) -> bool:
        """Whether a pair takes microseconds, as draws are compared or an integral is computed."""
        return self.op.sampled or self.op is pe.ops.dot_scores.hib_isotropic

    def calls(self, a: Any, b: Any, gallery: Any, queries: int, each: int, k: int) -> dict[str, Any]:
        """The kernel by every verb, ready to be called: pairs of `a` and `b`, a few of `a` into a gallery."""
        from peaccel.retrieval.plan import plan

        few, ready = a[:queries], pe.prepare(gallery, self.score)
        ids = candidates(queries, each, len(gallery))
        backward = partial(pe.ops._numpy.score_backward, self.op)
        each, all_pairs = (plan(x, b, self.score, detach=True).inputs for x in (a, few))
        return {
            "paired": partial(pe.paired, a, b, self.score),
            "backward": partial(backward, np.ones(len(a), "f"), each),
            "backward of all pairs": partial(backward, np.ones((queries, len(b)), "f"), all_pairs, None, True),
            "rerank": partial(pe.rerank, few, ready, ids, k, self.score),
            "search": partial(pe.search, few, ready, k, self.score),
        }


def kernels() -> dict[str, Kernel]:
    """Every kernel by name; of equal kinds where it takes these."""
    found: dict[str, Kernel] = {}
    for score in pe.scores.SCORES.values():
        for kinds in sorted(score.pairs, key=lambda pair: pair[0] != pair[1]):
            values = {"prior_var": PRIOR} if score.name == "llr" and kinds[0] != "vmf" else {"seed": 0}
            made = score(**{name: value for name, value in values.items() if name in score.params})
            op = made.pair(*kinds).op
            found.setdefault(op.name, Kernel(op, made, kinds))
    return found
