"""HIB on its own task: its images, its cells, what is measured and what is drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel.data.corruption import Corruption
from peaccel.train.batch_sampling import deliver
from reproduction import __main__ as commands
from reproduction import hedging, running
from reproduction.claims import read_claims, values
from reproduction.failures import best_trial
from reproduction.files import merged
from reproduction.occlusion import ComposedAnew, occluded_parts
from reproduction.page import plane_of
from reproduction.plan import Cell, cells, changes_on, read_plan, resolved, trained, tried
from reproduction.sections import SECTIONS

PLAN, QUICK = read_plan(), read_plan(quick=True)
FORMS = ("", "3 dimensions", "point", "point, 3 dimensions")
SMALL = replace(QUICK.hib.numbers, classes=(12, 4, 5), images_per_class=(6, 6, 4, 4))
NEVER, ALWAYS = replace(SMALL.corruption, probability=0.0), replace(SMALL.corruption, probability=1.0)


def digits_of(images):
    """Strips [N, 28, 28 n] as a list of digits [28, 28]."""
    return [x for image in images for x in np.split(np.asarray(image).reshape(28, -1), image.shape[-1] // 28, axis=1)]


def test_queries_have_a_rectangle_over_each_digit_and_severity_is_the_share_of_the_area():
    query = occluded_parts(SMALL, 3)["query"]
    lost = 0
    for i, (before, after) in enumerate(zip(digits_of(query.clean.images), digits_of(query.mixed.images), strict=True)):
        changed = np.argwhere(before != after)
        lost += len(changed)
        if len(changed):  # nothing is left within the rectangle about what was hidden
            (top, left), (bottom, right) = changed.min(0), changed.max(0) + 1
            assert not after[top:bottom, left:right].any()
            assert (bottom - top) * (right - left) <= 2 * 28**2 * query.mixed.severity[i // 2] + 1e-3
    assert lost > 0 and (query.clean.severity == 0).all() and 0.15 < query.mixed.severity.mean() < 0.35
    fixed = replace(SMALL, corruption=Corruption(1.0, (0.5, 0.5), 0.0, 1.0, 0.0))
    assert (occluded_parts(fixed, 3)["query"].mixed.severity == 0.25).all()


def test_training_and_validation_digits_are_occluded_with_the_probability_of_the_plan():
    many = replace(SMALL, images_per_class=(100, 100, 4, 4))
    for name in ("train", "validation"):
        share = occluded_parts(many, 0)[name].mixed.severity > 0
        assert share.mean() == pytest.approx(1 - 0.8**2, abs=0.06)  # of 400 and 1200 images; few rectangles are empty
    assert (occluded_parts(many, 0)["gallery"].clean.severity == 0).all()


def test_numbers_are_composed_anew_of_training_scans_and_stay_the_numbers_they_are():
    train = occluded_parts(SMALL, 0)["train"].clean
    data = ComposedAnew(train, NEVER)
    assert len(data) == len(train)
    known = {x.tobytes(): train.labels[i // 2] // (10, 1)[i % 2] % 10 for i, x in enumerate(digits_of(train.images))}
    rows = np.arange(len(train))[None]
    first, second, again = (next(deliver(data, rows, seed))[1] for seed in (0, 1, 0))
    assert torch.equal(first, again) and not torch.equal(first, second)
    for i, x in enumerate(digits_of(first.numpy())):
        assert known[np.ascontiguousarray(x).tobytes()] == train.labels[i // 2] // (10, 1)[i % 2] % 10
    occluded = next(deliver(ComposedAnew(train, ALWAYS), rows, 0))[1]
    assert occluded.shape == first.shape and occluded.sum() < 0.95 * first.sum()


def test_drawing_for_an_item_seeds_no_gpu(monkeypatch):
    """Its generators would not be set back; and before CUDA is first used each call would be kept, with its stack."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    data = ComposedAnew(occluded_parts(SMALL, 0)["train"].clean, NEVER)
    list(deliver(data, np.arange(6)[None], 0))
    assert not seeded


