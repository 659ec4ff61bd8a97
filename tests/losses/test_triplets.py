"""Losses of triplets against loops over them, the Bayesian one against listed triplets and draws; cancellation."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

import peaccel as pe
from peaccel.losses import triplets
from peaccel.losses._between import ItemPairs
from peaccel.losses.triplets import BayesianTriplet, Triplet, TripletRegression
from peaccel.published.bayesian_triplet_listing import FlippedBayesianTriplet

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3])
N, DIM = len(LABELS), 5
VALID = [
    (a, p, n)
    for a, p, n in itertools.product(range(N), repeat=3)
    if a != p and LABELS[a] == LABELS[p] and LABELS[a] != LABELS[n]
]
KINDS = ["isotropic", "diagonal", "vmf", "vmf matched"]


def items(kind, seed=0, n=N, dim=DIM):
    """Leaves of a batch, and the distribution of them."""
    rng = np.random.default_rng(seed)
    extra = rng.uniform(0.05, 0.8, (n, dim)) if kind == "diagonal" else rng.uniform(0.05, 0.8, n)
    leaves = [torch.tensor(x).requires_grad_() for x in (rng.normal(size=(n, dim)), extra)]
    if kind.startswith("vmf"):
        return leaves, pe.VonMisesFisher(torch.nn.functional.normalize(leaves[0]), 4 / leaves[1])
    return leaves, pe.Normal(*leaves)


def close(value, expected, inputs, rtol=1e-9):
    torch.testing.assert_close(value, expected, rtol=rtol, atol=0)
    found, wanted = (torch.autograd.grad(x, inputs, retain_graph=True) for x in (value, expected))
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-10)


def hinge(mu, a, p, n, margin):
    unit = mu / mu.norm(dim=1, keepdim=True)
    return (((unit[a] - unit[p]) ** 2).sum() - ((unit[a] - unit[n]) ** 2).sum() + margin).clamp(min=0)


@pytest.mark.parametrize("block", [1, triplets.BLOCK])
def test_triplet_by_loops(monkeypatch, block):
    monkeypatch.setattr(triplets, "BLOCK", block)
    leaves, d = items("isotropic")
    hinges = [hinge(leaves[0], *triplet, 0.3) for triplet in VALID]
    active = [x for x in hinges if x > 0]
    assert 0 < len(active) < len(VALID)
    close(Triplet(margin=0.3)(d, LABELS), torch.stack(hinges).mean(), leaves[:1])
    close(Triplet(margin=0.3, only_violating=True)(d, LABELS), torch.stack(active).mean(), leaves[:1])


@pytest.mark.parametrize("block", [1, triplets.BLOCK])
def test_triplets_by_lists_by_sorting_and_by_loops(monkeypatch, block):
    """Of distances that often tie with the margin: the operator of compiled functions, on the CPU and for CUDA."""
    monkeypatch.setattr(triplets, "BLOCK", block)
    squares = torch.randint(0, 4, (N, N), generator=torch.Generator().manual_seed(0)).double()
    weights = torch.zeros(N, N, dtype=torch.float64)
    violate = [(a, p, n) for a, p, n in VALID if squares[a, p] + 1 > squares[a, n]]
    assert 0 < len(violate) < len(VALID)
    for a, p, n in violate:
        weights[a, p] += 1
        weights[a, n] -= 1
    same, different = ItemPairs("Triplet", pe.Point(squares), LABELS).counts()
    by_sorting = partial(triplets._by_sorting, squares, same, different)
    by_counts = partial(triplets._by_sorting, squares, same.float(), different.float())
    for count in (partial(triplets.violating_triplets, squares, LABELS), by_sorting, by_counts):
        found = triplets.Violating(*count(1.0))
        torch.testing.assert_close(found.weights, weights, rtol=0, atol=0)
        assert (found.found, found.triplets) == (len(violate), len(VALID))
    monkeypatch.setattr(triplets, "SORTED", 0)
    assert all(map(torch.equal, triplets._violating(squares, LABELS, 1.0), by_sorting(1.0)))
    torch.library.opcheck(triplets.violating_triplets, (squares, LABELS, 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("only_violating", [False, True])
def test_triplets_in_blocks_are_those_of_one(monkeypatch, kind, only_violating):
    leaves, d = items(kind, n=14)
    labels = torch.arange(14) // 7
    losses = [BayesianTriplet(only_violating=only_violating, match_moments="matched" in kind)]
    losses += [TripletRegression()] * (kind == "isotropic")
    for loss in losses:
        expected = loss(d, labels)
        monkeypatch.setattr(triplets, "BLOCK", 1)  # of 84 pairs 14 together
        close(loss(d, labels), expected, leaves)
        with torch.no_grad():
            torch.testing.assert_close(loss(d, labels), expected, rtol=1e-12, atol=0)
        monkeypatch.undo()


@pytest.mark.parametrize(("labels", "which"), [([0, 1, 2], "different"), ([4, 4, 4], "equal")])
def test_triplet_compiled_refuses_labels_without_triplets(labels, which):
    loss, labels = torch.compile(Triplet(), fullgraph=True, backend="eager"), torch.tensor(labels)
    with pytest.raises(ValueError, match=f"^Triplet: labels are all {which}, expected at least"):
        loss(pe.Point(torch.eye(3)), labels)


def test_triplet_of_near_duplicates_in_float32():
    rng = np.random.default_rng(0)
    mu = torch.tensor(1 + 1e-3 * rng.normal(size=(N, 8)), dtype=torch.float32, requires_grad=True)
    wide = mu.detach().double().requires_grad_()
    expected = torch.stack([hinge(wide, *triplet, 0.0) for triplet in VALID]).mean()
    value = Triplet(margin=0.0)(pe.Point(mu), LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    (found,), (wanted,) = torch.autograd.grad(value, mu), torch.autograd.grad(expected, wide)
    assert (found.double() - wanted).abs().max() < 1e-6 * wanted.abs().max()


def test_triplet_regression_by_loops():
    leaves, d = items("isotropic")
    mu, var = leaves
    values = []
    for a, p, n in VALID:
        s = (var[a] + var[p] + var[n]) / 3
        values.append(hinge(mu, a, p, n, 0.3) / (2 * s) + s.log() / 2)
    close(TripletRegression(margin=0.3)(d, LABELS), torch.stack(values).mean(), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("loss", "bound"), [(BayesianTriplet, -0.2), (FlippedBayesianTriplet, 0.2)])
def test_bayesian_triplet_is_the_mean_of_listed_triplets(kind, loss, bound):
    leaves, d = items(kind)
    options = {"margin": 0.2, "match_moments": kind == "vmf matched"}
    a, p, n = (d[list(rows)] for rows in zip(*VALID, strict=True))
    listed = -pe.triplet_probability(a, p, n, log=True, **options | {"margin": -bound})
    close(loss(**options)(d, LABELS), listed.mean(), leaves)
    violating = ((a.mu - p.mu) ** 2).sum(1) - ((a.mu - n.mu) ** 2).sum(1) > bound
    assert 0 < violating.sum() < len(VALID)
    close(loss(only_violating=True, **options)(d, LABELS), listed[violating].mean(), leaves)


def test_where_triplets_hold_the_variance_of_a_far_positive_falls_most():
    """It counts as distance to the anchor: why a confidence learned of all triplets may be upside down."""
    mu, labels = torch.zeros(6, 32, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    mu[1, 0], mu[2, 0], mu[3:, 1] = 0.2, 1.0, 2.0
    logs = torch.full((6,), math.log(0.02), dtype=torch.float64, requires_grad=True)
    d = pe.Normal(mu, logs.exp())
    (pull,) = torch.autograd.grad(BayesianTriplet(margin=0.0)(d, labels), logs)
    assert pull[2] > pull[0] > pull[1] > pull[3] > 0 and pull[2] > 5 * pull[1]
    assert (pe.triplet_probability(d[[1]], d[[2]], d[[3]]) > 0.99).all()


def equation_12(a, p, n):
    """The main paper's variance of tau."""
    (ma, va), (mp, vp), (mn, vn) = ((d.mu, d.var[:, None]) for d in (a, p, n))
    half = vp * (vp + 2 * mp**2) + vn * (vn + 2 * mn**2) - 4 * va * mp * mn
    half = half - 2 * ma * (ma * (mp**2 + mn**2) - 2 * mp * vp - 2 * mn * vn)
    return 2 * (half + 2 * (va + ma**2) * ((vp + mp**2) + (vn + mn**2))).sum(1)


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "vmf matched"])
def test_moments_are_those_of_draws_and_not_equation_12(kind):
    # Two triplets: of items 0 and 1 either is the anchor.
    _, d = items(kind, seed=3, n=3, dim=16)
    d, count = d.detach(), 200_000
    draws = pe.sample(d, count, seed=1)
    losses, errors = [], []
    for a, p in ((0, 1), (1, 0)):
        tau = ((draws[:, a] - draws[:, p]) ** 2).sum(1) - ((draws[:, a] - draws[:, 2]) ** 2).sum(1)
        z = -(tau.mean() / tau.std()).item()
        losses.append(-stats.norm.logcdf(z))
        errors.append(5 * math.sqrt((1 + z * z) / count) * math.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z)))
        assert -math.log((tau < 0).double().mean()) == pytest.approx(losses[-1], abs=0.05)  # near normal it is
    value = BayesianTriplet(match_moments=kind == "vmf matched")(d, torch.tensor([0, 0, 1])).item()
    assert abs(value - np.mean(losses)) < np.mean(errors)
    if kind == "isotropic":
        a, p, n = d[[0, 1]], d[[1, 0]], d[[2, 2]]
        mean = ((a.mu - p.mu) ** 2 - (a.mu - n.mu) ** 2).sum(1) + 16 * (p.var - n.var)
        wrong = -torch.special.log_ndtr(-mean / equation_12(a, p, n).sqrt()).mean().item()
        assert not abs(wrong - np.mean(losses)) < np.mean(errors)  # nan, or far off


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
@pytest.mark.parametrize("far", [1.0, 100.0])
def test_nothing_cancels_of_near_duplicates_in_float32(kind, far):
    rng = np.random.default_rng(0)
    mu = far + 1e-2 * rng.normal(size=(N, 8))
    d = pe.Normal(
        *(torch.tensor(x, dtype=torch.float32) for x in (mu, np.full((N, 8)[: 1 + (kind != "isotropic")], 1e-6)))
    )
    wide = d.to(torch.float64)
    # tau's moments by differences of float64, dimension by dimension.
    a, p, n = (wide[list(rows)] for rows in zip(*VALID, strict=True))
    exact = -pe.triplet_probability(a, p, n, log=True).mean().item()
    assert BayesianTriplet()(d, LABELS).item() == pytest.approx(exact, rel=1e-6)
    assert BayesianTriplet()(wide, LABELS).item() == pytest.approx(exact, rel=1e-9)


