"""Losses as a user of torch would write them best, and the sampler and norm that some of them need.

Pairs come from products of matrices where there are such, all in float32. A statement takes the module of the loss,
whose parameters it reads, the fields of a batch and labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from peaccel import losses

DIM, IMAGES = 128, 4  # images of a class


def squared(x: Any) -> Any:
    """Squared distances of all pairs."""
    norms = (x * x).sum(1)
    return (norms[:, None] + norms - 2 * x @ x.T).clamp(min=0)


def same_and_different(labels: Any) -> tuple[Any, Any]:
    """Pairs of one class but for an item with itself, and pairs of two."""
    different = labels[:, None] != labels
    return ~different & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), different


def negative_mls(loss: Any, leaves: Any, labels: Any) -> Any:
    """Minus the mean MLS of pairs of a class, isotropic or diagonal."""
    mu, var = leaves
    i, j = torch.triu(labels[:, None] == labels, 1).nonzero(as_tuple=True)
    v, dim = var[i] + var[j], mu.shape[1]
    if v.ndim == 2:
        return ((mu[i] - mu[j]).square() / v + v.log()).sum(1).mean() / 2 + dim / 2 * math.log(2 * math.pi)
    return ((mu[i] - mu[j]).square().sum(1) / v + dim * (2 * math.pi * v).log()).mean() / 2


def triplet(loss: Any, leaves: Any, labels: Any) -> Any:
    """The mean hinge of every triplet."""
    apart = squared(functional.normalize(leaves[0]))
    same, different = same_and_different(labels)
    anchors, positives = same.nonzero(as_tuple=True)
    hinges = (apart[anchors, positives, None] - apart[anchors] + loss.margin).relu()
    negative = different[anchors]
    return (hinges * negative).sum() / negative.sum()


def multi_similarity(loss: Any, leaves: Any, labels: Any) -> Any:
    """Of pairs that are harder than the hardest of the other kind."""
    x = functional.normalize(leaves[0])
    cosines, (same, different) = x @ x.T, same_and_different(labels)
    hardest = cosines.masked_fill(~different, -math.inf).amax(1, keepdim=True)
    easiest = cosines.masked_fill(~same, math.inf).amin(1, keepdim=True)
    near = same & (cosines - loss.margin < hardest)
    far = different & (cosines + loss.margin > easiest)
    pulled = ((-loss.alpha * (cosines - loss.threshold)).exp() * near).sum(1).log1p() / loss.alpha
    return (pulled + ((loss.beta * (cosines - loss.threshold)).exp() * far).sum(1).log1p() / loss.beta).mean()


def score_nce(loss: Any, leaves: Any, labels: Any) -> Any:
    """By MLS of isotropic normals."""
    mu, var = leaves
    v = var[:, None] + var
    logits = -(squared(mu) / v + mu.shape[1] * (2 * math.pi * v).log()) / 2 / loss.temperature
    of_class, of_others = (logits.masked_fill(~pairs, -math.inf).logsumexp(1) for pairs in same_and_different(labels))
    return functional.softplus(of_others - of_class).mean()


def arcface(loss: Any, leaves: Any, labels: Any) -> Any:
    """The class's angle widened by the margin."""
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    own = cosines.gather(1, labels[:, None])
    turned = own * math.cos(loss.margin) - (1 - own * own).clamp(min=1e-7).sqrt() * math.sin(loss.margin)
    own = torch.where(own > -math.cos(loss.margin), turned, own - loss.margin * math.sin(loss.margin))
    return functional.cross_entropy(loss.scale * cosines.scatter(1, labels[:, None], own), labels)


def proxy_anchor(loss: Any, leaves: Any, labels: Any) -> Any:
    """Of proxies as anchors."""
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    same = functional.one_hot(labels, len(loss.weight)).bool()
    near = (loss.scale * (loss.margin - cosines)).masked_fill(~same, -math.inf)
    far = (loss.scale * (cosines + loss.margin)).masked_fill(same, -math.inf)
    nothing = cosines.new_zeros(1, len(loss.weight))
    near, far = (torch.cat((x, nothing)).logsumexp(0) for x in (near, far))
    return near.sum() / same.any(0).sum() + far.mean()


class Peer(NamedTuple):
    """A loss and its plain form, the kind of its items, how many classes it has, and the score in it, if by pairs."""

    make: Callable[[], Any]
    plain: Callable[..., Any] | None
    kind: str
    classes: int = 0
    score: str | None = None


