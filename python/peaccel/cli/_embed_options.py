"""The options of `peaccel embed`, and their checks before torch is imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peaccel._utils.python_files import is_function
from peaccel.cli._feature_files import column, columns
from peaccel.cli._outputs import check_files
from peaccel.cli._training import check_there, early
from peaccel.data import CAPTIONED, COMPOSED, DIGITS, READERS, check_known, check_name
from peaccel.data.features import covariate_rows, feature_rows

__all__ = ["Embed", "check", "check_words"]


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Data to embed, model and output."""

    out: Path
    """The file to write, with --hidden-digits the folder. With --run a distribution, .npz or .safetensors, as 'peaccel
    search' takes it;
    with --backbone features and labels, .npz, as 'peaccel fit-head' takes it, or, of images with captions, features of
    both, as 'peaccel train text_to_image --data caption-features' takes a folder of them."""
    run: Path | None = None
    """The folder of a trained model; exactly one of this and --backbone."""
    method: Path | None = None
    """With --run of a method in a Python file: that file, since none that a run names is run."""
    backbone: str | None = None
    """A backbone as 'peaccel train' takes it; for images with captions clip_image:MODEL, whose text tower reads them.
    With --run of an encoder in a Python file: that file and function, since none that a run names is run."""
    weights: Path | None = None
    """Weights of the backbone: a .safetensors file, or a state dict as torch writes it."""
    features: Path | None = None
    """With --run of a head, in place of a data set: the means, [N, D] float. An .npy file, or .npz with the key
    features, or a column of a table, mu unless the path names another.
    """
    covariates: tuple[Path, ...] = ()
    """With --features: measurements of the items beside their features, as the head was fitted to it by 'peaccel
    fit-head --covariates'."""
    data: str | None = None
    """A data set, as 'peaccel train' takes it. With --run the run's data set by default, unless a Python file reads it:
    a file that a run names is never run.
    """
    root: Path | None = None
    """The folder, or the file of features, where the data set lies."""
    part: str = "test"
    """train, validation, test, query or gallery, as far as the data set has them."""
    seed: int | None = None
    """Seed by which mnist, digits8 and fashion deal numbers to parts, and of --crops; with --run that of the run unless
    given."""
    quick: bool = False
    """With mnist, digits8 and fashion, take few items."""
    skip_bad: bool = False
    """Leave out images that cannot be read: before the work each is decoded once, in some milliseconds."""
    side: Literal["images", "captions"] = "images"
    """Which side to embed, with a model that embeds images and captions."""
    labels_out: Path | None = None
    """Also write the labels, [N] integers, to this .npy file."""
    crops: float | None = None
    """With images in files, cut a square out of the middle of each. Its side is drawn evenly, from this share of the
    image's shorter side to all of it: 0.5 in the text of Probabilistic Embeddings Revisited, 0.25 in its code.
    """
    quality_out: Path | None = None
    """Also write the quality of each image, [N] floats, higher = better, to this .npy file. 'peaccel evaluate' reads
    it. The quality is the size of --crops; of mnist, digits8 and fashion 1 less the severity of corruption.
    """
    hidden_digits: float | None = None
    """With --run of mnist or digits8: write features of images and of captions. A caption names the digits, each left
    open with this probability. 'peaccel train text_to_image --data caption-features' takes the folder.
    PART-relevance.npy has the images that each caption describes, for 'peaccel evaluate --relevance'.
    """


def check_words(arguments: Sequence[str]) -> None:
    """Refuse a data set that is unknown before tyro is imported."""
    parsed = early(arguments)
    if parsed.data is not None and not parsed.help:
        check_known(parsed.data, (*COMPOSED, *READERS))


def check(task: Embed) -> None:
    """Refuse options that do not go together, inputs that are not there, and outputs that cannot be written."""
    if (task.run is None) == (task.backbone is None) and not (task.run and is_function(task.backbone or "")):
        raise ValueError("expected exactly one of --run and --backbone")
    if task.run is not None and task.weights is not None:
        raise ValueError(f"--weights is {task.weights}, of a --backbone, expected none with --run")
    if task.run is None and task.method is not None:
        raise ValueError(f"--method is {task.method}, of a --run, expected none with --backbone")
    check_there(task.weights, task.features, task.method, *task.covariates)
    if task.run is not None and not (task.run / "run.json").is_file():
        raise FileNotFoundError(f"{task.run}/run.json: there is no such file: is {task.run} the folder of a run?")
    more = {"--labels-out": task.labels_out, "--quality-out": task.quality_out}
    beside = [name for name, path in more.items() if path is not None]
    if task.hidden_digits is not None:
        if task.run is None:
            raise ValueError(f"--hidden-digits needs --run of a model trained on {' or '.join(DIGITS)}")
        if not 0 <= task.hidden_digits <= 1:
            raise ValueError(f"--hidden-digits is {task.hidden_digits:g}, expected a probability")
        if beside or task.features is not None:
            raise ValueError(f"--hidden-digits writes a folder, expected no {(*beside, '--features')[0]}")
    _check_covariates(task)
    if task.hidden_digits is not None:
        return
    if task.features is not None and beside:
        raise ValueError(f"--features has no labels and no quality, expected no {beside[0]}")
    for name in ("side", "crops", "seed", "data", "root", "part", "quick", "skip_bad") if task.features else ():
        if getattr(task, name) != getattr(Embed, name):
            raise ValueError(f"--features are what is embedded, expected no --{name.replace('_', '-')}")
    if task.data in CAPTIONED and task.quality_out is not None:
        raise ValueError(f"--quality-out needs images of which quality is known, which {task.data} has not")
    if task.run is None and task.backbone is not None:
        if task.features is not None or task.data is None:
            raise ValueError("--backbone embeds images: expected --data, and no --features")
        if task.data in CAPTIONED and not task.backbone.startswith("clip_image:"):
            raise ValueError(f"--backbone is {task.backbone}, expected clip_image:MODEL: {task.data} has captions")
    if task.data is not None and (task.run is None or task.root is not None):
        check_name(task.data, task.root, (*COMPOSED, *READERS))
    kinds = [".npz", ".safetensors"] if task.run else [".npz"]
    inputs = [path for path in (task.weights, task.features, task.root, *task.covariates) if path is not None]
    for folder in (task.run, task.root):
        inputs += [] if folder is None else [folder / task.out.name]
    check_files([(task.out, kinds), *((path, [".npy"]) for path in more.values() if path)], inputs)


def _check_covariates(task: Embed) -> None:
    """Refuse covariates that the run was not fitted to, or that are missing."""
    fitted = 0
    if task.run is not None:
        path = task.run / "run.json"
        try:
            fitted = int(json.loads(path.read_text(encoding="utf-8")).get("covariates", 0))
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
            raise ValueError(f"{path}: is not the record of a run") from None
    if task.covariates and (task.run is None or task.features is None):
        raise ValueError("--covariates needs --run of a head and --features")
    found = 0
    if task.covariates and task.features is not None:
        count = len(feature_rows(column(task.features, "mu")))
        found = covariate_rows(columns(task.covariates, "covariates"), count).shape[1]
    if found != fitted:
        raise ValueError(f"{task.run}: was fitted to {fitted} covariates, found {found} (--features and --covariates)")
