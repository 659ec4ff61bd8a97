"""Improved residual networks for faces (Deng et al., ArcFace, CVPR 2019), under the names of the published weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peaccel.train.backbones import weights
from peaccel.train.backbones.network import ImageInput, Network

__all__ = ["BLOCKS", "IResNet"]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
"""Blocks of each of the four layers, by depth."""


class Block(nn.Module):
    """BN-conv-BN-PReLU-conv-BN beside a shortcut; the second convolution has the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        y = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        shortcut: Tensor = self.downsample(x)
        z: Tensor = self.bn3(self.conv2(y))
        return shortcut + z


class IResNet(Network):
    """iResNet: maps [N, 512, 7, 7] of aligned faces of 112 pixels, and their embedding [N, 512].

    Parameters
    ----------
    depth
        A key of `BLOCKS`.
    dropout
        Rate at which entries of the last map are dropped.
    embedding
        Whether the embedding's own layers, `fc` and `features`, exist. They expect images of 112 x 112.
    """

    input = ImageInput((112, 112), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    channels = width = 512
    drops = True

    def __init__(self, depth: int, dropout: float = 0.0, embedding: bool = True) -> None:
        super().__init__()
        self.any_size = not embedding
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        width = 64
        for i, count in enumerate(BLOCKS[depth]):
            outputs = 64 << i
            blocks = [Block(width if j == 0 else outputs, outputs, 2 if j == 0 else 1) for j in range(count)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
            width = outputs
        self.bn2 = nn.BatchNorm2d(512)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)
        self.has_embedding = embedding
        if embedding:
            self.fc = nn.Linear(512 * 7 * 7, 512)
            self.features = nn.BatchNorm1d(512)
            # It is fixed at 1 in the published networks, hence a buffer, which no optimizer changes.
            del self.features.weight
            self.features.register_buffer("weight", torch.ones(512))

    def maps(self, images: Tensor) -> Tensor:
        """Map images [N, 3, H, W] to feature maps [N, 512, H / 16, W / 16], some entries dropped in training."""
        x = self.prelu(self.bn1(self.conv1(images)))
        for i in range(len(BLOCKS[18])):
            x = self.get_submodule(f"layer{i + 1}")(x)
        dropped: Tensor = self.dropout(self.bn2(x))
        return dropped

    def embed(self, maps: Tensor) -> Tensor:
        """Map feature maps [N, 512, 7, 7] to the published embedding [N, 512], which is not normalised."""
        embedding: Tensor = self.features(self.fc(maps.flatten(1)))
        return embedding

    def load(self, state: weights.State, where: str) -> None:
        """Take over published weights; those of an embedding that is not wanted may be among them."""
        weights.fit(self, state, where, ignored=() if self.has_embedding else ("fc.", "features."))
