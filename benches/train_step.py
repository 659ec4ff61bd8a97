"""What losses cost in a training step: `python -m benches.train_step [--quick] [--only losses|plain|peers|steps]`.

"losses": loss and head alone, forward and backward, beside ArcFace's. "plain": two of them beside the same loss written
in plain torch. "peers" (`benches.loss_peers`): losses alone by batch size beside plain torch, in processor time.
"steps": whole steps of a ResNet-18 on images of 64 pixels, as a ratio to ArcFace's, and the share that loss and head
have in them: small shares are told by it, not by the ratio, which a shared machine moves by some percent. One thread,
all sides of a table in turn, medians. It fails (exit 1) only where two sides do not compute the same.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benches import ONE_THREAD, loss_peers  # noqa: F401, sets one thread before torch is loaded
from benches.common import Goal, Side, Work, interleave, measure, row, torch
from benches.data import distribution, optional
from peaccel.ops import sample
from peaccel.ops.samplers import STREAMS, sample_vmf

nn, functional = torch.nn, torch.nn.functional
BATCH, IMAGES, DIM, FEATURES = 128, 4, 128, 512  # images of a class; features of a ResNet-18
FEW, MANY = 74, 11_318  # training classes of Cars196 (less validation) and of Stanford Online Products
ROUNDS = {"losses": 15, "plain": 9, "steps": 5}

# ---- the losses ----------------------------------------------------------------------------------------------------

Build = Callable[[Any, int], Any]


class Entry(NamedTuple):
    """A loss: its class and file, the kind of distribution that it takes, and how it is made for so many classes."""

    name: str
    file: str
    kind: str
    build: Build


def by_class(**settings: Any) -> Build:
    return lambda kind, classes: kind(DIM, classes, **settings)


def by_batch(*arguments: Any, **settings: Any) -> Build:
    return lambda kind, classes: kind(*arguments, **settings)


LOSSES = (
    *(Entry(name, "margin", "point", by_class()) for name in ("ArcFace", "CosFace", "MagFace")),
    Entry("ScaleFace", "margin", "scaled", by_class()),
    Entry("VMFFL", "margin", "vmf", by_class()),
    Entry("VMFLoss", "vmf", "vmf", by_class(samples=10)),
    *(Entry(name, "proxies", "point", by_class()) for name in ("ProxyAnchor", "ProxyNCA")),
    *(
        Entry(f"ProxyNCAPP {distance}", "nca", "vmf", by_class(distance=distance))
        for distance in ("el_nivmf", "el_vmf", "b_vmf", "kl_vmf", "nivmf", "l2", "cos")
    ),
    *(
        Entry(f"ClassLikelihood {kind}", "regression", kind, lambda made, classes: made(torch.randn(classes, DIM)))
        for kind in ("isotropic", "vmf")
    ),
    *(Entry(f"PriorDivergence {kind}", "bottleneck", kind, by_batch()) for kind in ("isotropic", "vmf")),
    *(Entry(f"NegativeMLS {kind}", "likelihood", kind, by_batch()) for kind in ("isotropic", "diagonal")),
    *(Entry(f"HIB {kind}", "matches", kind, by_batch()) for kind in ("isotropic", "diagonal")),
    *(Entry(name, "pairs", "point", by_batch()) for name in ("Contrastive", "MultiSimilarity", "MarginLoss")),
    Entry("Triplet", "triplets", "point", by_batch()),
    *(Entry(name, "triplets", "isotropic", by_batch()) for name in ("TripletRegression", "BayesianTriplet")),
    *(
        Entry(f"ScoreNCE {score}", "nce", kind, by_batch(score, **settings))
        for score, kind, settings in (("llr", "diagonal", {"prior_var": 1 / DIM}), ("mls", "diagonal", {}))
    ),
)
EXTRA = {"point": 0, "vmf": 0, "scaled": 1, "isotropic": 1, "diagonal": DIM}  # outputs beside the mean


class Head(nn.Module):
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
        made = getattr(optional(f"peaccel.losses.{entry.file}"), entry.name.split()[0], None)
        if made is not None:
            torch.manual_seed(0)
            yield entry, Head(entry.kind), entry.build(made, classes)


def labels_of(classes: int) -> Any:
    """The labels of a batch: some images of one class after the other."""
    chosen = torch.randperm(classes, generator=torch.Generator().manual_seed(0))[: BATCH // IMAGES]
    return chosen.repeat_interleave(IMAGES)


def features() -> Any:
    return torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()


def alone(value: Callable[[Any, Any, Any, Any], Any], head: Any, loss: Any, x: Any, labels: Any) -> None:
    """A forward and a backward of `value(head, loss, features, labels)`, all gradients new."""
    for leaf in (x, *head.parameters(), *loss.parameters()):
        leaf.grad = None
    value(head, loss, x, labels).backward()


def ours(head: Any, loss: Any, x: Any, labels: Any) -> Any:
    return loss(head(x), labels)


def losses(quick: bool) -> Iterator[Work]:
    """Every loss and its head alone."""
    for classes in (FEW, MANY):
        yield Work(
            f"loss + head, forward + backward, {BATCH} x {DIM}, {classes:,} classes",
            "ms/step",
            1,
            "",
            1 if quick else ROUNDS["losses"],
            [
                Side(
                    entry.name,
                    partial(alone, ours, head, loss, features(), labels_of(classes)),
                    goals=() if entry.name == "ArcFace" else (Goal("within", "ArcFace"),),
                )
                for entry, head, loss in found(classes)
            ],
        )


# ---- plain torch ---------------------------------------------------------------------------------------------------

Pairs = Callable[..., Any]  # from draws [n, N, D] and arrays of the classes [C, ...] to numbers of both, [n, N, C]
Draws = Callable[[Any, int], Any]


def log_iv(v: float, x: Any) -> Any:
    """Debye's expansion with two terms: 1.7e-8 at v = 63, x = 5."""
    root = (v * v + x * x).sqrt()
    p = v / root
    u1, u2 = (3 * p - 5 * p**3) / 24, (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152
    return root + v * (x / (v + root)).log() - 0.5 * (2 * math.pi * root).log() + torch.log1p(u1 / v + u2 / v**2)


def log_norm(x: Any) -> Any:
    v = DIM / 2 - 1
    return v * x.log() - DIM / 2 * math.log(2 * math.pi) - log_iv(v, x)


def mean_direction(e: Any) -> Any:
    """A(|e|) e / |e|."""
    kappa = e.norm(dim=1, keepdim=True)
    return (log_iv(DIM / 2, kappa) - log_iv(DIM / 2 - 1, kappa)).exp() * e / kappa


def wood(e: Any, n: int) -> Any:
    """n draws [n, N, D] of von Mises-Fisher distributions, by proposals for all until each is accepted."""
    kappa, m = e.norm(dim=1), DIM - 1
    c = (4 * kappa**2 + m * m).sqrt()
    a, b = (m + 2 * kappa + c) / 4, m / (2 * kappa + c)
    d = 4 * a * b / (1 + b) - m * math.log(m)
    proposals, shape = torch.distributions.Beta(m / 2, m / 2), (n, len(e))
    w, waiting = torch.zeros(shape), torch.ones(shape, dtype=torch.bool)
    while waiting.any():
        x, u = proposals.sample(shape), torch.rand(shape)
        t = 2 * a * b / (1 - (1 - b) * x)
        accepted = waiting & (m * t.log() - t + d >= u.log())
        w = torch.where(accepted, (1 - (1 + b) * x) / (1 - (1 - b) * x), w)
        waiting = waiting & ~accepted
    mu, aside = functional.normalize(e), torch.randn(n, *e.shape)
    aside = functional.normalize(aside - (aside * mu).sum(-1, keepdim=True) * mu, dim=-1)
    return w[..., None] * mu + (1 - w * w).clamp(min=1e-10).sqrt()[..., None] * aside


def el_nivmf(pairs: Pairs, draws: Draws, head: Any, loss: Any, x: Any, labels: Any) -> Any:
    e = head.linear(x)
    z, mean, kappa = draws(e, 5), functional.normalize(loss.directions), 0.1 + loss.log_concentration.exp()
    length = (kappa * mean).norm(dim=1)
    cosines, stretched = pairs(z, kappa, mean)
    logs = log_norm(length) + kappa.log().sum(1) + length * cosines - DIM * stretched.log()
    return functional.cross_entropy((logs.logsumexp(0) - math.log(len(z))) / loss.log_temperature.exp(), labels)


def stretched_by_rows(z: Any, kappa: Any, mean: Any) -> tuple[Any, Any]:
    """cos(K z, K mu) and |K z|, [n, N, C], as in the formulas."""
    found = []
    for draw in z:
        x = kappa * draw[:, None]
        found.append((functional.cosine_similarity(x, kappa * mean, dim=-1), x.norm(dim=-1)))
    cosines, lengths = map(torch.stack, zip(*found, strict=True))
    return cosines, lengths


def stretched_by_products(z: Any, kappa: Any, mean: Any) -> tuple[Any, Any]:
    """cos(K z, K mu) and |K z| from two inner products of a draw and a class, by products of matrices."""
    square = kappa * kappa
    lengths = (z * z @ square.T).sqrt()
    return z @ (square * mean).T / (lengths * (kappa * mean).norm(dim=1)), lengths


def vmf_loss(pairs: Pairs, draws: Draws, head: Any, loss: Any, x: Any, labels: Any) -> Any:
    e = head.linear(x)
    beta, weight = loss.log_scale.exp(), loss.weight
    partition = (log_norm(weight.norm(dim=1)) - log_norm(pairs(beta * draws(e, 10), weight))).logsumexp(-1).mean()
    return partition - beta * (mean_direction(e) * mean_direction(weight[labels])).sum(1).mean()


def lengths_by_rows(z: Any, weight: Any) -> Any:
    """|z + w|, [n, N, C], as in the formula."""
    return torch.stack([(draw[:, None] + weight).norm(dim=-1) for draw in z])


def lengths_by_products(z: Any, weight: Any) -> Any:
    return ((z * z).sum(-1, keepdim=True) + (weight * weight).sum(1) + 2 * z @ weight.T).sqrt()


def same_draws(stream: str, e: Any, n: int) -> Any:
    """The draws that peaccel makes from the seed 1."""
    return sample(sample_vmf, functional.normalize(e), e.norm(dim=1), torch.tensor(1), n, 0, STREAMS[stream])


class Plain(NamedTuple):
    """A loss in plain torch, how it compares draws with classes, and the stream of peaccel's draws."""

    statement: Callable[..., Any]
    as_written: Pairs
    by_products: Pairs
    stream: str


PLAIN = {
    "ProxyNCAPP el_nivmf": Plain(el_nivmf, stretched_by_rows, stretched_by_products, "query"),
    "VMFLoss": Plain(vmf_loss, lengths_by_rows, lengths_by_products, "user"),
}


def plain(quick: bool) -> Iterator[Work]:
    """Loss and head beside plain statements, which are checked at peaccel's draws; many classes by products alone."""
    for classes in (FEW, MANY):
        for entry, head, loss in found(classes):
            if entry.name not in PLAIN:
                continue
            of, labels = PLAIN[entry.name], labels_of(classes)
            pairs = {"plain torch, products": of.by_products}
            if classes == FEW:
                pairs["plain torch, as written"] = of.as_written
            with torch.no_grad():
                own = loss(head(features()), labels, seed=1)
            sides = [
                Side(
                    "peaccel",
                    partial(alone, ours, head, loss, features(), labels),
                    goals=tuple(Goal("faster", name, 5.0) for name in pairs),
                )
            ]
            for name, each in pairs.items():
                statement = partial(of.statement, each)
                with torch.no_grad():
                    same = statement(partial(same_draws, of.stream), head, loss, features(), labels)
                run = partial(alone, partial(statement, wood), head, loss, features(), labels)
                sides.append(Side(name, run, lambda _, value=same, own=own: (value, own)))
            work = f"loss + head of {entry.name}, forward + backward, {BATCH} x {DIM}, {classes:,} classes"
            yield Work(work, "ms/step", 1, "", 1 if quick else ROUNDS["plain"], sides)


# ---- whole steps -----------------------------------------------------------------------------------------------------


def goal_of(name: str, classes: int) -> Goal | None:
    if name == "ArcFace":
        return None
    if name == "BayesianTriplet":
        return Goal("within", "Triplet", 1.05)
    if name == "ProxyNCAPP el_nivmf" or (name, classes) == ("VMFLoss", MANY):
        return Goal("within", "ArcFace", 1.05)
    return Goal("within", "ArcFace", 1.03)


def step(backbone: Any, head: Any, loss: Any, images: Any, labels: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    ours(head, loss, backbone(images), labels).backward()
    optimizer.step()


def steps(quick: bool) -> Iterator[str]:
    """Rows of the table: whole steps, and the share of loss and head."""
    backbone = optional("timm").create_model("resnet18", num_classes=0)
    images = torch.randn(BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    for classes in (FEW, MANY):
        runs: dict[str, Callable[[], Any]] = {}
        labels, alone_of = labels_of(classes), "loss + head of {}".format
        for entry, head, loss in found(classes):
            if classes == MANY and entry.name not in ("ArcFace", *PLAIN):
                continue
            parameters = [x for module in (backbone, head, loss) for x in module.parameters()]
            # All sides are to see the same weights: steps of length 0, which take as long.
            optimizer = torch.optim.SGD(parameters, lr=0.0, momentum=0.9)
            runs[entry.name] = partial(step, backbone, head, loss, images, labels, optimizer)
            runs[alone_of(entry.name)] = partial(alone, ours, head, loss, features(), labels)
        for run in runs.values():
            run()
        times = interleave(runs, 1 if quick else ROUNDS["steps"])
        for name in [name for name in runs if alone_of(name) in runs]:
            goal, seconds = goal_of(name, classes), times[name].seconds
            texts = goal.texts(seconds, times[goal.peer].seconds) if goal else ("", "", "")
            share = f"{times[alone_of(name)].seconds / seconds:.2%} loss + head"
            what = f"whole step of ResNet-18, {BATCH} x 64 x 64, {classes:,} classes"
            yield row(what, name, f"{seconds * 1e3:.4g} ms/step", share, *texts)


def main() -> int:
    """Print the tables; 1 where two sides did not agree."""
    parser = argparse.ArgumentParser(prog="python -m benches.train_step", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round each: shows that all of it runs")
    parser.add_argument("--only", choices=[*ROUNDS, "peers"], help="one of the tables")
    parser.add_argument("--compiled", action="store_true", help="with the peers, both sides by torch.compile too")
    options = parser.parse_args()
    print(row("work", "side", "time", "rate", "ratio", "goal", "met"), row(*["---"] * 7), sep="\n")
    failures = []
    for name, works in (("losses", losses), ("plain", plain)):
        for work in works(options.quick) if options.only in (None, name) else ():
            failures += measure(work, judge=not options.quick)
    for line in loss_peers.tables(options.quick, options.compiled) if options.only in (None, "peers") else ():
        failures += [line] if loss_peers.DIFFER in line else []
        print(line, flush=True)
    for line in steps(options.quick) if options.only in (None, "steps") else ():
        print(line, flush=True)
    print(*(f"FAILED {message}" for message in failures), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
