"""Distributions hold the arrays that they are given, and refuse in one line those that do not fit together."""

import copy
import pickle
import re
import subprocess
import sys
from functools import partial

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from items import NUMPY, as_library, to_numpy
from items import make as items_of
from torch.utils.data import default_collate

import peaccel as pe
from peaccel.distributions import NonIsotropicVonMisesFisher as NIVMF
from peaccel.distributions import Normal, Point, Scaled, concat
from peaccel.distributions import VonMisesFisher as VMF
from peaccel.distributions.classes import BLOCK

CLASSES = {
    "normal_isotropic": (Normal, 1),
    "normal_diagonal": (Normal, 2),
    "vmf": (VMF, 1),
    "nivmf": (NIVMF, 2),
    "scaled": (Scaled, 1),
    "point": (Point, None),
}
DTYPES = {
    "numpy": [np.float16, ml_dtypes.bfloat16, np.float32, np.float64],
    "torch": [torch.float16, torch.bfloat16, torch.float32, torch.float64],
}
each_kind = pytest.mark.parametrize("kind", CLASSES)
each_library = pytest.mark.parametrize("library", DTYPES)


def make(kind, n=5, dim=4, library="numpy", dtype=None):
    """A valid distribution; its mu and its second array tell the rows apart."""
    cls, rank = CLASSES[kind]
    rng = np.random.default_rng(n)
    mu = rng.standard_normal((n, dim))
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    arrays = [mu] if rank is None else [mu, rng.uniform(1, 2, (n, dim)[:rank])]
    if library == "torch":
        return cls(*[torch.tensor(x, dtype=dtype or torch.float32) for x in arrays])
    return cls(*[x.astype(dtype or np.float32) for x in arrays])


def same(a, b):
    pairs = zip(a.arrays, b.arrays, strict=True)
    return type(a) is type(b) and all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


# ---- what is right --------------------------------------------------------------------------------------------------


@each_library
@each_kind
def test_arguments_are_the_attributes_and_are_kept_as_given(kind, library):
    cls, _ = CLASSES[kind]
    arrays = make(kind, library=library).arrays
    d = cls(*arrays)
    assert all(kept is given for kept, given in zip(d.arrays, arrays, strict=True))
    assert d.mu is arrays[0]
    assert (d.kind, len(d), d.dim) == (kind, 5, 4)


@pytest.mark.parametrize("dtype", [d for dtypes in DTYPES.values() for d in dtypes], ids=str)
@each_kind
def test_every_dtype_constructs_validates_and_indexes(kind, dtype):
    d = make(kind, library="torch" if isinstance(dtype, torch.dtype) else "numpy", dtype=dtype)
    assert d.validate() is d
    assert d[1:3].mu.dtype == dtype


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "scaled", "point"])
@pytest.mark.parametrize(("n", "dim"), [(0, 4), (1, 1), (3, 1), (0, 1)])
def test_no_items_and_one_dimension_are_legal(kind, n, dim):
    d = make(kind, n, dim)
    assert (len(d.validate()), d.dim, d.kind) == (n, dim, kind)


def test_lists_become_float64_arrays():
    d = Normal([[1, 2], [3, 4]], [1, 2])
    assert d.mu.dtype == d.var.dtype == np.float64


def test_read_only_and_strided_arrays_are_not_copied():
    mu, var = np.ones((8, 6), np.float32)[::2, ::-1], np.ones(8, np.float32)[::2]
    mu.flags.writeable = False
    d = Normal(mu, var).validate()
    assert d.mu is mu and d.var is var


def test_variance_zero_and_concentration_zero_are_valid():
    Normal([[1.0, 2.0]], [0.0]).validate()
    VMF([[1.0, 0.0]], [0.0]).validate()


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (2, [2]),
        (-1, [4]),
        (np.int32(3), [3]),
        (np.array(3), [3]),
        (slice(1, None, 2), [1, 3]),
        ([0, -1], [0, 4]),
        ([], []),
        (np.array([4, 4, 0], np.uint8), [4, 4, 0]),
        (np.array([True, False, False, True, False]), [0, 3]),
        ([False] * 4 + [True], [4]),
        (torch.tensor(3), [3]),
        (torch.tensor([1, -2]), [1, 3]),
        (torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8), [0, 1, 1, 0, 1]),
        (torch.tensor([False, True, False, False, False]), [1]),
    ],
    ids=str,
)
@each_library
def test_indexing_selects_rows_of_every_array(library, index, rows):
    d = make("normal_diagonal", library=library)
    picked = d[index]
    assert type(picked) is Normal and len(picked) == len(rows)
    assert same(picked, Normal(*[x[rows] if rows else x[:0] for x in d.arrays]))


