"""Measures of a trained row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from peaccel import Calibration, calibrate_variance, confidence, fit_prior, metrics, paired, scores, search
from peaccel.data.corruption import Pictures
from peaccel.distributions import Distribution, Normal, Point, VonMisesFisher
from peaccel.evaluation import probability, verification_pairs
from peaccel.losses import ArcFace, CosFace, VMFLoss
from peaccel.methods.method import Method, Training
from peaccel.scores import Score
from peaccel.train import embed
from peaccel.train.evaluation import scored
from reproduction.ledger import Record, packed
from reproduction.tasks import Part, images

__all__ = ["CONDITIONS", "measure"]

CONDITIONS = tuple((queries, gallery) for queries in ("clean", "mixed") for gallery in ("clean", "mixed"))
"""Of the queries and of the gallery."""

BY_CONDITION = ("pfe", "llr_nce")
"""Methods whose scores are compared in each of these, where they give normals."""

FAR = 0.001
DIFFERENT = 100_000
"""Pairs of two classes that are verified: a hundred are accepted at `FAR`, so that its threshold is not chance."""
REJECTED_AT_RANDOM = 5
"""Orders in which pairs are rejected at random, whose mean area is taken."""


@dataclass(frozen=True)
class Rival:
    """A score whose best item and margin to the next any learned confidence has to beat, and that verifies."""

    score: Score
    calibration: Calibration | None = None

    def search(self, queries: Distribution, items: Distribution) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids and scores of the best two items of each query, [Q, 2], scores without infinities."""
        found = search(self.fitted(queries), self.fitted(items), 2, self.score)
        return np.asarray(found.ids), np.clip(np.asarray(found.scores, np.float64), -1e300, 1e300)

    def paired(self, a: Distribution, b: Distribution) -> NDArray[np.float64]:
        """Scores of pairs, [P], without infinities."""
        of_pairs = np.asarray(paired(self.fitted(a), self.fitted(b), self.score), np.float64)
        return np.asarray(np.clip(of_pairs, -1e300, 1e300))

    def fitted(self, d: Distribution) -> Distribution:
        """The items as the score takes them."""
        return d if self.calibration is None else self.calibration(d)


def measure(method: Method, training: Training, parts: Mapping[str, Part], radius: float | None = None) -> Record:
    """Numbers of the test classes, the whole gallery ranked by each score.

    Parameters
    ----------
    method, training
        A trained row.
    parts
        "validation", "query", "gallery", and "seen" where class probabilities can be judged.
    radius
        Of places: how far from a query an item was seen that is right; None where the class decides.

    Returns
    -------
    ``recall_at_1`` and ``map_at_r``, of each class `packed`, by score and condition; ``numbers`` by name.
    """

    def seen(pictures: Pictures) -> Any:
        return embed(training.model, images(pictures))

    validation, query, gallery = (parts[part] for part in ("validation", "query", "gallery"))
    held = seen(validation.mixed)
    method_score = scored(method, training, held, validation.labels)
    queries = {"mixed": seen(query.mixed)}
    items = {"mixed": seen(gallery.mixed)}
    truth: tuple[Any, Any] = query.labels, gallery.labels
    if radius is not None:
        assert query.position is not None and gallery.position is not None
        truth = metrics.Relevance.within(query.position, gallery.position, radius), None
    ranked = {"own": (method_score, queries["mixed"], items["mixed"])}
    rivals = _rivals(method, method_score, held, validation.labels)
    if method.name in BY_CONDITION and isinstance(held, Normal):
        queries["clean"], items["clean"] = seen(query.clean), seen(gallery.clean)
        ranked |= _by_condition(rivals, queries, items)
    elif isinstance(held, Normal | VonMisesFisher):
        for name in ("cosine", "mls"):
            ranked[f"mixed/mixed {name}"] = (scores.get(name), queries["mixed"], items["mixed"])
    record: Record = {"recall_at_1": {}, "map_at_r": {}, "numbers": {}}
    for name, (score, q, g) in ranked.items():
        depth = int(np.bincount(gallery.labels).max()) if radius is None else int(truth[0].sizes().max())
        ids = np.asarray(search(q, g, depth, score).ids)
        right = metrics.hit_at_k(ids, *truth)
        record["recall_at_1"][name] = packed(_by_class(right, query.labels))
        if name == "own" or name.startswith("mixed/mixed"):
            record["map_at_r"][name] = packed(_by_class(metrics.average_precision_at_r(ids, *truth), query.labels))
        if name == "own":
            sure = _confidences(method, training, q) | _of_best(rivals, q, g)
            held_out = _held_out(method, training, rivals, held, validation.labels)
            unseen = _unseen(query.mixed.kind, validation.mixed.kind)
            record["numbers"] = _numbers(sure, held_out, right, query, unseen)
    record["numbers"] |= _of_pairs(method, rivals, queries["mixed"], items["mixed"], query, gallery, validation)
    if "seen" in parts:
        record["numbers"] |= _of_classes(training, parts["seen"])
    record["numbers"] = {name: round(float(x), 5) for name, x in record["numbers"].items() if np.isfinite(x)}
    return record


