"""What losses cost in a training step: alone, beside plain torch, and beside a backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benches import plain_losses
from benches.data import distribution, fields, optional
from benches.peers import torch
from benches.table import Row, Side, close
from peaccel import losses as ours
from peaccel import retrieval
from peaccel.ops import sample
from peaccel.ops.samplers import STREAMS, sample_vmf

nn, functional = torch.nn, torch.nn.functional
BATCH, IMAGES, DIM, FEATURES = 128, 4, 128, 512  # images of a class; features of a ResNet-18
FEW, MANY = 74, 11_318  # training classes of Cars196 (less validation) and of Stanford Online Products

# ---- loss and head alone ---------------------------------------------------------------------------------------------

Build = Callable[[Any, int], Any]


class Entry(NamedTuple):
    """A loss: its class, the kind of distribution that it takes, and how it is made for so many classes."""

    name: str
    kind: str
    build: Build


def by_class(**settings: Any) -> Build:
    return lambda kind, classes: kind(DIM, classes, **settings)


def by_batch(*arguments: Any, **settings: Any) -> Build:
    return lambda kind, classes: kind(*arguments, **settings)


LOSSES = (
    *(Entry(name, "point", by_class()) for name in ("ArcFace", "CosFace", "MagFace")),
    Entry("ScaleFace", "scaled", by_class()),
    Entry("VMFFL", "vmf", by_class()),
    Entry("VMFLoss", "vmf", by_class(samples=10)),
    *(Entry(name, "point", by_class()) for name in ("ProxyAnchor", "ProxyNCA")),
    *(
        Entry(f"ProxyNCAPP {distance}", "vmf", by_class(distance=distance))
        for distance in ("el_nivmf", "el_vmf", "b_vmf", "kl_vmf", "nivmf", "l2", "cos")
    ),
    *(
        Entry(f"ClassLikelihood {kind}", kind, lambda made, classes: made(torch.randn(classes, DIM)))
        for kind in ("isotropic", "vmf")
    ),
    *(Entry(f"PriorDivergence {kind}", kind, by_batch()) for kind in ("isotropic", "vmf")),
    *(Entry(f"NegativeMLS {kind}", kind, by_batch()) for kind in ("isotropic", "diagonal")),
    *(Entry(f"HIB {kind}", kind, by_batch()) for kind in ("isotropic", "diagonal")),
    *(Entry(name, "point", by_batch()) for name in ("Contrastive", "MultiSimilarity", "MarginLoss", "Triplet")),
    *(Entry(name, "isotropic", by_batch()) for name in ("TripletRegression", "BayesianTriplet")),
    Entry("ScoreNCE llr", "diagonal", by_batch("llr", prior_var=1 / DIM)),
    Entry("ScoreNCE mls", "diagonal", by_batch("mls")),
)
EXTRA = {"point": 0, "vmf": 0, "scaled": 1, "isotropic": 1, "diagonal": DIM}  # outputs beside the mean


class Head(nn.Module):  # type: ignore[misc, name-defined]
    """A linear map from features to a distribution."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(FEATURES, DIM + EXTRA[kind])

    def forward(self, features: Any) -> Any:
        x = self.linear(features)
        e, uncertainty = x[:, :DIM], x[:, DIM:].squeeze(1)
        mu = e if self.kind == "point" else functional.normalize(e)
        if self.kind == "point":
            return distribution("point", (mu,))
        if self.kind == "vmf":
            return distribution("vmf", (mu, e.norm(dim=1)))
        uncertainty = 64 * uncertainty.sigmoid() if self.kind == "scaled" else (uncertainty - 5).exp()
        return distribution(self.kind, (mu, uncertainty))


def found(classes: int) -> Iterator[tuple[Entry, Any, Any]]:
    """The losses that there are, each with a head before it."""
    for entry in LOSSES:
        made = getattr(ours, entry.name.split()[0], None)
        if made is not None:
            torch.manual_seed(0)
            yield entry, Head(entry.kind), entry.build(made, classes)


