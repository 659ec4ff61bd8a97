"""Every option of every public function is handed on: another value of it gives another result.

A row is a function, the arguments of a call, and for each option another value. No two sides have equal sizes, no two
classes as many items, and labels are not sorted, so that what is dropped or exchanged shows. Arrays and distributions
of a call are tried with their rows in another order without being named.
"""

import functools
import importlib
import inspect
import pkgutil
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass

import faiss
import numpy as np
import pytest
import torch
from items import make
from PIL import Image
from torch import nn

import peaccel as pe
import peaccel.data
from peaccel import evaluation, heads, io, losses, metrics
from peaccel.data import corruption, digits, images, transforms
from peaccel.distributions import Distribution, torch_distributions
from peaccel.train import backbones

# -- what calls are made on --------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
Q, G, DIM = 14, 23, 6
CENTRES = RNG.normal(size=(3, DIM))
Y, Z, OTHERS = (RNG.choice(3, n, p=[0.2, 0.35, 0.45]) for n in (Q, G, 9))


def normals(labels, seed=1):
    """Normals about the centres of their classes."""
    d = make("normal_diagonal", len(labels), DIM, seed)
    return pe.Normal(CENTRES[labels] + 0.7 * d.mu, d.var)


QUERIES, GALLERY, NOVEL = normals(Y), normals(Z, 2), normals(OTHERS, 3)
IDS, OWN_IDS = (pe.search(d, GALLERY, 13, "mls").ids for d in (QUERIES, GALLERY))
ISOTROPIC, DIRECTIONS, SPREAD, SCALED = (make(kind, G, DIM) for kind in ("normal_isotropic", "vmf", "nivmf", "scaled"))
EVEN, NONE_ACCEPTED = np.arange(G) % 2 == 0, pe.FalseMatchLimit(9.0, alpha=0.1, delta=0.1, number=9, allowed=0)
PAIRS = np.array([(0, 3), (1, 2), (5, 7), (2, 9), (4, 4), (13, 20), (7, 1)])
RIGHT, QUALITY = RNG.random(60) < 0.6, RNG.normal(size=60)
SURE = (RIGHT + RNG.normal(size=60)).round(1)
PROBABILITY = (SURE - SURE.min()) / np.ptp(SURE)
CLASSES = RNG.choice(24, 60, p=np.arange(1, 25) / 300)
ANSWERS = -np.sort(-RNG.normal(size=(60, 5)), axis=1)
FOUND = RNG.random((60, 5)) < 0.3
OF_MANY = np.concatenate([np.repeat(np.arange(22), 2), RNG.integers(0, 22, 16)])[RNG.permutation(60)]
TEMPLATES = 10 * OF_MANY + RNG.integers(0, 2, 60)
SIBLINGS = next(p for p in np.argwhere(OF_MANY[:, None] == OF_MANY) if TEMPLATES[p[0]] != TEMPLATES[p[1]])
MANY = pe.Normal(RNG.normal(size=(22, 3))[OF_MANY] + 0.7 * RNG.normal(size=(60, 3)), RNG.uniform(0.1, 2, 60))
PAIRS_OF_MANY = np.argwhere(np.triu(np.ones((60, 60)), 1))[::7]
SPREAD_MANY = pe.Normal(2 * MANY.mu[::7], MANY.var[::7])


def tensors(d):
    """The distribution with tensors in float32."""
    return type(d)(*(torch.tensor(x, dtype=torch.float32) for x in d.arrays))


# -- what a call gives -------------------------------------------------------------------------------------------------


def told(x, path=""):
    """All that a result holds, as text by its place; of records without the seed, which they only repeat."""
    if isinstance(x, nn.Module):
        x = dict(x.state_dict())
    elif isinstance(x, Distribution):
        x = {"kind": x.kind, **dict(enumerate(x.arrays))}
    elif isinstance(x, pe.scores.Score):
        x = x.label
    elif is_dataclass(x):
        x = {f.name: getattr(x, f.name) for f in fields(x) if f.name != "seed"}
    elif isinstance(x, tuple) and hasattr(x, "_asdict"):
        x = x._asdict()
    elif isinstance(x, list | tuple):
        x = dict(enumerate(x))
    if isinstance(x, Mapping):
        return {place: text for key, y in x.items() for place, text in told(y, f"{path}.{key}").items()}
    if isinstance(x, torch.Tensor):
        x = x.detach().double().numpy()
    if isinstance(x, np.ndarray) and x.dtype != object:
        x = x.dtype, x.shape, x.tolist() if x.size < 100 else hash(x.tobytes())
    return {path: repr(x)}


class Row:
    """A call, other values of its options, how what it makes is used, and what it is `of` if it is a helper here."""

    def __init__(self, call, given, other, use=lambda made: made, of=None):
        self.call, self.given, self.other, self.use, self.of = call, given, other, use, of or call

    def result(self, **changes):
        """All that the call gives, with some arguments changed; each time from the same state of torch's generator."""
        torch.manual_seed(0)
        return told(self.use(self.call(**deepcopy(self.given) | changes)))

    def changes(self):
        """Arguments, each with another value: those that the row names, and others with their rows turned."""
        yield from self.other.items()
        for name, value in self.given.items():
            if name not in self.other:
                yield from ((name, x) for x in turned(value))

    def __repr__(self):
        return self.of.__qualname__


def turned(value):
    """Arrays and distributions, or one of a tuple of them, with their rows in another order."""
    if isinstance(value, tuple):
        for i, x in enumerate(value):
            yield from ((*value[:i], y, *value[i + 1 :]) for y in turned(x))
    elif isinstance(value, np.ndarray | torch.Tensor | Distribution):
        yield value[(np.arange(len(value)) + 1) % len(value)]


# -- the rows ----------------------------------------------------------------------------------------------------------

SIDES = {"queries": QUERIES, "gallery": GALLERY}
LEARNED = pe.Normal(torch.ones(2, 3, requires_grad=True), torch.ones(2))
SURER, SPREAD_OUT = pe.Normal(QUERIES.mu, QUERIES.var / 9), pe.Normal(3 * NOVEL.mu, NOVEL.var)


def by_cohort(cohort):
    """The name of a ranking's norm."""
    found, of_queries = pe.search(QUERIES, GALLERY, 3), pe.search(QUERIES, NOVEL, 3)
    return pe.normalise_scores(found, queries=of_queries, cohort=cohort).normalisation


