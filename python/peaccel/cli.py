"""The command ``peaccel``: demo, methods, train, fit-head, embed, tune, evaluate, choose-score, reproduce, search,
rerank, info, scores.

An error of the user's is one line on stderr and exit code 2; Ctrl-C exits 130 without a word.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

import numpy as np

import peaccel as pe
from peaccel import indexes, io, options
from peaccel.distributions import Distribution
from peaccel.fits import Calibration, Prior
from peaccel.scores import Score

__all__ = ["main"]

DESCRIPTION = """Score, search and rerank probabilistic embeddings. 'peaccel COMMAND --help' says more, files included;
'peaccel --version' says which this is."""

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
F = TypeVar("F", Prior, Calibration)

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, FloatingPointError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; ``arguments`` are those of the process unless given."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["peaccel", *arguments[:1]])
    if list(arguments) == ["--version"]:
        print(f"peaccel {pe.__version__}")
        return
    try:
        import rich  # noqa: F401  (found missing here, not after the work is done)
        import tyro
    except ImportError:
        _fail(command, "the command line needs tyro and rich: pip install peaccel[cli]")
    try:
        if arguments[:1] == ["demo"]:
            _run_demo(arguments[1:])
        elif arguments and arguments[0] in TRAINING:
            _run_training("peaccel.train.commands", arguments[0], arguments[1:])
        elif arguments and arguments[0] in REPRODUCTION:
            _run_training("peaccel.reproduction.commands", arguments[0], arguments[1:])
        elif arguments and arguments[0] in EVALUATION:
            from peaccel.evaluation.commands import COMMANDS

            COMMANDS[arguments[0]](arguments[1:])
        else:
            commands: dict[str, Callable[..., None]] = {
                "demo": demo,
                **{
                    name: _stands_for(sentence) for name, sentence in {**TRAINING, **EVALUATION, **REPRODUCTION}.items()
                },
                "search": search,
                "rerank": rerank,
                "info": info,
                "scores": scores,
            }
            with options.without_none():
                tyro.extras.subcommand_cli_from_dict(
                    commands,
                    prog="peaccel",
                    description=DESCRIPTION,
                    args=arguments,
                    config=(tyro.conf.OmitArgPrefixes,),  # --gallery, not --task.gallery
                )
    except USER_ERRORS as error:
        _fail(command, _one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


def demo() -> None:
    """Train on images of digits, search with FAISS, rerank by uncertainty, and print what that gains or loses."""
    # 'peaccel --help' uses only its sentence; its options are in peaccel.demo, which imports torch.


# 'peaccel --help' uses only their sentences; the commands are in peaccel.train, which imports torch.
TRAINING = {
    "methods": "Print the methods that there are, from their files.",
    "train": "Train a method by its recipe; 'peaccel train METHOD --help' lists its settings.",
    "fit-head": "Learn an uncertainty for embeddings that you have, from labels.",
    "embed": "Embed a data set by a trained model or a backbone, into a file.",
    "tune": "Search a method's settings with Optuna.",
}

EVALUATION = {
    "evaluate": "Evaluate embeddings: retrieval, verification, and what their confidence is worth.",
    "choose-score": "Rank all scores on embeddings with labels, and say which to use.",
}

REPRODUCTION = {
    "reproduce": "Train and measure the papers' methods on small images, and say which of their claims hold."
}


def _stands_for(sentence: str) -> Callable[[], None]:
    def command() -> None: ...

    command.__doc__ = sentence
    return command


def _run_training(module: str, name: str, arguments: Sequence[str]) -> None:
    try:
        commands = import_module(module).COMMANDS
    except ModuleNotFoundError as error:
        extra = "tune" if error.name == "optuna" else "train"
        raise ImportError(f"{name} needs {error.name}: pip install peaccel[{extra}]") from None
    commands[name](arguments)


def _run_demo(arguments: Sequence[str]) -> None:
    try:
        from peaccel.demo import DemoSettings, run
    except ModuleNotFoundError as error:
        raise ImportError(f"the demo needs {error.name}: pip install peaccel[all]") from None
    run(options.parse(DemoSettings, "peaccel demo", demo.__doc__, arguments))


# -- rankings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to search, by what, and where the ranking goes."""

    gallery: Path
    """The gallery, G items in D dimensions. An .npz or .safetensors file with the keys
    mu: float [G, D]; and at most one of
    var: float [G] or [G, D], VARIANCE, neither sigma nor its logarithm;
    kappa: float [G] or [G, D], concentrations, where rows of mu have length 1;
    scale: float [G], where rows of mu have length 1.
    Or an .npy file with an array [G, D], which has no uncertainty.
    Float is float16, float32 or float64, the same for all keys; .safetensors may hold bfloat16 too."""
    queries: Path
    """The queries, Q items in D dimensions, in a file of the same form."""
    out: Path
    """The ranking to write, best first. .npz or .safetensors, with the keys
    scores: float [Q, k], padded with -inf;
    ids: int64 [Q, k], rows of the gallery, or their --ids, padded with -1.
    Or .json, the same as lists, with null for scores that are not finite;
    or .csv, a line query,rank,id,score for each item found, ranks from 1."""
    k: int = 10
    """How many to keep for each query, at least 1."""
    score: str = "mls"
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5"."""
    prior: Path | None = None
    """The prior of score llr: what pe.fit_prior found, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """What pe.calibrate found, as pe.io.write_fit writes it; applied to gallery and queries."""
    gallery_calibration: Path | None = None
    """The gallery's, where pe.calibrate(queries, gallery, ...) found two; --calibration is then the queries'."""
    ids: Path | None = None
    """The ids by which the rows of the gallery are known elsewhere, int [G], none negative, none twice:
    an .npy file, or .npz or .safetensors with the key ids."""

    def check_output(self) -> None:
        """Refuse an output that cannot be written, or that is one of the other files."""
        files = [value for name, value in vars(self).items() if name != "out" and isinstance(value, Path)]
        io.check_output(self.out, io.RANKINGS, files)


@dataclass(frozen=True, kw_only=True)
class Rerank(Search):
    """What to rerank, by what, and where the ranking goes."""

    candidates: Path | None = None
    """Rows of the gallery to choose from, or their --ids, int [Q, K], -1 for none:
    an .npy file, or .npz or .safetensors with the key candidates.
    Exactly one of this and --index is needed."""
    index: Path | None = None
    """A FAISS index of the rows of the gallery, in their order, as faiss.write_index writes it;
    with --ids, one that returns these."""
    index_features: Literal["mu", "unit", "surrogate"] = "mu"
    """With --index: what it holds of the gallery, and is asked with. mu: means; unit: means scaled to length 1;
    surrogate: pe.first_stage_features(gallery, score), by inner product."""
    shortlist: int = 100
    """With --index: how many candidates to ask of it for each query."""


def search(task: Search) -> None:
    """Search the whole gallery for the exact best by a score that knows uncertainty."""
    task.check_output()
    inputs = _read(task)
    start = perf_counter()
    scores, rows = pe.search(inputs.queries, inputs.gallery, task.k, inputs.score)
    _write(task, inputs, (scores, inputs.named(rows)), perf_counter() - start)


def rerank(task: Rerank) -> None:
    """Rerank candidates, given or found by a FAISS index, by a score that knows uncertainty."""
    if (task.candidates is None) == (task.index is None):
        raise ValueError("expected exactly one of --candidates and --index")
    task.check_output()
    if task.candidates is not None:
        candidates = io.read_candidates(task.candidates)
        inputs = _read(task)
        start = perf_counter()
        chosen = inputs.rows(candidates, task.candidates)
        scores, rows = pe.rerank(inputs.queries, inputs.gallery, chosen, task.k, inputs.score)
        ranking = scores, inputs.named(rows)
    else:
        index = indexes.read(str(task.index))
        inputs = _read(task)
        start = perf_counter()
        reranker = pe.FaissReranker(index, inputs.gallery, inputs.score, inputs.ids, task.index_features)
        ranking = reranker.search(inputs.queries, task.k, task.shortlist)
    _write(task, inputs, ranking, perf_counter() - start)


@dataclass(frozen=True)
class _Inputs:
    """The contents of a task's files."""

    gallery: Distribution
    queries: Distribution
    score: Score
    ids: Ints | None

    def named(self, rows: Ints) -> Ints:
        """The ids of rows of the gallery; -1 for -1."""
        return rows if self.ids is None else np.append(self.ids, -1)[rows]

    def rows(self, candidates: Ints, path: Path) -> Ints:
        """The rows of candidates, -1 for -1."""
        if self.ids is None:
            return candidates
        order = np.argsort(self.ids)
        rows = np.append(order, -1)[np.searchsorted(self.ids, candidates, sorter=order)]
        rows = np.where(self.named(rows) == candidates, rows, -1)
        unknown = candidates[(rows < 0) & (candidates >= 0)]
        if len(unknown):
            raise ValueError(f"{path}: candidates holds {unknown[0]}, which --ids lacks")
        return rows


