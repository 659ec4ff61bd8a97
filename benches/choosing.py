"""Which score when: `python -m benches.choosing` prints the tables of docs/choosing-a-score.md, in Markdown.

All sets are drawn from the models that the scores assume, with uncertainties that really made the noise; nothing here is
a trained model. Cells are means over SEEDS draws of everything; a draw has 400 classes and 2000 queries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import peaccel as pe

SEEDS = 5
CLASSES = 400
PER_CLASS = 5  # queries, and items of the held-out set
Labelled = tuple[Any, np.ndarray]  # a distribution and its classes
SPREAD: list[float] = []  # standard errors of all cells


# ---- sets ------------------------------------------------------------------------------------------------------------


def normals(rng: Any, dim: int, per: int, het: float, centres: Any = None, diagonal: bool = False) -> Labelled:
    """Classes of N(0, I), items moved by noise of variances exp(het N(0, 1))."""
    centres = rng.standard_normal((CLASSES, dim)) if centres is None else centres
    labels = np.repeat(np.arange(CLASSES), per)
    var = np.exp(het * rng.standard_normal((len(labels), dim if diagonal else 1)))
    mu = centres[labels] + np.sqrt(var) * rng.standard_normal((len(labels), dim))
    return pe.Normal(mu, var if diagonal else var[:, 0]), labels


def directions(rng: Any, dim: int, per: int, het: float, centres: Any) -> Labelled:
    """Classes uniform on the sphere, items of concentrations dim exp(het N(0, 1))."""
    labels = np.repeat(np.arange(CLASSES), per)
    kappa = dim * np.exp(het * rng.standard_normal(len(labels)))
    around = pe.VonMisesFisher(centres[labels], kappa)
    return pe.VonMisesFisher(pe.sample(around, 1, seed=int(rng.integers(2**31)))[0], kappa), labels


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def pairs_of(rng: Any, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of neighbouring rows, which are of one class, and of rows at random; balanced."""
    first = np.flatnonzero(labels[:-1] == labels[1:])
    other = rng.integers(0, len(labels), (4 * len(first), 2))
    other = other[labels[other[:, 0]] != labels[other[:, 1]]][: len(first)]
    return np.r_[np.c_[first, first + 1], other], np.arange(2 * len(first)) < len(first)


# ---- figures ---------------------------------------------------------------------------------------------------------


def recall(queries: Labelled, gallery: Labelled, score: Any) -> float:
    """Recall@1 in percent."""
    ids = pe.search(queries[0], gallery[0], 1, score).ids[:, 0]
    return 100 * float((gallery[1][ids] == queries[1]).mean())


def auroc(scores: np.ndarray, same: np.ndarray) -> float:
    """Share of (same, different) in the right order, in percent; ties count half."""
    low, high = (np.searchsorted(np.sort(scores[~same]), scores[same], side) for side in ("left", "right"))
    return 50 * float((low + high).mean()) / int((~same).sum())


def alike(queries: Any, gallery: Any, one: Any, other: Any) -> float:
    """Percent of queries whose best ten have the same ids, in order, by both scores."""
    first, second = (pe.search(queries, gallery, 10, score).ids for score in (one, other))
    return 100 * float((first == second).all(1).mean())


def table(title: str, header: Iterable[str], measure: Callable[[Any], dict[str, list[float]]]) -> None:
    """Means over seeds of what `measure` returns for a generator: row -> cells."""
    draws = [measure(np.random.default_rng(seed)) for seed in range(SEEDS)]
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |", "|" + "---|" * len(list(header)), sep="\n")
    for name in draws[0]:
        cells = np.array([draw[name] for draw in draws])
        SPREAD.extend(cells.std(0, ddof=1) / SEEDS**0.5)
        print(f"| {name} | " + " | ".join(f"{x:.2f}" if abs(x) < 1 else f"{x:.1f}" for x in cells.mean(0)) + " |")


