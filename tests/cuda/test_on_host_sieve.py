"""Search by products of cuBLAS, for which a loop stands in (see test_on_host_driver.py) that reads the digits of tf32.

Ids and bits are those of a sort of all scores, also where rounding hides the difference.
"""

import ctypes

import host_cuda
import numpy as np
import pytest
import torch
from conftest import make, scored

import peaccel as pe
from peaccel import _core
from peaccel.ops import _cuda
from peaccel.retrieval.plan import plan

CASES = [
    ("cosine", "point"),
    ("inner_product", "point"),
    ("scale_cosine", "scaled"),
    ("neg_sq_l2", "point"),
    ("mls", "normal_isotropic"),
    ("llr", "normal_isotropic"),
    ("ppk", "normal_isotropic"),
    ("neg_kl", "normal_isotropic"),
    ("mls", "vmf"),
    ("ppk", "vmf"),
    ("neg_kl", "vmf"),
]


def both_ways(q, g, score, k):
    """Found by the sieve, of the gallery as it lies and of what is prepared of it, and by a sort of all scores."""
    planned = plan(q, g, score, detach=True)
    op, inputs = planned.pair.op, planned.inputs
    every = torch.arange(len(g)).expand(len(q), len(g))
    found = _cuda.search(op, inputs, k, "always")[:2]
    assert_same(_cuda.search(op, inputs, k, "always", _cuda.panels(op, inputs.mu2))[:2], found)
    return found, _cuda.select(_cuda.score(op, inputs, every), every, k)


def assert_same(found, want):
    assert torch.equal(found[1], want[1])
    np.testing.assert_array_equal(found[0], want[0])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_best_are_those_of_a_sort(device, name, kind):
    for dtype, dim, n, k in (
        ("float32", 36, 400, 3),
        ("float32", 130, 150, 20),
        ("float16", 64, 300, 1),
        ("bfloat16", 7, 200, 5),
    ):
        if kind == "scaled" and dtype != "float32":
            continue
        q = make(kind, 9, dim, 1, dtype="float32", library="torch")
        g = make(kind, n, dim, 2, dtype=dtype, library="torch")
        assert_same(*both_ways(q, g, scored(name, kind), k))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_best_of_rows_that_tf32_cannot_tell_apart(device, name, kind):
    """Near-duplicates of one row far from the origin, sure of their places; ties, NaN, infinity, huge and tiny."""
    rng = np.random.default_rng(0)
    g = make(kind, 300, 48, 2, dtype="float32", library="torch")
    unit = kind in ("vmf", "scaled")
    near = (1e-3 if unit else 1e-2) * torch.from_numpy(rng.standard_normal((300, 48))).float()
    g.mu[:] = g.mu[:1] * (1 if unit else 50) + near
    if unit:
        g.mu[:] /= g.mu.norm(dim=1, keepdim=True)
    g.mu[200:230] = g.mu[100:130].clone()
    q = type(g)(*(x[40:49].clone() for x in g.arrays))
    for uncertainty in g.arrays[1:]:
        uncertainty[:] = {"vmf": 1e4, "scaled": 2}.get(kind, 1e-4)
        uncertainty[7], uncertainty[250] = torch.nan, 0
    if not unit:
        g.mu[3], g.mu[4], g.mu[5], g.mu[6] = torch.nan, torch.inf, 1e25, 1e-30
    assert_same(*both_ways(q, g, scored(name, kind), 12))


@pytest.mark.parametrize("at", ["gallery", "queries"])
def test_the_best_cosines_of_rows_whose_squares_lose_digits(device, at):
    """Rows like the queries, of lengths whose squares are subnormal numbers or leave the range, among unlike ones."""
    rng = np.random.default_rng(3)
    q = torch.from_numpy(rng.standard_normal((6, 64)))
    like = q.repeat(20, 1) + 0.02 * torch.from_numpy(rng.standard_normal((120, 64)))
    g = torch.cat([torch.from_numpy(rng.standard_normal((300, 64))), like])
    extreme = g if at == "gallery" else q
    powers = np.r_[rng.uniform(-22.5, -21, len(extreme) - 3), 18, 19, 20]
    extreme *= torch.from_numpy(10.0 ** rng.permutation(powers))[:, None]
    assert_same(*both_ways(pe.Point(q.float()), pe.Point(g.float()), "cosine", 5))


