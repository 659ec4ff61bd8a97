"""Losses over pairs against the papers' formulas, written out pair by pair; what is drawn; settings."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import peaccel as pe
from peaccel._utils.seeds import folded
from peaccel.losses import _batch
from peaccel.losses.likelihood import NegativeMLS
from peaccel.losses.matches import HIB
from peaccel.losses.nce import ScoreNCE
from peaccel.losses.pairs import Contrastive, MarginLoss, MultiSimilarity
from peaccel.published.revisited import DrawnHIB, SelfPairedMLS

LABELS = [0, 1, 0, 2, 1, 0, 3, 1]
N, DIM = len(LABELS), 3  # in three dimensions Bessel functions are elementary
PAIRS = list(itertools.product(range(N), repeat=2))
SAME = [(i, j) for i, j in PAIRS if i != j and LABELS[i] == LABELS[j]]
SELF = [(i, i) for i in range(N)]
DIFFERENT = [(i, j) for i, j in PAIRS if LABELS[i] != LABELS[j]]


def mean(values):
    return torch.stack(values).mean()


def mls(kind, i, j, mu, extra):
    if kind == "vmf":
        return log_c(extra[i]) + log_c(extra[j]) - log_c((extra[i] * mu[i] + extra[j] * mu[j]).norm())
    s = (extra[i] + extra[j]).expand(DIM)
    return -0.5 * ((mu[i] - mu[j]) ** 2 / s + s.log() + math.log(2 * math.pi)).sum()


def log_c(kappa):
    return (kappa / (4 * math.pi * kappa.sinh())).log()


def negative_mls(kind, pairs):
    return lambda loss, mu, extra: -mean([mls(kind, i, j, mu, extra) for i, j in pairs])


def match(loss, i, j, mu, var):
    """E sigmoid(b - a |z_i - z_j|) by the density of the distance r of isotropic normals, and E sigmoid(a r - b)."""
    s, gap = (var[i] + var[j]).sqrt(), (mu[i] - mu[j]).norm()
    r = torch.linspace(1e-6, 20, 20_001, dtype=torch.float64)
    length = gap / s
    density = r / length * (torch.exp(-((r - length) ** 2) / 2) - torch.exp(-((r + length) ** 2) / 2))
    logit = loss.b.double() - loss.log_a.double().exp() * s * r
    step = (r[1] - r[0]) / math.sqrt(2 * math.pi)
    return (density * logit.sigmoid()).sum() * step, (density * (-logit).sigmoid()).sum() * step


def hib(loss, mu, var):
    matched = [-match(loss, i, j, mu, var)[0].log() for i, j in SAME]
    return (mean(matched) + mean([-match(loss, i, j, mu, var)[1].log() for i, j in DIFFERENT])) / 2


def angle(mu, i, j):
    return (mu[i] * mu[j]).sum() / (mu[i].norm() * mu[j].norm())


def distance(mu, i, j):
    return (mu[i] / mu[i].norm() - mu[j] / mu[j].norm()).norm()


def contrastive(loss, mu, extra):
    near = mean([(distance(mu, i, j) - 0.3).clamp(min=0) for i, j in SAME])
    return near + mean([(1.2 - distance(mu, i, j)).clamp(min=0) for i, j in DIFFERENT])


def multi_similarity(loss, mu, extra):
    total = torch.zeros(())
    for i in range(N):
        own = [angle(mu, i, j) for k, j in SAME if k == i]
        other = [angle(mu, i, j) for k, j in DIFFERENT if k == i]
        if not own:
            continue
        kept_own = [s for s in own if s - 0.1 < max(other)]
        kept_other = [s for s in other if s + 0.1 > min(own)]
        total = total + torch.log(1 + sum(torch.exp(-2 * (s - 0.5)) for s in kept_own)) / 2 if kept_own else total
        total = total + torch.log(1 + sum(torch.exp(40 * (s - 0.5)) for s in kept_other)) / 40 if kept_other else total
    return total / N


def llr(loss, i, j, mu, var):
    """llr of two normals under the prior: log N([m_i, m_j]; joint covariance) less the logs of both alone."""
    p = loss.log_prior_var.double().exp()
    m = mu - (0 if loss.prior_mean is None else loss.prior_mean.double())
    total = torch.zeros(())
    for k in range(DIM):
        v = [torch.as_tensor(var[x]).expand(DIM)[k] + p.expand(DIM)[k] for x in (i, j)]
        shared = p.expand(DIM)[k]
        joint = torch.stack([torch.stack([v[0], shared]), torch.stack([shared, v[1]])])
        x = torch.stack([m[i, k], m[j, k]])
        total = total - (x @ joint.inverse() @ x + joint.det().log()) / 2
        total = total + sum(x[s] ** 2 / v[s] + v[s].log() for s in (0, 1)) / 2
    return total


def nce(score):
    def plain(loss, mu, extra):
        values = []
        for i in {i for i, _ in SAME}:
            s = {j: score(loss, i, j, mu, extra).exp() for j in range(N) if j != i}
            values.append(-(sum(x for j, x in s.items() if (i, j) in SAME) / sum(s.values())).log())
        return mean(values)

    return plain


CASES = {
    "mls isotropic": (NegativeMLS(), "isotropic", negative_mls("isotropic", SAME)),
    "mls diagonal": (NegativeMLS(), "diagonal", negative_mls("diagonal", SAME)),
    "mls vmf": (NegativeMLS(), "vmf", negative_mls("vmf", SAME)),
    "mls published": (SelfPairedMLS(), "diagonal", negative_mls("diagonal", SAME + SELF)),
    "hib": (HIB(), "isotropic", hib),
    "contrastive": (Contrastive(positive_margin=0.3, negative_margin=1.2), "isotropic", contrastive),
    "multi-similarity": (MultiSimilarity(), "diagonal", multi_similarity),
    "llr": (ScoreNCE(prior_var=0.7), "isotropic", nce(llr)),
    "llr by dimension": (
        ScoreNCE("llr", prior_var=torch.tensor([0.4, 1, 3]), prior_mean=torch.tensor([0.1, 0, -0.2])),
        "diagonal",
        nce(llr),
    ),
    "norm_cosine, learned": (
        ScoreNCE("norm_cosine", mu=0.3),
        "isotropic",
        nce(lambda loss, i, j, mu, extra: (mu[i].norm() * mu[j].norm()).sqrt() * (angle(mu, i, j) - loss.mu)),
    ),
    "mls nce": (ScoreNCE("mls"), "vmf", nce(lambda loss, *pair: mls("vmf", *pair))),
    "cosine nce": (
        ScoreNCE("cosine", temperature=0.2),
        "isotropic",
        nce(lambda loss, i, j, mu, extra: angle(mu, i, j) / 0.2),
    ),
}


def items(kind, seed=0):
    """Leaves of a batch, and the distribution of them."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=(4, DIM))[LABELS] + 0.7 * rng.normal(size=(N, DIM))
    extra = rng.uniform(0.2, 1.5, (N, DIM)) if kind == "diagonal" else rng.uniform(0.2, 1.5, N)
    leaves = [torch.tensor(x).requires_grad_() for x in (mu, extra * (6 if kind == "vmf" else 1))]
    if kind == "vmf":
        return leaves, pe.VonMisesFisher(torch.nn.functional.normalize(leaves[0]), leaves[1])
    return leaves, pe.Normal(*leaves)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_formula(name):
    loss, kind, plain = CASES[name]
    leaves, d = items(kind)
    of_means = name in ("contrastive", "multi-similarity", "cosine nce", "norm_cosine, learned")
    inputs = [*leaves[: 1 if of_means else 2], *loss.parameters()]
    value, expected = loss(d, torch.tensor(LABELS)), plain(loss, *d.arrays)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    found, wanted = (torch.autograd.grad(x, inputs, retain_graph=True) for x in (value, expected))
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


