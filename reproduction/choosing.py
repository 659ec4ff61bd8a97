"""Which score when: `python -m reproduction.choosing` prints the tables of docs/score-comparison.md, in Markdown.

All sets are drawn from the models that the scores assume, with uncertainties that really made the noise; nothing here
is a trained model. Cells are means over SEEDS draws of everything; a draw has 400 classes and 2000 queries.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

import peaccel as pe
from peaccel.published import non_isotropic

SEEDS = 5
CLASSES = 400
PER_CLASS = 5  # queries, and items of the held-out set
Labelled = tuple[Any, np.ndarray]  # a distribution and its classes
Rows = dict[str, list[float]]
Kind = Callable[[Any], Any]
SPREAD: list[float] = []  # standard errors of all cells


def normals(rng: Any, dim: int, per: int, het: float = 1.0, centres: Any = None, diagonal: bool = False) -> Labelled:
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


def world(rng: Any, dim: int, per: int = 1, het: float = 1.0, diagonal: bool = False) -> tuple[Labelled, ...]:
    """A gallery, queries with variances of spread `het`, and a held-out set of other classes."""
    centres = rng.standard_normal((CLASSES, dim))
    drawn = (normals(rng, dim, n, h, centres, diagonal) for n, h in ((per, 1.0), (PER_CLASS, het)))
    return *drawn, normals(rng, dim, PER_CLASS, diagonal=diagonal)


def fitted_llr(held: Labelled) -> Any:
    mean, var = pe.fit_prior(*held)
    return pe.scores.llr(prior_var=var, prior_mean=mean)


def unit(x: np.ndarray) -> np.ndarray:
    of_length_one: np.ndarray = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return of_length_one


def pairs_of(rng: Any, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of neighbouring rows, which are of one class, and of rows at random; balanced."""
    first = np.flatnonzero(labels[:-1] == labels[1:])
    other = rng.integers(0, len(labels), (4 * len(first), 2))
    other = other[labels[other[:, 0]] != labels[other[:, 1]]][: len(first)]
    return np.r_[np.c_[first, first + 1], other], np.arange(2 * len(first)) < len(first)


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


def table(title: str, header: Iterable[str], measure: Callable[[Any], Rows]) -> None:
    """Means over seeds of what `measure` returns for a generator: row -> cells."""
    draws = [measure(np.random.default_rng(seed)) for seed in range(SEEDS)]
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |", "|" + "---|" * len(list(header)), sep="\n")
    for name in draws[0]:
        cells = np.array([draw[name] for draw in draws])
        SPREAD.extend(cells.std(0, ddof=1) / SEEDS**0.5)
        print(f"| {name} | " + " | ".join(f"{x:.2f}" if abs(x) < 1 else f"{x:.1f}" for x in cells.mean(0)) + " |")


DISTANCES = ("cosine", "neg_sq_l2", "neg_expected_sq_l2", "neg_w2")
DENSITIES = ("mls", "inclusion", "ppk:rho=0.5", "neg_kl:direction=symmetric")


def flat_prior(rng: Any) -> Rows:
    rows: Rows = {}
    for per, het, dim in ((*kind, dim) for kind in ((1, 0.0), (1, 1.0), (5, 1.0)) for dim in (16, 32, 128)):
        gallery, queries, held = world(rng, dim, per, het)
        scores: dict[str, Any] = {name: name for name in (*DISTANCES, *DENSITIES)}
        scores |= {"llr, prior known": "llr:prior_var=1", "llr, pe.fit_prior": fitted_llr(held)}
        for name, score in scores.items():
            rows.setdefault(name, []).append(recall(queries, gallery, score))
    return rows


def wrong_scale(rng: Any) -> Rows:
    rows: Rows = {}
    for dim in (32, 128):
        sets = world(rng, dim)
        for factor in (0.2, 1.0, 5.0):
            gallery, queries, held = ((pe.Normal(d.mu, factor * d.var), labels) for d, labels in sets)
            fix = pe.calibrate_variance(held[0], *pairs_of(rng, held[1]))
            q, g = ((fix(d), labels) for d, labels in (queries, gallery))
            found = ((recall(queries, gallery, s), recall(q, g, s)) for s in ("mls", fitted_llr(held)))
            rows.setdefault(f"true variance x {factor}", []).extend(x for both in found for x in both)
    return rows


def sharpened(d: Any, factor: float) -> Any:
    return pe.VonMisesFisher(d.mu, factor * d.kappa)


