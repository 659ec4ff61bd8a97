"""Every op on a GPU against the CPU: `pytest -m cuda`, with `--noconftest` where only torch, numpy and pytest are.

The CPU's kernels are held against references elsewhere; here both must agree, within the exactness bound.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from items import KINDS, make, scale_of, scored, to_numpy, values

import peaccel as pe
from peaccel.ops import OPS, Op

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

SCORES = tuple(pe.scores.SCORES)
PAIRS = [
    (name, *kinds) for name in SCORES for kinds in itertools.product(KINDS, KINDS) if kinds in pe.scores.get(name).pairs
]
TOLERANCE = {"float32": {"rtol": 2e-5, "atol": 2e-4}, "float64": {"rtol": 1e-12, "atol": 1e-11}}


def on_gpu(d):
    return d.to("cuda")


def close(found, want, dtype="float64"):
    torch.testing.assert_close(found.cpu().double(), want.double(), equal_nan=True, **TOLERANCE[dtype])


# -- elements and draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", [op for op in OPS if isinstance(op, Op)], ids=lambda op: op.name)
def test_elements(op, dtype):
    x = torch.logspace(-6, 9, 100_003, dtype=torch.float64).to(dtype)
    x[:6] = torch.tensor([0, -1, torch.inf, torch.nan, 0.25, 2.0**24])
    for order in (torch.tensor([64.0]).double(), torch.linspace(2, 700, len(x)).double()):
        found, want = values(op, order.cuda(), x.cuda()).cpu(), values(op, order, x)
        same, scale = (found == want) | (found.isnan() & want.isnan()), scale_of(op.name, order, x, want)
        off = (
            ((found - want).abs() / scale.clamp(min=torch.finfo(dtype).tiny)).masked_fill(same, 0).nan_to_num(torch.inf)
        )
        worst = int(off.argmax())
        # Numbers near the smallest ones have fewer digits.
        few = (found - want).abs() <= 40 * torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        right = same | few | (off <= (5e-7 if dtype == torch.float32 else 3e-14))
        assert right.all(), f"at {float(x[worst])!r}: {float(found[worst])!r}, expected {float(want[worst])!r}"


def test_no_draws_have_gradients_of_zeros():
    """A share of no draws had hung the device."""
    mu, kappa = torch.eye(5, device="cuda").requires_grad_(), torch.ones(5, device="cuda").requires_grad_()
    pe.sample(pe.VonMisesFisher(mu, kappa), 0, seed=1).sum().backward()
    assert not mu.grad.any() and not kappa.grad.any()


def test_verbs_neither_wait_nor_follow_autocast():
    g = pe.Normal(torch.randn(5000, 16, device="cuda"), torch.rand(1, 16, device="cuda") + 0.1)
    q, ready, rho = g[:7], pe.prepare(g, "mls"), torch.tensor(0.7, device="cuda")
    isotropic = pe.Normal(g.mu, g.mu[:, 0] ** 2 + 0.1)
    ids = torch.arange(9, device="cuda").expand(7, 9)
    calls = [partial(pe.pairwise, q, x, s) for x in (g, ready) for s in ("mls",)]
    calls += [partial(pe.search, q, x, 3, "mls") for x in (g, ready)]
    calls += [
        partial(pe.rerank, q, g, ids, 3, pe.scores.ppk(rho=rho)),
        partial(pe.pairwise, isotropic, isotropic, "mls"),
    ]
    calls += [partial(pe.pairwise, q, q, pe.scores.neg_sampled_l2(seed=3)), partial(pe.search, q, [g[:50], g[50:]], 3)]
    want = [call() for call in calls]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.autocast("cuda", torch.float16):
            found = [call() for call in calls]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, want, strict=True):
        assert all(map(torch.equal, *((x if isinstance(x, tuple) else (x,)) for x in (one, other))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "dim"), [("normal_isotropic", 5), ("normal_diagonal", 128), ("vmf", 2), ("vmf", 129)])
def test_draws_and_their_gradients(kind, dim, dtype):
    results = []
    for device in ("cpu", "cuda"):
        d = make(kind, 300, dim, dtype=dtype, library="torch").to(device)
        for x in d.arrays:
            x.requires_grad_()
        z = pe.sample(d, 5, seed=7, first_row=11)
        weights = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape).to(device)
        (z * weights).sum().backward()
        results.append([x.detach().cpu() for x in (z, *(x.grad for x in d.arrays))])
    for on_cpu, found in zip(*results, strict=True):
        scale = float(on_cpu.abs().max())
        assert float((found - on_cpu).abs().max()) <= (2e-5 if dtype == "float32" else 1e-11) * max(1, scale)


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), PAIRS)
def test_every_verb(name, q_kind, g_kind, dtype):
    score, compute = scored(name, q_kind), dtype if dtype in TOLERANCE else "float32"
    q = make(q_kind, 9, 37, 1, dtype=compute, library="torch")
    g = make(g_kind, 70, 37, 2, dtype=dtype, library="torch")
    candidates = torch.from_numpy(np.random.default_rng(0).integers(-1, 70, (9, 40)))
    a, b = on_gpu(q), on_gpu(g)
    for given in (b, pe.prepare(b, score)):
        same = given if given is b else given.distribution
        pairs = pe.pairwise(a, given, score)
        close(pairs, pe.pairwise(q, same.to("cpu"), score), compute)
        listed = pe.rescore(a, given, candidates.cuda(), score)
        close(listed, pe.rescore(q, same.to("cpu"), candidates, score), compute)
        for ranking, scores, ids in (
            (pe.rerank(a, given, candidates.cuda(), 11, score), listed, candidates.cuda()),
            (pe.search(a, given, 11, score), pe.rescore(a, given, torch.arange(70).expand(9, 70).cuda(), score), None),
        ):
            rows = torch.arange(70, device="cuda").expand(9, 70) if ids is None else ids
            best = scores.sort(dim=1, descending=True).values[:, :11]
            torch.testing.assert_close(ranking.scores, best, rtol=0, atol=0)
            found = (rows[:, None] == ranking.ids[..., None]) & (scores[:, None] == ranking.scores[..., None])
            assert found.any(-1).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), PAIRS)
def test_gradients(name, q_kind, g_kind, dtype):
    results = []
    candidates = torch.from_numpy(np.random.default_rng(0).integers(-1, 12, (4, 9)))
    for device in ("cpu", "cuda"):
        q = make(q_kind, 4, 37, 1, dtype=dtype, library="torch").to(device)
        g = make(g_kind, 12, 37, 2, dtype=dtype, library="torch").to(device)
        for x in (*q.arrays, *g.arrays):
            x.requires_grad_()
        score = scored(name, q_kind)
        scores = pe.rescore(q, g, candidates.to(device), score)
        total = scores[candidates.to(device) >= 0].sum() + pe.pairwise(q, g, score).sum()
        total = total + pe.paired(q, g[:4], score).sum()
        total.backward()
        # A score need not use all that an item has.
        results.append([x.grad.cpu() for x in (*q.arrays, *g.arrays) if x.grad is not None])
    for on_cpu, found in zip(*results, strict=True):
        scale = max(1.0, float(on_cpu.abs().max()))
        assert float((found - on_cpu).abs().max()) <= (1e-4 if dtype == "float32" else 1e-10) * scale


DRAWN = [(name, *kinds) for name, *kinds in PAIRS if pe.scores.get(name).pair(*kinds).op.sampled]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("queries", "gallery"), [(67, 301), (1, 40), (300, 900)])
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), DRAWN)
def test_gradients_of_draws_of_all_pairs(name, q_kind, g_kind, queries, gallery, dtype):
    """Sizes that no tile divides, one row, and several tiles; gradients of both sides, of one, and of none.

    Weights of both signs cancel in sums of many pairs, down to a hundredth of what is added, whose size rounding errors
    have: that of the gradients with the weights' magnitudes. On an H200 they are at most 3.4e-6 and 1.3e-14 of it.
    """
    within = 1e-5 if dtype == "float32" else 1e-13
    for sides in ((0, 1), (0,), (1,), ()):
        results = []
        for device, signed in (("cpu", True), ("cpu", False), ("cuda", True)):
            items = [
                make(kind, n, 37, n, dtype=dtype, library="torch").to(device)
                for kind, n in ((q_kind, queries), (g_kind, gallery))
            ]
            leaves = [x.requires_grad_() for side in sides for x in items[side].arrays]
            scores = pe.pairwise(*items, scored(name, q_kind))
            weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype, device=device).reshape(scores.shape)
            weights[queries // 2, gallery // 2 :] = 0
            if leaves:
                (scores * (weights if signed else weights.abs())).sum().backward()
            results.append([scores.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)])
        for on_cpu, added, found in zip(*results, strict=True):
            assert float((found - on_cpu).abs().max()) <= within * float(added.abs().max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("queries", "gallery"), [(40, 67), (1, 33), (33, 1)])
@pytest.mark.parametrize("name", ["hib", "neg_sampled_l2"])
def test_draws_near_each_other_far_from_the_origin(name, queries, gallery, dtype):
    """Duplicates, some of variance 0, where products of rows leave no digit of distances."""
    q, g = (make("normal_diagonal", n, 20, n, dtype=dtype, library="torch") for n in (queries, gallery))
    far = 1e3 if dtype == "float32" else 1e6
    for d in (q, g):
        d.mu.add_(far)
        d.var[::3] = 0
    g.mu[: gallery // 2] = q.mu[0]
    a, b, score = on_gpu(q), on_gpu(g), scored(name, "normal_diagonal")
    found, want = pe.pairwise(a, b, score), pe.pairwise(q, g, score)
    # What differs is how draws are rounded, a few ulp of where they lie.
    off = 40 * torch.finfo(want.dtype).eps * far
    torch.testing.assert_close(found.cpu(), want, rtol=1e-5, atol=off)
    torch.testing.assert_close(
        found, pe.rescore(a, b, torch.arange(gallery, device="cuda").expand(queries, -1), score), rtol=1e-5, atol=off
    )


def test_order_of_ties_nan_and_padding():
    nan = torch.nan
    g = pe.Normal(torch.zeros(6, 3), torch.tensor([1.0, nan, 1, 0.5, nan, 1])[:, None].expand(6, 3))
    q = pe.Normal(torch.zeros(1, 3), torch.ones(1, 3))
    candidates = torch.tensor([[5, -1, 4, 2, 3, 1, 0]])
    for k in (1, 6, 9):
        want, found = pe.rerank(q, g, candidates, k), pe.rerank(on_gpu(q), on_gpu(g), candidates.cuda(), k)
        assert torch.equal(found.ids.cpu(), want.ids)
        whole, searched = pe.search(q, g, k), pe.search(on_gpu(q), on_gpu(g), k)
        assert torch.equal(searched.ids.cpu(), whole.ids)


def test_ids_out_of_range_are_nan_and_nothing_is_read():
    q = make("normal_diagonal", 2, 8, dtype="float32", library="torch").to("cuda")
    scores = pe.rescore(q, q, torch.tensor([[0, 2, 2**40], [-1, -2, 1]], device="cuda"))
    assert scores.isnan().tolist() == [[False, True, True], [False, True, False]]
    assert scores[1, 0] == -torch.inf


@pytest.mark.parametrize(("k", "width"), [(5, 3000), (1500, 2000), (1024, 5000)])
def test_long_lists(k, width):
    q, g = (make("normal_isotropic", n, 16, n, dtype="float32", library="torch") for n in (3, 6000))
    candidates = torch.stack([torch.randperm(6000)[:width] for _ in range(3)])
    a, b = on_gpu(q), on_gpu(g)
    for found, want in (
        (pe.rerank(a, b, candidates.cuda(), k), pe.rerank(q, g, candidates, k)),
        (pe.search(a, b, k), pe.search(q, g, k)),
    ):
        close(found.scores, want.scores, "float32")
        assert (found.ids.cpu() == want.ids).double().mean() > 0.99  # nearly equal scores may change places


@pytest.mark.parametrize(
    ("kind", "dtype", "dim", "k"),
    [("normal_isotropic", "float32", 512, 10), ("normal_diagonal", "float32", 128, 50), ("vmf", "float64", 600, 7)],
)
def test_shared_memory_beyond_48_kb(kind, dtype, dim, k):
    """Launches with exactly 48 KB beside what the kernels declare, and with more."""
    q, g = (on_gpu(make(kind, n, dim, n, dtype=dtype, library="torch")) for n in (20, 300))
    every = torch.arange(300, device="cuda").expand(20, 300)
    listed = pe.rescore(q, g, every)
    assert torch.equal(pe.search(q, g, k).scores, listed.sort(dim=1, descending=True).values[:, :k])
    close(pe.pairwise(q, g), listed.cpu(), dtype)


@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf"])
def test_search_by_products_in_small(kind):
    """The gallery is two chunks, small enough for compute-sanitizer."""
    q, g = (on_gpu(make(kind, n, 40, n, dtype="float32", library="torch")) for n in (9, 1200))
    by_all, by_sieve = (pe.search(q, g, 5, prune=prune) for prune in ("never", "always"))
    assert torch.equal(by_all.ids, by_sieve.ids)
    assert torch.equal(by_all.scores, by_sieve.scores)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "normal_isotropic") for name in ("mls", "llr", "ppk", "neg_kl", "cosine")]
    + [(name, "vmf") for name in ("mls", "ppk", "neg_kl")],
)
def test_products_rule_out_none_of_the_best(name, kind, dtype):
    """Galleries of random rows, and of near-duplicates that tf32 cannot tell apart."""
    q = on_gpu(make(kind, 200, 100, 1, dtype="float32", library="torch"))
    g = on_gpu(make(kind, 40_000, 100, 2, dtype=dtype, library="torch"))
    g.mu[10_000:20_000] = q.mu[0] + 1e-4 * torch.randn(10_000, 100, device="cuda").to(g.mu.dtype)
    g.arrays[1][10_000:20_000] = g.arrays[1][:1]
    for k in (1, 10, 500):
        by_all, by_sieve = (pe.search(q, g, k, scored(name, kind), prune=prune) for prune in ("never", "always"))
        assert torch.equal(by_all.ids, by_sieve.ids)
        torch.testing.assert_close(by_sieve.scores, by_all.scores, rtol=0, atol=0, equal_nan=True)


# -- torch -------------------------------------------------------------------------------------------------------------


def test_in_a_cuda_graph_draws_follow_the_seed():
    d = on_gpu(make("vmf", 100, 64, dtype="float32", library="torch"))
    q = on_gpu(make("vmf", 8, 64, 3, dtype="float32", library="torch"))
    seed = torch.zeros((), dtype=torch.int64, device="cuda")

    def work():
        return pe.sample(d, 3, seed=seed), *pe.search(q, d, 5), pe.special.log_ive(31.0, d.kappa)

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for value in (0, 5, 9):
        seed.fill_(value)
        graph.replay()
        for found, want in zip(captured, work(), strict=True):
            assert torch.equal(found, want)


def test_a_seed_on_the_cpu_is_refused():
    """The device would read the address of a seed in the CPU's memory."""
    d, seed = on_gpu(make("vmf", 3, 8, library="torch")), torch.tensor(5)
    expected = r": seed is a torch tensor on cpu, expected a torch tensor on cuda:0 like mu1?$"
    d.mu.requires_grad_()
    for call in (
        lambda: pe.sample(d, 2, seed=seed),
        lambda: pe.pairwise(d, d, pe.scores.sampled_cosine(seed=seed)),
        lambda: pe.search(d, d, 1, pe.scores.sampled_cosine(seed=seed)),
    ):
        with pytest.raises(ValueError, match=expected):
            call()


