"""Find the score from which on to accept answers, or pairs, so that a promise is kept, or say what is missing."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

from peaccel import io, scores
from peaccel._utils import options
from peaccel.cli._fitted_files import NormFiles, read_fit
from peaccel.cli._labelled_files import LabelledFiles, applied, given, novel, scored_by, sides
from peaccel.cli._outputs import outputs
from peaccel.evaluation.choose_threshold import choose_pair_threshold, choose_threshold
from peaccel.evaluation.threshold_results import ThresholdChoice
from peaccel.fits.plda import Plda
from peaccel.fits.records import FalseMatchLimit, Selection

__all__ = ["ChooseThreshold", "main"]


@dataclass(frozen=True, kw_only=True)
class ChooseThreshold(LabelledFiles, NormFiles):
    """Data to choose a threshold on, its promise, and output.

    Labelled queries and a gallery, of classes that nothing was trained on, or scored pairs."""

    out: Path
    """A folder that receives threshold.json, report.html and, where a target is named, accept.json, the threshold that
    'peaccel search --accept' applies; made if missing."""
    score: str = "cosine"
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5"."""
    pairs: Path | None = None
    """Instead of embeddings: verification pairs that are scored already, by any model. .csv or .tsv with a first line
    that names the columns score, match (0 or 1, or yes or no) and perhaps group, such as a person, of which one pair
    counts; .parquet with these; .npz with these keys; or .npy, [P, 2], score and match."""
    wrong: str | None = None
    """The target: at most this share of accepted answers, or pairs, is wrong, such as 1% or 0.01; of pairs a precision
    of 99%. Without a target tables show usual ones."""
    fpir: str | None = None
    """Or: at most this share of searches without a mate returns anything; with --novel, or where some of the queries
    have no right item."""
    far: str | None = None
    """Or, of --pairs: at most this share of pairs that do not match is accepted."""
    confidence: Literal["score", "margin", "class_margin", "probability", "auto"] = "score"
    """The number that the threshold is of: the score of the best item, its margin to the next item or to the best of
    another class, or a fitted probability of these. auto: the one that answers most of a third of the classes, which is
    then set apart."""
    try_centre: bool = False
    """Try on that third, too, whether items less the mean of their side are answered better; writes centre.json."""
    certainty: str = "90%"
    """How surely the threshold keeps its promise."""
    strict: bool = False
    """End with exit code 1 where a target is named and no threshold can be promised to keep it."""
    seed: int = 0
    """Seed of the draw of one query, or pair, of each class, and of the parts of the fitted probability."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(ChooseThreshold, "peaccel choose-threshold", __doc__, arguments)
    named = {name: getattr(task, name) for name in ("wrong", "fpir", "far")}
    targets = {name: float(_share(name, text)) for name, text in named.items() if text is not None}
    if len(targets) > 1:
        raise ValueError(f"expected one target, found {' and '.join(f'--{name}' for name in targets)}")
    delta = float(1 - _share("certainty", task.certainty))
    task.check_norm()
    names = "threshold.json", "report.html", "accept.json", "centre.json"
    numbers, page, accept, centre = outputs(task.out, task, *names)
    found = _of_pairs(task, targets, delta) if task.pairs is not None else _of_searches(task, targets, delta)
    print(found)
    found.save(numbers)
    from peaccel._utils import report
    from peaccel.evaluation.threshold_pages import threshold_sections

    report.write(page, "Choice of a threshold", threshold_sections(found))
    print(f"\n-> {page}")
    centre.unlink(missing_ok=True)  # of an earlier run
    if found.centre is not None:
        io.write_fit(centre, found.centre)
    if found.accept is None:
        accept.unlink(missing_ok=True)  # of an earlier run
        print("\nName a target to have its threshold written: --wrong 5%, for instance")
        return
    io.write_fit(accept, _with_fits(task, found))
    nothing = math.isinf(found.accept.threshold)
    print(f"\n{accept} accepts nothing" if nothing else f"\n{_next(task, found, accept)}")
    if nothing and task.strict:
        sys.exit(1)


def _with_fits(task: ChooseThreshold, found: ThresholdChoice) -> Selection | FalseMatchLimit:
    """The threshold that was found, which knows what was applied to the items."""
    assert found.accept is not None
    if task.pairs is not None:
        return found.accept
    fits = applied(task)
    return replace(found.accept, applied=str(fits if found.centre is None else replace(fits, centre=found.centre)))


def _of_searches(task: ChooseThreshold, targets: dict[str, float], delta: float) -> ThresholdChoice:
    if "far" in targets:
        raise ValueError("--far is of --pairs; of searches it is --fpir")
    if task.prior is not None and scores.get(task.score).params.get("prior_var", 0) is not None:
        raise ValueError(f"--prior is for score llr without a prior of its own, got score {task.score}")
    if task.try_centre and (task.centre or task.plda or task.calibration):
        raise ValueError("--try-centre stands alone, found --centre, --plda or --calibration beside it")
    if task.plda is not None and task.score != ChooseThreshold.score:
        raise ValueError(f"--plda has a score of its own, found --score {task.score}")
    score = scored_by(task, task.score) if task.plda is None else read_fit(task.plda, Plda).score
    queries, gallery, labels = sides(task, "--pairs")
    others, classes = novel(task)
    return choose_threshold(
        queries,
        gallery,
        labels,
        score,
        **targets,
        delta=delta,
        novel=others,
        novel_labels=classes,
        confidence=task.confidence,
        try_centre=task.try_centre,
        cohort=None if task.cohort is None else applied(task).of_gallery(task.cohort),
        seed=task.seed,
    )


def _of_pairs(task: ChooseThreshold, targets: dict[str, float], delta: float) -> ThresholdChoice:
    assert task.pairs is not None
    others = "prior", "calibration", "centre", "try_centre", "plda", "cohort", "novel", "novel_labels"
    beside = given(task) | {name for name in others if getattr(task, name)}
    beside |= {x for x in ("score", "confidence") if not beside and getattr(task, x) != getattr(ChooseThreshold, x)}
    if beside:
        names = " ".join(f"--{name.replace('_', '-')}" for name in sorted(beside))
        raise ValueError(f"--pairs are scored already and stand alone, found {names} beside it")
    if "fpir" in targets:
        raise ValueError("--fpir is of searches; of --pairs it is --far")
    pairs = io.read_scored_pairs(task.pairs)
    return choose_pair_threshold(*pairs, **targets, delta=delta, seed=task.seed)


def _next(task: ChooseThreshold, found: ThresholdChoice, accept: Path) -> str:
    """How the threshold is applied."""
    if task.pairs is not None:
        return f"import peaccel as pe; accepted = pe.io.read_fit({str(accept)!r})(scores)"
    flags = [] if task.plda is not None else ["--score", task.score]
    for name in ("prior", "calibration", "centre", "plda", "normalise", "cohort"):
        if (value := getattr(task, name)) is not None:
            flags += [f"--{name}", str(value)]
    if found.centre is not None:
        flags += ["--centre", str(accept.with_name("centre.json"))]
    flags += ["--k", str(found.deepest), "--accept", str(accept), "--gallery", str(task.gallery or task.embeddings)]
    if found.accept is not None and found.accept.of_classes:
        flags += ["--gallery-labels", str(task.gallery_labels or task.labels)]
    return f"peaccel search {shlex.join(flags)} --queries ... --out ..."


def _share(name: str, text: str) -> Decimal:
    """A share between 0 and 1 as it is written, in per cent or not."""
    try:
        number = Decimal(text.strip().removesuffix("%").strip()) / (100 if text.strip().endswith("%") else 1)
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_nan() or not 0 < number < 1:
        raise ValueError(f"--{name} is {text!r}, expected a share between 0 and 1, such as 1% or 0.01")
    return number
