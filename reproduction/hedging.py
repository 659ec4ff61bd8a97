"""Measures of HIB on its own task: whether its uncertainty follows occlusion; and the picture of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from peaccel import confidence, metrics, search
from peaccel.distributions import Normal
from peaccel.methods.method import Method, Training
from peaccel.scores import Score
from peaccel.train import embed
from peaccel.train.evaluation import scored
from reproduction.files import written
from reproduction.ledger import Record, packed
from reproduction.tasks import Part, images

__all__ = ["PICTURE", "draw", "measure_hedging"]

PICTURE = "hib.svg"
"""Of the plane, beside the page."""
DRAWS = 64
"""Of each item for its self-mismatch: with the 8 of training its own noise would hide a part of what it follows."""
SHOWN = (10, 4)
"""Classes in the picture, and images of each."""


def measure_hedging(method: Method, training: Training, parts: Mapping[str, Part]) -> Record:
    """Numbers of the test classes, clean queries and occluded ones in a clean gallery, ranked by the match probability.

    Uncertain is what mismatches itself, as in the paper, or what has a large variance, by the mean of its logarithms.

    Parameters
    ----------
    method, training
        HIB, trained.
    parts
        "query" and "gallery".

    Returns
    -------
    ``recall_at_1`` and ``map_at_r``, of each class `packed`, clean and occluded; ``numbers`` by name; of two dimensions
    ``plane`` too, the items of `draw`.
    """
    query, gallery = parts["query"], parts["gallery"]
    items = embed(training.model, images(gallery.clean))
    score = scored(method, training, items, gallery.labels)
    record: Record = {"recall_at_1": {}, "map_at_r": {}, "numbers": {}}
    depth, right, best, unsure = int(np.bincount(gallery.labels).max()), {}, {}, {}
    seen = {"clean": embed(training.model, images(query.clean)), "occluded": embed(training.model, images(query.mixed))}
    for name, d in seen.items():
        found = search(d, items, depth, score)
        ids = np.asarray(found.ids)
        right[name] = metrics.hit_at_k(ids, query.labels, gallery.labels, 1)
        best[name] = np.asarray(found.scores, np.float64)[:, 0]
        unsure[name] = _uncertainty(d, score)
        precision = metrics.average_precision_at_r(ids, query.labels, gallery.labels)
        for key, x in {"recall_at_1": right[name], "map_at_r": precision}.items():
            record[key][name] = packed(np.bincount(query.labels, x) / np.bincount(query.labels))
    share = {"clean": np.zeros(len(query.labels)), "occluded": query.mixed.severity.astype(np.float64)}
    numbers = _numbers(right, best, unsure, share)
    record["numbers"] = {name: round(float(x), 5) for name, x in numbers.items() if np.isfinite(x)}
    if items.dim == 2:
        record["plane"] = _plane(seen, query)
    return record


def _uncertainty(d: Normal, score: Score) -> dict[str, NDArray[np.float64]]:
    a, b = score.params["a"], score.params["b"]
    match = confidence(d, "self_match", a=a, b=b, n=DRAWS, seed=0)
    found = {"self_mismatch": 1 - np.asarray(match, np.float64)}
    var = np.asarray(confidence(d, "neg_log_var"), np.float64)
    return found | {"variance": -var}


def _numbers(
    right: Mapping[str, NDArray[np.float64]],
    best: Mapping[str, NDArray[np.float64]],
    unsure: Mapping[str, Mapping[str, NDArray[np.float64]]],
    share: Mapping[str, NDArray[np.float64]],
) -> dict[str, float]:
    """How each uncertainty follows occlusion and errors, over all queries and over the occluded ones alone."""
    found = {"r_auroc.best": _auroc(right, best)}
    if min(np.ptp(x["variance"]) for x in unsure.values()) == 0:
        return found  # points are all as sure
    for name, x in unsure.items():
        found[f"self_mismatch.{name}"] = x["self_mismatch"].mean()
    for kind in unsure["clean"]:
        of = {name: x[kind] for name, x in unsure.items()}
        every = [np.concatenate([x[name] for name in ("clean", "occluded")]) for x in (share, of)]
        found[f"occlusion.{kind}"] = metrics.spearman(*every)
        found[f"occlusion_occluded.{kind}"] = metrics.spearman(share["occluded"], of["occluded"])
        found[f"r_auroc.{kind}"] = _auroc(right, {name: -x for name, x in of.items()})
        found[f"r_auroc_occluded.{kind}"] = metrics.r_auroc(right["occluded"], -of["occluded"])
    return found


def _auroc(right: Mapping[str, NDArray[np.float64]], sure: Mapping[str, NDArray[np.float64]]) -> float:
    """AUROC of telling queries that are answered rightly, clean and occluded ones together."""
    return metrics.r_auroc(*(np.concatenate([x["clean"], x["occluded"]]) for x in (right, sure)))


def _plane(seen: Mapping[str, Normal], query: Part) -> Record:
    """Some queries, clean and occluded: their numbers, means and variances to 4 digits."""
    rows = np.concatenate([np.flatnonzero(query.labels == label)[: SHOWN[1]] for label in range(SHOWN[0])])

    def short(x: NDArray[np.float32]) -> list[list[float]]:
        return [[float(f"{value:.4g}") for value in row] for row in np.asarray(x)[rows]]

    numbers = query.clean.labels[rows].tolist()
    return {"number": numbers} | {name: {"mu": short(d.mu), "var": short(d.var)} for name, d in seen.items()}


def draw(plane: Record, digits: int, path: Path) -> None:
    """Draw the ellipses of one standard deviation of the same numbers, clean and occluded, side by side.

    Parameters
    ----------
    plane
        Of `measure_hedging`.
    digits
        Of each number.
    path
        The picture, SVG.
    """
    numbers = np.array(plane["number"])
    known = np.unique(numbers)
    with mpl.rc_context({"svg.hashsalt": "hib", "svg.fonttype": "none"}):
        figure = Figure((10, 5), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for ax, name in zip(axes, ("clean", "occluded"), strict=True):
            mu, var = (np.array(plane[name][key]) for key in ("mu", "var"))
            for centre, spread, number in zip(mu, 2 * np.sqrt(var), numbers, strict=True):
                colour = f"C{np.searchsorted(known, number) % 10}"
                ax.add_patch(Ellipse(tuple(centre), *spread, facecolor=colour, edgecolor=colour, alpha=0.35))
                ax.annotate(f"{number:0{digits}d}", centre, ha="center", va="center", fontsize=7, color=colour)
            ax.set_title(name)
            ax.set_aspect("equal")
            ax.autoscale_view()
        with written(path) as fresh:
            figure.savefig(fresh, format="svg", metadata={"Date": None})