VERBS = [
    Row(pe.pairwise, SIDES, {"score": "cosine"}),
    Row(pe.paired, {"a": QUERIES, "b": GALLERY[:Q]}, {"score": "cosine"}),
    Row(pe.rescore, {**SIDES, "candidates": IDS}, {"score": "cosine"}),
    Row(pe.rerank, {**SIDES, "candidates": IDS, "k": 3}, {"k": 2, "score": "cosine", "exclude": IDS[:, :1]}),
    Row(pe.search, {**SIDES, "k": 3},
        {"k": 2, "score": "cosine", "allowed": EVEN, "exclude": IDS[:, :1], "accept": NONE_ACCEPTED}),
    Row(pe.search_above, {**SIDES, "threshold": -9.0},
        {"threshold": -8.0, "score": "neg_sq_l2", "allowed": EVEN, "exclude": IDS[:, :1]}),
    Row(pe.exclude_same, {"queries": {"class": Y}, "gallery": {"class": Z}}, {"ids": np.arange(G) + 50},
        lambda exclude: [exclude.of_query(i) for i in range(Q)]),
    Row(pe.duplicates, {"items": GALLERY, "threshold": -9.0}, {"threshold": -8.0, "score": "neg_sq_l2"}),
    Row(pe.cluster, {"items": GALLERY, "threshold": -9.0},
        {"threshold": -8.0, "score": "neg_sq_l2", "floor": -9.5, "margin": 1.0,
         "probability": pe.LogisticProbability(0.0, (1.0,))},
        lambda x: [x.labels, x.scores, x.next_scores, x.probabilities]),
    Row(pe.prepare, {"gallery": GALLERY}, {"score": "ppk", "dtype": "float32"}, lambda x: [x.score, x.distribution]),
    Row(pe.Prepared, {"gallery": GALLERY, "score": pe.scores.mls}, {"score": pe.scores.ppk, "pack": False},
        lambda x: [x.score, x.packed, x.distribution]),
    Row(pe.normalise_scores, {"scores": pe.pairwise(QUERIES, GALLERY), "queries": pe.pairwise(QUERIES, NOVEL),
                              "gallery": pe.pairwise(GALLERY, NOVEL)}, {"queries": None, "gallery": None}),
    Row(pe.normalise_scores, {"scores": np.diag(pe.pairwise(QUERIES, GALLERY)), "queries": pe.pairwise(QUERIES, NOVEL),
                              "gallery": pe.pairwise(GALLERY, NOVEL), "pairs": np.arange(Q).repeat(2).reshape(Q, 2)},
        {"pairs": np.arange(Q).repeat(2).reshape(Q, 2)[::-1]}),
    Row(by_cohort, {"cohort": NOVEL}, {"cohort": None}, of=pe.normalise_scores),
    Row(pe.score_trials, {"d": GALLERY, "ids": np.arange(G), "enrol": [3, 4, 5], "test": [6, 7, 6],
                          "enrolment": {"3": ["1", "2"], "4": ["4"], "5": ["3", "8", "9"]}, "cohort": NOVEL, "k": 5},
        {"score": "cosine", "enrolment": None, "rule": "mean", "cohort": None, "k": 4}),
    Row(pe.merge, {"rankings": [pe.search(QUERIES, d, 5) for d in (GALLERY, NOVEL)], "k": 4, "offsets": [0, G]},
        {"rankings": [pe.search(QUERIES, d, 2) for d in (GALLERY, NOVEL)], "k": 3, "offsets": None}),
    Row(pe.first_stage_features, {"d": GALLERY}, {"score": "cosine"}),
    Row(pe.first_stage_features, {"d": GALLERY, "reference": pe.first_stage_reference(GALLERY)},
        {"side": "query", "reference": pe.first_stage_reference(GALLERY, queries=SURER)}),
    Row(pe.first_stage_reference, {"gallery": GALLERY},
        {"gallery": QUERIES, "score": "cosine", "queries": SURER}),
]  # fmt: skip


def flat(ids=None, metric=faiss.IndexFlatL2):
    """An exact index of the gallery's means."""
    index, means = metric(DIM), np.ascontiguousarray(GALLERY.mu, np.float32)
    index = index if ids is None else faiss.IndexIDMap(index)
    _ = index.add(means) if ids is None else index.add_with_ids(means, ids)
    return index


def means(d):
    """A first stage of the user's, whose rows an index is not held against."""
    return d.mu


def found(reranker):
    """A ranking, ids and the index's type."""
    return [reranker.search(QUERIES, 4, shortlist=6), reranker.ids, type(reranker.index).__name__]


def searched(build, ids=None, **given):
    """A search of an index that was built with some ids."""
    return pe.FaissReranker.build(GALLERY, build, ids=ids).search(QUERIES, 4, **given)


@functools.cache
def in_lance():
    """A gallery in Lance, of whose items an index has not seen three; and the folder, which goes with the process."""
    folder = tempfile.TemporaryDirectory()
    gallery = pe.Gallery.create(f"{folder.name}/g.lance", GALLERY[3:], np.arange(3, G) * 2)
    gallery.build_index("IVF4,Flat")
    gallery.add(GALLERY[:3], np.arange(3) * 2)
    return gallery, folder


def asked(verb):
    """A verb of that gallery."""
    return lambda **given: getattr(in_lance()[0], verb)(**given)


def indexed(**given):
    """The index that is built so: its factory, its vectors, and for what score."""
    in_lance()[0].build_index(**given)
    in_lance()[0].search(QUERIES, 1, shortlist=1)
    seen = in_lance()[0]._seen[1]
    return seen.factory, seen.vectors.features, seen.vectors.score


def added(ids):
    """A ranking after items were added."""
    reranker = pe.FaissReranker.build(GALLERY, "Flat", ids=np.arange(G))
    return [reranker.add(NOVEL, ids), reranker.search(QUERIES, 4, shortlist=30)]


def kept(mmap):
    """The items that are there once one was removed of what was saved, or why it was not."""
    with tempfile.TemporaryDirectory() as folder:
        pe.FaissReranker.build(GALLERY, "Flat").save(folder)
        reranker = pe.FaissReranker.open(folder, mmap=mmap)
        try:
            reranker.remove([3])
        except TypeError:
            return "mapped"
        return reranker.ids


