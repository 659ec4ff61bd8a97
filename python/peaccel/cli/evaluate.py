"""Evaluate embeddings: retrieval, verification, and what their confidence is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peaccel import io
from peaccel._utils.options import parse
from peaccel.cli._fitted_files import read_fit, with_prior
from peaccel.cli._labelled_files import LabelledFiles, array, novel, read_images, sides
from peaccel.cli._option_groups import NormFiles
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.cli._trial_files import NamedTrials, TrialFiles
from peaccel.distributions import Point
from peaccel.distributions.confidence import confidence
from peaccel.evaluation.answers import as_scores, as_truth
from peaccel.evaluation.columns import explained
from peaccel.evaluation.evaluate import evaluate
from peaccel.evaluation.evaluate_trials import TrialResult, evaluate_trials
from peaccel.evaluation.pair_rates import P_TARGET
from peaccel.evaluation.templates import TemplateResult, evaluate_templates
from peaccel.fits.plda import Plda
from peaccel.scores import Score, get

__all__ = ["Evaluate", "main"]


@dataclass(frozen=True, kw_only=True)
class Evaluate(LabelledFiles, TrialFiles, NormFiles):
    """Data to evaluate, scores, and output of the page."""

    out: Path
    """A folder that receives results.json and report.html; made if missing."""
    scores: str | None = None
    """Names that 'peaccel scores' lists, separated by commas; the first one is the baseline. By default cosine and, for
    what has an uncertainty that it takes, mls."""
    pairs: Path | None = None
    """Verification pairs, [P, 2] integers, rows of the query and of the gallery, in place of drawn ones; with
    --templates the numbers of two templates. .npy, or .npz with key pairs."""
    p_target: float = P_TARGET
    """Prior probability of a right pair, at which the detection costs (minDCF) are."""
    templates: Path | None = None
    """With --embeddings and --labels: the template of each item, [N] integers; also verifies templates, fused by every
    rule, into templates.json."""
    quality: Path | None = None
    """Quality of each query, [Q] numbers, higher = better, such as the size of its crop."""
    images: Path | None = None
    """Images of the queries, [Q, H, W] in an .npy file, 0 to 255 or in [0, 1]; the page shows some."""
    gallery_images: Path | None = None
    """Images of the gallery, if there is a --gallery, so that the page shows what queries find."""
    seed: int = 0
    """Seed of drawn pairs, of intervals, and of the random confidence."""


def _names(scores: str) -> list[str]:
    """The names of scores between commas, which scores have too, before a parameter: "llr:prior_var=1,prior_mean=0"."""
    names: list[str] = []
    for part in scores.split(","):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part.strip()}"
        else:
            names.append(part.strip())
    return names


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = parse(Evaluate, "peaccel evaluate", __doc__, arguments)
    if (trials := task.read_trials("embeddings")) is not None:
        _of_trials(task, trials, arguments)
        return
    if task.normalise is not None or task.cohort is not None:
        raise ValueError("--normalise and --cohort are of --trial-list, which is not there")
    if task.templates is not None and (task.embeddings is None or task.labels is None or task.exclude_same):
        raise ValueError("--templates needs --embeddings and --labels, without --exclude-same")
    queries, gallery, labels, exclude = sides(task)
    numbers, page, fused = outputs(task.out, task, "results.json", "report.html", "templates.json")
    scores = _scores(task, (queries.kind, (queries if gallery is None else gallery).kind))
    quality = None if task.quality is None else io.read_labels(task.quality)
    if task.gallery_images is not None and (task.images is None or gallery is None):
        raise ValueError("--gallery-images needs --images and --gallery; what is in --embeddings has --images alone")
    images = None if task.images is None else read_images(task.images, len(queries))
    of_gallery = images
    if gallery is not None:
        of_gallery = None if task.gallery_images is None else read_images(task.gallery_images, len(gallery))
    pairs = None if task.pairs is None else array(task.pairs, "pairs")
    templates = None
    if task.templates is not None:
        which = array(task.templates, "templates")
        templates = evaluate_templates(queries, which, labels, scores, pairs=pairs, seed=task.seed)
        pairs = None
    others, classes = novel(task)
    found = evaluate(
        queries,
        gallery,
        labels,
        scores,
        exclude=exclude,
        pairs=pairs,
        p_target=task.p_target,
        quality=quality,
        novel=others,
        novel_labels=classes,
        seed=task.seed,
    )
    print(found)
    save_numbers(numbers, found, {fused: templates is not None})
    if templates is not None:
        print(f"\n{templates}")
        templates.save(fused)
    from peaccel._utils import report  # matplotlib takes a second to import: first comes all that can be refused
    from peaccel.evaluation.pages import retrievals, sections, tables

    sure, of_novel = (
        None if d is None or isinstance(d, Point) else np.asarray(confidence(d), np.float64) for d in (queries, others)
    )
    shown = sections(found, sure, quality, images, of_novel)
    if templates is not None:
        shown += tables(templates.tables(), (templates.summary(),), explained(TemplateResult), text_columns=2)
    if images is not None and of_gallery is not None and len(scores) > 1:
        truth = as_truth("evaluate", labels, queries, gallery, exclude)
        best = max(range(1, len(scores)), key=lambda i: found.scores[i].recall_at_1.value)
        both, pictures = (scores[0], scores[best]), (images, of_gallery)
        shown.append(retrievals(queries, gallery, truth, both, pictures, task.seed))
    report.write(page, "Evaluation", shown, ["evaluate", *arguments])
    print(f"\n-> {page}")


def _scores(task: Evaluate, kinds: tuple[str, str]) -> list[Score]:
    """The scores that are named, with the prior where they lack one; by default that of the model, if there is one."""
    named = with_prior([get(name) for name in _names(task.scores)] if task.scores is not None else [], task.prior)
    if not named and task.plda is not None:
        return [read_fit(task.plda, Plda).score]
    return as_scores("evaluate", named or None, kinds)


def _of_trials(task: Evaluate, named: NamedTrials, arguments: Sequence[str]) -> None:
    """Verify a list of trials, and write its numbers and its page."""
    beside = [
        name for name in ("templates", "quality", "images", "gallery_images", "exclude_same") if getattr(task, name)
    ]
    if beside:
        raise ValueError(f"--{beside[0].replace('_', '-')} is of searches, not of --trial-list")
    task.check_norm()
    assert task.embeddings is not None
    numbers, page, fused = outputs(task.out, task, "results.json", "report.html", "templates.json")
    fits = task.applied()
    d = fits.of_gallery(task.embeddings)
    found = evaluate_trials(
        d,
        named.ids,
        *named.trials,
        _scores(task, (d.kind, d.kind)),
        enrolment=named.enrolment,
        rule=task.rule,
        cohort=None if task.cohort is None else fits.of_gallery(task.cohort),
        p_target=task.p_target,
        seed=task.seed,
    )
    print(found)
    save_numbers(numbers, found, {fused: False})
    from peaccel._utils import report
    from peaccel.evaluation.pages import tables

    report.write(
        page, "Evaluation", tables(found.tables(), (found.summary(),), explained(TrialResult)), ["evaluate", *arguments]
    )
    print(f"\n-> {page}")