def _read(task: Search) -> _Inputs:
    score = pe.scores.get(task.score)
    if task.prior is not None:
        prior = _read_fit(task.prior, Prior)
        if score.params.get("prior_var", 0) is not None:
            raise ValueError(f"--prior is for score llr without a prior of its own, got score {score.label}")
        score = score(prior_mean=prior.mean, prior_var=prior.var)
    calibrations = _read_calibrations(task)
    ids = None if task.ids is None else io.read_ids(task.ids)
    sides = []
    for path, calibrate in zip((task.queries, task.gallery), calibrations, strict=True):
        d = io.read_distribution(path)
        try:
            sides.append(d if calibrate is None else calibrate(d))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None
    queries, gallery = sides
    if ids is not None and len(ids) != len(gallery):
        raise ValueError(f"{task.ids}: ids holds {len(ids)} ids, expected {len(gallery)}, one for each row of gallery")
    return _Inputs(gallery, queries, score, ids)


def _read_calibrations(task: Search) -> tuple[Calibration | None, Calibration | None]:
    """The calibrations of queries and of gallery."""
    if task.calibration is None:
        if task.gallery_calibration is not None:
            raise ValueError("--gallery-calibration is given without --calibration, which is of the queries then")
        return None, None
    queries = _read_fit(task.calibration, Calibration)
    if task.gallery_calibration is not None:
        return queries, _read_fit(task.gallery_calibration, Calibration)
    if queries.mean:
        raise ValueError(f"{task.calibration}: is of one side of two, expected --gallery-calibration too")
    return queries, queries


