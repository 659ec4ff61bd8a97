"""Heads: features -> distributions. A location head and an uncertainty head side by side, each a module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from peaccel.distributions import Normal, Point, Scaled, VonMisesFisher

__all__ = [
    "ACTIVATIONS",
    "Covariates",
    "MeanHead",
    "NormalHead",
    "PointHead",
    "ScaleHead",
    "ScaledHead",
    "ScaledMean",
    "SoftplusHead",
    "UncertaintyHead",
    "VarianceHead",
    "VonMisesFisherHead",
    "from_embedding",
    "positive",
    "widened",
]

FLOOR = 4.5399930e-05  # e^-10, the least variance and the inverse of the greatest concentration


def widened(features: Tensor) -> Tensor:
    """Features in float32 at least."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


class Covariates(nn.Module):
    """Standardises the last columns of its input, covariates beside features, by the covariates of training items.

    Parameters
    ----------
    count
        How many columns, at least 1.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("deviation", torch.ones(count))

    def fit(self, rows: Tensor) -> Covariates:
        """Take over the mean and the deviation of the last columns of training items [N, F + count].

        Raises
        ------
        ValueError
            A column is the same for all items.
        """
        columns = rows[:, -len(self.mean) :].double()
        same = torch.nonzero((columns == columns[0]).all(0))
        if len(same):
            place = int(same[0])
            value = f"{columns[0, place]:g} for all training items"
            raise ValueError(f"covariates: column {place} is {value}, expected one that differs")
        self.mean.copy_(columns.mean(0))
        self.deviation.copy_(columns.std(0))
        return self

    def forward(self, rows: Tensor) -> Tensor:
        """Map features and covariates [N, F + count] to the same with standardised covariates."""
        features, columns = rows[:, : -len(self.mean)], rows[:, -len(self.mean) :]
        return torch.cat([features, (columns - self.mean) / self.deviation], dim=1)


def _precise(layers: nn.Module, features: Tensor) -> Tensor:
    """Outputs of layers, in float32 under autocast too, whose 16-bit floats have 3 digits: uncertainties of items would
    be equal, and directions of other length."""
    with torch.autocast(features.device.type, enabled=False):
        out: Tensor = layers(widened(features))
    return out


class MeanHead(nn.Module):
    """Linear map, to the unit sphere unless told otherwise; in float32 under autocast too.

    Parameters
    ----------
    features
        Width of the input.
    dim
        Dimension of the embedding.
    unit
        Whether rows are scaled to length 1.
    """

    def __init__(self, features: int, dim: int, unit: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(features, dim)
        self.unit = unit

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to rows [N, dim]."""
        mu = _precise(self.linear, features)
        return normalize(mu, dim=1) if self.unit else mu


class VarianceHead(nn.Module):
    """PFE's uncertainty module: FC-BN-ReLU-FC-BN, then one gain and one offset shared by all dimensions.

    var = 1e-6 + exp(gamma x + beta), where x has unit variance over a batch. gamma starts near 0, so training starts
    from one common variance e^beta and must earn every difference between items.

    Parameters
    ----------
    features
        Width of the input.
    dim
        Dimension of the embedding; one variance for each.
    hidden
        Width of the hidden layer.

    References
    ----------
    Shi & Jain, Probabilistic Face Embeddings, ICCV 2019; initial values and floor from the published implementation.
    """

    floor = 1e-6

    def __init__(self, features: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden, bias=False),
            nn.BatchNorm1d(hidden, eps=1e-3),
            nn.ReLU(),
            nn.Linear(hidden, dim, bias=False),
            nn.BatchNorm1d(dim, eps=1e-3, affine=False),
        )
        self.gamma = nn.Parameter(torch.tensor(1e-4))
        self.beta = nn.Parameter(torch.tensor(-7.0))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to variances [N, dim], each above `floor`."""
        return self.floor + torch.exp(self.gamma * _precise(self.layers, features) + self.beta)

    @torch.no_grad()
    def begin(self, var: float) -> None:
        """Set the variance that all items start from."""
        self.beta.fill_(math.log(max(var, self.floor)))


def positive(x: Tensor) -> Tensor:
    """Positive function of numbers: 1 + x for x >= 0, 1 / (1 - x) below. It is 1 at 0 with slope 1.

    By it heads start from 1, and neither overflow nor vanish as exp does. ("invlin" of the published code of
    Probabilistic Embeddings Revisited.)
    """
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp(max=0)))


class UncertaintyHead(nn.Module):
    """Three linear layers F -> F/2 -> F/4 -> out with ReLUs between, then `positive` above a floor.

    Parameters
    ----------
    features
        Width of the input, at least 4.
    out
        1 for one number an item, [N]; D for one a dimension, [N, D].
    start
        The value that the last layer starts around.
    floor
        The least value.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, sec. 4.3.
    """

    start: Tensor

    def __init__(self, features: int, out: int = 1, start: float = 1.0, floor: float = FLOOR) -> None:
        super().__init__()
        half, quarter = max(features // 2, 1), max(features // 4, 1)
        first, second, last = nn.Linear(features, half), nn.Linear(half, quarter), nn.Linear(quarter, out)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
        self.floor = floor
        self.register_buffer("start", torch.tensor(start))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to numbers [N] or [N, out], each above `floor`."""
        x = self.floor + self.start * positive(_precise(self.layers, features))
        return x[:, 0] if x.shape[1] == 1 else x

    @torch.no_grad()
    def begin(self, start: float) -> None:
        """Set `start` to this value."""
        self.start.fill_(start)


