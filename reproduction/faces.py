"""Faces by dlib's encoder: `python -m reproduction.faces` writes the tables and the figure of docs/lfw.md.

Labeled Faces in the Wild is embedded once (`reproduction.lfw`). A third of the people is fitted to, the others are
tested, in twenty splits, which share people. Lines go to reproduction/faces.jsonl, and a stopped command goes on where
it was.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import peaccel as pe
from peaccel.evaluation import verification_pairs
from reproduction import frozen
from reproduction.face_clusters import CLUSTERED, clustered
from reproduction.figures import STYLE
from reproduction.files import written
from reproduction.lfw import (
    BLURS,
    CHIP,
    COVERS,
    DISTANCE,
    MOST,
    SIDES,
    VERSIONS,
    Faces,
    drawn_order,
    faces,
    fitted,
)
from reproduction.speakers import COHORT, PROMISES, above, outcome, table, write
from reproduction.texts import LABELS, by_curve

Found = dict[str, list[float]]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

RESULTS = Path(__file__).parent / "faces.jsonl"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "lfw_discard.svg"
SPLITS = 20
DIFFERENT = 300_000  # pairs of two people that are verified
FAR, FPIR = 0.001, (0.1, 0.01, 0.001)
DRAWS = 500  # of labelled queries, with replacement, to find a threshold by
DISCARDED = np.linspace(0, 0.4, 21)


# ---- photographs -----------------------------------------------------------------------------------------------------


class Watch(NamedTuple):
    """Rows of a watch list: one photograph of each person who has several, and who is searched for in it."""

    enrolled: Ints
    mates: Ints
    """One other photograph of each who is enrolled, or all others."""
    strangers: Ints
    """People with one photograph."""


def watch(people: Ints, place: Ints, tested: Bools, most: int) -> Watch:
    """The watch list of tested people, and at most so many photographs of each person to search for."""
    several = tested & (np.bincount(people) > 1)[people]
    mates = several & (place > 0) & (place <= most)
    return Watch(*map(np.flatnonzero, (several & (place == 0), mates, tested & ~several)))


# ---- scores of clean photographs -------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How items are scored."""

    items: Any
    score: Any
    cohort: Any = None
    """Items of others, by which scores are normalised."""

    def pairs(self, pairs: Ints) -> NDArray[np.float64]:
        """Scores of pairs of rows."""
        scores = np.asarray(pe.paired(self.items[pairs[:, 0]], self.items[pairs[:, 1]], self.score), np.float64)
        if self.cohort is None:
            return scores
        beside = self._beside(np.arange(len(self.items)))
        return np.asarray(pe.normalise_scores(scores, queries=beside, gallery=beside, pairs=pairs))

    def best(self, queries: Ints, gallery: Ints) -> tuple[Ints, NDArray[np.float64]]:
        """The best item of each query but itself, as a row, and its score."""
        found = pe.search(self.items[queries], self.items[gallery], 30, self.score)
        if self.cohort is not None:
            found = pe.normalise_scores(found, queries=self._beside(queries), gallery=self._beside(gallery))
        rows, scores = gallery[np.asarray(found.ids)], np.asarray(found.scores, np.float64)
        first = (rows != queries[:, None]).argmax(1)
        return tuple(np.take_along_axis(x, first[:, None], 1)[:, 0] for x in (rows, scores))  # type: ignore[return-value]

    def _beside(self, rows: Ints) -> Any:
        return pe.search(self.items[rows], self.cohort, COHORT, self.score)


def ways(x: NDArray[np.float32], people: Ints, fit: Bools) -> Iterator[tuple[str, Way]]:
    """The name of each way to score faces, and the way."""
    points = pe.Point(x)
    yield "cosine", Way(points, "cosine")
    yield "cosine, S-norm", Way(points, "cosine", points[fit])
    yield "distance", Way(points, "neg_sq_l2")
    centred = pe.Point(x - x[fit].mean(0))
    yield "centred cosine", Way(centred, "cosine")
    yield "centred cosine, S-norm", Way(centred, "cosine", centred[fit])
    for name, shrinkage in (("length-normalised PLDA", 0.0), ("length-normalised PLDA, shrinkage 0.5", 0.5)):
        plda = pe.fit_plda(x[fit], people[fit], length_norm=True, shrinkage=shrinkage)
        yield name, Way(plda.transform(x), plda.score)


SCORED = (
    "Recall@1",
    "EER",
    "TAR at FAR 0.1 %",
    *(f"Found at FPIR {100 * rate:g} %" for rate in FPIR),
    "AUROC of the best score",
)


