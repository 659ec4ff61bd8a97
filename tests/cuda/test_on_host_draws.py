"""CUDA kernels of scores that compare draws, run whole on the host (see test_on_host_cuda.py) against the CPU's."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make
from test_every_score import same_bits

import peaccel as pe
from peaccel import _core
from peaccel.ops import Inputs, _cpu, _cuda
from peaccel.published.non_isotropic import el_nivmf_paper, el_nivmf_published, nivmf_paper, nivmf_published
from peaccel.published.revisited import hib_drawn
from peaccel.retrieval.plan import plan

PUBLISHED = (hib_drawn, el_nivmf_published, el_nivmf_paper, nivmf_published, nivmf_paper)
CASES = [
    pytest.param(score, q, g, id=f"{score.name}-{q}-{g}")
    for score in (*pe.scores.SCORES.values(), *PUBLISHED)
    for q, g in score.pairs
    if score.pair(q, g).op.sampled
]
each_case = pytest.mark.parametrize(("score", "q_kind", "g_kind"), CASES)


def planned(score, q, g, **params):
    """Op and inputs of a score."""
    score = pe.scores.get(score)
    params = {key: value for key, value in {"seed": 11, **params}.items() if key in score.params}
    call = plan(q, g, score(**params), detach=True)
    return call.pair.op, call.inputs


def verbs(op, inputs):
    """The scores [Q, G] of all pairs by each verb."""
    n, m = len(inputs.mu1), len(inputs.mu2)
    every = torch.arange(m).expand(n, m).contiguous()
    found = {"pairwise": _cuda.score(op, inputs, None, True), "rescore": _cuda.score(op, inputs, every, False)}
    # Draws belong to the number of a row: paired sees the diagonal only.
    own = min(n, m)
    found["paired"] = found["pairwise"].clone()
    mu1, uncertainty1, mu2, uncertainty2, shared = inputs.arrays
    each = Inputs(mu1[:own], uncertainty1[:own], mu2[:own], uncertainty2[:own], shared, inputs.draws)
    found["paired"][range(own), range(own)] = _cuda.score(op, each, None, False)
    for verb, (scores, ids) in (
        ("rerank", _cuda.rerank(op, inputs, every, m)),
        ("search", _cuda.search(op, inputs, m)[:2]),
    ):
        found[verb] = torch.empty_like(scores).scatter_(1, ids, scores)
    return {verb: x.numpy() for verb, x in found.items()}


def verbs_agree(found, case, dtype, dim):
    """All verbs gave the same bits; all pairs, whose draws a library multiplies, are near them."""
    same_bits({verb: scores for verb, scores in found.items() if verb not in ("pairwise", "paired")}, case)
    for verb in ("pairwise", "paired"):
        assert_near(found[verb], found["rescore"], dtype, dim)


def assert_near(found, want, dtype, dim):
    """Draws agree to a few ulp; in few dimensions, one normal may be all that is left beside another."""
    eps = torch.finfo(getattr(torch, dtype)).eps
    np.testing.assert_allclose(
        found, want, rtol=(300 if dim < 4 else 60) * eps, atol=(300 if dim < 4 else 60) * eps * dim
    )


@pytest.mark.one_in(3)
@each_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_are_those_of_the_cpu(device, score, q_kind, g_kind, dtype):
    # Teams of part of a warp and of all of it, several steps; draws of less and more than a block of distances.
    for dim, n in ((2, 1), (17, 5), (140, 9)):
        q = make(q_kind, 2, dim, 1, dtype=dtype, library="torch")
        g = make(g_kind, 5, dim, 2, dtype=dtype, library="torch")
        op, inputs = planned(score, q, g, n=n)
        found = verbs(op, inputs)
        verbs_agree(found, (dim, n), dtype, dim)
        assert_near(found["search"], _cpu.score(op, inputs, None, True), dtype, dim)


@pytest.mark.one_in(3)
@each_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_those_of_the_cpu(device, score, q_kind, g_kind, dtype):
    rng = np.random.default_rng(0)
    # A variance of 0, which a point has, has no derivative, and nothing asks for it.
    known = [True, q_kind != "point", True, g_kind != "point", True]
    for dim, n in ((3, 9), (70, 3)):
        q = make(q_kind, 5, dim, 1, dtype=dtype, library="torch")
        g = make(g_kind, 5, dim, 2, dtype=dtype, library="torch")
        op, inputs = planned(score, q, g, n=n)
        candidates = torch.from_numpy(rng.integers(-1, 5, (5, 7)))
        for given, pairwise, shape in ((None, False, (5,)), (None, True, (5, 5)), (candidates, False, (5, 7))):
            weights = torch.from_numpy(rng.standard_normal(shape)).to(inputs.mu1.dtype)
            weights[0] = 0
            found = _cuda.score_backward(op, weights, inputs, given, pairwise)
            want = _cpu.score_backward(op, weights, inputs, given, pairwise)
            for own, other, is_known in zip(found, want, known, strict=True):
                assert own.shape == other.shape
                if own.numel() and is_known:
                    scale = max(1.0, float(other.abs().max()))
                    assert float((own - other).abs().max()) <= (3e-4 if dtype == "float32" else 1e-10) * scale


def test_draws_that_shared_memory_cannot_hold(device):
    for name, kind, n in (("hib", "normal_diagonal", 130), ("sampled_cosine", "vmf", 100), ("el_nivmf", "vmf", 100)):
        q, g = (make(kind, m, 64, m, dtype="float32", library="torch") for m in (3, 4))
        if name == "el_nivmf":
            g = make("nivmf", 4, 64, 4, dtype="float32", library="torch")
        op, inputs = planned(name, q, g, n=n)
        found = verbs(op, inputs)
        same_bits(found, name)  # so many draws are not multiplied
        assert_near(found["pairwise"], _cpu.score(op, inputs, None, True), "float32", 64)
        weights = torch.ones(3, 4)
        for own, other in zip(
            _cuda.score_backward(op, weights, inputs, None, True),
            _cpu.score_backward(op, weights, inputs, None, True),
            strict=True,
        ):
            if own.numel():
                np.testing.assert_allclose(own, other, atol=3e-4 * max(1, abs(other).max()))


def test_many_pairs_in_parts(device):
    """More pairs than warps: a warp takes several columns and draws its query once for them."""
    q, g = (make("normal_diagonal", n, 4, n, dtype="float32", library="torch") for n in (3, 90))
    op, inputs = planned("hib", q, g, n=2)
    found = verbs(op, inputs)
    verbs_agree(found, "parts", "float32", 4)
    assert_near(found["pairwise"], _cpu.score(op, inputs, None, True), "float32", 4)


def both(op, inputs, weights, wanted=_core.EVERY_GRADIENT):
    """The scores and gradients of all pairs by CUDA's kernels, and by the CPU's."""
    return [
        [kernels.score(op, inputs, None, True), *kernels.score_backward(op, weights, inputs, None, True, wanted)]
        for kernels in (_cuda, _cpu)
    ]


def assert_alike(found, want, dtype):
    for one, other in zip(found, want, strict=True):
        assert one.shape == other.shape
        if other.numel():
            scale = max(1.0, float(other.abs().max()))
            assert float((one - other).abs().max()) <= (3e-4 if dtype == "float32" else 1e-10) * scale


HARD = [
    ("hib", "normal_diagonal", "normal_diagonal", {"a": 2.0, "b": 1.0}),
    ("hib", "normal_diagonal", "normal_diagonal", {"a": -2.0, "b": -1.0}),
    ("hib", "normal_diagonal", "normal_diagonal", {"a": 40.0, "b": 1.0}),  # no probability is a number of its type
    ("neg_sampled_l2", "normal_isotropic", "normal_diagonal", {}),
    ("neg_sampled_l2", "vmf", "point", {}),
    ("neg_sampled_l2", "point", "vmf", {}),
    ("sampled_cosine", "normal_diagonal", "normal_isotropic", {}),
    ("sampled_cosine", "vmf", "point", {}),
    ("el_nivmf", "vmf", "nivmf", {}),
    ("nivmf", "point", "nivmf", {}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind", "params"), HARD)
def test_all_pairs_of_several_tiles(device, monkeypatch, name, q_kind, g_kind, params, dtype):
    """Sizes that no tile divides, and a weight of 0 for most pairs of a query."""
    monkeypatch.setattr(_cuda, "TILE", 2**12)
    q, g = (make(kind, n, 9, n, dtype=dtype, library="torch") for kind, n in ((q_kind, 35), (g_kind, 67)))
    op, inputs = planned(name, q, g, n=3, **params)
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((35, 67))).to(inputs.mu1.dtype)
    weights[3:30, 40:] = 0
    known = [True, True, q_kind != "point", True, g_kind != "point", True]  # a variance of 0 has no derivative
    for wanted in (_core.EVERY_GRADIENT, _core.QUERY, _core.GALLERY):
        found, want = both(op, inputs, weights, wanted)
        sides = {_core.QUERY: slice(1, 3), _core.GALLERY: slice(3, 5)}.get(wanted, slice(None))
        found, want = ([x for x, yes in [*zip(part, known, strict=True)][sides] if yes] for part in (found, want))
        assert_alike(found, want, dtype)


@pytest.mark.parametrize(("n", "queries", "m", "gallery"), [
    (8, 4096, 8, 4096), (8, 2, 8, 10**6), (8, 50, 8, 777), (64, 300, 64, 500), (1, 5 * 10**6, 1, 1), (64, 1000, 1, 9)
])  # fmt: skip
def test_tiles_cover_all_pairs_in_bounded_memory(n, queries, m, gallery):
    z = [torch.empty(*shape, 4, device="meta") for shape in ((n, queries), (m, gallery))]
    tiles = [*_cuda._AllDraws._tiles(SimpleNamespace(z=z, left=z[:1], above=False))]
    sizes = [(q.stop - q.start, g.stop - g.start) for q, g in tiles]
    assert sum(a * b for a, b in sizes) == queries * gallery
    assert all(4 * n * m * a * b <= _cuda.TILE and a <= 32 * 65535 for a, b in sizes)
    assert all(q.start % 32 == 0 and g.start % 32 == 0 for q, g in tiles)
    assert len(tiles) <= 3 * (4 * n * m * queries * gallery / _cuda.TILE + 1) + queries / _cuda.ROWS


@pytest.mark.parametrize(("n", "rows"), [(8, 1024), (8, 4096), (8, 31), (64, 500), (1, 100_000)])
def test_tiles_of_one_set_leave_out_most_pairs_below_the_diagonal(n, rows):
    z = torch.empty(n, rows, 4, device="meta")
    tiles = [*_cuda._AllDraws._tiles(SimpleNamespace(z=[z, z], left=[z], above=True))]
    sizes = [(q.stop - q.start, g.stop - g.start) for q, g in tiles]
    assert all(4 * n * n * a * b <= _cuda.TILE for a, b in sizes)
    assert all(q.start % 32 == 0 and g.start % 32 == 0 for q, g in tiles)
    covered = sum(a * b for a, b in sizes)
    beyond = sum((a - 1) * a // 2 for a in {q.start: q.stop - q.start for q, _ in tiles}.values())
    assert covered == rows * (rows + 1) // 2 + beyond  # all pairs i <= j, and those within a tile's queries
    assert covered < 0.62 * rows**2 or rows < 500


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("kind", ["normal_diagonal", "vmf"])
@pytest.mark.parametrize("name", ["hib", "neg_sampled_l2", "sampled_cosine"])
def test_scores_and_gradients_of_pairs_of_one_set(device, monkeypatch, name, kind, few):
    """Of several tiles, one pair in three; no score of a pair without a weight is needed."""
    if (name, kind) == ("hib", "vmf"):
        return
    monkeypatch.setattr(_cuda, "TILE", 2**12)
    d = make(kind, 75, 9, 1, dtype="float64", library="torch")
    op, inputs = planned(name, d, d, n=3)
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(rng.standard_normal((75, 75)) * (rng.random((75, 75)) < 1 / 3)).triu(1)
    scores, gradients = _cuda.scores_and_gradients(op, weights, inputs, few, True)
    want, expected = _cpu.scores_and_gradients(op, weights, inputs, few, True)
    assert_alike([scores[weights != 0], *gradients], [want[weights != 0], *expected], "float64")
    alone, none = _cuda.scores_and_gradients(op, weights, inputs, few, False)
    assert none is None
    torch.testing.assert_close(alone, scores, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["hib", "neg_sampled_l2"])
@pytest.mark.parametrize(("queries", "n"), [(40, 2), (1, 5), (33, 1)])
def test_draws_near_each_other_far_from_the_origin_keep_their_digits(device, name, queries, n, dtype):
    """Duplicates, some of variance 0, some a little apart, in a cloud whose distances products cannot tell."""
    q, g = (make("normal_diagonal", m, 20, m, dtype=dtype, library="torch") for m in (queries, 36))
    far = 1e3 if dtype == "float32" else 1e6
    for d in (q, g):
        d.mu.mul_(0.5).add_(far)
        d.var[::3] = 0
        d.var[1::3] *= 1e-4
    g.mu[5:30] = q.mu[0] + torch.linspace(0, 1e-2, 25, dtype=q.mu.dtype)[:, None] * (far / 1e3)
    op, inputs = planned(name, q, g, n=n)
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((queries, 36))).to(inputs.mu1.dtype)
    found, want = both(op, inputs, weights)
    # What differs is how draws themselves are rounded, a few ulp of where they lie.
    eps = torch.finfo(inputs.mu1.dtype).eps
    np.testing.assert_allclose(found[0], want[0], rtol=0, atol=40 * eps * far)

    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize("kind", ["vmf", "point"])
def test_concentrated_classes_near_their_draws_keep_their_digits(device, kind):
    """Cosines near 1 times concentrations of a million: products would leave no digit of log densities."""
    q = make(kind, 6, 16, 1, dtype="float32", library="torch")
    g = make("nivmf", 9, 16, 2, dtype="float32", library="torch")
    g.mu[:6] = q.mu / q.mu.norm(dim=1, keepdim=True)
    g.kappa[:7] *= 1e4
    if kind == "vmf":
        q.kappa[:] = 1e6
    op, inputs = planned("el_nivmf" if kind == "vmf" else "nivmf", q, g, n=2)
    weights = torch.eye(6, 9)
    found, want = both(op, inputs, weights)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-3)
    assert_alike(found[1:], want[1:], "float32")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "q_kind", "g_kind", "params"), HARD)
def test_rows_that_are_not_finite_add_nothing_where_their_weights_are_0(device, name, q_kind, g_kind, params, bad):
    q, g = (make(kind, n, 6, n, dtype="float64", library="torch") for kind, n in ((q_kind, 5), (g_kind, 7)))
    op, inputs = planned(name, q, g, n=2, **params)
    known = [True, q_kind != "point", True, g_kind != "point", True]  # a variance of 0 has no derivative
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 7)))
    weights[2], weights[:, 4] = 0, 0
    want = _cuda.score_backward(op, weights, inputs, None, True)
    inputs.mu1[2, 1], inputs.mu2[4, 3] = bad, bad
    found = _cuda.score_backward(op, weights, inputs, None, True)
    # A sampler multiplies gradients by its item's own mean.
    others = [0, 1, 3, 4], [0, 1, 2, 3, 5, 6]
    sides = others[0], others[0], others[1], others[1], slice(None)
    for one, other, is_known, rows in zip(found, want, known, sides, strict=True):
        if is_known:
            torch.testing.assert_close(one[rows], other[rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("hib", "normal_diagonal"), ("sampled_cosine", "vmf")])
def test_gradients_of_more_items_than_blocks(device, name, kind):
    """A block goes on to another item: what all of its threads knew of the last one is theirs no more."""
    q, g = (make(kind, n, 5, n, dtype="float64", library="torch") for n in (30, 60))
    op, inputs = planned(name, q, g, n=2)
    weights = torch.ones(30, 60, dtype=torch.float64)
    found = _cuda.score_backward(op, weights, inputs, None, True)
    for own, other in zip(found, _cpu.score_backward(op, weights, inputs, None, True), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


def test_pairs_that_are_none(device):
    q, g = (make("vmf", n, 8, n, dtype="float32", library="torch") for n in (2, 3))
    op, inputs = planned("sampled_cosine", q, g)
    scores = _cuda.score(op, inputs, torch.tensor([[0, -1, 3], [-2, 2, 2**40]]), False)
    assert scores.isnan().tolist() == [[False, False, True], [True, False, True]]
    assert scores[0, 1] == -torch.inf
    for a, b in itertools.product((0, 2), (0, 3)):
        op, inputs = planned("sampled_cosine", q[:a], g[:b])
        assert _cuda.score(op, inputs, None, True).shape == (a, b)
        ids = _cuda.search(op, inputs, 4)[1]
        assert ids.shape == (a, 4)
        assert ((ids >= 0).sum(1) == b).all()


@pytest.mark.usefixtures("unlooked")
def test_a_variance_below_zero_has_no_score_and_one_of_zero_no_noise(device):
    q, g = (make("normal_isotropic", n, 12, n, dtype="float64", library="torch") for n in (2, 4))
    q.var[:], g.var[0], g.var[1] = 0, 0, -1
    for score in ("sampled_cosine", "neg_sampled_l2", hib_drawn):
        op, inputs = planned(score, q, g)
        found = _cuda.score(op, inputs, None, True).numpy()
        np.testing.assert_array_equal(np.isnan(found), [[False, True, False, False]] * 2)
        np.testing.assert_allclose(found, _cpu.score(op, inputs, None, True), rtol=1e-10)
