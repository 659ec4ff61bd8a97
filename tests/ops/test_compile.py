"""torch.compile: all ops and verbs, without a graph break, for fixed and for changing sizes."""

import pytest
import torch
from items import values
from test_every_op import ELEMENTWISE, NUMBERS, PAIRS, has_rows, pair_inputs, score_of
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import peaccel as pe
from peaccel.published.revisited import hib_drawn

# Compiling takes seconds, so that several ops go in one function: all ops once, then verbs, then other shapes.


def compiled_equals_eager(f, make_inputs, *, dynamic=None, sizes=(3,)):
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in sizes:
        results = []
        for g in (f, compiled):
            leaves = [x.requires_grad_() for x in make_inputs(size)]
            value = g(*leaves)
            results.append([value, *torch.autograd.grad(value, leaves, allow_unused=True)])
        for a, b in zip(*results, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def all_ops(mu1, var1, mu2, var2, prior):
    """Every op in every form, as one number."""
    rows = torch.arange(mu2.shape[0]).expand(mu1.shape[0], -1)
    total = mu1.new_zeros(())
    for op in PAIRS:
        uncertainty1, uncertainty2 = (x if has_rows(op, i) else x[:, 0] for i, x in enumerate((var1, var2)))
        shared = prior if op.name == "llr_diagonal" else prior[: len(NUMBERS.get(op.shared, []))]
        inputs = [mu1, uncertainty1, mu2, uncertainty2, shared]
        total = total + score_of(op, inputs, pairwise=True).tanh().sum() + score_of(op, inputs, rows).sigmoid().sum()
        uncertainty = var1 if has_rows(op, 1) else var1[:, 0]
        total = total + score_of(op, [mu1, uncertainty1, mu1.flip(0), uncertainty.flip(0), shared]).tanh().sum()
    for op in ELEMENTWISE:
        if op.derivative is not None:
            total = total + values(op, 4.0, var1).tanh().sum()
    return total


def all_inputs(size):
    generator = torch.Generator().manual_seed(size)
    mu1, mu2 = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (size, size + 1))
    mu1, mu2 = (x / x.norm(dim=1, keepdim=True) for x in (mu1, mu2))
    var1, var2, prior = (torch.rand(*s, generator=generator).double() + 0.5 for s in ((size, 5), (size + 1, 5), (5,)))
    return mu1, var1, mu2, var2, prior


@pytest.mark.slow
def test_all_ops_compile_without_a_graph_break_and_equal_eager():
    compiled_equals_eager(all_ops, all_inputs)


def test_all_ops_compile_for_any_size_at_once():
    compiled_equals_eager(all_ops, all_inputs, dynamic=True, sizes=(3, 6))


def test_a_verb_compiles_without_a_graph_break():
    def loss(mu1, var1, mu2, var2, prior):
        score = pe.scores.llr(prior_var=prior)
        return pe.pairwise(pe.Normal(mu1, var1), pe.Normal(mu2, var2), score).sum()

    compiled_equals_eager(loss, all_inputs)


def test_scores_with_parameters_compile_without_a_graph_break():
    def loss(mu1, var1, mu2, var2, prior):
        normals, isotropic, vmf, scaled = (
            [kind(mu, uncertainty) for mu, uncertainty in zip((mu1, mu2), uncertainties, strict=True)]
            for kind, uncertainties in (
                (pe.Normal, (var1, var2)),
                (pe.Normal, (var1[:, 0], var2[:, 0])),
                (pe.VonMisesFisher, (var1[:, 0], var2[:, 0])),
                (pe.Scaled, (var1[:, 0], var2[:, 0])),
            )
        )
        scores = [pe.pairwise(*normals, name) for name in ("ppk:rho=0.3", "inclusion", "neg_kl:direction=symmetric")]
        scores += [pe.pairwise(*isotropic, name) for name in ("hib:a=2,b=1", hib_drawn(seed=3))]
        scores += [pe.pairwise(*vmf, name) for name in ("mls", "llr", "ppk", "neg_kl", "expected_cosine")]
        scores.append(pe.pairwise(*scaled, "scale_cosine:mu=0.3"))
        return sum(x.tanh().sum() for x in scores)

    compiled_equals_eager(loss, all_inputs)


