"""Embeddings that `peaccel embed` writes; apart from its options, which are read before torch is imported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel._utils.atomic_files import aside, check_output
from peaccel.cli._embed_options import Embed
from peaccel.cli._feature_files import column, columns
from peaccel.data import CAPTIONED, DIGITS
from peaccel.data.features import covariate_rows, feature_rows
from peaccel.data.images import ImageRows, crop_sizes
from peaccel.train import backbones
from peaccel.train.captioned import captioned_numbers
from peaccel.train.embedding import apply, embed, tensors
from peaccel.train.encoder import encoder, input_of
from peaccel.train.folder import check_named
from peaccel.train.runs import Run, Trained, load
from peaccel.train.sources import Items, digits_settings, of_features, open_captions, open_items

__all__ = ["write"]


def write(task: Embed) -> None:
    """Carry out what `peaccel embed` is asked for, which was checked."""
    if task.hidden_digits is not None:
        _write_captioned(task, task.hidden_digits)
        return
    quality = None
    if task.run is None:
        assert task.backbone is not None
        assert task.data is not None
        found, quality = _features(task, task.data, task.backbone)
        with aside(task.out) as fresh:
            np.savez(fresh, allow_pickle=False, **found)
        labels = found["image" if "image" in found else "labels"]
        shapes = ", ".join(f"{name} {x.shape}" for name, x in found.items())
    else:
        assert task.run is not None
        trained = load(task.run, task.method, task.backbone)
        items = _items(task, trained)
        quality = _quality(task, items)
        d = embed(trained.model, items.data)
        d = d[task.side == "captions"] if isinstance(d, tuple) else d
        io.write_distribution(task.out, d)
        labels = items.labels
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip(d._names, d.arrays, strict=True))
    for path, values in ((task.labels_out, labels), (task.quality_out, quality)):
        if path is not None and values is not None:
            with aside(path) as fresh:
                np.save(fresh, values)
    print(f"{shapes} -> {task.out}")


def _items(task: Embed, trained: Trained) -> Items:
    """The items that a trained model embeds."""
    run = trained.run
    assert task.run is not None
    if task.features is not None:
        if run.data != "features":
            raise ValueError(f"{task.run}: was trained on {run.data}, expected a head on features with --features")
        rows, expected = feature_rows(column(task.features, "mu")), trained.features - trained.covariates
        if rows.shape[1] != expected:
            raise ValueError(f"{task.features}: has {rows.shape[1]} dimensions, expected {expected}")
        covariates = covariate_rows(columns(task.covariates, "covariates"), len(rows)) if task.covariates else None
        return of_features(rows, np.empty(0, np.int64), covariates)
    if task.data is None:
        check_named(task.run, "data", run.data)
    data = task.data or run.data
    same = Path(data).resolve() == Path(run.data).resolve()  # names are as good as files of a reader, for that
    root = task.root or (run.root if same else None)
    seed = run.seed if task.seed is None else task.seed
    return _part(task, data, root, seed, task.quick or run.quick, input_of(trained.model))


def _features(task: Embed, data: str, name: str) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Features of images, with their labels, and their quality where it is known; of images with captions, the features
    by both towers."""
    backbone = encoder(Run(data=data, backbone=name, weights=task.weights), on_features=False).module
    assert backbone is not None
    if data not in CAPTIONED:
        items = _part(task, data, task.root, task.seed or 0, task.quick, input_of(backbone))
        quality = _quality(task, items)
        return {"features": np.asarray(tensors(apply(backbone, items.data))), "labels": items.labels}, quality
    images, captions, image = open_captions(data, task.root, task.part, input_of(backbone), task.skip_bad)
    text = backbones.create(name.replace("clip_image:", "clip_text:"), weights=task.weights)
    assert isinstance(text.input, backbones.TextInput)
    found = {"images": apply(backbone, images), "captions": apply(text, text.input.tokenize(list(captions)))}
    return {**{key: np.asarray(tensors(x)) for key, x in found.items()}, "image": image}, None


def _quality(task: Embed, items: Items) -> NDArray[Any] | None:
    """The quality of items, which must be known where it is to be written."""
    if task.quality_out is not None and items.quality is None:
        raise ValueError("--quality-out needs --crops, or data of which quality is known: mnist, digits8 or fashion")
    return items.quality


def _write_captioned(task: Embed, hidden: float) -> None:
    """Numbers and their captions as features, a file for each part."""
    assert task.run is not None
    trained = load(task.run, task.method, task.backbone)
    if trained.run.data not in DIGITS:
        raise ValueError(f"--hidden-digits needs --run of a model trained on {' or '.join(DIGITS)}")
    task.out.mkdir(parents=True, exist_ok=True)
    run = trained.run
    seed = run.seed if task.seed is None else task.seed
    found = captioned_numbers(trained.model, run.data, digits_settings(task.quick or run.quick), seed, hidden)
    for part, x in found.items():
        with aside(check_output(task.out / f"{part}.npz"), follow=False) as fresh:
            np.savez(fresh, allow_pickle=False, **{name: x[name] for name in ("images", "captions", "image")})
        with aside(check_output(task.out / f"{part}-relevance.npy"), follow=False) as fresh:
            np.save(fresh, x["relevance"])
        print(f"images {x['images'].shape}, captions {x['captions'].shape} -> {task.out / part}.npz")


def _part(task: Embed, data: str, root: Path | None, seed: int, quick: bool, expected: Any) -> Items:
    items = open_items(data, root, seed, expected, quick, [task.part], task.skip_bad)[task.part]
    if task.crops is None:
        return items
    if not isinstance(items.data, ImageRows):
        raise ValueError(f"--crops is of images in files, which {data} has not")
    sizes = crop_sizes(len(items), seed, task.crops)
    return replace(items, data=replace(items.data, sizes=sizes), quality=sizes)
