"""Proxy losses against their papers' formulas, written out by loops in float64 torch."""

import math
import warnings

import pytest
import reference
import torch
from torch import distributed as dist
from torch import nn

import peaccel as pe
from peaccel.heads import from_embedding
from peaccel.losses.nca import SIMILARITIES, ProxyNCAPP
from peaccel.losses.proxies import ProxyAnchor, ProxyNCA
from peaccel.losses.vmf import VMFLoss
from peaccel.ops import sample
from peaccel.ops.samplers import STREAMS, sample_vmf
from peaccel.published import non_isotropic
from peaccel.train import recipe

N, D, C = 7, 6, 5
LABELS = torch.tensor([0, 3, 3, 1, 0, 3, 1])  # there are 5 classes, so two have no row
VARIANTS = [(distance, None) for distance in SIMILARITIES]
VARIANTS += [(distance, "published") for distance in ("el_nivmf", "nivmf", "kl_vmf")]
VARIANTS += [(distance, "paper") for distance in ("el_nivmf", "nivmf")]
FORMS = {None: ProxyNCAPP, "paper": non_isotropic.PaperProxyNCAPP, "published": non_isotropic.PublishedProxyNCAPP}
each_variant = pytest.mark.parametrize(("distance", "variant"), VARIANTS)
each_distance = pytest.mark.parametrize("distance", SIMILARITIES)


def embeddings(n=N, dim=D, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(n, dim, generator=generator, dtype=torch.float64)).requires_grad_()


def nca(distance, variant=None, *, classes=C, dim=D, **settings):
    """With parameters that are all different."""
    torch.manual_seed(1)
    loss = FORMS[variant](dim, classes, distance=distance, temperature=0.7, **settings).double()
    if loss.log_concentration is not None:
        nn.init.normal_(loss.log_concentration, 1.0, 0.5)
    return loss


def agree(found, want, inputs, tolerance=1e-10):
    """Assert that two scalars and their gradients with respect to the inputs agree."""
    assert abs(found.item() - want.item()) <= tolerance * max(1, abs(want.item()))
    pairs = [torch.autograd.grad(x, inputs, allow_unused=True) for x in (found, want)]
    for i, (own, other) in enumerate(zip(*pairs, strict=True)):
        assert (own is None) == (other is None), i
        if own is not None:
            torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance, msg=lambda m, i=i: f"{i}: {m}")


# -- the plain forms ---------------------------------------------------------------------------------------------------


def cosine(x, y):
    return x @ y / (x.norm() * y.norm())


def proxy_anchor(e, weight, labels, scale=32.0, margin=0.1):
    pull, push, classes = 0.0, 0.0, set(labels.tolist())
    for c in range(len(weight)):
        cosines = [cosine(x, weight[c]) for x in e]
        own = [(-scale * (s - margin)).exp() for s, y in zip(cosines, labels, strict=True) if y == c]
        others = [(scale * (s + margin)).exp() for s, y in zip(cosines, labels, strict=True) if y != c]
        pull = pull + (torch.log(1 + sum(own)) if own else 0)
        push = push + (torch.log(1 + sum(others)) if others else 0)
    return pull / len(classes) + push / len(weight)


def proxy_nca(e, weight, labels, scale=1.0):
    losses = []
    for x, y in zip(e, labels, strict=True):
        d = [scale * (x / x.norm() - w / w.norm()).square().sum() for w in weight]
        losses.append(-torch.log((-d[y]).exp() / sum((-d[c]).exp() for c in range(len(d)) if c != y)))
    return sum(losses) / len(losses)


def log_norm(dim, kappa):
    """log C_D(kappa), by the power series of I_v."""
    v, k = dim / 2 - 1, torch.arange(300, dtype=torch.float64)
    terms = (2 * k + v) * (kappa / 2).log() - torch.lgamma(k + 1) - torch.lgamma(k + v + 1)
    return v * kappa.log() - dim / 2 * math.log(2 * math.pi) - terms.logsumexp(0)


