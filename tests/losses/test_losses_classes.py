"""Losses that compare items with class directions or class densities, against their papers' formulas by loops."""

import math

import pytest
import torch
from scipy import optimize
from torch.nn.functional import normalize

import peaccel as pe
from peaccel.heads import from_embedding
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.margin import VMFFL, ArcFace, CosFace, MagFace, ScaleFace
from peaccel.losses.regression import ClassLikelihood
from peaccel.losses.vmf import VMFLoss
from peaccel.published.easy_margin import EasyMarginMagFace
from peaccel.published.revisited import KappaDivergence
from peaccel.published.spherical_confidence import FlooredClassLikelihood

N, D, C = 7, 6, 5
LABELS = torch.tensor([0, 1, 2, 3, 4, 4, 0])


def rows(seed, n=N, length=None):
    x = torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return normalize(x) * (length if length is not None else torch.linspace(0.5, 30, n)[:, None])


def positive(seed, *shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 20 + 0.1


def point():
    return pe.Point(rows(1))


def normal():
    return pe.Normal(rows(1), positive(2, N))


def diagonal():
    return pe.Normal(rows(1), positive(2, N, D))


def vmf():
    return pe.VonMisesFisher(rows(1, length=1), positive(2, N))


def scaled():
    return pe.Scaled(rows(1, length=1), positive(2, N))


def made(loss, **settings):
    torch.manual_seed(0)
    return loss(D, C, **settings).double()


# Every loss of this file with its arguments and the kind of distribution that it takes.
CASES = {
    "arcface": (lambda: made(ArcFace), point),
    "arcface of a normal's mean": (lambda: made(ArcFace, beyond="plain", margin=1.5), normal),
    "cosface": (lambda: made(CosFace), vmf),
    "magface": (lambda: made(MagFace), point),
    "magface, published": (lambda: made(EasyMarginMagFace), point),
    "scaleface": (lambda: made(ScaleFace), scaled),
    "vmf-fl": (lambda: made(VMFFL), vmf),
    "vmf-fl, normal": (lambda: made(VMFFL), normal),
    "dul-reg": (lambda: ClassLikelihood(rows(3, C)), normal),
    "dul-reg, diagonal": (lambda: ClassLikelihood(rows(3, C)), diagonal),
    "scf": (lambda: ClassLikelihood(rows(3, C)), vmf),
    "scf, published": (lambda: FlooredClassLikelihood(rows(3, C)), vmf),
    "prior": (lambda: PriorDivergence(0.5), normal),
    "prior, diagonal": (lambda: PriorDivergence(), diagonal),
    "prior, vmf": (lambda: PriorDivergence(), vmf),
    "prior, published": (lambda: KappaDivergence(), vmf),
    "vmf-loss": (lambda: made(VMFLoss), point),
    "vmf-loss of distributions": (lambda: made(VMFLoss), vmf),
    "vmf-loss, deterministic classes": (lambda: made(VMFLoss, deterministic_classes=True), vmf),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    return tuple(make() for make in CASES[request.param])


# -- what all of them do -----------------------------------------------------------------------------------------------


def leaves(loss, d):
    """The distribution with gradients of its own, and all that the loss may be differentiated in."""
    d = type(d)(*(x.clone().requires_grad_() for x in d.arrays))
    return d, [*d.arrays, *(x for x in loss.parameters() if x.requires_grad)]


def test_gradients_are_those_of_differences(case):
    loss, d = case
    d, inputs = leaves(loss, d)

    def value(*_):
        # Along the sphere only: elsewhere these losses need not be defined.
        mu = normalize(inputs[0]) if d._unit else inputs[0]
        return loss(type(d)(mu, *d.arrays[1:]), LABELS, 3)

    # Draws jump from one proposal to the next: their gradients are exact in the mean only.
    checked = list(loss.parameters()) if isinstance(loss, VMFLoss) else inputs
    assert torch.autograd.gradcheck(value, checked, eps=1e-6, atol=1e-5, rtol=1e-5, fast_mode=True)


def test_half_precision_is_computed_in_float32(case):
    loss, d = case
    loss = loss.float()
    half = d.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(half, LABELS, 3)
    assert value.dtype == torch.float32 and value == loss(half.to(torch.float32), LABELS, 3)


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("vmf-loss")], indirect=True)
def test_the_order_of_the_batch_is_nothing(case):
    loss, d = case
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    assert loss(d[order], LABELS[order]).item() == pytest.approx(loss(d, LABELS).item(), rel=1e-12)


