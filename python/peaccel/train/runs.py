"""A run from settings: a recipe, a data set, a backbone and a method, trained into a folder that can be read back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from scipy.stats import spearmanr
from torch import nn

import peaccel as pe
from peaccel import backbones, config, methods, metrics
from peaccel.backbones.small_cnn import FEATURES, small_cnn
from peaccel.files import aside
from peaccel.methods.records import AtLeast0, Method, Training
from peaccel.scores import Score
from peaccel.train.embedding import embed
from peaccel.train.keeping import load_weights, save_weights
from peaccel.train.loop import Options, fit
from peaccel.train.sources import DIGITS, Items, open_items
from peaccel.train.telling import Screen, Silent, Teller

__all__ = ["RECIPES", "Result", "Run", "Trained", "input_of", "load", "map_at_r", "ranges", "recipe", "train"]

FOLDER = Path(__file__).parent.parent / "recipes"

RECIPES = tuple(sorted({path.stem for path in FOLDER.glob("*.toml")} - {"demo", "digits"}))
"""One for each row of the papers' table."""


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """What is trained on, by what, and where it goes."""

    data: str = "mnist"
    """mnist, digits8 (numbers of real scans, which come inside packages), or a data set in a folder."""
    root: Path | None = None
    """The folder of the data set."""
    out: Path = Path("runs/train")
    """Receives run.json, log.jsonl, state.safetensors, best.safetensors and, at the end, model.safetensors."""
    backbone: str = "auto"
    """A name of peaccel.backbones; auto is a small network for digits, none for features, resnet50 for images."""
    weights: Path | None = None
    """Of the backbone: a .safetensors file, or a state dict of torch.save."""
    pooling: Literal["own", "avg", "avg+max", "gem"] = "own"
    """Of the backbone's last map."""
    frozen_bn: bool = False
    """Keep the backbone's batch normalisation as it is."""
    dropout: float = 0.0
    """In the backbone."""
    begin: Path | None = None
    """A model.safetensors or state.safetensors to start from."""
    precision: Literal["no", "fp16", "bf16"] = "no"
    """Mixed precision of the backbone; losses stay in float32."""
    device: Literal["auto", "cpu"] = "auto"
    tensorboard: bool = False
    """Write TensorBoard's event files as well."""
    quick: bool = False
    """Of digits: few of them, to see in seconds that everything runs."""
    threads: AtLeast0 = 0
    """Of torch on the CPU; 0 for as many as torch takes. The order of its sums depends on it."""


@dataclass(frozen=True)
class Trained:
    """A model with what is needed to use it."""

    method: Method
    training: Training
    score: Score
    """By which it retrieves, fitted parameters included."""

    @property
    def model(self) -> nn.Module:
        """From inputs to a distribution."""
        return self.training.model


@dataclass(frozen=True)
class Result:
    """What a run came to on held-out items."""

    method: str
    data: str
    seed: int
    recall_at_1: float
    map_at_r: float
    validation: float | None
    """MAP@R of the validation part, where there is one."""
    confidence_and_severity: float | None
    """Minus Spearman's rank correlation of confidence and severity of the queries, where both are known: 1 where the
    confidence orders them as their severity does."""
    seconds: float


def recipe(name: str, data: str, changes: Mapping[str, Any] | None = None) -> tuple[Method, Any]:
    """The method and the settings of a row of the papers' table on a data set.

    Parameters
    ----------
    name
        One of `RECIPES`.
    data
        A table of the recipe with this name stands over its [settings].
    changes
        Over both, nested as the settings are.

    Raises
    ------
    ValueError
        An unknown name (the nearest is named), an unknown key, a value out of its range.
    """
    if name not in RECIPES:
        nearest = get_close_matches(name, RECIPES, n=1, cutoff=0)[0]
        raise ValueError(f"train: unknown method {name!r}, the nearest is {nearest!r}; see 'peaccel methods'")
    values = config.read_mapping(FOLDER / f"{name}.toml")
    method = methods.load(values["method"])
    merged = config.merge(values.get("settings", {}), values.get("digits" if data in DIGITS else data, {}))
    return method, config.from_mapping(config.merge(merged, changes or {}), method.settings, name)


