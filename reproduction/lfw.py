"""Photographs of Labeled Faces in the Wild and their embeddings by dlib's encoder, in three versions.

Each photograph is embedded as it is, at a drawn resolution, and either blurred or partly covered. Embeddings are kept
outside of git in runs/lfw; blocks of them are kept as they are made, so a stopped command goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from reproduction.files import written

CACHE = Path(__file__).parents[1] / "runs" / "lfw"
CHIP = 150  # pixels of a side, as the encoder takes them
SIDES = (12, 24, 38, 60, 96)  # to which chips are shrunk; 38 is a quarter of the resolution
BLURS = (2.0, 4.0, 8.0)  # standard deviations, in pixels of a chip
COVERS = (0.15, 0.3, 0.45)  # shares of a chip
VERSIONS = ("clean", "small", "marred")
PEOPLE, PHOTOGRAPHS = 5749, 13233
BLOCK = 256
MOST = 14  # photographs of a person that are used, or a president's would be a quarter of all pairs
DISTANCE = 0.6  # from which on dlib's documentation calls two faces one person

NEEDS = """The command needs the photographs of Labeled Faces in the Wild, and dlib's encoder: pip install
dlib-bin face-recognition-models. Set LFW to a folder with pairs.txt and lfw-deepfunneled, as torchvision's LFWPeople
has them. The funneled photographs that scikit-learn's fetch_lfw_pairs downloads (200 MB) give slightly other numbers.
39,699 faces are embedded in an hour of one thread; a stopped command goes on where it was."""


class Faces(NamedTuple):
    """Photographs of people, embedded."""

    names: np.ndarray
    """[N] names of files without their ending, sorted: a person's name and a number."""
    clean: np.ndarray
    """[N, 128] embeddings of photographs as they are, at the length that the encoder gives them."""
    small: np.ndarray
    """[N, 128] embeddings at a lower resolution."""
    marred: np.ndarray
    """[N, 128] embeddings of blurred or partly covered faces."""
    side: np.ndarray
    """[N] sides in pixels of the small faces."""
    blur: np.ndarray
    """[N] standard deviations in pixels of the blur of marred faces, 0 for those that are covered."""
    cover: np.ndarray
    """[N] shares of marred faces that are covered, 0 for those that are blurred."""
    detection: np.ndarray
    """[N] scores of the face detector on the clean photograph, -1 where it found no face."""
    pairs: np.ndarray
    """[6000, 2] rows of the pairs of ten folds (view 2)."""

    @property
    def people(self) -> np.ndarray:
        """[N] numbers of people, in the order of their names."""
        return np.unique([name.rpartition("_")[0] for name in self.names], return_inverse=True)[1]

    def checksum(self) -> str:
        """Hexadecimal digest of all embeddings, to three decimals."""
        every = np.stack([self.clean, self.small, self.marred])
        return hashlib.sha256(np.rint(1000 * every).astype("<i4").tobytes()).hexdigest()[:16]


