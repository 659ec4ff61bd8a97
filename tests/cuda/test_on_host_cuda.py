"""CUDA kernels run whole on the host (see test_on_host_driver.py), against golden values and the CPU's kernels."""

import csv
import itertools
import pathlib

import numpy as np
import pytest
import torch
from conftest import EPS, build, every_score, expected, make, of_products, scored, to_numpy
from items import given_to, scale_of
from test_edges import CELLS, COPIES, hostile
from test_every_score import check, same_bits
from test_lengths import rows

import peaccel as pe
from peaccel import _core
from peaccel._utils.arrays import dtype_name
from peaccel.ops import OPS, Inputs, Op, PairOp, _cpu, _cuda, bessel
from peaccel.retrieval.plan import plan
from peaccel.scores._inputs import filled

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "bessel.csv"

# -- elements ----------------------------------------------------------------------------------------------------------


def golden():
    with GOLDEN.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


FLOORS = {
    "log_ive": ("tol", lambda v, x: 1),
    "vmf_log_norm": ("tol_rest", lambda v, x: np.maximum(v, 1)),
    "iv_ratio": ("tol_ratio", lambda v, x: 0),
    "log_ive_dx": ("tol_rest", lambda v, x: np.minimum(1 / x, 1)),
    "log_ive_dxx": ("tol_bend", lambda v, x: np.minimum(1 / x**2, 1)),
    "iv_ratio_dx": ("tol_bend", lambda v, x: 0),
    "iv_ratio_dxx": ("tol_bend", lambda v, x: 0),
}


@pytest.mark.parametrize("name", FLOORS)
@pytest.mark.filterwarnings("ignore:(divide by zero|overflow):RuntimeWarning")
def test_golden_values(device, name):
    """Orders that differ by element; then one order at a time."""
    table, (tolerance, floor) = golden(), FLOORS[name]
    v, x, want = table["v"], table["x"], table[name]
    order = 2 * v + 2 if name == "vmf_log_norm" else v
    op = next(op for op in OPS if op.name == name)
    lone = _cuda.elementwise(op, torch.from_numpy(order), torch.from_numpy(x)).numpy()
    one = np.concatenate(
        [
            _cuda.elementwise(
                op, torch.tensor([value], dtype=torch.float64), torch.from_numpy(x[order == value])
            ).numpy()
            for value in dict.fromkeys(order.tolist())
        ]
    )
    rows = np.concatenate([np.flatnonzero(order == value) for value in dict.fromkeys(order.tolist())])
    known = ~np.isnan(want)
    for got in (lone, one[np.argsort(rows)]):
        error = np.abs(got - want) / np.maximum(np.abs(want), floor(v, x))
        assert (error[known] <= table[tolerance][known]).all()


@pytest.mark.parametrize("op", [op for op in OPS if isinstance(op, Op)], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 3, 1023, 70_001])
def test_elements_are_those_of_the_cpu(device, op, dtype, n):
    """One order of many elements goes by a table in float32; edges are in every size."""
    rng = np.random.default_rng(n)
    x = torch.from_numpy(10 ** rng.uniform(-6, 9, n)).to(dtype)
    edges = torch.tensor([0.0, -0.0, torch.inf, torch.nan, -1.0, 0.25, 2.0**24, 1e-40], dtype=dtype)
    x[: min(n, len(edges))] = edges[:n]
    for order in (torch.tensor([64.0], dtype=torch.float64), torch.from_numpy(rng.uniform(2, 600, n))):
        given = given_to(op, order, x)
        found, want = _cuda.elementwise(op, *given), _cpu.elementwise(op, *given)
        eps = 4e-7 if dtype == torch.float32 else 2e-14
        same = (found == want) | (found.isnan() & want.isnan())
        # Subnormal numbers have fewer digits, and log_ndtr_dxx multiplies one by x, there 38: so many of their steps.
        step = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        assert (same | ((found - want).abs() <= eps * scale_of(op.name, order, x, want) + 40 * step)).all()


def test_elements_broadcast(device):
    order, x = torch.arange(2.0, 5.0, dtype=torch.float64)[:, None], torch.linspace(0.5, 9, 7)
    found = _cuda.elementwise(next(op for op in OPS if op.name == "iv_ratio"), order, x)
    torch.testing.assert_close(found, bessel.iv_ratio(order, x), rtol=2e-7, atol=0)