def ranges(name: str) -> dict[str, tuple[float, float, bool]]:
    """The ranges in which a recipe's settings are searched: by dotted name, least, greatest, whether in logarithms.

    Raises
    ------
    ValueError
        The recipe has no [tune] table.
    """
    found = config.read_mapping(FOLDER / f"{name}.toml").get("tune", {})
    if not found:
        raise ValueError(f"tune: the recipe of {name} has no [tune] table: there is nothing to search")
    return {key: (float(x["low"]), float(x["high"]), bool(x.get("log", False))) for key, x in found.items()}


def train(name: str, method: Method, settings: Any, run: Run, parts: dict[str, Items] | None = None) -> Result:
    """Train a row of the papers' table, and write all of it to a folder.

    Parameters
    ----------
    name
        The row, as in `RECIPES`.
    method, settings
        From `recipe`.
    run
        Data, backbone, devices and folder.
    parts
        The items; None opens those that `run` names.

    Returns
    -------
    Recall@1 and MAP@R of the test part: of queries against the gallery where there are such, else of one half of each
    class against the other.

    Raises
    ------
    ValueError
        Unknown names, settings or data that do not fit, weights of another network.
    FileNotFoundError
        The data set or the weights are not there.
    """
    start = perf_counter()
    if run.threads:
        torch.set_num_threads(run.threads)
    accelerator = Accelerator(cpu=run.device == "cpu", mixed_precision=run.precision)
    run.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(run.seed)
    backbone, features = _backbone(run)
    if parts is None:
        parts = open_items(run.data, run.root, run.seed, None if backbone is None else input_of(backbone), run.quick)
    items = parts["train"]
    if backbone is None:
        backbone, features = _given(items)
    classes = int(items.labels.max()) + 1
    training = method.build(backbone, features, classes, settings)
    if run.begin is not None:
        _begin(run.begin, training)
    about = {"name": name, "method": method.name, "classes": classes, "features": features}
    main = accelerator.is_main_process
    if main:
        _write(
            run.out / "run.json", {**about, "run": asdict(run), "settings": asdict(settings), "versions": versions()}
        )
    validation = parts.get("validation")
    teller: Teller = Screen(run.out, f"{name}: ", run.tensorboard) if main else Silent()

    def validate(model: nn.Module) -> float:
        assert validation is not None
        d = embed(model, validation.data)
        return map_at_r(d, validation.labels, scored(method, training, d, validation.labels))[1]

    fit(
        training,
        items.data,
        items.labels,
        run,
        name=name,
        folder=run.out,
        validate=None if validation is None else validate,
        teller=teller,
        accelerator=accelerator,
    )
    held = validation or items
    d = embed(training.model, held.data)
    score = scored(method, training, d, held.labels)
    reached = None if validation is None else map_at_r(d, held.labels, score)[1]
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion})
    if main:
        save_weights(run.out / "model.safetensors", everything, {**about, "score": str(score)})
    found, severity = _judge(method, training, score, parts)
    return Result(name, run.data, run.seed, *found, reached, severity, perf_counter() - start)


