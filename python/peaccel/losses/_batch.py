"""Which pairs of a batch there are by its labels, where these may be read.

Where no shape and no branch may depend on labels, in compiled functions and on a GPU, for which nobody waits, there are
no lists of pairs: all pairs are scored, and a mask says which count. `on_gpu`, `is_static` and `may_look` alone decide
that. A device-side assertion in place of the checks would leave CUDA unusable.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


def require_pairs(owner: str, same: Tensor, *, of_two: bool = True) -> None:
    """Refuse a batch without pairs of one class, [N, N] bool, or if asked of two, where they may be looked at."""
    if may_look(same):
        count, rows = int(same.sum()), len(same)  # a GPU is waited for once
        if not count:
            raise all_different(owner)
        if of_two and count == rows * (rows - 1):
            raise all_equal(owner)


def mean_of(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of the values that count, 0 where none does; gradients of the others are 0."""
    total, count = sum_of(values, counts)
    return total / count.clamp(min=1)


def sum_of(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the values that count, each as often as it counts where these are numbers, and how many do."""
    if counts.dtype == torch.bool:
        return values.masked_fill(~counts, 0).sum(), counts.sum()
    weights = counts.to(values.dtype)
    return (values.masked_fill(weights == 0, 0) * weights).sum(), weights.sum()


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


def later_of_classes(owner: str, labels: Tensor, *, of_two: bool = False) -> Tensor:
    """For each item the later rows of its class, [N, K], and -1 for none.

    Raises
    ------
    ValueError
        No two labels are equal, or if asked all are.
    """
    rows, counted = _rows_of_classes(owner, labels)
    if of_two and rows.shape[1] == len(labels):
        raise all_equal(owner)
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
