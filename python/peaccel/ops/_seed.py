"""Seeds and other integers that callers give."""

from __future__ import annotations

import operator
import os
import sys
from typing import Any

import numpy as np

from peaccel.ops._array import Array, dtype_name, is_torch

__all__ = ["SEEDS", "as_integer", "as_seed"]

SEEDS = (0, 2**63 - 1)


def as_integer(owner: str, name: str, value: Any, least: int, largest: int) -> int:
    """An int within bounds; TypeError or ValueError names the argument."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{owner}: {name} must be an integer, got {type(value).__name__}") from None
    if not least <= number <= largest:
        raise ValueError(f"{owner}: {name} is {number}, expected {least} .. {largest}")
    return number


def as_seed(owner: str, seed: Any, mu: Array) -> Array:
    """An int64 array [] of mu's kind and device; not looked at where it is a tensor, which may have no value yet.

    None: from torch's generator, for numpy from fresh entropy.
    """
    torch: Any = sys.modules.get("torch")
    if is_torch(seed):
        if seed.dtype != torch.int64 or seed.ndim:
            got = f"{dtype_name(seed)} of shape {tuple(seed.shape)}"
            raise ValueError(f"{owner}: seed must be an integer or an int64 tensor of shape (), got {got}")
        if not is_torch(mu):
            raise TypeError(f"{owner}: seed is a torch tensor, expected an integer beside numpy arrays")
        return seed
    if seed is None:
        if is_torch(mu):
            return torch.randint(2**63 - 1, (), dtype=torch.int64, device=mu.device)
        seed = int.from_bytes(os.urandom(8), "little") >> 1
    seed = as_integer(owner, "seed", seed, *SEEDS)
    # A fill, which on a GPU waits for nothing.
    return torch.full((), seed, dtype=torch.int64, device=mu.device) if is_torch(mu) else np.asarray(seed, np.int64)
