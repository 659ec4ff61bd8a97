"""Readers on small made-up copies of what is published on disk: parts, labels, and what a wrong copy is told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from peaccel.data import READERS, read
from peaccel.data.places import within
from peaccel.data.records import Images, development, labelled


def put(root, files):
    """Write texts below a folder; None makes an empty file."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text or "", encoding="utf-8")
    return root


def below(root, items):
    """Paths of a part as they stand below the root."""
    return [Path(path).relative_to(root).as_posix() for path in items.paths]


def classes_of(items):
    """The class of each item, after a look at its labels: 0..C-1, each of them there."""
    assert items.labels.dtype == np.int64
    assert np.array_equal(np.unique(items.labels), np.arange(len(items.classes)))
    return [items.classes[label] for label in items.labels]


# CUB200-2011: five classes for development, two for testing, with gaps, and images in no order of their classes.
CUB = [7, 100, 1, 101, 55, 200, 99, 7, 101]


def cub(root):
    return put(
        root,
        {
            "images.txt": "".join(f"{i} {c:03}.Bird/b{i}.jpg\n" for i, c in enumerate(CUB, 1)),
            "image_class_labels.txt": "".join(f"{i} {c}\n" for i, c in reversed(list(enumerate(CUB, 1)))),
            "train_test_split.txt": "".join(f"{i} {i % 2}\n" for i in range(1, 10)),
            **{f"images/{c:03}.Bird/b{i}.jpg": None for i, c in enumerate(CUB, 1)},
        },
    )


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
def test_validation_is_the_first_fold_of_kfold(classes):
    from sklearn.model_selection import KFold

    parts = development(labelled([f"{i}" for i in range(classes)], np.arange(classes)), 4)
    if classes >= 4:  # which KFold wants
        _, first = next(KFold(4).split(np.arange(classes)))
        assert list(parts["validation"].paths) == [str(i) for i in first]
    assert len(parts["train"]) + len(parts["validation"]) == classes
    assert not set(parts["train"].classes) & set(parts["validation"].classes)


@pytest.mark.parametrize(("folds", "classes"), [(1, 9), (-1, 9), (4, 1)])
def test_development_needs_something_to_train_on(folds, classes):
    with pytest.raises(ValueError, match=r"development: (folds|classes)"):
        development(labelled([str(i) for i in range(classes)], np.arange(classes)), folds)


# Cars196: classes on both sides of the border, 98 among them.
CARS = {"train": [98, 99, 3, 97], "test": [196, 98, 1, 99]}


def cars_of_stanford(root):
    for part, name in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        notes = np.zeros((1, 4), [("bbox_x1", object), ("class", object), ("fname", object)])
        for i, c in enumerate(CARS[part]):
            notes[0, i] = (np.uint16(1), np.uint8(c), f"{i:05}.jpg")
        (root / "devkit").mkdir(parents=True, exist_ok=True)
        savemat(root / "devkit" / name, {"annotations": notes})
    return put(root, {f"cars_{part}/{i:05}.jpg": None for part in CARS for i in range(4)})


def cars_of_kaggle(root):
    names = [f"Car {c}" for c in range(1, 197)]
    names[97] = "Ram C/V Cargo Van"
    files = {"names.csv": "\n".join(names)}
    for part, classes in CARS.items():
        files[f"anno_{part}.csv"] = "".join(f"{i:05}.jpg,1,2,30,40,{c}\n" for i, c in enumerate(classes))
        for i, c in enumerate(classes):
            files[f"car_data/car_data/{part}/{names[c - 1].replace('/', '-')}/{i:05}.jpg"] = None
    return put(root, files)


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


SHOP = [
    ("1", "train"),
    ("2", "train"),
    ("8", "query"),
    ("8", "gallery"),
    ("9", "gallery"),
    ("7", "query"),
    ("8", "query"),
]


def in_shop(root, where="", count=7):
    lines = [f"img/MEN/id_{item:0>8}/0{i}.jpg   id_{item:0>8}  {part}" for i, (item, part) in enumerate(SHOP)]
    text = "\n".join([str(count), "image_name item_id evaluation_status", *lines, ""])
    return put(root, {f"{where}list_eval_partition.txt": text})


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
    put(plain, {"a/._0.PNG": None, ".cache/0.png": None, "a/notes.txt": None})
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


def lfw(root):
    return put(
        root,
        {
            "peopleDevTrain.txt": "2\nAnn_A\t3\nBob_B\t2\n",
            "peopleDevTest.txt": "2\nCy_C\t2\nDi_D\t1\n",
            "pairsDevTrain.txt": "1\nAnn_A\t1\t3\nAnn_A\t2\tBob_B\t1\n",
            "pairsDevTest.txt": "1\nCy_C\t2\t1\nCy_C\t1\tDi_D\t1\n",
            "pairs.txt": "2\t1\nAnn_A\t1\t3\nAnn_A\t2\tBob_B\t1\nCy_C\t2\t1\nCy_C\t1\tDi_D\t1\n",
        },
    )


