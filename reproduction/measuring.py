"""What is measured of a trained row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peaccel import measures, metrics, retrieval, scores
from peaccel.data.corruption import Pictures
from peaccel.distributions import Distribution, Normal, Point, Scaled, VonMisesFisher
from peaccel.evaluation.choosing import fit
from peaccel.evaluation.drawn_pairs import verification_pairs
from peaccel.evaluation.verifying import FAR, verification
from peaccel.losses.margin import ArcFace, CosFace
from peaccel.losses.vmf import VMFLoss
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

    def seen(part: str, pictures: Pictures) -> Any:
        return embed(training.model, images(pictures))

    validation, query, gallery = (parts[part] for part in ("validation", "query", "gallery"))
    held = seen("validation", validation.mixed)
    own = scored(method, training, held, validation.labels)
    queries = {"mixed": seen("query", query.mixed)}
    items = {"mixed": seen("gallery", gallery.mixed)}
    truth: tuple[Any, Any] = query.labels, gallery.labels
    if radius is not None:
        assert query.position is not None and gallery.position is not None
        truth = metrics.Relevance.within(query.position, gallery.position, radius), None
    ranked = {"own": (own, queries["mixed"], items["mixed"])}
    if method.name in BY_CONDITION and isinstance(held, Normal):
        queries["clean"], items["clean"] = seen("query", query.clean), seen("gallery", gallery.clean)
        ranked |= _by_condition(method, own, held, validation.labels, queries, items)
    record: Record = {"recall_at_1": {}, "map_at_r": {}, "numbers": {}}
    for name, (score, q, g) in ranked.items():
        depth = int(np.bincount(gallery.labels).max()) if radius is None else int(truth[0].sizes().max())
        ids = np.asarray(retrieval.search(q, g, depth, score).ids)
        right = metrics.hit_at_k(ids, *truth)
        record["recall_at_1"][name] = packed(_by_class(right, query.labels))
        if name == "own" or name.startswith("mixed/mixed"):
            record["map_at_r"][name] = packed(_by_class(metrics.average_precision_at_r(ids, *truth), query.labels))
        if name == "own":
            record["numbers"] = _numbers(method, training, own, held, validation, queries["mixed"], query, right)
    record["numbers"] |= _of_pairs(method, own, queries["mixed"], items["mixed"], query.labels, gallery.labels)
    if "seen" in parts:
        record["numbers"] |= _of_classes(training, parts["seen"])
    record["numbers"] = {name: round(float(x), 6) for name, x in record["numbers"].items() if np.isfinite(x)}
    return record


def _by_condition(
    method: Method,
    own: Score,
    held: Normal,
    labels: NDArray[np.int64],
    queries: Mapping[str, Normal],
    items: Mapping[str, Normal],
) -> dict[str, tuple[Score, Normal, Normal]]:
    """Scores of the same embeddings; calibration and prior are fitted to validation items, which are corrupted too."""
    fits = fit(held, labels, 0)
    assert fits.calibration is not None and fits.prior is not None
    ranked: dict[str, tuple[Score, Normal, Normal]] = {}
    for q, g in CONDITIONS:
        pair = queries[q], items[g]
        calibrated = fits.calibration(pair[0]), fits.calibration(pair[1])
        llr = scores.llr(prior_mean=fits.prior.mean, prior_var=fits.prior.var)
        ranked[f"{q}/{g} cosine"] = (scores.get("cosine"), *pair)
        if method.name == "pfe":
            ranked[f"{q}/{g} mls"] = (scores.get("mls"), *pair)
            ranked[f"{q}/{g} llr calibrated"] = (llr, *calibrated)
        else:
            ranked[f"{q}/{g} own"] = (own, *pair)
    return ranked


def _confidences(method: Method, training: Training, d: Distribution) -> dict[str, NDArray[np.float64]]:
    """What says how sure each item is: the method's own word, the norm of its mean, and its class probability."""
    found = {}
    if method.confidence not in ("-", "norm"):
        found["own"] = np.asarray(measures.confidence(d, None if method.confidence == "default" else method.confidence))
    if isinstance(d, Normal | Point):
        norms = np.linalg.norm(np.asarray(d.mu), axis=1)
        if np.ptp(norms) > 1e-3:
            found["norm"] = norms
    p = _class_probabilities(training, d)
    if p is not None:
        found["class_probability"] = p.max(1)
    return {name: np.asarray(x, np.float64) for name, x in found.items()}