# -- draws -------------------------------------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (3, 2, 1), (5, 3, 2), (40, 5, 3), (9, 16, 7), (7, 64, 33), (6, 127, 5), (4, 128, 2), (3, 300, 4)]
LONG = (2, 4500, 2)  # more normals than shared memory holds


def drawn_items(op, n, dim, dtype, wide, spread):
    rng = np.random.default_rng([n, dim])
    mu = rng.standard_normal((n, dim))
    if op.name == "sample_vmf":
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    uncertainty = 10 ** rng.uniform(-spread, spread, (n, dim) if wide else n)
    return torch.from_numpy(mu).to(dtype), torch.from_numpy(uncertainty).to(dtype)


def off(found, want, size=None):
    """The largest difference, relative to the largest number; infinities and NaN must be the same."""
    found, want = found.double(), want.double()
    finite = want.isfinite()
    assert torch.equal(found[~finite].nan_to_num(7), want[~finite].nan_to_num(7))
    if not finite.any():
        return 0.0
    return float((found - want)[finite].abs().max() / want[finite].abs().max().clamp(min=1e-30))


SAMPLERS = ("sample_normal one", "sample_normal each", "sample_vmf one")
# No direction has one dimension.
DRAWN = [(case, shape) for case in SAMPLERS for shape in (*SHAPES, LONG) if shape[1] > 1 or "normal" in case]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("case", "shape"), DRAWN, ids=str)
def test_draws_and_their_gradients_are_those_of_the_cpu(device, case, shape, dtype):
    name, wide = case.split()
    op = next(op for op in OPS if op.name == name)
    n, dim, draws = shape
    eps = torch.finfo(dtype).eps
    for spread in (0.3, 4):
        mu, uncertainty = drawn_items(op, n, dim, dtype, wide == "each", spread)
        seed = torch.tensor(2**62 + 12345)
        z = _cuda.sample(op, mu, uncertainty, seed, draws, 2**33 + 5, 2)
        want = _cpu.sample(op, mu, uncertainty, seed, draws, 2**33 + 5, 2)
        assert z.shape == (draws, n, dim)
        # Of directions in few dimensions, one normal may be all that is left beside another.
        assert off(z, want) <= (40 if dim < 4 else 16) * eps
        weights = torch.from_numpy(np.random.default_rng(1).standard_normal(z.shape)).to(dtype)
        found = _cuda.sample_backward(op, weights, mu, uncertainty, seed, 2**33 + 5, 2)
        exact = _cpu.sample_backward(op, weights, mu, uncertainty, seed, 2**33 + 5, 2)
        for got, wanted in zip(found, exact, strict=True):
            assert got.shape == wanted.shape
            # What is integrated for kappa is exp of a difference of numbers of size D.
            assert off(got, wanted) <= (2e3 if dim < 4 else 200 + dim) * eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", SAMPLERS)
def test_no_draws_have_gradients_of_zeros(device, case, dtype):
    """A share of no draws, by which lanes are divided, had hung the device."""
    name, wide = case.split()
    op = next(op for op in OPS if op.name == name)
    mu, uncertainty = drawn_items(op, 7, 5, dtype, wide == "each", 1)
    weights = _cuda.sample(op, mu, uncertainty, torch.tensor(5), 0, 0, 0)
    found = _cuda.sample_backward(op, weights, mu, uncertainty, torch.tensor(5), 0, 0)
    assert weights.shape == (0, 7, 5)
    assert [x.shape for x in found] == [mu.shape, uncertainty.shape] and not any(x.any() for x in found)


def test_draws_of_any_rows(device):
    """Strided rows, one variance for all rows, and items in parts give the draws of the whole."""
    op = next(op for op in OPS if op.name == "sample_normal")
    mu, uncertainty = drawn_items(op, 12, 24, torch.float32, True, 1)
    seed = torch.tensor(5)
    whole = _cuda.sample(op, mu, uncertainty, seed, 3, 10, 0)
    assert torch.equal(
        _cuda.sample(op, mu[::3], uncertainty[::3].t().contiguous().t(), seed, 3, 10, 0)[:, :1], whole[:, :1]
    )
    assert torch.equal(_cuda.sample(op, mu[4:9], uncertainty[4:9], seed, 3, 14, 0), whole[:, 4:9])
    one = uncertainty[:1, :1].expand(12, 24)
    assert torch.equal(_cuda.sample(op, mu, one, seed, 2, 0, 1), _cuda.sample(op, mu, one.contiguous(), seed, 2, 0, 1))
    assert _cuda.sample(op, mu[:0], uncertainty[:0], seed, 3, 0, 0).shape == (3, 0, 24)
    # Rows of mu that are one number, and gradients by variances that are.
    flat, weights = mu[:, :1].expand(12, 24), whole.flip(0)
    found, want = (
        [_cuda.sample(op, *x, seed, 2, 0, 1), *_cuda.sample_backward(op, weights, *x, seed, 10, 0)]
        for x in ((flat, one), (flat.clone(), one.clone()))
    )
    assert all(map(torch.equal, found, want))


