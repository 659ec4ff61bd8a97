"""Peers: each formula is written once, for numpy (in float64, as the truth) and for torch; and data that rows share."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benches import blas
from benches.data import PRIOR, Arrays, optional

CHECKED = 2  # queries whose results are held against numpy in float64

torch, special, faiss = optional("torch"), optional("scipy.special"), blas.load_faiss()
if torch is not None:
    torch.set_num_threads(1)


def _squared(a: Any, b: Any) -> Any:
    d = a - b
    return (d * d).sum(-1)


def _squared_dense(a: Any, b: Any) -> Any:
    return (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * (a @ b.T)


def _mls_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    d, s = a[0] - b[0], a[1] + b[1]
    return -0.5 * ((d * d / s + xp.log(s)).sum(-1) + d.shape[-1] * math.log(2 * math.pi))


def _llr_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    sa, sb = a[1] + PRIOR, b[1] + PRIOR
    det = sa * sb - PRIOR * PRIOR
    aa, bb, ab = a[0] * a[0], b[0] * b[0], a[0] * b[0]
    same = (sb * aa - 2 * PRIOR * ab + sa * bb) / det + xp.log(det / (sa * sb))
    return 0.5 * (aa / sa + bb / sb - same).sum(-1)


def _mls_isotropic(xp: ModuleType, squared: Any, va: Any, vb: Any, dim: int) -> Any:
    s = va + vb
    return -0.5 * (squared / s + dim * xp.log(2 * math.pi * s))


def _neg_expected_sq_l2(xp: ModuleType, squared: Any, va: Any, vb: Any, dim: int) -> Any:
    return -(squared + dim * (va + vb))


def _log_norm(dim: int, kappa: np.ndarray) -> np.ndarray:
    v = dim / 2 - 1
    return v * np.log(kappa) - dim / 2 * math.log(2 * math.pi) - np.log(special.ive(v, kappa)) - kappa


def _mls_vmf(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    dim = a[0].shape[-1]
    both = np.sqrt(a[1] ** 2 + b[1] ** 2 + 2 * a[1] * b[1] * (a[0] * b[0]).sum(-1))
    return _log_norm(dim, a[1]) + _log_norm(dim, b[1]) - _log_norm(dim, both)


def _expected_cosine_vmf(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    v = a[0].shape[-1] / 2
    length = [special.ive(v, kappa) / special.ive(v - 1, kappa) for kappa in (a[1], b[1])]
    return length[0] * length[1] * (a[0] * b[0]).sum(-1)


class Case(NamedTuple):
    """A score of one kind of distribution as a peer writes it: pair by pair and, where that is a product, dense."""

    score: str
    kind: str
    pair: Callable[[ModuleType, Arrays, Arrays], Any]
    dense: Callable[[ModuleType, Arrays, Arrays], Any] | None = None
    backends: tuple[str, ...] = ("numpy", "torch eager", "torch.compile")


def _isotropic(score: str, epilogue: Callable[..., Any]) -> Case:
    """A score of isotropic normals: an epilogue on the squared distance."""
    return Case(
        score,
        "isotropic",
        lambda xp, a, b: epilogue(xp, _squared(a[0], b[0]), a[1], b[1], a[0].shape[-1]),
        lambda xp, a, b: epilogue(xp, _squared_dense(a[0], b[0]), a[1][:, None], b[1], a[0].shape[-1]),
    )


CASES = {
    "mls diagonal": Case("mls", "diagonal", _mls_diagonal),
    "mls isotropic": _isotropic("mls", _mls_isotropic),
    "mls vmf": Case("mls", "vmf", _mls_vmf, backends=("scipy",)),
    "llr diagonal": Case(f"llr:prior_var={PRIOR}", "diagonal", _llr_diagonal),
    "neg_expected_sq_l2 isotropic": _isotropic("neg_expected_sq_l2", _neg_expected_sq_l2),
    "expected_cosine vmf": Case("expected_cosine", "vmf", _expected_cosine_vmf, backends=("scipy",)),
    # Unit rows: the peers need no norms.
    "cosine point": Case("cosine", "point", lambda xp, a, b: (a[0] * b[0]).sum(-1), lambda xp, a, b: a[0] @ b[0].T),
    "neg_sq_l2 point": Case(
        "neg_sq_l2", "point", lambda xp, a, b: -_squared(a[0], b[0]), lambda xp, a, b: -_squared_dense(a[0], b[0])
    ),
}


def rescored(case: Case) -> Callable[..., Any]:
    """Candidates gathered and scored in one expression, which torch.compile fuses into one pass over the rows."""
    return lambda xp, a, b, ids: case.pair(xp, tuple(x[:, None] for x in a), tuple(x[ids] for x in b))


def pairwise(case: Case) -> Callable[..., Any]:
    """Every query against every gallery row."""
    return case.dense or (lambda xp, a, b: case.pair(xp, tuple(x[:, None] for x in a), b))


def best(scores: Callable[..., Any], k: int) -> Callable[..., Any]:
    """`scores`, then the k best of each row."""

    def call(xp: ModuleType, *args: Any) -> Any:
        found = scores(xp, *args)
        if xp is torch:
            return torch.topk(found, k)
        ids = np.argpartition(found, -k)[..., -k:]
        found = np.take_along_axis(found, ids, -1)
        order = np.argsort(-found)
        return np.take_along_axis(found, order, -1), np.take_along_axis(ids, order, -1)

    return call


def compiled(function: Callable[..., Any]) -> Any:
    """torch.compile for one shape, of an expression that many rows compile: from the ninth on it would run eagerly."""
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, dynamic=False)


def bind(backend: str, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`function(xp, *args)` ready to be timed on numpy or torch: moved, compiled and warmed up beforehand."""
    if backend in ("numpy", "scipy"):
        return lambda: function(np, *args)
    if torch is None:
        raise NotImplementedError("torch is not installed")
    moved = [tuple(map(torch.from_numpy, x)) if isinstance(x, tuple) else torch.from_numpy(x) for x in args]

    def call(*tensors: Any) -> Any:
        return function(torch, *tensors)

    if backend == "torch.compile":
        call = compiled(call)
        call(*moved)
    return lambda: call(*moved)