def _numbers(
    method: Method,
    training: Training,
    own: Score,
    held: Distribution,
    validation: Part,
    queries: Distribution,
    query: Part,
    right: NDArray[np.float64],
) -> dict[str, float]:
    """How each confidence follows severity and errors; thresholds of `ceda` are of validation items."""
    found = {}
    known = ~np.isnan(right)
    of_held, of_queries = (_confidences(method, training, d) for d in (held, queries))
    half = np.arange(len(validation.labels)) % 2 == 0
    ids = np.asarray(retrieval.search(held[half], held[~half], 1, own).ids)
    held_right = metrics.hit_at_k(ids, validation.labels[half], validation.labels[~half], 1)
    of_queries["random"] = metrics.random_confidence(len(right), 0)
    for name, confidence in of_queries.items():
        found[f"severity.{name}"] = -metrics.spearman(query.mixed.severity, confidence)
        found[f"r_auroc.{name}"] = metrics.r_auroc(right[known], confidence[known])
        found[f"ausc.{name}"] = metrics.ausc(right[known], confidence[known])
        if np.ptp(confidence[known]) > 0:
            published = metrics.calibration_error(right[known], confidence[known])
            ranked = metrics.calibration_error(right[known], confidence[known], scale="rank", binning="equal-count")
            found[f"ece_minmax.{name}"], found[f"ece_rank.{name}"] = published.ece, ranked.ece
        if name in of_held:
            threshold = metrics.best_threshold(of_held[name][half], held_right)
            found[f"ceda.{name}"] = metrics.ceda(right[known], confidence[known], threshold)
    return found


def _of_pairs(
    method: Method,
    own: Score,
    queries: Distribution,
    items: Distribution,
    query_labels: NDArray[np.int64],
    gallery_labels: NDArray[np.int64],
) -> dict[str, float]:
    """Verification by the method's score and by the cosine, and what rejecting uncertain pairs gains there."""
    pairs, same = verification_pairs(query_labels, gallery_labels, 0)
    a, b = queries[pairs[:, 0]], items[pairs[:, 1]]
    found = {}
    cosine = scores.get("cosine") if isinstance(queries, Normal | Point | Scaled) else None
    for name, score in {"own": own, "cosine": cosine}.items():
        if score is not None:
            of_pairs = np.asarray(retrieval.paired(a, b, score), np.float64)
            found[f"auc.{name}"], found[f"eer.{name}"], found[f"tar.{name}"] = verification(of_pairs, same)
            if name == "own":
                own_scores = np.clip(of_pairs, -1e300, 1e300)
    sides = [_uncertainty(method, d) for d in (a, b)]
    if sides[0] is not None and sides[1] is not None:
        doubts = metrics.pair_uncertainty(sides[0], sides[1])
        found["rejection.own"] = metrics.reject_verification(own_scores, same, doubts, FAR).area_by_width
    doubts = -metrics.random_confidence(len(same), 1)
    found["rejection.random"] = metrics.reject_verification(own_scores, same, doubts, FAR).area_by_width
    return found


def _uncertainty(method: Method, d: Distribution) -> NDArray[np.float64] | None:
    """A positive uncertainty of each item, by the method's own word, the norm included; None where it has none."""
    if method.confidence == "-":
        return None
    if method.confidence == "norm":
        return np.asarray(1 / np.maximum(np.linalg.norm(np.asarray(d.mu, np.float64), axis=1), 1e-30))
    kind = {"normal": "harmonic_var", "vmf": "inverse_kappa", "nivmf": "inverse_kappa", "scaled": "inverse_scale"}
    return np.asarray(measures.confidence(d, kind[d.kind.split("_")[0]]), np.float64)


def _of_classes(training: Training, part: Part) -> dict[str, float]:
    """Of images of training classes never seen: accuracy of the likeliest class, and the error of its probability."""
    p = _class_probabilities(training, embed(training.model, images(part.mixed)))
    if p is None:
        return {}
    right = (p.argmax(1) == part.labels).astype(np.float64)
    error = metrics.calibration_error(right, np.minimum(p.max(1), 1), scale="probability")
    return {"class_accuracy": float(right.mean()), "class_ece": error.ece}


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
