"""Small made-up copies of data sets, laid out on disk as the real ones are published."""

import json

import numpy as np
from scipy.io import savemat


def put(root, files):
    """Write texts below a folder; None makes an empty file."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text or "", encoding="utf-8")
    return root


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


def lfw(root):
    return put(
        root,
        {
            "peopleDevTrain.txt": "2\nAnn_A\t3\nBob_B\t2\n",
            "peopleDevTest.txt": "2\nCy_C\t2\nDi_D\t1\n",
            "pairsDevTrain.txt": "1\nAnn_A\t1\t3\nAnn_A\t2\tBob_B\t1\n",
            "pairsDevTest.txt": "1\nCy_C\t2\t1\nCy_C\t1\tDi_D\t1\n",
            "pairs.txt": "2\t2\n"
            "Ann_A\t1\t3\nBob_B\t1\t2\nAnn_A\t2\tBob_B\t1\nAnn_A\t1\tCy_C\t1\n"
            "Cy_C\t2\t1\nCy_C\t1\t2\nCy_C\t1\tDi_D\t1\nDi_D\t1\tAnn_A\t2\n",
        },
    )


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


def cplfw(root):
    return put(root, {"pairs_CPLFW.txt": "".join(f"{name}_{i}.jpg 1\n" for name in ("Ann", "Bob") for i in (1, 2))})


LAYOUTS = {
    "cars196": cars_of_stanford,
    "coco": coco_by_annotations,
    "cplfw": cplfw,
    "cub200": cub,
    "ijbc": ijbc,
    "in-shop": in_shop,
    "lfw": lfw,
    "msls": msls,
}
"""The copy of each data set that is read from lists."""