def _read_fit(path: Path, kind: type[F]) -> F:
    fit = io.read_fit(path)
    if not isinstance(fit, kind):
        found = "shift" if isinstance(fit, float) else type(fit).__name__.lower()
        raise ValueError(f"{path}: is a {found}, expected a {kind.__name__.lower()}")
    return fit


def _write(task: Search, inputs: _Inputs, ranking: tuple[Any, Any], seconds: float) -> None:
    io.write_ranking(task.out, ranking)
    size = f"{len(inputs.queries)} queries, gallery {len(inputs.gallery)} x {inputs.gallery.dim}"
    print(f"{inputs.score.label}: {size}, top {task.k} in {seconds:.3f} s -> {task.out}")


# -- what there is -----------------------------------------------------------------------------------------------------


def info() -> None:
    """Print what this build can do here: version, SIMD path, threads, CUDA or why not, and versions of libraries."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "faiss-cpu", "faiss-gpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    rows = {**pe.build_info(), **versions}.items()
    _print_table((), ([key.replace("_", " "), str(value)] for key, value in rows))


def scores(name: str | None = None, /) -> None:
    """Print the scores, their parameters and the kinds of distributions they take; or all about one.

    Parameters
    ----------
    name : str
        The one to print whole.
    """
    if name is None:
        _print_table(
            ("score, parameters", "what it is, kinds of queries: kinds of galleries"),
            (
                ["\n".join([s.name, *_parameters(s)]), "\n".join([_paragraphs(s)[0], *_pairs(s.pairs)])]
                for s in pe.scores.SCORES.values()
            ),
        )
        return
    score = pe.scores.get(name)
    blocks = [score.name, *_paragraphs(score)]
    if score.params:
        blocks.append("\n  ".join(["parameters", *_parameters(score)]))
    blocks.append("\n  ".join(["kinds of queries: kinds of galleries", *_pairs(score.pairs)]))
    print("\n\n".join(blocks))


def _paragraphs(score: Score) -> list[str]:
    return inspect.cleandoc(score.doc).split("\n\n")


def _parameters(score: Score) -> list[str]:
    """A line for each parameter of a score, with its value and its other choices."""
    lines = []
    for name, value in score.params.items():
        others = [choice for choice in score.choices.get(name, ()) if choice != value]
        # A seed of None means a new one at every call; another parameter of None, that there is none.
        start = value if value is not None else "(any)" if name == "seed" else "(none)" if others else "(needed)"
        lines.append(f"{name}={' | '.join(map(str, (start, *others)))}")
    return lines


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each set of gallery kinds, after the query kinds that the score takes with exactly these."""
    galleries: dict[str, list[str]] = {}
    for query, gallery in pairs:
        galleries.setdefault(query, []).append(gallery)
    queries: dict[str, list[str]] = {}
    for query, kinds in galleries.items():
        queries.setdefault(", ".join(kinds), []).append(query)
    return [f"{', '.join(names)}: {kinds}" for kinds, names in queries.items()]


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, show_header=bool(header), show_lines=bool(header))
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


# -- errors ------------------------------------------------------------------------------------------------------------


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def _fail(command: str, message: str) -> NoReturn:
    print(f"{command}: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
