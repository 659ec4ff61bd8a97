"""Scores of some pairs of a batch, and distances between its means, which several losses need.

Where no shape and no branch may depend on labels, in compiled functions and on a GPU, for which nobody waits, there are
no lists of pairs: all pairs are scored, and a mask says which count. `on_gpu`, `is_static` and `may_look` alone decide
that. A device-side assertion in place of the checks would leave CUDA unusable.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from peaccel import ops, retrieval
from peaccel.distributions import Distribution, Point
from peaccel.losses._directions import directions
from peaccel.retrieval.plan import plan
from peaccel.scores import Score, get


def all_different(owner: str) -> ValueError:
    """Error of a loss where no two labels are equal."""
    return ValueError(f"{owner}: labels are all different, expected at least one pair of one class")


def all_equal(owner: str) -> ValueError:
    """Error of a loss where there is one class."""
    return ValueError(f"{owner}: labels are all equal, expected at least two classes")


def on_gpu(x: Tensor) -> bool:
    """Whether all pairs are scored by matrices, which a GPU multiplies in less time than it lists some."""
    return x.is_cuda


def is_static(x: Tensor) -> bool:
    """Whether no shape may depend on labels: on a GPU, and in compiled functions."""
    return on_gpu(x) or torch.compiler.is_compiling()


def may_look(x: Tensor) -> bool:
    """Whether labels may be read: not in compiled functions, nor while a graph of CUDA is captured."""
    return not torch.compiler.is_compiling() and not (on_gpu(x) and torch.cuda.is_current_stream_capturing())


def require_labels(loss: nn.Module, labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class's, where they may be looked at: on a GPU the index of another class ends the
    process.

    Raises
    ------
    ValueError
        Naming the loss, the labels' range and what it should lie in.
    """
    # A GPU is waited for once.
    if may_look(labels) and not torch.equal(labels.clamp(0, classes - 1), labels):
        low, high = map(int, labels.aminmax())
        raise ValueError(f"{type(loss).__name__}: labels are in {low} .. {high}, expected 0 .. {classes - 1}")


def same_class_pairs(labels: Tensor) -> Tensor:
    """Which ordered pairs i != j are of one class, [N, N] bool."""
    same = labels[:, None] == labels
    if torch.compiler.is_compiling():  # in whose code filling a diagonal takes as long as all else of a loss
        return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same.fill_diagonal_(False)