def hard(d):
    """Items along, against and at the same place as the first class, of no length and of extreme sureness."""
    along = rows(3, C)[0] / rows(3, C)[0].norm()
    mu = torch.stack([along, -along, along, along, -along, along, along])
    if not d._unit:
        mu[5:] = torch.stack([torch.zeros(D), 1e5 * along])
    if d.kind == "point":
        return pe.Point(mu.float())
    extremes = torch.tensor([1e-10, 1e6] if isinstance(d, pe.Normal) else [0, 1e6]).repeat(4)[:N]
    return type(d)(mu.float(), extremes if d.arrays[1].ndim == 1 else extremes[:, None].repeat(1, D))


def test_gradients_at_hard_items_are_finite(case):
    loss, d = case
    loss = loss.float()
    weight = getattr(loss, "weight", None)
    if weight is not None:
        weight.data[0], weight.data[1] = rows(3, C)[0].float(), weight.data[2]
        weight.data[3] = 0
    d, inputs = leaves(loss, hard(d))
    value = loss(d, torch.tensor([0, 0, 1, 2, 3, 0, 4]), 3)
    assert value.isfinite()
    assert all(x.isfinite().all() for x in torch.autograd.grad(value, inputs, allow_unused=True) if x is not None)


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("prior")], indirect=True)
def test_labels_of_no_class_are_named(case):
    loss, d = case
    with pytest.raises(ValueError, match=rf"^{type(loss).__name__}: labels are in 0 .. 5, expected 0 .. 4$"):
        loss(d, LABELS + (LABELS == 4))
    with pytest.raises(ValueError, match=rf"^{type(loss).__name__}: .*d (is|has dimension) 2, expected 6"):
        loss(d.truncate(2), LABELS)


@pytest.mark.parametrize(
    ("make", "d", "kinds"),
    [
        (lambda: MagFace(D, C), vmf, "point"),
        (lambda: ScaleFace(D, C), vmf, "scaled"),
        (lambda: VMFFL(D, C), diagonal, "vmf or normal_isotropic"),
        (lambda: ClassLikelihood(rows(3, C)), scaled, "normal_isotropic or normal_diagonal or vmf"),
        (lambda: PriorDivergence(), point, "normal_isotropic or normal_diagonal or vmf"),
        (lambda: VMFLoss(D, C), normal, "point or vmf"),
    ],
)
def test_other_kinds_are_refused(make, d, kinds):
    with pytest.raises(TypeError, match=f"expected {kinds}$"):
        make()(d(), LABELS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArcFace(0, 2), "ArcFace: dim is 0, expected at least 1"),
        (lambda: ArcFace(2, 2, scale=0), "ArcFace: scale is 0, expected a number above 0"),
        (lambda: ScaleFace(2, 2, margin=28.6), "ScaleFace: margin is 28.6, expected an angle from 0 to pi / 2"),
        (lambda: ArcFace(2, 2, beyond="none"), "ArcFace: beyond is 'none', expected 'linear' or 'plain'"),
        (lambda: CosFace(2, 2, margin=-1), "CosFace: margin is -1, expected 0 to 2"),
        (lambda: MagFace(2, 2, norms=(2, 1)), r"MagFace: norms is \(2, 1\), expected two rising numbers above 0"),
        (lambda: MagFace(2, 2, margins=(1, 0)), r"MagFace: margins is \(1, 0\), expected two numbers that do not fall"),
        (lambda: MagFace(2, 2, margins=(1, 2)), r"MagFace: margins\[1\] is 2, expected an angle"),
        (lambda: ClassLikelihood(torch.ones(3)), r"ClassLikelihood: weight has shape \(3,\), expected \(C, D\)"),
        (lambda: PriorDivergence(0), "PriorDivergence: prior_var is 0, expected a number above 0"),
        (lambda: VMFLoss(1, 2), "VMFLoss: dim is 1, expected at least 2"),
        (lambda: VMFLoss(2, 2, samples=0), "VMFLoss: samples is 0, expected at least 1"),
        (lambda: VMFLoss(2, 2, confidence=1), "VMFLoss: confidence is 1, expected a number between 0 and 1"),
        (lambda: VMFLoss(2, 2).fit_alpha(torch.zeros(3, 2)), "VMFLoss: embeddings have mean size 0.0, expected"),
    ],
)
def test_settings_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


