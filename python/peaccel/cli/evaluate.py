"""Evaluate embeddings: retrieval, verification, and what their confidence is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel import io, measures, scores
from peaccel._utils.options import parse
from peaccel.cli._outputs import outputs
from peaccel.distributions import Distribution, Point
from peaccel.evaluation.answers import as_scores, as_truth
from peaccel.evaluation.columns import explained
from peaccel.evaluation.protocol import evaluate
from peaccel.evaluation.templates import TemplateResult, evaluate_templates
from peaccel.io._array_files import read
from peaccel.measures.fitted import Calibration, Prior
from peaccel.metrics import Relevance
from peaccel.scores import Score

__all__ = ["Evaluate", "main"]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What to evaluate, by which scores, and where the page goes."""

    out: Path
    """A folder that receives results.json and report.html; made if missing."""
    embeddings: Path | None = None
    """Items that are searched for among each other, each without itself; a file as 'peaccel search' takes it."""
    labels: Path | None = None
    """Their labels, [N] numbers or strings: .npy, or .npz with the key labels."""
    coords: Path | None = None
    """Instead of --labels, where they were taken, [N, 2] in metres, with --radius."""
    queries: Path | None = None
    """Instead of --embeddings: the queries; then --gallery is needed, and what is right for them."""
    gallery: Path | None = None
    """The gallery."""
    query_labels: Path | None = None
    """The queries' labels, [Q] numbers or strings, with --gallery-labels."""
    gallery_labels: Path | None = None
    """The gallery's labels, [G] numbers or strings."""
    query_coords: Path | None = None
    """Instead of labels, where they were taken, [Q, 2] in metres, with --gallery-coords and --radius."""
    gallery_coords: Path | None = None
    """Where the gallery was taken, [G, 2] in metres."""
    radius: float | None = None
    """Within how many metres an item counts as right, such as 25."""
    relevance: Path | None = None
    """Or, with --embeddings or with --queries and --gallery, the pairs that are right: [M, 2] integers, rows of the
    query and of the gallery; (i, j) among --embeddings makes j right for i alone. .npy, or .npz with key relevance."""
    scores: str | None = None
    """Names that 'peaccel scores' lists, separated by commas; the first one is the baseline. By default cosine and, for
    what has an uncertainty that it takes, mls."""
    prior: Path | None = None
    """The prior of score llr: what pe.fit_prior found, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """What pe.calibrate found, as pe.io.write_fit writes it; applied to both sides."""
    pairs: Path | None = None
    """Verification pairs, [P, 2] integers, rows of the query and of the gallery, in place of drawn ones; with
    --templates the numbers of two templates. .npy, or .npz with key pairs."""
    templates: Path | None = None
    """With --embeddings and --labels: the template of each item, [N] integers; also verifies templates, fused by every
    rule, into templates.json."""
    quality: Path | None = None
    """Quality of each query, [Q] numbers, higher = better, such as the size of its crop."""
    novel: Path | None = None
    """Queries without a right item in the gallery, a file as --queries: how well confidences tell them, and how often a
    query finds its right item where few of these find anything (open-set identification)."""
    novel_labels: Path | None = None
    """The classes of the novel queries, [M] numbers or strings, which intervals draw as a whole."""
    images: Path | None = None
    """Images of the queries, [Q, H, W] in an .npy file, 0 to 255 or in [0, 1], of which the page shows some."""
    gallery_images: Path | None = None
    """Images of the gallery, if there is a --gallery, so that the page shows what queries find."""
    seed: int = 0
    """Seed of drawn pairs, of intervals, and of the random confidence."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = parse(Evaluate, "peaccel evaluate", __doc__, arguments)
    if task.templates is not None and (task.embeddings is None or task.labels is None):
        raise ValueError("--templates needs --embeddings and --labels")
    queries, gallery, labels = _sides(task)
    numbers, fused, page = outputs(task.out, task, "results.json", "templates.json", "report.html")
    names = None if task.scores is None else [_score(task, name.strip()) for name in task.scores.split(",")]
    scores = as_scores("evaluate", names, (queries.kind, (queries if gallery is None else gallery).kind))
    quality = None if task.quality is None else io.read_labels(task.quality)
    if task.gallery_images is not None and (task.images is None or gallery is None):
        raise ValueError("--gallery-images needs --images and --gallery; what is in --embeddings has --images alone")
    images = None if task.images is None else _images(task.images, len(queries))
    of_gallery = images
    if gallery is not None:
        of_gallery = None if task.gallery_images is None else _images(task.gallery_images, len(gallery))
    pairs = None if task.pairs is None else _array(task.pairs, "pairs")
    templates = None
    if task.templates is not None:
        which = _array(task.templates, "templates")
        templates = evaluate_templates(queries, which, labels, scores, pairs=pairs, seed=task.seed)
        pairs = None
    novel = None if task.novel is None else _distribution(task, task.novel)
    classes = None if task.novel_labels is None else io.read_labels(task.novel_labels)
    found = evaluate(
        queries,
        gallery,
        labels,
        scores,
        pairs=pairs,
        quality=quality,
        novel=novel,
        novel_labels=classes,
        seed=task.seed,
    )
    print(found)
    found.save(numbers)
    if templates is not None:
        print(f"\n{templates}")
        templates.save(fused)
    from peaccel._utils import report  # matplotlib takes a second to import: first comes all that can be refused
    from peaccel.evaluation.pages import retrievals, sections, tables

    confidence, of_novel = (
        None if d is None or isinstance(d, Point) else np.asarray(measures.confidence(d), np.float64)
        for d in (queries, novel)
    )
    shown = sections(found, confidence, quality, images, of_novel)
    if templates is not None:
        shown += tables(templates.tables(), (templates.summary(),), explained(TemplateResult), text_columns=2)
    if images is not None and of_gallery is not None and len(scores) > 1:
        truth = as_truth("evaluate", labels, len(queries), None if gallery is None else len(gallery))
        best = max(range(1, len(scores)), key=lambda i: found.scores[i].recall_at_1.value)
        both, pictures = (scores[0], scores[best]), (images, of_gallery)
        shown.append(retrievals(queries, gallery, truth, both, pictures, task.seed))
    report.write(page, "Evaluation", shown)
    print(f"\n-> {page}")


