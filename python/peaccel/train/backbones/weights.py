"""Weights by file: read without running what is in it, and fitted strictly."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from peaccel._utils.atomic_files import PathLike

__all__ = ["State", "fit", "read"]

State: TypeAlias = dict[str, Tensor]

SHOWN = 5


def read(path: PathLike) -> State:
    """Read a state dict.

    Parameters
    ----------
    path
        A .safetensors file, or one that torch saved, which is read with ``weights_only=True``.

    Returns
    -------
    Tensors by name, on the CPU.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file holds anything but tensors by name.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file, expected weights")
    if Path(path).suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: is no safetensors file ({error})") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file nearly any, by the form and the place of the damage
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: is no state dict that torch.load(weights_only=True) reads ({reason})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path}: holds a {type(state).__name__}, expected a state dict")
    others = [str(key) for key, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{path}: holds {_listed(others)} beside tensors, expected a state dict")
    return dict(state)


def fit(module: nn.Module, state: State, where: str, ignored: tuple[str, ...] = ()) -> None:
    """Load a state dict that has exactly a module's names and shapes.

    Parameters
    ----------
    module
        The module that takes the weights.
    state
        Tensors by name. Counts of batches may be missing: files from before PyTorch 0.4.1 have none.
    where
        Begins the message.
    ignored
        Beginnings of names that the state may have beside the module's, such as a classifier's.

    Raises
    ------
    ValueError
        A name is missing or unexpected, or a shape is another; the module is as it was.
    """
    expected = module.state_dict()
    offered = {name: tensor for name, tensor in state.items() if name in expected or not name.startswith(ignored)}
    faults = {
        "missing": [n for n in expected if n not in offered and not n.endswith("num_batches_tracked")],
        "unexpected": [n for n in offered if n not in expected],
        "of another shape": [
            f"{n} {tuple(offered[n].shape)}, expected {tuple(expected[n].shape)}"
            for n in expected
            if n in offered and offered[n].shape != expected[n].shape
        ],
    }
    if any(faults.values()):
        text = "; ".join(f"{kind}: {_listed(names)}" for kind, names in faults.items() if names)
        raise ValueError(f"{where}: weights do not fit; {text}")
    module.load_state_dict(offered, strict=False)


def _listed(names: Iterable[str]) -> str:
    shown, rest = list(names)[:SHOWN], list(names)[SHOWN:]
    return ", ".join(shown) + (f" and {len(rest)} more" if rest else "")
