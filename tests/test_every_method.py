"""Every row of the papers' table, trained for seconds on numbers of two digits that are held out by class."""

import os
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel import methods, metrics, train
from peaccel.methods.records import Schedule
from peaccel.train import runs, sources

LONG = bool(os.environ.get("PEACCEL_LONG"))
"""`make test-methods`: three seeds and the recipes' own epochs."""
SEEDS = (0, 1, 2) if LONG else (0,)

MARGIN = 0.15
"""By how much Recall@1 on classes never seen must beat the same network before training, which has about 0.14."""
SLOW = {"hib": 0.02, "hib_diagonal": 0.02}
"""Smaller margins: a loss of match probabilities alone learns slowly, see docs/training.md."""
UNSURE: dict[str, str] = {}
"""Rows whose confidence need not follow the severity of corruption, and why."""

ROWS = [row for row in train.RECIPES if row != "text_to_image"]


@cache
def parts(seed):
    settings = replace(sources.digits_settings(), digits=2, classes=(50, 20, 30), images_per_class=(40, 10, 10, 10))
    return sources.of_digits("mnist", settings, seed)


def with_epochs(settings, epochs):
    """Settings with other epochs, from the old, and smaller batches."""
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    schedules = {name: s for name, s in known.items() if isinstance(s, Schedule)}
    return replace(
        settings, **{name: replace(s, epochs=epochs(s.epochs), classes_per_batch=8) for name, s in schedules.items()}
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("row", ROWS)
def test_every_row_learns_what_it_promises(row, seed, tmp_path):
    method, settings = train.recipe(row, "mnist")
    settings = with_epochs(settings, lambda epochs: epochs if LONG else min(epochs, 4))
    items = {part: x for part, x in parts(seed).items() if part != "validation"}
    run = train.Run(seed=seed, out=tmp_path, device="cpu", threads=1)
    result = runs.train(row, method, settings, run, items)

    untrained = runs.train(
        row, method, with_epochs(settings, lambda epochs: 0), replace(run, out=tmp_path / "0"), items
    )
    assert result.recall_at_1 > untrained.recall_at_1 + SLOW.get(row, MARGIN), f"{result}, {untrained}"
    if row not in UNSURE and result.confidence_and_severity is not None:
        assert result.confidence_and_severity > 0, f"{result}"

    read = train.load(tmp_path)
    assert read.method is method
    query, gallery = items["query"], items["gallery"]
    found = pe.search(train.embed(read.model, query.data), train.embed(read.model, gallery.data), 1, read.score).ids
    assert metrics.recall_at_k(found, query.labels, gallery.labels) == result.recall_at_1


def test_every_file_is_a_row():
    trained = {train.recipe(row, "mnist")[0].name for row in train.RECIPES}
    assert trained == set(methods.NAMES) == {m.name for m in methods.table()}


def test_unknown_names_are_told_the_nearest():
    with pytest.raises(ValueError, match="method 'hip' is unknown, the nearest is 'hib'"):
        methods.load("hip")
    with pytest.raises(ValueError, match="unknown method 'llr_mce', the nearest is 'llr_nce'"):
        train.recipe("llr_mce", "mnist")


@pytest.mark.parametrize("changes", [{}, {"head": "mlp"}, {"head": "mlp", "diagonal": True}, {"distribution": "vmf"}])
def test_nce_starts_from_the_variance_of_items_about_their_identities(changes):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 10)
    where = rng.normal(size=(200, 64))[labels] + 0.5 * rng.normal(size=(2000, 64))
    rows = torch.from_numpy(where / np.linalg.norm(where, axis=1, keepdims=True)).float()
    around = 0.25 / 1.25 / 64  # of rows of length 1
    method, settings = train.recipe("llr_nce", "features", {"tell": {"epochs": 0}, **changes})
    training = method.build(torch.nn.Identity(), 64, 200, settings)
    train.fit(training, rows, labels)
    d = train.embed(training.model, rows)
    assert np.median(1 / d.kappa if "distribution" in changes else d.var) == pytest.approx(around, rel=0.15)
    if "distribution" not in changes:
        prior = runs.scored(method, training, d, labels).params["prior_var"]
        assert np.mean(prior) == pytest.approx(1 / 1.25 / 64, rel=0.05)
