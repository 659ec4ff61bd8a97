"""Backbones: images -> pooled features, for the heads to turn into distributions."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.python_files import is_file, is_function
from peaccel._utils.suggestions import unknown
from peaccel.train.backbones.backbone import POOLINGS, Backbone, activate_dropout
from peaccel.train.backbones.bn_inception import BNInception
from peaccel.train.backbones.iresnet import BLOCKS, IResNet
from peaccel.train.backbones.named_function import NamedFunction
from peaccel.train.backbones.network import ImageInput, Network, TextInput
from peaccel.train.backbones.pooling import AvgMax, GeM
from peaccel.train.backbones.small_cnn import SmallCNN
from peaccel.train.backbones.weights import read

__all__ = ["AvgMax", "Backbone", "GeM", "ImageInput", "TextInput", "activate_dropout", "create"]

OWN = ("small_cnn", "bn_inception", *(f"iresnet{depth}" for depth in BLOCKS))


def create(
    name: str,
    *,
    weights: PathLike | None = None,
    image_size: int | None = None,
    pooling: str = "own",
    frozen_bn: bool = False,
    dropout: float = 0.0,
    **options: Any,
) -> Backbone:
    """Build a backbone by name; nothing is downloaded.

    Parameters
    ----------
    name
        "small_cnn", "bn_inception", "iresnet18" (34, 50, 100); a network of timm, such as "resnet50" or "densenet161";
        "clip_image:" or "clip_text:" and a model of open_clip, such as "clip_image:ViT-B-32"; a Python file and a
        function in it that makes a module from images to features, such as "my_file.py:make".
    weights
        A .safetensors file, or a state dict that torch saved, under the published names: those of pretrainedmodels for
        BN-Inception, of arcface_torch for iResNets, of timm, of a whole model of open_clip. A classifier among them is
        left out. None for random weights, which torch's global seed decides.
    image_size
        Side of the images in pixels; None for the size that the backbone was published with.
    pooling
        "own" as the network itself ends: the average for most, the embedding of 512 for iResNets, the class token for
        many transformers; else "avg", "avg+max" or "gem" -> [N, C], or "none" -> the map [N, C, H, W].
    frozen_bn
        Batch normalisation keeps its statistics and its affine map, in training mode too.
    dropout
        Rate in [0, 1) in training mode: inside every dense layer of DenseNets, on the last map of iResNets, on the
        features of all others.
    options
        More arguments of ``timm.create_model`` or ``open_clip.CustomTextCLIP``; ``colours`` of small_cnn, 1 or 3
        channels; ``expected`` of a function, the images unless its module says others.

    Returns
    -------
    Module from images to features, with `features`, their number, and `input`, what size and scale of images it takes.

    Raises
    ------
    ValueError
        The name is unknown, the weights do not fit, the network takes no images of this size, or it has no map for
        this pooling.
    FileNotFoundError
        There is no such file of weights.
    ImportError
        timm or open_clip is not installed.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"create: pooling is {pooling!r}, expected one of {', '.join(POOLINGS)}")
    if not 0 <= dropout < 1:
        raise ValueError(f"create: dropout is {dropout}, expected a rate in [0, 1)")
    state = None if weights is None else read(weights)
    network = _network(name, pooling == "own", dropout, image_size, options)
    if state is not None:
        network.load(state, f"{weights}: {name}")
    if image_size is not None:
        _resize(name, network, image_size)
    return Backbone(network, pooling=pooling, frozen_bn=frozen_bn, dropout=0.0 if network.drops else dropout)


def _resize(name: str, network: Network, side: int) -> None:
    """Let a network expect images of this size, or refuse the size."""
    before = network.input
    if not isinstance(before, ImageInput) or (before.size != (side, side) and not network.any_size):
        sizes = "no images" if not isinstance(before, ImageInput) else f"images of {before.size[0]} pixels alone"
        raise ValueError(f"create: image_size is {side}, but {name} takes {sizes}")
    network.input = replace(before, size=(side, side))
    try:
        Backbone(network).map_shape()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"create: image_size is {side}, which does not suit {name} ({error})") from None


def _network(name: str, embedding: bool, dropout: float, image_size: int | None, options: dict[str, Any]) -> Network:
    if is_function(name):
        return NamedFunction(name, **{"expected": ImageInput((image_size or 224,) * 2), **options})
    if is_file(name):
        raise ValueError(f"create: backbone is {name}, expected the function in it that makes a module: {name}:make")
    side, _, model = name.rpartition(":")
    if side in ("clip_image", "clip_text"):
        if find_spec("open_clip") is None:
            raise ImportError(f"create: {name} needs open_clip: pip install 'peaccel[clip]'")
        from peaccel.train.backbones import clip_tower

        models = clip_tower.names()
        if model not in models:
            raise ValueError("create: " + unknown("backbone", name, [f"{side}:{known}" for known in models]))
        return clip_tower.ClipTower(side.removeprefix("clip_"), model, **options)
    if name == "small_cnn":
        return SmallCNN(**options)
    if name == "bn_inception":
        return BNInception(**options)
    if name in OWN:
        return IResNet(int(name.removeprefix("iresnet")), dropout, embedding, **options)
    if find_spec("timm") is None:
        more = "More are there once timm is installed: pip install 'peaccel[train]'"
        raise ValueError(f"create: {unknown('backbone', name, OWN)} {more}")
    from peaccel.train.backbones import timm_network

    if not timm_network.exists(name):
        raise ValueError("create: " + unknown("backbone", name, [*OWN, *timm_network.names()]))
    return timm_network.TimmNetwork(name, dropout, image_size, **options)