@each_library
@each_kind
def test_concat_undoes_slicing(kind, library):
    d = make(kind, library=library)
    assert same(concat([d[:2], d[2:2], d[2:]]), d)
    assert same(pe.concat([d]), d)


@each_kind
def test_to_takes_the_same_names_for_both_kinds(kind):
    assert make(kind).to("float64").mu.dtype == np.float64
    assert make(kind).to("bfloat16").mu.dtype == ml_dtypes.bfloat16
    assert make(kind).to(np.float16).mu.dtype == np.float16
    assert all(x.dtype == torch.bfloat16 for x in make(kind, library="torch").to("bfloat16").arrays)
    assert all(x.device.type == "meta" for x in make(kind, library="torch").to("meta", torch.float64).arrays)
    assert all(x.dtype == torch.float64 for x in make(kind, library="torch").to(dtype=torch.float64).arrays)
    assert all(x.device.type == "meta" for x in make(kind, library="torch").to(device="meta").arrays)


def test_to_the_same_dtype_copies_nothing():
    d = make("vmf")
    assert np.shares_memory(d.to("float32").mu, d.mu)


def test_gradients_reach_the_arguments_unless_detached():
    mu, var = torch.ones(2, 3, requires_grad=True), torch.ones(2, requires_grad=True)
    d = Normal(mu, var)
    (d[1:].to("float64").mu.sum() + d.var.sum()).backward()
    assert mu.grad.tolist() == [[0, 0, 0], [1, 1, 1]] and var.grad.tolist() == [1, 1]
    assert not d.detach().mu.requires_grad and d.detach().mu.data_ptr() == mu.data_ptr()
    assert d.validate() is d
    assert (n := make("vmf")).detach() is n


@each_library
@each_kind
def test_pickle_and_deepcopy_keep_the_values_and_equality_is_identity(kind, library):
    d = make(kind, library=library)
    for twin in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert same(twin, d) and twin != d
    assert d in {d}


def test_distributions_are_frozen():
    with pytest.raises(AttributeError):
        make("vmf").kappa = np.ones(5)


def test_repr_is_short():
    assert repr(make("normal_diagonal", 8, 128)) == "Normal(N=8, D=128, diagonal, float32, numpy)"
    assert repr(make("normal_isotropic", library="torch")) == "Normal(N=5, D=4, isotropic, float32, cpu)"
    assert repr(make("nivmf")) == "NonIsotropicVonMisesFisher(N=5, D=4, float32, numpy)"


@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf"])
def test_compiled_functions_build_and_use_distributions_in_one_graph(kind):
    cls, _ = CLASSES[kind]

    @torch.compile(fullgraph=True, backend="eager")
    def build(*arrays):
        d = concat([cls(*arrays)[1:].to("float64"), cls(*arrays).detach().to("float64")])
        return d, d[0].mu + 1, len(d), d.dim, d.kind

    d, first, *facts = build(*make(kind, library="torch").arrays)
    assert type(d) is cls and facts == [9, 4, kind]
    assert torch.equal(first, d.mu[:1] + 1)


def test_function_transforms_see_through_distributions():
    def total(mu, var):
        d = Normal(mu, var)
        return (d.mu * d.var[:, None]).sum()

    mu, var = torch.ones(4, 3, 2), torch.full((4, 3), 2.0)
    gradient = torch.func.vmap(torch.func.grad(total))(mu, var)
    assert torch.equal(gradient, torch.full_like(mu, 2.0))


def test_numpy_users_need_no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert make("normal_diagonal").validate()[[0, 1]].to("float64").detach().dim == 4
    assert "torch" not in sys.modules


# ---- what is given in other forms ------------------------------------------------------------------------------------


