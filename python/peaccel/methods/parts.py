"""Parts that several methods share: settings, heads, and starts of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from peaccel.distributions import Normal, Point
from peaccel.fits.fit_prior import fit_prior
from peaccel.fits.records import Prior
from peaccel.heads import MeanHead, NormalHead, PointHead, UncertaintyHead, VarianceHead, VonMisesFisherHead, widened
from peaccel.losses.base import Loss
from peaccel.losses.margin import ArcFace, CosFace
from peaccel.methods.method import AtLeast1, Batch, Group, Positive, Schedule, Share, Stage, Step, Terms, Training

__all__ = [
    "Classifier",
    "Embedding",
    "Given",
    "Kind",
    "PointSettings",
    "Uncertain",
    "class_directions",
    "class_means",
    "classify",
    "distribution_head",
    "init_scale_from_distance",
    "init_scale_within_classes",
    "mean_head",
    "point_training",
    "points",
]

Kind = Literal["normal", "vmf"]


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Settings of every method's embedding."""

    dim: AtLeast1 = 128
    """Dimension of the embedding."""
    mean: Literal["linear", "given"] = "linear"
    """linear: a linear layer on the backbone's features; given: the first `dim` features themselves are the means, as
    where only an uncertainty is to be learned; what there is beside them is seen by the uncertainty alone."""


@dataclass(frozen=True, kw_only=True)
class PointSettings(Embedding):
    """Settings of every baseline with one loss on points."""

    loss_rate: Positive = 1.0
    """The learning rate of what the loss itself learns (proxies, thresholds) over the backbone's."""
    schedule: Schedule = Schedule()


@dataclass(frozen=True, kw_only=True)
class Uncertain(Embedding):
    """Settings of an embedding with an uncertainty."""

    distribution: Kind = "normal"
    """normal: a mean on the unit sphere and a variance; vmf: a direction and a concentration."""
    diagonal: bool = False
    """With normal, a variance for each dimension."""
    head: Literal["mlp", "pfe"] = "mlp"
    """mlp: three layers with ReLUs; pfe: two with batch norms, a gain and an offset, always of normal and diagonal."""
    hidden: AtLeast1 = 512
    """With head pfe, the width of its hidden layer."""
    start: Positive = 1.0
    """With head mlp, the variance, or 1 / kappa, that it starts from, if the method does not take that from the data,
    as pfe, scf, dul_reg, llr_nce and those that begin with them do."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A softmax over class directions with a margin."""

    loss: Literal["arcface", "cosface"] = "arcface"
    """Place of the margin: arcface, the angle; cosface, the cosine."""
    scale: Positive = 64.0
    """Inverse temperature."""
    margin: Annotated[float, msgspec.Meta(ge=0, lt=2)] = 0.5
    """The margin: with arcface an angle in radians, with cosface a difference of cosines."""
    rate: Positive = 1.0
    """The class directions' learning rate over the backbone's."""
    warmup: Share = 0.0
    """The share of a stage's steps over which the margin rises from 0, linearly. An untrained network whose features
    are not centred has all embeddings in one cone; with arcface, directions in that cone pay less of the margin than
    those that leave it, and training may stay there."""

    def build(self, dim: int, classes: int) -> ArcFace | CosFace:
        """Make the loss with its class directions."""
        return (ArcFace if self.loss == "arcface" else CosFace)(dim, classes, scale=self.scale, margin=self.margin)

    def margin_at(self, step: Step) -> float:
        """The margin at a step of a stage."""
        return self.margin if step.done >= self.warmup else self.margin * step.done / self.warmup


class Given(nn.Module):
    """Takes the first features for means.

    Parameters
    ----------
    dim
        How many.
    unit
        Whether rows are scaled to length 1.
    """

    def __init__(self, dim: int, unit: bool = True) -> None:
        super().__init__()
        self.dim, self.unit = dim, unit

    def forward(self, features: Tensor) -> Tensor:
        """Rows [N, dim], float32 at least, of features [N, F]."""
        mu = widened(features[:, : self.dim])
        return normalize(mu, dim=1) if self.unit else mu


def mean_head(features: int, settings: Embedding, unit: bool = True) -> tuple[nn.Module, int]:
    """The location head and the dimension of what it gives."""
    if settings.mean == "given":
        if settings.dim > features:
            raise ValueError(f"mean_head: dim is {settings.dim}, expected at most the {features} given features")
        return Given(settings.dim, unit), settings.dim
    return MeanHead(features, settings.dim, unit), settings.dim


def distribution_head(
    features: int, settings: Uncertain, uncertainty: type[UncertaintyHead] = UncertaintyHead
) -> tuple[NormalHead | VonMisesFisherHead, int]:
    """The head of a method that has both kinds, and the dimension of what it gives."""
    mean, dim = mean_head(features, settings)
    if settings.head == "pfe" and settings.distribution == "normal":
        return NormalHead(mean, VarianceHead(features, dim, settings.hidden)), dim
    out = dim if settings.diagonal and settings.distribution == "normal" else 1
    kind = NormalHead if settings.distribution == "normal" else VonMisesFisherHead
    return kind(mean, uncertainty(features, out, settings.start)), dim