def test_drawn_matches_are_near_those_of_quadrature_and_differentiate():
    leaves, d = items("isotropic")
    labels, exact = torch.tensor(LABELS), HIB()
    rows = pe.Normal(d.mu, d.var[:, None].expand(N, DIM))
    for drawn in (HIB(n=256)(rows, labels, 1), HIB(n=256)(rows, labels, 2)):
        assert drawn.item() == pytest.approx(exact(d, labels).item(), rel=0.02)
    published = DrawnHIB(n=1024)(d, labels, 1).item()
    matched = [match(exact, i, j, *leaves)[0].log().item() for i, j in SAME if (i, j) not in SELF]
    own = [np.log(drawn_match_with_itself(v)) for v in d.var.tolist()]
    different = mean([match(exact, i, j, *leaves)[1].log() for i, j in DIFFERENT]).item()
    assert published == pytest.approx(-(np.mean(matched + own) + different) / 2, rel=0.02)
    loss, var = HIB(n=3).double(), d.var[:, None].expand(N, DIM).detach().clone().requires_grad_()
    inputs = (leaves[0], var, *loss.parameters())
    assert torch.autograd.gradcheck(lambda mu, var, *_: loss(pe.Normal(mu, var), labels, 1), inputs)


def drawn_match_with_itself(var):
    """E sigmoid(-|z - z'|) of two draws of one item."""
    gaps = np.linalg.norm(np.random.default_rng(0).normal(size=(200_000, DIM)), axis=1) * math.sqrt(2 * var)
    return np.mean(1 / (1 + np.exp(gaps)))