# -- pairs -------------------------------------------------------------------------------------------------------------

PAIR_OPS = [op for op in OPS if isinstance(op, PairOp) and not op.sampled]
KINDS_OF = ("normal_isotropic", "normal_diagonal", "point", "scaled", "vmf")
CASES = [
    (name, *kinds)
    for name, score in pe.scores.SCORES.items()
    for kinds in itertools.product(KINDS_OF, KINDS_OF)
    if kinds in score.pairs and score.pair(*kinds).op in PAIR_OPS
]


def verbs(q, g, score, gallery=None):
    """The scores [Q, G] of all pairs by each verb's kernel."""
    planned = plan(q, gallery or g, score, detach=True)
    op, inputs = planned.pair.op, planned.inputs
    every = torch.arange(len(g)).expand(len(q), len(g)).contiguous()
    i, j = (x.reshape(-1) for x in torch.meshgrid(torch.arange(len(q)), torch.arange(len(g)), indexing="ij"))
    mu1, uncertainty1, mu2, uncertainty2, shared = inputs.arrays
    each = Inputs(mu1[i], uncertainty1[i], mu2[j], uncertainty2[j], shared)
    one_by_one = [inputs._replace(mu1=mu1[k : k + 1], uncertainty1=uncertainty1[k : k + 1]) for k in range(len(q))]
    found = {
        "pairwise": _cuda.score(op, inputs, None, True),
        "one query": torch.cat([_cuda.score(op, one, None, True) for one in one_by_one]),
        "paired": _cuda.score(op, each, None, False).reshape(len(q), len(g)),
        "rescore": _cuda.score(op, inputs, every, False),
    }
    for name, (scores, ids) in (
        ("rerank", _cuda.rerank(op, inputs, every, len(g))),
        ("search", _cuda.search(op, inputs, len(g))[:2]),
    ):
        found[name] = torch.empty_like(scores).scatter_(1, ids, scores)
    return {name: x.numpy() for name, x in found.items()}


def verbs_agree(found, name, q, g):
    """All verbs gave the same bits; but all pairs of a score of one inner product, whose sums are a library's, are as
    near as D roundings of a product and those of the norms allow (cuda/drivers/products.cuh)."""
    score, dtype = scored(name, q.kind) if isinstance(name, str) else name, dtype_name(q.mu)
    if not plan(q, g, score, detach=True).pair.op.one_product:
        same_bits(found, score.name)
        return
    same_bits({verb: scores for verb, scores in found.items() if verb not in OF_PRODUCTS}, score.name)
    size = np.asarray(expected(score, q, g, dtype)[1], np.float64)
    rounded = q.dim + 4 * (q.dim // 128 + 1) + 8
    near = ((rounded if of_products(score.name) else 16 * rounded) / 2 + 8) * EPS[dtype] * size
    for verb in OF_PRODUCTS:
        same_bits({"rescore": found["rescore"], "pairwise": found[verb]}, f"{score.name}: {verb}", near)


OF_PRODUCTS = "pairwise", "one query"


def agrees(found, q, g, name, dtype):
    """With the reference; where its quadrature is not made for that, with the CPU."""
    if name != "hib":
        check(found, q, g, name, dtype)
        return
    want = pe.pairwise(q, g, name).numpy()
    np.testing.assert_allclose(found, want, rtol=3e-7 if dtype == "float32" else 1e-9, atol=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CASES)
def test_scores_by_every_verb(device, name, q_kind, g_kind):
    score = scored(name, q_kind)
    # Rows that are read four numbers at a time, and others; one and two steps of a warp.
    widths = {"float32": (1, 17, 128, 130), "float64": (17, 132), "float16": (37, 128), "bfloat16": (130,)}
    for dtype, dim in ((dtype, dim) for dtype, dims in widths.items() for dim in dims):
        if dim == 1 and "vmf" in (q_kind, g_kind):
            continue
        compute = dtype if dtype in EPS else "float32"
        q = make(q_kind, 5, dim, 1, dtype=compute, library="torch")
        g = make(g_kind, 37, dim, 2, dtype=dtype, library="torch")
        found = verbs(q, g, score)
        verbs_agree(found, score, q, g)
        agrees(found["search"], q, g, name, compute)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 3, 16, 129, 512])