def scored(x: Faces, split: int) -> Found:
    """The `SCORED` of each way."""
    people, place = x.people, drawn_order(x.people, split)
    kept = place < MOST
    fit = fitted(people, split)
    list_ = watch(people, place, ~fit, 1)
    tested = np.flatnonzero(~fit & kept)
    pairs, same = verification_pairs(people[tested], None, split, different=DIFFERENT)
    clean = x.clean.astype(np.float32)
    return {
        name: [float(v) for v in judged(way, people, tested, tested[pairs], same, list_)]
        for name, way in ways(clean, people, fit & kept)
    }


def judged(way: Way, people: Ints, tested: Ints, pairs: Ints, same: Bools, of: Watch) -> NDArray[np.float64]:
    """The `SCORED` of one way."""
    several = tested[(np.bincount(people[tested], minlength=people.max() + 1) > 1)[people[tested]]]
    best, top = way.best(several, tested)
    right = people[best] == people[several]
    verified = way.pairs(pairs)
    eer = pe.metrics.equal_error_rate(verified, same, resamples=1).rate
    tar = pe.metrics.tar_at_far(verified, same, FAR, resamples=1).tar
    found = identified(way, people, of)
    shares = [right.mean(), eer, tar, *(found.at_fpir(rate).detection_identification_rate for rate in FPIR)]
    return np.array([*(100 * np.array(shares)), pe.metrics.r_auroc(right, top)])


def identified(way: Way, people: Ints, of: Watch) -> Any:
    """Open-set identification by a watch list."""
    best, top = way.best(of.mates, of.enrolled)
    _, strangers = way.best(of.strangers, of.enrolled)
    return pe.metrics.open_set(np.where(people[best] == people[of.mates], top, -np.inf), strangers)


# ---- all photographs -------------------------------------------------------------------------------------------------


def whole(x: Faces, _: int) -> Found:
    """Numbers of the whole set by the encoder as it is: folds, search, watch list, and faces that are spoilt."""
    people, every = x.people, np.arange(len(x.people))
    points, place, found = pe.Point(x.clean), drawn_order(people, 0), dict[str, list[float]]()
    pairs, same = x.pairs, people[x.pairs[:, 0]] == people[x.pairs[:, 1]]
    for name, score in (("cosine", "cosine"), ("distance", "neg_sq_l2")):
        folds = 100 * by_folds(Way(points, score).pairs(pairs), same)
        found[f"number, ten folds by {name}, with standard error"] = [folds.mean(), folds.std(ddof=1) / 10**0.5]
    for name, most in (("all photographs", len(people)), (f"at most {MOST} of a person", MOST)):
        rows = every[place < most]
        row = pe.evaluate(points[rows], None, people[rows], "cosine").scores[0]
        shares = {"Recall@1": row.recall_at_1, "EER": row.equal_error_rate, "TAR at FAR 0.1 %": row.tar_at_far}
        found |= {f"number, {k}, {name}": [100 * v.value] for k, v in shares.items()}
    of = watch(people, place, np.ones(len(people), bool), 1)
    searches = identified(Way(points, "cosine"), people, of)
    for rate in FPIR:
        share = 100 * searches.at_fpir(rate).detection_identification_rate
        found[
            f"number, found at FPIR {100 * rate:g} %, {len(of.enrolled):,} people and {len(of.strangers):,} strangers"
        ] = [share]
    return found | dict(spoilt(x))


def by_folds(scores: NDArray[np.float64], same: Bools) -> NDArray[np.float64]:
    """[10] accuracies, each fold decided by the best threshold of the others."""
    fold = np.arange(len(same)) // (len(same) // 10)
    every = []
    for i in range(10):
        threshold = pe.metrics.best_threshold(scores[fold != i], same[fold != i])
        every.append(pe.metrics.verification_accuracy(scores[fold == i], same[fold == i], threshold))
    return np.array(every)


SPOILT: tuple[str, ...] = (
    "Searched for",
    "Photographs",
    "Recall@1",
    "AUROC of the margin",
    "AUROC of the best cosine",
    "AUROC of the length",
)


