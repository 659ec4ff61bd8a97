"""The mean score of pairs of a batch: its value and gradients come out of one call, as one node of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from peaccel import ops, retrieval
from peaccel.distributions import Distribution
from peaccel.losses._batch import later_of_classes, mean_of
from peaccel.ops._autograd import wanted_of
from peaccel.ops._dispatch import transformed
from peaccel.retrieval.plan import plan
from peaccel.scores import Score

__all__ = ["mean_score"]


def mean_score(
    d: Distribution, other: Distribution, score: str | Score, chosen: Tensor, *, of: str = "counts", owner: str = ""
) -> Tensor:
    """The mean score of pairs, of which the others are not computed.

    Parameters
    ----------
    d, other
        Both sides of the pairs.
    score
        A name or a score that takes them.
    chosen
        How often each pair counts, [N, M].
    of
        What else it is: "rows" [N, K] of the other side, -1 for none, or "labels" [N] of one set, of which pairs i < j
        of one class count. Or how its "counts" are summed on a GPU, of pairs i < j of one set by a score that compares
        draws: "few" are compared one by one, of "many" draws are multiplied.
    owner
        The loss, which errors of labels name.

    Raises
    ------
    ValueError
        No two labels are equal.
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and transformed(d.mu):
        rows, counts = _listed(chosen, of, owner)
        return mean_of(retrieval.rescore(d, other, rows, score), counts)
    planned = plan(d, other, score, detach=False)
    items, (seed, n, *_) = planned.inputs.arrays, planned.inputs.draws or (None, 0)
    wanted = wanted_of([x.requires_grad for x in items]) if torch.is_grad_enabled() else 0
    if compiling:  # which takes no tensor as two arguments
        items = tuple(x.view_as(x) for x in items)
    mean: Tensor = _MeanScore.apply(planned.pair.op.name, seed, n, chosen, of, owner, wanted, *items)
    return mean


def _listed(chosen: Tensor, of: str, owner: str) -> tuple[Tensor, Tensor]:
    """The rows [N, K] of the other side that each item is paired with, -1 for none, and how often each counts."""
    if of in ("rows", "labels"):
        rows = chosen if of == "rows" else later_of_classes(owner, chosen)
        return rows, rows >= 0
    rows_of_other = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    return rows_of_other.masked_fill(chosen == 0, -1), chosen


def _mean_and_gradients(
    op: str, items: list[Tensor], seed: Tensor | None, n: int, chosen: Tensor, of: str, owner: str, wanted: int
) -> tuple[Tensor, list[Tensor]]:
    """The mean score, and its gradients by the arrays of an op's inputs if any are wanted."""
    record: Any = next(record for record in ops.OPS if record.name == op)
    mu1, uncertainty1, mu2, uncertainty2, shared = items
    inputs = ops.Inputs(mu1, uncertainty1, mu2, uncertainty2, shared, None if seed is None else ops.Draws(seed, n))
    above = of in ("few", "many")
    rows, counts = (None, chosen) if above else _listed(chosen, of, owner)
    weights = counts.to(mu1.dtype)
    weights = weights * (1 / weights.sum().clamp(min=1))
    found = ops.scores_and_gradients(record, weights, inputs, rows, few=of == "few", wanted=wanted)
    mean = (weights * found[0].masked_fill(weights == 0, 0)).sum() if above else mean_of(found[0], counts)
    return mean, [x.new_empty(0) for x in items] if found[1] is None else list(found[1])


def _shapes(op: str, items: list[Tensor], *others: Any) -> tuple[Tensor, list[Tensor]]:
    *_, wanted = others
    return items[0].new_empty(()), [x.new_empty(x.shape if wanted else 0) for x in items]


mean_score_operator = ops.define(
    "mean_score",
    "str op, Tensor[] items, Tensor? seed, int n, Tensor chosen, str of, str owner, int wanted",
    "(Tensor, Tensor[])",
    _mean_and_gradients,
    _shapes,
)


class _MeanScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, op: str, seed: Tensor | None, n: int, chosen: Tensor, of: str, owner: str, wanted: int, *items: Tensor
    ) -> Tensor:
        mean: Tensor
        mean, gradients = mean_score_operator(op, list(items), seed, n, chosen, of, owner, wanted)
        ctx.save_for_backward(*gradients)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[7:]
        return *(None,) * 7, *(
            grad * x if wanted else None for x, wanted in zip(ctx.saved_tensors, needed, strict=True)
        )
