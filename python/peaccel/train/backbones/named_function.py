"""Encoders that a function in the caller's Python file makes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peaccel._utils.python_files import load_function
from peaccel.train.backbones import weights
from peaccel.train.backbones.network import ImageInput, Network

__all__ = ["NamedFunction"]


class NamedFunction(Network):
    """The module that a function makes, as a network.

    Parameters
    ----------
    name
        A Python file and a function without arguments in it, such as my_file.py:make. The function returns a module
        from images [N, C, H, W] to features [N, F] or maps [N, F, H, W]. The module's ``input``, an `ImageInput`, says
        which images it expects.
    expected
        The images unless the module says others.

    Raises
    ------
    FileNotFoundError, ImportError
        The file, or a library that it imports, is not there.
    ValueError
        There is no such function, or it makes no such module.
    """

    any_size = True

    def __init__(self, name: str, expected: ImageInput) -> None:
        super().__init__()
        module = load_function(name)()
        if not isinstance(module, nn.Module):
            raise ValueError(f"{name}: makes a {type(module).__name__}, expected a torch module")
        self.module = module
        self.input = getattr(module, "input", expected)
        training = module.training
        try:
            with torch.no_grad():
                shape = tuple(module.eval()(self.input.zeros()).shape)
        except (AttributeError, RuntimeError, TypeError) as error:
            what = f"images of shape {(*self.input.zeros().shape,)}"
            raise ValueError(f"{name}: the module does not map {what} to a tensor ({error})") from None
        module.train(training)
        if len(shape) not in (2, 4):
            raise ValueError(f"{name}: the module makes {shape}, expected features [N, F] or maps [N, F, H, W]")
        self.channels = self.width = shape[1]

    def maps(self, images: Tensor) -> Tensor:
        """Map images to what the module makes of them."""
        maps: Tensor = self.module(images)
        return maps

    def embed(self, maps: Tensor) -> Tensor:
        """Average maps; features stay as they are."""
        return super().embed(maps) if maps.ndim == 4 else maps

    def load(self, state: weights.State, where: str) -> None:
        """Take over weights under the module's names."""
        weights.fit(self.module, state, where)
