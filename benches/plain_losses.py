"""Losses as a user of torch would write them best, and the sampler and norm that some of them need; torch alone.

Pairs come from products of matrices where there are such, all in float32. A statement takes the module of the loss,
whose parameters it reads, the fields of a batch and labels.
"""

from __future__ import annotations

import math
from typing import Any

from benches.data import optional

torch = optional("torch")
functional = torch.nn.functional if torch is not None else None


def squared(x: Any) -> Any:
    norms = (x * x).sum(1)
    return (norms[:, None] + norms - 2 * x @ x.T).clamp(min=0)


def same_and_different(labels: Any) -> tuple[Any, Any]:
    """Pairs of one class but for an item with itself, and pairs of two."""
    different = labels[:, None] != labels
    return ~different & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), different


def negative_mls(loss: Any, leaves: Any, labels: Any) -> Any:
    mu, var = leaves
    i, j = torch.triu(labels[:, None] == labels, 1).nonzero(as_tuple=True)
    v, dim = var[i] + var[j], mu.shape[1]
    if v.ndim == 2:
        return ((mu[i] - mu[j]).square() / v + v.log()).sum(1).mean() / 2 + dim / 2 * math.log(2 * math.pi)
    return ((mu[i] - mu[j]).square().sum(1) / v + dim * (2 * math.pi * v).log()).mean() / 2


def triplet(loss: Any, leaves: Any, labels: Any) -> Any:
    apart = squared(functional.normalize(leaves[0]))
    same, different = same_and_different(labels)
    anchors, positives = same.nonzero(as_tuple=True)
    hinges = (apart[anchors, positives, None] - apart[anchors] + loss.margin).relu()
    negative = different[anchors]
    return (hinges * negative).sum() / negative.sum()


def multi_similarity(loss: Any, leaves: Any, labels: Any) -> Any:
    x = functional.normalize(leaves[0])
    cosines, (same, different) = x @ x.T, same_and_different(labels)
    hardest = cosines.masked_fill(~different, -math.inf).amax(1, keepdim=True)
    easiest = cosines.masked_fill(~same, math.inf).amin(1, keepdim=True)
    near = same & (cosines - loss.margin < hardest)
    far = different & (cosines + loss.margin > easiest)
    pulled = ((-loss.alpha * (cosines - loss.threshold)).exp() * near).sum(1).log1p() / loss.alpha
    return (pulled + ((loss.beta * (cosines - loss.threshold)).exp() * far).sum(1).log1p() / loss.beta).mean()


def score_nce(loss: Any, leaves: Any, labels: Any) -> Any:
    mu, var = leaves
    v = var[:, None] + var
    logits = -(squared(mu) / v + mu.shape[1] * (2 * math.pi * v).log()) / 2 / loss.temperature
    of_class, of_others = (logits.masked_fill(~pairs, -math.inf).logsumexp(1) for pairs in same_and_different(labels))
    return functional.softplus(of_others - of_class).mean()


def arcface(loss: Any, leaves: Any, labels: Any) -> Any:
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    own = cosines.gather(1, labels[:, None])
    turned = own * math.cos(loss.margin) - (1 - own * own).clamp(min=1e-7).sqrt() * math.sin(loss.margin)
    own = torch.where(own > -math.cos(loss.margin), turned, own - loss.margin * math.sin(loss.margin))
    return functional.cross_entropy(loss.scale * cosines.scatter(1, labels[:, None], own), labels)


def proxy_anchor(loss: Any, leaves: Any, labels: Any) -> Any:
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    same = functional.one_hot(labels, len(loss.weight)).bool()
    near = (loss.scale * (loss.margin - cosines)).masked_fill(~same, -math.inf)
    far = (loss.scale * (cosines + loss.margin)).masked_fill(same, -math.inf)
    nothing = cosines.new_zeros(1, len(loss.weight))
    near, far = (torch.cat((x, nothing)).logsumexp(0) for x in (near, far))
    return near.sum() / same.any(0).sum() + far.mean()


# ---- losses of draws: `pairs` compares draws [n, N, D] with the arrays of classes [C, ...], `draws` makes them -------


def log_iv(v: float, x: Any) -> Any:
    """Debye's expansion with two terms: 1.7e-8 at v = 63, x = 5."""
    root = (v * v + x * x).sqrt()
    p = v / root
    u1, u2 = (3 * p - 5 * p**3) / 24, (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152
    return root + v * (x / (v + root)).log() - 0.5 * (2 * math.pi * root).log() + torch.log1p(u1 / v + u2 / v**2)


def log_norm(dim: int, x: Any) -> Any:
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


def el_nivmf(pairs: Any, draws: Any, loss: Any, e: Any, labels: Any) -> Any:
    z, mean, kappa = draws(e, 5), functional.normalize(loss.directions), 0.1 + loss.log_concentration.exp()
    length, dim = (kappa * mean).norm(dim=1), e.shape[1]
    cosines, stretched = pairs(z, kappa, mean)
    logs = log_norm(dim, length) + kappa.log().sum(1) + length * cosines - dim * stretched.log()
    return functional.cross_entropy((logs.logsumexp(0) - math.log(len(z))) / loss.log_temperature.exp(), labels)


def stretched_by_rows(z: Any, kappa: Any, mean: Any) -> tuple[Any, Any]:
    """cos(K z, K mu) and |K z|, [n, N, C], as in the formulas."""
    found = []
    for draw in z:
        x = kappa * draw[:, None]
        found.append((functional.cosine_similarity(x, kappa * mean, dim=-1), x.norm(dim=-1)))
    cosines, lengths = map(torch.stack, zip(*found, strict=True))
    return cosines, lengths


def stretched_by_products(z: Any, kappa: Any, mean: Any) -> tuple[Any, Any]:
    """cos(K z, K mu) and |K z| from two inner products of a draw and a class, by products of matrices."""
    square = kappa * kappa
    lengths = (z * z @ square.T).sqrt()
    return z @ (square * mean).T / (lengths * (kappa * mean).norm(dim=1)), lengths


def vmf_loss(pairs: Any, draws: Any, loss: Any, e: Any, labels: Any) -> Any:
    beta, weight, dim = loss.log_scale.exp(), loss.weight, e.shape[1]
    lengths = pairs(beta * draws(e, 10), weight)
    partition = (log_norm(dim, weight.norm(dim=1)) - log_norm(dim, lengths)).logsumexp(-1).mean()
    return partition - beta * (mean_direction(e) * mean_direction(weight[labels])).sum(1).mean()


def lengths_by_rows(z: Any, weight: Any) -> Any:
    """|z + w|, [n, N, C], as in the formula."""
    return torch.stack([(draw[:, None] + weight).norm(dim=-1) for draw in z])


def lengths_by_products(z: Any, weight: Any) -> Any:
    return ((z * z).sum(-1, keepdim=True) + (weight * weight).sum(1) + 2 * z @ weight.T).sqrt()