# -- margins -----------------------------------------------------------------------------------------------------------


def softmax_by_loops(loss, d, scales, own):
    """Mean over items of log sum_c exp(logit_c) - logit_y, own(i, cosine) that of the label's class."""
    total = 0.0
    for i, (mu, y) in enumerate(zip(d.mu.numpy(), LABELS.tolist(), strict=True)):
        logits = []
        for c, w in enumerate(loss.weight.detach().numpy()):
            cosine = mu @ w / math.sqrt((mu @ mu) * (w @ w))
            logits.append(scales[i] * (own(i, cosine) if c == y else cosine))
        total += math.log(math.fsum(map(math.exp, logits))) - logits[y]
    return total / len(d)


def by_acos(margin, beyond):
    def own(_, cosine):
        theta = math.acos(cosine)
        if theta + margin <= math.pi:
            return math.cos(theta + margin)
        return cosine - margin * math.sin(margin) if beyond == "linear" else cosine

    return own


@pytest.mark.parametrize("beyond", ["linear", "plain"])
@pytest.mark.parametrize("margin", [0, 0.5, 1.5])
def test_arcface_by_loops(beyond, margin):
    loss, own = made(ArcFace, scale=8.0, margin=margin, beyond=beyond), by_acos(margin, beyond)
    assert loss(normal(), LABELS).item() == pytest.approx(softmax_by_loops(loss, normal(), [8.0] * N, own), rel=1e-12)


def test_arcface_falls_with_the_angle_but_not_if_published():
    theta = torch.linspace(0, math.pi, 200, dtype=torch.float64)[:, None]

    def losses(**settings):
        loss = ArcFace(2, 2, **settings).double()
        loss.weight.data = torch.eye(2, dtype=torch.float64)
        # The other class stays at a right angle to the item that moves.
        loss.cosines = lambda d: torch.cat([d.mu[:, :1], torch.zeros_like(d.mu[:, :1])], 1)
        items = torch.cat([theta.cos(), theta.sin()], 1)
        return torch.stack([loss(pe.Point(x[None]), torch.tensor([0])) for x in items])

    for margin in (0.3, 0.5, 1.0, math.pi / 2):
        assert losses(margin=margin, scale=4.0).diff().min() > -1e-12
    jump = losses(margin=0.5, scale=4.0, beyond="plain").diff()
    assert jump.min() == pytest.approx(-4 * (1 - math.cos(0.5)), rel=0.1)


def test_cosface_by_loops():
    loss = made(CosFace, scale=8.0, margin=0.25)
    expected = softmax_by_loops(loss, vmf(), [8.0] * N, lambda _, cosine: cosine - 0.25)
    assert loss(vmf(), LABELS).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [MagFace, EasyMarginMagFace])
def test_magface_by_loops(kind):
    loss = made(kind, scale=8.0, norms=(2, 20), regulariser=7.0)
    a = point().mu.norm(dim=1).clamp(2, 20).tolist()
    assert min(a) == 2 and max(a) == 20

    def own(i, cosine):
        if kind is EasyMarginMagFace and cosine <= 0:
            return cosine
        return by_acos(0.45 + 0.35 * (a[i] - 2) / 18, "linear")(i, cosine)

    expected = softmax_by_loops(loss, point(), [8.0] * N, own) + 7 * sum(x / 400 + 1 / x for x in a) / N
    assert loss(point(), LABELS).item() == pytest.approx(expected, rel=1e-12)


