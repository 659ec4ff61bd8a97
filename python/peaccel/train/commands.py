"""The commands that train: `peaccel methods`, `train`, `fit-head`, `embed`, `tune`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
import tyro
from accelerate import PartialState
from numpy.typing import NDArray

from peaccel import backbones, config, io, methods
from peaccel.data.features import features
from peaccel.data.images import ImageRows, crop_sizes
from peaccel.files import aside, check_output
from peaccel.methods.records import Method
from peaccel.train import tuning
from peaccel.train.captioned import captioned_numbers
from peaccel.train.embedding import apply, embed, tensors
from peaccel.train.recipes import RECIPES, recipe
from peaccel.train.runs import Job, Result, Run, Trained, input_of, load, resumed
from peaccel.train.runs import train as train_row
from peaccel.train.sources import CAPTIONED, DIGITS, Items, digits_settings, open_captions, open_items

__all__ = ["COMMANDS", "HEADS"]

Head = Literal["pfe", "llr_nce", "scaleface", "dul_reg", "scf", "mls_nce", "vmf_nce", "mu_scaleface"]

HEADS: tuple[str, ...] = get_args(Head)
"""Rows of the table that can learn an uncertainty alone, on given means: their recipes have settings for features."""

SHORT = (tyro.conf.FlagCreatePairsOff,)
"""The form of a flag that changes something: --quick, without --no-quick beside it."""


def print_methods(arguments: Sequence[str]) -> None:
    """Print the methods that there are, from their files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    tyro.cli(Nothing, prog="peaccel methods", description=print_methods.__doc__, args=arguments)
    rows: dict[str, list[str]] = {}
    for row in RECIPES:
        rows.setdefault(recipe(row, "")[0].name, []).append(row)
    papers: dict[str, list[Method]] = {}
    for method in methods.table():
        papers.setdefault(method.paper, []).append(method)
    console = Console()
    for paper, of_paper in papers.items():
        console.print(f"\n{paper}", markup=False, highlight=False, style="bold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        for header, width in (("method, rows", 20), ("distribution", 12), ("loss", None), ("score, confidence", 18)):
            table.add_column(header, min_width=width, ratio=None if width else 1, overflow="fold")
        for m in of_paper:
            named = "\n".join(dict.fromkeys([m.name, *rows[m.name]]))
            loss = f"{m.loss} (draws)" if m.sampling else m.loss
            table.add_row(named, m.distribution, loss, f"{m.score}\n{m.confidence}")
        console.print(table, markup=False)


@dataclass(frozen=True)
class Nothing:
    """A command without options."""


def train(arguments: Sequence[str]) -> None:
    """Train a method by its recipe; 'peaccel train METHOD --help' lists its settings."""
    name, rest = _row("train", train, arguments)
    _, method, settings, run = _parse(Nothing, "train", name, rest, Run(out=Path("runs") / name))
    _tell(train_row(name, method, settings, run), run.out)


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """The files that a head is fitted to."""

    features: Annotated[Path, tyro.conf.Positional]
    """The means, [N, D] float in an .npy file, or .npz with the keys features and labels."""
    labels: Path | None = None
    """[N], integers or words, in an .npy file."""
    method: Head = "pfe"
    """The method that learns the uncertainty: pfe, calibrated afterwards, did best on validation classes
    (docs/choosing-a-score.md)."""


def fit_head(arguments: Sequence[str]) -> None:
    """Learn an uncertainty for embeddings that you have, from labels: seconds to minutes on a CPU.

    A quarter of the classes is held out, by whose MAP@R the best epoch is chosen. 'peaccel embed --run OUT --features
    FILE' then gives your embeddings their uncertainty.
    """
    name = _option(arguments, "--method") or HeadFiles.method
    if name not in HEADS:
        raise ValueError(f"method is {name!r}, expected one of {', '.join(HEADS)}")
    start = Run(data="features", out=Path("runs/head"), device="cpu")
    files, method, settings, run = _parse(HeadFiles, "fit-head", name, arguments, start, Job)
    found = features(files.features, files.labels)
    parts = {part: Items(torch.from_numpy(x.features), x.labels) for part, x in found.items()}
    _tell(train_row(name, method, settings, run, parts), run.out)


@dataclass(frozen=True, kw_only=True)
class Embed:
    """What to embed, by which model, and where the result goes."""

    out: Path
    """The file to write, with --hidden the folder. With --run a distribution, .npz or .safetensors, as 'peaccel search'
    takes it;
    with --backbone features and labels, .npz, as 'peaccel fit-head' takes it, or, of images with captions, features of
    both, as 'peaccel train text_to_image --data caption-features' takes a folder of them."""
    run: Path | None = None
    """The folder of a trained model; exactly one of this and --backbone."""
    backbone: str | None = None
    """A name of peaccel.backbones or timm; for images with captions clip_image:MODEL, whose text tower reads them."""
    weights: Path | None = None
    """Weights of the backbone: a .safetensors file, or a state dict of torch.save."""
    features: Path | None = None
    """With --run of a head: the means, [N, D] float in an .npy file, instead of a data set."""
    data: str | None = None
    """A data set, as 'peaccel train' takes it; with --run that of the run unless given."""
    root: Path | None = None
    """The folder of the data set, or its file."""
    part: str = "test"
    """train, validation, test, query or gallery, as far as the data set has them."""
    seed: int | None = None
    """With mnist and digits8, the seed that deals numbers to parts."""
    quick: bool = False
    """With mnist and digits8, take few items."""
    side: Literal["images", "captions"] = "images"
    """Which side to embed, with a model that embeds images and captions."""
    labels: Path | None = None
    """Also write the labels, [N] integers, to this .npy file."""
    crops: Literal["paper", "published"] | None = None
    """With images in files, cut a square out of the middle of each, its side drawn evenly from 0.5 (paper) or 0.25
    (published) to 1 of the image's shorter one."""
    quality: Path | None = None
    """Also write the quality of each image, [N] floats, higher = better, to this .npy file, as 'peaccel evaluate' takes
    it: sizes of --crops; of mnist and digits8 1 less the severity of corruption."""
    hidden: float | None = None
    """With --run of mnist or digits8: write features of images and of captions that tell their digits, each left open
    with this probability, as 'peaccel train text_to_image --data caption-features' takes a folder of them, and which
    images each caption describes, PART-relevance.npy, as 'peaccel evaluate --relevance' takes it."""


def run_embed(arguments: Sequence[str]) -> None:
    """Embed a data set by a trained model or a backbone, into a file."""
    task = tyro.cli(Embed, prog="peaccel embed", description=run_embed.__doc__, args=arguments, config=SHORT)
    if (task.run is None) == (task.backbone is None):
        raise ValueError("expected exactly one of --run and --backbone")
    if task.hidden is not None:
        _write_captioned(task, task.hidden)
        return
    inputs = [path for path in (task.weights, task.features) if path is not None]
    check_output(task.out, [".npz", ".safetensors"] if task.run else [".npz"], inputs)
    if task.labels is not None:
        check_output(task.labels, [".npy"], [*inputs, task.out])
    if task.quality is not None:
        check_output(task.quality, [".npy"], [*inputs, task.out])
    quality = None
    if task.run is None:
        assert task.backbone is not None
        if task.features is not None or task.data is None:
            raise ValueError("--backbone embeds images: expected --data, and no --features")
        found, quality = _features(task, task.data, task.backbone)
        with aside(task.out) as fresh:
            np.savez(fresh, allow_pickle=False, **found)
        labels = found["image" if "image" in found else "labels"]
        shapes = ", ".join(f"{name} {x.shape}" for name, x in found.items())
    else:
        trained = load(task.run)
        items = _items(task, trained)
        quality = _quality(task, items)
        d = embed(trained.model, items.data)
        d = d[task.side == "captions"] if isinstance(d, tuple) else d
        io.write_distribution(task.out, d)
        labels = items.labels
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip(d._names, d.arrays, strict=True))
    if task.labels is not None:
        with aside(task.labels) as fresh:
            np.save(fresh, labels)
    if task.quality is not None and quality is not None:
        with aside(task.quality) as fresh:
            np.save(fresh, quality)
    print(f"{shapes} -> {task.out}")