def test_lfw(tmp_path):
    parts = read("lfw", lfw(tmp_path))
    train, test = parts["train"], parts["test"]
    assert below(tmp_path, train)[2] == "lfw-deepfunneled/Ann_A/Ann_A_0003.jpg"
    assert classes_of(train) == ["Ann_A"] * 3 + ["Bob_B"] * 2
    assert (train.pairs.left.tolist(), train.pairs.right.tolist()) == ([0, 1], [2, 3])
    assert (test.pairs.left.tolist(), test.pairs.right.tolist()) == ([1, 0], [0, 2])
    assert test.pairs.same.tolist() == [True, False]
    only = read("lfw", tmp_path, view=2)["test"]
    assert only.pairs.fold.tolist() == [0, 0, 1, 1] and only.pairs.same.tolist() == [True, False] * 2
    same = only.labels[only.pairs.left] == only.labels[only.pairs.right]
    assert np.array_equal(same, only.pairs.same) and len(only) == 7


def test_cplfw(tmp_path):
    who = ["A_A", "B_B", "C_C", "D_D"]
    people = list(who)
    np.random.RandomState(42).shuffle(people)
    positive = "".join(f"{each}_{i}.jpg 1\n" for each in who for i in (1, 2))
    negative = "".join(f"{a}_1.jpg 0\n{b}_3.jpg 0\n" for a, b in zip(who, who[1:], strict=False))
    parts = read("cplfw", put(tmp_path, {"pairs_CPLFW.txt": positive + negative}), test_identities=3)
    assert set(parts["test"].classes) == set(people[:3]) and set(parts["validation"].classes) == set(people[3:])
    for items in parts.values():
        left, right = items.labels[items.pairs.left], items.labels[items.pairs.right]
        assert np.array_equal(left == right, items.pairs.same)
        first = below(tmp_path, items)[items.pairs.left[0]]
        assert re.fullmatch(r"images/\w_\w_1\.jpg", first)
    across = sum((a in people[:3]) != (b in people[:3]) for a, b in zip(who, who[1:], strict=False))
    assert len(parts["test"].pairs) + len(parts["validation"].pairs) == 7 - across
    assert across > 0


def ijbc(root):
    header = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n"
    lists = {
        "enroll_templates": header + "10,1,img/1.jpg,5\n10,1,frames/7_2.png,5\n30,2,img/3.jpg,6\n",
        "verif_templates": header + "5,1,img/1.jpg,5\n40,3,img/gone.jpg,6\n7,2,img/3.jpg,6\n7,2,img/4.jpg,6\n",
        "match": "ENROLL_TEMPLATE_ID,VERIF_TEMPLATE_ID\n10,5\n10,40\n30,5\n30,7\n10,7\n",
    }
    put(root / "protocols" / "test1", {f"{name}.csv": text for name, text in lists.items()})
    names = ("1/img_1.jpg", "1/frames_7_2.png", "2/img_3.jpg", "2/img_4.jpg")
    return put(root / "images", {name: None for name in names}).parent


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
    monkeypatch.setattr("peaccel.data.faces.PUBLISHED_MATCHES", (1, 2))
    few = read("ijbc", tmp_path, variant="published")["test"].matches
    assert few.same.tolist() == [True, False, False]


def test_templates_are_in_the_order_of_fuse(tmp_path):
    import peaccel as pe

    test = read("ijbc", ijbc(tmp_path))["test"]
    mu = np.eye(len(test), dtype=np.float32)
    fused = pe.fuse(pe.Normal(mu[test.members], np.ones(len(test.members), np.float32)), test.groups)
    assert len(fused) == len(test.ids)
    assert np.array_equal(fused.mu[0], mu[test.members[0]])


def coco_by_annotations(root):
    files, ids = {}, {"train": [1, 2], "restval": [12], "dev": [11, 10], "test": [13]}
    for year, images in (("train2014", {1: 100, 2: 100}), ("val2014", {10: 5, 11: 5, 12: 6, 13: 7})):
        told = {
            "images": [{"id": i, "file_name": f"COCO_{i}.jpg"} for i in set(images.values())],
            "annotations": [{"id": a, "image_id": i, "caption": f" café {a}\n"} for a, i in images.items()],
        }
        files[f"annotations/captions_{year}.json"] = json.dumps(told)
        files |= {f"{year}/COCO_{i}.jpg": None for i in images.values()}
    put(root, files)
    for name, each in ids.items():
        np.save(root / "annotations" / f"coco_{name}_ids.npy", np.array(each))
    return root


