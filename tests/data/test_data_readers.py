"""Readers on small made-up copies of what is published: parts, labels, pairs, templates, captions, places."""

import inspect
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from layouts import CUB, cars_of_kaggle, cars_of_stanford, coco_by_annotations, cub, ijbc, in_shop, lfw, msls, put

from peaccel.data import READERS, read
from peaccel.data.datasets import development, labelled
from peaccel.metrics import Relevance
from peaccel.published.ijbc_matches import first_matches


def below(root, items):
    """Paths of a part, relative to the root."""
    return [Path(path).relative_to(root).as_posix() for path in items.paths]


def classes_of(items):
    """The class of each item, after a look at its labels: 0..C-1, each of them there."""
    assert items.labels.dtype == np.int64
    assert np.array_equal(np.unique(items.labels), np.arange(len(items.classes)))
    return [items.classes[label] for label in items.labels]


def test_cub200(tmp_path):
    parts = read("cub200", cub(tmp_path), check=True)
    assert list(parts) == ["train", "validation", "test"]
    assert parts["validation"].classes == ("001.Bird", "007.Bird")  # ceil(5 / 4) classes
    assert parts["train"].classes == ("055.Bird", "099.Bird", "100.Bird")
    assert parts["test"].classes == ("101.Bird", "200.Bird")
    for items in parts.values():
        assert [path.split("/")[1] for path in below(tmp_path, items)] == classes_of(items)
    assert below(tmp_path, parts["test"]) == [f"images/{c}.Bird/b{i}.jpg" for i, c in ((4, 101), (6, 200), (9, 101))]
    assert sum(map(len, parts.values())) == len(CUB)


def test_folds_of_development(tmp_path):
    assert set(read("cub200", cub(tmp_path), folds=0)) == {"train", "test"}
    assert len(read("cub200", tmp_path, folds=2)["validation"].classes) == 3


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 8, 98, 99, 100])
def test_validation_is_the_first_of_four_folds(classes):
    parts = development(labelled([str(i) for i in range(classes)], np.arange(classes)), 4)
    first, *others = np.array_split(np.arange(classes), 4)  # as scikit-learn's KFold without shuffling
    assert parts["validation"].classes == tuple(map(str, first))
    assert parts["train"].classes == tuple(map(str, np.concatenate(others)))


@pytest.mark.parametrize(("folds", "classes"), [(1, 9), (-1, 9), (4, 1)])
def test_development_needs_something_to_train_on(folds, classes):
    with pytest.raises(ValueError, match=r"development: (folds|classes)"):
        development(labelled([str(i) for i in range(classes)], np.arange(classes)), folds)


@pytest.mark.parametrize(
    ("layout", "names"),
    [(cars_of_stanford, {98: "98", 1: "1"}), (cars_of_kaggle, {98: "Ram C/V Cargo Van", 1: "Car 1"})],
)
def test_cars196(tmp_path, layout, names):
    parts = read("cars196", layout(tmp_path), check=True)
    assert len(parts["validation"].classes) == 1 and classes_of(parts["validation"]) == [names[1]]
    assert classes_of(parts["train"]).count(names[98]) == 2  # of either part, and not lost
    assert len(parts["train"].classes) == 3 and len(parts["train"]) == 4
    assert len(parts["test"].classes) == 2 and sorted(parts["test"].labels) == [0, 0, 1]


def test_sop(tmp_path):
    header = "image_id class_id super_class_id path\n"
    lists = {
        "Ebay_train.txt": header
        + "".join(f"{i} {c} 1 bicycle_final/{c}_{i}.JPG\n" for i, c in enumerate([1, 2, 2, 9])),
        "Ebay_test.txt": header + "".join(f"{i} {c} 1 sofa_final/{c}_{i}.JPG\n" for i, c in enumerate([11319, 11321])),
    }
    parts = read("sop", put(tmp_path, lists))
    assert {part: classes_of(items) for part, items in parts.items()} == {
        "train": ["2", "2", "9"],
        "validation": ["1"],
        "test": ["11319", "11321"],
    }
    assert below(tmp_path, parts["test"]) == ["sofa_final/11319_0.JPG", "sofa_final/11321_1.JPG"]
    assert classes_of(read("sop", tmp_path, folds=0)["train"]) == ["1", "2", "2", "9"]