def test_cells_are_ten_splits_of_four_forms_and_a_search_of_weights():
    own = [cell for cell in cells(PLAN) if cell.task == "hib"]
    assert {(cell.form, cell.split) for cell in own if cell.measured} == {(x, i) for x in FORMS for i in range(10)}
    asked = [(cell, changes_on(PLAN, "hib", "hib", cell.trial)) for cell in own if cell.searches]
    weights = {resolved(PLAN, cell, chosen)[1].kl for cell, chosen in asked}
    assert weights == {1e-4, 1e-3, 1e-2, 1e-1} and len(asked) == 4 * PLAN.search.splits
    for cell in cells(PLAN):
        assert commands._belongs(PLAN, cell, commands.Reproduce(only=("hib",))) == (cell.task == "hib")
        if cell.task == "hib":
            assert not commands._belongs(PLAN, cell, commands.Reproduce(only=("numbers", "published")))


def test_the_weight_is_chosen_on_validation_classes_and_points_have_none():
    found = {
        tried("hib", trial, number, "hib"): {"validation": level + 0.1 * number}
        for trial, level in enumerate((0.2, 0.4, 0.3, 0.1))
        for number in range(PLAN.search.splits)
    }
    assert best_trial(PLAN, found, "hib", "hib") == 1 and best_trial(PLAN, found, "hib") is None
    asked = dict(commands._chosen(PLAN, [trained("hib", "hib", 2, form) for form in FORMS], found))
    settings = {cell.form: resolved(PLAN, cell, chosen)[1] for cell, chosen in asked.items()}
    assert [(x.dim, x.kl, x.diagonal, x.n) for x in settings.values()] == [
        (2, 1e-3, True, 8),
        (3, 1e-3, True, 8),
        (2, 0.0, True, 8),
        (3, 0.0, True, 8),
    ]
    assert all(x.schedule.epochs == 30 and x.schedule.lr <= 1e-3 for x in settings.values())


def test_numbers_say_what_uncertainties_follow():
    share = {"clean": np.zeros(4), "occluded": np.array([0.1, 0.2, 0.3, 0.4])}
    right = {"clean": np.array([1.0, 1, 1, 0]), "occluded": np.array([1.0, 0, 1, 0])}
    unsure = {
        "clean": {"self_mismatch": np.array([0.1, 0.1, 0.1, 0.1]), "variance": np.array([-3.0, -2, -1, -4])},
        "occluded": {"self_mismatch": np.array([0.2, 0.3, 0.4, 0.6]), "variance": np.array([-5.0, -6, -7, -8])},
    }
    best = {name: x["variance"] for name, x in unsure.items()}
    found = hedging._numbers(right, best, unsure, share)
    assert found["occlusion.self_mismatch"] == pytest.approx(1) and found["occlusion.variance"] < 0
    assert found["occlusion_occluded.self_mismatch"] == pytest.approx(1)
    assert found["occlusion_occluded.variance"] == pytest.approx(-1)
    assert (found["self_mismatch.clean"], found["self_mismatch.occluded"]) == pytest.approx((0.1, 0.375))
    # Of the 5 x 3 pairs of an answered query and another the surer one is told by counting, ties half.
    sure = [np.concatenate([-unsure[name][kind] for name in unsure]) for kind in ("self_mismatch", "variance")]
    answered = np.concatenate([right["clean"], right["occluded"]]) == 1
    pairs = [np.sign(x[answered][:, None] - x[~answered]).mean() / 2 + 0.5 for x in (*sure, -sure[1])]
    assert [found[f"r_auroc.{name}"] for name in ("self_mismatch", "variance", "best")] == pytest.approx(pairs)
    assert found["r_auroc_occluded.self_mismatch"] == pytest.approx(0.75)
    points = {name: x | {"variance": np.full(4, -10.0)} for name, x in unsure.items()}
    assert hedging._numbers(right, best, points, share).keys() == {"r_auroc.best"}