# ---- tables ----------------------------------------------------------------------------------------------------------

DISTANCES = ("cosine", "neg_sq_l2", "neg_expected_sq_l2", "neg_w2")
DENSITIES = ("mls", "inclusion", "ppk:rho=0.5", "neg_kl:direction=symmetric")


def flat_prior(rng: Any) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for per, het in ((1, 0.0), (1, 1.0), (5, 1.0)):
        for dim in (16, 32, 128):
            centres = rng.standard_normal((CLASSES, dim))
            gallery, queries = normals(rng, dim, per, 1.0, centres), normals(rng, dim, PER_CLASS, het, centres)
            mean, var = pe.fit_prior(*normals(rng, dim, PER_CLASS, 1.0))
            scores = {name: name for name in (*DISTANCES, *DENSITIES)}
            scores |= {"llr, prior known": "llr:prior_var=1"}
            scores |= {"llr, pe.fit_prior": pe.scores.llr(prior_var=var, prior_mean=mean)}
            for name, score in scores.items():
                rows.setdefault(name, []).append(recall(queries, gallery, score))
    return rows


def wrong_scale(rng: Any) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for dim in (32, 128):
        centres = rng.standard_normal((CLASSES, dim))
        gallery, queries = normals(rng, dim, 1, 1.0, centres), normals(rng, dim, PER_CLASS, 1.0, centres)
        held = normals(rng, dim, PER_CLASS, 1.0)
        for factor in (0.2, 1.0, 5.0):
            g, q, h = (pe.Normal(d.mu, factor * d.var) for d, _ in (gallery, queries, held))
            mean, var = pe.fit_prior(h, held[1])
            fitted = pe.calibrate(h, *pairs_of(rng, held[1]))
            row = rows.setdefault(f"true variance x {factor}", [])
            for score in ("mls", pe.scores.llr(prior_var=var, prior_mean=mean)):
                row.append(recall((q, queries[1]), (g, gallery[1]), score))
                row.append(recall((fitted(q), queries[1]), (fitted(g), gallery[1]), score))
    return rows


def on_sphere(rng: Any) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for dim in (32, 128):
        centres, others = (unit(rng.standard_normal((CLASSES, dim))) for _ in range(2))
        gallery, held = directions(rng, dim, 1, 1.0, centres), directions(rng, dim, PER_CLASS, 1.0, others)
        pairs, same = pairs_of(rng, held[1])
        shift = pe.fit_shift(held[0], pairs, same)
        mean, var = pe.fit_prior(pe.Normal(held[0].mu, 1 / held[0].kappa), held[1])

        def scaled(d: Any) -> Any:
            return pe.Scaled(d.mu, d.kappa)

        def normal(d: Any) -> Any:
            return pe.Normal(d.mu, 1 / d.kappa)

        def times(factor: float) -> Callable[[Any], Any]:
            return lambda d: pe.VonMisesFisher(d.mu, factor * d.kappa)

        def calibrated(d: Any) -> Any:
            return pe.calibrate(times(5)(held[0]), pairs, same)(times(5)(d))  # noqa: B023

        scores: dict[str, tuple[Callable[[Any], Any], Any]] = {
            name: (times(1), name) for name in ("cosine", "expected_cosine", "mls", *DENSITIES[1:])
        }
        scores["mls, kappa x 0.2"] = times(0.2), "mls"
        scores["mls, kappa x 5"] = times(5), "mls"
        scores["mls, kappa x 5, pe.calibrate"] = calibrated, "mls"
        scores["mls of Normal(mu, 1 / kappa)"] = normal, "mls"
        scores["llr of the same, pe.fit_prior"] = normal, pe.scores.llr(prior_var=var, prior_mean=mean)
        scores["scale_cosine of Scaled(mu, kappa)"] = scaled, "scale_cosine"
        scores["the same, mu by pe.fit_shift"] = scaled, pe.scores.scale_cosine(mu=shift)
        queries = [directions(rng, dim, PER_CLASS, het, centres) for het in (0.0, 1.0)]
        for name, (kind, score) in scores.items():
            row = rows.setdefault(name, [])
            row.extend(recall((kind(q), labels), (kind(gallery[0]), gallery[1]), score) for q, labels in queries)
            sides = (kind(held[0])[side] for side in pairs.T)
            row.append(auroc(pe.paired(*sides, score), same))
    return rows