def test_variances_over_many_powers_of_ten(device, dim, dtype):
    for name, q_kind, g_kind in CASES:
        if not {q_kind, g_kind} <= {"normal_isotropic", "normal_diagonal"} or (name == "hib" and dim > 16):
            continue
        for powers in ((-8, 8), (-30, 30)):
            items = []
            for kind, n in ((q_kind, 2), (g_kind, 3)):
                d = make(kind, n, dim, n, library="torch")
                rng = np.random.default_rng([n, dim])
                var = 10.0 ** rng.uniform(*powers, d.var.shape)
                items.append(pe.Normal(d.mu, torch.from_numpy(var)).to(getattr(torch, dtype)))
            found = verbs(*items, scored(name, q_kind))
            verbs_agree(found, name, *items)
            agrees(found["search"], *items, name, dtype)


@pytest.mark.usefixtures("unlooked")
def test_a_variance_of_zero_is_a_point_and_a_negative_one_has_no_score(device):
    for kind in ("normal_isotropic", "normal_diagonal"):
        q, g = (make(kind, n, 20, n, dtype="float32", library="torch") for n in (3, 6))
        g.var[1], g.var[2], g.var[3] = 0, -1, torch.nan
        for name in ("mls", "llr", "ppk", "neg_kl"):
            found = verbs(q, g, scored(name, kind))
            want = pe.pairwise(q, g, scored(name, kind)).numpy()
            for verb in ("pairwise", "search"):
                np.testing.assert_array_equal(np.isnan(found[verb]), np.isnan(want))
                np.testing.assert_allclose(found[verb], want, rtol=3e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CASES)
def test_gradients_are_those_of_the_cpu(device, name, q_kind, g_kind, dtype):
    rng = np.random.default_rng(0)
    for dim in (5, 140):
        q = make(q_kind, 7, dim, 1, dtype=dtype, library="torch")
        g = make(g_kind, 7, dim, 2, dtype=dtype, library="torch")
        planned = plan(q, g, scored(name, q_kind), detach=True)
        op, inputs = planned.pair.op, planned.inputs
        candidates = torch.from_numpy(rng.integers(-1, 7, (7, 150)))
        for given, pairwise, shape in ((None, False, (7,)), (None, True, (7, 7)), (candidates, False, (7, 150))):
            weights = torch.from_numpy(rng.standard_normal(shape)).to(inputs.mu1.dtype)
            weights[0] = 0
            found = _cuda.score_backward(op, weights, inputs, given, pairwise)
            want = _cpu.score_backward(op, weights, inputs, given, pairwise)
            for own, other in zip(found, want, strict=True):
                assert own.shape == other.shape
                if own.numel():
                    scale = max(1.0, float(other.abs().max()))
                    assert float((own - other).abs().max()) <= (3e-4 if dtype == "float32" else 1e-11) * scale


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "kind"), [("mls", "normal_isotropic"), ("cosine", "point"), ("mls", "vmf")])
def test_a_row_that_is_not_finite_adds_nothing_where_its_weights_are_0(device, unlooked, name, kind, bad):
    q, g = (make(kind, n, 16, n, dtype="float32", library="torch") for n in (20, 30))
    g.mu[3, 2], q.mu[5, 1] = bad, bad
    planned = plan(q, g, name, detach=True)
    weights = torch.rand(20, 30)
    weights[:, 3], weights[5] = 0, 0
    found, want = (
        f(planned.pair.op, weights, planned.inputs, None, True) for f in (_cuda.score_backward, _cpu.score_backward)
    )
    for one, other in zip(found, want, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max() if other.numel() else 0))