def _rivals(method: Method, score: Score, held: Distribution, labels: NDArray[np.int64]) -> dict[str, Rival]:
    """The method's own score, the cosine of its means, and of PFE the calibrated likelihood ratio."""
    rivals = {"own": Rival(score), "cosine": Rival(scores.get("cosine"))}
    if method.name == "pfe" and isinstance(held, Normal):
        prior = fit_prior(held, labels)
        llr = scores.llr(prior_mean=prior.mean, prior_var=prior.var)
        rivals["llr"] = Rival(llr, calibrate_variance(held, *verification_pairs(labels, None)))
    return rivals


def _by_condition(
    rivals: Mapping[str, Rival], queries: Mapping[str, Normal], items: Mapping[str, Normal]
) -> dict[str, tuple[Score, Distribution, Distribution]]:
    """Scores of the same embeddings; calibration and prior are fitted to validation items, which are corrupted too."""
    names = {"cosine": "cosine", "own": rivals["own"].score.name if "llr" in rivals else "own", "llr": "llr calibrated"}
    ranked: dict[str, tuple[Score, Distribution, Distribution]] = {}
    for q, g in CONDITIONS:
        for name, rival in rivals.items():
            ranked[f"{q}/{g} {names[name]}"] = (rival.score, rival.fitted(queries[q]), rival.fitted(items[g]))
    return ranked


def _confidences(method: Method, training: Training, d: Distribution) -> dict[str, NDArray[np.float64]]:
    """Confidences of each item: the method's, the norm of its mean, and its class probability."""
    found = {}
    if method.confidence not in ("-", "norm"):
        found["own"] = np.asarray(confidence(d, None if method.confidence == "default" else method.confidence))
    if isinstance(d, Normal | Point):
        norms = np.linalg.norm(np.asarray(d.mu), axis=1)
        if np.ptp(norms) > 1e-3:
            found["norm"] = norms
    p = _class_probabilities(training, d)
    if p is not None:
        found["class_probability"] = p.max(1)
    return {name: np.asarray(x, np.float64) for name, x in found.items()}


def _of_best(rivals: Mapping[str, Rival], d: Distribution, items: Distribution) -> dict[str, NDArray[np.float64]]:
    """Confidences that are not learned: the best item's score and its margin to the next, by each score."""
    found = {}
    for name, rival in rivals.items():
        if name != "own" or rival.score.name != "cosine":  # which is there under its own name
            best = rival.search(d, items)[1]
            found[f"best_{name}"] = metrics.top_score_confidence(best)
            found[f"margin_{name}"] = metrics.margin_confidence(best)
    return found