def test_two_threads():
    """Each thread has its own stream, and their kernels need different amounts of shared memory."""
    d = on_gpu(make("normal_isotropic", 3000, 500, dtype="float32", library="torch"))

    def found(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            ids = [pe.search(d[:40], d, k).ids for _ in range(20)]
            torch.cuda.current_stream().synchronize()
            return ids

    torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as threads:
        for k, results in zip((5, 30), threads.map(found, (5, 30)), strict=True):
            want = pe.search(d[:40], d, k).ids
            assert all(torch.equal(ids, want) for ids in results)


def test_two_streams():
    d = on_gpu(make("normal_diagonal", 20_000, 128, dtype="float32", library="torch"))
    want = pe.search(d[:64], d, 5)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for stream in streams * 3:
        with torch.cuda.stream(stream):
            found.append(pe.search(d[:64], d, 5))
    torch.cuda.synchronize()
    assert all(torch.equal(x.ids, want.ids) for x in found)


def test_compiles():
    q, g = (on_gpu(make("vmf", n, 32, n, dtype="float32", library="torch")) for n in (5, 9))

    def loss(mu, kappa):
        return pe.pairwise(pe.VonMisesFisher(mu, kappa), g).logsumexp(1).sum()

    compiled = torch.compile(loss, fullgraph=True)
    grads = []
    for function in (loss, compiled):
        mu, kappa = (x.clone().requires_grad_() for x in q.arrays)
        function(mu, kappa).backward()
        grads.append((mu.grad, kappa.grad))
    for found, want in zip(*grads, strict=True):
        torch.testing.assert_close(found, want)


def test_rankings_compile():
    q, g = (on_gpu(make("vmf", n, 32, n, dtype="float32", library="torch")) for n in (5, 9))
    candidates = torch.tensor([[0, 8, -1, 3]] * 5, device="cuda")

    def rankings(mu, kappa):
        queries = pe.VonMisesFisher(mu, kappa)
        return *pe.search(queries, g, 3), *pe.rerank(queries, g, candidates, 3)

    compiled = torch.compile(rankings, fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(compiled(*q.arrays), rankings(*q.arrays), strict=True))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself warns in forward mode
def test_hessians():
    q, g = (make("vmf", n, 3, n, library="torch") for n in (2, 4))

    def loss(mu, kappa, gallery):
        return pe.pairwise(pe.VonMisesFisher(mu, kappa), gallery).logsumexp(1).sum()

    want = torch.func.hessian(loss)(*q.arrays, g)
    close(torch.func.hessian(loss)(*on_gpu(q).arrays, on_gpu(g)), want)


def test_opcheck():
    x = torch.linspace(0.5, 5, 7, device="cuda", dtype=torch.float64)
    torch.library.opcheck(torch.ops.peaccel.log_ive.default, (torch.full((1,), 3.0, device="cuda").double(), x))
    mu, var = torch.randn(5, 4, device="cuda"), torch.rand(5, 4, device="cuda")
    args = mu, var, mu.clone(), var.clone(), mu.new_empty(0), None, True
    torch.library.opcheck(torch.ops.peaccel.mls_diagonal.default, args)
    given = "mls_diagonal", list(args[:5]), None, 0, 0
    torch.library.opcheck(torch.ops.peaccel.search.default, (*given, [], 2, "auto"))
    candidates = torch.zeros((5, 3), dtype=torch.int64, device="cuda")
    torch.library.opcheck(torch.ops.peaccel.rerank.default, (*given, candidates, 2))


def test_every_gpu_has_its_own_context():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    d = make("normal_diagonal", 500, 64, dtype="float32", library="torch")
    results = [pe.search(d.to(f"cuda:{i}"), d.to(f"cuda:{i}"), 3) for i in range(2)]
    assert torch.equal(results[0].ids.cpu(), results[1].ids.cpu())


def test_offsets_beyond_two_billion_elements():
    if torch.cuda.get_device_properties(0).total_memory < 40e9:
        pytest.skip("needs 40 GB of GPU memory")
    rows, dim = 2**31 // 128 + 1000, 128
    mu = torch.zeros(rows, dim, device="cuda")
    mu[-3:] = torch.randn(3, dim, device="cuda")
    g = pe.Normal(mu, torch.ones(rows, device="cuda"))
    q = pe.Normal(mu[-3:].clone(), torch.ones(3, device="cuda"))
    assert pe.search(q, g, 1).ids[:, 0].tolist() == [rows - 3, rows - 2, rows - 1]
    last = torch.arange(rows - 3, rows, device="cuda").expand(3, 3)
    assert torch.equal(pe.rescore(q, g, last), pe.rescore(q, g[-3:], torch.arange(3, device="cuda").expand(3, 3)))
    big = torch.full((2**31 + 64,), 3.0, device="cuda")
    assert float(pe.special.log_ive(3.0, big)[-1]) == pytest.approx(
        float(to_numpy(pe.special.log_ive(3.0, big[:1].cpu()))[0])
    )
