"""Checks of seeds and of other integer arguments."""

from __future__ import annotations

import operator
import os
import sys
from typing import Any

import numpy as np

from peaccel._utils.arrays import Array, device_of, dtype_name, is_torch, require_same_kind

__all__ = ["SEEDS", "as_integer", "as_seed", "folded", "is_source"]

SEEDS = (0, 2**63 - 1)


def as_integer(owner: str, name: str, value: Any, least: int, largest: int) -> int:
    """The value as an int in [least, largest]; TypeError or ValueError names the argument."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{owner}: {name} must be an integer, got {type(value).__name__}") from None
    if not least <= number <= largest:
        raise ValueError(f"{owner}: {name} is {number}, expected {least} .. {largest}")
    return number


def folded(seed: int) -> int:
    """The seed for one of torch's generators, which on the CPU looks at 32 bits: all 63 bits count, and smaller seeds
    than 2^32 stay as they are.
    """
    return (seed ^ (seed >> 32) * 0x9E3779B1) & 0xFFFFFFFF


def is_source(seed: Any) -> bool:
    """Whether a seed is not a fixed number: None or a generator, which give each call a new one, or a tensor."""
    return seed is None or is_torch(seed) or _home(seed) is not None


def _home(seed: Any) -> str | None:
    """The device of a generator, as of arrays: "numpy", "cpu", "cuda:0" ...; None for any other object."""
    if isinstance(seed, np.random.Generator):
        return "numpy"
    torch = sys.modules.get("torch")
    return str(seed.device) if torch is not None and isinstance(seed, torch.Generator) else None


def as_seed(owner: str, seed: Any, mu: Array) -> Array:
    """The seed as an int64 array [] of mu's kind and device.

    A tensor's value is not checked, as it may have none yet. A generator, which must be on mu's device, draws a seed.
    For None, torch's default generator draws one; for numpy it comes from fresh entropy.
    """
    torch: Any = sys.modules.get("torch")
    if is_torch(seed):
        if seed.dtype != torch.int64 or seed.ndim:
            got = f"{dtype_name(seed)} of shape {tuple(seed.shape)}"
            raise ValueError(f"{owner}: seed must be an integer or an int64 tensor of shape (), got {got}")
        require_same_kind(owner, "seed", seed, "mu", mu)
        return seed
    home, expected = _home(seed), device_of(mu)
    if home not in (None, expected):
        kind = TypeError if "numpy" in (home, expected) else ValueError
        got, wanted = ("a numpy generator" if x == "numpy" else f"a torch generator on {x}" for x in (home, expected))
        raise kind(f"{owner}: seed is {got}, expected {wanted} like mu")
    if is_torch(mu) and is_source(seed):
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device=mu.device, generator=seed)
    if home is not None:
        seed = seed.integers(2**63)
    elif seed is None:
        seed = int.from_bytes(os.urandom(8), "little") >> 1
    seed = as_integer(owner, "seed", seed, *SEEDS)
    # Filling a tensor does not wait for a GPU, unlike a copy.
    return torch.full((), seed, dtype=torch.int64, device=mu.device) if is_torch(mu) else np.asarray(seed, np.int64)