@pytest.mark.parametrize("where", ["", "Eval/"])
def test_in_shop_keeps_query_and_gallery_and_merges_them(tmp_path, where):
    parts = read("in-shop", in_shop(tmp_path, where))
    assert classes_of(parts["train"]) == ["id_00000002"] and classes_of(parts["validation"]) == ["id_00000001"]
    names = [f"id_0000000{i}" for i in (7, 8, 9)]
    assert parts["query"].classes == parts["gallery"].classes == parts["test"].classes == tuple(names)
    assert parts["query"].labels.tolist() == [1, 0, 1] and parts["gallery"].labels.tolist() == [1, 2]
    assert classes_of(parts["test"]) == [names[i] for i in (1, 1, 2, 0, 1)]
    assert below(tmp_path, parts["gallery"]) == ["img/MEN/id_00000008/03.jpg", "img/MEN/id_00000009/04.jpg"]


def test_image_folder_with_and_without_parts(tmp_path):
    plain = put(tmp_path / "plain", {f"{c}/{i}.PNG": None for c in "abcdef" for i in range(2)})
    put(plain, {"a/._0.PNG": None, ".cache/0.png": None, "a/notes.txt": None, "ab/none.txt": None})
    parts = read("folder", plain)
    assert {part: items.classes for part, items in parts.items()} == {
        "train": ("b", "c"),
        "validation": ("a",),
        "test": ("d", "e", "f"),
    }
    assert below(plain, parts["validation"]) == ["a/0.PNG", "a/1.PNG"]
    told = put(tmp_path / "told", {name: None for name in ("train/x/1.jpg", "query/b/1.jpg", "gallery/a/1.jpg")})
    parts = read("folder", told)
    assert parts["query"].labels.tolist() == [1] and parts["gallery"].labels.tolist() == [0]
    assert set(parts) == {"train", "query", "gallery", "test"} and len(parts["test"]) == 2


def test_identities(tmp_path):
    root = put(tmp_path, {f"{who}/{i}.jpg": None for who in ("m.01", "m.02", "m.10") for i in range(2)})
    assert classes_of(read("ms1m", root)["train"]) == ["m.01"] * 2 + ["m.02"] * 2 + ["m.10"] * 2
    assert set(read("ms1m", root, folds=3)) == {"train", "validation"}


def one_folder_each(root):
    """Seven classes of two images, a folder each."""
    return put(root, {f"{who}/{i}.jpg": None for who in "abcdefg" for i in range(2)})


def sop(root):
    """Seven classes to train on, one to test on."""
    header = "image_id class_id super_class_id path\n"
    lists = {"Ebay_train.txt": range(7), "Ebay_test.txt": [9]}
    return put(root, {name: header + "".join(f"{c} {c} 1 x/{c}.JPG\n" for c in of) for name, of in lists.items()})


def archive(root):
    """Features of seven classes."""
    np.savez(root / "all.npz", features=np.eye(7), labels=np.arange(7))
    return root / "all.npz"


FOLDED = {"cars196": cars_of_stanford, "cub200": cub, "features": archive, "folder": one_folder_each}
FOLDED |= {"in-shop": in_shop, "ms1m": one_folder_each, "sop": sop}
"""A layout of each data set whose reader parts validation from training."""


def test_folds_of_every_reader_part_validation_from_training(tmp_path):
    known = {name: inspect.signature(function).parameters for name, function in READERS.items()}
    assert FOLDED.keys() == {name for name, options in known.items() if "folds" in options}
    for name, layout in FOLDED.items():
        (tmp_path / name).mkdir()
        root = layout(tmp_path / name)
        whole = read(name, root, folds=0)
        assert "validation" not in whole
        for folds in (2, 3):
            parts, expected = read(name, root, folds=folds), development(whole["train"], folds)
            assert parts.keys() == expected.keys() | whole.keys()
            for part in ("train", "validation"):
                assert parts[part].classes == expected[part].classes, name
        assert ("validation" in read(name, root)) == (name != "ms1m"), name


def test_lfw(tmp_path):
    parts = read("lfw", lfw(tmp_path))
    train, test = parts["train"], parts["test"]
    assert below(tmp_path, train)[2] == "lfw-deepfunneled/Ann_A/Ann_A_0003.jpg"
    assert classes_of(train) == ["Ann_A"] * 3 + ["Bob_B"] * 2
    assert (train.pairs.left.tolist(), train.pairs.right.tolist()) == ([0, 1], [2, 3])
    assert (test.pairs.left.tolist(), test.pairs.right.tolist()) == ([1, 0], [0, 2])
    assert test.pairs.same.tolist() == [True, False]
    only = read("lfw", tmp_path, view=2)["test"]
    assert only.pairs.fold.tolist() == [0] * 4 + [1] * 4 and only.pairs.same.tolist() == [True, True, False, False] * 2
    same = only.labels[only.pairs.left] == only.labels[only.pairs.right]
    assert np.array_equal(same, only.pairs.same) and len(only) == 8


