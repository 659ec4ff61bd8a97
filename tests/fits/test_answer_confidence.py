"""Confidences of the best answers, by their definitions, and thresholds that are of them."""

import re

import numpy as np
import pytest
import torch

import peaccel as pe

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.arange(20).repeat(3))
GALLERY = pe.Point(RNG.normal(size=(20, 8))[LABELS] + 0.7 * RNG.normal(size=(60, 8)))
QUERIES = pe.Point(RNG.normal(size=(50, 8)))
FOUND = pe.search(QUERIES, GALLERY, 4, "cosine")


def by_definition(found, labels, kind):
    values = []
    for scores, ids in zip(found.scores.tolist(), found.ids.tolist(), strict=True):
        rest = zip(scores[1:], ids[1:], strict=True)
        other = (s for s, i in rest if kind == "margin" or labels[i] != labels[ids[0]])
        values.append(scores[0] - (0 if kind == "score" else next(other)))
    return values


@pytest.mark.parametrize("kind", ["score", "margin", "class_margin"])
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_confidences_are_those_of_a_loop(kind, library):
    found = pe.Ranking(*map(library, FOUND))
    for labels in (LABELS, [f"c{i}" for i in LABELS], LABELS[FOUND.ids]):
        assert pe.answer_confidence(found, kind, labels).tolist() == by_definition(FOUND, LABELS, kind)


def test_items_that_go_by_the_id_of_their_class_need_no_other_labels():
    names = np.array([f"person {i}" for i in LABELS])[FOUND.ids]
    found = pe.Ranking(FOUND.scores, names)
    assert pe.answer_confidence(found, "class_margin", found.ids).tolist() == by_definition(
        FOUND, LABELS, "class_margin"
    )


@pytest.mark.parametrize("kind", [pe.Selection, pe.FalseMatchLimit])
@pytest.mark.parametrize(
    ("confidence", "weights"), [("margin", ()), ("class_margin", ()), ("probability", (-4.0, 3.0, 1.0, 9.0))]
)
def test_a_threshold_of_a_confidence_keeps_the_best_answers_that_are_so_sure(kind, confidence, weights):
    counts = (60, 3, 0) if kind is pe.Selection else (60, 3)
    accept = kind(0.3, 0.1, 0.1, *counts, confidence=confidence, weights=weights, score="cosine")
    kept = accept(FOUND, LABELS)
    values = {name: np.array(by_definition(FOUND, LABELS, name)) for name in ("score", "margin", "class_margin")}
    sure = values.get(confidence)
    if weights:
        sure = 1 / (1 + np.exp(4 - 3 * values["score"] - values["margin"] - 9 * values["class_margin"]))
    assert kept.ids.shape == (50, 1) and 0 < (sure >= 0.3).sum() < 50
    assert kept.ids[:, 0].tolist() == np.where(sure >= 0.3, FOUND.ids[:, 0], -1).tolist()
    tensors = accept(pe.Ranking(*map(torch.as_tensor, FOUND)), LABELS)
    assert tensors.ids.tolist() == kept.ids.tolist() and tensors.scores.tolist() == kept.scores.tolist()
    assert f"{confidence} of cosine of 0.3" in str(accept)


@pytest.mark.parametrize("shared", [True, False])
def test_a_reranker_whose_items_share_ids_knows_the_classes(shared):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexIDMap(faiss.IndexFlatIP(8))
    unit = (GALLERY.mu / np.linalg.norm(GALLERY.mu, axis=1, keepdims=True)).astype("f4")
    index.add_with_ids(unit, LABELS if shared else np.arange(60))
    reranker = pe.FaissReranker(index, GALLERY, score="cosine", features="unit")
    accept = pe.Selection(0.2, 0.1, 0.1, 60, 3, 0, confidence="class_margin", score="cosine")
    if not shared:
        with pytest.raises(ValueError, match=r"^answer_confidence: a class_margin needs labels, the classes of the ga"):
            reranker.search(QUERIES, 4, shortlist=60, accept=accept)
        return
    kept = reranker.search(QUERIES, 2, shortlist=60, accept=accept).ids[:, 0]
    expected = np.where(accept(by_definition(FOUND, LABELS, "class_margin")), LABELS[FOUND.ids[:, 0]], -1)
    assert kept.tolist() == expected.tolist()


OF_MARGIN = pe.Selection(0.2, 0.1, 0.1, 60, 3, 0, confidence="margin", dim=8, applied="centre 0a1b2c3d")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pe.answer_confidence(FOUND, "gap"), ValueError, "answer_confidence: unknown kind 'gap'"),
        (lambda: pe.answer_confidence(FOUND.scores), TypeError, "answer_confidence: ranking is ndarray, expected a"),
        (lambda: pe.answer_confidence(FOUND, "class_margin"), ValueError,
         "answer_confidence: a class_margin needs labels, the classes of the gallery"),
        (lambda: pe.answer_confidence(FOUND, "class_margin", LABELS[:9]), ValueError,
         "answer_confidence: labels have shape (9,), expected (G,), that of rows which ids are, or (50, 4)"),
        (lambda: pe.answer_confidence(FOUND, "class_margin", np.zeros(60, int)), ValueError,
         "answer_confidence: query 0 of ranking meets no other class among its 4 items, which a class_margin needs; "
         "search with a greater k"),
        (lambda: pe.answer_confidence(pe.search(QUERIES, GALLERY[:1], 2, "cosine"), "margin"), ValueError,
         "answer_confidence: query 0 of ranking meets no other item among its 2 items, which a margin needs; search"),
        (lambda: OF_MARGIN(pe.search(QUERIES, GALLERY, 1, "cosine")), ValueError,
         "accept: the threshold is of a margin, which needs other items: expected k > 1"),
        (lambda: OF_MARGIN.check("accept", None, 2, dim=9), ValueError,
         "accept: the threshold is of items of 8 dimensions, got 9"),
        (lambda: OF_MARGIN.check("accept", None, 2, applied="none"), ValueError,
         "accept: fits applied to the threshold's items: centre 0a1b2c3d; to these: none"),
    ],
)  # fmt: skip
def test_what_has_no_confidence_is_refused(call, error, message):
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