def spoilt(x: Faces) -> Iterator[tuple[str, list[float]]]:
    """The `SPOILT` of photographs at each resolution, blurred or covered, which are searched for among clean ones."""
    people, every = x.people, np.arange(len(x.people))
    kinds = {"clean": (x.clean, x.clean, every >= 0), "12 to 96 pixels": (x.small, x.clean, every >= 0)}
    kinds |= {"12 to 96 pixels, among their like": (x.small, x.small, every >= 0)}
    kinds |= {f"{side} pixels": (x.small, x.clean, x.side == side) for side in SIDES}
    kinds |= {f"blurred by {blur:g} pixels": (x.marred, x.clean, x.blur == blur) for blur in BLURS}
    kinds |= {f"{100 * cover:g} % covered": (x.marred, x.clean, x.cover == cover) for cover in COVERS}
    several = (np.bincount(people) > 1)[people]
    for name, (features, gallery, of) in kinds.items():
        rows = every[several & of]
        found = pe.search(pe.Point(features[rows]), pe.Point(gallery), 600, "cosine")
        other = np.asarray(found.ids) != rows[:, None]
        first = other.argmax(1)[:, None]
        top = np.take_along_axis(np.asarray(found.scores), first, 1)[:, 0]
        best = people[np.take_along_axis(np.asarray(found.ids), first, 1)[:, 0]]
        next_ = (people[found.ids] != best[:, None]) & other
        margin = top - np.take_along_axis(np.asarray(found.scores), next_.argmax(1)[:, None], 1)[:, 0]
        right = best == people[rows]
        confidences = margin, top, np.linalg.norm(features[rows], axis=1)
        yield (
            f"spoilt, {name}",
            [len(rows), 100 * float(right.mean()), *(pe.metrics.r_auroc(right, c) for c in confidences)],
        )


# ---- thresholds ------------------------------------------------------------------------------------------------------


def promised(x: Faces, _: int) -> Found:
    """In how many draws a threshold breaks its promise and what it answers, by a test and by a curve; a copied one."""
    people, place, fit = x.people, drawn_order(x.people, 0), fitted(x.people, 0)
    of = watch(people, place, ~fit, 1)
    queries, found = np.r_[of.mates, of.strangers], dict[str, list[float]]()
    best, top = Way(pe.Point(x.clean), "cosine").best(queries, of.enrolled)
    novel = np.arange(len(queries)) >= len(of.mates)
    right = (people[best] == people[queries]) & ~novel
    draws = [np.random.default_rng(seed).integers(0, len(queries), LABELS) for seed in range(DRAWS)]
    for promise in PROMISES:
        row: list[float] = []
        for rule in (above, by_curve):
            wrong, answered = np.array([rule(drawn, right, promise, top) for drawn in draws]).T
            row += [100 * float((wrong > promise).mean()), 100 * float(answered.mean())]
        found[f"threshold, at most {100 * promise:g} % of answers wrong"] = row
    for rate in FPIR[:2]:
        strangers = [top[drawn[novel[drawn]]] for drawn in draws]
        limits = [
            [pe.limit_false_matches(s, rate).threshold for s in strangers],
            [float(np.quantile(s, 1 - rate)) for s in strangers],
        ]
        row = []
        for thresholds in limits:
            found_any = top >= np.array(thresholds)[:, None]
            row += [100 * float((found_any[:, novel].mean(1) > rate).mean())]
            row += [100 * float((found_any & right)[:, ~novel].mean())]
        found[f"threshold, at most {100 * rate:g} % of strangers found"] = row
    near = Way(pe.Point(x.clean), "neg_sq_l2").best(queries, of.enrolled)[1]
    accepted = near >= -(DISTANCE**2)
    shares = outcome(accepted, right)[0], accepted[novel].mean(), (accepted & right)[~novel].mean()
    names = "answers that are wrong", "strangers that are answered", "people that are found"
    return found | {
        f"number, {k}, from a distance of {DISTANCE} on": [100 * v] for k, v in zip(names, shares, strict=True)
    }


# ---- uncertainties ---------------------------------------------------------------------------------------------------


def mixed(x: Faces, split: int) -> Found:
    """Heads that are fitted to photographs, two thirds of them spoilt: claims, faces discarded, and templates."""
    people, place, fit = x.people, drawn_order(x.people, split), fitted(x.people, split)
    version = np.random.default_rng((split, 1)).integers(0, len(VERSIONS), len(people))
    features = np.stack([x.clean, x.small, x.marred])[version, np.arange(len(people))].astype(np.float64)
    lengths = np.linalg.norm(features, axis=1)
    several = (np.bincount(people) > 1)[people]
    fit = fit & several & (place < MOST)
    tested = ~fitted(people, split)
    features -= features[fit].mean(0)
    counts = np.bincount(people)[people]
    sums = np.zeros((people.max() + 1, x.clean.shape[1]))
    np.add.at(sums, people, x.clean)
    reference = (sums[people] - x.clean) / np.maximum(counts - 1, 1)[:, None] - x.clean[fit].mean(0)
    case = frozen.Case(
        features,
        people,
        fit,
        np.flatnonzero(tested & several & (place > 0) & (place < MOST)),
        np.flatnonzero(tested & (place == 0)),
        fit & (place > 0),
        np.log(visible(x, version))[:, None],
        reference,
    )
    d = frozen.heads(case)
    found = {f"learnable, {k}": list(map(float, v)) for k, v in frozen.learnable(case, d["pfe"])}
    found |= {f"claim, {k}": [100 * float(v)] for k, v in frozen.claims(case, d)}
    sure = {name: frozen.sure(head, np.arange(len(people))) for name, head in d.items() if name != "mu_scaleface"}
    sure |= {"length of the embedding": lengths, "detector": x.detection, "visible pixels": case.measured[:, 0]}
    found |= {f"discard, {k}": v for k, v in discarded(case, sure)}
    return found | {f"template, {k}": v for k, v in templates(case, d, place)}