def on_sphere(rng: Any) -> Rows:
    rows: Rows = {}
    for dim in (32, 128):
        centres, others = (unit(rng.standard_normal((CLASSES, dim))) for _ in range(2))
        gallery, held = directions(rng, dim, 1, 1.0, centres), directions(rng, dim, PER_CLASS, 1.0, others)
        queries = [directions(rng, dim, PER_CLASS, het, centres) for het in (0.0, 1.0)]
        pairs, same = pairs_of(rng, held[1])
        kinds: dict[str, Kind] = {f"x {a}": partial(sharpened, factor=a) for a in (1, 0.2, 5)}
        fix = pe.calibrate_variance(sharpened(held[0], 5), pairs, same)
        kinds["x 5, pe.calibrate_variance"] = lambda d: fix(sharpened(d, 5))  # noqa: B023, called at once
        normal: Kind = lambda d: pe.Normal(d.mu, 1 / d.kappa)  # noqa: E731
        scaled: Kind = lambda d: pe.Scaled(d.mu, d.kappa)  # noqa: E731
        scores: dict[str, tuple[Kind, Any]] = {s: (kinds["x 1"], s) for s in ("cosine", "expected_cosine", *DENSITIES)}
        scores |= {f"mls, kappa {name}": (kind, "mls") for name, kind in kinds.items() if name != "x 1"}
        scores["mls of Normal(mu, 1 / kappa)"] = normal, "mls"
        scores["llr of the same, pe.fit_prior"] = normal, fitted_llr((normal(held[0]), held[1]))
        scores["scale_cosine of Scaled(mu, kappa)"] = scaled, "scale_cosine"
        scores["the same, pe.fit_shift"] = scaled, pe.scores.scale_cosine(mu=pe.fit_shift(held[0], pairs, same))
        for name, (kind, score) in scores.items():
            row = rows.setdefault(name, [])
            row.extend(recall((kind(q), labels), (kind(gallery[0]), gallery[1]), score) for q, labels in queries)
            one, other = (kind(held[0][side]) for side in pairs.T)
            row.append(auroc(pe.paired(one, other, score), same))
    return rows


def equal_variances(rng: Any) -> Rows:
    (mixed, _), (q, _), _ = world(rng, 32, 5)
    rows: Rows = {
        name: [] for name in ("mls, neg_sq_l2", "mls, cosine; unit means", "mls, cosine; vMF", "llr, neg_sq_l2")
    }
    for g in (pe.Normal(mixed.mu, np.ones(len(mixed))), mixed):
        normal: list[Any] = [pe.Normal(unit(d.mu), d.var) for d in (q, g)]
        vmf: list[Any] = [pe.VonMisesFisher(d.mu, 32 / d.var) for d in normal]
        for name, sides in zip(rows, ((q, g), normal, vmf, (q, g)), strict=True):
            one, other = name.partition(";")[0].split(", ")
            one += ":prior_var=1" if one == "llr" else ""
            rows[name].append(alike(sides[0], sides[1], one, other))
    return rows


def per_dimension(rng: Any) -> Rows:
    rows: Rows = {}
    kinds: dict[str, Kind] = {
        "a variance per dimension": lambda d: d,
        "its mean over dimensions": lambda d: pe.Normal(d.mu, d.var.mean(1)),
        "its harmonic mean": lambda d: pe.Normal(d.mu, pe.confidence(d, "harmonic_var")),
    }
    for dim in (32, 128):
        sets = world(rng, dim, diagonal=True)
        for name, kind in kinds.items():
            gallery, queries, held = ((kind(d), labels) for d, labels in sets)
            found = (recall(queries, gallery, score) for score in ("cosine", "neg_sq_l2", "mls", fitted_llr(held)))
            rows.setdefault(name, []).extend(found)
    return rows


def thresholds(rng: Any) -> Rows:
    rows: Rows = {}
    for dim in (16, 32, 128):
        (test, _), (held, labels) = normals(rng, dim, PER_CLASS), normals(rng, dim, PER_CLASS)
        pairs, same = pairs_of(rng, labels)
        for name, score in (("cosine", "cosine"), ("mls", "mls"), ("llr", fitted_llr((held, labels)))):
            fitted, found = (pe.paired(d[pairs[:, 0]], d[pairs[:, 1]], score) for d in (held, test))
            order = np.argsort(fitted)
            best = float(fitted[order][np.cumsum(np.where(same[order], 1, -1)).argmin()])  # the last one rejected
            wrong = [100 * float(((found > t) != same).mean()) for t in (best, 0.0)]
            rows.setdefault(name, []).extend((best, *wrong))
    return rows