def test_cplfw(tmp_path):
    who = ["A_A", "B_B", "C_C", "D_D"]
    people = list(who)
    np.random.RandomState(42).shuffle(people)
    positive = "".join(f"{each}_{i}.jpg 1\n" for each in who for i in (1, 2))
    negative = "".join(f"{a}_1.jpg 0\n{b}_3.jpg 0\n" for a, b in pairwise(who))
    parts = read("cplfw", put(tmp_path, {"pairs_CPLFW.txt": positive + negative}), test_identities=3)
    assert set(parts["test"].classes) == set(people[:3]) and set(parts["validation"].classes) == set(people[3:])
    for items in parts.values():
        left, right = items.labels[items.pairs.left], items.labels[items.pairs.right]
        assert np.array_equal(left == right, items.pairs.same)
        first = below(tmp_path, items)[items.pairs.left[0]]
        assert re.fullmatch(r"images/\w_\w_1\.jpg", first)
    across = sum((a in people[:3]) != (b in people[:3]) for a, b in pairwise(who))
    assert len(parts["test"].pairs) + len(parts["validation"].pairs) == 7 - across
    assert across > 0


def test_ijbc(tmp_path, monkeypatch):
    test = read("ijbc", ijbc(tmp_path), check=True)["test"]
    assert test.ids.tolist() == [5, 7, 10, 30]  # 40 has no image
    names = [path.removeprefix("images/") for path in below(tmp_path, test)]
    found = [{names[row] for row in test.members[test.groups == group]} for group in range(4)]
    assert found == [
        {"1/img_1.jpg"},
        {"2/img_3.jpg", "2/img_4.jpg"},
        {"1/img_1.jpg", "1/frames_7_2.png"},
        {"2/img_3.jpg"},
    ]
    assert [test.classes[i] for i in test.subjects] == ["1", "2", "1", "2"]
    assert classes_of(test) == [name[0] for name in names]
    assert test.ids[test.matches.left].tolist() == [10, 30, 30, 10]
    assert test.ids[test.matches.right].tolist() == [5, 5, 7, 7]
    assert test.matches.same.tolist() == [True, False, True, False]
    monkeypatch.setattr("peaccel.published.ijbc_matches.MATCHES", {True: 1, False: 2})
    few = first_matches(test).matches
    assert few.same.tolist() == [True, False, False]


def test_templates_are_in_the_order_of_fuse(tmp_path):
    import peaccel as pe

    test = read("ijbc", ijbc(tmp_path))["test"]
    mu = np.eye(len(test), dtype=np.float32)
    fused = pe.fuse(pe.Normal(mu[test.members], np.ones(len(test.members), np.float32)), test.groups)
    assert len(fused) == len(test.ids)
    assert np.array_equal(fused.mu[0], mu[test.members[0]])


def test_coco_by_annotations(tmp_path, monkeypatch):
    parts = read("coco", coco_by_annotations(tmp_path), check=True)
    train = parts["train"]
    assert below(tmp_path, train) == ["train2014/COCO_100.jpg", "val2014/COCO_6.jpg"]
    assert train.captions == ("café 1", "café 2", "café 12") and train.image.tolist() == [0, 0, 1]
    assert train.labels.tolist() == [0, 1]
    assert parts["validation"].captions == ("café 11", "café 10") and len(parts["validation"]) == 1
    monkeypatch.setattr("peaccel.data.captions.VALIDATION_CAPTIONS", 1)
    assert read("coco", tmp_path)["validation"].captions == ("café 11",)
    monkeypatch.setattr("peaccel.data.captions.VALIDATION_CAPTIONS", 0)
    for part in ("train", "test"):  # of which all captions count
        assert read("coco", tmp_path)[part].captions == parts[part].captions != ()


