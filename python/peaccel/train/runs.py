"""A run from settings: a recipe, a data set, a backbone and a method, trained into a folder that can be read back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
import tyro
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn

from peaccel import scores
from peaccel._core import __version__
from peaccel._utils import config
from peaccel._utils.atomic_files import PathLike, aside, check_output
from peaccel._utils.progress_bar import ProgressBar
from peaccel._utils.python_files import is_file, is_function
from peaccel._utils.seeds import folded
from peaccel.data import DIGITS, TRAINED, of_features
from peaccel.heads import Covariates
from peaccel.methods.method import Method, Training, UpTo1024
from peaccel.scores import Score
from peaccel.train import backbones
from peaccel.train.batch_sampling import take
from peaccel.train.checkpoint import Checkpointer, TrainingState, check_shapes, load_tensors, save_weights
from peaccel.train.diagnostics import above_chance
from peaccel.train.embedding import embed
from peaccel.train.encoder import Encoder, check_backbone, encoder, in_place_of_backbone, input_of, shrunk
from peaccel.train.evaluation import HeldOutMetrics, check_parts, judge, map_at_r, scored, validation_rows
from peaccel.train.folder import check_folder, check_named, withdrawn
from peaccel.train.loop import Options, fit
from peaccel.train.outline import outline
from peaccel.train.progress import ConsoleLogger, NullLogger
from peaccel.train.recipes import label, load_method, method_of
from peaccel.train.resuming import check_unchanged, digest_of_file, digest_of_images, digest_of_items, remove_lines
from peaccel.train.sources import Items, list_parts, open_items, side_of

__all__ = ["Job", "Result", "Run", "Trained", "load", "resumed", "train", "versions"]


@dataclass(frozen=True, kw_only=True)
class Job(Options):
    """How a run is carried out, and where it goes."""

    out: Path = Path("runs/train")
    """The folder that receives run.json, log.jsonl, checkpoints, model.safetensors, result.json and queries.npz."""
    begin: Path | None = None
    """A model.safetensors or state.safetensors to start from: the backbone whole, and what else has the same names."""
    precision: Literal["no", "fp16", "bf16"] = "no"
    """Mixed precision of the backbone; losses stay in float32."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU where there is one."""
    tensorboard: bool = False
    """Write TensorBoard's event files as well."""
    strict: bool = False
    """End with exit code 1 where something shows that training failed."""
    threads: UpTo1024 = 0
    """Threads of torch on the CPU; 0 for as many as torch takes. The order of its sums depends on it."""

    def __post_init__(self) -> None:
        """Take paths as text too."""
        for name in ("out", "begin", "root", "weights"):
            if (path := getattr(self, name, None)) is not None:
                object.__setattr__(self, name, Path(path))


DATA = (
    f"{' or '.join(DIGITS)}, numbers composed of real scans that come inside packages; or, with --root, "
    f"{', '.join(name for name in TRAINED if name not in DIGITS)}, or the path of a Python file with a reader."
)


BACKBONE = (
    f"{', '.join(backbones.OWN)}; any network of timm (python -c 'import timm; print(timm.list_models())'), such as "
    "resnet18, densenet121 or vit_base_patch16_224; clip_image:MODEL of open_clip; or my_file.py:make, a function that "
    "makes a module from images to features. auto is small_cnn for digits and for images of at most 128 pixels, none "
    "for features, else resnet50."
)


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """Data set, backbone and settings of a training run.

    Examples
    --------
    A run on the features and labels in a file, and what goes on with it should it be stopped:

    >>> from dataclasses import replace
    >>> from pathlib import Path
    >>> from peaccel.train import Run
    >>> run = Run(data="features", root=Path("faces.npz"), out=Path("runs/faces"), device="cpu", seed=1)
    >>> again = replace(run, resume=True)
    >>> again.seed, again.resume
    (1, True)
    """

    data: Annotated[str, tyro.conf.arg(help=DATA)] = "mnist"
    root: Path | None = None
    """The folder, or the file of features, where the data set lies."""
    quick: bool = False
    """With mnist, digits8 and fashion, take few items, to see in seconds that everything runs."""
    skip_bad: bool = False
    """Leave out images that cannot be read: before the work each is decoded once, in some milliseconds."""
    backbone: Annotated[str, tyro.conf.arg(help=BACKBONE)] = "auto"
    image_size: Annotated[int, msgspec.Meta(ge=16, le=4096)] | None = None
    """Side of the square images that the backbone takes, in pixels. None: the size that it was published with, or the
    images' own where they are smaller."""
    weights: Path | None = None
    """Weights of the backbone: a .safetensors file, or a state dict as torch writes it."""
    pooling: Literal["own", "avg", "avg+max", "gem"] = "own"
    """Pooling of the backbone's last feature map."""
    frozen_bn: bool = False
    """Keep the backbone's batch normalisation as it is."""
    dropout: float = 0.0
    """Rate of dropout in the backbone."""