def init_scale_from_distance(head: NormalHead | VonMisesFisherHead, dim: int, square: float) -> None:
    """Let uncertainties start where unit means are about so far from the directions that they are fitted to.

    Far from there a head overshoots to where its slope is lost: from kappa = 64, where 5 was right, one fell to 0.05.

    Parameters
    ----------
    head
        Its `uncertainty` can `begin` at a value.
    dim
        D.
    square
        Mean squared distance. Normals start at var = square / D; von Mises-Fisher distributions at the kappa whose mean
        length is the mean cosine c = 1 - square / 2, c (D - c^2) / (1 - c^2) (Banerjee et al., 2005, eq. 4.4).
    """
    cosine = min(max(1 - square / 2, 0.01), 0.999)
    inverse_kappa = (1 - cosine**2) / (cosine * (dim - cosine**2))
    head.uncertainty.begin(square / dim if isinstance(head, NormalHead) else inverse_kappa)  # type: ignore[operator]


def init_scale_within_classes(
    head: NormalHead | VonMisesFisherHead, dim: int, features: Callable[[Batch], Tensor], batches: Iterable[Batch]
) -> Prior:
    """Let uncertainties start from how far the means lie from their classes' positions, by an analysis of variance.

    Parameters
    ----------
    head
        Its `uncertainty` can `begin` at a value.
    dim
        D.
    features
        The features of a batch, which the head takes.
    batches
        The batches of all training items.

    Returns
    -------
    The mean and the variance, per dimension, of the positions.
    """
    seen = [(points(head, features(batch)).mu, batch.labels) for batch in batches]
    mu, labels = (torch.cat(column) for column in zip(*seen, strict=True))
    prior = fit_prior(Normal(mu, torch.ones_like(mu)), labels)
    init_scale_from_distance(head, dim, (mu.var(0) - prior.var).sum().item())
    return prior


def points(head: nn.Module, features: Tensor) -> Point:
    """The means alone of a head with a `mean`."""
    return Point(head.mean(features).float())  # type: ignore[operator]


def classify(
    backbone: nn.Module, head: nn.Module, loss: ArcFace | CosFace, schedule: Schedule, classifier: Classifier
) -> Stage:
    """The first stage of many methods: means and class directions by a softmax with a margin.

    Where the means are given and nothing is to be learned (no epochs), class directions start as the mean directions of
    their classes.
    """

    def step(batch: Batch, step: Step) -> Terms:
        loss.margin = classifier.margin_at(step)
        return {type(loss).__name__.lower(): loss(points(head, backbone(batch.inputs)), batch.labels)}

    groups = (Group((backbone, head.mean)), Group((loss,), classifier.rate))  # type: ignore[arg-type]
    start = class_directions(nn.Sequential(backbone, head.mean), loss.weight) if schedule.epochs == 0 else None  # type: ignore[arg-type]
    return Stage(type(loss).__name__, schedule, groups, step, start=start)


def point_training(
    name: str,
    backbone: nn.Module,
    features: int,
    settings: PointSettings,
    make: Callable[[int], Loss[Any]],
    unit: bool = True,
) -> Training:
    """One stage of one loss on points; `make` makes the loss from the dimension."""
    mean, dim = mean_head(features, settings, unit)
    head, loss = PointHead(mean), make(dim)

    def step(batch: Batch, step: Step) -> Terms:
        return {name: loss(head(backbone(batch.inputs)), batch.labels, step.seed)}

    groups = (Group((backbone, head)),)
    if list(loss.parameters()):
        groups = (*groups, Group((loss,), settings.loss_rate, 0.0))  # type: ignore[assignment]
    return Training(nn.Sequential(backbone, head), loss, (Stage(name, settings.schedule, groups, step),))


def class_means(embed: Callable[[Tensor], Tensor], batches: Iterable[Batch], classes: int) -> Tensor:
    """The mean embedding of each class, [classes, D]; zeros for a class without items."""
    total, count = torch.zeros(()), torch.zeros(())
    for batch in batches:
        mu = embed(batch.inputs).float()
        if total.ndim == 0:
            total, count = mu.new_zeros(classes, mu.shape[1]), mu.new_zeros(classes)
        total.index_add_(0, batch.labels, mu)
        count.index_add_(0, batch.labels, torch.ones_like(mu[:, 0]))
    return total / count.clamp(min=1)[:, None]


def class_directions(embed: nn.Module, weight: nn.Parameter) -> Callable[[Iterable[Batch]], None]:
    """A stage's start that turns class directions to their classes' means; those of classes without items stay."""

    def start(batches: Iterable[Batch]) -> None:
        means = class_means(embed, batches, len(weight))
        known = means.norm(dim=1) > 0
        weight.data[known] = normalize(means[known], dim=1)

    return start