def equal_variances(rng: Any) -> dict[str, list[float]]:
    dim = 32
    centres = rng.standard_normal((CLASSES, dim))
    g, q = normals(rng, dim, 5, 0.0, centres)[0], normals(rng, dim, PER_CLASS, 1.0, centres)[0]
    mixed = normals(rng, dim, 5, 1.0, centres)[0]
    unit_g, unit_q = pe.Normal(unit(g.mu), g.var), pe.Normal(unit(q.mu), q.var)
    vmf_g, vmf_q = pe.VonMisesFisher(unit_g.mu, dim * g.var), pe.VonMisesFisher(unit_q.mu, dim * q.var)
    vmf_mixed = pe.VonMisesFisher(unit(mixed.mu), dim / mixed.var)
    return {
        "mls, neg_sq_l2": [alike(q, g, "mls", "neg_sq_l2"), alike(q, mixed, "mls", "neg_sq_l2")],
        "mls, cosine; unit means": [
            alike(unit_q, unit_g, "mls", "cosine"),
            alike(unit_q, pe.Normal(vmf_mixed.mu, mixed.var), "mls", "cosine"),
        ],
        "mls, cosine; vMF": [alike(vmf_q, vmf_g, "mls", "cosine"), alike(vmf_q, vmf_mixed, "mls", "cosine")],
        "llr, neg_sq_l2": [alike(q, g, "llr:prior_var=1", "neg_sq_l2"), alike(q, mixed, "llr:prior_var=1", "neg_sq_l2")],
    }


def per_dimension(rng: Any) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for dim in (32, 128):
        centres = rng.standard_normal((CLASSES, dim))
        sets = [normals(rng, dim, per, 1.0, centres, diagonal=True) for per in (1, PER_CLASS)]
        held = normals(rng, dim, PER_CLASS, 1.0, diagonal=True)
        mean, var = pe.fit_prior(*held)
        llr = pe.scores.llr(prior_var=var, prior_mean=mean)
        kinds: dict[str, Callable[[Any], Any]] = {
            "a variance per dimension": lambda d: d,
            "its mean over dimensions": lambda d: pe.Normal(d.mu, d.var.mean(1)),
            "its harmonic mean": lambda d: pe.Normal(d.mu, pe.confidence(d, "harmonic_var")),
        }
        for name, kind in kinds.items():
            gallery, queries = ((kind(d), labels) for d, labels in sets)
            found = (recall(queries, gallery, score) for score in ("cosine", "neg_sq_l2", "mls", llr))
            rows.setdefault(name, []).extend(found)
    return rows


def thresholds(rng: Any) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for dim in (16, 32, 128):
        test, held = normals(rng, dim, PER_CLASS, 1.0), normals(rng, dim, PER_CLASS, 1.0)
        pairs, same = pairs_of(rng, held[1])
        mean, var = pe.fit_prior(*held)
        for name, score in (("cosine", "cosine"), ("mls", "mls"), ("llr", pe.scores.llr(prior_var=var, prior_mean=mean))):
            fitted, found = (pe.paired(d[pairs[:, 0]], d[pairs[:, 1]], score) for d, _ in (held, test))
            order = np.argsort(fitted)
            errors = np.r_[0, np.cumsum(np.where(same[order], 1, -1))]  # below the threshold, but for a constant
            best = fitted[order][min(int(errors.argmin()), len(order) - 1)]
            wrong = [100 * float(((found >= t) != same).mean()) for t in (best, 0.0)]
            rows[f"{name}, D = {dim}"] = [float(best), *wrong, auroc(found, same)]
    return rows