def test_scaleface_by_loops():
    loss, d = made(ScaleFace, margin=0.4), scaled()
    expected = softmax_by_loops(loss, d, d.scale.tolist(), by_acos(0.4, "linear"))
    assert loss(d, LABELS).item() == pytest.approx(expected, rel=1e-12)


def test_vmf_fl_is_scaleface_without_margin():
    scale_face, vmf_fl = made(ScaleFace, margin=0), made(VMFFL)
    expected = pytest.approx(scale_face(scaled(), LABELS).item(), rel=1e-12)
    for d in (vmf(), pe.Normal(vmf().mu, 1 / vmf().kappa)):
        assert vmf_fl(d, LABELS).item() == expected


@pytest.mark.parametrize("d", [vmf(), normal()])
def test_vmf_fl_is_the_softmax_of_densities(d):
    loss = made(VMFFL)
    directions = normalize(loss.weight.detach())
    log_densities = torch.stack([pe.log_prob(d, w.expand(N, D)) for w in directions], 1)
    expected = -log_densities.log_softmax(1)[range(N), LABELS].mean()
    assert loss(d, LABELS).item() == pytest.approx(expected.item(), rel=1e-12)


# -- regression and the prior ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [normal(), diagonal()])
def test_dul_reg_by_loops(d):
    total = 0.0
    for i, y in enumerate(LABELS.tolist()):
        w = rows(3, C)[y].numpy()
        w = w / math.sqrt(w @ w)
        for j in range(D):
            var = float(d.var[i] if d.var.ndim == 1 else d.var[i, j])
            total += ((w[j] - d.mu[i, j].item()) ** 2 / var + math.log(2 * math.pi * var)) / 2
    assert ClassLikelihood(rows(3, C))(d, LABELS).item() == pytest.approx(total / N, rel=1e-12)


def test_dul_reg_sees_its_own_column_alone_and_leaves_weight():
    weight = torch.nn.Parameter(rows(3, C))
    loss = ClassLikelihood(weight)
    assert loss.weight is weight
    d, inputs = leaves(torch.nn.Module(), normal())
    directions = normalize(weight.detach())
    full = torch.stack([pe.log_prob(d, w.expand(N, D)) for w in directions], 1)[range(N), LABELS]
    for own, expected in zip(
        torch.autograd.grad(loss(d, LABELS), inputs), torch.autograd.grad(-full.mean(), inputs), strict=True
    ):
        assert torch.allclose(own, expected, rtol=1e-12)
    loss(d, LABELS).backward()
    assert weight.grad is None
    weight.data *= 2  # changes of the earlier stage's weights count
    weight.data[0] = rows(4, 1)[0]
    assert loss(d, LABELS) != -full.mean()


# Optima of kappa at mu.w = cosine: those of SCF's own code, near (D/2 - 1) / (1 - cosine), and the true ones. By
# golden sections of the formulas in mpmath.
OPTIMA = {
    (512, 0.1): (283, 52),
    (512, 0.3): (364, 169),
    (512, 0.5): (510, 341),
    (512, 0.7): (850, 702),
    (512, 0.9): (2547, 2421),
    (128, 0.1): (70, 13),
    (128, 0.3): (90, 42),
    (128, 0.5): (126, 85),
    (128, 0.7): (194, 175),
    (128, 0.9): (602, 602),
}


