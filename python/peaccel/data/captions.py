"""Images with captions: COCO captions and Conceptual Captions, as published, and features computed of such pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peaccel._utils.atomic_files import PathLike
from peaccel.data._listings import arrays, existing, fields, folder, integers, lines
from peaccel.data.datasets import CaptionFeatures, Captions, reader

__all__ = ["caption_features", "coco_captions", "conceptual_captions"]

VALIDATION_CAPTIONS = 5000  # how many captions of COCO PCME and PCME++ choose their models by


@reader("coco", "captions")
def coco_captions(root: PathLike) -> dict[str, Captions]:
    """Read COCO captions in Karpathy's split, in either layout that is in circulation.

    Tested on files written in the published layout, not on COCO's annotations.

    PCME's: annotations/captions_train2014.json and captions_val2014.json as published, with the annotations' ids in
    annotations/coco_{train,restval,dev,test}_ids.npy, and the images in train2014/ and val2014/. PCME++'s: precomp/
    with {train,dev,testall}_caps.txt (a caption on each line) and _ids.txt (an image on each line, of five captions or
    of one), id_mapping.json and images/.

    Parameters
    ----------
    root
        Folder that holds one of these layouts.

    Returns
    -------
    Parts "train" (restval with it), "validation" (its first 5000 captions) and "test" (all 5000 images).

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A list is of another form, or an annotation or image is missing in it.
    """
    root = folder(root, "annotations/ (PCME's layout) or precomp/ (PCME++'s) of COCO")
    read = _coco_by_lines if (root / "precomp").is_dir() else _coco_by_annotations
    return {part: read(root, part) for part in ("train", "validation", "test")}


@reader("conceptual-captions", "captions")
def conceptual_captions(root: PathLike) -> dict[str, Captions]:
    """Read Conceptual Captions: lists of pairs, "caption<TAB>image" a line.

    Tested on files written in the published layout, not on the published lists.

    Published are addresses, many of them dead. What is read is the same lists with the path of the image that was
    fetched, below `root`, for its address, and without the lines that could not be fetched.

    Parameters
    ----------
    root
        Folder with Train_GCC-training.tsv and Validation_GCC-1.1.0-Validation.tsv.

    Returns
    -------
    Parts "train" and "validation".

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A line is of another form, or has an address still.
    """
    root = folder(root, "Train_GCC-training.tsv and Validation_GCC-1.1.0-Validation.tsv")
    parts = {}
    for part, name in (("train", "Train_GCC-training.tsv"), ("validation", "Validation_GCC-1.1.0-Validation.tsv")):
        pairs = []
        for line in lines(root / name, "lines 'caption<TAB>image'"):
            caption, image = fields(line, "\t", caption=str, image=str)
            if "://" in image:
                raise ValueError(f"{line[0]}: {image} is an address, expected the path of the image below {root}")
            pairs.append((str(root / image), caption))
        parts[part] = _captions(pairs)
    return parts


@reader("caption-features", "features")
def caption_features(root: PathLike) -> dict[str, CaptionFeatures]:
    """Read features computed of images and captions.

    Parameters
    ----------
    root
        Folder with train.npz, validation.npz and test.npz, as far as there are any, each with images [N, D], captions
        [T, E] and image [T], the row of the image that each caption describes.

    Returns
    -------
    The parts that are there.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        Arrays are missing or of other shapes, or an image is not there.
    """
    root = folder(root, "train.npz, validation.npz or test.npz")
    parts = {}
    for part in ("train", "validation", "test"):
        path = root / f"{part}.npz"
        if not path.exists():
            continue
        images, captions, image = arrays(path, "images", "captions", "image")
        for name, x in (("images", images), ("captions", captions)):
            if x.ndim != 2 or x.dtype.kind != "f":
                raise ValueError(f"{path}: {name} is {x.dtype} {x.shape}, expected floats, a row for each")
        if image.shape != captions.shape[:1] or image.dtype.kind not in "iu":
            raise ValueError(f"{path}: image is {image.dtype} {image.shape}, expected integers ({len(captions)},)")
        if len(image) and not 0 <= image.min() <= image.max() < len(images):
            raise ValueError(f"{path}: image is in {image.min()}..{image.max()}, expected 0..{len(images) - 1}")
        with np.errstate(over="ignore"):
            parts[part] = CaptionFeatures(images.astype(np.float32), captions.astype(np.float32), integers(image))
    if not parts:
        raise FileNotFoundError(f"{root}: holds none of train.npz, validation.npz, test.npz")
    return parts


def _captions(pairs: Sequence[tuple[str, str]]) -> Captions:
    """The record of pairs of a path and a caption, with images in the order in which each comes first."""
    row = {path: i for i, path in enumerate(dict.fromkeys(path for path, _ in pairs))}
    paths = tuple(row)
    names = tuple(Path(path).name for path in paths)
    image = integers([row[path] for path, _ in pairs])
    return Captions(paths, np.arange(len(paths)), names, tuple(caption for _, caption in pairs), image)


def _coco_by_annotations(root: Path, part: str) -> Captions:
    notes = root / "annotations"
    lists = {"train": ("train", "restval"), "validation": ("dev",), "test": ("test",)}[part]
    pairs = []
    for name in lists:
        year = "train2014" if name == "train" else "val2014"
        path = notes / f"captions_{year}.json"
        try:
            content = _json(path, '"images" and "annotations"')
            files = {each["id"]: each["file_name"] for each in content["images"]}
            captions = {
                each["id"]: (files[each["image_id"]], each["caption"].strip()) for each in content["annotations"]
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: is not of the form of COCO captions ({error!r})") from None
        ids = arrays(notes / f"coco_{name}_ids.npy", "ids of annotations")[0].astype(np.int64).tolist()
        for each in ids[:VALIDATION_CAPTIONS] if part == "validation" else ids:
            if each not in captions:
                raise ValueError(f"{path}: annotation {each} of coco_{name}_ids.npy is missing")
            file, caption = captions[each]
            pairs.append((str(root / year / file), caption))
    return _captions(pairs)


def _coco_by_lines(root: Path, part: str) -> Captions:
    name = {"train": "train", "validation": "dev", "test": "testall"}[part]
    lists = root / "precomp"
    captions = [line.strip() for _, line in lines(lists / f"{name}_caps.txt", "a caption on each line")]
    ids = [fields(line, id=int)[0] for line in lines(lists / f"{name}_ids.txt", "an image on each line")]
    each = len(captions) // len(ids) if ids else 0
    if each not in (1, 5) or each * len(ids) != len(captions):
        raise ValueError(
            f"{lists / f'{name}_ids.txt'}: has {len(ids)} images, expected as many as captions ({len(captions)}) "
            "or a fifth as many"
        )
    if part == "validation":
        captions = captions[:VALIDATION_CAPTIONS]
    files = _json(root / "id_mapping.json", "paths of images by id")
    pairs = []
    for i, caption in enumerate(captions):
        image = str(ids[i // each])
        if image not in files:
            raise ValueError(f"{root / 'id_mapping.json'}: image {image} of {name}_ids.txt is missing")
        pairs.append((str(root / "images" / files[image]), caption))
    return _captions(pairs)


def _json(path: Path, holds: str) -> Any:
    with existing(path, holds).open(encoding="utf-8") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: is no JSON ({error})") from None