ACCEPTED = pe.limit_false_matches(QUALITY, 0.5)
SEVERAL_LISTS = faiss.SearchParametersIVF(nprobe=1)
RERANKER = [
    Row(asked("search"), {"queries": QUERIES, "k": 5, "shortlist": 9}, {
        "k": 4, "shortlist": 2, "score": "cosine", "filter": "id < 20",
        "params": faiss.SearchParametersIVF(nprobe=1), "allowed": EVEN, "exclude": 2 * IDS[:, :1],
        "accept": NONE_ACCEPTED}, of=pe.Gallery.search),
    Row(asked("search_above"), {"queries": QUERIES, "threshold": -9.0},
        {"threshold": -8.0, "score": "cosine", "filter": "id < 20", "allowed": EVEN, "exclude": 2 * IDS[:, :1]},
        of=pe.Gallery.search_above),
    Row(asked("duplicates"), {"threshold": -9.0}, {"threshold": -8.0, "score": "cosine"},
        of=pe.Gallery.duplicates),
    Row(asked("rescore"), {"queries": QUERIES, "candidates": 2 * IDS}, {"score": "cosine"}, of=pe.Gallery.rescore),
    Row(asked("rerank"), {"queries": QUERIES, "candidates": 2 * IDS, "k": 5},
        {"k": 4, "score": "cosine", "exclude": 2 * IDS[:, :1]}, of=pe.Gallery.rerank),
    Row(indexed, {"factory": "Flat", "first_stage": "surrogate"}, {
        "factory": "HNSW8", "first_stage": "cosine", "score": "llr:prior_var=1"}, of=pe.Gallery.build_index),
    Row(pe.FaissReranker, {"index": flat(), "gallery": GALLERY},
        {"gallery": pe.Normal(GALLERY.mu, GALLERY.var[::-1]), "score": "ppk:rho=0.2", "features": "unit"}, found),
    Row(pe.FaissReranker, {"index": flat(np.arange(G) + 50), "gallery": GALLERY, "ids": np.arange(G) + 50,
                           "features": means}, {"gallery": GALLERY[::-1], "ids": np.arange(G)[::-1] + 50}, found),
    Row(pe.FaissReranker.build, {"gallery": GALLERY, "factory": "Flat"},
        {"factory": "IVF5,Flat", "first_stage": "surrogate", "score": "cosine", "ids": np.arange(G) + 50}, found),
    Row(searched, {"build": "IVF5,Flat", "shortlist": 9},
        {"shortlist": 4, "params": SEVERAL_LISTS, "allowed": EVEN, "exclude": IDS[:, :1], "accept": ACCEPTED},
        of=pe.FaissReranker.search),
    Row(pe.FaissReranker.build(GALLERY, "Flat").search_above, {"queries": QUERIES, "threshold": -9.0},
        {"threshold": -8.0, "allowed": EVEN, "exclude": IDS[:, :1]}, of=pe.FaissReranker.search_above),
    Row(pe.FaissReranker.build(GALLERY, "Flat").rerank, {"queries": QUERIES, "candidates": IDS, "k": 3},
        {"k": 2, "exclude": IDS[:, :1]}, of=pe.FaissReranker.rerank),
    Row(pe.FaissReranker.build(GALLERY, "Flat").duplicates, {"threshold": -9.0}, {"threshold": -8.0},
        of=pe.FaissReranker.duplicates),
    Row(added, {"ids": np.arange(9) + 50}, {"ids": np.arange(9) + 90}, of=pe.FaissReranker.add),
    Row(kept, {"mmap": False}, {"mmap": True}, of=pe.FaissReranker.open),
]  # fmt: skip


MEASURES = [
    Row(pe.confidence, {"d": GALLERY}, {"kind": "harmonic_var"}),
    Row(pe.confidence, {"d": GALLERY, "kind": "self_match", "seed": 1}, {"a": 2.0, "b": 1.0, "n": 9, "seed": 2}),
    Row(pe.sample, {"d": DIRECTIONS, "n": 3, "seed": 1}, {"n": 2, "seed": 2, "first_row": 5}),
    Row(pe.sample, {"d": LEARNED, "n": 3, "seed": 1}, {"d": LEARNED.detach(), "gradient": "none"},
        lambda drawn: drawn.requires_grad),
    Row(pe.fuse, {"d": ISOTROPIC, "groups": Z}, {"rule": "mean", "names": True}),
    Row(pe.fit_vmf, {"z": DIRECTIONS.mu}, {"z": DIRECTIONS.mu[1:], "weights": DIRECTIONS.kappa, "groups": Z}),
    Row(pe.fit_vmf, {"z": DIRECTIONS.mu, "groups": Z}, {"names": True}),
    Row(pe.calibrate_variance, {"d": MANY, "pairs": PAIRS_OF_MANY, "labels": np.equal(*OF_MANY[PAIRS_OF_MANY.T])},
        {"offset": False}),
    Row(pe.fit_plda, {"x": MANY.mu, "labels": OF_MANY}, {"dim": 2, "length_norm": True, "shrinkage": 0.5}),
    Row(pe.fit_centre, {"queries": pe.Point(MANY.mu[:22])}, {"gallery": pe.Point(MANY.mu[22:]), "whiten": True}),
    Row(pe.triplet_probability, {"a": QUERIES, "p": GALLERY[:Q], "n": GALLERY[-Q:]}, {"margin": 1.0, "log": True}),
    Row(pe.triplet_probability, {"a": DIRECTIONS[:9], "p": DIRECTIONS[9:18], "n": DIRECTIONS[14:]},
        {"match_moments": True}),
    Row(pe.fit_match_probability, {"scores": SURE, "labels": RIGHT}, {"method": "isotonic"}),
    Row(pe.reliability_curve, {"probabilities": PROBABILITY, "labels": RIGHT}, {"bins": 4}),
    Row(pe.learn_then_test, {"confidence": RIGHT + SURE / 4, "correct": RIGHT, "classes": np.arange(60), "alpha": 0.2},
        {"alpha": 0.3, "delta": 0.5, "classes": CLASSES, "within": np.arange(60) % 2}),
    Row(pe.learn_then_test, {"confidence": RIGHT + SURE / 4, "correct": RIGHT, "classes": CLASSES, "alpha": 0.5},
        {"seed": 3}),  # queries of a class, of which one is drawn
    Row(pe.limit_false_matches, {"scores": QUALITY, "alpha": 0.2},
        {"scores": QUALITY / 2, "alpha": 0.3, "delta": 0.5, "groups": CLASSES}),
    Row(pe.limit_false_matches, {"scores": QUALITY, "alpha": 0.2, "groups": CLASSES}, {"each": "greatest", "seed": 3}),
    Row(pe.conformal_sets, {"scores": ANSWERS, "relevant": FOUND, "classes": CLASSES, "alpha": 0.3,
                            "answerable": FOUND.any(1)},
        {"scores": ANSWERS * 2, "relevant": FOUND & (ANSWERS < 1), "alpha": 0.5, "classes": CLASSES[::-1],
         "answerable": np.ones(60, bool), "of": "all"}),
    Row(pe.choose_score, {"d": MANY, "labels": OF_MANY}, {"draws": True, "items": 50, "seed": 1, "by": "eer",
                                                          "pairs": PAIRS_OF_MANY}),
    Row(pe.choose_score, {"d": MANY, "labels": OF_MANY, "by": "answered"}, {"wrong": 0.5}),
    Row(pe.choose_score, {"d": MANY, "labels": OF_MANY, "by": "dcf"}, {"p_target": 0.5}),
    Row(pe.choose_score,
        {"d": pe.Point(MANY.mu), "labels": (OF_MANY, OF_MANY[::-1]), "gallery": pe.Point(MANY.mu[::-1])},
        {"gallery": pe.Point(MANY.mu[::-1] + 1)}),
]  # fmt: skip

