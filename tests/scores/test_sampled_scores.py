"""Scores of draws: draws, verbs, gradients, closed forms, seeds, bad input."""

import itertools

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, assert_ranking, build, by_verb, draws, expected_of_draws, make, to_numpy
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import ncx2

import peaccel as pe
from peaccel.ops import sample, samplers
from peaccel.published.non_isotropic import el_nivmf_paper, el_nivmf_published, nivmf_paper, nivmf_published
from peaccel.published.revisited import hib_drawn
from peaccel.scores import hib, neg_sampled_l2, sampled_cosine

DRAWN = (hib, hib_drawn, sampled_cosine, neg_sampled_l2, pe.scores.el_nivmf, el_nivmf_paper, el_nivmf_published)
PAIRS = [pytest.param(s, q, g, id=f"{s.name}-{q}-{g}") for s in DRAWN for q, g in s.pairs if s.pair(q, g).op.draws]
each_pair = pytest.mark.parametrize(("score", "q_kind", "g_kind"), PAIRS)


def score_of(name, **params):
    return pe.scores.get(name)(**params)


# -- values ------------------------------------------------------------------------------------------------------------


@each_pair
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_are_those_of_the_samplers_draws(score, q_kind, g_kind, dtype):
    for dim, n in itertools.product((2, 3, 17, 128), (1, 3, 8)):
        score = score(n=n, seed=11)
        q, g = make(q_kind, 3, dim, 1, dtype=dtype), make(g_kind, 4, dim, 2, dtype=dtype)
        value, size = expected_of_draws(score, q, g, dtype)
        # Two sums of D terms are rounded: a length, and the inner product that is divided by it.
        bound = (4 + dim / 16) * EPS[dtype] * size + 1e-14 * dim
        assert (abs(pe.pairwise(q, g, score) - value) <= bound).all(), (dim, n)


@each_pair
def test_every_verb_thread_and_split_gives_the_same_bits(score, q_kind, g_kind):
    score = score(seed=2**63 - 1)
    q, g = make(q_kind, 5, 19, 1, dtype="float32"), make(g_kind, 150, 19, 2, dtype="float32")
    results = []
    for threads in (1, 2, 3):
        pe.set_num_threads(threads)
        found = by_verb(q, g, score) | {"prepared": by_verb(q, g, score, pe.prepare(g, score))["search"]}
        results += found.values()
    for scores in results:
        np.testing.assert_array_equal(scores, results[0])
    order = np.lexsort((np.broadcast_to(np.arange(150), (5, 150)), -results[0]), axis=1)[:, :7]
    assert_ranking(pe.search(q, g, 7, score), (np.take_along_axis(results[0], order, 1), order))


def test_sides_and_seeds_draw_apart_and_one_object_on_both_sides_is_two():
    d = make("normal_isotropic", 4, 8)
    scores = {seed: pe.pairwise(d, d, score_of("neg_sampled_l2", seed=seed)) for seed in (1, 2)}
    assert (scores[1] != scores[2]).all() and (np.diag(scores[1]) < 0).all()
    same = pe.Normal(d.mu.copy(), d.var.copy())
    np.testing.assert_array_equal(scores[1], pe.pairwise(d, same, score_of("neg_sampled_l2", seed=1)))


@pytest.mark.usefixtures("unlooked")
def test_variances_of_zero_are_points_and_of_less_are_nan():
    mu = make("point", 4, 8).mu
    for name, exact in (("sampled_cosine", "cosine"), ("neg_sampled_l2", "neg_sq_l2")):
        for items in (pe.Normal(mu, np.zeros(4)), pe.Point(mu)):
            found = pe.pairwise(items, items, score_of(name, seed=1))
            found = found if name == "sampled_cosine" else -(found**2)
            np.testing.assert_allclose(found, pe.pairwise(items, items, exact), atol=1e-12)
    for bad in (-1.0, np.nan):
        spoiled = pe.Normal(mu, np.array([1.0, bad, 1.0, 1.0]))
        for name in ("hib", "sampled_cosine", "neg_sampled_l2"):
            found = pe.pairwise(spoiled, spoiled, score_of(name, seed=1))
            assert np.isnan(found[1]).all() and np.isnan(found[:, 1]).all() and np.isfinite(found[2:, 2:]).all()