class SoftplusHead(nn.Module):
    """FC-ReLU-FC-softplus: one positive number an item.

    Parameters
    ----------
    features
        Width of the input.
    start
        The value that it starts around, > 0.
    hidden
        Width of the hidden layer.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, sec. 4.
    """

    def __init__(self, features: int, start: float, hidden: int = 256) -> None:
        super().__init__()
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), last)
        self.gain = start / softplus(torch.zeros((), device="cpu")).item()

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to numbers [N]."""
        return self.gain * softplus(_precise(self.layers, features)[:, 0])


class ScaledMean(nn.Module):
    """A location head times one positive learned number: a sphere whose radius is learned.

    Parameters
    ----------
    mean
        Module from features [N, F] to rows [N, D].
    """

    def __init__(self, mean: nn.Module) -> None:
        super().__init__()
        self.mean = mean
        self.log_radius = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to rows [N, D]."""
        rows: Tensor = self.mean(features) * self.log_radius.exp()
        return rows


Activation = Literal["sigmoid", "exp", "softplus", "relu", "one_plus_sigmoid", "shifted_sigmoid", "identity"]

ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "sigmoid": lambda x, c: c * torch.sigmoid(x),
    "one_plus_sigmoid": lambda x, c: c * (1 + torch.sigmoid(x)),
    "shifted_sigmoid": lambda x, c: c + torch.sigmoid(x),
    "exp": lambda x, c: torch.exp(x),
    "softplus": lambda x, c: c * softplus(x),
    "relu": lambda x, c: c * torch.relu(x),
    "identity": lambda x, c: x,
}
"""Activations of ScaleFace's scale, by name: functions of the head's output and the constant c."""


class ScaleHead(nn.Module):
    """ScaleFace's head: linear layers without bias, each but the last with a batch norm and a ReLU, and an activation.

    Parameters
    ----------
    features
        Width of the input.
    hidden
        Widths of the hidden layers; (512,) in the paper, () for a linear head.
    activation
        A key of `ACTIVATIONS`; "sigmoid" in the paper.
    constant
        Its c; 64 in the paper.

    References
    ----------
    Kail et al., ScaleFace, 2022, sec. 3.2 and supplement D.
    """

    def __init__(
        self, features: int, hidden: tuple[int, ...] = (512,), activation: str = "sigmoid", constant: float = 64.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((features, *hidden), hidden, strict=False):
            linear = nn.Linear(before, after, bias=False)
            nn.init.kaiming_normal_(linear.weight)
            layers += [linear, nn.BatchNorm1d(after, affine=False), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], 1, bias=False))
        self.activation, self.constant = activation, constant

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to scales [N]."""
        return ACTIVATIONS[self.activation](_precise(self.layers, features)[:, 0], self.constant)


class _Beside(nn.Module):
    """The base of heads that put a location head and an uncertainty head on the same features."""

    def __init__(self, mean: nn.Module, uncertainty: nn.Module) -> None:
        super().__init__()
        self.mean = mean
        self.uncertainty = uncertainty


class PointHead(nn.Module):
    """A location head alone: points."""

    def __init__(self, mean: nn.Module) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, features: Tensor) -> Point[Tensor]:
        """Map features [N, F] to N points."""
        return Point(self.mean(features).float())


class NormalHead(_Beside):
    """Means and variances.

    Parameters
    ----------
    mean
        Module from features [N, F] to mu [N, D].
    uncertainty
        Module from features [N, F] to var [N, D] or [N].
    """

    def forward(self, features: Tensor) -> Normal[Tensor]:
        """Map features [N, F] to N normal distributions."""
        return Normal(self.mean(features).float(), self.uncertainty(features).float())


class VonMisesFisherHead(_Beside):
    """Directions and concentrations.

    Parameters
    ----------
    mean
        Module from features [N, F] to rows [N, D] of any length.
    uncertainty
        Module from features [N, F] to [N], 1 / kappa: uncertainty, as a variance is; None takes the length of the row
        for kappa.
    """

    def __init__(self, mean: nn.Module, uncertainty: nn.Module | None = None) -> None:
        super().__init__(mean, nn.Identity() if uncertainty is None else uncertainty)
        self.by_length = uncertainty is None

    def forward(self, features: Tensor) -> VonMisesFisher[Tensor]:
        """Map features [N, F] to N von Mises-Fisher distributions."""
        mu = self.mean(features).float()
        if self.by_length:
            return from_embedding(mu)
        return VonMisesFisher(normalize(mu, dim=1), 1 / self.uncertainty(features).float())


def from_embedding(e: Tensor) -> VonMisesFisher[Tensor]:
    """The von Mises-Fisher distributions whose natural parameters are embeddings: kappa = |e|, mu = e / |e|.

    Parameters
    ----------
    e
        [N, D], of any length; half precision becomes float32.

    Returns
    -------
    N distributions. An embedding of length 0 is the uniform distribution, with gradient 0.

    References
    ----------
    Kirchhof et al., A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning, ECCV 2022, sec. 3.2.
    """
    if e.dtype in (torch.float16, torch.bfloat16):
        e = e.float()
    kappa = torch.linalg.vector_norm(e, dim=1)
    none = ~(kappa[:, None] > 0)
    # A row of zeros gets an arbitrary direction; it is divided by 1, or its gradient would be 0 * inf.
    axis = torch.zeros_like(e)
    axis[:, 0] = 1
    mu = torch.where(none, axis, e) / kappa[:, None].masked_fill(none, 1)
    return VonMisesFisher(mu, kappa)


class ScaledHead(_Beside):
    """Directions and scales.

    Parameters
    ----------
    mean
        Module from features [N, F] to rows [N, D] of any length.
    uncertainty
        Module from features [N, F] to scales [N].
    """

    def forward(self, features: Tensor) -> Scaled[Tensor]:
        """Map features [N, F] to N scaled directions."""
        return Scaled(normalize(self.mean(features).float(), dim=1), self.uncertainty(features).float())