@pytest.mark.parametrize(("dim", "cosine"), OPTIMA)
def test_scf_is_least_where_the_mean_length_is_the_cosine(dim, cosine):
    weight = torch.zeros(1, dim, dtype=torch.float64)
    weight[0, 0] = 64.0
    mu = torch.zeros(1, dim, dtype=torch.float64)
    mu[0, 0], mu[0, 1] = cosine, math.sqrt(1 - cosine**2)

    def slope(log_kappa, loss):
        kappa = torch.tensor([math.exp(log_kappa)], dtype=torch.float64, requires_grad=True)
        loss(pe.VonMisesFisher(mu, kappa), torch.tensor([0])).backward()
        return kappa.grad.item()

    for kind, expected in zip((FlooredClassLikelihood, ClassLikelihood), OPTIMA[dim, cosine], strict=True):
        loss = kind(weight)
        kappa = math.exp(optimize.brentq(slope, 0, 9, args=(loss,)))
        assert kappa == pytest.approx(expected, abs=0.51), kind
        if kind is ClassLikelihood:
            assert pe.special.iv_ratio(dim / 2, kappa) == pytest.approx(cosine, rel=1e-10)


def test_scf_keeps_its_digits_in_float32():
    """At kappa 1e6, terms of which are of its size."""
    mu = rows(1, length=1)
    kappa = torch.full((N,), 1e6, dtype=torch.float64)
    weight = mu[:C] + 1e-3 * rows(4, C, length=1)
    value = ClassLikelihood(weight)(pe.VonMisesFisher(mu, kappa), torch.arange(N) % C)
    single = ClassLikelihood(weight.float())(pe.VonMisesFisher(mu.float(), kappa.float()), torch.arange(N) % C)
    assert single.item() == pytest.approx(value.item(), rel=1e-5)


def test_prior_divergences_by_draws():
    """Against the mean of log p - log q over draws."""
    n = 200_000
    for d, prior, loss in (
        (normal()[:2], lambda z: -(z**2).sum(1) / 1.0 - D / 2 * math.log(math.pi), PriorDivergence(0.5)),
        (vmf()[:2], lambda z: -math.log(2 * math.pi**3 / 2) + 0 * z[:, 0], PriorDivergence()),
    ):
        z = pe.sample(d, n, seed=1)
        ratios = pe.log_prob(d, z) - torch.stack([prior(z[:, i]) for i in range(2)], 1)
        error = ratios.std(0).mean().item() / math.sqrt(n)
        assert loss(d, LABELS[:2]).item() == pytest.approx(ratios.mean().item(), abs=5 * error)


def test_published_prior_divergence_has_kappa_in_place_of_its_share():
    d = vmf()
    exact, published = (kind()(d, LABELS) for kind in (PriorDivergence, KappaDivergence))
    extra = (d.kappa * (1 - pe.special.iv_ratio(D / 2, d.kappa))).mean()
    assert (published - exact).item() == pytest.approx(extra.item(), abs=1e-9)


# -- vMF-loss ----------------------------------------------------------------------------------------------------------


def vmf_loss_by_loops(loss, d, seed):
    def length(x):
        return math.sqrt(math.fsum(y * y for y in x.tolist()))

    def log_c(kappa):
        return float(pe.special.vmf_log_norm(D, kappa))

    def mean(kappa):
        return float(pe.special.iv_ratio(D / 2, kappa))

    weight, beta = loss.weight.detach().numpy(), math.exp(loss.log_scale.item())
    draws = pe.sample(d, loss.samples, seed).numpy()
    total = 0.0
    for i, y in enumerate(LABELS.tolist()):
        for z in draws[:, i]:
            if loss.deterministic_classes:
                terms = [math.exp(beta * float(z @ w) / length(w)) for w in weight]
            else:
                terms = [math.exp(log_c(length(w)) - log_c(length(beta * z + w))) for w in weight]
            total += math.log(math.fsum(terms)) / loss.samples
        w = weight[y]
        sure = 1.0 if loss.deterministic_classes else mean(length(w))
        total -= beta * mean(float(d.kappa[i])) * sure * float(d.mu[i].numpy() @ w) / length(w)
    return total / N


@pytest.mark.parametrize("deterministic", [False, True])
def test_vmf_loss_by_loops(deterministic):
    loss = made(VMFLoss, samples=4, scale=5.0, deterministic_classes=deterministic)
    assert loss(vmf(), LABELS, 3).item() == pytest.approx(vmf_loss_by_loops(loss, vmf(), 3), rel=1e-11)