@pytest.mark.parametrize("dim", [2, 3, 130, 1000])
def test_the_best_half_of_rows_of_all_concentrations(device, dim):
    """Half of the rows lie around the threshold: a limit below the score loses some; also near and opposite ones."""
    rng = np.random.default_rng(dim)
    q, g = (make("vmf", n, dim, 1, dtype="float32", library="torch") for n in (5, 300))
    g.mu[:40] = q.mu[0] + 1e-3 * torch.from_numpy(rng.standard_normal((40, dim))).float()
    g.mu[40:80] = -q.mu[0]
    g.mu[:] /= g.mu.norm(dim=1, keepdim=True)
    for d in (q, g):
        d.kappa[:] = torch.from_numpy(10 ** rng.uniform(-3, 6, len(d))).float()
    q.kappa[:2] = 1e4
    g.kappa[::50], g.kappa[1::50] = 0, torch.inf
    assert_same(*both_ways(q, g, "mls", 150))


def test_queries_beyond_a_tile_more_than_the_gallery_and_chunks(device):
    q = make("normal_isotropic", 150, 32, 1, dtype="float32", library="torch")
    g = make("normal_isotropic", 1000, 32, 2, dtype="float32", library="torch")
    assert_same(*both_ways(q, g, "mls", 2))  # 2 rows for a threshold, then chunks of 16, 128 and 1000
    assert_same(*both_ways(q[:2], g[:5], "mls", 9))  # more than there are: all are scored
    assert_same(*both_ways(q[:1], g[:40], "mls", 39))


@pytest.mark.parametrize("op", ["mls_isotropic", "mls_diagonal"])
@pytest.mark.parametrize("queries", [1, 3, 1024, 100_000])
@pytest.mark.parametrize("k", [1, 10, 1024])
def test_memory_of_a_search_of_ten_million_rows(device, op, queries, k):
    """Shards stand one above the other, of which CUDA takes 65535; products and survivors take 128 MB."""
    shapes = (queries, 64), (queries, 1), (10_000_000, 64), (10_000_000, 1), (1, 0)
    arrays = [(0, shape, (shape[1], 1), "float32") for shape in shapes]
    shards, _, at_a_time, first, rows, survivors = _core.cuda_cut(op, (0, 0), arrays, k, "always")
    assert 1 <= shards <= 65535
    if op == "mls_isotropic":
        assert 1 <= at_a_time <= queries
        assert k <= first <= rows
        assert 4 * at_a_time * (rows + survivors) <= 2**27
        assert survivors >= 4 * k


def test_more_survivors_than_there_is_memory_for(device, monkeypatch):
    """Rows that come closer one after the other: each is better than all before it, and none is ruled out."""
    n, counted = 3000, []
    g = pe.Normal(torch.linspace(10, 1, n)[:, None] * torch.ones(1, 16) / 4, torch.ones(n))
    q = pe.Normal(torch.zeros(2, 16), torch.ones(2))
    cut, search = _core.cuda_cut, _core.cuda_search
    monkeypatch.setattr(_core, "cuda_cut", lambda *args: [*cut(*args)[:5], 64])
    monkeypatch.setattr(_core, "cuda_search", passed_by(search, counted))
    assert_same(*both_ways(q, g, "mls", 3))
    assert max(counted) > 64


LIMITS = r"""
#include "formulas/dot.cuh"

template <typename F>
void both(const F& f, int n, const float* pairs, float* limits, double* values) {
    for (int i = 0; i < n; ++i) {
        const float* p = pairs + 5 * i;
        limits[i] = f.limit(LimitPair{p[0], p[1], p[2], p[3], p[4], 0, 0});
        values[i] = f.value(DotPair{p[0], p[1], p[2], p[3], p[4], nullptr, nullptr});
    }
}
extern "C" void limits(int formula, int n, const float* pairs, float* limits, double* values) {
    if (formula == 0) both(MlsIsotropic(300, 0, 0), n, pairs, limits, values);
    if (formula == 1) both(SignedSum<true>(300, 0, 0), n, pairs, limits, values);
    if (formula == 2) both(Cosine(300, 0, 0), n, pairs, limits, values);
    if (formula == 3) both(ShiftedCosine(300, 0.3, 0), n, pairs, limits, values);
    if (formula == 4) both(LlrIsotropic(300, 0.7, 0), n, pairs, limits, values);
    if (formula == 5) both(SignedSum<false>(300, 0, 0), n, pairs, limits, values);
}
"""