DIAGONAL = [(name, *kinds) for name, *kinds in CASES if not pe.scores.get(name).pair(*kinds).op.one_product]
DIAGONAL = [cell for cell in DIAGONAL if set(cell[1:]) <= {"normal_isotropic", "normal_diagonal"}]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wanted", [_core.EVERY_GRADIENT, _core.QUERY | _core.GALLERY, _core.GALLERY])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), DIAGONAL)
def test_gradients_by_dimension_from_all_pairs(device, unlooked, name, q_kind, g_kind, wanted, dtype):
    """Sizes that no tile divides; rows without a score beside weights of 0; large variances and none."""
    q, g = (make(kind, n, 67, n, dtype=dtype, library="torch") for kind, n in ((q_kind, 13), (g_kind, 141)))
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((13, 141))).to(q.mu.dtype)
    for d, row in ((q, 5), (g, 70)):
        for x, bad in zip(d.arrays, (torch.inf, torch.nan), strict=True):
            x[row].reshape(-1)[-1:] = bad
        d.arrays[1][row + 1], d.arrays[1][row + 2] = 0, 1e12
    weights[5], weights[:, 70] = 0, 0
    planned = plan(q, g, scored(name, q_kind), detach=True)
    found, want = (
        f(planned.pair.op, weights, planned.inputs, None, True, wanted)
        for f in (_cuda.score_backward, _cpu.score_backward)
    )
    again = _cuda.score_backward(planned.pair.op, weights, planned.inputs, None, True, wanted)
    for number, (one, other) in enumerate(zip(found, want, strict=True)):
        if not wanted & (_core.QUERY, _core.QUERY, _core.GALLERY, _core.GALLERY, _core.SHARED)[number]:
            continue
        assert one.isfinite().all()
        assert torch.equal(one, again[number])
        # Large numbers stand beside small ones, each with the digits of its dtype.
        scale = other.abs().max() if number == 4 and other.numel() else other.abs().clamp(min=1)
        assert ((one - other).abs() <= (1e-4 if dtype == "float32" else 1e-10) * scale).all()


BY_DISTANCE = {op.name for op in PAIR_OPS if op.one_product and op.by_distance}
OF_ALL_PAIRS = {
    op.name: (score, *kinds)
    for score in pe.scores.SCORES.values()
    for kinds in score.pairs
    for op in [score.pair(*kinds).op]
    if op.one_product or op.compares
}


@pytest.mark.parametrize("name", OF_ALL_PAIRS)
def test_products_are_the_same_under_autocast(device, name):
    """Kernels compute in the dtype of their inputs, whatever autocast makes of a caller's own products."""
    score, *kinds = OF_ALL_PAIRS[name]
    q, g = (make(kind, n, 6, n, dtype="float32", library="torch") for kind, n in zip(kinds, (5, 40), strict=True))
    planned = plan(q, g, scored(score.name, kinds[0]), detach=True)
    op, inputs, weights = planned.pair.op, planned.inputs, torch.rand(5, 40)

    def computed():
        return _cuda.score(op, inputs, None, True), *_cuda.score_backward(op, weights, inputs, None, True)

    want = computed()
    with torch.autocast("cpu", torch.bfloat16):
        found = computed()
        assert torch.mm(weights, weights.T).dtype == torch.bfloat16
    assert all(x.dtype == torch.float32 for x in found)
    assert all(map(torch.equal, found, want))


@pytest.mark.parametrize("features", [lambda x: 1 + 0.05 * x, lambda x: x.relu() + 3], ids=["untrained", "relu"])
@pytest.mark.parametrize("name", [name for name in OF_ALL_PAIRS if name in BY_DISTANCE])
def test_a_common_mean_costs_no_digits_and_leaves_no_pairs_to_the_pair_function(device, name, features):
    score, *kinds = OF_ALL_PAIRS[name]
    source = torch.Generator().manual_seed(0)
    q, g = (make(kind, n, 64, n, dtype="float32", library="torch") for kind, n in zip(kinds, (70, 90), strict=True))
    for d in (q, g):
        d.mu[:] = features(torch.randn(d.mu.shape, generator=source))
        if d.kind == "vmf":
            d.mu[:] /= d.mu.norm(dim=1, keepdim=True)
    g.mu[5], g.mu[6, 0] = q.mu[7], torch.nan
    planned = plan(q, g, scored(score.name, kinds[0]), detach=True)
    op, inputs = planned.pair.op, planned.inputs
    pairs = _cuda._AllPairs(op, inputs)
    both = pairs.norms[0][:, None] + pairs.norms[1]
    near = ~(both - 2 * pairs.products() >= both / 16)
    near[7, 5], near[:, 6] = False, False
    assert not near.any()
    found, want = _cuda.score(op, inputs, None, True), _cuda.score(op, inputs, torch.arange(90).expand(70, 90))
    scale = want.nan_to_num(0).abs().max()
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5 * float(scale), equal_nan=True)
    weights = torch.randn(70, 90, generator=source)
    weights[:, 6] = 0
    found, want = (f(op, weights, inputs, None, True) for f in (_cuda.score_backward, _cpu.score_backward))
    for one, other in zip(found, want, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max() if other.numel() else 0))