@dataclass(frozen=True)
class Trained:
    """A model with everything that its use needs."""

    method: Method
    training: Training
    score: Score
    """The score by which it retrieves, fitted parameters included."""
    run: Run
    """The settings of its training."""
    features: int
    """Width of the features that its heads take."""
    covariates: int = 0
    """How many of the last columns of what the model takes are covariates and no features."""

    @property
    def model(self) -> nn.Module:
        """The module that maps inputs to a distribution."""
        return self.training.model


@dataclass(frozen=True)
class Result(HeldOutMetrics):
    """The results of a run on held-out items."""

    method: str
    data: str
    seed: int
    validation: float | None
    """MAP@R of the validation part, where there is one."""
    seconds: float
    warnings: tuple[str, ...] = ()
    """Signs that training failed, a sentence each."""


def train(
    name: str,
    method: Method,
    settings: Any,
    run: Run,
    parts: dict[str, Items] | None = None,
    command: str | None = None,
) -> Result:
    """Train a row of the papers' table, and write all of it to a folder.

    Parameters
    ----------
    name
        The row, as `recipe` takes it.
    method, settings
        The results of `recipe`.
    run
        Data, backbone, devices and folder.
    parts
        The items; None opens those that `run` names.
    command
        What was said on the command line, which run.json keeps.

    Returns
    -------
    Recall@1 and MAP@R of the test part: of queries against the gallery where there are such, else of one half of each
    class against the other.

    Raises
    ------
    ValueError
        Unknown names, settings or data that do not fit, weights of another network; the folder holds a run that is not
        to be resumed, or began with other settings or data than are to be resumed.
    FileNotFoundError
        The data set or the weights are not there.
    PermissionError
        Nothing can be written in the folder.

    Examples
    --------
    Learn variances beside the features in a file; a quarter of the classes is held out:

    >>> from pathlib import Path
    >>> from peaccel.train import Run, recipe, train
    >>> rng, labels = np.random.default_rng(0), np.arange(20).repeat(4)
    >>> np.savez("items.npz", features=np.eye(20)[labels] + 0.1 * rng.normal(size=(80, 20)), labels=labels)
    >>> method, settings = recipe("pfe", "features", {"match": {"epochs": 2}})
    >>> run = Run(data="features", root=Path("items.npz"), out=Path("runs/try"), device="cpu")
    >>> result = train("pfe", method, settings, run)
    >>> result.part, result.recall_at_1, result.queries
    ('validation', 1.0, 10)
    """
    start = perf_counter()
    if run.threads:
        torch.set_num_threads(run.threads)
    accelerator = Accelerator(cpu=run.device == "cpu", mixed_precision=run.precision)
    main = accelerator.is_main_process
    began = _began(name, run) if main else None
    check_backbone(run)
    made, backbone, parts = _opened(run, parts)
    features, items = made.features, parts["train"]
    if getattr(settings, "mean", None) == "given":  # then there is no other width to be recorded
        settings = replace(settings, dim=features - items.covariates)
    classes = int(items.labels.max()) + 1
    training = method.build(backbone, features, classes, settings)
    everything = _everything(training)
    widths = {"features": features, "covariates": items.covariates, "on_features": of_features(run.data)}
    about = {"name": label(name), "method": method_of(name), "classes": classes, "items": len(items), **widths}
    kept = {"backbone": Path(made.name).name, "image_size": made.image_size}
    record = {**about, **kept, "sha256": _digests(parts, run) if main else {}}
    if began is not None:
        _check_resumed(*began, record, settings, run, training, everything)
    if run.begin is not None:
        _begin(run.begin, everything, backbone)
    _check_items(name, run.data, training.model, items)
    name = label(name)
    with withdrawn(run.out) if main else nullcontext():
        if main:
            record |= {"run": asdict(_anywhere(run)), "settings": asdict(settings)}
            _write(check_output(run.out / "run.json"), {**record, "command": command, "versions": versions()})
            print(outline(name, run, made, training, parts, accelerator.device), file=sys.stderr)
        warnings = _fit(name, method, training, parts, run, accelerator)
    _agree(everything, accelerator)
    held = parts.get("validation", items)
    with ProgressBar(f"{name}: searching among held-out items") if main else nullcontext():
        d = embed(training.model, held.data)
        score = scored(method, training, d, held.labels)
        if main:
            save_weights(run.out / "model.safetensors", everything, {**about, "score": str(score)})
        judged, by_query = judge(method, training, score, parts)
        reached = _validation(d, parts, score, judged, run)
    warnings += _signs_of_chance(judged)
    known: dict[str, Any] = {"method": name, "data": run.data, "seed": run.seed, "validation": reached}
    result = Result(**known, seconds=perf_counter() - start, warnings=warnings, **asdict(judged))
    if main:
        _write(run.out / "result.json", asdict(result))
        with aside(run.out / "queries.npz", follow=False) as fresh:
            np.savez(fresh, allow_pickle=False, **by_query)
    return result