def log_density(z, mu, kappa, variant, *, stretched=True):
    """Eq. 4, with the factor that makes it a density, with the paper's, or with the code's."""
    y, x = kappa * mu, kappa * z if stretched else z
    last = {None: len(z) * (kappa * z).norm().log(), "paper": len(z) * y.norm().log(), "published": y.norm().log()}
    return log_norm(len(z), y.norm()) + y.norm() * cosine(x, y) + kappa.log().sum() - last[variant]


def similarity(distance, variant, image, proxy, z):
    """The similarity of one image (kappa_z, mu_z) and one proxy (kappa_p or K, mu_p), given the image's draws."""
    (k, m), (kp, mp) = image, proxy
    dim = len(m)
    if distance == "el_nivmf":
        stretched = variant != "published"
        densities = [log_density(x, mp, kp, variant, stretched=stretched).exp() for x in z]
        return sum(densities).log() - math.log(len(z))
    if distance == "nivmf":
        return log_density(m, mp, kp, variant)
    if distance == "kl_vmf":
        apart = log_norm(dim, k) - log_norm(dim, kp)
        if variant == "published":
            return apart + k - kp * (m @ mp)
        ratio = -torch.func.grad(lambda x: log_norm(dim, x))(k)
        return -(apart + ratio * (k - kp * (m @ mp)))
    if distance == "l2":
        return -(k * m - kp * mp).square().sum()
    if distance == "cos":
        return m @ mp
    rho = {"el_vmf": 1.0, "b_vmf": 0.5}[distance]
    both = (rho * (k * m + kp * mp)).norm()
    return rho * (log_norm(dim, k) + log_norm(dim, kp)) - log_norm(dim, both)