def test_gradients_that_nobody_wants_are_not_computed(device):
    q, g = (make("normal_diagonal", n, 6, n, dtype="float64", library="torch") for n in (3, 4))
    planned = plan(q, g, "ppk", detach=True)
    op, inputs, weights = planned.pair.op, planned.inputs, torch.ones(3, 4, dtype=torch.float64)
    every = _cuda.score_backward(op, weights, inputs, None, True)
    of = [_core.QUERY, _core.QUERY, _core.GALLERY, _core.GALLERY, _core.SHARED]
    for wanted in (_core.QUERY, _core.GALLERY, _core.SHARED):
        for bit, found, want in zip(
            of, _cuda.score_backward(op, weights, inputs, None, True, wanted), every, strict=True
        ):
            if bit == wanted:
                assert torch.equal(found, want)
            elif _core.GALLERY in (bit, wanted):
                assert not found.any()


SYMMETRIC = [("mls", "normal_isotropic"), ("mls", "normal_diagonal"), ("llr", "normal_isotropic"), ("cosine", "point")]
SYMMETRIC += [("mls", "vmf"), ("llr", "normal_diagonal"), ("neg_mahalanobis", "normal_diagonal")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kind"), SYMMETRIC)
def test_gradients_of_one_set_are_the_sums_of_those_of_both_sides(device, name, kind, dtype):
    """Made of one side, with the weights of a pair and of its mirror image: the same sums in another order."""
    d = make(kind, 37, 5, 1, dtype=dtype, library="torch")
    d.mu[3] = d.mu[9]
    planned = plan(d, d, scored(name, kind), detach=True)
    op, inputs, weights = planned.pair.op, planned.inputs, torch.randn(37, 37, dtype=d.mu.dtype)
    assert inputs.of_one_set and op.symmetric
    each = _cuda.score_backward(op, weights, inputs, None, True)
    wanted = _core.QUERY + _core.SHARED + _core.TOGETHER
    found = _cuda.score_backward(op, weights, inputs, None, True, wanted)
    want = each.mu1 + each.mu2, each.uncertainty1 + each.uncertainty2, each.shared
    for one, other in zip((found.mu1, found.uncertainty1, found.shared), want, strict=True):
        scale = float(other.abs().max()) if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=0, atol=(3e-5 if dtype == "float32" else 1e-12) * scale)


@pytest.mark.parametrize("name", ["mls", "ppk"])
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal"])
def test_gradients_of_more_items_than_blocks(device, name, kind):
    """A block goes on to another item: what all of its threads knew of the last one is theirs no more."""
    q, g = (make(kind, n, 6, n, dtype="float64", library="torch") for n in (60, 170))
    planned = plan(q, g, name, detach=True)
    op, inputs = planned.pair.op, planned.inputs
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((60, 170)))
    found = _cuda.score_backward(op, weights, inputs, None, True)
    for own, other in zip(found, _cpu.score_backward(op, weights, inputs, None, True), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


def listing(rng, scores_of):
    """Scores with ties, NaN and infinities, ids with gaps."""
    scores = torch.from_numpy(rng.integers(-3, 3, scores_of).astype(np.float32))
    scores[torch.from_numpy(rng.random(scores_of) < 0.1)] = torch.nan
    scores[torch.from_numpy(rng.random(scores_of) < 0.1)] = -torch.inf
    ids = torch.from_numpy(np.stack([rng.permutation(scores_of[1]) for _ in range(scores_of[0])]))
    ids[torch.from_numpy(rng.random(scores_of) < 0.2)] = -1
    return scores, ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [
        *((3, 1, 1), (3, 40, 60), (3, 700, 1), (3, 700, 256), (3, 3000, 1024), (3, 1500, 1100), (60, 40, 3)),
        *((2, 600, 10), (2, 20_000, 10)),  # ties of which a list has memory for all, and for few
    ],
)
def test_the_best_k(device, rows, n, k, dtype):
    """Higher scores, then NaN, then padding; ties to the lower id; by the kernel and, beyond 1024, by sorting."""
    scores, ids = listing(np.random.default_rng(n + k), (rows, n))
    scores = scores.to(dtype)
    found = _cuda.select(scores, ids, k)
    for row in range(rows):
        items = [(float(s), int(i)) for s, i in zip(scores[row], ids[row], strict=True) if i >= 0]
        items.sort(key=lambda item: (item[0] != item[0], -item[0] if item[0] == item[0] else 0, item[1]))
        items = (items + [(-np.inf, -1)] * k)[:k]
        np.testing.assert_array_equal(found[0][row], [s for s, _ in items])
        assert found[1][row].tolist() == [i for _, i in items]


