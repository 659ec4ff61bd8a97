"""NCA++ over proxies that are distributions, by any of seven distances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import cross_entropy, normalize

from peaccel import retrieval, scores
from peaccel.distributions import NonIsotropicVonMisesFisher, Point, VonMisesFisher
from peaccel.heads import from_embedding
from peaccel.losses._batch import require_labels
from peaccel.losses._directions import directions
from peaccel.losses.base import Loss, processes, require_kind

__all__ = ["ProxyNCAPP"]

# For each distance the score that it is the negative of.
SIMILARITIES = {
    "el_nivmf": scores.el_nivmf,
    "el_vmf": scores.mls,
    "b_vmf": scores.ppk(rho=0.5),
    "kl_vmf": scores.neg_kl(direction="query_to_gallery"),
    "nivmf": scores.nivmf,
    "l2": scores.neg_sq_l2,
    "cos": scores.cosine,
}
FLOOR = 0.1  # the least concentration
SEEDS = 2**63 - 1  # the largest
STRIDE = 0x5851F42D4C957F2D  # difference of the seeds of two processes: odd, so that no two seeds are equal


class ProxyNCAPP(Loss[VonMisesFisher | Point]):
    """NCA++ between images and proxies that are distributions on the sphere.

    ``mean -log(exp(-d(rho_y, zeta) / t) / sum_c exp(-d(rho_c, zeta) / t))``: images zeta are von Mises-Fisher, a
    Point the one of `from_embedding`; proxies rho have a direction mu_p and a concentration, per class (kappa_p) or
    per class and dimension (K), with the density of `peaccel.scores.nivmf`. The distance is

    ============  ================================================  ================
    el_nivmf      -log of the mean density rho(z) of n draws z      K [C, D]
    nivmf         -log rho(mu_z)                                    K [C, D]
    el_vmf        -log of the integral of rho zeta                  kappa_p [C]
    b_vmf         -log of the integral of sqrt(rho zeta)            kappa_p [C]
    kl_vmf        KL(zeta || rho)                                   kappa_p [C]
    l2            |kappa_z mu_z - kappa_p mu_p|^2                   kappa_p [C]
    cos           -cos(mu_z, mu_p)                                  none
    ============  ================================================  ================

    Parameters
    ----------
    dim, classes
        D >= 2 and C.
    distance
        One of the above.
    temperature
        Initial t, > 0. Published values: 1 for el_*, b_vmf, kl_vmf and l2, 1/32 for nivmf, 1/256 for cos, 0.003 for
        el_nivmf beside Proxy-Anchor.
    concentration
        Initial concentration of every proxy, > 0.1. Published values: 10, 50 for el_nivmf in 512 dimensions, 200 for
        l2.
    n
        Draws of an image, 1 .. 1024, for el_nivmf.

    Attributes
    ----------
    directions
        [C, D], of any length: mu_p before normalisation. They start with length `concentration`, which is no part of
        the proxy but sets how far it turns in a step.
    log_concentration
        [C, D], [C] or None: the concentration is 0.1 + exp(log_concentration).
    log_temperature
        []: t = exp(log_temperature).

    Each is a parameter that may be trained at another rate; `directions` may be the `weight` of a `ProxyAnchor`
    (eq. 7).

    Raises
    ------
    TypeError
        d is of another kind.
    ValueError
        An unknown distance; a temperature or a concentration that is too low; d of another dimension; labels beyond
        0 .. C-1.

    Notes
    -----
    Memory [N, C]; n draws of an image are made once for all proxies, and not kept. Where several processes train,
    each draws alone.

    References
    ----------
    Kirchhof et al., A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning, ECCV 2022, eqs. 1 - 6 (1, 2
    and 6 lack a minus sign).

    Examples
    --------
    Proxies are distributions that are learned; they start from the means of their classes:

    >>> import torch
    >>> from peaccel.losses import ProxyNCAPP
    >>> loss, labels = ProxyNCAPP(dim=3, classes=2, distance="el_vmf", concentration=10.0), torch.tensor([0, 1])
    >>> d = pe.VonMisesFisher(torch.eye(3)[:2], torch.tensor([20.0, 20.0]))
    >>> loss.start(d.mu, labels)
    >>> loss.proxies().mu.tolist(), round(loss(d, labels).item(), 2)
    ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 0.0)
    """

    similarity_of: ClassVar[Mapping[str, scores.Score]] = SIMILARITIES

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        distance: str = "el_nivmf",
        temperature: float = 1.0,
        concentration: float = 10.0,
        n: int = 5,
    ) -> None:
        super().__init__()
        if distance not in SIMILARITIES:
            raise ValueError(f"ProxyNCAPP: distance is {distance!r}, expected one of {', '.join(SIMILARITIES)}")
        if not temperature > 0:
            raise ValueError(f"ProxyNCAPP: temperature is {temperature}, expected a number above 0")
        if not concentration > FLOOR:
            raise ValueError(f"ProxyNCAPP: concentration is {concentration}, expected a number above {FLOOR}")
        score = self.similarity_of[distance]
        self.score = score(n=n) if "n" in score.params else score
        self.distance = distance
        self.directions = nn.Parameter(concentration * normalize(torch.randn(classes, dim)))
        shape = {"cos": None, "el_nivmf": (classes, dim), "nivmf": (classes, dim)}.get(distance, (classes,))
        start = math.log(concentration - FLOOR)
        self.log_concentration = None if shape is None else nn.Parameter(torch.full(shape, start))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    @torch.no_grad()
    def start(self, mu: Tensor, labels: Tensor) -> None:
        """Turn each proxy to the mean of its class's embeddings; a class that has none stays.

        Parameters
        ----------
        mu
            [N, D] embeddings of the training set, or their directions.
        labels
            [N] int64 in 0 .. C-1.
        """
        sums = torch.zeros_like(self.directions).index_add_(0, labels, mu.to(self.directions))
        lengths = self.directions.norm(dim=1, keepdim=True)
        self.directions.copy_(
            torch.where(sums.norm(dim=1, keepdim=True) > 0, lengths * normalize(sums), self.directions)
        )

    def proxies(self) -> VonMisesFisher[Tensor] | NonIsotropicVonMisesFisher[Tensor] | Point[Tensor]:
        """The C proxies; points for the distance cos, which knows no concentration."""
        return self._proxies(self.directions.dtype)

    def _proxies(
        self, dtype: torch.dtype
    ) -> VonMisesFisher[Tensor] | NonIsotropicVonMisesFisher[Tensor] | Point[Tensor]:
        """The C proxies, made of parameters of this dtype, or of their own where that is wider."""
        dtype = torch.promote_types(dtype, self.directions.dtype)
        mu = directions(self.directions.to(dtype))
        if self.log_concentration is None:
            return Point(mu)
        kappa = FLOOR + self.log_concentration.to(dtype).exp()
        return VonMisesFisher(mu, kappa) if kappa.ndim == 1 else NonIsotropicVonMisesFisher(mu, kappa)

    def similarities(self, d: VonMisesFisher | Point, seed: int | None = None) -> Tensor:
        """Minus the distances of N images and C proxies, [N, C]."""
        sides: tuple[Any, Any] = from_embedding(d.mu) if isinstance(d, Point) else d, self._proxies(d.mu.dtype)
        if self.distance == "l2":
            sides = _natural(sides[0]), _natural(sides[1])
        score = self.score(seed=seed) if "seed" in self.score.params else self.score
        similarities: Tensor = retrieval.pairwise(*sides, score)
        return similarities

    def loss(self, d: VonMisesFisher | Point, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ("vmf", "point"))
        require_labels(self, labels, len(self.directions))
        if processes() > 1:
            # Draws are addressed by rows, which each process numbers from 0.
            start: Any = torch.randint(SEEDS, (), device=d.mu.device) if seed is None else seed
            seed = (start + (STRIDE * dist.get_rank() & SEEDS)) & SEEDS  # of tensors, sums wrap around at 2^64
        return cross_entropy(self.similarities(d, seed) / self.log_temperature.exp(), labels)


def _natural(d: VonMisesFisher) -> Point:
    """The natural parameters of the distributions, kappa mu."""
    return Point(d.kappa[:, None] * d.mu)
