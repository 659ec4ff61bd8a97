"""Places in photographs: parts share no photograph, views of a place were taken near each other, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from peaccel import metrics
from reproduction import photographs
from reproduction.plan import read_plan

SETTINGS = replace(read_plan().places, photographs=(2, 1, 2), places=12, images_per_class=(3, 2, 5, 4))


@pytest.fixture(scope="module")
def parts():
    return photographs.make(SETTINGS, seed=1)


def test_parts_share_no_photograph_but_gallery_and_query(parts):
    of = {part: set((x.position[:, 1] // photographs.APART).tolist()) for part, x in parts.items()}
    assert of["gallery"] == of["query"]
    assert [len(of[part]) for part in ("train", "validation", "query")] == [2, 1, 2]
    assert not of["train"] & of["validation"] and not (of["train"] | of["validation"]) & of["query"]


def test_sizes(parts):
    for part, views in zip(("train", "validation", "gallery", "query"), SETTINGS.images_per_class, strict=True):
        x = parts[part]
        assert set(np.unique(x.labels, return_counts=True)[1]) == {views}
        assert x.images.shape == (len(x), SETTINGS.side, SETTINGS.side) and x.images.dtype == np.float32
        assert x.images.min() >= 0 and x.images.max() <= 1
        assert not x.severity.any()
    assert set(parts["query"].labels) == set(parts["gallery"].labels)


def test_views_of_a_place_are_near_each_other_and_no_others(parts):
    query, gallery = parts["query"], parts["gallery"]
    near = metrics.Relevance.within(query.position, gallery.position, SETTINGS.step / 2)
    rows = np.indices((len(query), len(gallery))).reshape(2, -1)
    assert np.array_equal(near.right(*rows), query.labels[rows[0]] == gallery.labels[rows[1]])


def test_views_differ_and_show_the_place(parts):
    train = parts["train"]
    flat = train.images.reshape(len(train), -1)
    assert len(np.unique(flat, axis=0)) == len(flat)
    still = photographs.make(replace(SETTINGS, shift=0, turn=0, zoom=1, light=0), seed=1)["train"]
    for label in np.unique(still.labels):
        assert np.ptp(still.images[still.labels == label], axis=0).max() == 0


def test_equal_seeds_give_equal_arrays(parts):
    again, other = photographs.make(SETTINGS, seed=1), photographs.make(SETTINGS, seed=2)
    assert np.array_equal(parts["query"].images, again["query"].images)
    assert not np.array_equal(parts["query"].images[:10], other["query"].images[:10])


def test_too_many_photographs_are_refused():
    with pytest.raises(ValueError, match="photographs sum to 30, expected at most 14"):
        photographs.make(replace(SETTINGS, photographs=(10, 10, 10)), seed=0)