def test_neither_log_of_a_match_cancels():
    # Items of one class lie far apart, where p is e^-60; items of two classes coincide, where 1 - p is e^-20.
    mu, var = torch.tensor([[0.0, 0, 0], [60, 0, 0], [0, 0, 0]]), torch.full((3,), 1e-4)
    apart, together = HIB(), HIB()
    together.b.data += 20
    labels = torch.tensor([0, 0, 1])
    with torch.no_grad():
        pairs = apart(pe.Normal(mu, var), labels), together(pe.Normal(mu, var), labels)
    # -log p of (0, 1); -log(1 - p) of (0, 2), a distance of about 0.02, and (1, 2).
    r = math.sqrt(2e-4) * 2 * math.sqrt(2 / math.pi)
    assert pairs[0].item() == pytest.approx((60 + (math.log1p(math.exp(r)) - r) / 2) / 2, rel=1e-4)
    assert pairs[1].item() == pytest.approx((40 + (20 - r) / 2) / 2, rel=1e-4)


def test_scale_starts_from_the_means():
    loss = HIB()
    assert loss.log_a.exp().item() == 1 and loss.b.item() == 0
    loss.fit_scale(torch.tensor([[1.0, -3], [2, -2]]))
    assert (loss.log_a.exp().item(), loss.b.item()) == pytest.approx((1 / 2, math.sqrt(2) / 2))


