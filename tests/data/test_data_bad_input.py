"""Data sets that are not as published: the file, the line and what is expected there are named."""

import re

import numpy as np
import pytest
from layouts import cars_of_kaggle, cars_of_stanford, coco_by_annotations, cub, ijbc, in_shop, lfw, msls, put

from peaccel.data import READERS, read
from peaccel.data.datasets import Images

# For every layout that is read from lists: how it is made, and the file that is then removed.
LISTS = {
    "cub200": (cub, "images.txt", "image_class_labels.txt"),
    "cars196": (cars_of_stanford, "devkit/cars_train_annos.mat", "devkit/cars_test_annos_withlabels.mat"),
    "cars196 ": (cars_of_kaggle, "names.csv", "anno_test.csv"),
    "in-shop": (in_shop, "list_eval_partition.txt"),
    "lfw": (lfw, "peopleDevTest.txt", "pairsDevTrain.txt"),
    "ijbc": (ijbc, "protocols/test1/enroll_templates.csv", "protocols/test1/match.csv"),
    "coco": (coco_by_annotations, "annotations/captions_val2014.json", "annotations/coco_restval_ids.npy"),
    "msls": (msls, "train_val/sf/query/raw.csv", "train_val/zurich/database/postprocessed.csv"),
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, (_, *files) in LISTS.items() for file in files])
def test_a_missing_file_is_named(tmp_path, name, file):
    root = LISTS[name][0](tmp_path)
    (root / file).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{root / file}: no such file, expected one with")):
        read(name.strip(), root)


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_missing_root_and_an_empty_one_are_named(tmp_path, name):
    for root in (tmp_path / "absent", tmp_path):
        with pytest.raises((FileNotFoundError, ValueError), match=re.escape(str(root))) as caught:
            read(name, root)
        assert "\n" not in str(caught.value) and re.search("expected|holds no", str(caught.value))


@pytest.mark.parametrize(
    ("layout", "name", "file", "text", "message"),
    [
        (cub, "cub200", "images.txt", "1 a.jpg\n2\n", "images.txt:2: '2' is not of the form 'id path'"),
        (cub, "cub200", "images.txt", "1 a.jpg\n\n2 b c\n", "images.txt:3: '2 b c' is not"),
        (cub, "cub200", "images.txt", "", "images.txt: is empty"),
        (cub, "cub200", "image_class_labels.txt", "1 one\n", "labels.txt:1: '1 one' is not of the form 'id label'"),
        (cub, "cub200", "image_class_labels.txt", "1 7\n", "labels.txt: image 2 of images.txt is missing"),
        (cars_of_kaggle, "cars196", "names.csv", "one\ntwo\n", "anno_train.csv:1: class 98 is none of the 2"),
        (cars_of_kaggle, "cars196", "anno_test.csv", "a.jpg,1,2,3,4\n", "anno_test.csv:1: 'a.jpg,1,2,3,4' is not"),
        (lfw, "lfw", "peopleDevTest.txt", "3\nCy_C\t2\n", "peopleDevTest.txt:1: says '3' people, but 1 follow"),
        (lfw, "lfw", "peopleDevTest.txt", "", "peopleDevTest.txt:1: says '' people"),
        (lfw, "lfw", "pairsDevTest.txt", "1\nCy_C 1 2\n", "pairsDevTest.txt:1: says 1 x 2 x 1 pairs, but 1 follow"),
        (lfw, "lfw", "pairsDevTest.txt", "1\nCy_C 1 9\nCy_C 1 Di_D 1\n", "image 9 of Cy_C is not in the list"),
        (lfw, "lfw", "pairsDevTest.txt", "1\nCy_C 1\nCy_C 1 Di_D 1\n", "pairsDevTest.txt:2: 'Cy_C 1' is not"),
        (lfw, "lfw", "pairsDevTest.txt", "one\n", "pairsDevTest.txt:1: 'one' is not of the form"),
        (ijbc, "ijbc", "protocols/test1/match.csv", "A,B\n1,x\n", "match.csv: is not of lines"),
        (ijbc, "ijbc", "protocols/test1/verif_templates.csv", "A,B\n1,2\n", "csv:1: column TEMPLATE_ID is missing"),
        (msls, "msls", "train_val/sf/query/raw.csv", ",key,pano\n0,q3,no\n", "raw.csv:2: column pano is 'no'"),
        (msls, "msls", "train_val/sf/query/raw.csv", ",key,pano\n", "raw.csv: key q3 of postprocessed.csv is missing"),
        (coco_by_annotations, "coco", "annotations/captions_val2014.json", "{", "captions_val2014.json: is no JSON"),
        (coco_by_annotations, "coco", "annotations/captions_val2014.json", "{}", "is not of the form of COCO captions"),
        (coco_by_annotations, "coco", "annotations/coco_dev_ids.npy", "x", "coco_dev_ids.npy: is not an .npy file"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, layout, name, file, text, message):
    root = put(layout(tmp_path), {file: text})
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(name, root)
    assert str(root) in str(caught.value) and "\n" not in str(caught.value)


def test_in_shop_with_lines_missing(tmp_path):
    with pytest.raises(ValueError, match=r"list_eval_partition\.txt:1: says 9 images, but 7 are listed"):
        read("in-shop", in_shop(tmp_path, count=9))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": np.ones((3, 2))}, "all.npz: key labels is missing, expected arrays features and labels"),
        ({"features": np.ones(3), "labels": np.arange(3)}, "features is float64 (3,), expected floats [N, D]"),
        (
            {"features": np.ones((3, 2)), "labels": np.arange(4)},
            "labels is int64 (4,), expected numbers or strings (3,)",
        ),
        ({"features": [[0.0, 1], [np.nan, 0]], "labels": np.arange(2)}, "features has NaN or infinity in row 1"),
    ],
)
def test_features_of_another_form(tmp_path, arrays, message):
    np.savez(tmp_path / "all.npz", **arrays)
    with pytest.raises(ValueError, match=re.escape(message)):
        read("features", tmp_path / "all.npz")


def test_check_names_the_missing_image(tmp_path):
    gone = cub(tmp_path) / "images/101.Bird/b9.jpg"
    gone.unlink()
    assert isinstance(read("cub200", tmp_path)["test"], Images)
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(str(gone))}: no such image \(1 of 3 in part test"):
        read("cub200", tmp_path, check=True)


def test_an_unknown_name_is_told_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"unknown data 'cub20'; did you mean 'cub200'\?"):
        read("cub20", tmp_path)