def containment(rng: Any) -> dict[str, list[float]]:
    """Narrow items drawn inside wide ones of N(0, I)."""
    dim, count = 32, 2000
    wide = pe.Normal(rng.standard_normal((count, dim)), np.full(count, 0.3))
    mu = wide.mu + np.sqrt(0.3) * rng.standard_normal((count, dim))
    narrow, shuffled = pe.Normal(mu, np.full(count, 0.03)), wide[np.roll(np.arange(count), 1)]
    equal = pe.Normal(mu, wide.var)  # as wide as what it would lie in
    which = np.arange(2 * count) < count
    rows = {}
    for score in ("inclusion", "neg_kl", "neg_kl:direction=gallery_to_query", "neg_kl:direction=symmetric", "mls"):
        inside = pe.paired(narrow, wide, score)
        others = (pe.paired(wide, narrow, score), pe.paired(narrow, shuffled, score), pe.paired(equal, wide, score))
        rows[score] = [auroc(np.r_[inside, other], which) for other in others]
    return rows


def sampled(rng: Any) -> dict[str, list[float]]:
    dim = 32
    axes = unit(rng.standard_normal((CLASSES, dim)))
    kappa = 4 * np.exp(0.5 * rng.standard_normal((CLASSES, 1)) + 0.3 * rng.standard_normal((CLASSES, dim)))
    classes = pe.NonIsotropicVonMisesFisher(axes, kappa)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    stretched = (kappa * axes)[labels]
    length = np.linalg.norm(stretched, axis=1)
    drawn = pe.sample(pe.VonMisesFisher(stretched / length[:, None], 3 * length), 1, seed=int(rng.integers(2**31)))[0]
    sharpness = 4 * dim * np.exp(rng.standard_normal(len(labels)))
    true = pe.VonMisesFisher(unit(drawn / kappa[labels]), sharpness)
    queries = pe.VonMisesFisher(pe.sample(true, 1, seed=int(rng.integers(2**31)))[0], sharpness), labels
    gallery = classes, np.arange(CLASSES)
    scores = ("cosine", "nivmf", "nivmf:variant=published", "el_nivmf:n=5,seed=0", "el_nivmf:n=50,seed=0")
    return {s: [recall(queries, gallery, s)] for s in (*scores, "el_nivmf:n=5,seed=0,variant=published")}


def main() -> int:
    """Print the tables."""
    pe.set_num_threads(1)
    d = ("D = 16", "D = 32", "D = 128")
    first = [f"{what}{dim}" for what in ("queries alike, ", "mixed, ", "5 a class, ") for dim in d]
    table("1. The flat prior of MLS", ["score", *first], flat_prior)
    four = [f"{name}{how}, {dim}" for dim in d[1:] for name in ("mls", "llr") for how in ("", " calibrated")]
    table("2. The scale of variance", ["variances given", *four], wrong_scale)
    six = [f"{what}, {dim}" for dim in d[1:] for what in ("queries alike", "mixed", "AUROC")]
    table("3. Directions", ["score", *six], on_sphere)
    table("4. Equal variances", ["rankings", "equal in the gallery", "mixed"], equal_variances)
    eight = [f"{name}, {dim}" for dim in d[1:] for name in ("cosine", "neg_sq_l2", "mls", "llr")]
    table("5. Noise per dimension", ["variances given", *eight], per_dimension)
    table("6. Thresholds", ["score", "best threshold", "error % there", "error % at 0", "AUROC"], thresholds)
    wanted = ("b in a", "a in another b", "as wide as b")
    table("7. Is a in b", ["score of (a, b)", *(f"against {x}" for x in wanted)], containment)
    table("8. Class densities that are not isotropic", ["score", "Recall@1 %"], sampled)
    print(f"\nStandard error of a cell: median {np.median(SPREAD):.2f}, largest {max(SPREAD):.2f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
