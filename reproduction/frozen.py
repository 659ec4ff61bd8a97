"""Heads on frozen embeddings: `python -m reproduction.frozen` writes two tables of docs/real-embeddings.md.

Whether there is anything to learn, and what becomes of the papers' claims where all heads share the means of an encoder
that stays as it is: summaries in English descriptions by two encoders of texts (`reproduction.texts`), utterances by
one of speakers (`reproduction.speakers`), where that has been run. Heads are those of `peaccel fit-head`. Lines go to
reproduction/frozen.jsonl, and a stopped command goes on where it was.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import peaccel as pe
from peaccel.evaluation import verification_pairs
from reproduction import speakers, texts
from reproduction.speakers import learned

RESULTS = Path(__file__).parent / "frozen.jsonl"
HEADS = ("pfe", "dul_reg", "scf", "scaleface", "mu_scaleface")
DIFFERENT = 100_000
"""Pairs of two classes that are verified."""
FAR = 0.001


class Case(NamedTuple):
    """Items of frozen embeddings: some are fitted to, some search, some are searched."""

    features: np.ndarray
    """[N, D]."""
    labels: np.ndarray
    """[N]."""
    fit: np.ndarray
    """[N] booleans: items of classes that are fitted to."""
    queries: np.ndarray
    """[Q] rows."""
    gallery: np.ndarray
    """[G] rows."""
    asked: np.ndarray
    """[N] booleans: which fitted items are as queries are; they are searched for among the others."""
    measured: np.ndarray
    """[N, M], what is known of items beside their embeddings; the first is better where it is greater."""
    reference: np.ndarray
    """[N, D]: the mean of other items of each item's class, which are in no search."""