class Column:
    """A column of a data frame: it knows its dtype, and numpy how to read it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


@each_library
@pytest.mark.parametrize("dtype", NUMPY)
def test_one_parameter_for_all_is_a_view_of_it(dtype, library):
    mu, row = as_library(np.ones((3, 4)), library, dtype), as_library(np.arange(1.0, 5.0), library, dtype)
    for given in (0.5, 1, np.float64(0.5), row[1:2], row[1:2, None]):
        d = Normal(mu, given)
        assert d.kind == "normal_isotropic" and tuple(d.var.shape) == (3,) and d.var.dtype == mu.dtype
        assert (to_numpy(d.var) == float(np.ravel(to_numpy(given))[0])).all()
    assert Normal(mu, row[:3, None]).kind == "normal_isotropic"
    assert to_numpy(Normal(mu, row[:3, None]).var).tolist() == [1, 2, 3]
    d = Normal(mu, row[None])
    assert d.kind == "normal_diagonal" and to_numpy(d.var).tolist() == 3 * [[1, 2, 3, 4]]
    assert Normal(mu[:, :1], row[:3, None]).kind == "normal_diagonal"
    assert to_numpy(VMF(mu, 7).kappa).tolist() == to_numpy(Scaled(mu, 7).scale).tolist() == [7, 7, 7]
    assert tuple(NIVMF(mu, 7).kappa.shape) == tuple(NIVMF(mu, row[:3, None]).kappa.shape) == (3, 4)
    full = Normal(mu, as_library(np.full((3, 4), 0.5), library, dtype))
    for score in ("mls", "ppk", "neg_kl", "neg_w2"):
        same_scores = pe.pairwise(full, full, score), pe.pairwise(full, Normal(mu, full.var[:1]), score)
        assert np.array_equal(*map(to_numpy, same_scores))


def test_one_parameter_for_all_has_the_gradient_of_all():
    mu, var = torch.ones(3, 4, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    pe.paired(Normal(mu, var), Point(0 * mu)).sum().backward()
    assert var.grad == pytest.approx(3 * 0.5 * (4 / 0.25 - 4 / 0.5))


@each_library
def test_lists_integers_and_columns_are_numbers(library):
    mu = as_library(M, library, "float32")
    ints = torch.arange(8) if library == "torch" else np.arange(8)
    for given in (list(range(8)), tuple(range(8)), ints):
        d = Normal(mu, given)
        assert d.var.dtype == mu.dtype and to_numpy(d.var).tolist() == list(range(8))
    assert str(Point(ints[:, None]).mu.dtype).endswith("float64") and Point([[1, 2], [3, 4]]).mu.dtype == np.float64


def test_a_column_keeps_its_dtype():
    assert Point(Column(M)).mu.dtype == np.float32
    assert Normal(M, Column(V)).var.dtype == np.float32
    assert Normal(M, Column(V.astype(int))).var.dtype == np.float32
    assert Normal(M, Column(V.astype(float))).mu.dtype == np.float64


@pytest.mark.parametrize(
    ("mu", "other", "both"),
    [
        ("bfloat16", "float32", "float32"),
        ("float16", "float32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float32", "float64", "float64"),
        ("float64", "float16", "float64"),
    ],
)
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled"])
def test_dtypes_promote_as_autocast_mixes_them(kind, mu, other, both):
    made, axes = CLASSES[kind]
    x = torch.eye(3, 4, dtype=getattr(torch, mu), requires_grad=True)
    y = torch.full((3, 4)[:axes], 0.25, dtype=getattr(torch, other), requires_grad=True)
    d = made(x, y)
    assert (d.home.dtype, *(str(z.dtype) for z in d.arrays)) == (both, *[f"torch.{both}"] * 2)
    assert torch.promote_types(x.dtype, y.dtype) == d.mu.dtype
    sum(z.sum() for z in d.arrays).backward()
    assert (x.grad == 1).all() and x.grad.dtype == x.dtype and (y.grad == 1).all() and y.grad.dtype == y.dtype
    if "bfloat16" not in (mu, other):
        arrays = made(x.detach().numpy(), y.detach().numpy()).arrays
        assert {str(z.dtype) for z in arrays} == {both}


def test_a_head_under_autocast_whose_variance_is_computed_in_float32():
    with torch.autocast("cpu", torch.bfloat16):
        mu = torch.nn.Linear(5, 4)(torch.ones(3, 5))
        d = Normal(mu, torch.nn.functional.softplus(mu.float()[:, 0]))
    assert mu.dtype == torch.bfloat16 and d.mu.dtype == torch.float32 and torch.equal(d.mu, mu.float())


# ---- what is wrong --------------------------------------------------------------------------------------------------

M, V = np.ones((8, 256), np.float32), np.ones(8, np.float32)
T, META = torch.ones(8, 256), torch.ones(8, 256, device="meta")
UNIT = np.eye(8, 256, dtype=np.float32)

ANY_FLOAT = "expected float16, bfloat16, float32 or float64"
ANY_INDEX = "Point: index must be an int, a slice, or a 1-D array of ints or bools"

REFUSED = {
    ValueError: [
        ("Normal: mu has shape (256,), expected (N, D): a single item needs shape (1, 256)", lambda: Normal(M[0], V)),
        ("Point: mu has shape (1, 8, 256), expected (N, D)", lambda: Point(M[None])),
        ("Point: mu has shape (8, 0), expected (N, D) with D >= 1", lambda: Point(M[:, :0])),
        ("VonMisesFisher: mu has shape (8, 1), expected (N, D) with D >= 2", lambda: VMF(M[:, :1], V)),
        ("Normal: var has shape (8, 128), expected (8,) or (8, 256) like mu", lambda: Normal(M, M[:, :128])),
        ("Normal: var has shape (3,), expected (8,) or (8, 256) like mu", lambda: Normal(M, V[:3])),
        ("Normal: var has shape (256,), expected (8,) or (8, 256) like mu: use var[None]", lambda: Normal(M, M[0])),
        ("Normal: var has shape (2, 1), expected (8,) or (8, 256) like mu", lambda: Normal(M, V[:2, None])),
        ("VonMisesFisher: kappa has shape (1, 256), expected (8,) like mu", lambda: VMF(M, M[:1])),
        ("VonMisesFisher: kappa has shape (8, 256), expected (8,) like mu", lambda: VMF(M, M)),
        (
            "NonIsotropicVonMisesFisher: kappa has shape (8,), expected (8, 256) like mu: use kappa[:, None]",
            lambda: NIVMF(M, V),
        ),
        (f"Point: mu has dtype bool, {ANY_FLOAT}", lambda: Point(M > 0)),
        (f"Point: mu has dtype bool, {ANY_FLOAT}", lambda: Point(T > 0)),
        (f"Normal: var has dtype bool, {ANY_FLOAT}", lambda: Normal(M, True)),
        (f"Normal: var has dtype complex64, {ANY_FLOAT}", lambda: Normal(M, V * 1j)),
        ("Normal: var is a torch tensor on meta, expected a torch tensor on cpu like mu", lambda: Normal(T, META)),
        (f"Point.to: {ANY_FLOAT}, got 'cuda'", lambda: Point(M).to("cuda")),
        (f"Point: mu has dtype int32, {ANY_FLOAT}", lambda: Point(M).to("int32")),
        (f"Point: mu has dtype int32, {ANY_FLOAT}", lambda: Point(T).to(torch.int32)),
        ("concat: expected at least one distribution, got none", lambda: concat([])),
        ("concat: item 1 is Point(N=8, D=9, float32, numpy), expected", lambda: concat([Point(M), Point(M[:, :9])])),
        ("concat: item 1 is Point(N=8, D=256, float16, cpu), expected", lambda: concat([Point(T), Point(T.half())])),
        ("concat: item 1 is a torch tensor on meta, expected a torch", lambda: concat([Point(T), Point(META)])),
    ],
    TypeError: [
        ("Normal: var is a torch tensor on cpu, expected a numpy array like mu", lambda: Normal(M, T)),
        ("Scaled: scale is a numpy array, expected a torch tensor on cpu like mu", lambda: Scaled(T, V)),
        ("Point: mu is text, such as 'mu.npy', expected numbers", lambda: Point("mu.npy")),
        ("Normal: var must be a numpy array or a torch tensor, got dict", lambda: Normal(M, {"var": V})),
        ("Point: mu must be a numpy array or a torch tensor, got list", lambda: Point([{1: 2}])),
        ("Point: mu: expected an array, got a distribution, Point(N=8, D=256", lambda: Point(Point(M))),
        ("Point: mu is a masked array, expected a plain one", lambda: Point(np.ma.masked_greater(M, 2))),
        ("Normal: var is text, such as '0.1', expected numbers", lambda: Normal(M, "0.1")),
        ("Normal: index is (0, 1), expected rows alone; a list of several", lambda: Normal(M, V)[0, 1]),
        (f"{ANY_INDEX}, got bool", lambda: Point(M)[True]),
        (f"{ANY_INDEX}, got float64", lambda: Point(M)[[0.5]]),
        (f"{ANY_INDEX}, got int64 of shape (1, 2)", lambda: Point(M)[[[0, 1]]]),
        ("concat: expected a sequence of distributions", lambda: concat(Point(M))),
        ("concat: expected a sequence of distributions", lambda: concat([M, M])),
        ("concat: item 1 is Normal(N=8, D=256, isotropic", lambda: concat([Point(M), Normal(M, V)])),
        ("concat: item 1 is Normal(N=8, D=256, diagonal", lambda: concat([Normal(M, V), Normal(M, M)])),
        ("concat: item 1 is a torch tensor on cpu, expected a numpy array", lambda: concat([Point(M), Point(T)])),
    ],
    IndexError: [
        ("Normal: index 8 is out of range for 8 items", lambda: Normal(M, V)[8]),
        ("Normal: index -9 is out of range for 8 items", lambda: Normal(M, V)[-9]),
        ("Point: index 0 is out of range for 0 items", lambda: Point(M[:0])[0]),
        ("index 8 is out of bounds", lambda: Point(M)[[8]]),
        ("index 8 is out of bounds", lambda: Point(T)[[8]]),
        ("Point: index is a mask of length 1, expected 8", lambda: Point(T)[[True]]),
    ],
}


@pytest.mark.parametrize(
    ("error", "message", "call"), [(error, *case) for error, cases in REFUSED.items() for case in cases]
)
def test_what_does_not_fit_is_refused_in_one_line(error, message, call):
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def spoil(array, row, value):
    array = array.copy()
    array[row] = value
    return array


REMEDY = "divide mu by its length; d.truncate(dim) cuts dimensions"
BAD_VALUES = {
    "Point: mu is not finite in row 5": (Point, spoil(M, 5, np.nan)),
    "Point: mu is not finite in row 2": (Point, spoil(M, (2, 7), -np.inf)),
    "Normal: var is not finite in row 4": (Normal, M, spoil(V, 4, np.inf)),
    "Normal: var is negative in row 6: a variance is expected, not its logarithm": (
        Normal,
        M,
        spoil(V, slice(6, 8), -1e-9),
    ),
    "Normal: var is negative in row 3: a variance is expected, not its logarithm": (Normal, M, spoil(M, (3, 200), -1)),
    "VonMisesFisher: kappa is negative in row 1": (VMF, UNIT, spoil(V, 1, -1)),
    "NonIsotropicVonMisesFisher: kappa is not finite in row 0": (NIVMF, UNIT, spoil(M, (0, 9), np.nan)),
    "NonIsotropicVonMisesFisher: kappa is 0 along all axes in row 3, which leaves no density": (
        NIVMF,
        UNIT,
        spoil(M, 3, 0),
    ),
    "Scaled: scale is negative in row 7": (Scaled, UNIT, spoil(V, 7, -64)),
    f"VonMisesFisher: mu in row 4 has length 1.414, expected 1 within 0.001: {REMEDY}": (
        VMF,
        spoil(UNIT, (4, 100), 1),
        V,
    ),
    f"NonIsotropicVonMisesFisher: mu in row 2 has length 0, expected 1 within 0.001: {REMEDY}": (
        NIVMF,
        spoil(UNIT, 2, 0),
        M,
    ),
    f"Scaled: mu in row 3 has length 1.002, expected 1 within 0.001: {REMEDY}": (Scaled, spoil(UNIT, (3, 3), 1.002), V),
}


@each_library
@pytest.mark.parametrize(("message", "case"), BAD_VALUES.items())
def test_validate_names_the_first_bad_row(message, case, library):
    cls, *arrays = case
    d = cls(*[torch.from_numpy(x) if library == "torch" else x for x in arrays])
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        d.validate()


def first(q):
    """The first item as the only candidate of each query."""
    return np.zeros((len(q), 1), int) if isinstance(q.mu, np.ndarray) else torch.zeros(len(q), 1, dtype=torch.int64)


RANKED = {
    "search": lambda q, g: pe.search(q, g, 1),
    "search of a prepared gallery": lambda q, g: pe.search(q, pe.prepare(g), 1),
    "rerank": lambda q, g: pe.rerank(q, g, first(q), 1),
    "search_above": lambda q, g: pe.search_above(q, g, 0.0),
}
RETRIEVED = RANKED | {
    "prepare": lambda q, g: pe.prepare(g),
    "paired": lambda q, g: pe.paired(g, g),
    "pairwise": pe.pairwise,
    "rescore": lambda q, g: pe.rescore(q, g, first(q)),
    "FaissReranker": lambda q, g: pe.FaissReranker.build(g, "Flat").search(q, 1),
}
MEASURED = {
    "log_prob": lambda _, g: pe.log_prob(g, g.mu),
    "entropy": lambda _, g: pe.entropy(g),
    "confidence": lambda _, g: pe.confidence(g),
    "kl": lambda _, g: pe.kl(g, g),
    "triplet_probability": lambda _, g: pe.triplet_probability(g, g, g),
    "sample": lambda _, g: pe.sample(g, 1),
    "fuse": lambda _, g: pe.fuse(g, np.zeros(len(g), int)),
}
LOOKING = RETRIEVED | MEASURED


@each_library
@pytest.mark.parametrize("call", LOOKING.values(), ids=LOOKING)
def test_retrieval_and_measures_refuse_logarithms_of_variances(call, library):
    log_var = Normal(as_library(M, library, "float32"), as_library(-M, library, "float32"))
    kappa = VMF(as_library(UNIT, library, "float32"), as_library(-V, library, "float32"))
    good = Normal(log_var.mu, -log_var.var)
    many = Normal(*(np.repeat(x, 40, 0) if library == "numpy" else x.repeat_interleave(40, 0) for x in log_var.arrays))
    many.var[:300] *= -1
    call(good, many[:300])
    for bad, row in ((log_var, 0), (many, 300)):
        with pytest.raises(
            ValueError, match=f"^Normal: var is negative in row {row}: a variance is expected, not its log"
        ):
            call(good, bad)
    with pytest.raises(ValueError, match=r"^VonMisesFisher: kappa is negative in row 0$"):
        call(kappa, kappa)


@each_library
@pytest.mark.parametrize("call", LOOKING.values(), ids=LOOKING)
def test_directions_that_are_not_of_unit_length_are_refused(call, library):
    """In every dtype; what rounding does to a direction passes, and so does a dead feature, a row of zeros."""
    for dtype in ("float16", "bfloat16", "float32", "float64") if library == "torch" else ("float16", "float32"):
        mu, kappa = np.full((8, 64), 0.125), as_library(V, library, dtype)
        mu[1] = 0
        good = VMF(as_library(mu, library, dtype), kappa)
        call(good, good)
        for bad, length in ((VMF(3 * good.mu, kappa), "3"), (VMF(good.mu[:, :16], kappa), "0.5")):
            message = f"VonMisesFisher: mu in row 0 has length {length}, expected 1 within 0.01: {REMEDY}"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                call(bad, bad)


@pytest.mark.parametrize("kind", ["vmf", "nivmf", "scaled"])
def test_every_kind_of_direction_is_looked_at_and_gradients_do_not_hide_it(kind):
    d = items_of(kind, 200, 6, library="torch")
    raw = type(d)((d.mu * 2).requires_grad_(), *d.arrays[1:])
    call = {"vmf": pe.paired, "nivmf": lambda d, _: pe.log_prob(d, d.mu), "scaled": partial(pe.paired, score="cosine")}
    with pytest.raises(ValueError, match=r"mu in row 0 has length 2, expected 1 within 0\.01"):
        call[kind](raw, raw)


def test_directions_rounded_to_bfloat16_pass_in_float32():
    """As under autocast, where a network normalises in bfloat16 and what follows computes in float32."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    mu = (x / x.norm(dim=1, keepdim=True)).float()
    assert (mu.norm(dim=1) - 1).abs().max() > 1e-3
    d = VMF(mu, torch.ones(64))
    pe.search(d, d, 1)


