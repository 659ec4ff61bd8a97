"""Losses in a training step: alone, beside plain torch, and beside a backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benches import plain_losses
from benches.data import distribution, fields, optional
from benches.peers import tensors, torch, without_gradient
from benches.plain_losses import DIM, IMAGES, PAIRED
from benches.table import Row, Side, close
from peaccel import losses as ours
from peaccel import retrieval
from peaccel.ops import sample
from peaccel.ops.samplers import STREAMS, sample_vmf

nn, functional = torch.nn, torch.nn.functional
BATCH, FEATURES = 128, 512  # features of a ResNet-18
FEW, MANY = 74, 11_318  # training classes of Cars196 (less validation) and of Stanford Online Products
Goals = dict[str, float | None]

# ---- loss and head alone ---------------------------------------------------------------------------------------------


def by_class(**settings: Any) -> Callable[[Any, int], Any]:
    """How a loss with a weight for each class is made of its class."""
    return lambda of, classes: of(DIM, classes, **settings)


def by_batch(*arguments: Any, **settings: Any) -> Callable[[Any, int], Any]:
    """How a loss of a batch alone is made of its class."""
    return lambda of, _: of(*arguments, **settings)


def by_means(of: Any, classes: int) -> Any:
    """A loss that takes a mean for each class."""
    return of(torch.randn(classes, DIM))


DISTANCES = ("el_nivmf", "el_vmf", "b_vmf", "kl_vmf", "nivmf", "l2", "cos")
# A loss by name, the kind of distribution that it takes, and how it is made of its class for so many classes.
LOSSES: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(("ArcFace", "CosFace", "MagFace", "ProxyAnchor", "ProxyNCA"), ("point", by_class())),
    "ScaleFace": ("scaled", by_class()),
    "VMFFL": ("vmf", by_class()),
    "VMFLoss": ("vmf", by_class(samples=10)),
    **{f"ProxyNCAPP {distance}": ("vmf", by_class(distance=distance)) for distance in DISTANCES},
    **{f"ClassLikelihood {kind}": (kind, by_means) for kind in ("isotropic", "vmf")},
    **{f"PriorDivergence {kind}": (kind, by_batch()) for kind in ("isotropic", "vmf")},
    **{f"NegativeMLS {kind}": (kind, by_batch()) for kind in ("isotropic", "diagonal")},
    **{f"HIB {kind}": (kind, by_batch()) for kind in ("isotropic", "diagonal")},
    **dict.fromkeys(("Contrastive", "MultiSimilarity", "MarginLoss", "Triplet"), ("point", by_batch())),
    **dict.fromkeys(("TripletRegression", "BayesianTriplet"), ("isotropic", by_batch())),
    "ScoreNCE llr": ("diagonal", by_batch("llr", prior_var=1 / DIM)),
    "ScoreNCE mls": ("diagonal", by_batch("mls")),
}
EXTRA = {"point": 0, "vmf": 0, "scaled": 1, "isotropic": 1, "diagonal": DIM}  # outputs beside the mean


class Head(nn.Module):
    """A linear map from features to a distribution."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(FEATURES, DIM + EXTRA[kind])

    def forward(self, features: Any) -> Any:
        """The distributions of features."""
        x = self.linear(features)
        e, uncertainty = x[:, :DIM], x[:, DIM:].squeeze(1)
        if self.kind in ("point", "vmf"):
            return distribution(self.kind, (e,) if self.kind == "point" else (functional.normalize(e), e.norm(dim=1)))
        uncertainty = 64 * uncertainty.sigmoid() if self.kind == "scaled" else (uncertainty - 5).exp()
        return distribution(self.kind, (functional.normalize(e), uncertainty))


def found(classes: int, names: Any = LOSSES) -> Iterator[tuple[str, Any, Any]]:
    """The losses that there are, each with a head before it."""
    for name in names:
        kind, build = LOSSES[name]
        of = getattr(ours, name.split()[0], None)
        if of is not None:
            torch.manual_seed(0)
            yield name, Head(kind), build(of, classes)