# -- gradients ---------------------------------------------------------------------------------------------------------


def by_torch(name, params, q, g):
    """The score [Q, G] by autograd through the samplers' own draws."""
    z1, z2 = (
        torch.stack([d.mu] * params["n"])
        if d.kind in ("point", "nivmf")
        else sample(
            samplers.sample_vmf if d.kind == "vmf" else samplers.sample_normal,
            *(d.mu, d.arrays[1], torch.tensor(params["seed"]), params["n"], 0, samplers.STREAMS[side]),
        )
        for d, side in ((q, "query"), (g, "gallery"))
    )
    if name.startswith("el_nivmf"):
        op = getattr(pe.ops.sampled_scores, name.removeprefix("el_"))
        # The published code does not multiply draws by K.
        z = z1[:, :, None] / g.kappa if name == "el_nivmf_published" else z1[:, :, None]
        return op.formula(z, None, g.mu, g.kappa, None).logsumexp(0) - np.log(params["n"])
    z1, z2 = z1[:, None, :, None], z2[None, :, None]
    if name == "sampled_cosine":
        return torch.nn.functional.cosine_similarity(z1, z2, -1).mean((0, 1))
    distance = ((z1 - z2) ** 2).sum(-1).sqrt()
    if name == "neg_sampled_l2":
        return -distance.mean((0, 1))
    matches = torch.nn.functional.logsigmoid(params["b"] - params["a"] * distance).flatten(0, 1)
    return matches.logsumexp(0) - 2 * np.log(params["n"])


@each_pair
@pytest.mark.parametrize("form", ["paired", "pairwise", "rescore"])
def test_gradients_are_those_through_the_samplers(score, q_kind, g_kind, form):
    q, g = (make(kind, 9, 17, i, library="torch") for i, kind in ((1, q_kind), (2, g_kind)))
    leaves = [x.requires_grad_() for x in (*q.arrays, *g.arrays)]
    params = {"n": 10, "seed": 5}
    if "a" in score.params:
        params |= {key: torch.tensor(x, dtype=torch.float64, requires_grad=True) for key, x in (("a", 0.6), ("b", 1.5))}
        leaves += [params["a"], params["b"]]
    score, ids = score(**params), torch.arange(27).reshape(9, 3) % 9
    call = {"paired": pe.paired, "pairwise": pe.pairwise, "rescore": lambda q, g, s: pe.rescore(q, g, ids, s)}[form]
    every = by_torch(score.name, params, q, g)
    expected = {"paired": every.diagonal(), "pairwise": every, "rescore": every.gather(1, ids)}[form]
    found = call(q, g, score)
    weights = torch.linspace(-1, 2, found.numel(), dtype=torch.float64).reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        assert (a - b).abs().max() <= 1e-11 * b.abs().max() + 1e-12


@pytest.mark.parametrize(("a", "b", "distance", "s"), [
    *itertools.product((0.4, -2.0), (1.5,), (0.0, 0.3, 30.0, 1e4), (0.2, 5.0, 1e-8)),
    *((a, b, 3.0, 2.0) for a in (50.0, 1e3) for b in (0.0, 100.0)),
])  # fmt: skip
@pytest.mark.parametrize("dim", [1, 2, 17, 300])
def test_gradients_of_the_exact_match_probability(dim, a, b, distance, s):
    """They agree with central differences where the score is smooth, also in the tail, where another form is used."""
    direction = torch.ones(1, dim, dtype=torch.float64) / dim**0.5

    def f(a, b, distance, v):
        zero = torch.zeros_like(direction)
        score = pe.scores.hib(a=a, b=b)
        return pe.paired(pe.Normal(distance * direction, v[None]), pe.Normal(zero, v[None]), score)[0]

    at = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (a, b, distance, s / 2)]
    found = torch.autograd.grad(f(*at), at)
    for i, gradient in enumerate(found):
        if i == 2 and distance == 0:
            continue  # the score is even in the distance
        step = 1e-4 * max(abs(at[i].item()), 1e-3 if i < 2 else 0)
        moved = [[x + step * sign * (i == j) for j, x in enumerate(at)] for sign in (-2, -1, 1, 2)]
        values = [f(*x).item() for x in moved]
        slope = (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * step)
        rounding = 1e-12 * max(1, abs(values[0])) / step
        assert abs(gradient - slope) <= 1e-6 * abs(slope) + rounding, (i, float(gradient), slope)


