"""The code of MagFace (Meng et al., CVPR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from peaccel.losses import margin

__all__ = ["EasyMarginMagFace"]


class EasyMarginMagFace(margin.MagFace):
    """`peaccel.losses.MagFace` as its code is trained: a margin only where cos(theta) > 0.

    There the logit jumps up by ``sin(margin)`` as an item turns away from its class.

    Examples
    --------
    An item that lies a little further than 90 degrees from its class pays less than one that lies a little nearer:

    >>> import torch
    >>> from peaccel.published.easy_margin import EasyMarginMagFace
    >>> loss = EasyMarginMagFace(dim=2, classes=2)
    >>> loss.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> near, far = (loss(pe.Point(torch.tensor([[x, 20.0]])), torch.tensor([0])) for x in (0.01, -0.01))
    >>> bool(far < near)
    True
    """

    def turned(self, cosine: Tensor, margin: Tensor) -> Tensor:
        """The cosines [N, 1] of items with their classes, at angles that are larger by margins [N, 1]."""
        return torch.where(cosine > 0, super().turned(cosine, margin), cosine)
