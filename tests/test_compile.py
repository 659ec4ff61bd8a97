"""torch.compile: all ops and a verb, without a graph break, for fixed and for changing sizes."""

import torch
from test_every_op import ELEMENTWISE, NUMBERS, PAIRS, has_rows, pair_inputs, score_of

import peaccel as pe

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
        extra1, extra2 = (x if has_rows(op, i) else x[:, 0] for i, x in enumerate((var1, var2)))
        shared = prior if op.name == "llr_diagonal" else prior[: len(NUMBERS.get(op.shared, []))]
        inputs = [mu1, extra1, mu2, extra2, shared]
        total = total + score_of(op, inputs, pairwise=True).tanh().sum() + score_of(op, inputs, rows).sigmoid().sum()
        extra = var1 if has_rows(op, 1) else var1[:, 0]
        total = total + score_of(op, [mu1, extra1, mu1.flip(0), extra.flip(0), shared]).tanh().sum()
    for op in ELEMENTWISE:
        if op.derivative is not None:
            total = total + op(4.0, var1).tanh().sum()
    return total


def all_inputs(size):
    generator = torch.Generator().manual_seed(size)
    mu1, mu2 = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (size, size + 1))
    mu1, mu2 = (x / x.norm(dim=1, keepdim=True) for x in (mu1, mu2))
    var1, var2, prior = (torch.rand(*s, generator=generator).double() + 0.5 for s in ((size, 5), (size + 1, 5), (5,)))
    return mu1, var1, mu2, var2, prior


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
            [kind(mu, extra) for mu, extra in zip((mu1, mu2), extras, strict=True)]
            for kind, extras in (
                (pe.Normal, (var1, var2)),
                (pe.Normal, (var1[:, 0], var2[:, 0])),
                (pe.VonMisesFisher, (var1[:, 0], var2[:, 0])),
                (pe.Scaled, (var1[:, 0], var2[:, 0])),
            )
        )
        scores = [pe.pairwise(*normals, name) for name in ("ppk:rho=0.3", "inclusion", "neg_kl:direction=symmetric")]
        scores += [pe.pairwise(*isotropic, name) for name in ("hib:a=2,b=1", "hib:variant=published,seed=3")]
        scores += [pe.pairwise(*vmf, name) for name in ("mls", "llr", "ppk", "neg_kl", "expected_cosine")]
        scores.append(pe.pairwise(*scaled, "scale_cosine:mu=0.3"))
        return sum(x.tanh().sum() for x in scores)

    compiled_equals_eager(loss, all_inputs)


def test_an_op_compiles_with_inductor():
    op = PAIRS[0]
    inputs = pair_inputs(op, library="torch", dtype="float32")
    torch._dynamo.reset()
    found = torch.compile(lambda *x: score_of(op, x, pairwise=True) * 2, fullgraph=True)(*inputs)
    assert torch.equal(found, score_of(op, inputs, pairwise=True) * 2)