def test_compile_and_func_and_a_second_derivative():
    q, g = (make("normal_diagonal", 3, 6, i, library="torch") for i in (1, 2))
    score = score_of("hib", seed=torch.tensor(4))

    def f(mu, var):
        return pe.pairwise(pe.Normal(mu, var), g, score).sum()

    leaves = [x.clone().requires_grad_() for x in q.arrays]
    expected = torch.autograd.grad(f(*leaves), leaves)
    for found in (
        torch.func.grad(f, (0, 1))(*q.arrays),
        torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(*leaves), leaves),
    ):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^peaccel::hib_sampled can be differentiated once, not twice$"):
        torch.autograd.grad(first[0].sum(), leaves)


# -- closed forms ------------------------------------------------------------------------------------------------------


def test_draws_converge_to_the_closed_forms():
    q, g = make("vmf", 5, 8, 1), make("vmf", 6, 8, 2)
    # Deviations of one pair's mean, in standard errors of n = 1024 draws of each side, are below 5.
    for kinds, sampled, exact in (
        ((q, g), "sampled_cosine", "expected_cosine"),
        ((make("normal_isotropic", 5, 8, 1), make("normal_isotropic", 6, 8, 2)), "sampled_cosine", "expected_cosine"),
        ((make("normal_isotropic", 5, 8, 1), make("normal_isotropic", 6, 8, 2)), hib_drawn, "hib"),
    ):
        found = pe.pairwise(*kinds, pe.scores.get(sampled)(n=1024, seed=1))
        assert abs(found - pe.pairwise(*kinds, exact)).max() < 0.1


def composite(dim, far, steep, b):
    """log E sigmoid(b - steep t), t non-central chi, by Gauss-Legendre on many intervals of scipy's density."""
    top = np.sqrt(far**2 + dim) + 12
    turn = b / steep + np.arange(-60, 61) / abs(steep)
    edges = np.unique(np.clip(np.concatenate([np.linspace(0, top, 100), np.geomspace(1e-9, top, 100), turn]), 0, top))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    t = edges[:-1, None] + half * (nodes + 1)
    log_f = ncx2.logpdf(t * t, dim, far**2) + np.log(2 * t)
    logs = log_f + reference.log_sigmoid(b - steep * t)
    return logs.max() + np.log((half * weights * np.exp(logs - logs.max())).sum())


@pytest.mark.parametrize("dim", [1, 2, 3, 17, 128])
def test_the_exact_match_probability_against_adaptive_quadrature(dim):
    for far, steep, turn in itertools.product((0.5, 3.0, 12.0), (0.01, 1.0, 20.0, -300.0), (0.0, 0.2, 1.0)):
        b = turn * steep * np.sqrt(far**2 + dim)
        mu = np.zeros((1, dim))
        mu[0, 0] = 2 * far
        found = pe.paired(pe.Normal(mu, np.ones(1)), pe.Normal(0 * mu, 3 * np.ones(1)), pe.scores.hib(a=steep / 2, b=b))
        expected = composite(dim, far, steep, b)
        assert abs(found[0] - expected) <= 1e-9 * max(1, abs(expected)), (far, steep, turn)


def test_the_exact_match_probability_at_its_limits():
    mu = np.array([[0.0, 3.0], [0.0, 3.0], [1e5, 0.0], [0.0, 0.0]])
    var = np.array([0.0, 1e-14, 1e-300, 1e12])
    found = pe.paired(pe.Normal(mu, var), pe.Point(np.zeros((4, 2))), pe.scores.hib(a=2.0, b=1.0))
    exact = reference.log_sigmoid(1 - 2 * np.array([3.0, 3.0, 1e5]))
    np.testing.assert_allclose(found[:3], exact, rtol=1e-12)
    # Far spread: the integral of r sigmoid(1 - 2 r) dr / var, a dilogarithm.
    integral = quad(lambda r: r / (1 + np.exp(2 * r - 1)), 0, 40, epsabs=0, epsrel=1e-12)[0]
    np.testing.assert_allclose(found[3], np.log(integral / 1e12), rtol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 512])
