"""Pooling: feature maps [N, C, H, W] -> features [N, C]."""

import torch
from torch import Tensor, nn

__all__ = ["Avg", "AvgMax", "GeM"]


class Avg(nn.Module):
    """Average of a map."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map feature maps [N, C, H, W] to features [N, C]."""
        return maps.mean((2, 3))


class GeM(nn.Module):
    """Generalised mean: (mean of max(x, eps)^p over the map)^(1/p).

    p = 1 is average pooling and p -> infinity is max pooling of what exceeds eps; p is learned along. Halves are
    widened to float32.

    Parameters
    ----------
    p
        Initial exponent, above 0.
    eps
        Least value of the map, above 0.

    References
    ----------
    Radenović, Tolias & Chum, Fine-tuning CNN Image Retrieval with No Human Annotation, TPAMI 2019, eq. 3.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        if not (p > 0 and eps > 0):
            raise ValueError(f"GeM: p is {p} and eps is {eps}, expected both above 0")
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        """Map feature maps [N, C, H, W] to features [N, C]."""
        with torch.autocast(maps.device.type, enabled=False):
            x = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp(min=self.eps)
            # Powers of x / max neither overflow nor vanish, and the result does not depend on the divisor.
            largest = x.detach().amax((2, 3), keepdim=True)
            return largest[:, :, 0, 0] * (x / largest).pow(self.p).mean((2, 3)).pow(1 / self.p)


class AvgMax(nn.Module):
    """Average plus maximum of a map.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 4.3.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Map feature maps [N, C, H, W] to features [N, C]."""
        return maps.mean((2, 3)) + maps.amax((2, 3))