def _held_out(
    method: Method, training: Training, rivals: Mapping[str, Rival], held: Distribution, labels: NDArray[np.int64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Confidences of every second validation item that searches the others, and whether it is answered."""
    half = np.arange(len(labels)) % 2 == 0
    right = metrics.hit_at_k(rivals["own"].search(held[half], held[~half])[0], labels[half], labels[~half], 1)
    sure = {name: x[half] for name, x in _confidences(method, training, held).items()}
    return sure | _of_best(rivals, held[half], held[~half]), right


def _unseen(kind: NDArray[np.int64], trained: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which items are corrupted as no item of training and validation is."""
    return np.asarray(~np.isin(kind, trained) & (kind > 0))


def _numbers(
    sure: Mapping[str, NDArray[np.float64]],
    held_out: tuple[Mapping[str, NDArray[np.float64]], NDArray[np.float64]],
    right: NDArray[np.float64],
    query: Part,
    unseen: NDArray[np.bool_],
) -> dict[str, float]:
    """How each confidence follows severity and errors; thresholds of `ceda` are of validation items, `held_out`.

    The parts of seen and of unseen corruption hold the clean queries as well.
    """
    found = {}
    known = ~np.isnan(right)
    clean = query.mixed.kind == 0
    of_held, held_right = held_out
    for name, values in {**sure, "random": metrics.random_confidence(len(right), 0)}.items():
        x, y = right[known], values[known]
        found[f"r_auroc.{name}"], found[f"ausc.{name}"] = metrics.r_auroc(x, y), metrics.rejection_area(x, y, "ausc")
        for part, of in {"seen": known & ~unseen, "unseen": known & (unseen | clean)}.items():
            if unseen.any():
                found[f"r_auroc_{part}.{name}"] = metrics.r_auroc(right[of], values[of])
        fitted = probability(y, x, query.labels[known], 0)
        error = metrics.calibration_error(x, fitted, scale="probability", binning="equal-count")
        found[f"ece_fitted.{name}"], found[f"brier.{name}"] = error.ece, float(np.mean((fitted - x) ** 2))
        if name in of_held:
            threshold = metrics.best_threshold(of_held[name], held_right)
            found[f"ceda.{name}"] = metrics.ceda(x, y, threshold)
        if not name.startswith(("best_", "margin_")):
            found |= _as_published(name, x, y)
            found[f"severity.{name}"] = -metrics.spearman(query.mixed.severity, values)
    return found


def _as_published(name: str, right: NDArray[np.float64], confidence: NDArray[np.float64]) -> dict[str, float]:
    """Calibration errors of a confidence that is no probability."""
    if np.ptp(confidence) == 0:
        return {}
    ranked = metrics.calibration_error(right, confidence, scale="rank", binning="equal-count")
    return {f"ece_minmax.{name}": metrics.calibration_error(right, confidence).ece, f"ece_rank.{name}": ranked.ece}


def _of_pairs(
    method: Method,
    rivals: Mapping[str, Rival],
    queries: Distribution,
    items: Distribution,
    query: Part,
    gallery: Part,
    validation: Part,
) -> dict[str, float]:
    """Verification by each score, and what rejecting uncertain pairs gains over rejecting any by the method's own.

    Pairs of seen corruption have none of another kind on either side, those of unseen none of a seen kind.
    """
    pairs, same = verification_pairs(query.labels, gallery.labels, 0, different=DIFFERENT)
    a, b = queries[pairs[:, 0]], items[pairs[:, 1]]
    found = {}
    for name, rival in rivals.items():
        of_pairs = rival.paired(a, b)
        found[f"auc.{name}"], found[f"eer.{name}"], found[f"tar.{name}"] = verification(of_pairs, same)
        for part, chosen in _pairs_by_corruption(query, gallery, validation, pairs):
            found[f"eer_{part}.{name}"] = verification(of_pairs[chosen], same[chosen])[1]
    method_scores = rivals["own"].paired(a, b)
    at_random = [
        metrics.reject_verification(method_scores, same, -metrics.random_confidence(len(same), seed), FAR).area_by_width
        for seed in range(1, REJECTED_AT_RANDOM + 1)
    ]
    found["rejection.random"] = float(np.mean(at_random))
    sides = [_uncertainty(method, d) for d in (a, b)]
    if sides[0] is not None and sides[1] is not None:
        doubts = metrics.pair_uncertainty(sides[0], sides[1])
        found["rejection.own"] = metrics.reject_verification(method_scores, same, doubts, FAR).area_by_width
        found["rejection_gain.own"] = found["rejection.own"] - found["rejection.random"]
    return found


def verification(of_pairs: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ROC AUC, EER and TAR at `FAR`; NaN without pairs."""
    if not len(same):
        return np.nan, np.nan, np.nan
    rate = metrics.equal_error_rate(of_pairs, same, resamples=1).rate
    return metrics.roc_auc(of_pairs, same), rate, metrics.tar_at_far(of_pairs, same, FAR, resamples=1).tar


def _pairs_by_corruption(
    query: Part, gallery: Part, validation: Part, pairs: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Pairs without items that are corrupted as none in training was, and those without items that are as some were."""
    sides = [part.mixed.kind[pairs[:, i]] for i, part in enumerate((query, gallery))]
    unseen = [_unseen(kind, validation.mixed.kind) for kind in sides]
    if unseen[0].any():
        yield "seen", ~(unseen[0] | unseen[1])
        yield "unseen", np.logical_and(*(new | (kind == 0) for new, kind in zip(unseen, sides, strict=True)))


def _uncertainty(method: Method, d: Distribution) -> NDArray[np.float64] | None:
    """A positive uncertainty of each item, by the method's own word, the norm included; None where it has none."""
    if method.confidence == "-":
        return None
    if method.confidence == "norm":
        return np.asarray(1 / np.maximum(np.linalg.norm(np.asarray(d.mu, np.float64), axis=1), 1e-30))
    kind = {"normal": "harmonic_var", "vmf": "inverse_kappa", "nivmf": "inverse_kappa", "scaled": "inverse_scale"}
    return np.asarray(confidence(d, kind[d.kind.split("_")[0]]), np.float64)


def _of_classes(training: Training, part: Part) -> dict[str, float]:
    """Of images of training classes never seen: accuracy of the likeliest class, and the error of its probability.

    That error is also taken after temperature scaling, which is fitted to the other half of these images.
    """
    p = _class_probabilities(training, embed(training.model, images(part.mixed)))
    if p is None:
        return {}
    right = (p.argmax(1) == part.labels).astype(np.float64)
    scaled = tempered(p, part.labels).max(1)
    errors = [metrics.calibration_error(right, np.minimum(x, 1), scale="probability").ece for x in (p.max(1), scaled)]
    return {"class_accuracy": float(right.mean()), "class_ece": errors[0], "class_ece_scaled": errors[1]}


def tempered(p: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Class probabilities [N, C], proportional to p^(1 / T); every second of a class has the T likeliest of the others.

    References
    ----------
    Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    logs = np.log(np.maximum(p, 1e-300))
    order = np.argsort(labels, kind="stable")
    half = np.empty(len(labels), np.bool_)
    half[order] = np.arange(len(labels)) % 2 == 0

    def softened(log_t: float, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        x = logs[rows] / np.exp(log_t)
        x = np.exp(x - x.max(1, keepdims=True))
        return np.asarray(x / x.sum(1, keepdims=True))

    def loss(log_t: float, rows: NDArray[np.bool_]) -> float:
        of_label = np.take_along_axis(softened(log_t, rows), labels[rows, None], 1)
        return -float(np.log(np.maximum(of_label, 1e-300)).mean())

    found = np.empty_like(logs)
    for rows in (half, ~half):
        fitted = minimize_scalar(loss, bounds=(-4.0, 4.0), args=(~rows,), method="bounded")
        found[rows] = softened(float(fitted.x), rows)
    return found


@torch.no_grad()
def _class_probabilities(training: Training, d: Distribution) -> NDArray[np.float64] | None:
    """[N, C] of the training classes, by a row's own softmax; None of rows without one."""
    loss, d = training.criterion, d._map(torch.from_numpy)
    if isinstance(loss, VMFLoss) and isinstance(d, Point | VonMisesFisher):
        p = loss.class_probabilities(d, 0)
    elif isinstance(loss, ArcFace | CosFace):
        p = (loss.scale * loss.cosines(d)).softmax(1)
    else:
        return None
    return np.asarray(p.double().numpy())


def _by_class(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean of a number of each query over each class; of a query without an answer 0."""
    return np.asarray(np.bincount(labels, np.nan_to_num(values)) / np.bincount(labels))
