"""Clusters: `python -m reproduction.clusters` writes docs/data/clusters.csv.

Characters in twelve typefaces, which matplotlib has, are grouped by character, and scikit-learn's handwritten digits by
digit. Images are pixels less their mean, compared by cosine, or by the score of a PLDA. Of each data set the PLDA, and
the threshold of each method or the least size of HDBSCAN's clusters, are fitted on half of the classes, and the others
are clustered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.cluster import HDBSCAN, AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from peaccel import Distribution, Point, cluster, fit_plda, pairwise, scores
from peaccel.data.digits import load_scans
from reproduction.speakers import write

Labels = NDArray[np.int64]
Scores = NDArray[np.float64]

FACES = Path(matplotlib.get_data_path(), "fonts/ttf")
SIZE = 24
EVERY = 10
"""One of so many characters is taken."""
SHARES = 0.2, 0.02
"""Shares of pairs that reach the floors of sparse graphs."""
SIZES = 2, 3, 5, 8, 12, 20, 50
GRID = 12


def characters() -> tuple[NDArray[np.float32], Labels]:
    """Images of the characters that all typefaces have, and that no other character looks like."""
    paths = sorted(x for x in FACES.glob("DejaVuS*.ttf") if "Display" not in x.name)
    codes = set.intersection(*(set(FT2Font(str(path)).get_charmap()) for path in paths))
    letters = [chr(x) for x in sorted(codes) if chr(x).isalpha()][::EVERY]
    faces = [ImageFont.truetype(str(path), SIZE - 6) for path in paths]
    images = np.stack([[_drawn(letter, face) for face in faces] for letter in letters])
    _, first = np.unique(images[:, 0], axis=0, return_index=True)
    images = images[np.sort(first)]
    return images.reshape(-1, SIZE * SIZE), np.arange(len(images)).repeat(len(faces))


def _drawn(letter: str, face: ImageFont.FreeTypeFont) -> NDArray[np.float32]:
    image = Image.new("L", (SIZE, SIZE))
    ImageDraw.Draw(image).text((SIZE / 2, SIZE / 2), letter, 255, face, anchor="mm")
    return np.asarray(image, np.float32).ravel() / 255


def b_cubed(labels: Labels, found: Labels) -> float:
    """The harmonic mean of how pure the items' clusters are and how much of their classes these hold."""
    both = np.unique(np.stack([labels, found]), axis=1, return_inverse=True)[1].ravel()
    together, classes, clusters = (np.bincount(x)[x] for x in (both, labels, found))
    precision, recall = float((together / clusters).mean()), float((together / classes).mean())
    return 2 * precision * recall / (precision + recall)


def agglomerated(distances: Scores, linkage: str, threshold: float) -> Labels:
    """Clusters by scikit-learn's agglomerative clustering; "single" are connected components."""
    model = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage=linkage, distance_threshold=threshold
    )
    return np.asarray(model.fit_predict(distances), np.int64)


def condensed(distances: Scores, size: int) -> Labels:
    """Clusters by HDBSCAN; items that are noise are alone."""
    found = HDBSCAN(min_cluster_size=size, metric="precomputed", copy=True).fit_predict(distances)
    alone = np.arange(len(found)) + found.max() + 1
    return np.where(found < 0, alone, found)


def methods(items: Distribution, score: scores.Score) -> Iterator[tuple[str, Callable[[float], Labels], list[float]]]:
    """Names of methods, functions of their number, and the numbers among which it is chosen."""
    found = np.asarray(pairwise(items, items, score), np.float64)
    found = (found + found.T) / 2
    distances = found.max() - found
    np.fill_diagonal(distances, 0)
    values = found[np.triu_indices(len(found), 1)]
    grid = np.quantile(values, 1 - np.geomspace(1e-4, 0.3, GRID)).tolist()
    most, top = len(values) + 1, found.max()
    yield "`pe.cluster`, all pairs", lambda x: cluster(items, x, score, most=most).labels, grid
    for share in SHARES:
        floor = float(np.quantile(values, 1 - share))
        above = [x for x in grid if x > floor]
        sparse = partial(cluster, items, score=score, floor=floor, most=most)
        yield f"`pe.cluster`, {share:.0%} of pairs", lambda x, sparse=sparse: sparse(x).labels, above
    yield (
        "scikit-learn, average linkage",
        lambda x: agglomerated(distances, "average", np.nextafter(top - x, 9e9)),
        grid,
    )
    yield "scikit-learn, complete linkage", lambda x: agglomerated(distances, "complete", top - x), grid
    yield "connected components", lambda x: agglomerated(distances, "single", top - x), grid
    yield "HDBSCAN", lambda x: condensed(distances, int(x)), [*map(float, SIZES)]


def lines() -> Iterator[tuple[str, ...]]:
    """A row for each data set, score and method: B-cubed F and the adjusted Rand index of the classes to come."""
    for name, (images, labels) in {"characters": characters(), "digits": load_scans("digits8")}.items():
        fitted = labels % 2 == 0
        x = images.reshape(len(labels), -1)
        x = x - x[fitted].mean(0)
        plda = fit_plda(x[fitted], labels[fitted], shrinkage=0.5)
        points = [Point(x[part]) for part in (fitted, ~fitted)]
        for by, score, sides in (
            ("cosine", scores.cosine, points),
            ("PLDA", plda.score, [plda.transform(side) for side in points]),
        ):
            for (method, trial, numbers), (_, tested, _) in zip(*(methods(d, score) for d in sides), strict=True):
                chosen = max(numbers, key=lambda number: b_cubed(labels[fitted], trial(number)))
                found = tested(chosen)
                worth = b_cubed(labels[~fitted], found), adjusted_rand_score(labels[~fitted], found)
                yield name, by, method, *(f"{100 * number:.1f}" for number in worth)


if __name__ == "__main__":
    write("clusters", ("Items", "Score", "Method", "B-cubed F", "ARI"), lines())