@each_library
def test_queries_are_looked_at_too_and_items_of_nan_stay_nan(library):
    good, bad = (
        Normal(as_library(M, library, "float32"), as_library(sign * M, library, "float32")) for sign in (1, -1)
    )
    for call in (*RANKED.values(), RETRIEVED["FaissReranker"]):
        with pytest.raises(ValueError, match=r"^Normal: var is negative in row 0"):
            call(bad, good)
    assert np.isnan(to_numpy(pe.search(good, Normal(good.mu, np.nan * good.var), 1).scores)).all()


@each_library
@pytest.mark.parametrize("call", (*RANKED.values(), lambda q, g: pe.search(q, [g, g], 1)), ids=(*RANKED, "blocks"))
def test_queries_that_are_not_finite_are_counted_and_named(call, library):
    """Any item would be the best for them; verbs that give a score for each pair give NaN."""
    mu, var = np.ones((10, 4), np.float32), np.ones(10, np.float32)
    gallery = Normal(as_library(mu, library, "float32"), as_library(var, library, "float32"))
    mu[[2, 7], 1], mu[4, 0], var[9] = np.nan, -np.inf, np.nan
    queries = Normal(as_library(mu, library, "float32"), as_library(var, library, "float32"))
    with pytest.raises(
        ValueError, match=r"^mls: queries: 4 of 10 rows are not finite, first 2, 4, 7; leave these out$"
    ):
        call(queries, gallery)
    assert np.isnan(to_numpy(pe.pairwise(queries, gallery)))[[2, 7, 9]].all()
    sure = VMF(gallery.mu / 2, gallery.var * np.inf)  # an exact copy, and a sum of halves beyond their range
    call(sure, sure)
    large = Point(as_library(np.full((4, 9), 3e4), library, "float16"))
    call(large, large)