def labels_of(classes: int) -> Any:
    """The labels of a batch: some images of one class after the other."""
    chosen = torch.randperm(classes, generator=torch.Generator().manual_seed(0))[: BATCH // IMAGES]
    return chosen.repeat_interleave(IMAGES)


def features() -> Any:
    return torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()


def step(value: Callable[[], Any], leaves: list[Any]) -> None:
    """A forward and a backward, all gradients new."""
    for leaf in leaves:
        leaf.grad = None
    value().sum().backward()


def alone(
    head: Any, loss: Any, x: Any, labels: Any, value: Callable[[Any, Any], Any] | None = None
) -> Callable[[], None]:
    """A step of a head and a loss, or of a form of it that takes the head's embeddings."""

    def forward() -> Any:
        return loss(head(x), labels) if value is None else value(head.linear(x), labels)

    return partial(step, forward, [x, *head.parameters(), *loss.parameters()])


def losses(quick: bool) -> Iterator[Row]:
    """Every loss and its head alone, beside ArcFace's."""
    for classes in (FEW, MANY):
        runs = {entry.name: alone(head, loss, features(), labels_of(classes)) for entry, head, loss in found(classes)}
        sides = {name: Side(run, {} if name == "ArcFace" else {"ArcFace": None}) for name, run in runs.items()}
        name = f"loss + head, forward + backward, {BATCH} x {DIM}, {classes:,} classes"
        yield Row(name, sides, per=(1, "step"), seconds=10)


# ---- losses of draws beside plain torch ------------------------------------------------------------------------------


class Plain(NamedTuple):
    """A loss in plain torch, how it compares draws with classes, and the stream of peaccel's draws."""

    statement: Callable[..., Any]
    as_written: Callable[..., Any]
    by_products: Callable[..., Any]
    stream: str


PLAIN = {
    "ProxyNCAPP el_nivmf": Plain(
        plain_losses.el_nivmf, plain_losses.stretched_by_rows, plain_losses.stretched_by_products, "query"
    ),
    "VMFLoss": Plain(plain_losses.vmf_loss, plain_losses.lengths_by_rows, plain_losses.lengths_by_products, "user"),
}


def same_draws(stream: str, e: Any, n: int) -> Any:
    """The draws that peaccel makes from the seed 1."""
    return sample(sample_vmf, functional.normalize(e), e.norm(dim=1), torch.tensor(1), n, 0, STREAMS[stream])


def own_draws(e: Any, n: int) -> Any:
    return plain_losses.wood(functional.normalize(e), e.norm(dim=1), n)


def losses_of_draws(quick: bool) -> Iterator[Row]:
    """Loss and head beside plain statements, which are checked at peaccel's draws; many classes by products alone."""
    for classes in (FEW, MANY):
        for entry, head, loss in found(classes):
            if entry.name in PLAIN:
                yield beside_plain(entry.name, head, loss, classes)


def beside_plain(name: str, head: Any, loss: Any, classes: int) -> Row:
    """One loss of draws."""
    of, labels = PLAIN[name], labels_of(classes)
    pairs = {"plain torch, products": of.by_products}
    if classes == FEW:
        pairs["plain torch, as written"] = of.as_written
    statements = {form: partial(of.statement, each) for form, each in pairs.items()}

    def same(*results: Any) -> None:
        with torch.no_grad():
            e, own = head.linear(features()), loss(head(features()), labels, seed=1)
            close(own, *(each(partial(same_draws, of.stream), loss, e, labels) for each in statements.values()))

    runs = {
        form: alone(head, loss, features(), labels, partial(each, own_draws, loss)) for form, each in statements.items()
    }
    sides = {"peaccel": Side(alone(head, loss, features(), labels), dict.fromkeys(runs, 1 / 5)), **runs}
    work = f"loss + head of {name}, forward + backward, {BATCH} x {DIM}, {classes:,} classes"
    return Row(work, sides, same, (1, "step"), seconds=5)


# ---- losses alone beside plain torch ---------------------------------------------------------------------------------


class Peer(NamedTuple):
    """A loss, its plain form, the kind of its items, how many classes it has, and the score in it, if by pairs."""

    name: str
    make: Callable[[], Any]
    plain: Callable[..., Any]
    kind: str
    classes: int | None = None
    score: str | None = None


NCE = partial(ours.ScoreNCE, "mls", temperature=float(DIM))
PEERS = (
    Peer("NegativeMLS isotropic", ours.NegativeMLS, plain_losses.negative_mls, "isotropic"),
    Peer("NegativeMLS diagonal", ours.NegativeMLS, plain_losses.negative_mls, "diagonal"),
    Peer("Triplet", ours.Triplet, plain_losses.triplet, "point"),
    Peer("MultiSimilarity", ours.MultiSimilarity, plain_losses.multi_similarity, "point"),
    Peer("ScoreNCE mls", NCE, plain_losses.score_nce, "isotropic", score="mls"),
    *(
        Peer(
            f"ArcFace, {classes:,} classes", partial(ours.ArcFace, DIM, classes), plain_losses.arcface, "point", classes
        )
        for classes in (10_000, 100_000)
    ),
    Peer(
        "ProxyAnchor, 10,000 classes",
        partial(ours.ProxyAnchor, DIM, 10_000),
        plain_losses.proxy_anchor,
        "point",
        10_000,
    ),
)
BATCHES = (64, 256, 1024, 4096)
MOST = 1 << 28  # numbers of triplets, or of items and classes, beyond which a side needs gigabytes


def too_large(peer: Peer, batch: int) -> bool:
    others = IMAGES - 1 if peer.name == "Triplet" else 1
    return batch * batch * others > MOST if peer.classes is None else batch * peer.classes > MOST


def losses_by_batch(quick: bool, compiled: bool = False) -> Iterator[Row]:
    """Losses by batch size in processor time, which counts for no side what others run on the machine."""
    for peer in PEERS:
        for batch in (64,) if quick else BATCHES:
            if not too_large(peer, batch):
                yield of_batch(peer, batch, compiled)


def compiled_losses(quick: bool) -> Iterator[Row]:
    """The same, both sides by torch.compile too."""
    yield from losses_by_batch(quick, compiled=True)


def of_batch(peer: Peer, batch: int, compiled: bool) -> Row:
    """A loss and its plain form; "scores alone" is what the pairs' scores take of ours, by the same verb."""
    torch.manual_seed(0)
    loss, labels = peer.make(), torch.arange(batch // IMAGES).repeat_interleave(IMAGES)
    leaves = tuple(torch.from_numpy(x).requires_grad_() for x in fields(peer.kind, batch, DIM, 0, 50))

    def own() -> Any:
        return loss(distribution(peer.kind, leaves), labels)

    def scores() -> Any:
        d = distribution(peer.kind, leaves)
        return retrieval.pairwise(d, d, peer.score)

    def same(*results: Any) -> None:
        with torch.no_grad():
            close(plain(), own())

    plain, forward = partial(peer.plain, loss, leaves, labels), {}
    forward |= {"peaccel": own, "plain torch": plain}
    goals: dict[str, dict[str, float | None]] = {"peaccel": {"plain torch": 1.0}}
    if compiled:
        torch._dynamo.reset()  # or it gives up on a function that it has compiled eight times
        forward |= {f"{name}, compiled": torch.compile(f) for name, f in tuple(forward.items())}
        goals["peaccel, compiled"] = {"plain torch, compiled": 1.0}
    if peer.score is not None:
        forward["scores alone"] = scores
    every = [*leaves, *loss.parameters()]
    sides = {name: Side(partial(step, f, every), goals.get(name, {})) for name, f in forward.items()}
    how: dict[str, Any] = {"clock": time.process_time, "turn": 0.02, "seconds": 2}
    return Row(f"{peer.name}, batch {batch}", sides, same, (1, "step"), **how)


# ---- whole steps -----------------------------------------------------------------------------------------------------


def goals_of(name: str, classes: int) -> dict[str, float | None]:
    if name == "ArcFace":
        return {}
    if name == "BayesianTriplet":
        return {"Triplet": 1.05}
    return {"ArcFace": 1.05 if name == "ProxyNCAPP el_nivmf" or (name, classes) == ("VMFLoss", MANY) else 1.03}


def steps(quick: bool) -> Iterator[Row]:
    """Whole steps of a ResNet-18 beside ArcFace's, and the share that loss and head have in them.

    Small shares are told by it, not by the ratio, which a shared machine moves by some percent.
    """
    backbone = optional("timm").create_model("resnet18", num_classes=0)
    images = torch.randn(BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    for classes in (FEW, MANY):
        sides, labels = {}, labels_of(classes)
        for entry, head, loss in found(classes):
            if classes == MANY and entry.name not in ("ArcFace", *PLAIN):
                continue
            parameters = [x for module in (backbone, head, loss) for x in module.parameters()]
            # All sides are to see the same weights: steps of length 0, which take as long.
            optimizer = torch.optim.SGD(parameters, lr=0.0, momentum=0.9)
            run = partial(whole_step, backbone, head, loss, images, labels, optimizer)
            sides[entry.name] = Side(run, goals_of(entry.name, classes))
            sides[f"loss + head of {entry.name}"] = Side(alone(head, loss, features(), labels), {entry.name: None})
        name = f"whole step of ResNet-18, {BATCH} x 64 x 64, {classes:,} classes"
        yield Row(name, sides, per=(1, "step"), seconds=180 if classes == FEW else 30)


def whole_step(backbone: Any, head: Any, loss: Any, images: Any, labels: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss(head(backbone(images)), labels).backward()
    optimizer.step()
