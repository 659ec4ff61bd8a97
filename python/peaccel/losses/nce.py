"""The softmax over a batch of a score itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from peaccel import retrieval, scores
from peaccel.distributions import Distribution
from peaccel.losses._batch import entries_of_classes, mean_of, others_of_classes
from peaccel.losses.base import Loss
from peaccel.scores import Score

__all__ = ["ScoreNCE"]


class ScoreNCE(Loss[Distribution]):
    """Softmax over the batch of the score itself, with all items of the class as positives: variances learn to tell.

    With s_ij the score over the temperature and P(i) the other items of i's class, the mean over i that have any of::

        -log( sum over p in P(i) of exp s_ip / sum over j != i of exp s_ij )

    Of the log-likelihood ratio, the softmax is the posterior of which item of the batch has i's identity, and the loss
    minus the log of the posterior of its class. The sum is inside the log, unlike in supervised contrastive learning
    (Khosla et al. 2020, eq. 2 against 3): a mean of logs asks for all positives to score alike, the blurred one as the
    sharp one, which is what variances are there to deny.

    Parameters
    ----------
    score
        A name or `Score` that takes d with itself: "llr", "mls" (von Mises-Fisher: llr is mls and a constant, which the
        softmax drops), "cosine", ...
    prior_var
        For llr, the start of the variance of the positions of identities, > 0, a number or [D], one per dimension. Its
        log is learned. `pe.fit_prior(d, labels)` estimates it.
    prior_mean
        For llr, None, which is 0, or the start, a number or [D], of a mean that is learned.
    temperature
        > 0; 1 is that of a likelihood.

    Attributes
    ----------
    log_prior_var, prior_mean
        Parameters, or None.

    Raises
    ------
    TypeError
        The score does not take d.
    ValueError
        No two labels are equal, or all are; prior_var or temperature not above 0; a prior for another score than llr,
        or llr of normals without one.

    Notes
    -----
    One pairwise call and N x N numbers. It is of no paper; the demo's documentation compares it.

    Examples
    --------
    The last item lies at the other class. That costs less where its variance says that it is unsure:

    >>> import torch
    >>> from peaccel.losses import ScoreNCE
    >>> loss, labels = ScoreNCE("llr", prior_var=1.0), torch.tensor([0, 0, 1, 1])
    >>> mu = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [0.9, 0.0]])
    >>> items = [pe.Normal(mu, torch.tensor([0.1, 0.1, 0.1, var])) for var in (0.1, 5.0)]
    >>> [round(loss(d, labels).item(), 2) for d in items]
    [2.8, 0.4]
    """

    across = True
    log_prior_var: nn.Parameter | None
    prior_mean: nn.Parameter | None

    def __init__(
        self,
        score: str | Score = "llr",
        *,
        prior_var: float | Tensor | None = None,
        prior_mean: float | Tensor | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.score = scores.get(score)
        if not temperature > 0:
            raise ValueError(f"ScoreNCE: temperature is {temperature}, expected a number above 0")
        self.temperature = temperature
        start = {"prior_var": prior_var, "prior_mean": prior_mean}
        for name, value in start.items():
            if value is not None and name not in self.score.params:
                raise ValueError(f"ScoreNCE: {name} is given, which {self.score.name} does not have")
        prior = {name: None if x is None else torch.as_tensor(x, dtype=torch.float32) for name, x in start.items()}
        var, mean = prior.values()
        if var is not None and not var.is_meta and not (var > 0).all():
            raise ValueError(f"ScoreNCE: prior_var is {prior_var}, expected numbers above 0")
        self.log_prior_var = None if var is None else nn.Parameter(var.log())
        self.prior_mean = None if mean is None else nn.Parameter(mean.clone())

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        rows, counted = others_of_classes("ScoreNCE", labels)
        score = self.score
        if self.log_prior_var is not None:
            score = score(prior_var=self.log_prior_var.exp())
        if self.prior_mean is not None:
            score = score(prior_mean=self.prior_mean)
        if "seed" in score.params:
            score = score(seed=seed)
        logits = retrieval.pairwise(d, d, score)
        if self.temperature != 1:
            logits = logits / self.temperature
        of_class = entries_of_classes(logits, rows).masked_fill(~counted, -math.inf).logsumexp(1)
        of_others = logits.masked_fill(labels[:, None] == labels, -math.inf).logsumexp(1)
        # log(1 + others / class), which keeps its digits near 0; infinite of items alone in their class.
        return mean_of(softplus(of_others - of_class), counted.any(1))