def tune(arguments: Sequence[str]) -> None:
    """Search a method's settings with Optuna by MAP@R on validation classes; goes on where it was stopped."""
    name, rest = _row("tune", tune, arguments)
    search, _, settings, run = _parse(tuning.Search, "tune", name, rest, Run(out=Path(f"runs/tune-{name}")))
    best = tuning.tune(name, settings, run, search)
    reached = f"best MAP@R on validation {100 * best.value:.2f} %, of {best.trials} trials"
    print(f"{name} on {run.data}: {reached} -> {run.out / 'best.toml'}")
    print(" ".join([f"peaccel train {name}", *(f"--{key} {value:.4g}" for key, value in best.settings.items())]))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "methods": print_methods,
    "train": train,
    "fit-head": fit_head,
    "embed": run_embed,
    "tune": tune,
}


def _row(name: str, command: Callable[..., None], arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The row of the table that a command names first, and the other arguments."""
    if arguments and arguments[0] in ("-h", "--help"):
        rows = textwrap.fill(", ".join(RECIPES), 78, initial_indent="  ", subsequent_indent="  ")
        about = inspect.getdoc(command)
        print(f"usage: peaccel {name} METHOD [OPTIONS]\n\n{about}\n\nMETHOD is one of\n{rows}")
        raise SystemExit(0)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(f"the method is missing: 'peaccel {name} METHOD'; see 'peaccel methods'")
    return arguments[0], arguments[1:]


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option on which others depend."""
    for i, word in enumerate(arguments):
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
        if word == name and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _parse(
    own: type[Any], command: str, name: str, arguments: Sequence[str], run: Run, options: type[Job] = Run
) -> tuple[Any, Method, Any, Run]:
    """A command's own options, the method, its settings, and the run.

    Settings are those of the recipe for the data, or of the run that is resumed, with what is given over them.
    """
    method, settings = recipe(name, _option(arguments, "--data") or run.data)
    out = Path(_option(arguments, "--out") or run.out)
    again = "--resume" in arguments and (out / "run.json").exists()
    if again:
        settings, run = resumed(out, name)
    flat = tyro.conf.arg(name="")
    kinds = make_dataclass(
        "Arguments",
        [
            ("own", Annotated[own, flat]),
            ("run", Annotated[options, flat], field(default=options(**_of(options, run)))),
            ("settings", Annotated[method.settings, flat], field(default=settings)),
        ],
    )
    about = f"{inspect.getdoc(COMMANDS[command])}\n\n{name}: {method.paper}"
    prog = f"peaccel {command}" + (f" {name}" if own is not HeadFiles else "")
    parsed: Any = tyro.cli(kinds, prog=prog, description=about, args=arguments, config=() if again else SHORT)
    # Settings are read again as a mapping, which checks ranges that tyro does not know.
    return (
        config.from_mapping(vars(parsed.own), own, name),
        method,
        config.from_mapping(asdict(parsed.settings), method.settings, name),
        config.from_mapping({**vars(run), **vars(parsed.run)}, Run, name),
    )


def _of(options: type[Job], run: Run) -> dict[str, Any]:
    return {f.name: getattr(run, f.name) for f in fields(options)}


def _items(task: Embed, trained: Trained) -> Items:
    """The items that a trained model embeds."""
    run = trained.run
    if task.features is not None:
        if run.data != "features":
            raise ValueError(f"{task.run}: was trained on {run.data}, expected a head on features with --features")
        mu = io.read_distribution(task.features).mu
        if mu.shape[1] != trained.features:
            raise ValueError(f"{task.features}: has {mu.shape[1]} dimensions, expected {trained.features}")
        return Items(torch.from_numpy(mu.astype(np.float32)), np.empty(0, np.int64))
    data = task.data or run.data
    root = task.root or (run.root if data == run.data else None)
    seed = run.seed if task.seed is None else task.seed
    return _part(task, data, root, seed, task.quick or run.quick, input_of(trained.model))


def _features(task: Embed, data: str, name: str) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
    """What a backbone makes of images, with their labels, and their quality where it is known; of images with captions,
    what both towers make of them."""
    side, _, model = name.partition(":")
    if data in CAPTIONED and side != "clip_image":
        raise ValueError(f"--backbone is {name}, expected clip_image:MODEL: {data} has captions")
    backbone = backbones.create(name, weights=task.weights)
    if data not in CAPTIONED:
        items = _part(task, data, task.root, task.seed or 0, task.quick, input_of(backbone))
        quality = _quality(task, items)
        return {"features": np.asarray(tensors(apply(backbone, items.data))), "labels": items.labels}, quality
    images, captions, image = open_captions(data, task.root, task.part, input_of(backbone))
    text = backbones.create(f"clip_text:{model}", weights=task.weights)
    assert isinstance(text.input, backbones.TextInput)
    found = {"images": apply(backbone, images), "captions": apply(text, text.input.tokenize(list(captions)))}
    return {**{key: np.asarray(tensors(x)) for key, x in found.items()}, "image": image}, None


def _quality(task: Embed, items: Items) -> NDArray[Any] | None:
    """The quality of items, which must be known where it is to be written."""
    if task.quality is not None and items.quality is None:
        raise ValueError("--quality needs --crops, or data of which quality is known: mnist or digits8")
    return items.quality


def _write_captioned(task: Embed, hidden: float) -> None:
    """Numbers and their captions as features, a file for each part."""
    trained = None if task.run is None else load(task.run)
    if trained is None or trained.run.data not in DIGITS:
        raise ValueError(f"--hidden needs --run of a model trained on {' or '.join(DIGITS)}")
    if not 0 <= hidden <= 1:
        raise ValueError(f"--hidden is {hidden:g}, expected a probability")
    task.out.mkdir(parents=True, exist_ok=True)
    run = trained.run
    seed = run.seed if task.seed is None else task.seed
    found = captioned_numbers(trained.model, run.data, digits_settings(task.quick or run.quick), seed, hidden)
    for part, x in found.items():
        with aside(check_output(task.out / f"{part}.npz")) as fresh:
            np.savez(fresh, allow_pickle=False, **{name: x[name] for name in ("images", "captions", "image")})
        with aside(check_output(task.out / f"{part}-relevance.npy")) as fresh:
            np.save(fresh, x["relevance"])
        print(f"images {x['images'].shape}, captions {x['captions'].shape} -> {task.out / part}.npz")


def _part(task: Embed, data: str, root: Path | None, seed: int, quick: bool, expected: Any) -> Items:
    parts = open_items(data, root, seed, expected, quick)
    if task.part not in parts:
        raise ValueError(f"{data} has no part {task.part!r}, expected one of {', '.join(parts)}")
    items = parts[task.part]
    if task.crops is None:
        return items
    if not isinstance(items.data, ImageRows):
        raise ValueError(f"--crops is of images in files, which {data} has not")
    sizes = crop_sizes(len(items), seed, None if task.crops == "paper" else "published")
    return replace(items, data=replace(items.data, sizes=sizes), quality=sizes)


def _tell(result: Result, out: Path) -> None:
    if not PartialState().is_main_process:
        return
    line = f"Recall@1 {100 * result.recall_at_1:.2f} %, MAP@R {100 * result.map_at_r:.2f} % ({result.part})"
    if result.confidence_and_severity is not None:
        line += f", Spearman of confidence and severity {result.confidence_and_severity:.2f}"
    print(f"{result.method} on {result.data}, seed {result.seed}: {line}, {result.seconds:.0f} s -> {out}")
