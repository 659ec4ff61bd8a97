"""Faces as published: folders of identities, LFW, cross-pose LFW, and the templates of IJB-C."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel.data._listings import by_class, columns, existing, fields, folder, images_in, integers, lines, table
from peaccel.data.datasets import Images, Pairs, Templates, Verification, development, labelled, reader

__all__ = ["cplfw", "identities", "ijbc", "lfw"]


@reader("ms1m")
def identities(root: PathLike, folds: int = 0) -> dict[str, Images]:
    """Read faces with one folder for each identity, as MS1M and its likes are unpacked.

    Tested on files written in the published layout, not on MS1M's images.

    Parameters
    ----------
    root
        Folder with <identity>/<image>.
    folds
        See `development`; by default every identity is for training.

    Returns
    -------
    Part "train", and "validation" unless folds is 0.

    Raises
    ------
    FileNotFoundError
        The folder is missing or has no images.
    """
    return development(labelled(*by_class(folder(root, "one folder for each identity"))), folds)


@reader("lfw")
def lfw(root: PathLike, view: Literal[1, 2] = 1) -> dict[str, Verification]:
    """Read Labeled Faces in the Wild: lfw-deepfunneled/<name>/<name>_0001.jpg and its lists.

    Parameters
    ----------
    root
        Folder with lfw-deepfunneled/ and peopleDevTrain.txt, peopleDevTest.txt, pairsDevTrain.txt and pairsDevTest.txt
        (view 1, for choosing a model) or pairs.txt (view 2, for reporting).
    view
        Which of the two.

    Returns
    -------
    View 1: parts "train" and "test", all images of their people and the listed pairs of these. View 2: part "test",
    the images of its pairs, which are in ten folds.

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A line is of another form, lines are missing, or a pair is of an image that is not listed.
    """
    root = folder(root, "lfw-deepfunneled/ and the lists of people and pairs of LFW")
    if view == 2:
        sides, same, fold = _lfw_pairs(root / "pairs.txt")
        listed = sorted(set(sides))
        return {"test": _lfw(root, listed, sides, same, fold, root / "pairs.txt")}
    parts = {}
    for part, name in (("train", "DevTrain"), ("test", "DevTest")):
        listed = _lfw_people(root / f"people{name}.txt")
        pairs = root / f"pairs{name}.txt"
        parts[part] = _lfw(root, listed, *_lfw_pairs(pairs), pairs)
    return parts


@reader("cplfw", "evaluation")
def cplfw(root: PathLike, test_identities: int = 2000, seed: int = 42) -> dict[str, Verification]:
    """Read cross-pose LFW: images/ and pairs_CPLFW.txt, two lines "file label" for each pair.

    Tested on files written in the published layout, not on the published list.

    Parameters
    ----------
    root
        Folder with both.
    test_identities
        How many of the shuffled identities are for testing; the others are for validation, on which ScaleFace's mu is
        chosen. Pairs across the two are dropped.
    seed
        Seed of the shuffling, by numpy's `RandomState` as in the ScaleFace evaluation.

    Returns
    -------
    Parts "validation" and "test", the images of their pairs.

    Raises
    ------
    FileNotFoundError
        The list is missing.
    ValueError
        A line is of another form, their number is odd, or there are too few identities.
    """
    root = folder(root, "images/ and pairs_CPLFW.txt of cross-pose LFW")
    path = root / "pairs_CPLFW.txt"
    files, same = table(path, file=str, label=_binary)
    if len(files) % 2:
        raise ValueError(f"{path}: has {len(files)} lines, expected two for each pair")
    who = [file.rpartition("_")[0] for file in files]
    people = sorted(set(who))
    if not 0 < test_identities < len(people):
        raise ValueError(f"cplfw: test_identities is {test_identities}, expected 1..{len(people) - 1}")
    np.random.RandomState(seed).shuffle(people)
    tested = set(people[:test_identities])
    parts = {}
    for part, wanted in (("validation", False), ("test", True)):
        first = [i for i in range(0, len(files), 2) if all((who[j] in tested) == wanted for j in (i, i + 1))]
        sides = [files[j] for i in first for j in (i, i + 1)]
        listed = sorted(set(sides))
        images = labelled([root / "images" / file for file in listed], [file.rpartition("_")[0] for file in listed])
        parts[part] = _verification(images, _rows(sides, listed), np.array([same[i] for i in first], np.bool_))
    return parts


@reader("ijbc", "evaluation")
def ijbc(root: PathLike) -> dict[str, Templates]:
    """Read the 1:1 protocol of IJB-C: protocols/test1/{enroll_templates,verif_templates,match}.csv and images/.

    Tested on files written in the published layout, not on IJB-C's protocol.

    Images are stored aligned, as images/<SUBJECT_ID>/<FILENAME with _ for />. Those that are not there (no face was
    found in them) are left out, as are templates without any image and matches of these.

    Parameters
    ----------
    root
        Folder with protocols/ and images/.

    Returns
    -------
    Part "test".

    Raises
    ------
    FileNotFoundError
        A list or images/ is missing, or no listed image is there.
    ValueError
        A line is of another form.
    """
    root = folder(root, "protocols/test1/ and images/ of IJB-C")
    protocol, store = root / "protocols" / "test1", folder(root / "images", "<subject>/<image> of IJB-C")
    members: list[tuple[int, int, str]] = []
    for name in ("enroll_templates.csv", "verif_templates.csv"):
        members += zip(*columns(protocol / name, TEMPLATE_ID=int, SUBJECT_ID=int, FILENAME=str), strict=True)
    matches = _numbers(protocol / "match.csv")

    on_disk = {
        f"{who}/{file}" for who in os.listdir(store) if (store / who).is_dir() for file in images_in(store / who)
    }
    named = {(template, who, f"{who}/{file.replace('/', '_')}") for template, who, file in members}
    kept = sorted(member for member in named if member[2] in on_disk)
    if not kept:
        raise FileNotFoundError(f"{store}: holds none of the listed images, expected <subject>/<image>")
    listed = sorted({(name, who) for _, who, name in kept})
    images = labelled([store / name for name, _ in listed], [who for _, who in listed])
    rows = _rows([name for _, _, name in kept], [name for name, _ in listed])
    ids, first, groups = np.unique([template for template, _, _ in kept], return_index=True, return_inverse=True)
    subject = images.labels[rows[first]]

    matches = matches[np.isin(matches, ids).all(1)]
    left, right = np.searchsorted(ids, matches.T)
    same = subject[left] == subject[right]
    about = (images.paths, images.labels, images.classes)
    return {"test": Templates(*about, rows, integers(groups), integers(ids), subject, Pairs(left, right, same))}


def _headed(path: Path, holds: str) -> tuple[str, str, list[tuple[str, str]]]:
    """The place of the first line, what it says, and the other lines."""
    (place, header), *rest = list(lines(path, holds)) or [(f"{path}:1", "")]
    return place, header, rest


def _lfw_people(path: Path) -> list[tuple[str, int]]:
    """Every image of the listed people: its person and number."""
    place, count, rest = _headed(path, "the number of people, then lines 'name count'")
    if count.strip() != str(len(rest)):
        raise ValueError(f"{place}: says {count!r} people, but {len(rest)} follow")
    people = [fields(line, name=str, count=int) for line in rest]
    return [(name, number + 1) for name, images in people for number in range(images)]


def _lfw_pairs(path: Path) -> tuple[list[tuple[str, int]], NDArray[np.bool_], NDArray[np.int64]]:
    """Both sides of every pair by turns; whether they are the same; the fold of the pair."""
    place, header, rest = _headed(path, "numbers of folds and pairs, then the pairs")
    try:
        *folds, each = map(int, header.split())
        n = folds[0] if folds else 1
    except ValueError:
        raise ValueError(f"{place}: {header!r} is not of the form 'pairs' or 'folds pairs'") from None
    if len(rest) != 2 * n * each:
        raise ValueError(f"{place}: says {n} x 2 x {each} pairs, but {len(rest)} follow")
    same = np.tile(np.repeat([True, False], each), n)
    sides = []
    for line, one in zip(rest, same.tolist(), strict=True):
        if one:
            name, i, j = fields(line, name=str, i=int, j=int)
            sides += [(name, i), (name, j)]
        else:
            name, i, other, j = fields(line, name=str, i=int, other=str, j=int)
            sides += [(name, i), (other, j)]
    return sides, same, np.repeat(np.arange(n), 2 * each)


def _lfw(
    root: Path,
    listed: Sequence[tuple[str, int]],
    sides: Sequence[tuple[str, int]],
    same: NDArray[np.bool_],
    fold: NDArray[np.int64],
    source: Path,
) -> Verification:
    images = labelled(
        [root / "lfw-deepfunneled" / name / f"{name}_{number:04d}.jpg" for name, number in listed],
        [name for name, _ in listed],
    )
    try:
        rows = _rows(sides, listed)
    except KeyError as error:
        name, number = error.args[0]
        raise ValueError(f"{source}: image {number} of {name} is not in the list of people") from None
    return _verification(images, rows, same, fold)


def _rows(items: Sequence[object], listed: Sequence[object]) -> NDArray[np.int64]:
    """Where each item stands in a list."""
    place = {item: row for row, item in enumerate(listed)}
    return np.array([place[item] for item in items], np.int64)


def _verification(
    images: Images, sides: NDArray[np.int64], same: NDArray[np.bool_], fold: NDArray[np.int64] | None = None
) -> Verification:
    """Images with their pairs, of which both sides are given by turns."""
    return Verification(images.paths, images.labels, images.classes, Pairs(sides[::2], sides[1::2], same, fold))


def _binary(word: str) -> bool:
    if word not in ("0", "1"):
        raise ValueError
    return word == "1"


def _numbers(path: Path) -> NDArray[np.int64]:
    """[P, 2], the columns of a file of many millions of lines."""
    form = "ENROLL_TEMPLATE_ID,VERIF_TEMPLATE_ID"
    existing(path, f"lines {form!r}")
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there are none below the first
            return np.loadtxt(path, np.int64, delimiter=",", skiprows=1, usecols=(0, 1), ndmin=2)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: is not of lines {form!r} ({error})") from None