@pytest.mark.parametrize("each", [1, 5])
def test_coco_by_lines(tmp_path, monkeypatch, each):
    files = {"id_mapping.json": json.dumps({"31": "val2014/a.jpg", "17": "train2014/b.jpg"})}
    for name in ("train", "dev", "testall"):
        files[f"precomp/{name}_caps.txt"] = "".join(f"{name} a{i} \u2028 b\n" for i in range(10))
        files[f"precomp/{name}_ids.txt"] = "".join(f"{image}\n" * (5 // each) for image in (31, 17))
    parts = read("coco", put(tmp_path, files))
    assert below(tmp_path, parts["test"]) == ["images/val2014/a.jpg", "images/train2014/b.jpg"]
    assert parts["train"].captions[7] == "train a7 \u2028 b" and parts["test"].image.tolist() == [0] * 5 + [1] * 5
    monkeypatch.setattr("peaccel.data.captions.VALIDATION_CAPTIONS", 5)
    assert len(read("coco", tmp_path)["validation"]) == 1 and len(read("coco", tmp_path)["test"]) == 2


def test_conceptual_captions(tmp_path):
    lists = {
        "Train_GCC-training.tsv": "a cat , sitting\timages/0.jpg\nit's a dog\timages/1.jpg\n",
        "Validation_GCC-1.1.0-Validation.tsv": "a tree\timages/v.jpg\n",
    }
    parts = read("conceptual-captions", put(tmp_path, lists))
    assert parts["train"].captions == ("a cat , sitting", "it's a dog") and parts["train"].image.tolist() == [0, 1]
    assert below(tmp_path, parts["validation"]) == ["images/v.jpg"]
    put(tmp_path, {"Train_GCC-training.tsv": "a cat\thttp://x.org/1.jpg\n"})
    with pytest.raises(ValueError, match=r"training\.tsv:1: http://x\.org/1\.jpg is an address"):
        read("conceptual-captions", tmp_path)


def near(places, metres):
    """Names of queries and of what lies near them, by the relevance that `Places` describes."""
    at = np.c_[places.position, 1e9 * places.city]
    relevance = Relevance.within(at[places.query], at[~places.query], metres)
    names = np.array([Path(path).stem for path in places.paths])
    pairs = relevance.pairs(np.arange(relevance.sizes().sum()))
    return [(str(names[places.query][q]), str(names[~places.query][d])) for q, d in pairs]


def test_msls(tmp_path):
    parts = read("msls", msls(tmp_path), check=True)
    assert parts["train"].cities == ("zurich",) and below(tmp_path, parts["train"])[0].endswith("query/images/q6.jpg")
    held = parts["validation"]
    keys = [Path(path).stem for path in held.paths]
    assert keys == ["q1", "q2", "d1", "d2", "d3", "q3", "d4", "d5"]
    assert held.query.tolist() == [key[0] == "q" for key in keys] and held.position[3].tolist() == [15, 21]
    # 25 m itself is near; q2 and q3 are in other cities.
    assert near(held, 25) == [("q1", "d1"), ("q1", "d3"), ("q3", "d5")]
    assert near(held, 10) == [("q1", "d3")]
    with pytest.raises(FileNotFoundError, match=r"test: no such folder"):
        read("msls", tmp_path, parts=["test"])


def test_features(tmp_path):
    x, words = np.arange(24.0).reshape(12, 2), np.array(list("aabbccddeeff"))
    np.savez(tmp_path / "all.npz", features=x, labels=words)
    parts = read("features", tmp_path / "all.npz")
    assert parts["validation"].classes == ("a", "b") and parts["train"].classes == ("c", "d", "e", "f")
    assert classes_of(parts["train"]) == list("ccddeeff") and parts["train"].features.dtype == np.float32
    assert np.array_equal(parts["train"].features, x[4:])
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    np.save(tmp_path / "y.npy", np.repeat([30, -4, 7], 4))
    alone = read("features", tmp_path / "x.npy", labels=tmp_path / "y.npy", folds=0)["train"]
    assert alone.classes == ("-4", "7", "30") and alone.labels.tolist() == [2] * 4 + [0] * 4 + [1] * 4


def test_features_by_part(tmp_path):
    for part, told in (("train", [5, 9]), ("query", [9, 3]), ("gallery", [3, 7])):
        np.savez(tmp_path / f"{part}.npz", features=np.full((2, 3), told[0], np.float32), labels=told)
    parts = read("features", tmp_path)
    assert parts["train"].labels.tolist() == [0, 1]
    assert parts["query"].labels.tolist() == [2, 0] and parts["gallery"].labels.tolist() == [0, 1]
    assert parts["gallery"].classes == ("3", "7", "9") and parts["test"].features[:, 0].tolist() == [9, 9, 3, 3]


def test_caption_features(tmp_path):
    np.savez(tmp_path / "test.npz", images=np.ones((2, 4)), captions=np.ones((3, 5)), image=[0, 1, 1])
    test = read("caption-features", tmp_path)["test"]
    assert len(test) == 2 and test.captions.shape == (3, 5) and test.image.tolist() == [0, 1, 1]
    np.savez(tmp_path / "test.npz", images=np.ones((2, 4)), captions=np.ones((3, 5)), image=[0, 1, 2])
    with pytest.raises(ValueError, match=r"test\.npz: image is in 0\.\.2, expected 0\.\.1"):
        read("caption-features", tmp_path)