def test_an_op_and_a_ranking_compile_with_inductor():
    op = PAIRS[0]
    inputs = pair_inputs(op, library="torch", dtype="float32")
    q, g = pe.Normal(*inputs[:2]), pe.Normal(*inputs[2:4])

    def both(mu1, var1, *others):
        scores = score_of(op, [mu1, var1, *others], pairwise=True) * 2
        return scores, pe.rerank(pe.Normal(mu1, var1), g, torch.arange(4).expand(3, 4), 2)

    torch._dynamo.reset()
    scores, ranking = torch.compile(both, fullgraph=True)(*inputs)
    assert torch.equal(scores, score_of(op, inputs, pairwise=True) * 2)
    same(ranking, pe.search(q, g, 2))


# -- rankings ----------------------------------------------------------------------------------------------------------


def same(found, expected):
    """Rankings, to the last bit."""
    assert isinstance(found, pe.Ranking)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not found.scores.requires_grad


def items(size, seed):
    """Unit rows with a variance per dimension, float32, whose halves are like each other."""
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(size, 6, generator=generator))
    return mu, torch.rand(size, 6, generator=generator) + 0.5


# One case for each way to search: dimensions, panels, a shared row, draws, queries for which the gallery is not packed.
RANKED = {
    "mls": (pe.Normal, pe.Normal),
    "mls ": (lambda mu, var: pe.Normal(mu, var[:, 0]),) * 2,
    "llr:prior_var=0.5": (pe.Normal, pe.Normal),
    "hib:seed=3": (pe.Normal, pe.Normal),
    "cosine": (lambda mu, var: pe.VonMisesFisher(mu, var[:, 0]),) * 2,
    "neg_w2": (lambda mu, var: pe.Point(mu), lambda mu, var: pe.Normal(mu, var[:, 0])),
}


def rankings(name, gallery, k):
    """A function of queries (and candidates) to both rankings."""
    query, score = RANKED[name][0], name.strip()

    def both(mu, var, candidates):
        queries = query(mu, var)
        return pe.rerank(queries, gallery, candidates, k, score), pe.search(queries, gallery, k, score)

    return both


@pytest.mark.parametrize("name", RANKED)
def test_rankings_compile_once_for_any_size(name):
    gallery = RANKED[name][1](*items(9, 0))
    for given in (gallery, pe.prepare(gallery, name.strip())):
        f, backend = rankings(name, given, 4), CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
        counts = []
        for size in (3, 7):
            queries = [x.requires_grad_() for x in items(size, size)]
            candidates = torch.arange(size * 5).reshape(size, 5) % 10 - 1
            for found, expected in zip(compiled(*queries, candidates), f(*queries, candidates), strict=True):
                same(found, expected)
                assert found.scored is None
            counts.append(backend.frame_count)
        assert counts[0] == counts[1]


def test_a_ranking_compiles_once_for_any_k_and_with_a_score_in_training():
    def f(mu, var, k, prior_var):
        return pe.search(pe.Normal(mu, var), gallery, k, pe.scores.llr(prior_var=prior_var))

    gallery, prior_var = pe.Normal(*items(9, 0)), torch.tensor(0.5, requires_grad=True)
    backend = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    counts = []
    for k in (3, 5, 20):
        same(compiled(*items(4, 1), k, prior_var), f(*items(4, 1), k, prior_var))
        counts.append(backend.frame_count)
    assert counts[0] == counts[2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rankings_of_halves_compile(dtype):
    f = rankings("mls", pe.prepare(pe.Normal(*items(9, 0)), dtype=dtype), 4)
    arguments = *items(3, 1), torch.tensor([[0, 5, -1, 8]] * 3)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*arguments), f(*arguments), strict=True):
        same(found, expected)