def containment(rng: Any) -> Rows:
    """Narrow items drawn inside wide ones of N(0, I)."""
    wide = pe.Normal(rng.standard_normal((2000, 4)), np.full(2000, 0.3))
    mu = wide.mu + np.sqrt(0.3) * rng.standard_normal(wide.mu.shape)
    narrow, equal = pe.Normal(mu, wide.var / 10), pe.Normal(mu, wide.var)
    which, rows = np.arange(4000) < 2000, {}
    for score in ("inclusion", "neg_kl", "neg_kl:direction=gallery_to_query", "mls"):
        sides = ((narrow, wide), (wide, narrow), (narrow, wide[np.arange(-1, 1999)]), (equal, wide))
        inside, *others = (pe.paired(*pair, score) for pair in sides)
        rows[score] = [auroc(np.r_[inside, other], which) for other in others]
    return rows


NIVMF = (
    *("cosine", "nivmf", non_isotropic.nivmf_published),
    *("el_nivmf:n=5,seed=0", "el_nivmf:n=20,seed=0", non_isotropic.el_nivmf_published(n=20, seed=0)),
)


def not_isotropic(rng: Any) -> Rows:
    axes = unit(rng.standard_normal((CLASSES, 32)))
    kappa = 6 * np.exp(0.5 * rng.standard_normal((CLASSES, 1)) + 0.3 * rng.standard_normal((CLASSES, 32)))
    length = np.linalg.norm(kappa * axes, axis=1)
    seeds = rng.integers(2**31, size=2)
    drawn = pe.sample(pe.VonMisesFisher(kappa * axes / length[:, None], length), 1, seed=int(seeds[0]))[0]
    true = pe.VonMisesFisher(unit(drawn / kappa), 128 * np.exp(rng.standard_normal(CLASSES)))
    labels = np.arange(CLASSES)
    queries = pe.VonMisesFisher(pe.sample(true, 1, seed=int(seeds[1]))[0], true.kappa), labels
    gallery = pe.NonIsotropicVonMisesFisher(axes, kappa), labels
    return {"Recall@1": [recall(queries, gallery, s) for s in NIVMF]}


MODALITIES = {"alike": (0.0, 1.0), "offset": (2.0, 1.0), "offset and scale": (2.0, 4.0)}


def two_modalities(rng: Any) -> Rows:
    """A gallery that is 2 further in each dimension; variances of queries are given 4 times too small, those of the
    gallery 4 times too large. Held-out classes have as many items on both sides."""
    rows: Rows = {}
    for dim in (32, 128):
        drawn = []
        for of_gallery in (PER_CLASS, 1):
            centres = rng.standard_normal((CLASSES, dim))
            drawn.append([normals(rng, dim, per, centres=centres) for per in (PER_CLASS, of_gallery)])
        for offset, scale in MODALITIES.values():
            (held_q, held_g), (queries, gallery) = (
                [(pe.Normal(q.mu, q.var / scale), of_q), (pe.Normal(g.mu + offset, scale * g.var), of_g)]
                for (q, of_q), (g, of_g) in drawn
            )
            labels, items = held_q[1], np.arange(len(held_q[1]))
            same = np.ones(len(items), bool)
            both = pe.concat([held_q[0], held_g[0]])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # it says that the sides differ
                one = pe.calibrate_variance(both, np.c_[items, len(items) + items], same)
            fits = {"one scale": (one, one)}
            fits["a mean and a scale per side"] = pe.calibrate_variance(held_q[0], held_g[0], np.c_[items, items], same)
            rows.setdefault("cosine", []).append(recall(queries, gallery, "cosine"))
            rows.setdefault("mls", []).append(recall(queries, gallery, "mls"))
            for name, (of_q, of_g) in fits.items():
                sides = (of_q(queries[0]), queries[1]), (of_g(gallery[0]), gallery[1])
                llr = fitted_llr((pe.concat([of_q(held_q[0]), of_g(held_g[0])]), np.r_[labels, labels]))
                rows.setdefault(f"mls, {name}", []).append(recall(*sides, "mls"))
                rows.setdefault(f"llr, {name}", []).append(recall(*sides, llr))
    return rows


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
    nine = [f"{what}, {dim}" for dim in d for what in ("best threshold", "error there", "error at 0")]
    table("6. Thresholds", ["score", *nine], thresholds)
    wanted = ("b in a", "a in another b", "as wide as b")
    table("7. Is a in b", ["score of (a, b)", *(f"against {x}" for x in wanted)], containment)
    table("8. Class densities that are not isotropic", ["", *map(str, NIVMF)], not_isotropic)
    ten = [f"{what}, {dim}" for dim in d[1:] for what in MODALITIES]
    table("9. Two modalities", ["score", *ten], two_modalities)
    print(f"\nStandard error of a cell: median {np.median(SPREAD):.2f}, largest {max(SPREAD):.2f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