def test_gradients_do_not_vanish_far_from_holding():
    mu = torch.tensor([[0.0, 0], [50, 0], [1, 0]], requires_grad=True)
    var = torch.full((3,), 0.01, requires_grad=True)
    loss = BayesianTriplet()(pe.Normal(mu, var), torch.tensor([0, 0, 1]))
    loss.backward()
    assert loss.item() > 1000 and (mu.grad[:, 0] != 0).all() and (var.grad < 0).all()


@pytest.mark.parametrize("loss", [Triplet(only_violating=True), BayesianTriplet(only_violating=True)])
def test_no_violating_triplet_is_a_loss_of_0_with_gradient(loss):
    mu = torch.tensor([[1.0, 0], [1, 0.1], [-1, 0], [-1, 0.1]], requires_grad=True)
    value = loss(pe.Normal(mu, torch.ones(4)), torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0 and (mu.grad == 0).all()


@pytest.mark.parametrize(("margin", "grown"), [(0.0, False), (0.0, True), (0.3, True)])
def test_of_violating_triplets_alone_one_point_is_the_best_there_is(margin, grown):
    """Shrinking all distances, or growing all variances, lowers their loss to log 2 and raises that of all triplets."""
    rng, labels = np.random.default_rng(0), torch.arange(4).repeat_interleave(4)
    mu = torch.tensor(rng.normal(size=(4, 8))[labels.numpy()] + 0.6 * rng.normal(size=(16, 8)), requires_grad=True)
    var = torch.full((16,), 0.05, dtype=torch.float64)

    def losses(**options):
        loss = BayesianTriplet(margin=margin, **options)
        shrunk = [pe.Normal(mu, var / x**2) if grown else pe.Normal(x * mu, var) for x in (1, 0.5, 0.1, 0.01)]
        return [loss(d, labels).item() for d in shrunk]

    alone, every = losses(only_violating=True), losses()
    assert alone == sorted(alone, reverse=True) and alone[-1] == pytest.approx(math.log(2), abs=0.01)
    assert every == sorted(every) and every[-1] == pytest.approx(math.log(2), abs=0.01)
    point = BayesianTriplet(only_violating=True)(pe.Normal(1e-6 * mu, var), labels)
    assert torch.autograd.grad(point, mu)[0].abs().max() < 1e-10


def test_bad_settings_and_kinds_are_named():
    with pytest.raises(ValueError, match=r"^Triplet: margin is -1, expected a number of at least 0$"):
        Triplet(margin=-1)
    with pytest.raises(ValueError, match=r"^TripletRegression: margin is -1, expected"):
        TripletRegression(margin=-1)
    with pytest.raises(TypeError, match=r"^TripletRegression: d is Normal.*, expected normal_isotropic$"):
        TripletRegression()(items("diagonal")[1], LABELS)
    with pytest.raises(TypeError, match=r"^BayesianTriplet: d is Normal.*, expected vmf$"):
        BayesianTriplet(match_moments=True)(items("isotropic")[1], LABELS)
    with pytest.raises(TypeError, match=r"^BayesianTriplet: d is Point.*, expected normal_isotropic or"):
        BayesianTriplet()(pe.Point(torch.randn(N, DIM)), LABELS)
