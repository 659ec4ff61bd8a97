"""The data of every benchmark, and a list of all kernels of scores; needs numpy and peaccel alone."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

Arrays = tuple[Any, ...]  # the fields of a distribution: (mu,), (mu, var) or (mu, kappa); numpy arrays or torch tensors
PRIOR = 0.01


def optional(name: str) -> Any:
    """The module, or None where it is not installed: suites must be discovered where peers, or peaccel, are missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


pe = optional("peaccel")
if pe is not None:
    pe.set_num_threads(1)


def unit(x: np.ndarray) -> np.ndarray:
    """`x` with rows of length one, in place.

    Sums in float64 round to the same float32 on every machine, in whatever order numpy takes them there.
    """
    x /= np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64)).astype(x.dtype)[:, None]
    return x


def fields(kind: str, rows: int, dim: int, seed: int, classes: int = 0) -> Arrays:
    """float32 fields of `rows` distributions with unit means, as embedding networks give them.

    `classes` > 0 scatters the means around that many centres, the same for every seed. Variances (and scales) are
    lognormal around 1 / dim, concentrations between dim and 10 dim, where scipy's Bessel functions do not underflow.
    """
    rng = np.random.default_rng(seed)
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
    if pe is None:
        raise NotImplementedError("peaccel is not installed")
    classes = {"point": "Point", "vmf": "VonMisesFisher", "nivmf": "NonIsotropicVonMisesFisher", "scaled": "Scaled"}
    return getattr(pe, classes.get(kind, "Normal"))(*arrays)


def clusters(rows: int, dim: int, het: float, noise: float) -> tuple[Any, Any]:
    """A hundred clusters, whose items were moved by noise of their own, of lognormal variances; 256 queries."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, dim), dtype=np.float32)

    def draw(count: int) -> Any:
        var = np.float32(noise**2) * np.exp(np.float32(het) * rng.standard_normal((count, dim), dtype=np.float32))
        moved = np.sqrt(var) * rng.standard_normal((count, dim), dtype=np.float32)
        return pe.Normal(centres[rng.integers(0, len(centres), count)] + moved, var)

    return draw(rows), draw(256)


def with_params(name: str, kind: str) -> Any:
    """The score, with the parameters that have to be given."""
    score = pe.scores.get(name)
    given = {"prior_var": PRIOR} if name == "llr" and kind != "vmf" else {"seed": 0}
    return score(**{param: value for param, value in given.items() if param in score.params})


def costly(op: Any) -> bool:
    """Whether a pair takes microseconds, as draws are compared or an integral is computed."""
    return op.sampled or op is pe.ops.dot_scores.hib_isotropic  # type: ignore[no-any-return]


def every_kernel() -> tuple[str, ...]:
    """A score's name and the kinds of query and gallery for each kernel; equal kinds where the kernel takes these."""
    found: dict[str, str] = {}
    for name, score in pe.scores.SCORES.items() if pe is not None else ():
        for query, gallery in sorted(score.pairs, key=lambda pair: pair[0] != pair[1]):
            op = with_params(name, query).pair(query, gallery).op
            found.setdefault(op.name, f"{name} {query} {gallery}")
    return tuple(found.values())