def test_margin_loss_of_drawn_negatives():
    # For items 0 and 1, of one class, only item 2 is near enough to be drawn; item 3 is opposite.
    mu = torch.tensor([[1.0, 0, 0], [0.9, 0.5, 0], [0.8, 0, 0.7], [-1, 0, 0]], dtype=torch.float64).requires_grad_()
    labels, loss = torch.tensor([0, 0, 1, 2]), MarginLoss(beta=0.8)
    value = loss(pe.Point(mu), labels)
    hinges = [0.2 + distance(mu, 0, 1) - loss.beta, 0.2 + distance(mu, 1, 0) - loss.beta]
    hinges += [0.2 + loss.beta - distance(mu, 0, 2), 0.2 + loss.beta - distance(mu, 1, 2)]
    active = [x for x in hinges if x > 0]
    expected = sum(active) / len(active)
    assert 0 < len(active) < 4
    assert value.item() == pytest.approx(expected.item(), rel=1e-7)
    inputs = (mu, loss.beta)
    for one, two in zip(torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    settled = MarginLoss(beta=0.3, margin=0.0)(pe.Point(mu.detach()[[0, 0, 3]].requires_grad_()), labels[[0, 1, 2]])
    assert settled.item() == 0


@pytest.mark.parametrize(("dim", "near"), [(3, [0.4, 0.6, 1, 1.2, 1.39]), (128, [0.96, 0.97, 0.98, 0.99, 1])])
def test_negatives_are_drawn_inverse_to_how_common_their_distance_is(dim, near):
    distances = torch.tensor([0, 0.1, *near, 1.5])
    different = torch.tensor([False, False, *[True] * 6])
    columns = torch.arange(8)
    loss, (apart, other, rows) = MarginLoss(), (x.expand(2_500, -1) for x in (distances, different, columns))
    drawn, near_enough = loss._negatives(apart, other, rows, dim, seed=1)
    at = np.maximum(near, 0.5)
    weights = at ** (2.0 - dim) * (1 - at**2 / 4) ** ((3.0 - dim) / 2)
    counts = np.bincount(drawn.numpy().ravel(), minlength=8)
    assert counts[[0, 1, 7]].sum() == 0 and near_enough.all()
    assert stats.chisquare(counts[2:7], counts.sum() * weights / weights.sum()).pvalue > 0.01
    assert not loss._negatives(apart, other & (apart > 1.4), rows, dim, seed=1)[1].any()


def test_negatives_in_blocks_are_those_of_one(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    d, labels = pe.Point(torch.randn(30, 4, generator=draws)), torch.randint(0, 4, (30,), generator=draws)
    expected = MarginLoss()(d, labels, seed=3)
    monkeypatch.setattr("peaccel.losses.pairs.BLOCK", 100)  # of 30 rows 3 together
    torch.testing.assert_close(MarginLoss()(d, labels, seed=3), expected)


def test_a_near_pair_leaves_other_anchors_their_draws():
    # In 256 dimensions distances .5 and 1.38 weigh e^184 to 1.
    near = torch.tensor([[0.0, 0.5, 1.38], [0.5, 0.0, 1.38], [1.38, 1.38, 0.0]])
    drawn, near_enough = MarginLoss()._negatives(near, near > 0, torch.arange(3).expand(3, 3), 256, seed=0)
    assert drawn[:2].tolist() == [[1, 1, 1], [0, 0, 0]] and set(drawn[2].tolist()) <= {0, 1} and near_enough.all()


def test_anchors_that_tell_have_a_loss_that_keeps_its_digits():
    mu = torch.tensor([[0.0], [0], [30], [30]])
    value = ScoreNCE("mls")(pe.Normal(mu, torch.full((4,), 10.0)), torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(2 * math.exp(-45 / 2), rel=1e-5)  # below float32's step beside 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HIB(n=0), "hib: n is 0, expected 1 .. 1024"),
        (lambda: ScoreNCE("lrr"), "did you mean 'llr'"),
        (lambda: ScoreNCE(prior_var=0.0), "ScoreNCE: prior_var is 0.0, expected numbers above 0"),
        (lambda: ScoreNCE("mls", prior_var=1.0), "ScoreNCE: prior_var cannot be learned of mls, which has none"),
        (lambda: ScoreNCE("mls", prior_mean=1.0), "ScoreNCE: prior_mean cannot be learned of mls, which has none"),
        (lambda: ScoreNCE("mls", temperature=0), "ScoreNCE: temperature is 0, expected a number above 0"),
        (lambda: ScoreNCE()(items("isotropic")[1], torch.tensor(LABELS)), "llr: prior_var must be given"),
        (lambda: Contrastive(positive_margin=1.0), "positive_margin is 1.0, negative_margin 1.0, expected 0 <="),
        (lambda: MultiSimilarity(threshold=2), "MultiSimilarity: threshold is 2, expected -1 .. 1"),
        (lambda: MultiSimilarity(margin=-1), "MultiSimilarity: margin is -1, expected a number of at least 0"),
        (lambda: MultiSimilarity(alpha=0), "MultiSimilarity: alpha is 0, expected a number above 0"),
        (lambda: MultiSimilarity(beta=0), "MultiSimilarity: beta is 0, expected a number above 0"),
        (lambda: MarginLoss(margin=-1), "MarginLoss: margin is -1, expected a number of at least 0"),
        (lambda: MarginLoss(beta=2), "MarginLoss: beta is 2, expected a number between 0 and 2"),
        (lambda: MarginLoss(cutoff=1.5), "MarginLoss: cutoff is 1.5, far 1.4, expected 0 < cutoff < far <= 2"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_kinds_are_refused():
    points, labels = pe.Point(torch.randn(N, DIM)), torch.tensor(LABELS)
    with pytest.raises(TypeError, match=r"^NegativeMLS: d is Point.*, expected normal_isotropic or"):
        NegativeMLS()(points, labels)
    with pytest.raises(TypeError, match=r"^HIB: d is VonMisesFisher.*, expected normal_isotropic or normal_diagonal$"):
        HIB()(items("vmf")[1], labels)
    with pytest.raises(TypeError, match=r"^mls: cannot score point x point"):
        ScoreNCE("mls")(points, labels)


@pytest.mark.parametrize("labels", [[3, 1, 3, 3, 1, 0], [0, 0], [5, 4, 3, 4], list(range(4)) * 5, [2, 2, 2, 2]])
def test_rows_of_classes_are_the_pairs_of_one_class(labels):
    labels = torch.tensor(labels)
    same = labels[:, None] == labels
    rows, counted = _batch._rows_of_classes("", labels)
    found = zip(*counted.nonzero(), strict=True)
    assert sorted((int(i), int(rows[i, j])) for i, j in found) == [tuple(pair) for pair in same.nonzero().tolist()]


def test_a_sharp_multi_similarity_stays_finite():
    d = pe.Point(torch.nn.functional.normalize(torch.randn(8, 3)).requires_grad_())
    for beta in (39.0, 41.0, 1e4):
        value = MultiSimilarity(threshold=-1.0, beta=beta)(d, torch.arange(8) // 2)
        (gradient,) = torch.autograd.grad(value, d.mu)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
    near = [MultiSimilarity(threshold=0.5, beta=beta)(d, torch.arange(8) // 2).item() for beta in (40.0, 40.001)]
    assert near[0] == pytest.approx(near[1], rel=1e-3)


def test_all_bits_of_a_seed_count():
    near = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) + 0.5
    rows, seeds = torch.arange(40).expand(40, 40), (5, 5, 2**32 + 5)
    first, same, other = (MarginLoss()._negatives(near, near > 0, rows, 8, seed)[0] for seed in seeds)
    assert torch.equal(first, same) and not torch.equal(first, other)
    found = {folded(seed) for low in range(100) for seed in (low, 2**32 + low, 2**62 + low)}
    assert len(found) == 300 and all(folded(seed) == seed for seed in (0, 7, 2**32 - 1))