def proxy_ncapp(loss, e, labels, seed):
    kappa, mu = e.norm(dim=1), e / e.norm(dim=1, keepdim=True)
    z = sample(sample_vmf, mu, kappa, torch.tensor(seed), loss.score.params.get("n", 1), 0, STREAMS["query"])
    variant = next(name for name, kind in FORMS.items() if type(loss) is kind)
    t, losses = loss.log_temperature.exp(), []
    concentrations = [None] * C if loss.log_concentration is None else 0.1 + loss.log_concentration.exp()
    for i, y in enumerate(labels):
        proxies = zip(concentrations, loss.directions, strict=True)
        d = [-similarity(loss.distance, variant, (kappa[i], mu[i]), (kp, w / w.norm()), z[:, i]) for kp, w in proxies]
        losses.append(-torch.log((-d[y] / t).exp() / sum((-x / t).exp() for x in d)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("labels", [LABELS, torch.full((N,), 2), torch.arange(N) % C])
def test_proxy_anchor_is_its_paper_s_formula(labels):
    e, loss = embeddings(), ProxyAnchor(D, C, scale=5.0, margin=0.2).double()
    agree(loss(pe.Point(e), labels), proxy_anchor(e, loss.weight, labels, 5.0, 0.2), [e, loss.weight])


def test_proxy_anchor_is_that_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    e, own, other = embeddings(), ProxyAnchor(D, C).double(), losses.ProxyAnchorLoss(C, D)
    other.proxies = own.weight
    agree(own(pe.Point(e), LABELS), other(e, LABELS), [e, own.weight])


@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_proxy_nca_is_its_paper_s_formula(scale):
    e, loss = embeddings(), ProxyNCA(D, C, scale=scale).double()
    agree(loss(pe.Point(e), LABELS), proxy_nca(e, loss.weight, LABELS, scale), [e, loss.weight])


def test_proxy_nca_of_vectors_of_length_3_has_the_inverse_temperature_9():
    e, loss = embeddings(), ProxyNCA(D, C, scale=recipe("proxy_nca", "mnist")[1].scale).double()
    x, p = (3 * nn.functional.normalize(rows) for rows in (e, loss.weight))
    square = ((x[:, None] - p) ** 2).sum(-1)
    own = nn.functional.one_hot(LABELS, C).bool()
    published = square[own] + (-square).masked_fill(own, -math.inf).logsumexp(1)
    agree(loss(pe.Point(e), LABELS), published.mean(), [e, loss.weight])


@each_variant
def test_ncapp_is_its_paper_s_formula(distance, variant):
    e, loss = embeddings(), nca(distance, variant)
    inputs = [e, *loss.parameters()]
    agree(loss(from_embedding(e), LABELS, seed=3), proxy_ncapp(loss, e, LABELS, 3), inputs)


@pytest.mark.parametrize("kappa", [0.5, 20.0, 3e3])
def test_the_paper_s_likelihood_is_that_of_numpy_at_the_same_draws(kappa):
    """Also in 64 dimensions, and with concentrations far apart."""
    dim, loss = 64, nca("el_nivmf", "paper", dim=64, n=3)
    with torch.no_grad():
        loss.log_concentration.add_(math.log(kappa))
    d = pe.VonMisesFisher(nn.functional.normalize(embeddings(dim=dim).detach()), torch.full((N,), 90.0).double())
    z = sample(sample_vmf, d.mu, d.kappa, torch.tensor(4), 3, 0, STREAMS["query"]).numpy()
    proxies = loss.proxies().detach()
    mu, k = proxies.mu.numpy(), proxies.kappa.numpy()
    want, size = reference.drawn("el_nivmf_paper", z[:, :, None], None, mu[None], k[None], {})
    assert (abs(loss.similarities(d, 4).detach().numpy() - want) <= 1e-13 * size).all()


# -- identities --------------------------------------------------------------------------------------------------------


def test_el_nivmf_of_equal_concentrations_is_el_vmf():
    d, draws = from_embedding(embeddings().detach()), 1024
    one, every = nca("el_vmf"), nca("el_nivmf", n=draws)
    with torch.no_grad():
        every.directions.copy_(one.directions)
        every.log_concentration.copy_(one.log_concentration[:, None].expand(C, D))
        exact = one.similarities(d).exp()
        means = torch.stack([every.similarities(d, seed).exp() for seed in range(64)])
    error = means.std(0) / math.sqrt(len(means))
    assert ((means.mean(0) - exact).abs() < 5 * error).all()
    assert (error < 0.04 * exact).all()


def test_el_nivmf_of_sure_images_is_nivmf():
    mu, kappa = from_embedding(embeddings().detach()).mu, torch.full((N,), 1e10, dtype=torch.float64)
    d, drawn, point = pe.VonMisesFisher(mu, kappa), nca("el_nivmf"), nca("nivmf")
    point.load_state_dict(drawn.state_dict())
    torch.testing.assert_close(drawn.similarities(d, 1), point.similarities(d), rtol=0, atol=1e-3)


def test_kl_is_the_mean_log_ratio_of_the_densities():
    d, loss = from_embedding(embeddings().detach()), nca("kl_vmf")
    z = pe.sample(d, 100_000, seed=1).movedim(1, 0)  # [N, n, D]
    with torch.no_grad():
        proxies, found = loss.proxies(), -loss.similarities(d)
    for i, c in ((0, 0), (1, 2), (2, 4)):
        own, other = (log_norm(D, x.kappa[j]) + x.kappa[j] * (z[i] @ x.mu[j]) for x, j in ((d, i), (proxies, c)))
        ratios = own - other
        assert abs(ratios.mean() - found[i, c]) < 5 * ratios.std() / math.sqrt(len(ratios))


# -- what they promise -------------------------------------------------------------------------------------------------


def every_loss(dim=D, classes=C):
    return [
        *(nca(distance, variant, classes=classes, dim=dim).float() for distance, variant in VARIANTS),
        ProxyAnchor(dim, classes),
        ProxyNCA(dim, classes),
    ]


def test_draws_are_new_at_each_step_and_those_of_a_seed_are_the_same():
    d, loss = from_embedding(embeddings()), nca("el_nivmf")
    assert loss(d, LABELS, seed=1) == loss(d, LABELS, seed=1) != loss(d, LABELS, seed=2)
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values.append([loss(d, LABELS).item() for _ in range(3)])
    assert values[0] == values[1]
    assert len(set(values[0])) == 3


def test_autocast_and_halves_give_the_value_of_float32():
    half = from_embedding(embeddings()).to(torch.bfloat16)
    for loss in every_loss():
        want = loss(half.to(torch.float32), LABELS, seed=1)
        with torch.autocast("cpu", torch.bfloat16):
            found = loss(half, LABELS, seed=1)
        assert found.dtype == torch.float32
        assert found == want


def test_order_within_the_batch_is_of_no_consequence():
    d, order = from_embedding(embeddings()), torch.randperm(N, generator=torch.Generator().manual_seed(0))
    for loss in every_loss():
        if getattr(loss, "distance", None) != "el_nivmf":  # which draws by rows
            loss.double()
            torch.testing.assert_close(loss(d[order], LABELS[order]), loss(d, LABELS), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 1e-20, 1.0, 1e6])
def test_hard_images_have_finite_gradients(kappa):
    for loss in every_loss():
        proxies = getattr(loss, "weight", getattr(loss, "directions", None))
        unit = nn.functional.normalize(proxies.detach())
        # On the proxies, and opposite.
        e = (kappa * torch.cat((unit, -unit, unit[:1]))).requires_grad_()
        labels = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 1])
        value = loss(from_embedding(e), labels, seed=1)
        grads = torch.autograd.grad(value, [e, *loss.parameters()])
        assert value.isfinite()
        assert all(x.isfinite().all() for x in grads), type(loss)


