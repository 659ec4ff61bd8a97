"""Printed kanji: `python -m reproduction.kanji` trains eight rows on 300 and on 2,000 classes.

Classes are the 2,965 characters of JIS level 1, images their glyphs in eleven printed typefaces of Debian. Queries of
new characters are printed, or in the brush and hand styles of six typefaces that no training has seen. Glyphs that a
typeface lacks are left out, and of near-equal glyphs of a character the first is kept. Trainings are as long either
way: each sees as many images. Lines go to reproduction/kanji.jsonl, and a stopped command goes on where it was; the
table is docs/data/kanji.csv.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import t

from peaccel import confidence, metrics, search
from peaccel.data.corruption import KINDS, Corruption, Pictures, corrupt
from peaccel.distributions import Distribution
from peaccel.methods.method import Method, Schedule, Training
from peaccel.train import Options, embed, fit, recipe
from peaccel.train.backbones import small_cnn
from peaccel.train.evaluation import scored
from reproduction.debian import unpack
from reproduction.files import written
from reproduction.ledger import unpacked
from reproduction.measuring import measure
from reproduction.speakers import write
from reproduction.tasks import Part, images

Record = dict[str, Any]

FONTS = Path(__file__).parents[1] / "runs" / "kanji"
RESULTS = Path(__file__).parent / "kanji.jsonl"

PACKAGES = (
    "fonts-ipafont-gothic",
    "fonts-ipafont-mincho",
    "fonts-mplus",
    "fonts-vlgothic",
    "fonts-motoya-l-cedar",
    "fonts-motoya-l-maruberi",
    "fonts-sawarabi-gothic",
    "fonts-sawarabi-mincho",
    "fonts-umeplus",
    "fonts-dejima-mincho",
    "fonts-migmix",
    "fonts-kouzan-mouhitsu",
    "fonts-aoyagi-kouzan-t",
    "fonts-aoyagi-soseki",
    "fonts-seto",
)
PRINTED = (
    "ipag.ttf",
    "ipam.ttf",
    "Mplus1-Regular.otf",
    "VL-Gothic-Regular.ttf",
    "MTLc3m.ttf",
    "MTLmr3m.ttf",
    "sawarabi-gothic-medium.ttf",
    "sawarabi-mincho-medium.ttf",
    "umeplus-gothic.ttf",
    "dejima-mincho-r227.ttf",
    "migmix-2m-bold.ttf",
)
BRUSHED = (
    "kouzan-mouhitsu.ttf",
    "kouzan-mouhitsu-gyosho.ttf",
    "KouzanBrushFontSousyo.ttf",
    "AoyagiKouzanT.ttf",
    "aoyagi-soseki.ttf",
    "setofont.ttf",
)

SIDE, EM = 48, 40  # pixels of an image and of a typeface's body
NEAR = 0.95  # cosine of two glyphs' ink from which they are one design

ROWS = ("cosface", "arcface", "pfe", "dul_reg_cls", "scf", "vmf_fl", "el_nivmf", "scaleface")
SPLITS, CLASSES, VALIDATION = 5, (2000, 300), 165  # of 2,965; the other 800 are tested
EPOCHS = {2000: 0.6, 300: 4.0}  # times those of the recipes, so that either way as many images are seen
GALLERY = 5  # printed typefaces of test classes that are searched; the other six are queries
CORRUPTION = Corruption(probability=0.5, severity=(0.25, 1.0), crop=0.5, occlusion=0.7, blur=4.0)

KEPT = ("recall_at_1", "map_at_r", "r_auroc.", "eer.", "tar.", "severity.", "rejection")


# ---- glyphs ----------------------------------------------------------------------------------------------------------


def characters() -> list[str]:
    """The kanji of JIS level 1: rows 16 to 47 of JIS X 0208."""
    cells = (bytes([row + 0xA0, cell + 0xA0]) for row in range(16, 48) for cell in range(1, 95))
    return [cell.decode("euc_jp") for cell in cells if cell.decode("euc_jp", "ignore")]


def glyph(font: ImageFont.FreeTypeFont, character: str) -> NDArray[np.float32]:
    """A character's ink in the middle of an image [SIDE, SIDE], in [0, 1]."""
    image = Image.new("L", (SIDE, SIDE))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.textbbox((0, 0), character, font=font)
    draw.text(((SIDE - right - left) / 2, (SIDE - bottom - top) / 2), character, fill=255, font=font)
    return np.asarray(np.asarray(image) / 255, np.float32)


