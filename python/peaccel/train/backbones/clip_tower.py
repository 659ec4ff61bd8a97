"""Image and text towers of open_clip's models, by name."""

from __future__ import annotations

from typing import Any

import open_clip
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.model import convert_to_custom_text_state_dict
from torch import Tensor

from peaccel.train.backbones import weights
from peaccel.train.backbones.network import ImageInput, Network, TextInput

__all__ = ["ClipTower", "names"]


def names() -> list[str]:
    """Names of open_clip's models that are two towers, built without a download."""
    configs = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
    return [n for n, c in configs.items() if "hf_model_name" not in c["text_cfg"] and "multimodal_cfg" not in c]


class ClipTower(Network):
    """One tower of a CLIP model: images or texts -> embeddings [N, D], which are not normalised.

    Parameters
    ----------
    side
        "image" or "text".
    name
        One of `names()`.
    options
        More arguments of ``open_clip.CustomTextCLIP``.
    """

    def __init__(self, side: str, name: str, **options: Any) -> None:
        super().__init__()
        config = {**open_clip.get_model_config(name), **options}
        config.pop("custom_text", None)
        config["vision_cfg"] = {**config["vision_cfg"], "timm_model_pretrained": False}
        model = open_clip.CustomTextCLIP(**config)
        self.prefix = "visual." if side == "image" else "text."
        self.tower = model.visual if side == "image" else model.text
        self.channels = self.width = config["embed_dim"]
        self.input = (
            _image_input(name, model.visual.image_size) if side == "image" else TextInput(name, model.context_length)
        )

    def maps(self, images: Tensor) -> Tensor:
        """Embed images [N, 3, H, W] or tokens [N, L]: a tower has no map of its own to pool."""
        embeddings: Tensor = self.tower(images)
        return embeddings

    def embed(self, maps: Tensor) -> Tensor:
        """Pass embeddings through."""
        return maps

    def load(self, state: weights.State, where: str) -> None:
        """Take over the tower's weights from those of a whole model."""
        whole = convert_to_custom_text_state_dict(state)
        of_tower = {name.removeprefix(self.prefix): w for name, w in whole.items() if name.startswith(self.prefix)}
        weights.fit(self.tower, of_tower, where)


def _image_input(name: str, size: Any) -> ImageInput:
    tags = open_clip.list_pretrained_tags_by_model(name)
    published = open_clip.get_pretrained_cfg(name, tags[0]) if tags else {}
    mean, std = published.get("mean", OPENAI_DATASET_MEAN), published.get("std", OPENAI_DATASET_STD)
    return ImageInput((size, size) if isinstance(size, int) else tuple(size), tuple(mean), tuple(std))
