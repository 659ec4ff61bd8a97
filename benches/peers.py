"""Peers: each formula is written once, for numpy (in float64, as the truth) and for torch; and data that rows share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benches import blas
from benches.data import PRIOR, Arrays, doubled, optional

CHECKED = 2  # queries whose results are held against numpy in float64

torch, special, faiss = optional("torch"), optional("scipy.special"), blas.load_faiss()
if torch is not None:
    torch.set_num_threads(1)


# ---- special functions, as one writes them with scipy ----------------------------------------------------------------


def log_ive(v: Any, x: np.ndarray) -> np.ndarray:
    """Infinite where it underflows."""
    with np.errstate(divide="ignore"):
        return np.log(special.ive(v, x))


def iv_ratio(v: Any, x: np.ndarray) -> np.ndarray:
    """I_v / I_(v-1)."""
    with np.errstate(all="ignore"):
        return special.ive(v, x) / special.ive(v - 1, x)


def vmf_log_norm(v: Any, x: np.ndarray) -> np.ndarray:
    """Of the dimension 2 v + 2."""
    return v * np.log(x) - (v + 1) * math.log(2 * math.pi) - log_ive(v, x) - x


# ---- scores ----------------------------------------------------------------------------------------------------------


def squared(a: Any, b: Any) -> Any:
    """Squared distances of equal rows."""
    d = a - b
    return (d * d).sum(-1)


def squared_dense(a: Any, b: Any) -> Any:
    """Squared distances of all pairs, by a product."""
    return (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * (a @ b.T)


def _mls_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    """MLS of diagonal normals, pair by pair."""
    d, s = a[0] - b[0], a[1] + b[1]
    return -0.5 * ((d * d / s + xp.log(s)).sum(-1) + d.shape[-1] * math.log(2 * math.pi))


def _llr_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    """The likelihood ratio of diagonal normals, pair by pair."""
    sa, sb = a[1] + PRIOR, b[1] + PRIOR
    det = sa * sb - PRIOR * PRIOR
    aa, bb, ab = a[0] * a[0], b[0] * b[0], a[0] * b[0]
    same = (sb * aa - 2 * PRIOR * ab + sa * bb) / det + xp.log(det / (sa * sb))
    return 0.5 * (aa / sa + bb / sb - same).sum(-1)


def _llr_isotropic_dense(xp: ModuleType, q: Arrays, g: Arrays) -> Any:
    """The likelihood ratio of isotropic normals, all pairs, by its textbook form."""
    a, b, dim = PRIOR + q[1][:, None], PRIOR + g[1], q[0].shape[1]
    det, aa, bb = a * b - PRIOR**2, (q[0] ** 2).sum(1)[:, None], (g[0] ** 2).sum(1)
    joint = (b * aa - 2 * PRIOR * (q[0] @ g[0].T) + a * bb) / det + dim * xp.log(det)
    return 0.5 * (aa / a + bb / b + dim * xp.log(a * b) - joint)


def _mls_isotropic(xp: ModuleType, apart: Any, s: Any, dim: int) -> Any:
    """MLS of squared distances and sums of variances."""
    return -0.5 * (apart / s + dim * xp.log(2 * math.pi * s))


def _mls_vmf(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    """MLS of von Mises-Fisher distributions, pair by pair."""
    v = a[0].shape[-1] / 2 - 1
    both = np.sqrt(a[1] ** 2 + b[1] ** 2 + 2 * a[1] * b[1] * (a[0] * b[0]).sum(-1))
    return vmf_log_norm(v, a[1]) + vmf_log_norm(v, b[1]) - vmf_log_norm(v, both)


class Case(NamedTuple):
    """A score of one kind of distribution as a peer writes it: pair by pair or, where that is a product, dense."""

    score: str
    kind: str
    pair: Callable[[ModuleType, Arrays, Arrays], Any] | None
    dense: Callable[[ModuleType, Arrays, Arrays], Any] | None = None


CASES = {
    "mls diagonal": Case("mls", "diagonal", _mls_diagonal),
    "mls isotropic": Case(
        "mls",
        "isotropic",
        lambda xp, a, b: _mls_isotropic(xp, squared(a[0], b[0]), a[1] + b[1], a[0].shape[-1]),
        lambda xp, a, b: _mls_isotropic(xp, squared_dense(a[0], b[0]), a[1][:, None] + b[1], a[0].shape[-1]),
    ),
    "mls vmf": Case("mls", "vmf", _mls_vmf),
    "llr diagonal": Case(f"llr:prior_var={PRIOR}", "diagonal", _llr_diagonal),
    "llr isotropic": Case(f"llr:prior_var={PRIOR}", "isotropic", None, _llr_isotropic_dense),
    # Unit rows: the peers need no norms.
    "cosine point": Case("cosine", "point", lambda xp, a, b: (a[0] * b[0]).sum(-1), lambda xp, a, b: a[0] @ b[0].T),
    "neg_sq_l2 point": Case(
        "neg_sq_l2", "point", lambda xp, a, b: -squared(a[0], b[0]), lambda xp, a, b: -squared_dense(a[0], b[0])
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


# ---- torch -----------------------------------------------------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Any:
    """torch.compile for one shape; what other rows compiled of the same expression is forgotten."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def tensors(args: Sequence[Any]) -> list[Any]:
    """Arrays, and tuples of them, as tensors."""
    return [tuple(map(torch.from_numpy, x)) if isinstance(x, tuple) else torch.from_numpy(x) for x in args]


def by_torch(function: Callable[..., Any], *args: Any, compile: bool = False) -> Callable[[], Any]:
    """`function(torch, *args)` ready to be timed: moved, compiled and warmed up beforehand."""
    moved = tensors(args)

    def call(*args: Any) -> Any:
        return function(torch, *args)

    if compile:
        call = compiled(call)
        call(*moved)
    return lambda: call(*moved)


def gradients(scores: Callable[[], Any], inputs: Sequence[Any], weights: Any) -> Any:
    """A forward and a backward of sum(weights * scores)."""
    return torch.autograd.grad(scores(), inputs, weights)


def without_gradient(scores: Callable[[], Any]) -> Any:
    """A forward alone."""
    with torch.no_grad():
        return scores()


# ---- the truth, and FAISS --------------------------------------------------------------------------------------------


def compact(gallery: Arrays, ids: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """The named rows in float64, and the same ids into them: no copy of a large gallery."""
    return tuple(doubled(x[ids.ravel()]) for x in gallery), np.arange(ids.size).reshape(ids.shape)


def truth(case: Case, q: Arrays, g: Arrays, k: int, ids: np.ndarray | None = None) -> np.ndarray:
    """The best scores of the first queries in float64, of all items or of candidates."""
    few = tuple(doubled(x[:CHECKED]) for x in q)
    if ids is None:
        return best(pairwise(case), k)(np, few, tuple(map(doubled, g)))[0]
    return best(rescored(case), k)(np, few, *compact(g, ids[:CHECKED]))[0]


def top(scores: np.ndarray, k: int = 1000) -> np.ndarray:
    """The largest of each row, sorted."""
    return -np.sort(-scores, axis=1)[:, :k]


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