def lacking(drawn: NDArray[np.float32], font: ImageFont.FreeTypeFont) -> NDArray[np.bool_]:
    """Which glyphs are empty, or drawn as characters that no typeface has."""
    none = [glyph(font, character) for character in "\ufffe\uffff"]
    return np.array([not x.any() or any(np.array_equal(x, y) for y in none) for x in drawn])


def designs(drawn: NDArray[np.float32], there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which glyphs [T, C, H, W] of typefaces and characters are kept: those that are near to no earlier one kept."""
    ink = drawn.reshape(*drawn.shape[:2], -1)
    ink = ink / np.maximum(np.linalg.norm(ink, axis=2, keepdims=True), 1e-12)
    kept = there.copy()
    for i in range(1, len(ink)):
        near = (np.einsum("tcp,cp->tc", ink[:i], ink[i]) > NEAR) & kept[:i]
        kept[i] &= ~near.any(0)
    return kept


def glyphs() -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Images [T, C, H, W] of all typefaces, printed ones first, and which of them are kept; drawn once."""
    cache = FONTS / "glyphs.npz"
    if not cache.exists():
        FONTS.mkdir(parents=True, exist_ok=True)
        unpack(PACKAGES, FONTS)
        paths = {path.name: path for path in FONTS.rglob("*.[to]tf")}
        found = characters()
        drawn, there = [], []
        for name in (*PRINTED, *BRUSHED):
            font = ImageFont.truetype(str(paths[name]), EM)
            drawn.append(np.array([glyph(font, character) for character in found]))
            there.append(~lacking(drawn[-1], font))
        every, kept = np.array(drawn), np.array(there)
        for part in (slice(len(PRINTED)), slice(len(PRINTED), None)):
            kept[part] = designs(every[part], kept[part])
        with written(cache) as fresh:
            np.savez_compressed(fresh, images=np.rint(255 * every).astype(np.uint8), kept=kept)
    with np.load(cache) as read:
        return read["images"].astype(np.float32) / 255, read["kept"]


def parts(every: NDArray[np.float32], kept: NDArray[np.bool_], classes: int, seed: int) -> dict[str, Part]:
    """The images of "train", "validation", "gallery", "printed" and "brushed"; the last two are queries.

    Of one seed, the fewer training classes are among the more, and all else is the same.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(every.shape[1])
    held = order[-VALIDATION:]
    test = order[max(CLASSES) : -VALIDATION]
    faces = rng.permutation(len(PRINTED))
    brushed = np.arange(len(PRINTED), len(every))
    chosen = {
        "train": (order[:classes], faces),
        "validation": (held, faces),
        "gallery": (test, faces[:GALLERY]),
        "printed": (test, faces[GALLERY:]),
        "brushed": (test, brushed),
    }
    found = {}
    for number, (name, (who, which)) in enumerate(chosen.items()):
        face, label = np.nonzero(kept[np.ix_(which, who)])
        nothing = np.zeros(len(label), np.int64), np.zeros(len(label), np.float32)
        clean = Pictures(every[which[face], who[label]], label.astype(np.int64), *nothing)
        kinds = ("crop", "blur") if name in ("train", "validation") else KINDS[1:]
        found[name] = Part(clean, corrupt(clean, CORRUPTION, (seed, number), kinds), clean.labels, None)
    return found


# ---- trainings -------------------------------------------------------------------------------------------------------


def built(row: str, classes: int) -> tuple[Method, Training]:
    """A row by its recipe, as long as the count of classes asks, in batches of half as many classes."""
    method, settings = recipe(row, "mnist")
    schedules = {f.name: x for f in fields(settings) if isinstance(x := getattr(settings, f.name), Schedule)}
    changed = {
        name: replace(
            x, epochs=max(1, round(EPOCHS[classes] * x.epochs)), classes_per_batch=max(1, x.classes_per_batch // 2)
        )
        for name, x in schedules.items()
    }
    return method, method.build(small_cnn.small_cnn(), small_cnn.FEATURES, classes, replace(settings, **changed))


def run(row: str, classes: int, split: int, data: dict[str, Part]) -> Record:
    """Train a row and measure it: of printed and of brushed queries, and how well it tells the two apart."""
    torch.manual_seed(split)
    method, training = built(row, classes)
    train = data["train"]
    fit(training, images(train.mixed), train.labels, Options(seed=split), name=row)
    record: Record = {"row": row, "classes": classes, "split": split}
    for style in ("printed", "brushed"):
        found = measure(method, training, {**data, "query": data[style]})
        values = {f"{name}.own": float(unpacked(found[name]["own"]).mean()) for name in ("recall_at_1", "map_at_r")}
        values |= {name: x for name, x in found["numbers"].items() if name.startswith(KEPT)}
        record[style] = {name: round(x, 5) for name, x in values.items()}
    return {**record, "style": style_auroc(method, training, data)}


def style_auroc(method: Method, training: Training, data: dict[str, Part]) -> dict[str, float]:
    """AUROC of printed against brushed clean queries: by the method's confidence, the norm, and the best score."""
    gallery, *queries = (embed(training.model, images(data[part].clean)) for part in ("gallery", "printed", "brushed"))
    held = embed(training.model, images(data["validation"].mixed))
    score = scored(method, training, held, data["validation"].labels)
    found = {"best": [search(d, gallery, 1, score).scores[:, 0] for d in queries]}
    if method.confidence != "-":
        found["own"] = [sureness(method, d) for d in queries]
    of = np.repeat([1.0, 0.0], [len(d) for d in queries])
    return {name: round(float(metrics.roc_auc(np.concatenate(x), of)), 5) for name, x in found.items()}


def sureness(method: Method, d: Distribution) -> NDArray[np.float64]:
    """The confidence of each item by the method's word, the norm included, [N]."""
    return np.asarray(confidence(d, None if method.confidence == "default" else method.confidence), np.float64)


def finished() -> list[Record]:
    """The lines of results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def trainings() -> Iterator[tuple[int, int, str]]:
    """Split, classes and row of each, split after split, so that any part of them is even."""
    return ((split, classes, row) for split in range(SPLITS) for classes in CLASSES for row in ROWS)


RECALL = ("printed", "recall_at_1.own")
COLUMNS = {
    "Recall@1": RECALL,
    "Recall@1, brushed": ("brushed", "recall_at_1.own"),
    "AUROC of the best score, brushed": ("brushed", "r_auroc.best_{}"),
    "AUROC of the confidence, brushed": ("brushed", "r_auroc.{}"),
    "Printed or brushed, by the best score": ("style", "best"),
    "Printed or brushed, by the confidence": ("style", "own"),
}
"""Columns of the table: of which queries, and under which name a line has it, by score or by confidence."""


RIVAL = "arcface"
GAINS = (f"Recall@1 less `{RIVAL}`", "less that gain with fewer classes")
HEADER = ("Row", "Classes", "Splits", *COLUMNS, *GAINS)


def table() -> Iterator[tuple[str, ...]]:
    """A line for each row and count of classes: means over the splits that are finished, and their half widths."""
    every: dict[tuple[str, int], dict[int, Record]] = {}
    for x in finished():
        every.setdefault((x["row"], x["classes"]), {})[x["split"]] = x
    few, gained = min(CLASSES), dict[str, dict[int, float]]()
    for classes in sorted(CLASSES):
        rival = every.get((RIVAL, classes), {})
        for row in ROWS:
            if not (runs := every.get((row, classes))):
                continue
            cells = [shown([number(run, *where) for run in runs.values()]) for where in COLUMNS.values()]
            gains = {i: number(runs[i], *RECALL) - number(rival[i], *RECALL) for i in runs if i in rival}
            more = [gains[i] - x for i, x in gained.get(row, {}).items() if i in gains]
            if classes == few:
                gained[row] = gains
            of_rival = ("", "") if row == RIVAL else (shown(list(gains.values())), shown(more))
            yield row, f"{classes:,}", f"{len(runs)}", *cells, *of_rival


def number(run: Record, queries: str, name: str) -> float:
    """A number of a line in per cent; by cosine and by the norm where a row has no score and confidence but these."""
    values = run[queries]
    names = [name.format(kind) for kind in ("own", "cosine", "norm")]
    return 100 * next((values[x] for x in names if x in values), float("nan"))


def shown(values: list[float]) -> str:
    """A mean, and from three splits on half the width of its 95 % interval by Student's t."""
    if not values:
        return ""
    mean = f"{np.mean(values):.1f}"
    if len(values) < 3:
        return mean
    return f"{mean} ± {t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5:.1f}"


def main() -> int:
    """Run what is missing and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = {(x["split"], x["classes"], x["row"]) for x in finished()}
    left = [cell for cell in trainings() if cell not in done]
    if left:
        every, kept = glyphs()
    for split, classes, row in left:
        record = run(row, classes, split, parts(every, kept, classes, split))
        with RESULTS.open("a") as lines:
            lines.write(json.dumps(record, separators=(",", ":")) + "\n")
    write("kanji", HEADER, table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