def _opened(run: Run, parts: dict[str, Items] | None) -> tuple[Encoder, nn.Module, dict[str, Items]]:
    """The encoder, its module and the items that it takes; the images' size decides on an encoder without a name."""
    torch.manual_seed(folded(run.seed))
    named = None if run.backbone == "auto" else encoder(run, of_features(run.data))  # refused before data are opened
    listed = list_parts(run.data, run.root) if parts is None else {}
    side = side_of(listed)
    made = named or encoder(run, of_features(run.data), side)
    if run.image_size is None:
        made = shrunk(made, side)
    if parts is None:
        expected = None if made.module is None else input_of(made.module)
        parts = open_items(run.data, run.root, run.seed, expected, run.quick, skip_bad=run.skip_bad, listed=listed)
    check_parts(run.data, parts)
    if made.module is not None:
        return made, made.module, parts
    module, features = in_place_of_backbone(parts["train"])
    return replace(made, features=features), module, parts


def load(folder: PathLike, method: PathLike | None = None, backbone: str | None = None) -> Trained:
    """Read back what `train` wrote; no code runs that a file of the folder names.

    Parameters
    ----------
    folder
        With run.json and model.safetensors.
    method
        The Python file of the method, needed where the run is of one: it is run.
    backbone
        The Python file and the function of the encoder, such as "my_file.py:make", needed where the run has one.

    Raises
    ------
    FileNotFoundError
        One of the files is missing.
    ValueError
        They do not fit each other; the run is of a method or an encoder in a file, and `method` or `backbone` is None,
        or the other way round.

    Examples
    --------
    A model is read back from the folder that training left, and embeds other items:

    >>> import torch
    >>> from pathlib import Path
    >>> from peaccel.train import Run, embed, load, recipe, train
    >>> rng, labels = np.random.default_rng(0), np.arange(20).repeat(4)
    >>> np.savez("items.npz", features=np.eye(20)[labels] + 0.1 * rng.normal(size=(80, 20)), labels=labels)
    >>> method, settings = recipe("pfe", "features", {"match": {"epochs": 2}})
    >>> run = Run(data="features", root=Path("items.npz"), out=Path("runs/try"), device="cpu")
    >>> result = train("pfe", method, settings, run)
    >>> trained = load("runs/try")
    >>> trained.score, embed(trained.model, torch.eye(20))
    (Score('mls'), Normal(N=20, D=20, diagonal, float32, numpy))
    """
    folder = Path(folder)
    record, made_by, settings, run = _recorded(folder, file=None if method is None else str(method))
    run = _with_encoder(folder, run, backbone)
    path = folder / "model.safetensors"
    about, held = load_tensors(path)
    parts = record, made_by, settings, run
    # Sizes in run.json are compared first, without memory for them, unless a method reads numbers as it is built.
    with suppress(RuntimeError), torch.device("meta"):
        check_shapes(path, _everything(_built(folder, *parts)[0]), held)
    training, features = _built(folder, *parts)
    everything = _everything(training)
    check_shapes(path, everything, held)
    everything.load_state_dict(held)
    everything.eval().requires_grad_(False)
    try:
        score = scores.get(about["score"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: does not say a score to compare by ({error})") from None
    return Trained(made_by, training, score, run, features, record.get("covariates", 0))


def _built(folder: Path, record: Mapping[str, Any], method: Method, settings: Any, run: Run) -> tuple[Training, int]:
    """The training of a record, with its first weights, and the width of its features."""
    path, covariates = folder / "run.json", record.get("covariates", 0)
    on_features = record.get("on_features")
    if on_features is None:  # a record of an earlier version
        if is_file(run.data):
            what = f"write true or false: whether data {run.data!r} is of features"
            raise ValueError(f"{path}: on_features is missing; {what}")
        on_features = of_features(run.data)
    try:
        chosen = {name: record[name] for name in ("backbone", "image_size") if name in record}
        chosen["backbone"] = run.backbone if is_function(run.backbone) else record.get("backbone", run.backbone)
        made = encoder(replace(run, weights=None, **chosen), on_features)
        backbone, features = made.module, made.features
        if backbone is None:
            backbone, features = (Covariates(covariates) if covariates else nn.Identity()), record["features"]
        return method.build(backbone, features, record["classes"], settings), features
    except (RuntimeError, TypeError, ValueError) as error:  # torch's, of sizes that are none, and of settings
        if "meta tensor" in str(error):
            raise
        raise ValueError(f"{path}: makes no model ({str(error).partition(chr(10))[0]})") from None


def _with_encoder(folder: Path, run: Run, backbone: str | None) -> Run:
    """The run with the encoder that the caller names, where it has one of a file: the file in run.json is not run."""
    if is_function(run.backbone) and backbone is None:
        check_named(folder, "backbone", run.backbone)
    if ((named := is_function(backbone or "")) and not is_function(run.backbone)) or (backbone and not named):
        raise ValueError(f"{folder / 'run.json'}: backbone is {run.backbone}, expected no other, got {backbone}")
    return replace(run, backbone=backbone or run.backbone)


def _everything(training: Training) -> nn.ModuleDict:
    """All modules of a run under the names of its checkpoints."""
    return nn.ModuleDict({"model": training.model, "criterion": training.criterion})


def resumed(folder: Path, name: str) -> tuple[Any, Run]:
    """The settings and the run with which training in a folder began, by which it goes on as it was.

    A method's file may have moved since: it is read from where `name` says.

    Raises
    ------
    FileNotFoundError
        There is no run.json.
    ValueError
        It is damaged, or of another row than `name`.
    """
    _, _, settings, run = _recorded(folder, name)
    return settings, run


def _recorded(folder: Path, row: str | None = None, file: str | None = None) -> tuple[dict[str, Any], Method, Any, Run]:
    """Content of run.json, which must be of this row. A method's file is that of the row, or this one, and never the
    one that run.json names."""
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file: is {folder} the folder of a run?")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        name, where, settings = record["name"], record["method"], record["settings"]
        sizes = record["classes"], record["features"], record.get("covariates", 0)
        if not all(isinstance(x, int) and 0 <= x < 2**31 for x in sizes) or not isinstance(where, str):
            raise TypeError
        run = replace(config.from_mapping(record["run"], Run, str(path)), out=folder)
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{path}: is not the record of a run") from None
    if row is not None and name != label(row):
        raise ValueError(f"{folder}: holds a run of {name}, expected {label(row)}")
    if row is not None:
        where = method_of(row)
    elif is_file(where):
        if file is None:
            name_it = "name it yourself: load(folder, method='my_method.py'), --method my_method.py"
            raise ValueError(f"{path}: method is {where!r}, a file, which is not run because a run names it; {name_it}")
        where = file
    elif file is not None:
        raise ValueError(f"{path}: method is {where!r}, expected no file of another, got {file}")
    method = load_method(where)
    return record, method, config.from_mapping(settings, method.settings, str(path)), run


def _began(name: str, run: Run) -> tuple[dict[str, Any], Any] | None:
    """The record and the settings with which a run began that is to be resumed; None where none is.

    Refuses a folder that does not fit, and a run of another seed, data set or backbone, before these are opened.
    """
    check_folder(run.out, run.resume, (run.begin, run.weights, run.root))
    path = run.out / "run.json"
    if not (run.resume and path.exists()):
        return None
    record, _, settings, before = _recorded(run.out, name)
    check_unchanged(path, _deciding(before), _deciding(run))
    return record, settings


def _check_resumed(
    began: Mapping[str, Any],
    before: Any,
    record: Mapping[str, Any],
    settings: Any,
    run: Run,
    training: Training,
    everything: nn.Module,
) -> None:
    """Refuse items and settings that are not those with which a run began, and a state that does not fit, for which
    the record must not be written anew. A method's file may have moved. Lines of epochs that come again are removed.
    """
    path = run.out / "run.json"
    check_unchanged(path, {**began, "method": record["method"]}, record)
    check_unchanged(path, asdict(before), asdict(settings))
    at = Checkpointer(run.out, everything, writes=False).resume(TrainingState(record["name"], run.seed))
    remove_lines(run.out / "log.jsonl", training.stages[at.stage].name, at.epoch)


def _digests(parts: Mapping[str, Items], run: Run) -> dict[str, str | None]:
    """Digests of all that decides what is trained beside settings."""
    of_parts = {part: digest_of_items(parts.get(part)) for part in ("train", "validation")}
    of_images = {f"{part}_images": digest_of_images(parts.get(part)) for part in ("train", "validation")}
    return {**of_parts, **of_images, "begin": digest_of_file(run.begin), "weights": digest_of_file(run.weights)}


def _anywhere(run: Run) -> Run:
    """The run as it is kept, whose paths lead to the same files from any folder."""
    places = {name: path.resolve() for name in ("out", "root", "begin", "weights") if (path := getattr(run, name))}
    data = str(Path(run.data).resolve()) if is_file(run.data) else run.data
    backbone = str(Path(run.backbone).resolve()) if is_function(run.backbone) else run.backbone
    return replace(run, data=data, backbone=backbone, resume=False, **places)


def _deciding(run: Run) -> dict[str, Any]:
    """Values of a run that decide what is trained; files may move, and `_digests` tell what is in them."""
    files = {"out", "root", "begin", "weights"}
    free = {*files, "resume", "workers", "device", "threads", "tensorboard", "strict", "skip_bad"}
    there = replace(run, data=Path(run.data).name, backbone=Path(run.backbone).name)
    return {name: x for name, x in asdict(there).items() if name not in free}


def _fit(
    name: str, method: Method, training: Training, parts: Mapping[str, Items], run: Run, accelerator: Accelerator
) -> tuple[str, ...]:
    """Train on the part "train", judged by MAP@R of the part "validation" where there is one; returns warnings."""
    items, held = parts["train"], parts.get("validation")
    validation = held
    if held is not None and len(rows := validation_rows(held.labels, run.seed)) < len(held):
        validation = held.take(rows)
        if accelerator.is_main_process:
            compared = f"{len(validation)} of {len(held)} held-out items, of whole classes"
            print(f"{name}: epochs are compared by {compared}", file=sys.stderr)

    def validate(model: nn.Module) -> float:
        assert validation is not None
        _agree(model, accelerator)
        d = embed(model, validation.data)
        return map_at_r(d, validation.labels, scored(method, training, d, validation.labels)).map_at_r

    return fit(
        training,
        items.data,
        items.labels,
        run,
        name=name,
        folder=run.out,
        validate=None if validation is None else validate,
        logger=ConsoleLogger(run.out, f"{name}: ", run.tensorboard) if accelerator.is_main_process else NullLogger(),
        accelerator=accelerator,
    )


def _signs_of_chance(judged: HeldOutMetrics) -> tuple[str, ...]:
    """A sentence where held-out items are found no better than by chance."""
    if above_chance(round(judged.recall_at_1 * judged.queries), judged.queries, judged.chance):
        return ()
    found, chance = 100 * judged.recall_at_1, 100 * judged.chance
    return (f"Recall@1 of {found:.2f} % is what chance gives of {judged.part} ({chance:.2f} %)",)


def _validation(d: Any, parts: Mapping[str, Items], score: Score, judged: HeldOutMetrics, run: Run) -> float | None:
    """MAP@R of the items by which epochs were compared, at the end; d are the embeddings of the part "validation"."""
    if "validation" not in parts:
        return None
    labels = parts["validation"].labels
    rows = validation_rows(labels, run.seed)
    if judged.part == "validation" and len(rows) == len(labels):
        return judged.map_at_r
    return map_at_r(tuple(x[rows] for x in d) if isinstance(d, tuple) else d[rows], labels[rows], score).map_at_r


def _check_items(name: str, data: str, model: nn.Module, items: Items) -> None:
    """Refuse, before the work, items that the model cannot take."""
    try:
        embed(model, take(items.data, torch.arange(min(2, len(items)))))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot take the items of data {data}: {error}") from None


def _begin(path: Path, everything: nn.Module, backbone: nn.Module) -> None:
    """Take over from a checkpoint the backbone and whatever else goes by the same name and has the same shape.

    Class directions of other classes are left; a model of other shapes is refused, so that none is taken in part.
    """
    _, tensors = load_tensors(path)
    held = {name.removeprefix("module."): x for name, x in tensors.items()}
    expected = everything.state_dict()
    prefix = next(f"{name}." for name, module in everything.named_modules() if module is backbone)
    for name in sorted(expected.keys() ^ held.keys()):
        if name.startswith(prefix):
            what = "lacks" if name in expected else "has an unexpected"
            raise ValueError(f"{path}: {what} {name}: it was written with another backbone")
    shared = expected.keys() & held.keys()
    for name in sorted(shared):
        if name.startswith("model.") and expected[name].shape != held[name].shape:
            raise ValueError(f"{path}: {name} has shape {(*held[name].shape,)}, expected {(*expected[name].shape,)}")
    taken = {name: held[name] for name in shared if expected[name].shape == held[name].shape}
    if not taken:
        raise ValueError(f"{path}: holds nothing of this method")
    everything.load_state_dict(taken, strict=False)


def _agree(module: nn.Module, accelerator: Accelerator) -> None:
    """Take over the first process's batch statistics, which each process gathers from its own part of a batch."""
    if accelerator.num_processes > 1:
        for x in module.buffers():
            broadcast(x)


def versions() -> dict[str, str | None]:
    """Versions of the libraries that a run depends on, and the commit of peaccel where it lies in a git repository."""
    found: dict[str, str | None] = {"peaccel": __version__}
    for library in ("torch", "numpy", "accelerate", "torchvision", "timm"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = None
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        found["commit"] = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found["commit"] = None
    return found


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with aside(path, follow=False) as fresh:
        fresh.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