@pytest.mark.parametrize(("parts", "k"), [(528, 10), (60, 100), (9, 256)])
def test_the_best_of_parts_that_are_mostly_padding(device, parts, k):
    """As of a query whose survivors many blocks have scored."""
    rng = np.random.default_rng(parts)
    scores, ids = torch.full((2, parts * k), -torch.inf), torch.full((2, parts * k), -1)
    scores[:, ::k] = torch.from_numpy(rng.standard_normal((2, parts)).astype(np.float32))
    ids[:, ::k] = torch.from_numpy(rng.permutation(10 * parts)[: 2 * parts].reshape(2, parts))
    best, found = _cuda.select(scores, ids, k)
    want, order = scores[:, ::k].sort(descending=True)
    count = min(parts, k)
    assert torch.equal(best[:, :count], want[:, :count]) and (best[:, count:] == -torch.inf).all()
    assert torch.equal(found[:, :count], ids[:, ::k].gather(1, order)[:, :count]) and (found[:, count:] == -1).all()


@pytest.mark.parametrize("k", [1, 10, 300, 1024, 1100])
def test_rankings_of_long_lists_and_large_galleries(device, k):
    q, g = (make("normal_diagonal", n, 8, n, dtype="float32", library="torch") for n in (3, 1500))
    g.mu[700:] = g.mu[:800].clone()  # repeated rows, which tie
    g.var[700:] = g.var[:800].clone()
    g.var[5] = torch.nan
    planned = plan(q, g, "mls", detach=True)
    op, inputs = planned.pair.op, planned.inputs
    candidates = torch.from_numpy(np.random.default_rng(k).integers(-1, 1500, (3, 1300)))
    listed = _cuda.score(op, inputs, candidates, False)
    want, found = _cuda.select(listed, candidates, k), _cuda.rerank(op, inputs, candidates, k)
    assert torch.equal(want[1], found[1])
    np.testing.assert_array_equal(want[0], found[0])
    every = torch.arange(1500).expand(3, 1500)
    whole = _cuda.select(_cuda.score(op, inputs, None, True), every, k)
    found = _cuda.search(op, inputs, k)[:2]
    assert torch.equal(whole[1], found[1])
    np.testing.assert_array_equal(whole[0], found[0])


def test_rankings_of_more_queries_than_blocks(device):
    q, g = (make("normal_diagonal", n, 4, n, dtype="float32", library="torch") for n in (100, 30))
    planned = plan(q, g, "mls", detach=True)
    op, inputs = planned.pair.op, planned.inputs
    candidates = torch.from_numpy(np.random.default_rng(0).integers(-1, 30, (100, 40)))
    want = _cuda.select(_cuda.score(op, inputs, candidates, False), candidates, 3)
    assert all(map(torch.equal, _cuda.rerank(op, inputs, candidates, 3), want))


def test_candidates_that_are_no_rows(device):
    q = make("normal_diagonal", 2, 8, dtype="float32", library="torch")
    planned = plan(q, q, "mls", detach=True)
    ids = torch.tensor([[0, 2, 2**40], [-1, -2, 1]])
    scores = _cuda.score(planned.pair.op, planned.inputs, ids, False)
    assert scores.isnan().tolist() == [[False, True, True], [False, True, False]]
    assert scores[1, 0] == -torch.inf