# -- torch's containers ------------------------------------------------------------------------------------------------


@each_kind
def test_torchs_containers_know_distributions(kind, tmp_path):
    d = make(kind, library="torch")
    for items in (d, make(kind)):
        batch = default_collate([{"d": items[i], "label": i} for i in range(5)])
        assert same(batch["d"], d) and batch["d"].home == d.home and batch["label"].tolist() == [0, 1, 2, 3, 4]
    doubled = torch.utils._pytree.tree_map(lambda x: 2 * x, {"d": d})["d"]
    assert torch.equal(doubled.mu, 2 * d.mu) and type(doubled) is type(d)
    leaves, spec = torch.utils._pytree.tree_flatten([d, 1])
    assert len(leaves) == len(d.arrays) + 1 and same(torch.utils._pytree.tree_unflatten(leaves, spec)[0], d)
    torch.utils._pytree.tree_unflatten([object()] * len(leaves), spec)  # as torch itself does to walk a tree
    torch.save({"d": d}, tmp_path / "d.pt")
    assert same(torch.load(tmp_path / "d.pt", weights_only=True)["d"], d)


def test_a_variance_for_all_items_is_read_without_running_code(tmp_path):
    torch.save(Normal(torch.ones(3, 2), 0.5), tmp_path / "d.pt")
    assert torch.load(tmp_path / "d.pt", weights_only=True).common_parameter().tolist() == [0.5]


