"""Heads: pooled features -> distributions."""

import torch
from torch import Tensor, nn

from peaccel import Normal


class MeanHead(nn.Module):
    """Linear map to the unit sphere.

    Parameters
    ----------
    features
        Width of the input.
    dim
        Dimension of the embedding.
    """

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, dim)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, F] to unit rows [N, dim]."""
        return nn.functional.normalize(self.linear(features), dim=1)


class VarianceHead(nn.Module):
    """PFE's uncertainty module: FC-BN-ReLU-FC-BN, then one gain and one offset shared by all dimensions.

    var = 1e-6 + exp(gamma x + beta), where x has unit variance over a batch. gamma starts near 0, so training starts
    from one common variance e^beta and must earn every difference between images.

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
        return self.floor + torch.exp(self.gamma * self.layers(features) + self.beta)


class NormalHead(nn.Module):
    """A mean and a variance head side by side.

    Parameters
    ----------
    mean
        Module from features [N, F] to mu [N, D].
    variance
        Module from features [N, F] to var [N, D] or [N].
    """

    def __init__(self, mean: nn.Module, variance: nn.Module) -> None:
        super().__init__()
        self.mean = mean
        self.variance = variance

    def forward(self, features: Tensor) -> Normal:
        """Map features [N, F] to N normal distributions."""
        return Normal(self.mean(features), self.variance(features))
