"""Losses that are likelihoods of whether two items match."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peaccel import scores
from peaccel.distributions import Normal
from peaccel.losses._between import ItemPairs, PairLoss
from peaccel.losses.base import require_kind

__all__ = ["HIB"]


class HIB(PairLoss[Normal]):
    """Hedged Instance Embeddings: binary cross-entropy of the match probability of pairs, without the regulariser.

    With p_ij = E sigmoid(-a |z_i - z_j| + b) over draws of both, a and b learned::

        loss = (mean of -log p_ij over pairs of one class + mean of -log(1 - p_ij) over pairs of two) / 2

    1 - sigmoid(x) = sigmoid(-x), so log(1 - p) is the score with -a and -b, and neither log cancels. Isotropic normals'
    p is by quadrature, diagonal ones' by the n x n pairs of n draws of each. KL(N(mu, var) || N(0, I)), which the paper
    adds, is `pe.kl`: the method weighs it.

    Parameters
    ----------
    n
        Draws of each item, 1 .. 1024.

    Attributes
    ----------
    log_a, b
        Parameters []. a = exp(log_a) stays positive; a starts from 1, b from 0, or both from `fit_scale`.

    Raises
    ------
    TypeError
        d is not Normal.
    ValueError
        No two labels are equal, or all are; n out of range.

    Notes
    -----
    The paper and its followers do not say how they average. The loss takes means over either kind of pairs, each half,
    as in the code above: otherwise the many pairs of two classes decide alone. Pairs are scored once each, not in both
    orders, 64 quadrature nodes or n^2 distances a pair; no N x N matrix holds more than numbers. Gradients are found
    along with the value, and are not differentiated again.

    References
    ----------
    Oh et al., Modeling uncertainty with hedged instance embeddings, ICLR 2019, eqs. 2, 3 and 5. Karpukhin et al.,
    Probabilistic Embeddings Revisited, 2022, eqs. 9 and 10.

    Examples
    --------
    `fit_scale` puts the distance at which items match with probability 1/2 between those within and between classes:

    >>> import torch
    >>> from peaccel.losses import HIB
    >>> d = pe.Normal(torch.tensor([[0.0, 0.0], [0.0, 0.1], [3.0, 0.0], [3.0, 0.1]]), torch.full((4,), 1e-4))
    >>> loss, labels = HIB(), torch.tensor([0, 0, 1, 1])
    >>> before = loss(d, labels).item()
    >>> loss.fit_scale(d.mu)
    >>> round(before, 2), round(loss(d, labels).item(), 2)
    (0.4, 0.22)
    """

    def __init__(self, *, n: int = 8) -> None:
        super().__init__()
        self.score = scores.hib(n=n)
        self.log_a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))

    def fit_scale(self, mu: Tensor) -> None:
        """Start from a = 1 / mean |mu|, over the elements of means [N, D], and b = a r, so that p(r) = 1/2.

        r is the root mean square of the distances of all pairs. The published code leaves b at 0; a r is about
        1.8 sqrt(D), so that in 32 dimensions no two items match then.
        """
        with torch.no_grad():
            self.log_a.copy_(-mu.abs().mean().log())
            self.b.copy_(self.log_a.exp() * (2 * mu.var(0).sum()).sqrt())

    def of_pairs(self, pairs: ItemPairs[Normal], seed: int | None) -> Tensor:
        require_kind(self, pairs.d, ("normal_isotropic", "normal_diagonal"))
        a = self.log_a.exp()
        match = pairs.mean(self.score(a=a, b=self.b, seed=seed), costly=True)
        differ = pairs.mean(self.score(a=-a, b=-self.b, seed=seed), different=True, costly=True)
        return -(match + differ) / 2