AMONG = (("embeddings", "labels"), ("embeddings", "coords", "radius"), ("embeddings", "relevance"))
BETWEEN = (
    ("queries", "gallery", "query_labels", "gallery_labels"),
    ("queries", "gallery", "query_coords", "gallery_coords", "radius"),
    ("queries", "gallery", "relevance"),
)


def _sides(task: Evaluate) -> tuple[Distribution, Distribution | None, Any]:
    """Queries, gallery, and what is right."""
    given = {name for names in AMONG + BETWEEN for name in names if getattr(task, name) is not None}
    if given not in map(set, AMONG + BETWEEN):
        found, *expected = (
            " ".join(f"--{name.replace('_', '-')}" for name in names) for names in (sorted(given), *AMONG, *BETWEEN)
        )
        raise ValueError(f"expected one of these together: {'; '.join(expected)}; found {found or 'none'}")
    first = task.embeddings or task.queries
    assert first is not None
    queries, gallery = _distribution(task, first), None if task.gallery is None else _distribution(task, task.gallery)
    if task.relevance is not None:
        pairs = _array(task.relevance, "relevance")
        return queries, gallery, Relevance.from_pairs(pairs, len(queries), None if gallery is None else len(gallery))
    if task.radius is not None:
        of_queries, of_gallery = (
            None if path is None else _array(path, "coords")
            for path in (task.coords or task.query_coords, task.gallery_coords)
        )
        assert of_queries is not None
        return queries, gallery, Relevance.within(of_queries, of_gallery, task.radius)
    paths = (task.labels,) if task.labels is not None else (task.query_labels, task.gallery_labels)
    labels = tuple(io.read_labels(path) for path in paths if path is not None)
    return queries, gallery, labels if gallery is not None else labels[0]


def _distribution(task: Evaluate, path: Path) -> Distribution:
    d = io.read_distribution(path)
    if task.calibration is None:
        return d
    fit = io.read_fit(task.calibration)
    if not isinstance(fit, Calibration):
        raise ValueError(f"{task.calibration}: is no calibration, expected what pe.calibrate found")
    return fit(d)


def _score(task: Evaluate, name: str) -> Score:
    score = scores.get(name)
    if task.prior is None or score.params.get("prior_var", 0) is not None:
        return score
    prior = io.read_fit(task.prior)
    if not isinstance(prior, Prior):
        raise ValueError(f"{task.prior}: is no prior, expected what pe.fit_prior found")
    return score(prior_mean=prior.mean, prior_var=prior.var)


def _images(path: Path, count: int) -> NDArray[np.float64]:
    pixels = _array(path, "images")
    if pixels.ndim != 3 or len(pixels) != count:
        raise ValueError(f"{path}: has shape {pixels.shape}, expected ({count}, H, W), an image for each")
    return np.asarray(pixels / (255 if pixels.dtype == np.uint8 else 1), np.float64)


def _array(path: Path, key: str) -> NDArray[Any]:
    return read(path, (key,))[key]