@pytest.mark.parametrize(
    "value", [0.5, 2, np.float64(3.5), [1.0, 0.25], (0.5,), np.array([1.0, 2, 3]), [1.0, 2, 3], []]
)
def test_parameters_of_scores_are_filled_in(value):
    mu = torch.ones(2, 3)
    found, want = filled(value, mu), mu.new_tensor(value)
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    assert torch.equal(found, want)


def test_nothing_in_nothing_out(device):
    q, none = make("vmf", 3, 8, library="torch"), make("vmf", 0, 8, library="torch")
    for a, b in ((q, none), (none, q), (none, none)):
        planned = plan(a, b, "cosine", detach=True)
        op, inputs = planned.pair.op, planned.inputs
        assert _cuda.score(op, inputs, None, True).shape == (len(a), len(b))
        for scores, ids in (
            _cuda.search(op, inputs, 4)[:2],
            _cuda.rerank(op, inputs, torch.full((len(a), 2), -1), 4),
            _cuda.rerank(op, inputs, torch.zeros((len(a), 0), dtype=torch.int64), 4),
        ):
            assert (scores == -torch.inf).all()
            assert (ids == -1).all()
            assert ids.shape == (len(a), 4)


# -- edges -------------------------------------------------------------------------------------------------------------

CERTAIN = [cell for cell in CELLS if cell[0] in COPIES and "point" not in cell and cell[0] != "neg_w2"]


def torch_items(d, dtype):
    return build(d.kind, *map(to_numpy, d.arrays), dtype=dtype, library="torch")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CERTAIN)
def test_limits_at_certain_items_are_those_of_the_cpu(device, name, q_kind, g_kind, dtype):
    score = scored(name, q_kind)
    q, g = hostile(q_kind, 5, 9, 1, dtype, 1e-12), hostile(g_kind, 12, 9, 2, dtype, 1e-12)
    want = every_score(q, g, score)
    items = torch_items(q, dtype), torch_items(g, dtype)
    found = verbs(*items, score)
    same_bits({verb: scores for verb, scores in found.items() if verb not in OF_PRODUCTS}, name)
    rtol, atol = (3e-5, 1e-4) if dtype == "float32" else (1e-11, 1e-9)
    for verb in ("rescore", "pairwise"):
        assert not np.isnan(found[verb]).any()
        np.testing.assert_allclose(found[verb], want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), CERTAIN)
def test_gradients_at_certain_items_are_those_of_the_cpu(device, name, q_kind, g_kind, dtype):
    q, g = (torch_items(hostile(kind, n, 9, n, dtype, 0.1), dtype) for kind, n in ((q_kind, 5), (g_kind, 8)))
    planned = plan(q, g, scored(name, q_kind), detach=True)
    weights = torch.rand(5, 8, dtype=q.mu.dtype)
    found, want = (
        call(planned.pair.op, weights, planned.inputs, None, True)
        for call in (_cuda.score_backward, _cpu.score_backward)
    )
    for one, other in zip(found, want, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max() if other.numel() else 0) + 1e-9
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cosines_at_any_length_are_those_of_the_cpu(device, dtype):
    q, g = (build("point", rows(n, 19, dtype, n), None, dtype=dtype, library="torch") for n in (6, 20))
    for score in ("cosine", "norm_cosine:mu=0.2") if dtype == "float32" else ("cosine",):
        want, found = to_numpy(every_score(q, g, score)), verbs(q, g, pe.scores.get(score))
        verbs_agree(found, pe.scores.get(score), q, g)
        for verb in ("rescore", "pairwise"):
            np.testing.assert_allclose(found[verb], want, rtol=1e-5, atol=1e-5 * (score == "cosine"))
    assert (abs(verbs(q, q, pe.scores.cosine)["rescore"]) <= 1).all()
    zero = pe.Point(torch.cat((q.mu[:3], 0 * q.mu[:1])).float().clamp(-1e3, 1e3))
    planned = plan(zero, zero, pe.scores.cosine, detach=True)
    weights = torch.rand(4, 4)
    gradients = _cuda.score_backward(planned.pair.op, weights, planned.inputs, None, True)
    assert all(x.isfinite().all() for x in gradients) and (gradients.mu1[3] == 0).all()
