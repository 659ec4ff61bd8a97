"""The batches of training: which rows each has, and the items in these rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from peaccel.losses._batch import sent
from peaccel.methods.method import Embed, Schedule

__all__ = ["Data", "augmented", "balanced", "deliver", "length", "move", "take"]

Rows: TypeAlias = NDArray[np.int64]


class Rowwise(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int:
        """Count the items."""

    def __getitem__(self, row: int, /) -> Any:
        """One item."""


@runtime_checkable
class Augmentable(Protocol):
    """A data set that the passes of training see in another way."""

    def augmented(self) -> Rowwise:
        """The same items as these passes see them."""


Data: TypeAlias = Tensor | tuple[Tensor, ...] | Rowwise
"""All items: a tensor or several with one row each, or a map-style dataset (images on disk)."""


def balanced(labels: Rows, schedule: Schedule, rng: np.random.Generator, embed: Embed | None = None) -> Iterator[Rows]:
    """Deal all items into batches made of groups of one class.

    Every item, and so every class, comes up at least once an epoch. Nothing is repeated but what fills the last group
    and the last batch.

    Parameters
    ----------
    labels
        [N]; a class whose size is no multiple of `images_per_class` shares a group with the next class.
    schedule
        Groups in a batch and items in a group.
    rng
        Shuffles classes, items within classes, and groups.
    embed
        Not asked.

    Yields
    ------
    Rows [classes_per_batch images_per_class], or fewer where there are not as many groups.
    """
    size = schedule.images_per_class
    classes = rng.permutation(labels.max() + 1)
    by_class = np.lexsort((rng.random(len(labels)), classes[labels]))
    groups = rng.permutation(np.resize(by_class, (-(-len(labels) // size), size)))
    count = min(schedule.classes_per_batch, len(groups))
    yield from np.resize(groups, (-(-len(groups) // count), count * size))


def length(data: Data) -> int:
    """The number of items."""
    return len(data[0] if isinstance(data, tuple) else data)


def take(data: Data, rows: Tensor) -> Any:
    """The items in these rows, as one batch."""
    if isinstance(data, Tensor):
        return data[rows]
    if isinstance(data, tuple):
        return tuple(x[rows] for x in data)
    return default_collate([data[int(row)] for row in rows])


def move(x: Any, device: torch.device | str) -> Any:
    """A batch on a device: tensors and distributions, in tuples or alone; tensors are sent while the host goes on."""
    if isinstance(x, (tuple, list)):
        return tuple(move(item, device) for item in x)
    return sent(x, torch.device(device)) if isinstance(x, Tensor) else x.to(device)


def deliver(
    data: Data, batches: Rows | list[Rows], seed: int, first: int = 0, workers: int = 0
) -> Iterator[tuple[Rows, Any]]:
    """The rows and the items of each batch in turn.

    Parameters
    ----------
    data
        All items.
    batches
        [batches, rows], or a list of the rows of each.
    seed
        Seed of what a dataset draws for an item (augmentation). Draws depend on it, the batch and the place in it, so
        that neither the number of workers nor an interruption changes anything.
    first
        The batch to begin with.
    workers
        Processes that prepare the items of a dataset.
    """
    if isinstance(data, (Tensor, tuple)):
        for rows in batches[first:]:
            yield rows, take(data, torch.from_numpy(rows))
        return
    drawn = []
    for i, rows in enumerate(batches[first:], first):
        seeds = np.random.SeedSequence((seed, i)).generate_state(len(rows), np.uint64) >> np.uint64(1)
        drawn.append(list(zip(rows.tolist(), seeds.tolist(), strict=True)))
    # The loader draws a seed, which would move the draws of a run that goes on from here. A list of batches serves as a
    # batch sampler, which torch's types do not say.
    separate = torch.Generator().manual_seed(0)
    loader = DataLoader(_SeededItems(data), batch_sampler=drawn, num_workers=workers, generator=separate)
    yield from zip(batches[first:], loader, strict=True)


def augmented(data: Data) -> Data:
    """The items as a training pass sees them: images by their transform for training, if they have one."""
    return data.augmented() if isinstance(data, Augmentable) else data


class _SeededItems(Dataset[Any]):
    """A data set whose items are drawn with a seed of their own, so that each draw is reproducible."""

    def __init__(self, data: Rowwise) -> None:
        self.data = data

    def __getitem__(self, key: tuple[int, int]) -> Any:
        row, seed = key
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.data[row]