def labels_of(classes: int) -> Any:
    """The labels of a batch: some images of one class after the other."""
    chosen = torch.randperm(classes, generator=torch.Generator().manual_seed(0))[: BATCH // IMAGES]
    return chosen.repeat_interleave(IMAGES)


def features() -> Any:
    """The features of a batch."""
    return torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()


def step(value: Callable[[], Any], leaves: list[Any]) -> None:
    """A forward and a backward, all gradients new."""
    for leaf in leaves:
        leaf.grad = None
    value().sum().backward()


def alone(head: Any, loss: Any, classes: int, plain: Callable[[Any, Any], Any] | None = None) -> Callable[[], None]:
    """A step of a head and a loss, or of a plain form of it that takes the head's embeddings."""
    x, labels = features(), labels_of(classes)

    def forward() -> Any:
        return loss(head(x), labels) if plain is None else plain(head.linear(x), labels)

    return partial(step, forward, [x, *head.parameters(), *loss.parameters()])


def losses(quick: bool) -> Iterator[Row]:
    """Every loss and its head alone, beside ArcFace's."""
    for classes in (FEW, MANY):
        runs = {name: alone(head, loss, classes) for name, head, loss in found(classes)}
        sides = {name: Side(run, {} if name == "ArcFace" else {"ArcFace": None}) for name, run in runs.items()}
        name = f"loss + head, forward + backward, {BATCH} x {DIM}, {classes:,} classes"
        yield Row(name, sides, per=(1, "step"), seconds=10)


# ---- losses of draws beside plain torch ------------------------------------------------------------------------------


# Each in plain torch, and the stream of peaccel's draws.
PLAIN = {"ProxyNCAPP el_nivmf": (plain_losses.el_nivmf, "query"), "VMFLoss": (plain_losses.vmf_loss, "user")}


def losses_of_draws(quick: bool) -> Iterator[Row]:
    """Loss and head beside plain statements, which are checked at peaccel's draws."""
    for classes in (FEW, MANY):
        for name, head, loss in found(classes, PLAIN):
            yield beside_plain(name, head, loss, classes)


def beside_plain(name: str, head: Any, loss: Any, classes: int) -> Row:
    """One loss of draws."""
    (statement, stream), labels, form = PLAIN[name], labels_of(classes), "plain torch, products"

    def same_draws(e: Any, n: int) -> Any:
        """The draws that peaccel makes from the seed 1."""
        return sample(sample_vmf, functional.normalize(e), e.norm(dim=1), torch.tensor(1), n, 0, STREAMS[stream])

    def draws(e: Any, n: int) -> Any:
        return plain_losses.wood(functional.normalize(e), e.norm(dim=1), n)

    def same(*results: Any) -> None:
        with torch.no_grad():
            value = loss(head(features()), labels, seed=1)
            close(value, statement(same_draws, loss, head.linear(features()), labels))

    sides = {
        "peaccel": Side(alone(head, loss, classes), {form: 1 / 5}),
        form: alone(head, loss, classes, partial(statement, draws, loss)),
    }
    work = f"loss + head of {name}, forward + backward, {BATCH} x {DIM}, {classes:,} classes"
    return Row(work, sides, same, (1, "step"), seconds=5)


# ---- losses alone beside plain torch ---------------------------------------------------------------------------------

BATCHES = (64, 256, 1024, 4096)
MOST = 1 << 28  # numbers of triplets, or of items and classes, beyond which a side needs gigabytes


def losses_by_batch(quick: bool, compiled: bool = False) -> Iterator[Row]:
    """Losses by batch size in processor time, which counts for no side what others run on the machine."""
    for name, peer in PAIRED.items():
        for batch in (64,) if quick else BATCHES:
            others = (IMAGES - 1 if name == "Triplet" else 1) * batch
            if batch * (peer.classes or others) <= MOST:
                yield of_batch(name, batch, compiled)


def compiled_losses(quick: bool) -> Iterator[Row]:
    """The same, both sides by torch.compile too."""
    yield from losses_by_batch(quick, compiled=True)


def of_batch(name: str, batch: int, compiled: bool) -> Row:
    """A loss and its plain form; "scores alone" is what the pairs' scores take of ours, by the same verb."""
    torch.manual_seed(0)
    peer, labels = PAIRED[name], torch.arange(batch // IMAGES).repeat_interleave(IMAGES)
    loss, (leaves,) = peer.make(), tensors([fields(peer.kind, batch, DIM, 0, 50)])
    every = [*(x.requires_grad_() for x in leaves), *loss.parameters()]

    def value() -> Any:
        return loss(distribution(peer.kind, leaves), labels)

    def scores() -> Any:
        d = distribution(peer.kind, leaves)
        return retrieval.pairwise(d, d, peer.score)

    plain = partial(peer.plain, loss, leaves, labels)
    forward: dict[str, Callable[[], Any]] = {"peaccel": value, "plain torch": plain}
    goals: dict[str, Goals] = {"peaccel": {"plain torch": 1.0}}
    if compiled:
        torch._dynamo.reset()  # or it gives up on a function that it has compiled eight times
        forward |= {f"{form}, compiled": torch.compile(run) for form, run in tuple(forward.items())}
        goals["peaccel, compiled"] = {"plain torch, compiled": 1.0}
    if peer.score is not None:
        forward["scores alone"] = scores
    sides = {form: Side(partial(step, run, every), goals.get(form, {})) for form, run in forward.items()}

    def same(*_: Any) -> None:
        close(without_gradient(plain), without_gradient(value))

    how: dict[str, Any] = {"clock": time.process_time, "turn": 0.02, "seconds": 2}
    return Row(f"{name}, batch {batch}", sides, same, (1, "step"), **how)


# ---- whole steps -----------------------------------------------------------------------------------------------------


def goals_of(name: str, classes: int) -> Goals:
    """The limit of a whole step beside another's."""
    if name in ("ArcFace", "BayesianTriplet"):
        return {"Triplet": 1.05} if name == "BayesianTriplet" else {}
    return {"ArcFace": 1.05 if name == "ProxyNCAPP el_nivmf" or (name, classes) == ("VMFLoss", MANY) else 1.03}


def steps(quick: bool) -> Iterator[Row]:
    """Whole steps of a ResNet-18 beside ArcFace's, and the share that loss and head have in them.

    Small shares are told by it, not by the ratio, which a shared machine moves by some percent.
    """
    backbone = optional("timm").create_model("resnet18", num_classes=0)
    images = torch.randn(BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    for classes, names in ((FEW, LOSSES), (MANY, ("ArcFace", "VMFLoss", "ProxyNCAPP el_nivmf"))):
        sides, labels = {}, labels_of(classes)
        for name, head, loss in found(classes, names):
            parameters = [x for module in (backbone, head, loss) for x in module.parameters()]
            # All sides are to see the same weights: steps of length 0, which take as long.
            optimizer = torch.optim.SGD(parameters, lr=0.0, momentum=0.9)
            run = partial(whole_step, backbone, head, loss, images, labels, optimizer)
            sides[name] = Side(run, goals_of(name, classes))
            sides[f"loss + head of {name}"] = Side(alone(head, loss, classes), {name: None})
        name = f"whole step of ResNet-18, {BATCH} x 64 x 64, {classes:,} classes"
        yield Row(name, sides, per=(1, "step"), seconds=180 if classes == FEW else 30)


def whole_step(backbone: Any, head: Any, loss: Any, images: Any, labels: Any, optimizer: Any) -> None:
    """One step of training."""
    optimizer.zero_grad()
    loss(head(backbone(images)), labels).backward()
    optimizer.step()