PAIRED = {
    "NegativeMLS isotropic": Peer(losses.NegativeMLS, negative_mls, "isotropic"),
    "NegativeMLS diagonal": Peer(losses.NegativeMLS, negative_mls, "diagonal"),
    "Triplet": Peer(losses.Triplet, triplet, "point"),
    "MultiSimilarity": Peer(losses.MultiSimilarity, multi_similarity, "point"),
    "ScoreNCE mls": Peer(partial(losses.ScoreNCE, "mls", temperature=float(DIM)), score_nce, "isotropic", score="mls"),
    **{
        f"ArcFace, {classes:,} classes": Peer(partial(losses.ArcFace, DIM, classes), arcface, "point", classes)
        for classes in (10_000, 100_000)
    },
    "ProxyAnchor, 10,000 classes": Peer(partial(losses.ProxyAnchor, DIM, 10_000), proxy_anchor, "point", 10_000),
}


# ---- losses of draws, [n, N, D], which `draws` makes -----------------------------------------------------------------


def log_iv(v: float, x: Any) -> Any:
    """Debye's expansion with two terms: 1.7e-8 at v = 63, x = 5."""
    root = (v * v + x * x).sqrt()
    p = v / root
    u1, u2 = (3 * p - 5 * p**3) / 24, (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152
    return root + v * (x / (v + root)).log() - 0.5 * (2 * math.pi * root).log() + torch.log1p(u1 / v + u2 / v**2)


def log_norm(dim: int, x: Any) -> Any:
    """The log of vMF's normalising constant."""
    v = dim / 2 - 1
    return v * x.log() - dim / 2 * math.log(2 * math.pi) - log_iv(v, x)


def mean_direction(e: Any) -> Any:
    """A(|e|) e / |e|."""
    kappa, dim = e.norm(dim=1, keepdim=True), e.shape[1]
    return (log_iv(dim / 2, kappa) - log_iv(dim / 2 - 1, kappa)).exp() * e / kappa


def wood(mu: Any, kappa: Any, n: int) -> Any:
    """n draws [n, N, D] of von Mises-Fisher distributions, by proposals for all until each is accepted."""
    shape, m = (n, len(kappa)), mu.shape[1] - 1
    c = (4 * kappa**2 + m * m).sqrt()
    a, b = (m + 2 * kappa + c) / 4, m / (2 * kappa + c)
    d = 4 * a * b / (1 + b) - m * math.log(m)
    half = torch.full_like(kappa, m / 2).expand(shape)
    proposals = torch.distributions.Beta(half, half)
    w, waiting = kappa.new_zeros(shape), torch.ones(shape, dtype=torch.bool, device=mu.device)
    while waiting.any():
        x, u = proposals.sample(), torch.rand_like(half)
        t = 2 * a * b / (1 - (1 - b) * x)
        accepted = waiting & (m * t.log() - t + d >= u.log())
        w = torch.where(accepted, (1 - (1 + b) * x) / (1 - (1 - b) * x), w)
        waiting = waiting & ~accepted
    aside = torch.randn(n, *mu.shape, device=mu.device)
    aside = functional.normalize(aside - (aside * mu).sum(-1, keepdim=True) * mu, dim=-1)
    return w[..., None] * mu + (1 - w * w).clamp(min=1e-10).sqrt()[..., None] * aside


def nivmf(z: Any, kappa: Any, mean: Any) -> Any:
    """The log density of draws, [n, N, C], under non-isotropic von Mises-Fisher distributions: |K z| by a product."""
    square, length, dim = kappa * kappa, (kappa * mean).norm(dim=1), z.shape[-1]
    stretched = (z * z @ square.T).sqrt()
    constant = log_norm(dim, length) + kappa.log().sum(1)
    return constant + z @ (square * mean).T / stretched - dim * stretched.log()


def el_nivmf(draws: Any, loss: Any, e: Any, labels: Any) -> Any:
    """The likelihood of draws under every class."""
    z, mean, kappa = draws(e, 5), functional.normalize(loss.directions), 0.1 + loss.log_concentration.exp()
    logs = nivmf(z, kappa, mean).logsumexp(0) - math.log(len(z))
    return functional.cross_entropy(logs / loss.log_temperature.exp(), labels)


def vmf_loss(draws: Any, loss: Any, e: Any, labels: Any) -> Any:
    """The likelihood of an embedding, normalised over draws: |z + w| by a product."""
    beta, weight, dim = loss.log_scale.exp(), loss.weight, e.shape[1]
    z = beta * draws(e, 10)
    lengths = ((z * z).sum(-1, keepdim=True) + (weight * weight).sum(1) + 2 * z @ weight.T).sqrt()
    partition = (log_norm(dim, weight.norm(dim=1)) - log_norm(dim, lengths)).logsumexp(-1).mean()
    return partition - beta * (mean_direction(e) * mean_direction(weight[labels])).sum(1).mean()
