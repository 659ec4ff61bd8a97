"""Uncertainties for equal means: `python -m reproduction.heads` prints a table of docs/score-comparison.md.

For each seed the demo's network learns its means once, and each method an uncertainty for them from the same images.
Cells are what a score gains over cosine, all of the gallery ranked, in points of Recall@1 and of MAP@R, means over
seeds. `--validation` takes queries and gallery from the numbers and scans of the validation part instead: by it
settings are chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import peaccel as pe
from peaccel import metrics, train
from peaccel.cli import demo
from peaccel.data import digits
from peaccel.data.corruption import corrupt
from peaccel.train.evaluation import scored
from peaccel.train.sources import digits_settings

SEEDS = 4
SETTINGS = digits_settings()
Sides = dict[tuple[str, str], Any]  # by part and kind


def parts_of(seed: int, validation: bool) -> dict[str, digits.Strips]:
    """The demo's parts; of validation, its numbers as queries and gallery, each of one half of its scans."""
    parts = digits.make("mnist", SETTINGS, seed)
    if validation:
        share, classes = SETTINGS.scan_shares[1] / 2, SETTINGS.classes
        halves = replace(
            SETTINGS,
            scan_shares=(SETTINGS.scan_shares[0], 0.0, share, share),
            classes=(classes[0], 0, classes[1]),
            images_per_class=(1, 0, 10, 20),
        )
        parts |= {part: x for part, x in digits.make("mnist", halves, seed).items() if part in ("gallery", "query")}
    return parts


def measure(seed: int, validation: bool) -> Iterator[tuple[str, np.ndarray]]:
    """For each score its name and its gains over cosine, [2 metrics, 4 conditions]."""
    clean = parts_of(seed, validation)
    mixed = {part: corrupt(x, SETTINGS.corruption, (seed, i)) for i, (part, x) in enumerate(clean.items())}
    kinds = {"clean": clean, "mixed": mixed}

    def embed(training: Any, part: str, kind: str = "mixed") -> Any:
        return train.embed(training.model, demo.tensor(kinds[kind][part]))

    def sides(training: Any) -> Sides:
        return {(part, kind): embed(training, part, kind) for part in ("query", "gallery") for kind in kinds}

    def found(d: Sides, score: Any) -> np.ndarray:
        largest = int(np.bincount(clean["gallery"].labels).max())
        cells = []
        for q, g in demo.CONDITIONS:
            ids = pe.search(d["query", q], d["gallery", g], largest, score).ids
            truth = ids, clean["query"].labels, clean["gallery"].labels
            cells.append((metrics.recall_at_k(*truth), metrics.map_at_r(*truth)))
        return 100 * np.array(cells).T

    _, pfe = demo.learn("pfe", "mnist", mixed["train"], seed)
    d = sides(pfe)
    cosine = found(d, "cosine")
    prior = pe.fit_prior(embed(pfe, "train"), mixed["train"].labels)
    llr = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    factor = demo.variance_factor(embed(pfe, "validation"), mixed["validation"].labels)
    calibrated = {key: pe.Normal(x.mu, x.var * np.float32(factor)) for key, x in d.items()}
    yield "cosine itself", cosine
    yield "pfe, mls", found(d, "mls") - cosine
    yield "pfe, mls calibrated", found(calibrated, "mls") - cosine
    yield "pfe, llr calibrated", found(calibrated, llr) - cosine
    for name in ("llr_nce", "mls_nce", "vmf_nce"):
        method, training = demo.learn(name, "mnist", mixed["train"], seed, pfe.model)
        score = scored(method, training, embed(training, "validation"), mixed["validation"].labels)
        yield f"{name}, {method.score}", found(sides(training), score) - cosine


def main() -> int:
    """Print the table."""
    torch.set_num_threads(1)
    pe.set_num_threads(1)
    runs = [dict(measure(seed, "--validation" in sys.argv)) for seed in range(SEEDS)]
    conditions = [f"{q}/{g}" for q, g in demo.CONDITIONS]
    header = ["", *(f"{metric}, {x}" for metric in ("Recall@1", "MAP@R") for x in conditions)]
    print("| " + " | ".join(header) + " |", "|" + "---|" * len(header), sep="\n")
    spread = []
    for name in runs[0]:
        cells = np.array([run[name].ravel() for run in runs])
        spread.extend(cells.std(0, ddof=1) / SEEDS**0.5)
        sign = "" if name == "cosine itself" else "+"
        print(f"| {name} | " + " | ".join(f"{x:{sign}.1f}" for x in cells.mean(0)) + " |")
    print(f"\nStandard error of a cell: median {np.median(spread):.2f}, largest {max(spread):.2f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
