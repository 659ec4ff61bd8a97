"""Which pairs of a batch there are by its labels, where these may be read.

Where no shape and no branch may depend on labels, in compiled functions and on a GPU, for which nobody waits, there are
no lists of pairs: all pairs are scored, and a mask says which count. `on_gpu`, `is_static` and `may_look` alone decide
that. A device-side assertion in place of the checks would leave CUDA unusable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


def on_host(labels: Tensor) -> NDArray[np.int64] | None:
    """The labels as the host reads them; None where they may not be looked at.

    A GPU is waited for once for each tensor, and not at all for one that is `known_on_host`.
    """
    if not may_look(labels):
        return None
    if labels.is_cpu:
        return labels.numpy()
    version, known = getattr(labels, "on_host", (None, None))
    if version != labels._version:
        known = labels.cpu().numpy()
        known_on_host(labels, known)
    return known


def known_on_host(labels: Any, known: NDArray[np.int64]) -> Tensor:
    """The labels, of which the host holds a copy, so that nobody waits for a GPU to read them."""
    labels.on_host = labels._version, known
    found: Tensor = labels
    return found


def sent(x: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """An array or a tensor of the host on a device; a GPU copies it from pinned memory, and the host does not wait."""
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    if device.type == "cuda" and x.is_cpu:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def require_labels(loss: nn.Module, labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class's, where they may be looked at: on a GPU the index of another class ends the
    process.

    Raises
    ------
    ValueError
        Naming the loss, the labels' range and what it should lie in.
    """
    known = on_host(labels)
    if known is not None:
        low, high = known.min(), known.max()
        if low < 0 or high >= classes:
            raise ValueError(f"{type(loss).__name__}: labels are in {low} .. {high}, expected 0 .. {classes - 1}")


def same_class_pairs(labels: Tensor) -> Tensor:
    """Which ordered pairs i != j are of one class, [N, N] bool."""
    same = labels[:, None] == labels
    if torch.compiler.is_compiling():  # in whose code filling a diagonal takes as long as all else of a loss
        return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same.fill_diagonal_(False)


def require_pairs(owner: str, labels: Tensor, *, of_two: bool = True) -> None:
    """Refuse labels that are all different, or if asked all equal, where they may be looked at: ValueError."""
    known = on_host(labels)
    if known is not None:
        ordered = np.sort(known)
        equal = np.count_nonzero(ordered[1:] == ordered[:-1])
        if not equal:
            raise all_different(owner)
        if of_two and equal == len(known) - 1:
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
        require_pairs(owner, labels)
        same = same_class_pairs(labels)
        return torch.arange(len(labels), device=labels.device).expand_as(same), same
    rows, counted = _rows_of_classes(owner, labels, of_two=True)
    counted &= rows != np.arange(len(rows))[:, None]
    return sent(rows, labels.device), sent(counted, labels.device)


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
    rows, counted = _rows_of_classes(owner, labels, of_two=of_two)
    return sent(np.where(counted & (rows > np.arange(len(rows))[:, None]), rows, -1), labels.device)


def pairs_of_classes(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of both items of each ordered pair i != j of one class; ValueError where there are none, or no others."""
    rows, counted = _rows_of_classes(owner, labels, of_two=True)
    first, place = np.nonzero(counted & (rows != np.arange(len(rows))[:, None]))
    return sent(first, labels.device), sent(rows[first, place], labels.device)


def _rows_of_classes(
    owner: str, labels: Tensor, *, of_two: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each item the rows of its class, the item's among them, and which count, as many as the most have: by sorted
    labels, whose work grows with the pairs of one class and not with all pairs.

    Raises
    ------
    ValueError
        No two labels are equal, or if asked all are.
    """
    known = on_host(labels)
    assert known is not None  # callers have asked
    order = known.argsort(kind="stable")
    by_class = known[order]
    start, stop = (np.searchsorted(by_class, known, side=side)[:, None] for side in ("left", "right"))
    most = int((stop - start).max())
    if most == 1:
        raise all_different(owner)
    if of_two and most == len(known):
        raise all_equal(owner)
    place = start + np.arange(most)
    return order[np.minimum(place, len(known) - 1)], place < stop