def test_coco_by_annotations(tmp_path, monkeypatch):
    parts = read("coco", coco_by_annotations(tmp_path), check=True)
    train = parts["train"]
    assert below(tmp_path, train) == ["train2014/COCO_100.jpg", "val2014/COCO_6.jpg"]
    assert train.captions == ("café 1", "café 2", "café 12") and train.image.tolist() == [0, 0, 1]
    assert train.labels.tolist() == [0, 1]
    assert parts["validation"].captions == ("café 11", "café 10") and len(parts["validation"]) == 1
    monkeypatch.setattr("peaccel.data.captions.VALIDATION_CAPTIONS", 1)
    assert read("coco", tmp_path)["validation"].captions == ("café 11",)


@pytest.mark.parametrize("each", [1, 5])
def test_coco_by_lines(tmp_path, each):
    files = {"id_mapping.json": json.dumps({"31": "val2014/a.jpg", "17": "train2014/b.jpg"})}
    for name in ("train", "dev", "testall"):
        files[f"precomp/{name}_caps.txt"] = "".join(f"{name} a{i} \u2028 b\n" for i in range(10))
        files[f"precomp/{name}_ids.txt"] = "".join(f"{image}\n" * (5 // each) for image in (31, 17))
    parts = read("coco", put(tmp_path, files))
    assert below(tmp_path, parts["test"]) == ["images/val2014/a.jpg", "images/train2014/b.jpg"]
    assert parts["train"].captions[7] == "train a7 \u2028 b" and parts["test"].image.tolist() == [0] * 5 + [1] * 5


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


def msls(root):
    spots = {
        ("cph", "query"): [("q1", 0.0, 0.0), ("q2", 1000.0, 0.0), ("pano", 0.0, 1.0)],
        ("cph", "database"): [("d1", 25.0, 0.0), ("d2", 15.0, 21.0), ("d3", 0.0, -3.0)],
        ("sf", "query"): [("q3", 1000.0, 0.0)],
        ("sf", "database"): [("d4", 0.0, 0.0), ("d5", 1000.0, 24.0)],
        ("zurich", "query"): [("q6", 1.0, 1.0)],
        ("zurich", "database"): [("d6", 2.0, 2.0)],
    }
    files = {}
    for (city, side), each in spots.items():
        place = f"train_val/{city}/{side}"
        rows = "".join(f"{i},{key},{x},{y},False\n" for i, (key, x, y) in enumerate(each))
        files[f"{place}/postprocessed.csv"] = ",key,easting,northing,night\n" + rows
        rows = "".join(f"{i},{key},12.5,{key == 'pano'}\n" for i, (key, _, _) in reversed(list(enumerate(each))))
        files[f"{place}/raw.csv"] = ",key,lon,pano\n" + rows
        files |= {f"{place}/images/{key}.jpg": None for key, _, _ in each}
    return put(root, files)


def test_msls(tmp_path):
    parts = read("msls", msls(tmp_path), check=True)
    assert parts["train"].cities == ("zurich",) and below(tmp_path, parts["train"])[0].endswith("query/images/q6.jpg")
    held = parts["validation"]
    keys = [Path(path).stem for path in held.paths]
    assert keys == ["q1", "q2", "d1", "d2", "d3", "q3", "d4", "d5"]
    assert held.query.tolist() == [key[0] == "q" for key in keys] and held.position[3].tolist() == [15, 21]
    near = [(keys[q], keys[d]) for q, d in zip(*within(held), strict=True)]
    assert near == [("q1", "d1"), ("q1", "d3"), ("q3", "d5")]  # 25 m itself is near; q2 and q3 are in other cities
    assert [keys[d] for d in within(held, 10)[1]] == ["d3"]
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


# Of every layout that is read from lists: how it is made, and the file that is then taken away.
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
        (coco_by_annotations, "coco", "annotations/coco_dev_ids.npy", "x", "coco_dev_ids.npy: cannot be read"),
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
        ({"features": np.ones((3, 2))}, "all.npz: cannot be read, expected arrays features and labels"),
        ({"features": np.ones(3), "labels": np.arange(3)}, "features is float64 (3,), expected floats [N, D]"),
        ({"features": np.ones((3, 2)), "labels": np.arange(4)}, "labels is int64 (4,), expected numbers or words (3,)"),
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
    with pytest.raises(ValueError, match=r"'cub20' is unknown, expected one of .*; did you mean cub200\?"):
        read("cub20", tmp_path)