def test_the_self_mismatch_is_that_of_the_learned_match_probability():
    d = pe.Normal(np.zeros((3, 2)), np.array([[0.01, 0.01], [0.01, 1.0], [1.0, 1.0]]))
    found = hedging._uncertainty(d, pe.scores.hib(a=2.0, b=3.0, n=8, seed=0))
    z, y = (pe.sample(d, 20_000, seed) for seed in (1, 2))
    expected = (1 - 1 / (1 + np.exp(2 * np.linalg.norm(z - y, axis=-1) - 3))).mean(0)
    assert found["self_mismatch"] == pytest.approx(expected, abs=0.06)  # 64 draws of each
    assert found["variance"] == pytest.approx(np.log(d.var).mean(1))


@pytest.fixture(scope="module")
def measured():
    """Records of all forms, of a plan still smaller than --quick's."""
    patch = pytest.MonkeyPatch()
    settings = merged(QUICK.hib.settings, {"schedule": {"epochs": 2, "lr": 1e-2}})
    tiny = replace(QUICK, hib=replace(QUICK.hib, numbers=SMALL, settings=settings))
    patch.setattr(running, "read_plan", lambda quick: tiny)
    yield {cell: running.run(True, cell, {}) for cell in (trained("hib", "hib", 0, form) for form in FORMS)}
    patch.undo()


def test_a_cell_measures_what_its_claims_and_its_section_ask(measured):
    rows = {cell.name for cell in measured}
    claims = [claim for claim in read_claims() if claim.tasks == ("hib",)]
    assert [claim.number for claim in claims] == [25, 26, 27, 28]
    asked = [c for claim in claims for c in claim.comparisons]
    for c in asked:
        for side, measure in ((c.left, c.of[0]), (c.right, c.of[-1])):
            assert set(side) <= rows
            for row in side:
                assert len(values(measured, row, measure, "hib")[0]) in (1, 5), f"{row} {measure}"
    for measure in SECTIONS["HIB on its own task"].measures.values():
        assert values(measured, "hib", measure, "hib"), measure
    for cell, record in measured.items():
        assert len(json.dumps(record, allow_nan=False)) < 7000 and 0 <= record["validation"] <= 1
        assert all(-1 <= x <= 1 for x in record["numbers"].values())
        assert ("plane" in record) == ("3 dimensions" not in cell.form)
        assert ("occlusion.self_mismatch" in record["numbers"]) == ("point" not in cell.form)


def test_the_picture_shows_the_same_numbers_clean_and_occluded(measured, tmp_path):
    plane = plane_of(measured)
    assert plane_of({cell: record for cell, record in measured.items() if cell.form}) is None
    assert plane is measured[trained("hib", "hib", 0)]["plane"]
    query = occluded_parts(SMALL, 0)["query"].clean.labels
    assert sorted(set(plane["number"])) == sorted(set(query.tolist())) and len(plane["number"]) == 5 * 4
    assert plane["clean"]["mu"] != plane["occluded"]["mu"]
    paths = [tmp_path / name for name in ("one.svg", "two.svg")]
    for path in paths:
        hedging.draw(plane, 2, path)
    texts = [path.read_text() for path in paths]
    assert texts[0] == texts[1] and texts[0].count(f">{plane['number'][0]:02d}<") == 2 * 4


def test_training_images_are_not_the_same_in_each_epoch(monkeypatch):
    """A training is given numbers that are composed anew, not the images that were drawn once."""
    given = []
    monkeypatch.setattr(running, "read_plan", lambda quick: replace(QUICK, hib=replace(QUICK.hib, numbers=SMALL)))
    monkeypatch.setattr(running, "fit", lambda training, inputs, *_, **__: given.append(inputs))
    running.run(True, Cell("hib", "hib", "", 0, 1000, 1100), {})
    assert isinstance(given[0], ComposedAnew) and given[0].corruption.probability == 0.2
