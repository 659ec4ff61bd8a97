"""A trained model applied to items."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from peaccel.distributions import Distribution, concat
from peaccel.train.batch_sampling import Data, length, move, take

__all__ = ["apply", "embed", "tensors"]


def embed(model: nn.Module, data: Data, batch: int = 256) -> Any:
    """Apply a model to items, in evaluation mode and without gradients.

    Parameters
    ----------
    model
        The module from inputs to a distribution, or a tuple of distributions (of two modalities).
    data
        N items: a tensor, a tuple of tensors, or a map-style dataset.
    batch
        Items at a time, at least 1.

    Returns
    -------
    N distributions with numpy arrays, float32 or float64; a tuple where the model gives one. The model is in the mode
    that it was in.

    Examples
    --------
    A head as it starts, with variances about 0.1:

    >>> import torch
    >>> from peaccel.heads import MeanHead, NormalHead, UncertaintyHead
    >>> from peaccel.train import embed
    >>> model = NormalHead(MeanHead(8, 3), UncertaintyHead(8, start=0.1))
    >>> d = embed(model, torch.zeros(1000, 8), batch=100)
    >>> d, round(float(d.var.mean()), 1)
    (Normal(N=1000, D=3, isotropic, float32, numpy), 0.1)
    """
    parts = apply(model, data, batch)
    if isinstance(parts[0], tuple):
        return tuple(_as_numpy(list(column)) for column in zip(*parts, strict=True))
    return _as_numpy(parts)


def apply(module: nn.Module, data: Data, batch: int = 256) -> list[Any]:
    """The outputs of a module for all items, computed by batches in evaluation mode, on the CPU."""
    modes = {part: part.training for part in module.modules()}
    device = next((x.device for x in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    module.eval()
    try:
        with torch.no_grad():
            rows = range(0, length(data), batch)
            every = torch.arange(length(data))
            return [move(module(move(take(data, every[i : i + batch]), device)), "cpu") for i in rows]
    finally:
        for part, mode in modes.items():
            part.training = mode


def tensors(parts: list[Any]) -> Data:
    """The outputs of all batches joined in one tensor, or in one tuple of tensors."""
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return torch.cat(parts)


def _as_numpy(parts: list[Distribution]) -> Distribution:
    d = concat(parts)
    return type(d)(*(np.asarray(x.float() if x.dtype == torch.bfloat16 else x) for x in d.arrays))