CHECKED = dict.fromkeys(pe.answers_to_check(QUALITY, wrong=0.2, budget=40).rows.tolist(), True)
"""Labels of a pilot."""
EVALUATION = [
    Row(pe.evaluate, {**SIDES, "labels": (Y, Z), "quality": QUALITY[:Q], "novel": NOVEL},
        {"scores": "mls", "k": 2, "metrics": {"own": metrics.average_precision_at_r}, "pairs": PAIRS, "seed": 1,
         "p_target": 0.3, "quality": None, "novel": SPREAD_OUT, "novel_labels": OTHERS, "exclude": IDS[:, 0]}),
    Row(pe.evaluate, {"queries": GALLERY, "gallery": None, "labels": Z, "quality": QUALITY[:G], "novel": NOVEL},
        {"scores": "mls", "k": 2, "pairs": PAIRS[[0, 1, 2, 3, 5, 6]], "novel": SPREAD_OUT, "seed": 1}),
    Row(evaluation.evaluate_templates, {"d": MANY, "templates": TEMPLATES, "labels": OF_MANY},
        {"templates": 10 * TEMPLATES + np.arange(len(MANY)) % 2, "labels": OF_MANY % 20, "scores": "mls",
         "rule": "mean",
         "pairs": TEMPLATES[[(0, 1), (2, 3), SIBLINGS]], "seed": 1}),
    Row(evaluation.evaluate_trials, {"d": MANY, "ids": np.arange(len(MANY)), "enrol": PAIRS_OF_MANY[:, 0],
                                     "test": PAIRS_OF_MANY[:, 1],
                                     "match": OF_MANY[PAIRS_OF_MANY[:, 0]] == OF_MANY[PAIRS_OF_MANY[:, 1]]},
        {"scores": "mls", "cohort": MANY[:9], "p_target": 0.3, "seed": 1,
         "enrolment": {str(i): [str(i), str(i // 2)] for i in range(len(MANY))}}),
    Row(evaluation.evaluate_trials, {"d": MANY, "ids": np.arange(len(MANY)), "enrol": PAIRS_OF_MANY[:, 0],
                                     "test": PAIRS_OF_MANY[:, 1],
                                     "match": OF_MANY[PAIRS_OF_MANY[:, 0]] == OF_MANY[PAIRS_OF_MANY[:, 1]],
                                     "enrolment": {str(i): [str(i), str(i // 2)] for i in range(len(MANY))}},
        {"rule": "mean"}),
    Row(pe.choose_threshold, {"queries": MANY[::2], "gallery": MANY[1::2], "labels": (OF_MANY[::2], OF_MANY[1::2]),
                              "novel": SPREAD_MANY, "wrong": 0.6},
        {"score": "mls", "wrong": 0.7, "delta": 0.5, "novel": None, "novel_labels": OF_MANY[:9] % 4, "seed": 4,
         "per": "query", "groups": OF_MANY[::2] % 9, "within": OF_MANY[::2] % 2,
         "exclude": pe.exclude_same({"template": TEMPLATES[::2]}, {"template": TEMPLATES[1::2]})}),
    Row(pe.choose_threshold, {"queries": MANY, "gallery": None, "labels": OF_MANY, "novel": SPREAD_MANY, "fpir": 0.3},
        {"fpir": 0.4, "novel": SPREAD_MANY[:8], "confidence": "margin", "try_centre": True,
         "cohort": pe.Normal(MANY.mu[:9] + 1, MANY.var[:9])}),
    Row(pe.choose_pair_threshold, {"scores": RIGHT + SURE, "match": RIGHT, "wrong": 0.3},
        {"wrong": 0.4, "groups": CLASSES, "delta": 0.5}),
    Row(pe.choose_pair_threshold, {"scores": RIGHT + SURE, "match": RIGHT, "groups": CLASSES, "far": 0.3},
        {"far": 0.4, "seed": 3}),
    Row(pe.choose_pair_threshold, {"scores": RIGHT + SURE, "match": RIGHT, "p_target": 0.3},
        {"p_target": 0.1, "c_miss": 9.0, "c_fa": 9.0, "clusters": CLASSES, "seed": 3}),
    Row(pe.answers_to_check, {"found": QUALITY, "checked": {}, "wrong": 0.2, "budget": 40},
        {"checked": CHECKED, "wrong": 0.3, "budget": 41, "delta": 0.1, "groups": np.r_[0, :59], "seed": 1}),
    Row(pe.compare, {"values": {"one": SURE, "other": QUALITY}},
        {"values": {"one": SURE, "other": 2 * QUALITY}, "clusters": CLASSES, "seed": 1}),
    Row(pe.audit, {"d": MANY, "labels": OF_MANY}, {"score": "mls", "seed": 1}),
    Row(evaluation.probability, {"confidence": SURE, "right": RIGHT, "clusters": CLASSES}, {"seed": 1}),
    Row(evaluation.mean_interval, {"values": SURE, "clusters": CLASSES}, {"level": 0.5, "seed": 1}),
    Row(evaluation.simultaneous_intervals, {"values": np.c_[SURE, QUALITY], "clusters": CLASSES},
        {"level": 0.5, "seed": 1}),
    Row(evaluation.verification_pairs, {"query_labels": Y, "gallery_labels": Z}, {"seed": 1, "different": 9999}),
]  # fmt: skip

RANKED, AMONG = {"ids": IDS, "query_labels": Y, "gallery_labels": Z}, {"ids": OWN_IDS, "query_labels": Z}
SORTED = {"scores": SURE, "same": RIGHT}
FOUND, MATES = -np.sort(RNG.random((Q, 5)), 1), RNG.random((Q, 5)) < 0.4
METRICS = [
    *(Row(f, AMONG, {"gallery_labels": Z, "exclude": OWN_IDS[:, 1]})  # own rows are first
      for f in (metrics.relevance, metrics.average_precision_at_r, metrics.map_at_r)),
    *(Row(f, AMONG, {"gallery_labels": Z, "k": 5, "exclude": OWN_IDS[:, 1:4]})
      for f in (metrics.hit_at_k, metrics.recall_at_k)),
    *(Row(f, AMONG | {"k": 6}, {"gallery_labels": Z, "k": 5, "exclude": OWN_IDS[:, 1]})
      for f in (metrics.average_precision_at_k, metrics.map_at_k)),
    Row(metrics.hit_at_k, RANKED, {}),
    Row(metrics.without_self, {"ids": OWN_IDS}, {"values": OWN_IDS / 2}),
    Row(metrics.random_confidence, {"count": 4}, {"count": 5, "seed": 1}),
    Row(metrics.calibration_error, {"values": RIGHT, "confidence": PROBABILITY},
        {"scale": "rank", "binning": "equal-count", "bins": 4}),
    Row(metrics.nmi, {"embeddings": GALLERY.mu, "labels": Z}, {"seed": 1}),
    Row(metrics.ceda, {"right": RIGHT, "confidence": SURE}, {"threshold": 0.3}),
    Row(metrics.truncated_rows, {"labels": CLASSES, "items": 9}, {"items": 30, "seed": 1}),
    Row(metrics.mate_scores, {"scores": FOUND, "relevant": MATES}, {"rank": 3}),
    Row(metrics.open_set, {"mated": SURE, "non_mated": QUALITY[:9]}, {"mated": QUALITY, "non_mated": SURE}),
    Row(metrics.novelty_detection, {"known": SURE, "novel": QUALITY[:9]}, {"known": QUALITY, "novel": SURE, "bins": 4}),
    Row(metrics.pair_uncertainty, {"first": abs(QUALITY), "second": abs(SURE) + 1}, {"rule": "max"}),
    Row(metrics.reject_verification, {**SORTED, "uncertainty": QUALITY.round(), "far": 0.1},
        {"far": 0.4, "shares": [0.0, 0.4], "seed": 1}),
    Row(metrics.error_versus_discard, {"scores": SURE, "pairs": np.arange(60)[:, None] // [1, 2],
                                       "quality": QUALITY.round(), "threshold": 0.5, "shares": [0.0, 0.2]},
        {"threshold": 0.7, "shares": [0.0, 0.5], "seed": 1}),
    Row(metrics.rejection_area, {"values": RIGHT, "confidence": SURE}, {"kind": "nauc"}),
    Row(metrics.tar_at_far, {"scores": RIGHT + QUALITY, "same": RIGHT, "far": 0.2, "resamples": 10},
        {"far": 0.4, "resamples": 9, "level": 0.5, "seed": 1}),
    Row(metrics.detection_cost, {"scores": RIGHT + QUALITY, "same": RIGHT, "resamples": 10},
        {"p_target": 0.3, "c_miss": 30.0, "c_fa": 0.1, "clusters": CLASSES, "resamples": 9, "level": 0.5, "seed": 1}),
    Row(metrics.equal_error_rate, {"scores": RIGHT + QUALITY, "same": RIGHT, "resamples": 10},
        {"clusters": CLASSES, "resamples": 9, "level": 0.5, "seed": 1}),
    Row(metrics.best_threshold, {"scores": QUALITY.round(1) + SURE, "same": QUALITY > 0.5}, {"by": "f1"}),
    Row(metrics.verification_accuracy, SORTED, {"threshold": 1.0, "folds": 3}),
    Row(metrics.Relevance.from_pairs, {"pairs": PAIRS, "queries": G, "gallery": 30},
        {"gallery": None, "pairs": PAIRS[1:]}),
    Row(metrics.Relevance.within, {"query_coords": CENTRES, "gallery_coords": CENTRES[:2] + 0.1, "radius": 0.3},
        {"gallery_coords": None, "radius": 9.0}),
    Row(metrics.Relevance.within,
        {"query_coords": CENTRES[:, :2], "gallery_coords": CENTRES[:2, :2] + 0.1, "radius": 1.0},
        {"metric": "haversine"}),
]  # fmt: skip


def ids_of(blocks):
    """The ids of blocks that were read, where they have any."""
    return blocks.ids if "ids" in repr(blocks) else None


TABLE = io.to_arrow(DIRECTIONS, ids=np.arange(G), mean=abs(DIRECTIONS.mu), wide=abs(DIRECTIONS.mu))
COLUMNS = {"mu": "mean", "var": "wide", "kappa": "wide", "scale": "kappa", "ids": "id"}


def blocks_of(rows, **parameters):
    """The blocks of the gallery's means, and of one of its parameters, in files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, x in {"mu": GALLERY.mu, "each": GALLERY.var, "one": GALLERY.var[:, 0]}.items():
            np.save(f"{folder}/{name}.npy", x)
        paths = {name: f"{folder}/{file}.npy" for name, file in parameters.items()}
        return list(io.read_blocks(f"{folder}/mu.npy", **paths, rows=rows))


ENSEMBLE = RNG.normal(size=(4, G, DIM)) + GALLERY.mu
IO = [
    Row(io.from_ensemble, {"embeddings": ENSEMBLE}, {"kind": "vmf", "diagonal": True}),
    Row(io.from_pcmepp, {"mean": GALLERY.mu, "std": np.log(GALLERY.var / 9)}, {}),
    Row(io.from_prolip, {"mean": GALLERY.mu, "std": np.log(GALLERY.var / 9)}, {}),
    Row(io.from_pfe, {"mu": GALLERY.mu, "sigma_sq": GALLERY.var}, {}),
    Row(io.from_url, {"features": GALLERY.mu, "unc": GALLERY.var[:, 0]}, {}),
    Row(io.to_arrow, {"distribution": GALLERY}, {"ids": Z}, lambda table: table.to_pydict()),
    Row(io.from_arrow, {"source": TABLE}, COLUMNS),
    Row(io.arrow_blocks, {"source": TABLE}, {**COLUMNS, "rows": 5}, lambda blocks: [*blocks, ids_of(blocks)]),
    Row(blocks_of, {"rows": 9}, {"rows": 5, "var": "each", "kappa": "each", "scale": "one"}, of=io.read_blocks),
]

FEATURES, PIXELS = torch.randn(9, 16), torch.rand(9, 1, 8, 8)


def on(inputs):
    """A module's outputs of some inputs in training, and the module."""
    return lambda module: [module.train()(inputs), module]


IMAGES, BACKBONE = torch.rand(4, 3, 32, 32), {"pooling": "avg+max", "frozen_bn": True, "dropout": 0.5}
HEADS = [
    Row(heads.MeanHead, {"features": 16, "dim": 3}, {"dim": 4, "unit": False}, on(FEATURES)),
    Row(heads.ScaleHead, {"features": 16}, {"hidden": (5, 6), "activation": "softplus", "constant": 3.0}, on(FEATURES)),
    Row(heads.SoftplusHead, {"features": 16, "start": 1.0}, {"start": 2.0, "hidden": 3}, on(FEATURES)),
    Row(heads.UncertaintyHead, {"features": 16}, {"out": 3, "start": 2.0, "floor": 0.5}, on(FEATURES)),
    Row(heads.VarianceHead, {"features": 16, "dim": 3, "hidden": 5}, {"dim": 4, "hidden": 6}, on(FEATURES)),
    Row(heads.VonMisesFisherHead, {"mean": nn.Linear(16, 3)}, {"uncertainty": heads.UncertaintyHead(16)}, on(FEATURES)),
    Row(backbones.GeM, {}, {"p": 2.0, "eps": 0.9}, on(PIXELS)),
    Row(backbones.create, {"name": "test_resnet"}, BACKBONE, on(IMAGES)),
    Row(backbones.Backbone, {"network": backbones.create("test_resnet").network}, BACKBONE, on(IMAGES)),
]

BATCH = (*map(tensors, (DIRECTIONS, ISOTROPIC, GALLERY, SCALED)), pe.Point(3 * tensors(GALLERY).mu))
OF_CLASSES = {"dim": DIM, "classes": 3}


def of(kind):
    """The loss of a batch of a kind, with seed 1, and its parameters."""
    d = next(d for d in BATCH if d.kind == kind)
    return lambda loss: [loss(d, torch.tensor(Z), seed=1), loss]


def uneven(loss):
    """The loss of proxies that are surer in some dimensions."""
    with torch.no_grad():
        loss.log_concentration.add_(torch.arange(float(DIM)))
    return of("vmf")(loss)


def drawn(loss, verb, seed):
    """A loss's value by draws of a seed."""
    kind = "normal_diagonal" if isinstance(loss, losses.HIB) else "vmf"
    d = next(d for d in BATCH if d.kind == kind)
    return getattr(loss, verb)(d, *[torch.tensor(Z)] * (verb == "forward"), seed=seed)


LOSSES = [
    Row(losses.PriorDivergence, {}, {"prior_var": 2.0}, of("normal_diagonal")),
    Row(losses.ArcFace, OF_CLASSES | {"margin": 1.5}, {"scale": 9.0, "margin": 0.1, "beyond": "plain"}, of("point")),
    Row(losses.CosFace, OF_CLASSES, {"scale": 9.0, "margin": 0.1}, of("point")),
    Row(losses.MagFace, OF_CLASSES | {"margins": (1.4, 1.5)},
        {"scale": 9.0, "norms": (1.0, 9.0), "margins": (0.1, 0.2), "regulariser": 9.0, "beyond": "plain"},
        of("point")),
    Row(losses.ScaleFace, OF_CLASSES | {"margin": 1.5}, {"margin": 0.1, "beyond": "plain"}, of("scaled")),
    Row(losses.HIB, {}, {"n": 3}, of("normal_diagonal")),
    Row(losses.ProxyNCAPP, OF_CLASSES,
        {"distance": "nivmf", "temperature": 2.0, "concentration": 5.0, "n": 3}, uneven),
    Row(losses.ScoreNCE, {"prior_var": 1.0}, {"prior_var": 2.0, "prior_mean": 0.5, "temperature": 2.0},
        of("normal_diagonal")),
    Row(losses.ScoreNCE, {"score": "mls"}, {"score": "ppk"}, of("normal_diagonal")),
    Row(losses.Contrastive, {}, {"positive_margin": 0.3, "negative_margin": 1.5, "score": "neg_sq_l2"}, of("point")),
    Row(losses.MarginLoss, {}, {"margin": 0.3, "beta": 1.0, "cutoff": 1.3, "far": 1.1}, of("point")),
    Row(losses.MultiSimilarity, {}, {"threshold": 0.3, "margin": 0.5, "alpha": 1.0, "beta": 9.0,
                                        "score": "neg_sq_l2"}, of("point")),
    Row(losses.ProxyAnchor, OF_CLASSES,
        {"scale": 9.0, "margin": 0.3, "weight": nn.Parameter(torch.ones(3, DIM))}, of("point")),
    Row(losses.ProxyNCA, OF_CLASSES, {"scale": 3.0}, of("point")),
    Row(losses.BayesianTriplet, {"margin": 0.2}, {"margin": 0.5, "only_violating": True},
        of("normal_isotropic")),
    Row(losses.BayesianTriplet, {}, {"match_moments": True}, of("vmf")),
    Row(losses.Triplet, {}, {"margin": 0.5, "only_violating": True, "score": "cosine"}, of("point")),
    Row(losses.TripletRegression, {}, {"margin": 0.5}, of("normal_isotropic")),
    Row(losses.VMFLoss, OF_CLASSES,
        {"samples": 3, "scale": 3.0, "confidence": 0.8, "deterministic_classes": True}, of("point")),
    Row(drawn, {"loss": losses.HIB(), "verb": "forward", "seed": 1}, {"seed": 2}, of=losses.Loss.forward),
    Row(drawn, {"loss": losses.ProxyNCAPP(**OF_CLASSES), "verb": "similarities", "seed": 1}, {"seed": 2},
        of=losses.ProxyNCAPP.similarities),
    Row(drawn, {"loss": losses.VMFLoss(**OF_CLASSES), "verb": "class_probabilities", "seed": 1}, {"seed": 2},
        of=losses.VMFLoss.class_probabilities),
]  # fmt: skip

IMAGE = Image.fromarray(RNG.integers(0, 255, (40, 50, 3), np.uint8))
STRIPS = corruption.Pictures(RNG.random((9, 8, 16)).astype(np.float32), np.arange(9), np.zeros(9, int), np.zeros(9))
HARD = corruption.Corruption(probability=0.8, severity=(0.2, 0.9), crop=0.6, occlusion=0.6, blur=2.0)


def thrice(transform):
    """An image, three times."""
    return [transform(IMAGE) for _ in range(3)]


DATA = [
    Row(images.crop_sizes, {"n": 9}, {"n": 8, "seed": 1, "least": 0.25}),
    Row(corruption.corrupt, {"pictures": STRIPS, "corruption": HARD, "seed": 0}, {"seed": 1, "kinds": ("blur",)}),
    Row(digits.captions, {"numbers": np.array([12, 345]), "digits": 3}, {"digits": 4, "hidden": 0.5}),
    Row(digits.captions, {"numbers": np.array([12, 345]), "digits": 3, "hidden": 0.5}, {"seed": 3}),
    Row(transforms.train_transform, {"normalisation": transforms.IMAGENET, "side": 32},
        {"normalisation": transforms.FACES, "side": 20, "scale": (0.1, 0.2), "ratio": (2.0, 3.0), "jitter": 0.9,
         "degrees": 45.0}, thrice),
    Row(transforms.eval_transform, {"normalisation": transforms.IMAGENET, "shorter": 30, "side": 24},
        {"normalisation": transforms.FACES, "shorter": 40, "side": 20}, thrice),
    Row(transforms.face_transform, {}, {"side": 20, "flip": True, "normalisation": transforms.IMAGENET}, thrice),
]  # fmt: skip

ROWS = [*VERBS, *RERANKER, *MEASURES, *EVALUATION, *METRICS, *IO, *HEADS, *LOSSES, *DATA]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    """Intervals are of fifty draws, enough to show an option."""
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 50)


@pytest.mark.filterwarnings("ignore:.*look reversed", "ignore:.*answers is right")  # scores of random items
@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_every_option_makes_a_difference(row):
    plain = row.result()
    assert plain == row.result(), "two calls with the same arguments differ"
    for name, value in row.changes():
        assert row.result(**{name: value}) != plain, name


# -- whose seed it is --------------------------------------------------------------------------------------------------

SEEDED = [row for row in ROWS if "seed" in row.given.keys() | row.other.keys()]


@pytest.mark.parametrize("row", SEEDED, ids=repr)
def test_every_draw_is_by_the_seed_that_was_given(row, monkeypatch):
    """Of several draws, one by a seed of its own does not show where another seed changes the others."""
    seed, asked, made = 1_000_003, {}, np.random.default_rng

    def ask(given=None):
        caller = sys._getframe(1)
        if caller.f_globals["__name__"].startswith("peaccel"):
            asked.setdefault(caller.f_code.co_name, []).append(given)
        return made(given)

    monkeypatch.setattr(np.random, "default_rng", ask)
    row.result(seed=seed)
    if row.call is not metrics.tar_at_far:  # the others take its value alone, which is without draws
        asked.pop("tar_at_far", None)
    for owner, seeds in asked.items():
        assert {seed}.union(*map(np.ravel, seeds)) <= {seed, seed + 1}, owner


# -- what an option may change -----------------------------------------------------------------------------------------

PAIRED = "pairs scores.attained_far scores.equal_error_rate scores.roc_auc scores.tar_at_far"
PAIRED += " scores.eer_threshold scores.min_dcf scores.actual_dcf scores.cllr"
ALL_OF_CONFIDENCES = "aurc ausc brier calibration curve ece novel_auroc r_auroc spearman"
CHANGED = {
    "k": "scores.recall_at_k",
    "metrics": "scores.metrics",
    "pairs": PAIRED,
    "p_target": "p_target scores.min_dcf scores.actual_dcf",
    "quality": "confidences.spearman",
    "novel": "confidences.novel_auroc open_set.curve",
    "novel_labels": "novel_classes",
}
"""The fields of an evaluation that an option changes, and no others."""


def changed(before, after):
    """The fields by their names that differ, without the number of a score or a confidence."""
    places = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
    return {".".join(part for part in place.split(".")[1:] if not part.isdigit()) for place in places}


@pytest.mark.parametrize("row", EVALUATION[:2], ids=["sides", "among themselves"])
def test_an_option_of_an_evaluation_changes_its_own_fields_alone(row):
    plain = row.result()
    for name, fields_ in CHANGED.items():
        if name in row.other:
            found = changed(plain, row.result(**{name: row.other[name]}))
            assert {".".join(field.split(".")[:2]) for field in found} <= set(fields_.split()), name


# -- what stands for None ----------------------------------------------------------------------------------------------

STANDS_FOR = [
    (pe.evaluate, {**SIDES, "labels": (Y, Z)}, {"scores": ("cosine", "mls"), "k": (5, 10)}),
    (evaluation.evaluate_templates, {"d": MANY, "templates": TEMPLATES, "labels": OF_MANY},
     {"scores": ("cosine", "mls")}),
    (pe.fuse, {"d": ISOTROPIC, "groups": Z}, {"rule": "product"}),
    (pe.fuse, {"d": SCALED, "groups": Z}, {"rule": "mean"}),
    (pe.confidence, {"d": GALLERY}, {"kind": "neg_log_var"}),
    (pe.confidence, {"d": GALLERY, "kind": "self_match", "seed": 1}, {"a": 1.0, "b": 0.0, "n": 8}),
    (pe.first_stage_reference, {"gallery": GALLERY}, {"queries": GALLERY}),
    (pe.first_stage_features, {"d": GALLERY}, {"reference": pe.first_stage_reference(GALLERY)}),
    (metrics.ceda, {"right": RIGHT, "confidence": SURE}, {"threshold": metrics.best_threshold(SURE, RIGHT)}),
    (metrics.verification_accuracy, SORTED, {"threshold": metrics.best_threshold(**SORTED)}),
    (metrics.without_self, {"ids": OWN_IDS}, {"values": OWN_IDS}),
    (pe.FaissReranker, {"index": flat(), "gallery": GALLERY}, {"ids": np.arange(G)}),
]  # fmt: skip
"""The value for which an absent option stands."""


@pytest.mark.parametrize(("call", "given", "options"), STANDS_FOR, ids=lambda x: getattr(x, "__qualname__", ""))
def test_what_is_not_given_is_what_the_page_says(call, given, options):
    def result(**more):
        made = call(**deepcopy(given), **more)
        return told(found(made)[:2] if call is pe.FaissReranker else made)

    for name, value in options.items():
        assert result(**{name: value}) == result(), name


# -- no option is forgotten --------------------------------------------------------------------------------------------

MODULES = (
    *("peaccel", "peaccel.metrics", "peaccel.io", "peaccel.evaluation", "peaccel.retrieval", "peaccel.retrieval.faiss"),
    *("peaccel.heads", "peaccel.train.backbones", "peaccel.losses", "peaccel.train", "peaccel.data"),
    *("peaccel.distributions.torch_distributions", "peaccel.special", "peaccel.scores"),
    *(f"peaccel.data.{m.name}" for m in pkgutil.iter_modules(peaccel.data.__path__) if not m.name.startswith("_")),
)
OF_DISTRIBUTIONS = "tests/distributions/test_torch_distributions.py"
READERS = "tests/data/test_data_readers.py"
ELSEWHERE = {
    **dict.fromkeys(("search prune", "embed batch", "prepare codes", "Prepared codes"),
                    "a choice of how, which changes no result, as their tests say"),
    **dict.fromkeys(("choose_score progress", "unreadable done"), "what is said while the work goes on"),
    "unreadable whole": "tests/train/test_train_cli.py",
    **dict.fromkeys(("Prepared pairs", "Backbone.train mode"), "for callers within the package"),
    **dict.fromkeys(("check_output suffixes", "check_output inputs", "read check",
                     *(f"Threshold.{check} {what}" for check in ("check", "check_score")
                       for what in ("normalisation", "dim", "applied")), "Threshold.check gallery_size"),
                    "what is refused"),
    **{f"{owner}{name} most": "tests/retrieval/test_search_above.py"
       for owner in ("", "FaissReranker.", "Gallery.") for name in ("search_above", "duplicates")},
    **dict.fromkeys((*(f"FaissReranker.{name} score" for name in ("search", "search_above", "rerank", "rescore")),
                     "FaissReranker.remove skip_missing", "Gallery.remove skip_missing"),
                    "tests/retrieval/test_searchable.py"),
    "cluster most": "tests/retrieval/test_cluster.py",
    "Threshold.select confidence": "tests/fits/test_learn_then_test.py",
    **dict.fromkeys(("Threshold.select labels", "Threshold.confidence_of labels"),
                    "tests/fits/test_answer_confidence.py"),
    "Distribution.validate first_row": "tests/io/test_arrow_tables.py",
    "write_ranking queries": "tests/cli/test_tables.py",
    **dict.fromkeys(("create weights", "create image_size"), "tests/train/test_backbones.py"),
    "features covariates": "tests/train/test_train_covariates.py",
    "features relevance": "tests/train/test_train_relevance.py",
    **dict.fromkeys(("answer_confidence kind", "answer_confidence labels"), "tests/fits/test_answer_confidence.py"),
    "read_plda before": "tests/io/test_plda_files.py",
    **dict.fromkeys(("read_distribution skip_bad", "from_arrow skip_bad"), "tests/io/test_distribution_files.py"),
    "load method": "tests/cli/test_extend.py",
    "load backbone": "tests/train/test_train_cli.py",
    **dict.fromkeys(("load_scans root", "make root"), "tests/data/test_digits.py"),
    "Distribution.cuda device": "tests/distributions/test_distributions.py",
    "train command": "tests/train/test_train_cli.py",
    "FaissReranker.build recall": "tests/retrieval/faiss/test_faiss_reranker_recall.py",
    "reader use": "tests/cli/test_extend.py",
    **{f"{name} validate_args": OF_DISTRIBUTIONS for name in torch_distributions.__all__ if name != "unit_sphere"},
    **{f"{name}.rsample sample_shape": OF_DISTRIBUTIONS for name in ("VonMisesFisher", "NonIsotropicVonMisesFisher")},
    **{f"HypersphericalUniform{name}": OF_DISTRIBUTIONS for name in (" dtype", " device", ".expand _instance")},
    **{f"{name} folds": READERS for name in ("cars196", "cub200", "features", "identities", "image_folder", "in_shop")},
    **dict.fromkeys(("sop folds", "cplfw test_identities", "cplfw seed", "features labels"), READERS),
    **dict.fromkeys(("lfw view", "labelled names", "msls parts"), READERS),
    **{f"fit {name}": "tests/train/test_train.py" for name in (
        "options", "name", "folder", "validate", "logger", "accelerator")},
    **{f"ConsoleLogger {name}": "tests/train" for name in ("folder", "description", "tensorboard")},
    **{f"Gallery.{name}": "tests/retrieval/lance/test_gallery.py" for name in (
        *(f"create {option}" for option in ("ids", "metadata", "rows", "progress")),
        *(f"create {option}" for option in ("derived", "storage_options", "sync")),
        *(f"add {option}" for option in ("ids", "metadata", "skip_existing", "rows", "progress")),
        *(f"upsert {option}" for option in ("ids", "metadata", "rows", "progress")),
        *(f"open {option}" for option in ("version", "derived", "storage_options", "sync")), "compact keep_days")},
    **dict.fromkeys(("read_candidates strings", "read_ranking strings"), "tests/cli/test_every_file.py"),
    **dict.fromkeys(("recipe changes", "train parts"), "tests/train/test_train_runs.py"),
    **{f"PromiseMonitor{name}": "tests/evaluation/test_promise_monitor.py" for name in (
        *(" reference", " delta", " begun", ".audit day", ".audit source", ".traffic day", ".traffic source"),
        *(".audits_per_week weeks", ".audits_per_week power"))},
}  # fmt: skip
"""Options of which other files say what they change, and those that change no result."""


def public():
    """Functions, classes that are no records, and public methods, by their names."""
    for module in map(importlib.import_module, MODULES):
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if not inspect.isclass(found):
                yield name, found
                continue
            if not (is_dataclass(found) or issubclass(found, tuple)):
                yield name, found
            own = {key: getattr(x, "__func__", x) for key, x in vars(found).items() if not key.startswith("_")}
            yield from ((f"{name}.{key}", x) for key, x in own.items() if inspect.isfunction(x))


def options():
    """By function, its arguments that may be left out; those of scores are `tests/test_every_score.py`'s."""
    known = {}
    for name, function in public():
        if callable(function) and not isinstance(function, pe.scores.Score) and function is not pe.CudaError:
            given = inspect.signature(function).parameters.values()
            found = [p.name for p in given if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
            known |= {name: found} if found else {}
    return known


def test_every_option_of_every_public_function_has_a_row():
    tried = {}
    for row in ROWS:
        tried.setdefault(repr(row), set()).update(row.given.keys() | row.other.keys())
    missing = {
        f"{name} {option}" for name, known in options().items() for option in known if option not in tried.get(name, ())
    }
    assert missing == ELSEWHERE.keys()


# -- a distribution is no array ----------------------------------------------------------------------------------------


def arrays_of(row):
    """The arguments of a call that are numpy arrays."""
    return [name for name, value in (row.given | row.other).items() if isinstance(value, np.ndarray)]


@pytest.mark.parametrize(
    "row", [row for row in (*VERBS, *RERANKER, *MEASURES, *EVALUATION, *METRICS, *IO) if arrays_of(row)], ids=repr
)
def test_a_distribution_in_the_place_of_an_array_is_a_type_error(row):
    for name in arrays_of(row):
        with pytest.raises(TypeError, match=rf"{name}\b.*expected an array.*(give its \.mu or \.var|or a Point)"):
            row.call(**deepcopy(row.given) | {name: GALLERY})


@pytest.mark.parametrize("module", [metrics, pe.special], ids=lambda module: module.__name__)
def test_a_distribution_for_every_argument_of_a_function_of_arrays_is_a_type_error(module):
    functions = [getattr(module, name) for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    assert len(functions) > 4
    for function in functions:
        needed = [name for name, p in inspect.signature(function).parameters.items() if p.default is p.empty]
        with pytest.raises(TypeError):
            function(*[GALLERY] * len(needed))


@pytest.mark.parametrize("make_array", [np.asarray, np.array, np.mean, np.shape])
def test_numpy_makes_no_array_of_a_distribution(make_array):
    with pytest.raises(TypeError, match=r"expected an array, got a distribution, Normal\(N=23, D=6, .*; give its \.mu"):
        make_array(GALLERY)