def visible(x: Faces, version: Ints) -> NDArray[np.float64]:
    """[N] pixels that tell something of the face: a blur by s pixels leaves one of each 2 s by 2 s."""
    blurred = np.where(x.blur > 0, CHIP / np.maximum(2 * x.blur, 1), CHIP) ** 2 * (1 - x.cover)
    return np.choose(version, [np.full(len(version), float(CHIP**2)), x.side.astype(float) ** 2, blurred])


def discarded(x: frozen.Case, sure: dict[str, NDArray[np.float64]]) -> Iterator[tuple[str, list[float]]]:
    """FNMR at a FAR of 0.1 % where shares `DISCARDED` of the pairs of one person are, by the less sure face."""
    pairs, same = verification_pairs(x.labels[x.queries], x.labels[x.gallery], 0, different=DIFFERENT)
    scores = frozen.by_pairs(pe.Point(x.features.astype(np.float32)), x, pairs, "cosine")
    threshold = pe.metrics.tar_at_far(scores, same, FAR, resamples=1).threshold
    missed = (scores < threshold)[same].astype(float)
    queries, gallery = x.queries[pairs[same, 0]], x.gallery[pairs[same, 1]]
    for name, values in sure.items():
        curve = pe.metrics.rejection_curve(missed, np.minimum(values[queries], values[gallery]), DISCARDED)
        yield name, [round(100 * float(v), 4) for v in curve]
    curve = pe.metrics.rejection_curve(missed, -missed, DISCARDED)
    yield "oracle", [round(100 * float(v), 4) for v in curve]


SIZES = (1, 2, 3, 4, 5)


def templates(x: frozen.Case, d: dict[str, Any], place: Ints) -> Iterator[tuple[str, list[float]]]:
    """Recall@1 among templates of `SIZES` photographs, of people who have one more, beside all other tested people."""
    many = (np.bincount(x.labels) > max(SIZES))[x.labels]
    tested = np.isin(x.labels, x.labels[x.gallery])
    queries = np.flatnonzero(tested & many & (place >= max(SIZES)) & (place < MOST))
    points, pfe = pe.Point(x.features.astype(np.float32)), d["pfe"]
    ways = {
        "mean of directions": (points, "direction", "cosine"),
        "mean with lengths": (points, "mean", "cosine"),
        "precision (`pfe`)": (pfe, "product", "cosine"),
        "precision (`dul_reg`)": (d["dul_reg"], "product", "cosine"),
        "kappa (`scf`)": (d["scf"], "natural", "cosine"),
        "precision (`pfe`), `mls`": (pfe, "product", "mls"),
    }
    for name, (items, rule, score) in ways.items():
        recalls = []
        for size in SIZES:
            rows = np.flatnonzero(tested & (place < np.where(many, size, 1)))
            gallery, names = pe.fuse(items[rows], x.labels[rows], rule, names=True)
            ids = pe.search(items[queries], gallery, 1, score).ids[:, 0]
            recalls.append(100 * float((names[ids] == x.labels[queries]).mean()))
        yield name, recalls


# ---- tables ----------------------------------------------------------------------------------------------------------

