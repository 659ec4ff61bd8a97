"""Find the lowest score at which answers or pairs are accepted under a promise, or estimate the missing labels."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peaccel import io, metrics, scores
from peaccel._utils import options
from peaccel.cli._fitted_files import read_fit, with_prior
from peaccel.cli._labelled_files import WAYS, LabelledFiles, novel, sides
from peaccel.cli._option_groups import FitFiles, NormFiles, dashed
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.cli._shares import share
from peaccel.cli._trial_files import TrialFiles
from peaccel.evaluation.choose_threshold import choose_pair_threshold, choose_threshold
from peaccel.evaluation.score_trials import score_trials
from peaccel.evaluation.threshold_results import ThresholdChoice
from peaccel.fits.plda import Plda
from peaccel.fits.records import Threshold
from peaccel.scores import Score

__all__ = ["ChooseThreshold", "main"]


@dataclass(frozen=True, kw_only=True)
class ChooseThreshold(LabelledFiles, TrialFiles, NormFiles):
    """Data to choose a threshold on, its promise, and output.

    Labelled queries and a gallery, of classes that nothing was trained on, or scored pairs."""

    out: Path
    """A folder that receives threshold.json, report.html and, where a target is named, accept.json, the threshold that
    'peaccel search' and 'peaccel duplicates' apply; made if missing."""
    score: str = "cosine"
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5"."""
    pairs: Path | None = None
    """Instead of embeddings: verification pairs that are scored already, by any model. .csv or .tsv with a first line
    that names the columns score, match (0 or 1, or yes or no) and perhaps group, such as a person; one pair of a group
    counts; .parquet with these; .npz with these keys; or .npy, [P, 2], score and match.
    """
    wrong: str | None = None
    """The target: at most this share of accepted answers, or pairs, is wrong, such as 1% or 0.01; of pairs a precision
    of 99%. Without a target tables show usual ones."""
    fpir: str | None = None
    """Or: at most this share of searches without a mate returns anything; with --novel, or where some of the queries
    have no right item."""
    far: str | None = None
    """Or, of --pairs: at most this share of pairs that do not match is accepted."""
    p_target: float | None = None
    """Or, of --pairs: the least detection cost (minDCF) where this share of pairs match, such as 0.01, on these
    pairs; no promise of others."""
    c_miss: float = 1.0
    """With --p-target: cost of a matching pair that is refused."""
    c_fa: float = 1.0
    """With --p-target: cost of another pair that is accepted."""
    confidence: Literal["score", "margin", "class_margin", "probability", "auto"] = "score"
    """The number that is compared with the threshold: the score of the best item, a margin, or a fitted probability. A
    margin is to the next item, or to the best of another class. auto: the confidence that answers most of a third of
    the classes, which is then set apart.
    """
    try_centre: bool = False
    """Try on that third, too, whether items less the mean of their side are answered better; writes centre.json."""
    per: Literal["class", "query"] | None = None
    """The unit of the promise. class: classes to come are new, and each counts once. query: queries to come are drawn
    as these were, with the same classes in the same shares. By default class; where classes repeat, query beside it."""
    groups: Path | None = None
    """In place of the classes: the group of each query, such as a document or a day. One query of a group counts. [Q]
    numbers or strings, a file as --query-labels.
    """
    within: Path | None = None
    """With --wrong: the language, camera or source of each query, [Q] numbers or strings, a file or a column as
    --query-labels. Each of these groups has a threshold of its own, accept-1.json and so on, and the promise is kept
    within all of them at once."""
    certainty: str = "90%"
    """How surely the threshold keeps its promise."""
    strict: bool = False
    """End with exit code 1 where a target is named and no threshold can be promised to keep it."""
    seed: int = 0
    """Seed of the draw of one query, or pair, of each class, and of the parts of the fitted probability."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(ChooseThreshold, "peaccel choose-threshold", __doc__, arguments)
    named = {name: getattr(task, name) for name in ("wrong", "fpir", "far", "p_target")}
    asked = {name: f"--{name.replace('_', '-')}" for name, text in named.items() if text is not None}
    alphas = {
        name: text if isinstance(text, float) else float(share(asked[name][2:], text))
        for name, text in named.items()
        if text is not None
    }
    if len(alphas) > 1:
        raise ValueError(f"expected one target, found {' and '.join(asked.values())}")
    if "p_target" not in alphas and (task.c_miss, task.c_fa) != (1, 1):
        raise ValueError("--c-miss and --c-fa go with --p-target")
    delta = float(1 - share("certainty", task.certainty))
    task.check_norm()
    groups = None if task.within is None else io.read_labels(task.within)
    of_groups = [f"accept-{i + 1}.json" for i in range(0 if groups is None else len(np.unique(groups)))]
    names = "threshold.json", "report.html", "accept.json", "centre.json"
    numbers, page, accept, centre, *within = outputs(task.out, task, *names, *of_groups)
    if task.pairs is None and task.trial_list is None:
        found = _of_searches(task, alphas, delta, groups)
    else:
        found = _of_pairs(task, alphas, delta)
    print(found)
    others = {accept: found.accept is not None, centre: found.centre is not None} | dict.fromkeys(within, True)
    save_numbers(numbers, found, others)
    from peaccel._utils import report
    from peaccel.evaluation.threshold_pages import threshold_sections

    report.write(page, "Choice of a threshold", threshold_sections(found), ["choose-threshold", *arguments])
    print(f"\n-> {page}")
    if found.centre is not None:
        io.write_fit(centre, found.centre)
    if found.accept is None:
        print("\nName a target to have its threshold written: --wrong 5%, for instance")
        return
    io.write_fit(accept, _with_fits(task, found, found.accept))
    for path, group in zip(within, found.within, strict=True):
        io.write_fit(path, _with_fits(task, found, group.accept))
        print(f"\n{path} is for queries of group {group.name}")
    nothing = math.isinf(found.accept.threshold)
    print(f"\n{accept} accepts nothing" if nothing else f"\n{_next(task, found, accept)}")
    if nothing and task.strict:
        sys.exit(1)


def _with_fits(task: ChooseThreshold, found: ThresholdChoice, accept: Threshold) -> Threshold:
    """A threshold that was found, which knows what was applied to the items."""
    fits = task.applied()
    if found.of_pairs:
        return accept if task.embeddings is None else _of_trials(task, accept)
    return replace(accept, applied=str(fits if found.centre is None else replace(fits, centre=found.centre)))


def _of_trials(task: ChooseThreshold, accept: Threshold) -> Threshold:
    """A threshold of pairs, which knows the score and what was applied to the items."""
    assert task.embeddings is not None
    fits = task.applied()
    d, score = fits.of_gallery(task.embeddings), _score(task)
    norm = task.norm("choose-threshold", d[:2], fits, score)
    label = "" if norm is None else norm.label
    return replace(accept, score=score.fingerprint, normalisation=label, dim=d.dim, applied=str(fits))


def _of_searches(
    task: ChooseThreshold, alphas: dict[str, float], delta: float, within: NDArray[Any] | None
) -> ThresholdChoice:
    if "far" in alphas:
        raise ValueError("--far is of --pairs; of searches it is --fpir")
    if "p_target" in alphas:
        raise ValueError("--p-target is of --pairs and --trial-list")
    task.read_trials()
    if task.try_centre and (task.centre or task.plda or task.calibration):
        raise ValueError("--try-centre stands alone, found --centre, --plda or --calibration beside it")
    score = _score(task)
    queries, gallery, labels, exclude = sides(task, "--pairs")
    others, classes = novel(task)
    return choose_threshold(
        queries,
        gallery,
        labels,
        score,
        **alphas,
        per=task.per,
        groups=None if task.groups is None else io.read_labels(task.groups),
        exclude=exclude,
        within=within,
        delta=delta,
        novel=others,
        novel_labels=classes,
        confidence=task.confidence,
        try_centre=task.try_centre,
        cohort=None if task.cohort is None else task.applied().of_gallery(task.cohort),
        seed=task.seed,
    )


def _score(task: ChooseThreshold) -> Score:
    """The score that is named, or the one of the model."""
    [score] = with_prior([scores.get(task.score)], task.prior)
    if task.plda is None:
        return score
    if task.score != ChooseThreshold.score:
        raise ValueError(f"--plda has a score of its own, found --score {task.score}")
    return read_fit(task.plda, Plda).score


def _of_pairs(task: ChooseThreshold, alphas: dict[str, float], delta: float) -> ThresholdChoice:
    if "fpir" in alphas:
        raise ValueError("--fpir is of searches; of --pairs it is --far")
    of_searches = {name: getattr(task, name) for name in ("try_centre", "per", "groups", "within", "exclude_same")}
    if beside := [name for name, value in of_searches.items() if value]:
        raise ValueError(f"{dashed(beside)} is of searches, not of --pairs, --trial-list")
    if task.confidence != ChooseThreshold.confidence:
        raise ValueError("--confidence is of searches, not of --pairs, --trial-list")
    pairs, clusters = _scored_trials(task) if task.pairs is None else (_scored_pairs(task, task.pairs), None)
    return choose_pair_threshold(
        *pairs,
        **alphas,
        c_miss=task.c_miss,
        c_fa=task.c_fa,
        clusters=None if task.p_target is None else clusters,
        delta=delta,
        seed=task.seed,
    )


def _scored_pairs(task: ChooseThreshold, path: Path) -> io.ScoredPairs:
    others = (
        *(f.name for f in fields(FitFiles)),
        "cohort",
        "novel",
        "novel_labels",
        *(f.name for f in fields(TrialFiles)),
    )
    beside = task.named(WAYS) | {name for name in others if getattr(task, name)}
    if beside or task.score != ChooseThreshold.score:
        names = dashed(sorted(beside or {"score"}))
        raise ValueError(f"--pairs are scored already and stand alone, found {names} beside it")
    return io.read_scored_pairs(path)


def _scored_trials(task: ChooseThreshold) -> tuple[io.ScoredPairs, NDArray[np.int64]]:
    """The pairs of a trial list, scored by names, and the speakers of both sides."""
    named, fits = task.read_trials("embeddings"), task.applied()
    assert named is not None and task.embeddings is not None
    trials = named.trials
    scored = score_trials(
        fits.of_gallery(task.embeddings),
        named.ids,
        trials.enrol,
        trials.test,
        _score(task),
        enrolment=named.enrolment,
        rule=task.rule,
        cohort=None if task.cohort is None else fits.of_gallery(task.cohort),
    )
    return io.ScoredPairs(scored, trials.match, None), metrics.trial_clusters(*trials)


def _next(task: ChooseThreshold, found: ThresholdChoice, accept: Path) -> str:
    """How the threshold is applied."""
    if task.trial_list is not None:
        kept = [f.name for f in fields(NormFiles) if f.name != "skip_bad"] + ["score", "rule", "enrolment"]
        flags = [word for name in kept if (x := getattr(task, name)) for word in (dashed([name]), str(x))]
        return f"peaccel score-trials {shlex.join([*flags, '--accept', str(accept)])} --embeddings ... --out ..."
    if task.pairs is not None:
        return f"import peaccel as pe; accepted = pe.io.read_fit({str(accept)!r})(scores)"
    flags = [] if task.plda is not None else ["--score", task.score]
    for name in (f.name for f in fields(NormFiles) if f.name != "skip_bad"):
        if (value := getattr(task, name)) is not None:
            flags += [dashed([name]), str(value)]
    plain = found.confidence == "score" and found.centre is None and task.centre is None and task.cohort is None
    if task.embeddings is not None and plain and not task.exclude_same:
        line = shlex.join(["--embeddings", str(task.embeddings), *flags, "--accept", str(accept)])
        return f"peaccel duplicates {line} --out ..."
    if found.centre is not None:
        flags += ["--centre", str(accept.with_name("centre.json"))]
    flags += ["--exclude-same", *task.exclude_same] if task.exclude_same else []
    flags += ["--k", str(found.deepest), "--accept", str(accept), "--gallery", str(task.gallery or task.embeddings)]
    if found.accept is not None and found.accept.of_classes:
        flags += ["--gallery-labels", str(task.gallery_labels or task.labels)]
    return f"peaccel search {shlex.join(flags)} --queries ... --out ..."
