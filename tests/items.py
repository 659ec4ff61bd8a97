"""Items of every kind, for tests: needs numpy and torch alone, as a machine with a GPU may have no more."""

import numpy as np
import torch

import peaccel as pe
from peaccel.ops import elementwise

KINDS = ("normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled", "point")
CLASSES = {
    "normal_isotropic": (pe.Normal, 1),
    "normal_diagonal": (pe.Normal, 2),
    "vmf": (pe.VonMisesFisher, 1),
    "nivmf": (pe.NonIsotropicVonMisesFisher, 2),
    "scaled": (pe.Scaled, 1),
    "point": (pe.Point, 0),
}
try:
    import ml_dtypes

    BFLOAT16 = {"bfloat16": ml_dtypes.bfloat16}
except ImportError:
    BFLOAT16 = {}
NUMPY = {"float32": np.float32, "float64": np.float64, "float16": np.float16, **BFLOAT16}


def as_library(x, library="numpy", dtype="float64"):
    """A numpy array in the library and dtype asked for."""
    return torch.tensor(np.asarray(x), dtype=getattr(torch, dtype)) if library == "torch" else x.astype(NUMPY[dtype])


def make(kind, n=4, dim=5, seed=0, *, dtype="float64", library="numpy"):
    """Items of a kind; directions are unit rows, uncertainties are spread over a decade."""
    rng = np.random.default_rng([seed, n, dim])
    mu = rng.standard_normal((n, dim))
    if CLASSES[kind][0]._unit:
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    uncertainty = np.exp(rng.uniform(-1, 1.3, (n, dim)))
    return build(kind, mu, uncertainty[:, 0] if CLASSES[kind][1] == 1 else uncertainty, dtype=dtype, library=library)


def build(kind, mu, uncertainty=None, *, dtype="float64", library="numpy"):
    """A distribution from numpy arrays; a Point takes no uncertainty."""
    arrays = (mu, uncertainty)[: 1 + (CLASSES[kind][1] > 0)]
    return CLASSES[kind][0](*(as_library(x, library, dtype) for x in arrays))


def hostile(kind, n, dim, **given):
    """Items of a kind of which many are equal, wherever they lie, and some have no score."""
    d = make(kind, n, dim, seed=2)
    rows = np.arange(n)
    rows[::7] = rows[n // 2]
    mu, *others = (x[rows] for x in d.arrays)
    mu[n // 20 :: n // 3] = np.nan
    return build(kind, mu, *others, **given)


def to_numpy(x):
    """float64 values of either library's array (exact: no dtype here is wider)."""
    return np.asarray(x.detach().double() if isinstance(x, torch.Tensor) else x, np.float64)


PRIOR_VAR = 0.7


def scored(name, *kinds):
    """The score; llr of normals with the tests' prior, draws with their seed."""
    score = pe.scores.get(name)
    if name == "llr" and "vmf" not in kinds:
        return score(prior_var=PRIOR_VAR)
    return score(seed=3) if "seed" in score.params else score


def scale_of(name, order, x, want):
    """The scale that errors of a function of the Bessel family are relative to; derivatives of log_ive cross zero."""
    scale = want.abs().nan_to_num(0, 0, 0)
    if name.startswith("log_ive_d"):
        return scale.maximum((1 / x.abs()).clamp(max=1).nan_to_num(0) ** name.count("x"))
    scale = scale.clamp(min=0 if "_dx" in name else 1)
    return scale.maximum(order.to(want.dtype)) if name == "vmf_log_norm" else scale


def given_to(op, order, x):
    """The op's inputs of an order and x; x as it broadcasts against the order where it takes none."""
    if op.has_order:
        return order, x
    if isinstance(x, torch.Tensor):
        return (torch.broadcast_tensors(torch.as_tensor(order), x)[1],)
    return (np.broadcast_to(x, np.broadcast_shapes(np.shape(order), x.shape)),)


def values(op, order, x):
    """The op's values for an order and x."""
    return elementwise(op, *given_to(op, order, x))