def test_a_point_is_the_natural_parameter_of_an_image():
    e, loss = embeddings(), nca("el_nivmf")
    assert loss(pe.Point(e), LABELS, seed=1) == loss(from_embedding(e), LABELS, seed=1)


def test_an_embedding_of_length_0_is_uniform():
    d = from_embedding(torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], dtype=torch.float16)).validate()
    assert d.mu.dtype == torch.float32
    assert d.kappa.tolist() == [0.0, 5.0]
    torch.testing.assert_close(d.mu[1], torch.tensor([0.6, 0.0, 0.8]))


def test_a_row_of_zeros_has_cosine_0():
    e = torch.zeros(1, D, requires_grad=True)
    for loss, want in ((ProxyNCA(D, C), math.log(C - 1)), (ProxyAnchor(D, C), None)):
        value = loss(pe.Point(e), LABELS[:1])
        assert want is None or abs(value.item() - want) < 1e-6
        assert torch.autograd.grad(value, e)[0].isfinite().all()


def test_proxies_are_shared_and_have_parameters_of_their_own():
    e, joint = embeddings(), nca("el_nivmf")
    anchor = ProxyAnchor(D, C, weight=joint.directions)
    assert set(map(id, nn.ModuleList((joint, anchor)).parameters())) == set(map(id, joint.parameters()))
    parts = [loss(from_embedding(e), LABELS, seed=1) for loss in (joint, anchor)]
    sums = [sum(torch.autograd.grad(x, joint.directions, retain_graph=True)[0] for x in parts)]
    sums.append(torch.autograd.grad(parts[0] + parts[1], joint.directions)[0])
    torch.testing.assert_close(*sums)
    assert {name: tuple(x.shape) for name, x in joint.named_parameters()} == {
        "directions": (C, D),
        "log_concentration": (C, D),
        "log_temperature": (),
    }
    assert [nca(name).log_concentration is None for name in ("cos", "l2")] == [True, False]


@each_distance
def test_it_starts_as_told(distance):
    loss = ProxyNCAPP(D, C, distance=distance, temperature=0.25, concentration=20.0)
    torch.testing.assert_close(loss.directions.norm(dim=1), torch.full((C,), 20.0))
    proxies = loss.proxies().validate()
    if distance != "cos":
        torch.testing.assert_close(proxies.kappa, torch.full_like(proxies.kappa, 20.0))
    assert loss.log_temperature.exp() == 0.25