def pairs_of(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs are of one class, i != j, and which of two, [N, N] bool.

    Raises
    ------
    ValueError
        There are none of one or the other.
    """
    same = same_class_pairs(labels)
    require_pairs(owner, same)
    return same, labels[:, None] != labels


def pairs_of_one_class(owner: str, labels: Tensor) -> Tensor:
    """Which ordered pairs i != j are of one class, [N, N] bool; ValueError where there are none."""
    same = same_class_pairs(labels)
    require_pairs(owner, same, of_two=False)
    return same


def require_pairs(owner: str, same: Tensor, *, of_two: bool = True) -> None:
    """Refuse a batch without pairs of one class, [N, N] bool, or if asked of two, where they may be looked at."""
    if may_look(same):
        _require_count(owner, int(same.sum()), len(same), of_two=of_two)  # a GPU is waited for once


def _require_count(owner: str, count: int, rows: int, *, of_two: bool = True) -> None:
    """Refuse a batch in which so many ordered pairs of so many rows are of one class."""
    if not count:
        raise all_different(owner)
    if of_two and count == rows * (rows - 1):
        raise all_equal(owner)


def different_classes(owner: str, labels: Tensor) -> Tensor:
    """Which ordered pairs are of two classes, [N, N] bool; ValueError where there are none."""
    different = labels[:, None] != labels
    if may_look(labels) and not different.any():
        raise all_equal(owner)
    return different


def listed(owner: str, same: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rows and columns [M] of the pairs in a mask [N, N] of those of one class; None where the mask may not be read.

    Raises
    ------
    ValueError
        No pair is of one class, or all are.
    """
    if not may_look(same):
        return None
    rows, columns = same.nonzero(as_tuple=True)  # a GPU is waited for once
    _require_count(owner, len(rows), len(same))
    return rows, columns


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that count, 0 where none does; gradients of the others are 0."""
    return values.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def others_of_classes(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each item the rows of the others of its class, and which of them count, [N, K]: K is as many as the most
    have, or all N.

    Raises
    ------
    ValueError
        No two labels are equal, or all are.
    """
    if is_static(labels):
        same = same_class_pairs(labels)
        require_pairs(owner, same)
        return torch.arange(len(labels), device=labels.device).expand_as(same), same
    rows, counted = _rows_of_classes(owner, labels)
    if rows.shape[1] == len(labels):
        raise all_equal(owner)
    return rows, counted & (rows != _itself(labels))


def entries_of_classes(x: Tensor, rows: Tensor) -> Tensor:
    """The entries of a matrix [N, N] at the rows [N, K] of `others_of_classes`: of all rows it is the matrix itself,
    whose gradient need not be scattered."""
    return x if is_static(rows) else x.gather(1, rows)


def mean_score_of_classes(
    owner: str, d: Distribution, labels: Tensor, score: str | Score, *, costly: bool = False
) -> Tensor:
    """The mean score of the pairs i < j of one class; on the CPU, and of a costly score, no other pair is scored.

    Raises
    ------
    ValueError
        No two labels are equal; of a costly score also if all are.
    """
    if on_gpu(labels) and not (costly and may_look(labels) and not _draws(d, score)):
        same = same_class_pairs(labels)
        require_pairs(owner, same, of_two=costly)
        return mean_score_of_pairs(d, same.triu(), score, costly=costly, few=True)
    if torch.compiler.is_compiling():
        of_op: tuple[Tensor, list[Tensor]]
        of_op = mean_score_operator(*_arguments(d, score), labels, owner, torch.is_grad_enabled())
        return of_op[0]
    candidates = _candidates_of_classes(owner, labels)
    if costly and candidates.shape[1] == len(labels):
        raise all_equal(owner)
    return mean_of(retrieval.rescore(d, d, candidates, score), candidates >= 0)


def _candidates_of_classes(owner: str, labels: Tensor) -> Tensor:
    """For each item the rows of its class that `mean_score_of_classes` pairs it with, [N, K], and -1 for none."""
    rows, counted = _rows_of_classes(owner, labels)
    return rows.masked_fill(~counted | (rows <= _itself(labels)), -1)


def _itself(labels: Tensor) -> Tensor:
    """The row of each item, [N, 1]."""
    return torch.arange(len(labels), device=labels.device)[:, None]


def _rows_of_classes(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each item the rows of its class, the item's among them, and which count, as many as the most have: by sorted
    labels, whose work grows with the pairs of one class and not with all pairs.

    Raises
    ------
    ValueError
        No two labels are equal.
    """
    by_class, order = labels.sort(stable=True)
    contiguous = labels.contiguous()  # torch warns of others
    start, stop = (torch.searchsorted(by_class, contiguous, right=right)[:, None] for right in (False, True))
    most = int((stop - start).max())
    if most == 1:
        raise all_different(owner)
    place = start + torch.arange(most, device=labels.device)
    return order[place.clamp(max=len(labels) - 1)], place < stop


# -- as an operator ----------------------------------------------------------------------------------------------------


def _op_and_inputs(op: str, items: list[Tensor], seed: Tensor | None, n: int) -> tuple[Any, ops.Inputs]:
    """The op of a name, and its inputs."""
    record = next(record for record in ops.OPS if record.name == op)
    mu1, uncertainty1, mu2, uncertainty2, shared = items
    draws = None if seed is None else ops.Draws(seed, n)
    return record, ops.Inputs(mu1, uncertainty1, mu2, uncertainty2, shared, draws)


def _arguments(d: Distribution, score: str | Score) -> tuple[str, list[Tensor], Tensor | None, int]:
    """Those of `_op_and_inputs`, for a set with itself."""
    planned = plan(d, d, score, detach=False)
    seed, n, *_ = planned.inputs.draws or (None, 0)
    return planned.pair.op.name, list(planned.inputs.arrays), seed, n


def _mean_and_gradients(
    op: str, items: list[Tensor], seed: Tensor | None, n: int, labels: Tensor, owner: str, wanted: bool
) -> tuple[Tensor, list[Tensor]]:
    """The mean score, and its gradients by the arrays of an op's inputs if they are wanted, else nothing of these.

    The pairs are listed once for both.
    """
    record, inputs = _op_and_inputs(op, items, seed, n)
    candidates = _candidates_of_classes(owner, labels)
    counted = candidates >= 0
    mean = mean_of(ops.score(record, inputs, candidates), counted)
    if not wanted:
        return mean, [x.new_empty(0) for x in items]
    weights = (counted / counted.sum().clamp(min=1)).to(items[0].dtype)
    return mean, list(ops.score_backward(record, weights, inputs, candidates))


def _sum_and_gradients(
    op: str, items: list[Tensor], seed: Tensor | None, n: int, weights: Tensor, few: bool, wanted: bool
) -> tuple[Tensor, list[Tensor]]:
    """The sum of weights * scores of pairs i < j, and its gradients as those of `_mean_and_gradients`.

    Draws and their products are made once for both, and without the pairs i > j.
    """
    record, inputs = _op_and_inputs(op, items, seed, n)
    scores, gradients = ops.scores_and_gradients(record, weights, inputs, few=few, wanted=wanted)
    total = (weights * scores.masked_fill(weights == 0, 0)).sum()
    return total, [x.new_empty(0) for x in items] if gradients is None else list(gradients)


mean_score_operator = torch.library.custom_op(
    "peaccel::mean_score_of_classes",
    _mean_and_gradients,
    mutates_args=(),
    device_types="cpu",
    schema="(str op, Tensor[] items, Tensor? seed, int n, Tensor labels, str owner, bool wanted) -> (Tensor, Tensor[])",
)


sum_of_scores_operator = torch.library.custom_op(
    "peaccel::sum_of_scores",
    _sum_and_gradients,
    mutates_args=(),
    schema="(str op, Tensor[] items, Tensor? seed, int n, Tensor weights, bool few, bool wanted) -> (Tensor, Tensor[])",
)


def _shapes(op: str, items: list[Tensor], *others: Any) -> tuple[Tensor, list[Tensor]]:
    *_, wanted = others
    return items[0].new_empty(()), [x.new_empty(x.shape if wanted else 0) for x in items]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    _, gradients = output
    ctx.save_for_backward(*gradients)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, weight: Tensor, _: Any) -> tuple[Any, ...]:
    return None, [weight * x for x in ctx.saved_tensors], None, None, None, None, None


for operator in (mean_score_operator, sum_of_scores_operator):
    operator.register_fake(_shapes)
    operator.register_autograd(_differentiate, setup_context=_save)


# -- all pairs ---------------------------------------------------------------------------------------------------------


def mean_score_of_pairs(
    d: Distribution, pairs: Tensor, score: str | Score, *, costly: bool = False, few: bool = False
) -> Tensor:
    """The mean score of the pairs in a mask [N, N], of costly ones i < j alone; on the CPU, and of a costly score,
    the others are not computed, unless it compares draws, which a GPU multiplies in less time if not ``few`` count."""
    if on_gpu(pairs) and costly and _draws(d, score):
        weights = pairs.to(d.mu.dtype) / pairs.sum().clamp(min=1)
        of_op: tuple[Tensor, list[Tensor]]
        of_op = sum_of_scores_operator(*_arguments(d, score), weights, few, torch.is_grad_enabled())
        return of_op[0]
    if on_gpu(pairs) and not costly:
        return mean_of(retrieval.pairwise(d, d, score), pairs)
    every = torch.arange(len(pairs), device=pairs.device).expand_as(pairs)
    return mean_of(retrieval.rescore(d, d, every.masked_fill(~pairs, -1), score), pairs)


def _draws(d: Distribution, score: str | Score) -> bool:
    """Whether a score of items like these compares draws."""
    return bool(get(score).pair(d.kind, d.kind).op.sampled)


def unit_means(d: Distribution) -> Point:
    """The directions of the means; of a mean 0 it is 0, with gradient 0."""
    return Point(directions(d.mu))


def square_distances(d: Distribution) -> Tensor:
    """Squared distances of the means [N, N], by differences: those of near duplicates keep their digits."""
    means = Point(d.mu)
    squares: Tensor = -retrieval.pairwise(means, means, "neg_sq_l2")
    return squares


def distances(d: Distribution) -> Tensor:
    """Distances of the means [N, N]; where it is 0 so is its gradient."""
    squares = square_distances(d)
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