EXPERIMENTS: dict[str, tuple[Callable[[Faces, int], Found], int]] = {
    "whole": (whole, 1),
    "promised": (promised, 1),
    "scored": (scored, SPLITS),
    "clustered": (clustered, 5),
    "mixed": (mixed, SPLITS),
}
PROMISED: tuple[str, ...] = ("Promise", "Broken by the test", "Answered", "Broken by the curve", "Answered by it")
SEPARATE = {"scores": ("Score", *SCORED), "clusters": ("Method", *CLUSTERED)}
SHOWN = (0, 5, 10, 20)  # of the shares that are discarded
MIXED = {
    "learnable": ("Confidence", *frozen.LEARNABLE),
    "claim": ("Claim, in points", "faces"),
    "discard": ("Discarded by", *(f"{100 * DISCARDED[i]:.0f} %" for i in SHOWN)),
    "template": ("Mean by", *(f"{size} photograph{'s'[: size > 1]}" for size in SIZES)),
}
"""Parts of an experiment, and the columns of their tables."""
KEPT: dict[str, Any] = {"discard": list(SHOWN), "clusters": slice(len(CLUSTERED))}
"""The numbers of a part that its table has, where these are not all."""
Table = tuple[str, Sequence[str], list[tuple[str, ...]]]


def finished() -> dict[str, list[dict[str, NDArray[np.float64]]]]:
    """The numbers that each experiment found, split after split."""
    found: dict[str, list[dict[str, NDArray[np.float64]]]] = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []:
        record = json.loads(line)
        found.setdefault(record["experiment"], []).append({k: np.array(v) for k, v in record["found"].items()})
    return found


def tables() -> Iterator[Table]:
    """Names, headers and rows of the tables, from the file of results."""
    every = finished()
    once = every["whole"][0] | every["promised"][0]
    for part, columns in (("spoilt", SPOILT), ("threshold", PROMISED)):
        yield f"lfw_{part}", columns, [(k, *cells(v, columns[1:])) for k, v in starting(part, once).items()]
    numbers: list[tuple[str, ...]] = [
        (k, " ± ".join(f"{x:.2f}" for x in v)) for k, v in starting("number", once).items()
    ]
    yield "lfw_number", ("Of clean photographs", "%"), numbers
    runs = {part: [starting(part, run) for run in every["mixed"]] for part in MIXED}
    runs |= {"scores": every["scored"], "clusters": every["clustered"]}
    for part, header in (SEPARATE | MIXED).items():
        rows = table([{k: v[KEPT.get(part, ...)] for k, v in run.items()} for run in runs[part]], header[1:])
        yield f"lfw_{part}", header, list(rows)


def starting(part: str, run: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """The numbers that a part of an experiment found."""
    return {k.removeprefix(f"{part}, "): v for k, v in run.items() if k.startswith(f"{part}, ")}


def cells(values: NDArray[np.float64], header: Sequence[str]) -> Iterator[str]:
    """Numbers as text: AUROCs with three digits, counts without."""
    for name, value in zip(header, values, strict=True):
        yield (
            f"{value:.3f}" if name.startswith("AUROC") else f"{value:,.0f}" if name == "Photographs" else f"{value:.1f}"
        )


DRAWN = {
    "pfe": "#2166ac",
    "scf": "#1b7837",
    "scaleface": "#c51b7d",
    "length of the embedding": "#e08214",
    "visible pixels": "#666666",
    "oracle": "#000000",
}
"""Colours of the confidences of the figure."""


def figure() -> str:
    """Error against discard, as SVG: means over splits."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves = [starting("discard", run) for run in finished()["mixed"]]
    with mpl.rc_context(STYLE):
        drawn = Figure((5, 3.2), layout="constrained")
        ax = drawn.subplots()
        for name, colour in DRAWN.items():
            mean = np.mean([run[name] for run in curves], 0)
            ax.plot(100 * DISCARDED, mean, color=colour, label=name, ls=":" if name == "oracle" else "-")
        ax.set(xlabel="pairs discarded, %", ylabel="FNMR at a FAR of 0.1 %, %", ylim=(0, None), xlim=(0, 40))
        ax.legend(frameon=False)
        stream = io.StringIO()
        drawn.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def main() -> int:
    """Run what is missing and write tables and the figure."""
    warnings.simplefilter("ignore")
    try:
        x = faces()
    except FileNotFoundError as error:
        print(error)
        return 1
    print(f"{len(x.names)} photographs, checksum of their embeddings {x.checksum()}")
    done = set()
    if RESULTS.exists():
        done = {(r["experiment"], r["split"]) for r in map(json.loads, RESULTS.read_text().splitlines())}
    for name, (experiment, splits) in EXPERIMENTS.items():
        for split in range(splits):
            if (name, split) not in done:
                found = {k: [round(float(number), 5) for number in v] for k, v in experiment(x, split).items()}
                line = {"experiment": name, "split": split, "embeddings": x.checksum(), "found": found}
                with RESULTS.open("a") as lines:
                    lines.write(json.dumps(line, separators=(",", ":")) + "\n")
    for name, header, rows in tables():
        write(name, header, rows)
    with written(FIGURE) as fresh:
        fresh.write_text(figure(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