def test_a_warm_start_turns_proxies_to_the_means_of_their_classes():
    e, loss = embeddings().detach(), nca("el_nivmf")
    before = loss.directions.detach().clone()
    loss.start(e, LABELS)
    for c in range(C):
        rows = e[c == LABELS]
        mean = rows.mean(0) if len(rows) else before[c]
        torch.testing.assert_close(loss.directions[c], mean / mean.norm() * 10)
    assert loss.directions.requires_grad


def test_bad_settings_are_named():
    for build, message in (
        (lambda: ProxyNCAPP(D, C, distance="el"), "distance is 'el', expected one of el_nivmf"),
        (lambda: ProxyNCAPP(D, C, temperature=0.0), "temperature is 0.0"),
        (lambda: ProxyNCAPP(D, C, concentration=0.1), "concentration is 0.1"),
        (lambda: ProxyNCAPP(D, C, n=0), "n is 0"),
        (lambda: ProxyAnchor(D, C, scale=0.0), "ProxyAnchor: scale is 0.0"),
        (lambda: ProxyAnchor(D, C, weight=nn.Parameter(torch.ones(C, 2))), r"weight has shape \(5, 2\)"),
        (lambda: ProxyNCA(D, C, scale=-1.0), "ProxyNCA: scale is -1.0"),
        (lambda: ProxyNCA(D, 1), "classes is 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
    with pytest.raises(TypeError, match="expected vmf or point"):
        nca("el_nivmf")(pe.Scaled(nn.functional.normalize(embeddings()), torch.ones(N).double()), LABELS)
    for loss in every_loss(dim=D + 1):
        with pytest.raises(ValueError, match="dim"):
            loss(pe.Point(embeddings().detach().float()), LABELS)


# -- several processes -------------------------------------------------------------------------------------------------


def part(rank, path, results):
    """One of two processes: its half of a batch through Proxy-Anchor, and one image of both through what draws."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    e, anchor = embeddings(), anchor_of_one_seed()
    rows = slice(3 * rank, 3 * rank + 3)
    value = anchor(pe.Point(e[rows]), LABELS[rows])
    grads = torch.autograd.grad(value, [e, anchor.weight])
    drawn = [nca("el_nivmf")(from_embedding(e[:1]), LABELS[:1], seed=7).item()]
    torch.manual_seed(0)
    drawn.append(nca("el_nivmf")(from_embedding(e[:1]), LABELS[:1]).item())
    torch.manual_seed(0)
    drawn.append(VMFLoss(D, C).double()(from_embedding(e[:1]), LABELS[:1], seed=7).item())
    torch.save((value.item(), *grads, drawn), results[rank])
    dist.destroy_process_group()


def anchor_of_one_seed():
    torch.manual_seed(2)
    return ProxyAnchor(D, C).double()


@pytest.mark.slow
def test_two_processes(tmp_path):
    results = [tmp_path / "0.pt", tmp_path / "1.pt"]
    torch.multiprocessing.spawn(part, (tmp_path / "store", results), nprocs=2)
    parts = [torch.load(path) for path in results]
    e, anchor = embeddings(), anchor_of_one_seed()
    value = anchor(pe.Point(e[:6]), LABELS[:6])
    grads = torch.autograd.grad(value, [e, anchor.weight])
    for i, want in enumerate((value, *grads)):
        for other in parts:
            if i == 0:
                assert abs(other[0] - want.item()) < 1e-12
        if i:
            torch.testing.assert_close((parts[0][i] + parts[1][i]) / 2, want, rtol=1e-10, atol=1e-12)
    for own, other in zip(parts[0][3], parts[1][3], strict=True):
        assert own != other  # no noise is repeated


def test_float64_items_meet_proxies_of_float32():
    """The loss is that of the same proxies in float64, but for the temperature, which is rounded."""
    x = embeddings().detach()
    for loss in every_loss():
        found = loss(pe.Point(x), LABELS, seed=1)
        assert found.dtype == torch.float64, loss
        torch.testing.assert_close(loss.double()(pe.Point(x), LABELS, seed=1), found, rtol=1e-6, atol=1e-6)