def test_torch_that_is_imported_later_knows_distributions_with_the_first_tensor():
    code = """
import peaccel as pe, sys
assert "torch" not in sys.modules
import torch
d = pe.Point(torch.eye(2))
print(len(torch.utils.data.default_collate([d, d])))
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "4\n"


@each_library
@each_kind
def test_copies_and_moves(kind, library):
    d = make(kind, library=library)
    copy = d.clone()
    assert same(copy, d) and copy.mu is not d.mu and same(d.cpu(), d)
    copy.mu[:] = 0
    assert not same(copy, d)
    for device in (None, 0, "cuda:0"):
        if library == "numpy" or not torch.cuda.is_available():
            with pytest.raises(ValueError, match=r"expected float16|not a dtype or device"):
                d.cuda(device)


# -- truncate ----------------------------------------------------------------------------------------------------------


@each_library
@each_kind
def test_truncate_cuts_every_kind(kind, library):
    d = items_of(kind, 20, 6, library=library)
    cut = d.truncate(4)
    assert (type(cut), cut.kind, cut.dim, cut.home) == (type(d), d.kind, 4, d.home) and d.truncate(6).dim == 6
    mu, *others = map(to_numpy, d.arrays)
    if kind in ("vmf", "nivmf", "scaled"):
        cut.validate()
        length = np.linalg.norm(mu[:, :4], axis=1, keepdims=True)
        np.testing.assert_allclose(to_numpy(cut.mu), mu[:, :4] / length, rtol=1e-15)
        left = length if kind == "scaled" else length**2
        expected = others[0][:, :4] * left if kind == "nivmf" else others[0] * left[:, 0]
        np.testing.assert_allclose(to_numpy(cut.arrays[1]), expected, rtol=1e-15)
        if kind != "nivmf":
            np.testing.assert_allclose(to_numpy(d.truncate(6).arrays[1]), others[0], rtol=1e-12)
    else:
        np.testing.assert_array_equal(to_numpy(cut.mu), mu[:, :4])
        for x, y in zip(cut.arrays[1:], others, strict=True):
            np.testing.assert_array_equal(to_numpy(x), y[:, :4] if y.ndim == 2 else y)


def test_the_concentration_of_a_cut_direction_is_that_of_cut_draws():
    for dim, kept, kappa in ((64, 16, 100.0), (256, 64, 1000.0), (8, 4, 20.0)):
        d = VMF(items_of("vmf", 1, dim).mu, np.full(1, kappa))
        z = pe.sample(d, 20000, seed=0)[:, 0, :kept]
        fitted = pe.fit_vmf(z / np.linalg.norm(z, axis=1, keepdims=True))
        # What normals in place of vMF leave out is of order D / kappa; 20,000 draws tell kappa within 2 %.
        np.testing.assert_allclose(d.truncate(kept).kappa, fitted.kappa, rtol=0.12)


def test_truncate_keeps_what_is_common_and_halves_and_gradients_and_names_what_it_cannot():
    common = Normal(np.ones((5, 3)), [[0.1, 0.2, 0.3]]).truncate(2)
    np.testing.assert_array_equal(common.common_parameter(), [[0.1, 0.2]])
    half = items_of("vmf", 9, 64, dtype="float16")
    assert half.truncate(16).validate().home == half.home
    x = torch.randn(3, 4, requires_grad=True)
    VMF(x / x.norm(dim=1, keepdim=True), torch.ones(3)).truncate(2).kappa.sum().backward()
    assert x.grad.any()
    for dim, message in ((1, "dim is 1, expected 2 .. 64"), (65, "dim is 65, expected 2 .. 64")):
        with pytest.raises(ValueError, match=f"^VonMisesFisher.truncate: {message}$"):
            half.truncate(dim)
    with pytest.raises(TypeError, match="dim must be an integer, got float"):
        half.truncate(4.0)


def of_arrays(rows):
    return [row if row is None else np.asarray(row) for row in rows]


COLUMNS = {
    "pandas, lists": lambda rows: pd.Series(rows),
    "pandas, arrays": lambda rows: pd.Series(of_arrays(rows)),
    "pandas, Arrow": lambda rows: pd.Series(rows, dtype=pd.ArrowDtype(pa.list_(pa.float64()))),
    "Polars, lists": lambda rows: pl.Series(rows),
    "Polars, arrays": lambda rows: pl.Series(rows, dtype=pl.Array(pl.Float64, 2)),
    "Arrow, lists": lambda rows: pa.array(rows),
    "Arrow, chunks": lambda rows: pa.chunked_array([rows]),
    "Arrow, arrays": lambda rows: pa.array(rows, pa.list_(pa.float64(), 2)),
    "objects": lambda rows: np.array([*of_arrays(rows), None], object)[:-1],
    "lists": list,
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_rows_are_taken_and_what_is_missing_in_them_is_refused_by_row(column):
    rows = [[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]]
    np.testing.assert_array_equal(Normal(column(rows), column(rows)).var, rows)
    for make in (Point, lambda x: Normal(np.ones((3, 2)), x), lambda x: VMF(x, [1, 2, 3])):
        with pytest.raises(ValueError, match=r": (mu|var) is (None|nan|<NA>) in row 1, expected a number$"):
            make(column([rows[0], None, rows[2]]))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([[1.0, 2, 3], [1, 2]], ValueError, "Point: mu has 2 numbers in row 1, expected 3"),
        (COLUMNS["objects"]([[1.0, 2, 3], [1, 2]]), ValueError, "Point: mu has 2 numbers in row 1, expected 3"),
        ([[0.1, 1], [pd.NA, 0.4]], ValueError, "Point: mu is <NA> in row 1, expected a number"),
        ([[0.1, 1], [0.4, None]], ValueError, "Point: mu is None in row 1, expected a number"),
        (pd.Series([[0.1, 1], [0.4, None]]), ValueError, "Point: mu is None in row 1, expected a number"),
        ([[1, [2]], [3, 4]], ValueError, "Point: mu is [2] in row 0, expected a number"),
        (["[1,2,3]", "[4,5,6]"], TypeError, "Point: mu is text, such as '[1,2,3]', expected numbers"),
    ],
)
def test_rows_that_are_no_numbers_are_named(rows, error, message):
    with pytest.raises(error, match="^" + re.escape(message) + "$"):
        Point(rows)


NULLABLE = [lambda x, dtype=dtype: pd.Series(x, dtype=dtype) for dtype in ("Float64", "double[pyarrow]")]


@pytest.mark.parametrize("column", [list, pa.array, lambda x: pa.chunked_array([x]), pl.Series, *NULLABLE])
def test_a_number_that_is_missing_is_refused_by_row(column):
    np.testing.assert_array_equal(Normal(np.ones((2, 3)), column([0.1, 0.2])).var, [0.1, 0.2])
    for make in (lambda x: Normal(np.ones((2, 3)), x), lambda x: VMF(UNIT[:2], x), lambda x: Scaled(UNIT[:2], x)):
        with pytest.raises(ValueError, match=r": (var|kappa|scale) is (None|<NA>) in row 1, expected a number$"):
            make(column([0.1, None]))


NESTED = {
    "Arrow lists": pa.array,
    "Arrow lists of one size": lambda x: pa.array(x, pa.list_(pa.float64(), 2)),
    "an Arrow table": lambda x: pa.table([[a for a, _ in x], [b for _, b in x]], ["a", "b"]),
    "Polars lists": pl.Series,
    "Polars arrays": lambda x: pl.Series(x, dtype=pl.Array(pl.Float64, 2)),
    "a Polars frame": lambda x: pl.DataFrame(x, ["a", "b"], orient="row"),
    "a pandas frame": lambda x: pd.DataFrame(x, dtype="Float64"),
}


@pytest.mark.parametrize("column", NESTED.values(), ids=NESTED)
def test_a_number_that_is_missing_in_a_column_of_rows_is_refused_by_row(column):
    np.testing.assert_array_equal(Point(column([[0.1, 0.2], [0.3, 0.4]])).mu, [[0.1, 0.2], [0.3, 0.4]])
    with pytest.raises(ValueError, match=r"^Point: mu is (None|<NA>) in row 1, expected a number$"):
        Point(column([[0.1, 0.2], [None, 0.4]]))


def test_validate_counts_rows_over_its_blocks():
    mu = np.zeros((2 * BLOCK + 3, 1), np.float32)
    mu[2 * BLOCK + 1] = np.nan
    with pytest.raises(ValueError, match=f"row {2 * BLOCK + 1}$"):
        Point(mu).validate()


def test_halves_may_be_off_by_what_rounding_does():
    mu = np.full((1, 128), 128**-0.5)
    for dtype, limit in ((np.float16, 2e-3), (ml_dtypes.bfloat16, 1e-2)):
        VMF((mu * (1 + limit / 2)).astype(dtype), np.ones(1, dtype)).validate()
        with pytest.raises(ValueError, match=f"expected 1 within {limit:g}"):
            VMF((mu * (1 + 3 * limit)).astype(dtype), np.ones(1, dtype)).validate()