def faces() -> Faces:
    """Embed the photographs in the folder LFW, or read the embeddings that are kept.

    Raises
    ------
    FileNotFoundError
        No embeddings are kept, and LFW names no folder of photographs.
    """
    whole = CACHE / "faces.npz"
    if not whole.exists():
        folder = photographs()
        print(" ".join(NEEDS.split()), flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        keep(whole, embedded(folder)._asdict())
    with np.load(whole) as kept:
        return Faces(**kept)


def photographs() -> Path:
    """The folder that holds a folder of each person, under LFW."""
    if "LFW" in os.environ:
        for found in Path(os.environ["LFW"]).glob("**/Aaron_Eckhart"):
            if (found.parents[1] / "pairs.txt").exists():
                return found.parent
    raise FileNotFoundError(" ".join(NEEDS.split()))


def keep(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to a file, whole or not at all."""
    with written(path) as fresh:
        np.savez(fresh, **arrays)  # type: ignore[arg-type]  # of which allow_pickle is none


def embedded(folder: Path) -> Faces:
    """All versions of all photographs, block after block."""
    files = sorted(folder.glob("*/*.jpg"))
    drawn = marks(len(files))
    encoder = Encoder()
    rows = [np.arange(len(files))[first : first + BLOCK] for first in range(0, len(files), BLOCK)]
    found: dict[str, np.ndarray] = {}
    for version in VERSIONS:
        blocks = []
        for number, block in enumerate(rows):
            path = CACHE / f"{version}-{number:03d}.npz"
            if not path.exists():
                print(f"{version}: {block[0]} of {len(files)}", flush=True)
                keep(path, encoder.embed([files[i] for i in block], version, {k: x[block] for k, x in drawn.items()}))
            with np.load(path) as kept:
                blocks.append(dict(kept))
        found[version] = np.concatenate([block["embeddings"] for block in blocks])
        found["detection"] = np.concatenate([block["detection"] for block in blocks])
    names = np.array([file.stem for file in files])
    spoilt = {key: drawn[key] for key in ("side", "blur", "cover")}
    return Faces(names=names, **found, **spoilt, pairs=pairs_of_folds(folder.parent / "pairs.txt", names))


def pairs_of_folds(file: Path, names: np.ndarray) -> np.ndarray:
    """[6000, 2] rows of a list of pairs: a person and two numbers, or two people, each with a number."""
    row = {name: i for i, name in enumerate(names.tolist())}
    words = [line.split() for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    sides = [((w[0], w[1]), (w[-2] if len(w) == 4 else w[0], w[-1])) for w in words]
    return np.array([[row[f"{person}_{int(number):04d}"] for person, number in pair] for pair in sides])


def marks(count: int) -> dict[str, np.ndarray]:
    """Draw for each photograph how its versions are spoilt."""
    rng = np.random.default_rng(0)
    blurred = rng.random(count) < 0.5
    return {
        "side": rng.choice(SIDES, count),
        "blur": np.where(blurred, rng.choice(BLURS, count), 0.0),
        "cover": np.where(blurred, 0.0, rng.choice(COVERS, count)),
        "place": rng.random((count, 2)),
    }


class Encoder:
    """dlib's detector of faces, its five landmarks and its network of 128 numbers."""

    def __init__(self) -> None:
        try:
            self.dlib: Any = import_module("dlib")
            models: Any = import_module("face_recognition_models")
        except ImportError:
            raise FileNotFoundError(" ".join(NEEDS.split())) from None
        self.detector = self.dlib.get_frontal_face_detector()
        self.landmarks = self.dlib.shape_predictor(models.pose_predictor_five_point_model_location())
        self.network = self.dlib.face_recognition_model_v1(models.face_recognition_model_location())

    def embed(self, files: list[Path], version: str, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Embeddings of a version of photographs, and the detector's scores."""
        chips, scores = zip(*map(self.chip, files), strict=True)
        shown = [mar(chip, version, {k: x[i] for k, x in drawn.items()}) for i, chip in enumerate(chips)]
        return {
            "embeddings": np.array(self.network.compute_face_descriptor(shown), np.float32),
            "detection": np.array(scores, np.float32),
        }

    def chip(self, file: Path) -> tuple[np.ndarray, float]:
        """The upright face nearest to the middle of a photograph, and the detector's score of it."""
        with Image.open(file) as opened:
            picture = np.asarray(opened.convert("RGB"))
        middle = picture.shape[0] // 2
        for scale in (0, 1):
            boxes, scores, _ = self.detector.run(picture, scale, 0.0)
            if boxes:
                apart = [np.hypot(box.center().x - middle, box.center().y - middle) for box in boxes]
                nearest = int(np.argmin(apart))
                box, score = boxes[nearest], scores[nearest]
                break
        else:
            half = 57  # as detectors find faces in these photographs
            box, score = self.dlib.rectangle(middle - half, middle - half, middle + half, middle + half), -1.0
        return self.dlib.get_face_chip(picture, self.landmarks(picture, box), CHIP, 0.25), score


def mar(chip: np.ndarray, version: str, drawn: dict[str, Any]) -> np.ndarray:
    """A version of a chip."""
    picture = Image.fromarray(chip)
    if version == "small":
        side = int(drawn["side"])
        picture = picture.resize((side, side), Image.Resampling.LANCZOS).resize((CHIP, CHIP), Image.Resampling.BICUBIC)
    elif version == "marred" and drawn["blur"]:
        picture = picture.filter(ImageFilter.GaussianBlur(float(drawn["blur"])))
    elif version == "marred":
        side = round(CHIP * float(drawn["cover"]) ** 0.5)
        left, top = (int(x) for x in drawn["place"] * (CHIP - side))
        picture.paste((128, 128, 128), (left, top, left + side, top + side))
    return np.asarray(picture)


# ---- people ----------------------------------------------------------------------------------------------------------


def drawn_order(people: np.ndarray, seed: int) -> np.ndarray:
    """[N], each photograph's place among those of its person, in a drawn order."""
    order = np.random.default_rng(seed).permutation(len(people))
    order = order[np.argsort(people[order], kind="stable")]
    first = np.searchsorted(people[order], people[order])
    place = np.empty(len(people), np.int64)
    place[order] = np.arange(len(people)) - first
    return place


def fitted(people: np.ndarray, seed: int, share: float = 1 / 3) -> np.ndarray:
    """[N], whether a photograph is of a person who is fitted to."""
    order = np.random.default_rng(seed).permutation(people.max() + 1)
    return np.isin(people, order[: round(share * len(order))])
