"""Losses that compare embeddings with one learned vector a class, their cosines alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from peaccel.distributions import Distribution
from peaccel.losses._batch import require_labels
from peaccel.losses._directions import directions
from peaccel.losses.base import Loss

__all__ = ["ProxyAnchor", "ProxyNCA"]


class ProxyAnchor(Loss[Distribution]):
    """Proxy-Anchor: each proxy against all embeddings of the batch; the hardest weigh most.

    ``1/|P+| sum_{p in P+} log(1 + sum_{x of p} exp(-scale (cos(x, p) - margin)))
    + 1/C sum_p log(1 + sum_{x not of p} exp(scale (cos(x, p) + margin)))``, P+ the classes in the batch. Over
    several processes the batch is that of all.

    Parameters
    ----------
    dim, classes
        D and C.
    scale
        alpha, > 0.
    margin
        delta, of cosines.
    weight
        The proxies [C, D], of any length: proxies of another loss, to be trained by both. None: new ones.

    Raises
    ------
    ValueError
        scale is not positive, weight is of another shape, d of another dimension; labels beyond 0 .. C-1.

    Notes
    -----
    Takes any distribution with tensors, and reads mu alone, of any length. One product of matrices and [N, C] of
    memory. A row of zeros has cosine 0.

    References
    ----------
    Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, eq. 4; as in the authors' code negatives are
    averaged over all classes, also those without any.

    Examples
    --------
    Each item lies at its proxy, opposite to the other one; with labels exchanged, at the wrong one:

    >>> import torch
    >>> from peaccel.losses import ProxyAnchor
    >>> ends = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> loss = ProxyAnchor(dim=2, classes=2, weight=torch.nn.Parameter(ends))
    >>> [round(loss(pe.Point(ends), torch.tensor(labels)).item(), 3) for labels in ([0, 1], [1, 0])]
    [0.0, 70.4]
    """

    across = True

    def __init__(
        self, dim: int, classes: int, *, scale: float = 32.0, margin: float = 0.1, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"ProxyAnchor: scale is {scale}, expected a number above 0")
        if weight is None:
            weight = nn.Parameter(torch.empty(classes, dim))
            nn.init.kaiming_normal_(weight, mode="fan_out")
        if tuple(weight.shape) != (classes, dim):
            raise ValueError(f"ProxyAnchor: weight has shape {tuple(weight.shape)}, expected ({classes}, {dim})")
        self.scale, self.margin, self.weight = scale, margin, weight

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        require_labels(self, labels, len(self.weight))
        cosines, column = _cosines(self, d, self.weight), labels[:, None]
        few = len(labels) <= len(self.weight)
        same = column == (labels if few else torch.arange(len(self.weight), device=labels.device))
        near = (self.scale * (self.margin - cosines.gather(1, column))).expand_as(same).masked_fill(~same, -torch.inf)
        far = (self.scale * (cosines + self.margin)).scatter(1, column, -torch.inf)
        # By items `near` has equal columns for all rows of a class, of which one counts; by classes empty ones.
        shares = 1 / same.sum(0, dtype=cosines.dtype) if few else same.any(0).to(cosines.dtype)
        return (shares * _log1p_sum_exp(near)).sum() / shares.sum() + _log1p_sum_exp(far).mean()


def _cosines(loss: nn.Module, d: Distribution, weight: Tensor) -> Tensor:
    """Cosines [N, C]; 0 for a row of zeros."""
    if d.dim != weight.shape[1]:
        raise ValueError(f"{type(loss).__name__}: d has dimension {d.dim}, expected {weight.shape[1]}, that of weight")
    return linear(directions(d.mu), directions(weight.to(d.mu.dtype)))


def _log1p_sum_exp(x: Tensor) -> Tensor:
    """log(1 + sum_i exp(x_i)) of each column; 0 of a column of -inf."""
    return torch.cat((x, x.new_zeros(1, x.shape[1]))).logsumexp(0)


class ProxyNCA(Loss[Distribution]):
    """Proxy-NCA: the proxy of the item's class is to be nearer than the others, and is not among these.

    ``mean -log(exp(-scale d_y) / sum_{c != y} exp(-scale d_c))``, d the squared distance of directions, 2 - 2 cos. The
    loss may be negative. With that proxy among the others it is `peaccel.losses.nca.ProxyNCAPP`.

    Parameters
    ----------
    dim, classes
        D and C >= 2.
    scale
        Inverse temperature of d, > 0. The paper has 1; vectors of length 3, as in much code, are 9, since
        |3 x - 3 p|^2 = 9 |x - p|^2.

    Raises
    ------
    ValueError
        scale is not positive, there is one class only, d is of another dimension; labels beyond 0 .. C-1.

    Notes
    -----
    Takes any distribution with tensors, and reads mu alone, of any length. One product of matrices and [N, C] of
    memory. A row of zeros has cosine 0.

    References
    ----------
    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017, eq. 4.

    Examples
    --------
    Each item lies at its proxy, and the only other one is at a squared distance of 4:

    >>> import torch
    >>> from peaccel.losses import ProxyNCA
    >>> loss = ProxyNCA(dim=2, classes=2, scale=1.0)
    >>> loss.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> loss(pe.Point(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])), torch.tensor([0, 1])).item()
    -4.0
    """

    def __init__(self, dim: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"ProxyNCA: scale is {scale}, expected a number above 0")
        if classes < 2:
            raise ValueError(f"ProxyNCA: classes is {classes}, expected at least 2")
        self.scale, self.weight = scale, nn.Parameter(torch.randn(classes, dim) / 8)

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        require_labels(self, labels, len(self.weight))
        # -d, less the constant 2, which cancels.
        near = 2 * self.scale * _cosines(self, d, self.weight)
        column = labels[:, None]
        return (near.scatter(1, column, -torch.inf).logsumexp(1) - near.gather(1, column)[:, 0]).mean()
