"""Losses beside the best plain forms that a user of torch would write, on the outputs of a head: `benches.train_step`.

Pairs come from products of matrices where there are such, all in float32. "in scores" is what the pairs' scores alone
take of ours, forward and backward, by the same verb: the rest is what the loss adds to it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benches.common import row, torch
from benches.data import distribution, fields
from peaccel import losses, retrieval

functional = torch.nn.functional
DIM, IMAGES = 128, 4
Statement = Callable[..., Any]  # from the loss's parameters, the leaves of a batch, and labels to the loss


def same_pairs(labels: Any) -> tuple[Any, Any]:
    """Rows of the pairs i < j of one class."""
    return torch.triu(labels[:, None] == labels, 1).nonzero(as_tuple=True)


def squared(x: Any) -> Any:
    norms = (x * x).sum(1)
    return (norms[:, None] + norms - 2 * x @ x.T).clamp(min=0)


def negative_mls(loss: Any, leaves: Any, labels: Any) -> Any:
    mu, var = leaves
    i, j = same_pairs(labels)
    v = var[i] + var[j]
    if v.ndim == 2:
        return ((mu[i] - mu[j]).square() / v + v.log()).sum(1).mean() / 2 + DIM / 2 * math.log(2 * math.pi)
    return ((mu[i] - mu[j]).square().sum(1) / v + DIM * (2 * math.pi * v).log()).mean() / 2


def triplet(loss: Any, leaves: Any, labels: Any) -> Any:
    apart = squared(functional.normalize(leaves[0]))
    same = labels[:, None] == labels
    anchors, positives = (same & ~torch.eye(len(labels), dtype=torch.bool)).nonzero(as_tuple=True)
    hinges = (apart[anchors, positives, None] - apart[anchors] + loss.margin).relu()
    negative = ~same[anchors]
    return (hinges * negative).sum() / negative.sum()


def multi_similarity(loss: Any, leaves: Any, labels: Any) -> Any:
    x = functional.normalize(leaves[0])
    cosines, different = x @ x.T, labels[:, None] != labels
    same = ~different & ~torch.eye(len(labels), dtype=torch.bool)
    hardest = cosines.masked_fill(~different, -math.inf).amax(1, keepdim=True)
    easiest = cosines.masked_fill(~same, math.inf).amin(1, keepdim=True)
    near = same & (cosines - loss.margin < hardest)
    far = different & (cosines + loss.margin > easiest)
    pulled = ((-loss.alpha * (cosines - loss.threshold)).exp() * near).sum(1).log1p() / loss.alpha
    return (pulled + ((loss.beta * (cosines - loss.threshold)).exp() * far).sum(1).log1p() / loss.beta).mean()


def score_nce(loss: Any, leaves: Any, labels: Any) -> Any:
    mu, var = leaves
    v = var[:, None] + var
    logits = -(squared(mu) / v + DIM * (2 * math.pi * v).log()) / 2 / loss.temperature
    different = labels[:, None] != labels
    same = ~different & ~torch.eye(len(labels), dtype=torch.bool)
    of_class, of_others = (logits.masked_fill(~pairs, -math.inf).logsumexp(1) for pairs in (same, different))
    return functional.softplus(of_others - of_class).mean()


def arcface(loss: Any, leaves: Any, labels: Any) -> Any:
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    own = cosines.gather(1, labels[:, None])
    turned = own * math.cos(loss.margin) - (1 - own * own).clamp(min=1e-7).sqrt() * math.sin(loss.margin)
    own = torch.where(own > -math.cos(loss.margin), turned, own - loss.margin * math.sin(loss.margin))
    return functional.cross_entropy(loss.scale * cosines.scatter(1, labels[:, None], own), labels)


def proxy_anchor(loss: Any, leaves: Any, labels: Any) -> Any:
    cosines = functional.linear(functional.normalize(leaves[0]), functional.normalize(loss.weight))
    same = functional.one_hot(labels, len(loss.weight)).bool()
    near = (loss.scale * (loss.margin - cosines)).masked_fill(~same, -math.inf)
    far = (loss.scale * (cosines + loss.margin)).masked_fill(same, -math.inf)
    nothing = cosines.new_zeros(1, len(loss.weight))
    near, far = (torch.cat((x, nothing)).logsumexp(0) for x in (near, far))
    return near.sum() / same.any(0).sum() + far.mean()


def pairs_of_scores(score: str, leaves: Any, kind: str) -> Any:
    d = distribution(kind, leaves)
    return retrieval.pairwise(d, d, score)


class Peer(NamedTuple):
    """A loss, its plain form, the kind of its items, how many classes it has, and the scores in it, if by pairs."""

    name: str
    make: Callable[[], Any]
    plain: Statement
    kind: str
    classes: int | None = None
    scores: Callable[[Any], Any] | None = None


PEERS = (
    Peer("NegativeMLS isotropic", losses.NegativeMLS, negative_mls, "isotropic"),
    Peer("NegativeMLS diagonal", losses.NegativeMLS, negative_mls, "diagonal"),
    Peer("Triplet", losses.Triplet, triplet, "point"),
    Peer("MultiSimilarity", losses.MultiSimilarity, multi_similarity, "point"),
    Peer(
        "ScoreNCE mls",
        partial(losses.ScoreNCE, "mls", temperature=float(DIM)),
        score_nce,
        "isotropic",
        None,
        lambda leaves: pairs_of_scores("mls", leaves, "isotropic"),
    ),
    *(
        Peer(f"ArcFace, {classes:,} classes", partial(losses.ArcFace, DIM, classes), arcface, "point", classes)
        for classes in (10_000, 100_000)
    ),
    Peer("ProxyAnchor, 10,000 classes", partial(losses.ProxyAnchor, DIM, 10_000), proxy_anchor, "point", 10_000),
)
ROUNDS = 5
TURN = 0.02  # seconds
DIFFER = "DIFFER"  # in a row whose sides do not compute the same
BATCHES = (64, 256, 1024, 4096)
MOST = 1 << 28  # numbers of triplets, or of items and classes, beyond which a side needs gigabytes


def too_large(peer: Peer, batch: int) -> bool:
    others = IMAGES - 1 if peer.name == "Triplet" else 1
    return batch * batch * others > MOST if peer.classes is None else batch * peer.classes > MOST


def step(value: Callable[[Any, Any], Any], leaves: Any, loss: Any, labels: Any) -> None:
    """A forward and a backward, all gradients new."""
    for leaf in (*leaves, *loss.parameters()):
        leaf.grad = None
    value(leaves, labels).sum().backward()


def of_leaves(loss: Any, kind: str, leaves: Any, labels: Any) -> Any:
    """The loss of a distribution of this kind."""
    return loss(distribution(kind, leaves), labels)


def processor_seconds(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median of each side's processor time, by turns: what others run on the machine counts for none of them.

    In a turn a side runs for `TURN` or once. Turns go forwards and backwards, since what the side before has freed,
    and the system must clear again, is paid by the next.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in [*runs.items()][:: 1 if turn % 2 else -1]:
            start, steps, spent = time.process_time(), 0, 0.0
            while not steps or spent < TURN:
                run()
                steps, spent = steps + 1, time.process_time() - start
            found[name].append(spent / steps)
    return {name: statistics.median(x) for name, x in found.items()}


def tables(quick: bool, compiled: bool) -> Iterator[str]:
    """A row for each loss and batch: ours, the plain form, the ratio, and the share of ours that is in scores."""
    for peer in PEERS:
        for batch in (64,) if quick else BATCHES:
            if too_large(peer, batch):
                continue
            torch.manual_seed(0)
            loss = peer.make()
            labels = torch.arange(batch // IMAGES).repeat_interleave(IMAGES)
            leaves = tuple(torch.from_numpy(x).requires_grad_() for x in fields(peer.kind, batch, DIM, 0, 50))
            ours = partial(of_leaves, loss, peer.kind)
            plain = partial(peer.plain, loss)
            with torch.no_grad():
                own, theirs = (float(f(leaves, labels)) for f in (ours, plain))
            agree = math.isclose(own, theirs, rel_tol=1e-4, abs_tol=1e-5)
            sides = {"ours": ours, "plain torch": plain}
            if compiled:
                torch._dynamo.reset()  # or it gives up on a function that it has compiled eight times
                sides |= {f"{name}, compiled": torch.compile(f) for name, f in tuple(sides.items())}
            if peer.scores is not None:
                sides["in scores"] = lambda leaves, labels, scores=peer.scores: scores(leaves)
            runs = {name: partial(step, f, leaves, loss, labels) for name, f in sides.items()}
            for run in runs.values():
                run()
            seconds = processor_seconds(runs, 1 if quick else ROUNDS)
            times = "; ".join(f"{name} {1e3 * x:.3g} ms" for name, x in seconds.items())
            ratio = f"{seconds['ours'] / seconds['plain torch']:.2f}x of plain torch"
            yield row(f"{peer.name}, batch {batch}", "peaccel", times, "", ratio, "<= 1x", "" if agree else DIFFER)