def test_match_probability_where_the_sigmoid_is_a_spike(dim):
    """A variance so large that the density is constant where the sigmoid is not 0."""
    log_area = np.log(2) + dim / 2 * np.log(np.pi) - gammaln(dim / 2)

    def log_radial(r):
        return (dim - 1) * np.log(r / dim) - np.logaddexp(0, r)

    log_integral = np.log(quad(lambda r: np.exp(log_radial(r)), 0, 6 * dim + 100, limit=500, points=[dim], epsabs=0)[0])
    log_integral += (dim - 1) * np.log(dim)
    for distance in (1e-8, 1.0, 30.0):
        mu = np.zeros((9, dim))
        mu[:, 0] = distance
        var = 10.0 ** np.arange(16, 34, 2)
        found = pe.paired(pe.Normal(mu, var), pe.Normal(0 * mu, np.full(9, 1e-3)), "hib")
        np.testing.assert_allclose(
            found, log_integral + log_area - dim / 2 * np.log(2 * np.pi * var), rtol=3e-14, atol=2e-12
        )


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_first_axis_stands_for_an_item_of_zeros(library):
    """Its score was NaN, and with it the loss of all others; its gradient is 0."""
    give = np.asarray if library == "numpy" else torch.tensor
    mu, axis = np.array([[0.0, 0, 0], [0.6, 0, 0.8]]), np.array([[1.0, 0, 0], [0.6, 0, 0.8]])
    kappa = np.array([[5.0, 20, 3], [2, 2, 9]])
    found, expected = (pe.NonIsotropicVonMisesFisher(give(x), give(kappa)) for x in (mu, axis))
    both = [pe.Point(give(x)) for x in (mu, axis)], [pe.VonMisesFisher(give(x), give([2.0, 3])) for x in (mu, axis)]
    for zeros, at_axis in both:
        scores = to_numpy(pe.pairwise(zeros, found, "nivmf"))
        assert np.isfinite(scores).all() and (scores == to_numpy(pe.pairwise(at_axis, expected, "nivmf"))).all()
        assert (to_numpy(pe.search(zeros, found, 2, "nivmf").scores) == -np.sort(-scores)).all()
    drawn = [to_numpy(pe.pairwise(at_axis, g, "el_nivmf:seed=1")) for g in (found, expected)]
    assert np.isfinite(drawn[0]).all() and (drawn[0] == drawn[1]).all()
    x = torch.tensor(mu, requires_grad=True)
    g = pe.NonIsotropicVonMisesFisher(torch.tensor(mu), torch.tensor(kappa))
    pe.pairwise(pe.Point(x), g, "nivmf").sum().backward()
    assert (x.grad[0] == 0).all() and x.grad.isfinite().all() and x.grad[1].any()


