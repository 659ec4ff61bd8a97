"""The base class of losses: full precision, and one batch over all processes that train together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from peaccel.distributions import Distribution
from peaccel.losses._batch import may_look
from peaccel.ops._dispatch import transformed

D = TypeVar("D", bound=Distribution)


class Loss(nn.Module, Generic[D]):
    """A loss of a batch of distributions; subclasses write `loss`.

    Half precision becomes float32, also within `torch.autocast`; float64 stays. Where every process of
    `torch.distributed` holds a part of the batch, a loss over pairs (`across = True`) is that of the whole batch, with
    gradients to all parts: the mean over processes of its gradients, as DistributedDataParallel takes it, is the
    gradient of one process with the whole batch. All parts have one length.

    On the CPU, but in compiled functions and under torch.func, signs and directions of 64 items are checked before the
    loss, and all items where it is not finite.

    Examples
    --------
    A new loss. Half precision is computed, and comes back, in float32:

    >>> import torch
    >>> from peaccel.losses import Loss
    >>> class UnitLength(Loss):
    ...     def loss(self, d, labels, seed):
    ...         return (d.mu.norm(dim=1) - 1).square().mean()
    >>> mu = torch.tensor([[0.0, 3.0], [0.0, 1.0]], dtype=torch.bfloat16)
    >>> UnitLength()(pe.Point(mu), labels=torch.tensor([0, 1]))
    tensor(2.)
    """

    across: ClassVar[bool] = False

    def forward(self, d: D, labels: Tensor, seed: int | None = None) -> Tensor:
        """The loss.

        Parameters
        ----------
        d
            N distributions with tensors.
        labels
            [N] int64.
        seed
            Seed of the draws, for losses that draw; None takes one from torch's generator.

        Returns
        -------
        Scalar, float32, or float64 where d is.

        Raises
        ------
        TypeError
            d is no distribution, or of a kind that this loss does not take.
        ValueError
            There are no items; labels are not N integers; items are negative, as logarithms of variances are, or no
            directions, or the loss is not finite because an item is not; processes have batches of different lengths.
        """
        owner = type(self).__name__
        require_batch(owner, d, labels)
        with full_precision(labels):
            d = widened(d)
            if self.across and processes() > 1:
                d, labels = gathered(owner, d, labels)
            d.check_rows()
            return required_finite(owner, self.loss(d, labels, seed), d)

    def loss(self, d: D, labels: Tensor, seed: int | None) -> Tensor:
        """The loss in full precision, over the whole batch."""
        raise NotImplementedError


def require_batch(owner: str, d: Any, labels: Any, name: str = "d", name_of_labels: str = "labels") -> None:
    """Refuse anything but N >= 1 distributions and their labels: TypeError, or ValueError."""
    if not isinstance(d, Distribution):
        raise TypeError(f"{owner}: {name} is {type(d).__name__}, expected a distribution")
    if not len(d):
        raise ValueError(f"{owner}: {name} has no items, expected at least 1")
    if not isinstance(labels, Tensor) or labels.shape != (len(d),) or labels.dtype != torch.int64:
        got = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels)
        raise ValueError(f"{owner}: {name_of_labels} are {got}, expected int64 of shape ({len(d)},)")


class NotFiniteError(ValueError):
    """A loss that is not finite because an item is not."""


def required_finite(owner: str, value: Tensor, *sides: Distribution) -> Tensor:
    """The value of a loss; NotFiniteError where it is not finite, and an item of a side is not or is negative.

    On a GPU, in compiled functions and under torch.func nothing is looked at.
    """
    if value.is_cpu and may_look(value) and not transformed(value) and not math.isfinite(value.item()):
        for d in sides:
            try:
                d.validate()
            except ValueError as error:
                raise NotFiniteError(f"{owner}: the loss is {value.item()}: {error}") from None
    return value


def full_precision(labels: Tensor) -> AbstractContextManager[Any]:
    """Where nothing is computed in half precision, on the device of the labels."""
    device = labels.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def widened(d: D) -> D:
    """Items of half precision in float32; others as they are."""
    return d.to(torch.float32) if d.mu.dtype in (torch.float16, torch.bfloat16) else d


def require_kind(loss: nn.Module, d: Distribution, kinds: Sequence[str]) -> None:
    """Refuse a distribution of another kind.

    Raises
    ------
    TypeError
        Naming the loss and the kinds that it takes.
    """
    if d.kind not in kinds:
        raise TypeError(f"{type(loss).__name__}: d is {d!r}, expected {' or '.join(kinds)}")


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first_row(rows: int) -> int:
    """The number, in the whole batch, of the first of this process's rows: draws are addressed by it."""
    return rows * dist.get_rank() if processes() > 1 else 0


def gathered(owner: str, d: D, labels: Tensor, name: str = "d") -> tuple[D, Tensor]:
    """The items and labels of all processes.

    Raises
    ------
    ValueError
        On every process, before anything else is sent: they have different numbers of items.
    """
    if may_look(labels):
        sizes = [torch.empty(1, dtype=torch.int64, device=labels.device) for _ in range(processes())]
        dist.all_gather(sizes, torch.full_like(sizes[0], len(d)))
        lengths = torch.cat(sizes).tolist()  # a GPU is waited for once
        if len(set(lengths)) > 1:
            raise ValueError(f"{owner}: {name} of the processes have {lengths} items, expected as many of each")
    return type(d)(*map(gather, d.arrays)), gather(labels)


def gather(x: Tensor) -> Tensor:
    """The parts of all processes, one after the other, with gradients to each."""
    joined: Tensor = _Gather.apply(x)
    return joined


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(processes())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # Every process has the whole loss; the sum over them, which is then averaged, counts it once.
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(processes())[dist.get_rank()]
