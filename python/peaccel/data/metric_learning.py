"""CUB200-2011, Cars196, Stanford Online Products, In-shop Clothes Retrieval, and folders of images, as published.

Where a list says which classes are for testing, it decides; CUB200-2011 and Cars196 test on the second half of the
classes, of both their parts merged. Validation is the first of `folds` folds of the other classes (the first
quarter; 0 for none).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from peaccel._utils.atomic_files import PathLike
from peaccel.data._listings import by_class, existing, folder, lines, table
from peaccel.data.datasets import Images, development, labelled, query_and_gallery, reader, zero_shot

__all__ = ["cars196", "cub200", "image_folder", "in_shop", "sop"]


@reader("cub200")
def cub200(root: PathLike, folds: int = 4) -> dict[str, Images]:
    """Read CUB200-2011: images.txt ("id path"), image_class_labels.txt ("id label") and images/.

    Tested on files written in the published layout, not on the published images.

    Parameters
    ----------
    root
        Folder CUB_200_2011.
    folds
        See `development`.

    Returns
    -------
    Parts "train" and "validation" of classes 1..100, and "test" of classes 101..200.

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A line is of another form, or an image has no label.
    """
    root = folder(root, "images.txt, image_class_labels.txt and images/ of CUB200-2011")
    ids, names = table(root / "images.txt", id=int, path=str)
    labels = dict(zip(*table(root / "image_class_labels.txt", id=int, label=int), strict=True))
    for each in ids:
        if each not in labels:
            raise ValueError(f"{root / 'image_class_labels.txt'}: image {each} of images.txt is missing")
    classes = [labels[each] for each in ids]
    images = labelled([root / "images" / name for name in names], classes, [str(Path(name).parent) for name in names])
    return zero_shot(images, _up_to(100, classes), folds)


@reader("cars196")
def cars196(root: PathLike, folds: int = 4) -> dict[str, Images]:
    """Read Cars196, in either layout that is in circulation.

    Tested on files written in the published layout, not on the published lists.

    Stanford's own: devkit/cars_train_annos.mat, devkit/cars_test_annos_withlabels.mat (published apart from the
    devkit), cars_train/ and cars_test/. Kaggle's "by classes folder": names.csv, anno_train.csv, anno_test.csv and
    car_data/car_data/{train,test}/<class>/. Bounding boxes are ignored.

    Parameters
    ----------
    root
        Folder that holds one of these layouts.
    folds
        See `development`.

    Returns
    -------
    Parts "train" and "validation" of classes 1..98, and "test" of classes 99..196.

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A line is of another form.
    """
    root = folder(root, "devkit/ (Stanford's layout) or anno_train.csv (Kaggle's) of Cars196")
    read = _cars_of_kaggle if (root / "anno_train.csv").exists() else _cars_of_stanford
    paths, classes, names = read(root)
    return zero_shot(labelled(paths, classes, names), _up_to(98, classes), folds)


@reader("sop")
def sop(root: PathLike, folds: int = 4) -> dict[str, Images]:
    """Read Stanford Online Products: Ebay_train.txt and Ebay_test.txt ("image_id class_id super_class_id path").

    Tested on files written in the published layout, not on the published lists.

    Parameters
    ----------
    root
        Folder Stanford_Online_Products.
    folds
        See `development`.

    Returns
    -------
    Parts "train", "validation" and "test".

    Raises
    ------
    FileNotFoundError
        A list is missing.
    ValueError
        A line is of another form.
    """
    root = folder(root, "Ebay_train.txt and Ebay_test.txt of Stanford Online Products")
    parts = []
    for name in ("Ebay_train.txt", "Ebay_test.txt"):
        _, classes, _, paths = table(root / name, skip=1, image_id=int, class_id=int, super_class_id=int, path=str)
        parts.append(labelled([root / path for path in paths], classes))
    return development(parts[0], folds) | {"test": parts[1]}


@reader("in-shop")
def in_shop(root: PathLike, folds: int = 4) -> dict[str, Images]:
    """Read In-shop Clothes Retrieval: list_eval_partition.txt ("image_name item_id evaluation_status") and img/.

    Tested on files written in the published layout, not on the published list.

    Parameters
    ----------
    root
        Folder that holds img/ and the list, beside it or in Eval/.
    folds
        See `development`.

    Returns
    -------
    Parts "train", "validation", "query" and "gallery", and "test" with the latter two merged. Numbers found by
    searching the gallery with the queries are no match for those found by leaving one out of the merged part.

    Raises
    ------
    FileNotFoundError
        The list is missing.
    ValueError
        A line is of another form, or their number is not what the first one says.
    """
    root = folder(root, "list_eval_partition.txt and img/ of In-shop Clothes Retrieval")
    name = "list_eval_partition.txt"
    path = root / "Eval" / name if (root / "Eval" / name).exists() else root / name
    names, items, parts = table(path, skip=2, image_name=str, item_id=str, evaluation_status=_status)
    count = next(lines(path, "the number of images"))[1].strip()
    if count != str(len(names)):
        raise ValueError(f"{path}:1: says {count} images, but {len(names)} are listed")
    paths, classes, part = np.array([str(root / name) for name in names], object), np.array(items), np.array(parts)
    test = part != "train"
    return development(labelled(paths[~test].tolist(), classes[~test]), folds) | query_and_gallery(
        labelled(paths[test].tolist(), classes[test]), part[test] == "query"
    )


@reader("folder")
def image_folder(root: PathLike, folds: int = 4) -> dict[str, Images]:
    """Read a folder of images with one folder for each class.

    Parameters
    ----------
    root
        Folder with folders train, validation, test, or query and gallery, as far as there are any, that hold
        <class>/<image>; or with <class>/<image> itself.
    folds
        See `development`; for a root without folders of parts.

    Returns
    -------
    The parts that are there, and "test" with query and gallery merged; without folders of parts, "train" and
    "validation" of the first half of the classes by name, and "test" of the second.

    Raises
    ------
    FileNotFoundError
        A folder is missing or has no images.
    ValueError
        Without folders of parts there are too few classes to be shared out.
    """
    root = folder(root, "one folder for each class, or for each part")
    parts = {
        part: labelled(*by_class(root / part)) for part in ("train", "validation", "test") if (root / part).is_dir()
    }
    if (root / "query").is_dir() or (root / "gallery").is_dir():
        queries, gallery = by_class(root / "query"), by_class(root / "gallery")
        both = labelled(queries[0] + gallery[0], queries[1] + gallery[1])
        parts |= query_and_gallery(both, np.arange(len(both)) < len(queries[0]))
    if parts:
        return parts
    images = labelled(*by_class(root))
    if folds and len(images.classes) < 4:
        what = f"classes of images are {', '.join(images.classes)}"
        raise ValueError(f"{root}: {what}, expected at least 4, of which half are for test, or folders train and test")
    return zero_shot(images, len(images.classes) // 2, folds)


def _up_to(last: int, classes: list[int]) -> int:
    """How many classes there are with numbers up to the last."""
    return len({each for each in classes if each <= last})


def _status(word: str) -> str:
    if word not in ("train", "query", "gallery"):
        raise ValueError
    return word


def _cars_of_stanford(root: Path) -> tuple[list[Path], list[int], None]:
    from scipy.io import loadmat

    paths, classes = [], []
    for part, name in (("cars_train", "cars_train_annos.mat"), ("cars_test", "cars_test_annos_withlabels.mat")):
        path = existing(root / "devkit" / name, 'the field "annotations" with "class" and "fname"')
        try:
            for each in loadmat(path)["annotations"][0]:
                paths.append(root / part / str(each["fname"][0]))
                classes.append(int(each["class"][0, 0]))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f'{path}: cannot be read, expected "annotations" with "class" and "fname" ({error})'
            ) from None
    return paths, classes, None


def _cars_of_kaggle(root: Path) -> tuple[list[Path], list[int], list[str]]:
    names = [name.strip().strip('"') for _, name in lines(root / "names.csv", "a class on each line")]
    paths, class_names, classes = [], [], []
    for part in ("train", "test"):
        path = root / f"anno_{part}.csv"
        files, *_, numbers = table(path, ",", fname=str, x1=int, y1=int, x2=int, y2=int, class_id=int)
        for row, (file, number) in enumerate(zip(files, numbers, strict=True), 1):
            if not 1 <= number <= len(names):
                raise ValueError(f"{path}:{row}: class {number} is none of the {len(names)} of names.csv")
            name = names[number - 1]
            paths.append(root / "car_data" / "car_data" / part / name.replace("/", "-") / file)
            class_names.append(name)
        classes += numbers
    return paths, classes, class_names