def test_nivmf_densities_integrate_to_one_and_with_equal_kappas_are_vmf():
    nodes, weights = np.polynomial.legendre.leggauss(300)
    angle = np.arange(600) * np.pi / 300
    rim = np.sqrt(1 - nodes**2)[:, None]
    z = np.stack([rim * np.cos(angle), rim * np.sin(angle), nodes[:, None] + 0 * angle], -1).reshape(-1, 3)
    area = np.repeat(weights * np.pi / 300, 600)
    g = make("nivmf", 4, 3, 2)
    np.testing.assert_allclose(area @ np.exp(pe.pairwise(pe.Point(5 * z), g, "nivmf")), 1, rtol=1e-10)
    kappa = np.array([0.5, 4.0, 60.0])
    mu, x = make("vmf", 3, 12, 1).mu, make("vmf", 5, 12, 2)
    same = pe.NonIsotropicVonMisesFisher(mu, np.repeat(kappa[:, None], 12, 1))
    density = pe.special.vmf_log_norm(12, kappa) + kappa * (x.mu @ mu.T)
    np.testing.assert_allclose(pe.pairwise(x, same, "nivmf"), density, atol=1e-11)
    exact = pe.pairwise(x, pe.VonMisesFisher(mu, kappa), "mls")
    assert abs(pe.pairwise(x, same, "el_nivmf:n=1024,seed=1") - exact)[:, :2].max() < 0.3
    np.testing.assert_allclose(pe.pairwise(x, same, nivmf_paper), density, atol=1e-10)
    assert abs(pe.pairwise(x, same, nivmf_published) - density - 11 * np.log(kappa)).max() < 1e-10


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_int_is_reproducible_and_none_is_fresh(library):
    q, g = make("vmf", 3, 6, 1, library=library), make("nivmf", 4, 6, 2, library=library)
    for score in ("el_nivmf:seed=7", pe.scores.el_nivmf(seed=np.int64(7))):
        np.testing.assert_array_equal(pe.pairwise(q, g, score), pe.pairwise(q, g, score))
    prepared = pe.prepare(g, "el_nivmf")
    assert (to_numpy(pe.pairwise(q, prepared, "el_nivmf")) != to_numpy(pe.pairwise(q, prepared, "el_nivmf"))).all()


def test_torch_draws_its_seed_from_torchs_generator():
    q, g = make("vmf", 3, 6, 1, library="torch"), make("vmf", 4, 6, 2, library="torch")
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append([pe.pairwise(q, g, "sampled_cosine"), pe.pairwise(q, g, "sampled_cosine")])
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert not torch.equal(*found[0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_generator_gives_each_call_a_seed_of_its_own(library):
    q = make("normal_diagonal", 3, 4, library=library)
    found = []
    for _ in range(2):
        seed = np.random.default_rng(7) if library == "numpy" else torch.Generator().manual_seed(7)
        score = pe.scores.sampled_cosine(seed=seed)
        gallery = pe.prepare(q, score)
        found.append([to_numpy(pe.search(q, given, 3, score).scores) for given in (q, gallery, gallery)])
    np.testing.assert_array_equal(*found)
    assert len({x.tobytes() for x in found[0]}) == 3


def test_a_batch_draws_what_the_samplers_draw_for_its_rows():
    q = build("normal_isotropic", np.zeros((2, 5)), np.ones(2))
    z1, z2 = (draws(q, 4, 9, side, "float64") for side in ("query", "gallery"))
    assert (z1 != z2).all() and (z1[:, 0] != z1[:, 1]).all()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make_score", "error", "message"), [
    (lambda: pe.scores.hib(n=0), ValueError, "hib: n is 0, expected 1 .. 1024"),
    (lambda: pe.scores.hib(n=1025), ValueError, "hib: n is 1025, expected 1 .. 1024"),
    (lambda: pe.scores.hib(n=2.5), TypeError, "hib: n must be an integer, got float"),
    (lambda: pe.scores.hib(n=None), TypeError, "hib: n must be an integer, got NoneType"),
    (lambda: pe.scores.hib(seed=-1), ValueError, "hib: seed is -1, expected 0 .. 9223372036854775807"),
    (lambda: pe.scores.get("hib:n=2.5"), ValueError, "score 'hib:n=2.5': n must be an integer, got '2.5'"),
    (lambda: pe.scores.get("el_nivmf:m=3"), ValueError, "el_nivmf: unknown parameter 'm'; expected one of n, seed"),
])  # fmt: skip
def test_parameters_out_of_range_are_one_line(make_score, error, message):
    with pytest.raises(error) as raised:
        make_score()
    assert str(raised.value) == message


def test_what_only_the_call_can_see_is_one_line():
    q = make("normal_diagonal", 2, 3)
    for params, message in (
        (
            {"seed": torch.tensor(1.5)},
            "hib: seed must be an integer or an int64 tensor of shape (), got float32 of shape ()",
        ),
        ({"a": np.ones(3)}, "hib: a must be a number, got shape (3,)"),
        ({"b": None}, "hib: b must be a number, got None"),
    ):
        with pytest.raises(ValueError) as raised:
            pe.pairwise(q, q, pe.scores.hib(**params))
        assert str(raised.value) == message
