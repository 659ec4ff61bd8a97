"""What metrics are given, as arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["as_array"]


def as_array(owner: str, name: str, x: ArrayLike, shape: str, dtype: Any = None) -> NDArray[Any]:
    """An array, a list, a column of a table or a tensor on the CPU as an array of as many axes as "(Q, K)" has."""
    tensor: Any = x
    try:
        array = np.asarray(tensor.detach() if hasattr(tensor, "detach") else x, dtype)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, words for numbers, a GPU
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{owner}: {name} cannot be an array of shape {shape} ({reason})") from None
    if array.ndim != len(shape.strip("(),").split(",")):
        raise ValueError(f"{owner}: {name} has shape {array.shape}, expected {shape}")
    return array