def test_vmf_loss_of_long_class_vectors_is_that_of_deterministic_classes():
    loss = made(VMFLoss, samples=4, scale=5.0)
    loss.weight.data *= 1e6
    points = made(VMFLoss, samples=4, scale=5.0, deterministic_classes=True)
    assert loss(vmf(), LABELS, 3).item() == pytest.approx(points(vmf(), LABELS, 3).item(), rel=1e-5)


def test_vmf_loss_is_above_the_expected_softmax_loss():
    """Draws of classes too: the bound is Jensen's."""
    loss, d = made(VMFLoss, samples=2000, scale=5.0, confidence=0.7), vmf()
    classes = pe.sample(from_embedding(loss.weight.detach()), 2000, 1)
    images = pe.sample(d, 2000, 2)
    cosines = torch.einsum("snd,scd->snc", images, classes)
    expected = -(5.0 * cosines).log_softmax(2)[:, range(N), LABELS]
    bound = loss(d, LABELS, 3).item()
    assert expected.mean().item() < bound < expected.mean().item() + 1


@pytest.mark.parametrize("classes", [3, 300_000])
def test_vmf_loss_by_blocks(classes):
    """The plain form by torch and its gradients, also for so many classes that a block holds few draws."""
    torch.manual_seed(0)
    loss = VMFLoss(2, classes, samples=2).double()
    d, inputs = leaves(loss, pe.VonMisesFisher(normalize(torch.randn(4, 2).double()), positive(2, 4)))
    labels, weight, scale = torch.arange(4) % 3, loss.weight, loss.log_scale.exp()
    draws = pe.sample(d, 2, 3).flatten(0, 1)
    r, k = (scale * draws[:, None] + weight).norm(dim=2), weight.norm(dim=1)
    terms = pe.special.vmf_log_norm(2, k) - pe.special.vmf_log_norm(2, r)
    cosine = (d.mu * normalize(weight[labels])).sum(1)
    own = scale * pe.special.iv_ratio(1, d.kappa) * pe.special.iv_ratio(1, k[labels]) * cosine
    plain, value = terms.logsumexp(1).mean() - own.mean(), loss(d, labels, 3)
    assert value.item() == pytest.approx(plain.item(), rel=1e-12)
    with torch.no_grad():
        assert loss(d, labels, 3) == value
    for expected, found in zip(torch.autograd.grad(plain, inputs), torch.autograd.grad(value, inputs), strict=True):
        assert (found - expected).abs().max() < 1e-11 * max(1, expected.abs().max())


def test_vmf_loss_draws_anew_unless_told():
    loss = made(VMFLoss)
    assert loss(vmf(), LABELS, 1) == loss(vmf(), LABELS, 1) != loss(vmf(), LABELS, 2)
    assert loss(vmf(), LABELS) != loss(vmf(), LABELS)


def test_vmf_loss_starts_images_and_classes_equally_sure():
    torch.manual_seed(0)
    loss = VMFLoss(128, 500, confidence=0.6)
    images = 0.01 * torch.randn(400, 128)
    loss.fit_alpha(images)
    lengths = [
        pe.special.iv_ratio(64, x.norm(dim=1)).mean().item() for x in (loss.weight.detach(), loss.alpha * images)
    ]
    assert lengths[0] == pytest.approx(0.6, abs=0.01)
    # The mean size of a normal number is 0.8 of its deviation.
    assert lengths[1] == pytest.approx(0.66, abs=0.02) and "alpha" in loss.state_dict()


def test_vmf_loss_takes_points_times_alpha_for_the_loss_and_for_probabilities():
    loss, images = made(VMFLoss), point()
    loss.alpha.fill_(3)
    d = from_embedding(3 * images.mu)
    assert loss(images, LABELS, 3) == loss(d, LABELS, 3)
    assert torch.equal(loss.class_probabilities(images, 3), loss.class_probabilities(d, 3))
