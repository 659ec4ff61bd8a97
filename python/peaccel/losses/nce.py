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
    temperature
        > 0; 1 is that of a likelihood.
    **start
        By name the start of each parameter of the score that is learned, a number or [D]. Of llr these are prior_var,
        > 0, of which the log is learned, and prior_mean; `pe.fit_prior(d, labels)` estimates both. Of norm_cosine it
        is mu. None, or a parameter that is not named, stays as the score has it.

    Attributes
    ----------
    log_prior_var, prior_mean, mu
        Those that are learned.

    Raises
    ------
    TypeError
        The score does not take d.
    ValueError
        No two labels are equal, or all are; prior_var or temperature not above 0; a parameter that the score does not
        have, or that nothing is fitted for; llr of normals without a prior.

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

    def __init__(
        self,
        score: str | Score = "llr",
        *,
        temperature: float = 1.0,
        **start: float | Tensor | None,
    ) -> None:
        super().__init__()
        self.score = scores.get(score)
        if not temperature > 0:
            raise ValueError(f"ScoreNCE: temperature is {temperature}, expected a number above 0")
        self.temperature = temperature
        for name, value in start.items():
            if value is not None and name not in self.score.fits:
                found = ", ".join(self.score.fits) or "none"
                raise ValueError(f"ScoreNCE: {name} cannot be learned of {self.score.name}, which has {found}")
        for name, fit in self.score.fits.items():
            value = start.get(name)
            x = None if value is None else torch.as_tensor(value, dtype=torch.float32)
            if x is not None and fit.positive:
                if not x.is_meta and not (x > 0).all():
                    raise ValueError(f"ScoreNCE: {name} is {value}, expected numbers above 0")
                x = x.log()
            self.register_parameter(self._key(name), None if x is None else nn.Parameter(x.clone()))

    def _key(self, name: str) -> str:
        """The name under which a parameter of the score is learned."""
        return f"log_{name}" if self.score.fits[name].positive else name

    def learned_score(self) -> Score:
        """The score with the parameters as learned so far, of which it can be differentiated."""
        learned = {name: x for name in self.score.fits if (x := self._parameters.get(self._key(name))) is not None}
        values = {name: x.exp() if self.score.fits[name].positive else x for name, x in learned.items()}
        return self.score(**values) if values else self.score

    @torch.no_grad()
    def restart(self, **values: float | Tensor) -> None:
        """Set parameters that are learned, such as by a prior that was fitted to items."""
        for name, value in values.items():
            parameter = self._parameters[self._key(name)]
            assert parameter is not None
            x = torch.as_tensor(value)
            parameter.copy_(x.log() if self.score.fits[name].positive else x)

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        rows, counted = others_of_classes("ScoreNCE", labels)
        score = self.learned_score()
        if "seed" in score.params:
            score = score(seed=seed)
        logits = retrieval.pairwise(d, d, score)
        if self.temperature != 1:
            logits = logits / self.temperature
        of_class = entries_of_classes(logits, rows).masked_fill(~counted, -math.inf).logsumexp(1)
        of_others = logits.masked_fill(labels[:, None] == labels, -math.inf).logsumexp(1)
        # log(1 + others / class), which keeps its digits near 0; infinite of items alone in their class.
        return mean_of(softplus(of_others - of_class), counted.any(1))