@pytest.mark.parametrize("formula", range(6))
def test_no_score_is_above_its_limit_in_single_precision(tmp_path, formula):
    """Squared distances or inner products, norms and uncertainties of few powers of ten, and of all that there are."""
    source, library = tmp_path / "limits.cpp", tmp_path / "limits.so"
    source.write_text(LIMITS)
    host_cuda.compile_kernels(source, library)
    pointers = [np.ctypeslib.ndpointer(dtype, flags="C") for dtype in (np.float32, np.float32, np.float64)]
    function = ctypes.CDLL(str(library)).limits
    function.argtypes = [ctypes.c_int, ctypes.c_int, *pointers]
    rng, n = np.random.default_rng(formula), 200_000
    for powers in (1, 4, 38):
        pairs = (10.0 ** rng.uniform(-powers, powers, (n, 5))).astype(np.float32)
        if formula in (2, 3):
            lengths = np.sqrt(pairs[:, 1].astype(np.float64)) * np.sqrt(pairs[:, 2])
            pairs[:, 0] = rng.uniform(-1, 1, n) * lengths
        if formula == 5:
            pairs[:, 0] *= rng.choice([-1, 1], n)
        if formula in (1, 5):
            pairs[:, 3:] *= rng.choice([-1, 1], (n, 2))
        limits, values = np.empty(n, np.float32), np.empty(n)
        function(formula, n, pairs, limits, values)
        known = ~np.isnan(limits)
        infinite = (limits == -np.inf) & (values < np.finfo(np.float32).min)  # as the score is
        assert ((limits >= values) | infinite)[known].all()
        if powers < 38:
            assert known.all() if formula in (0, 1, 4, 5) else known.mean() > 0.99
            sizes = np.abs(pairs[:, 3:])
            size = 6000 if formula == 0 else sizes.max(1) if formula in (1, 5) else sizes.prod(1)
            if formula == 5:  # which may cancel, x too
                size = np.maximum(size, np.abs(pairs[:, 0]))
            if formula == 4:  # whose terms cancel each other
                x, norm, other, v, w = pairs.T.astype(np.float64)
                det = 0.7 * (v + w) + v * w
                size = (norm * v / (0.7 + v) + other * w / (0.7 + w) + x) * 0.7 / det + 6000
            assert (limits - values <= 2e-6 * (np.abs(values) + size))[known].all()  # and few are far above


def passed_by(search, passed):
    """The search, which tells how many rows of the last chunk passed the sieve for a query, at most."""

    def spied(*args):
        search(*args)
        address, shape = args[7][6][1][:2]
        passed.append(np.ctypeslib.as_array((ctypes.c_int32 * shape[0]).from_address(address)).max())

    return spied


def test_the_sieve_lets_few_pass(device, monkeypatch):
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((20, 64))
    mu = np.concatenate([centre + 0.1 * rng.standard_normal((60, 64)) for centre in centres])
    var = 0.02 * np.exp(0.2 * rng.standard_normal(1200))
    g = pe.Normal(torch.from_numpy(rng.permutation(mu)).float(), torch.from_numpy(var).float())
    q = pe.Normal(g.mu[::120] + 0.01, g.var[::120].clone())
    passed = []
    monkeypatch.setattr(_core, "cuda_search", passed_by(_core.cuda_search, passed))
    assert_same(*both_ways(q, g, "mls", 1))
    # Of 688 rows, the best of 512 being known, not many more than those of a cluster.
    assert 1 <= max(passed) < 60


def common(name, n, dim, seed):
    """Features with a large common mean: of an untrained network, and after a ReLU."""
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, dim))).float()
    return 1 + 0.05 * x if name == "untrained" else x.relu() + 3


@pytest.mark.parametrize("score", ["mls", "neg_sq_l2", "ppk"])
@pytest.mark.parametrize("name", ["untrained", "relu"])
def test_the_sieve_lets_few_pass_of_rows_with_a_common_mean(device, monkeypatch, name, score):
    """Of which products tell no distance, unless a mean is subtracted before."""
    size = (common(name, 1200, 128, 1).var(0).mean() / 4).item()
    q, g = (
        pe.Point(mu) if score == "neg_sq_l2" else pe.Normal(mu, size * torch.linspace(1, 1.2, len(mu)))
        for mu in (common(name, 12, 128, 2), common(name, 1200, 128, 1))
    )
    planned, passed = plan(q, g, score, detach=True), []
    op, inputs = planned.pair.op, planned.inputs
    monkeypatch.setattr(_core, "cuda_search", passed_by(_core.cuda_search, passed))
    every = torch.arange(len(g)).expand(len(q), len(g))
    found = _cuda.search(op, inputs, 4, "always", _cuda.panels(op, inputs.mu2))[:2]
    assert_same(found, _cuda.select(_cuda.score(op, inputs, every), every, 4))
    assert max(passed) < 688 / 4  # of 688 rows, nearly all of which pass where no mean is subtracted