def test_a_compiled_ranking_says_what_is_wrong_with_its_candidates():
    gallery = pe.Normal(*items(9, 0))
    torch._dynamo.reset()
    compiled = torch.compile(rankings("mls", gallery, 2), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"^mls_diagonal: candidates of query 1 hold id 9, expected -1"):
        compiled(*items(2, 1), torch.tensor([[0, 8], [9, 1]]))


# -- what is on a GPU, which is not here: tensors without memory ------------------------------------------------------


def on_a_gpu(mu1, var1, mu2, var2, candidates):
    """Every verb, `sample` and a special function."""
    q, g = pe.Normal(mu1, var1), pe.Normal(mu2, var2)
    vmf = pe.VonMisesFisher(mu1, var1[:, 0]), pe.VonMisesFisher(mu2, var2[:, 0])
    rankings = pe.rerank(q, g, candidates, 3), pe.search(q, g, 3), pe.search(*vmf, 3)
    scores = pe.paired(q, q), pe.pairwise(q, g, "llr:prior_var=0.5"), pe.rescore(*vmf, candidates, "neg_kl")
    drawn = pe.sample(q, 4), pe.sample(vmf[0], 4, seed=1), pe.pairwise(q, g, "hib")
    return *rankings[0], *rankings[1], *rankings[2], *scores, *drawn, pe.special.log_iv(2.0, var1)


def test_all_compiles_for_cuda_where_there_is_none():
    torch._dynamo.reset()
    with FakeTensorMode():
        arrays = [torch.ones(n, 6, device="cuda") for n in (5, 5, 9, 9)]
        candidates = torch.zeros(5, 4, dtype=torch.int64, device="cuda")
        found = torch.compile(on_a_gpu, fullgraph=True, backend="eager")(*arrays, candidates)
        assert {x.device.type for x in found} == {"cuda"}
        prepared = pe.prepare(pe.Normal(*arrays[2:]))
        found += torch.compile(
            lambda mu, var: pe.search(pe.Normal(mu, var), prepared, 3), fullgraph=True, backend="eager"
        )(*arrays[:2])
        shapes = [tuple(x.shape) for x in found]
    want = [(5, 3)] * 6 + [(5,), (5, 9), (5, 4), (4, 5, 6), (4, 5, 6), (5, 9), (5, 6)] + [(5, 3)] * 2
    assert shapes == want


# -- what torch.compile would trace past -------------------------------------------------------------------------------


def lost(way, g):
    """Forward-mode and batched derivatives, which torch.compile once silently turned into zeros."""

    def score(x):
        return pe.pairwise(pe.Normal(x[None], x.exp()[None]), g)[0].logsumexp(0)

    return {
        "jvp": lambda x: torch.func.jvp(score, (x,), (torch.ones_like(x),))[1],
        "hessian": lambda x: torch.func.hessian(score)(x),
        "vmap": lambda x: torch.func.grad(lambda x: torch.vmap(score)(torch.stack([x, 2 * x])).sum())(x),
    }[way]


@pytest.mark.parametrize("way", ["jvp", "hessian", "vmap"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself warns in forward mode
def test_derivatives_that_cannot_be_traced_are_not_lost(way):
    f, x = lost(way, pe.Normal(*items(4, 0))), torch.linspace(-1, 1, 6)
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match=f"torch.compile cannot trace {'vmap' if way == 'vmap' else 'forward mode'}"):
        torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="aot_eager")(x), f(x))


def test_a_second_width_is_compiled_too():
    """Whose number of dimensions is symbolic, and an order of Bessel functions with it."""

    def entropy(mu, kappa):
        d = pe.VonMisesFisher(mu, kappa)
        return pe.entropy(d) + pe.kl(d, d) + pe.log_prob(d, mu)

    torch._dynamo.reset()
    compiled = torch.compile(entropy, fullgraph=True, backend="eager")
    for dim in (6, 8, 11):
        given = torch.nn.functional.normalize(torch.randn(4, dim)), torch.rand(4)
        torch.testing.assert_close(compiled(*given), entropy(*given))