def held_out(labels: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """The rows of the classes that `peaccel fit-head` holds out: its first quarter."""
    known = np.unique(labels[fit])
    return np.flatnonzero(np.isin(labels, known[: -(-len(known) // 4)]) & fit)


# ---- measures --------------------------------------------------------------------------------------------------------


class Search(NamedTuple):
    """The best item of each query: whether it is right, and its score."""

    right: np.ndarray
    score: np.ndarray


def search(d: Any, x: Case, score: Any, rows: np.ndarray | None = None) -> Search:
    """The queries' best items; or those of the fitted queries among `rows` of fitted classes."""
    queries, gallery = (x.queries, x.gallery) if rows is None else (rows[x.asked[rows]], rows[~x.asked[rows]])
    found = pe.search(d[queries], d[gallery], 1, score)
    right = x.labels[gallery][found.ids[:, 0]] == x.labels[queries]
    return Search(right, np.clip(np.asarray(found.scores[:, 0], np.float64), -1e300, 1e300))


def sure(d: Any, rows: np.ndarray) -> np.ndarray:
    """The confidence of items, of a head."""
    return np.asarray(pe.confidence(d[rows]), np.float64)


def by_pairs(d: Any, x: Case, pairs: np.ndarray, score: Any) -> np.ndarray:
    """Scores of pairs of a query and a gallery item."""
    found = pe.paired(d[x.queries[pairs[:, 0]]], d[x.gallery[pairs[:, 1]]], score)
    return np.clip(np.asarray(found, np.float64), -1e300, 1e300)


def heads(x: Case) -> dict[str, Any]:
    """The items with the uncertainty of each head, by its method."""
    return {method: learned(method, x.features, x.labels, x.fit, None) for method in HEADS}


def claims(x: Case, d: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each claim's number and text, and the difference that it is of by the heads, as a share of 1."""
    held = held_out(x.labels, x.fit)
    pairs, same = verification_pairs(x.labels[x.queries], x.labels[x.gallery], 0, different=DIFFERENT)
    points = pe.Point(x.features.astype(np.float32))
    best = search(points, x, "cosine")
    plain = by_pairs(points, x, pairs, "cosine")
    pfe = d["pfe"]
    calibrated, llr = by_llr(pfe, x, held)
    by = {"mls": search(pfe, x, "mls"), "llr": search(calibrated, x, llr)}
    of_pairs = {"mls": by_pairs(pfe, x, pairs, "mls"), "llr": by_pairs(calibrated, x, pairs, llr)}

    def tar(scores: np.ndarray) -> float:
        return float(pe.metrics.tar_at_far(scores, same, FAR, resamples=1).tar)

    def auroc(confidence: np.ndarray, of: Search = best) -> float:
        return float(pe.metrics.r_auroc(of.right, confidence))

    yield "2: Recall@1, `mls` less cosine", by["mls"].right.mean() - best.right.mean()
    quality = [pe.metrics.spearman(x.measured[x.queries, 0], sure(d[m], x.queries)) for m in ("pfe", "dul_reg", "scf")]
    yield "5: Spearman of confidence and quality", float(np.mean(quality))
    ceda = []
    for method in ("pfe", "dul_reg", "scf"):
        of_held = search(points, x, "cosine", held)
        threshold = pe.metrics.best_threshold(sure(d[method], held[x.asked[held]]), of_held.right)
        ceda.append(pe.metrics.ceda(best.right, sure(d[method], x.queries), threshold) - best.right.mean())
    yield "6: CEDA less Recall@1, the best head", max(ceda)
    yield "7: TAR, `mls` less cosine", tar(of_pairs["mls"]) - tar(plain)
    yield "8: area of rejection by ScaleFace, less at random", rejected(d["scaleface"], x, pairs, same, plain)
    factor = d["mu_scaleface"]
    mu = pe.fit_shift(factor[held], *close(x.labels[held]))
    yield (
        "9: TAR, mu-ScaleFace less cosine",
        tar(by_pairs(factor, x, pairs, pe.scores.scale_cosine(mu=mu))) - tar(plain),
    )
    yield "15: Recall@1, `llr` less cosine", by["llr"].right.mean() - best.right.mean()
    gains = [auroc(sure(d[m], x.queries)) - auroc(best.score) for m in HEADS]
    yield "20, 21: AUROC, the best head less the best cosine", max(gains)
    yield "22: AUROC of the best `llr` less the best cosine", auroc(by["llr"].score, by["llr"]) - auroc(best.score)
    for name, scores in of_pairs.items():
        rates = [pe.metrics.equal_error_rate(x, same, resamples=1).rate for x in (scores, plain)]
        yield f"23, 24: EER, `{name}` less cosine", rates[0] - rates[1]


def by_llr(d: Any, x: Case, held: np.ndarray) -> tuple[Any, Any]:
    """The items calibrated by held-out classes, and `llr` with a prior of the fitted ones."""
    pairs, same = close(x.labels[held])
    calibrated = pe.calibrate_variance(d, held[pairs], same)(d)
    prior = pe.fit_prior(calibrated[x.fit], x.labels[x.fit])
    return calibrated, pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)


def close(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of one class, and as many of two."""
    one, other = np.triu_indices(len(labels), k=1)
    same = labels[one] == labels[other]
    different = np.random.default_rng(0).choice(np.flatnonzero(~same), int(same.sum()), replace=False)
    rows = np.r_[np.flatnonzero(same), different]
    return np.stack([one, other], 1)[rows], same[rows]


def rejected(d: Any, x: Case, pairs: np.ndarray, same: np.ndarray, scores: np.ndarray) -> float:
    """The gain of rejecting uncertain pairs over rejecting any."""
    queries, gallery = (1 / sure(d, rows) for rows in (x.queries[pairs[:, 0]], x.gallery[pairs[:, 1]]))
    orders = [pe.metrics.pair_uncertainty(queries, gallery), -pe.metrics.random_confidence(len(same), 1)]
    areas = [pe.metrics.reject_verification(scores, same, doubts, FAR).area_by_width for doubts in orders]
    return float(areas[0] - areas[1])


def learnable(x: Case, pfe: Any) -> Iterator[tuple[str, np.ndarray]]:
    """How well each confidence tells right from wrong best items by cosine, and follows the distance to the class.

    The oracle is that distance itself, to the mean of items that are in no search. The ridge regression is fitted to
    it, of the embeddings and of what is measured: what can be read from an item alone.
    """
    from sklearn.linear_model import RidgeCV

    points = pe.Point(x.features.astype(np.float32))
    best = search(points, x, "cosine")
    apart = np.log(((x.features - x.reference) ** 2).sum(1) + 1e-12)
    both = np.concatenate([x.features, standard(x.measured, x.fit)], 1)
    ridge = RidgeCV(np.logspace(-2, 4, 13)).fit(both[x.fit], apart[x.fit])
    of_held = search(points, x, "cosine", np.flatnonzero(x.fit))
    rows = np.flatnonzero(x.fit & x.asked)
    fitted: Any = pe.fit_match_probability(of_held.score, of_held.right, *x.measured[rows].T)
    found = {
        "best cosine": best.score,
        "best cosine and what is measured": fitted(best.score, *x.measured[x.queries].T),
        "what is measured": x.measured[x.queries, 0],
        "head": sure(pfe, x.queries),
        "head, what is measured": sure(learned("pfe", x.features, x.labels, x.fit, x.measured), x.queries),
        "ridge regression of the distance": -ridge.predict(both[x.queries]),
        "oracle": -apart[x.queries],
    }
    for name, values in found.items():
        follows = pe.metrics.spearman(-apart[x.queries], values)
        yield name, np.array([pe.metrics.r_auroc(best.right, values), follows])


def standard(x: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """In deviations from the mean of fitted items."""
    found: np.ndarray = (x - x[fit].mean(0)) / x[fit].std(0)
    return found


# ---- cases -----------------------------------------------------------------------------------------------------------


QUERIES, OTHERS = "summary", ("German", "French")
"""The side of texts that is asked for in English, and those whose mean is the reference."""


def of_texts(name: str, seed: int) -> Case:
    """Summaries in English descriptions: an item is either, its class a package."""
    *_, split = texts.splits(seed + 1)
    x, said = texts.embedded(name), texts.lengths()
    sides = {side: texts.sides(x, side, split).centred() for side in texts.QUERIES}
    asked, count, answered = sides[QUERIES], len(split.fitted), len(split.answered)
    parts = (  # items, their packages, their side, and the reference of each
        (asked.of_gallery, split.fitted, "English"),
        (asked.of_queries, split.fitted, QUERIES),
        (asked.gallery, split.gallery, "English"),
        (asked.queries[:answered], split.answered, QUERIES),
    )
    features, packages = ([part[i] for part in parts] for i in (0, 1))
    of_fitted = np.mean([sides[side].of_queries for side in OTHERS], 0)
    of_answered = np.mean([sides[side].queries[:answered] for side in OTHERS], 0)
    none = np.zeros((len(split.gallery) - answered, of_fitted.shape[1]))
    place = np.arange(sum(map(len, packages)))
    words = np.concatenate([said[side][rows] for _, rows, side in parts])
    return Case(
        np.concatenate(features),
        np.concatenate(packages),
        place < 2 * count,
        place[len(place) - answered :],
        place[2 * count : len(place) - answered],
        (place >= count) & (place < 2 * count),
        np.stack([np.log(words), agreement(split)], 1),
        np.concatenate([of_fitted, of_fitted, of_answered, none, of_answered]),
    )


def agreement(split: texts.Split) -> np.ndarray:
    """How alike all encoders see an item: the correlation of its cosines with the fitted items of the other side."""
    seen = []
    for name in texts.ENCODERS:
        x = texts.sides(texts.embedded(name), QUERIES, split).centred()
        asked = x.queries[: len(split.answered)]
        cosines = [x.of_gallery @ x.of_queries.T, x.of_queries @ x.of_gallery.T]
        cosines += [x.gallery @ x.of_queries.T, asked @ x.of_gallery.T]
        every = np.concatenate(cosines)
        seen.append((every - every.mean(1, keepdims=True)) / every.std(1, keepdims=True))
    found: np.ndarray = (seen[0] * seen[1]).mean(1)
    return found


def of_speakers(seed: int) -> Case:
    """Utterances of voices: of each voice tested seven are searched for among seven, and six are the reference."""
    x = speakers.speech()
    *_, fit = speakers.splits(x.voices, seed + 1)
    rng = np.random.default_rng(seed)
    place = np.concatenate([rng.permutation(speakers.UTTERANCES) for _ in np.unique(x.voices)])
    centred = x.embeddings - x.embeddings[fit].mean(0)
    reference = np.empty_like(centred)
    for voice in np.unique(x.voices):
        of = x.voices == voice
        reference[of] = centred[of & (place >= 14)].mean(0)
    rows = np.arange(len(fit))
    asked = place < 7
    return Case(
        centred,
        x.voices,
        fit & (place < 14),
        rows[~fit & asked],
        rows[~fit & ~asked & (place < 14)],
        fit & asked,
        np.stack([np.log(x.seconds), x.snr], 1),
        reference,
    )


# ---- tables ----------------------------------------------------------------------------------------------------------

SPLITS = 20
LEARNABLE = ("AUROC", "Spearman with the distance")


def run(name: str, split: int, x: Case) -> dict[str, Any]:
    """The line of one split of embeddings."""
    d = heads(x)
    return {
        "embeddings": name,
        "split": split,
        "learnable": {key: [round(float(v), 5) for v in found] for key, found in learnable(x, d["pfe"])},
        "claims": {key: round(100 * float(found), 3) for key, found in claims(x, d)},
    }


def finished() -> list[dict[str, Any]]:
    """The lines of results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def tables() -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Names, headers and rows of the tables, from the file of results."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for x in sorted(finished(), key=lambda x: (x["embeddings"] == "speakers", x["embeddings"], x["split"])):
        runs.setdefault(x["embeddings"], []).append(x)
    rows = [
        (name, f"{len(splits)}", *row)
        for name, splits in runs.items()
        for row in speakers.table([{k: np.array(v) for k, v in x["learnable"].items()} for x in splits], LEARNABLE)
    ]
    yield "real_learnable", ("Embeddings", "Splits", "Confidence", *LEARNABLE), rows
    found = [[{k: np.array([v]) for k, v in x["claims"].items()} for x in splits] for splits in runs.values()]
    columns = [{name: cell for name, cell in speakers.table(splits, ("points",))} for splits in found]
    yield "real_claims", ("Claim, in points", *runs), [(k, *(c[k] for c in columns)) for k in columns[0]]


def main() -> int:
    """Run what is missing, split after split, and write the tables."""
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[int], Case]] = {f"texts, {name}": partial(of_texts, name) for name in texts.ENCODERS}
    if speakers.CACHE.exists():
        cases["speakers"] = of_speakers
    done = {(x["embeddings"], x["split"]) for x in finished()}
    for split in range(SPLITS):
        for name, build in cases.items():
            if (name, split) not in done:
                with RESULTS.open("a") as lines:
                    lines.write(json.dumps(run(name, split, build(split)), separators=(",", ":")) + "\n")
    for name, header, rows in tables():
        speakers.write(name, header, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