def load(folder: Path) -> Trained:
    """Read back what `train` wrote.

    Parameters
    ----------
    folder
        With run.json and model.safetensors.

    Raises
    ------
    FileNotFoundError
        One of the two is missing.
    ValueError
        They do not fit each other.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file: is {folder} the folder of a run?")
    record = json.loads(path.read_text(encoding="utf-8"))
    method = methods.load(record["method"])
    settings = config.from_mapping(record["settings"], method.settings, str(path))
    run = config.from_mapping({**record["run"], "weights": None}, Run, str(path))
    backbone, features = _backbone(run)
    if backbone is None:
        backbone, features = nn.Identity(), record["features"]
    training = method.build(backbone, features, record["classes"], settings)
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion})
    about = load_weights(folder / "model.safetensors", everything)
    everything.eval().requires_grad_(False)
    return Trained(method, training, pe.scores.get(about["score"]))


def scored(method: Method, training: Training, d: Any, labels: np.ndarray[Any, np.dtype[np.int64]]) -> Score:
    """The score by which a trained model retrieves, fitted on held-out items where it has something to fit."""
    return pe.scores.get(method.score) if training.score is None else training.score(d, labels)


def map_at_r(d: Any, labels: np.ndarray[Any, np.dtype[np.int64]], score: Score) -> tuple[float, float]:
    """Recall@1 and MAP@R of one half of each class, searched in the other; of captions in images where d is a pair."""
    if isinstance(d, tuple):
        images, captions = d
        _, first = np.unique(labels, return_index=True)
        return _retrieve(captions, labels, images[first], labels[first], score)
    order = np.argsort(labels, kind="stable")
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    query = place % 2 == 1
    return _retrieve(d[query], labels[query], d[~query], labels[~query], score)


def _retrieve(
    queries: Any, query_labels: np.ndarray[Any, Any], gallery: Any, gallery_labels: np.ndarray[Any, Any], score: Score
) -> tuple[float, float]:
    if not len(queries):
        raise ValueError("no class has two items, so that none can be searched for")
    largest = int(np.unique(gallery_labels, return_counts=True)[1].max())
    ids = pe.search(queries, gallery, largest, score).ids
    found = ids, query_labels, gallery_labels
    return metrics.recall_at_k(*found), metrics.map_at_r(*found)


def _judge(
    method: Method, training: Training, score: Score, parts: dict[str, Items]
) -> tuple[tuple[float, float], float | None]:
    """Recall@1 and MAP@R of the test part, and how confidence goes with severity there."""
    if "query" in parts and "gallery" in parts:
        query, gallery = parts["query"], parts["gallery"]
        d = embed(training.model, query.data)
        found = _retrieve(d, query.labels, embed(training.model, gallery.data), gallery.labels, score)
        return found, _with_severity(method, d, query)
    test = parts.get("test", parts.get("validation", parts["train"]))
    return map_at_r(embed(training.model, test.data), test.labels, score), None


def _with_severity(method: Method, d: Any, items: Items) -> float | None:
    """Minus the rank correlation of confidence and severity of the items that were corrupted at all."""
    if items.severity is None or method.confidence == "-":
        return None
    kind = None if method.confidence == "default" else method.confidence
    confidence = np.asarray(pe.confidence(d, kind))
    if min(np.ptp(confidence), np.ptp(items.severity)) == 0:
        return 0.0
    return -float(spearmanr(confidence, items.severity).statistic)


def _backbone(run: Run) -> tuple[nn.Module | None, int]:
    """The backbone and the width of its features; None where the data are features."""
    name = run.backbone
    if name == "auto":
        if run.data in DIGITS:
            return small_cnn(), FEATURES
        if run.data in ("features", "caption-features"):
            return None, 0
        name = "resnet50"
    made = backbones.create(
        name, weights=run.weights, pooling=run.pooling, frozen_bn=run.frozen_bn, dropout=run.dropout
    )
    return made, made.features


def input_of(model: nn.Module) -> Any:
    """What images a model's backbone takes; None where it is told by none."""
    return next((part.input for part in model.modules() if isinstance(part, backbones.Backbone)), None)


def _given(items: Items) -> tuple[nn.Module, int]:
    """What stands for a backbone where the data are features, and their width."""
    first = items.data[0] if isinstance(items.data, tuple) else items.data
    if not isinstance(first, torch.Tensor):
        raise ValueError("train: backbone is none, but the data are no features")
    return nn.Identity(), int(first.shape[1])


def _begin(path: Path, training: Training) -> None:
    """Take over the tensors of a checkpoint that this training has under the same names."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    held = {name.removeprefix("module."): x for name, x in load_file(path).items()}
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion})
    own = everything.state_dict()
    taken = {name: x for name, x in held.items() if name in own and own[name].shape == x.shape}
    if not any(name.startswith("model.") for name in taken):
        raise ValueError(f"{path}: holds nothing of this method's model: its names or shapes are others")
    everything.load_state_dict(taken, strict=False)


def versions() -> dict[str, str | None]:
    """What a run depends on: versions of libraries, and the commit of peaccel where it lies in a git repository."""
    found: dict[str, str | None] = {"peaccel": pe.__version__}
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
    with aside(path) as fresh:
        fresh.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