def peer(case: Case, backend: str, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`bind`, for the backends that can express the case; the asv suites skip the others by NotImplementedError."""
    if backend not in case.backends or (backend == "scipy" and special is None):
        raise NotImplementedError(f"{backend} has no {case.score} of {case.kind}")
    return bind(backend, function, *args)


def doubled(x: np.ndarray) -> np.ndarray:
    """`x` in float64, for the truth."""
    return x.astype(np.float64)


def compact(gallery: Arrays, ids: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """The named rows in float64, and the same ids into them: no copy of a large gallery."""
    return tuple(doubled(x[ids.ravel()]) for x in gallery), np.arange(ids.size).reshape(ids.shape)


def llr_by_dots(q: Arrays, g: Arrays) -> np.ndarray:
    """The likelihood ratio of isotropic normals, all pairs, by its textbook form."""
    a, b, dim = PRIOR + q[1][:, None], PRIOR + g[1], q[0].shape[1]
    det, aa, bb = a * b - PRIOR**2, (q[0] ** 2).sum(1)[:, None], (g[0] ** 2).sum(1)
    joint = (b * aa - 2 * PRIOR * (q[0] @ g[0].T) + a * bb) / det + dim * np.log(det)
    scores: np.ndarray = 0.5 * (aa / a + bb / b + dim * np.log(a * b) - joint)
    return scores


def truth(case: Case, q: Arrays, g: Arrays, k: int, ids: np.ndarray | None = None) -> np.ndarray:
    """The best scores of the first queries in float64, of all items or of candidates."""
    few = tuple(doubled(x[:CHECKED]) for x in q)
    if ids is None:
        return best(pairwise(case), k)(np, few, tuple(map(doubled, g)))[0]  # type: ignore[no-any-return]
    return best(rescored(case), k)(np, few, *compact(g, ids[:CHECKED]))[0]  # type: ignore[no-any-return]


def top(scores: np.ndarray, k: int = 1000) -> np.ndarray:
    """The largest of each row, sorted."""
    return -np.sort(-scores, axis=1)[:, :k]


def candidates(queries: int, each: int, rows: int) -> np.ndarray:
    """Random rows of a gallery for each query."""
    return np.random.default_rng(3).integers(0, rows, (queries, each))


def products_by_id(q: np.ndarray, g: np.ndarray, ids: np.ndarray) -> Callable[[], np.ndarray]:
    """FAISS's inner products of queries and their candidates."""
    out = np.empty(ids.shape, np.float32)

    def run() -> np.ndarray:
        faiss.fvec_inner_products_by_idx(*map(faiss.swig_ptr, (out, q, g, ids)), q.shape[1], *ids.shape)
        return out

    return run


def flat_index(mu: np.ndarray) -> Any:
    """An exact index of FAISS."""
    index = faiss.IndexFlatIP(mu.shape[1])
    index.add(mu)
    return index
