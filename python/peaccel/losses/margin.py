"""Softmax of cosines with learned class directions, where the label's class may have to win by a margin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from peaccel.distributions import Distribution, Normal, Point, Scaled, VonMisesFisher
from peaccel.losses._batch import require_labels
from peaccel.losses._directions import directions
from peaccel.losses.base import D, Loss, require_kind

__all__ = ["VMFFL", "ArcFace", "CosFace", "MagFace", "ScaleFace"]

Beyond = Literal["linear", "plain"]


class ClassDirections(Loss[D]):
    """The base class of these losses: a learned direction for each class.

    Parameters
    ----------
    dim, classes
        Sizes of ``weight`` [classes, dim], whose rows are of any length and start as those of `nn.Linear`.

    Raises
    ------
    ValueError
        dim or classes is below 1.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self._require(dim >= 1, "dim", dim, "at least 1")
        self._require(classes >= 1, "classes", classes, "at least 1")
        self.weight = nn.Linear(dim, classes, bias=False).weight

    def products(self, x: Tensor) -> Tensor:
        """Inner products [N, C] of rows [N, D] and the classes' unit directions."""
        dim = self.weight.shape[1]
        self._require(x.shape[1] == dim, "dimension of d", x.shape[1], f"{dim}, that of weight")
        return linear(x, directions(self.weight.to(x.dtype)))

    def cosines(self, d: Distribution) -> Tensor:
        """Cosines [N, C] of the items' mean directions and the classes'; 0 of a mean of length 0."""
        return self.products(directions(d.mu))

    def softmax(
        self, cosines: Tensor, labels: Tensor, scale: float | Tensor, with_margin: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Mean cross-entropy of scale times cosines, those of the labels' classes [N, 1] taken `with_margin`."""
        require_labels(self, labels, len(self.weight))
        column = labels[:, None]
        cosines = cosines.scatter(1, column, with_margin(cosines.gather(1, column)))
        return cross_entropy(scale * cosines, labels)

    def _require(self, holds: bool, name: str, value: object, expected: str) -> None:
        if not holds:
            raise ValueError(f"{type(self).__name__}: {name} is {value}, expected {expected}")

    def _require_margins(self, beyond: str, **margins: float) -> None:
        for name, margin in margins.items():
            self._require(0 <= margin <= math.pi / 2, name, margin, "an angle from 0 to pi / 2")
        self._require(beyond in ("linear", "plain"), "beyond", repr(beyond), "'linear' or 'plain'")


class ArcFace(ClassDirections[Distribution]):
    """ArcFace: the angle to the label's direction counts as larger by a margin.

    ``logit_c = scale cos(theta_c + margin [c = y])``, theta_c the angle of mu and w_c; its mean cross-entropy.

    Parameters
    ----------
    dim, classes
        D and C: ``weight`` [C, D] holds the classes' directions, of any length.
    scale
        Inverse temperature, > 0.
    margin
        In radians, 0 .. pi/2; 0 gives the normalised softmax.
    beyond
        What takes the place of cos(theta + margin) where theta + margin > pi, from where on it would rise again:
        "linear", ``cos(theta) - margin sin(margin)``, below all that comes before; or "plain", ``cos(theta)``, as some
        code has it, which at pi - margin jumps up by ``1 - cos(margin)``: an item that moves away from its class across
        that angle is rewarded.

    Raises
    ------
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    Notes
    -----
    Takes any distribution with tensors, and reads the direction of mu alone: Point of any length, Normal (its mean),
    VonMisesFisher, Scaled. cos(theta + margin) is computed without acos; where theta is 0 or pi and has no derivative,
    gradients are taken of cos(theta). One product of matrices, and [N, C] of memory a few times.

    References
    ----------
    Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019, eq. 3.

    Examples
    --------
    Two classes are a right angle apart. With a margin of 0.5, an item counts as between them, with loss log 2, where
    its angles to them, here 0.54 and 1.04, differ by that much:

    >>> import torch
    >>> from peaccel.losses import ArcFace
    >>> loss, angle = ArcFace(dim=2, classes=2, margin=0.5), (np.pi / 2 - 0.5) / 2
    >>> loss.weight.data = torch.eye(2)
    >>> round(loss(pe.Point(torch.tensor([[np.cos(angle), np.sin(angle)]])), torch.tensor([0])).item(), 3)
    0.693
    """

    def __init__(
        self, dim: int, classes: int, *, scale: float = 64.0, margin: float = 0.5, beyond: Beyond = "linear"
    ) -> None:
        super().__init__(dim, classes)
        self._require(scale > 0, "scale", scale, "a number above 0")
        self._require_margins(beyond, margin=margin)
        self.scale, self.margin, self.beyond = scale, margin, beyond

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        return self.softmax(
            self.cosines(d), labels, self.scale, lambda cosine: turned(cosine, self.margin, self.beyond)
        )


class CosFace(ClassDirections[Distribution]):
    """CosFace: the cosine with the label's direction counts as smaller by a margin.

    ``logit_c = scale (cos(mu, w_c) - margin [c = y])``; its mean cross-entropy.

    Parameters
    ----------
    dim, classes
        D and C: ``weight`` [C, D] holds the classes' directions, of any length.
    scale
        Inverse temperature, > 0.
    margin
        In 0 .. 2; 0 gives the normalised softmax.

    Raises
    ------
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    Notes
    -----
    Takes what `ArcFace` takes, at its cost.

    References
    ----------
    Wang et al., CosFace: Large Margin Cosine Loss, CVPR 2018, eq. 4.

    Examples
    --------
    With a margin of 0.2, an item whose cosines are 0.8 with its class and 0.6 with the other counts as between
    them, with loss log 2:

    >>> import torch
    >>> from peaccel.losses import CosFace
    >>> loss = CosFace(dim=2, classes=2, margin=0.2)
    >>> loss.weight.data = torch.eye(2)
    >>> round(loss(pe.Point(torch.tensor([[0.8, 0.6]])), torch.tensor([0])).item(), 3)
    0.693
    """

    def __init__(self, dim: int, classes: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__(dim, classes)
        self._require(scale > 0, "scale", scale, "a number above 0")
        self._require(0 <= margin <= 2, "margin", margin, "0 to 2")
        self.scale, self.margin = scale, margin

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        return self.softmax(self.cosines(d), labels, self.scale, lambda cosine: cosine - self.margin)


class MagFace(ClassDirections[Point]):
    """MagFace: ArcFace whose margin grows with the length of the embedding, which so comes to tell its quality.

    ``ArcFace`` with ``margin(a) = m_0 + (m_1 - m_0) (a - a_0) / (a_1 - a_0)``, a = |mu| held between a_0 and a_1, plus
    ``regulariser mean(a / a_1^2 + 1 / a)``, which falls up to a = a_1.

    Parameters
    ----------
    dim, classes
        D and C: ``weight`` [C, D] holds the classes' directions, of any length.
    scale
        Inverse temperature, > 0.
    norms
        a_0 < a_1, > 0. Lengths beyond have no gradient: a_0 belongs below, a_1 above those that embeddings have; for
        embeddings of about unit length its authors suggest norms (1, 51), margins (0.45, 1) and regulariser 5.
    margins
        m_0 <= m_1 in radians, 0 .. pi/2.
    regulariser
        Weight of the second term, >= 0.
    beyond
        As of `ArcFace`.

    Raises
    ------
    TypeError
        d is no Point: of a direction there is no length.
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    References
    ----------
    Meng et al., MagFace: A Universal Representation for Face Recognition and Quality Assessment, CVPR 2021, sec. 3.2.

    Examples
    --------
    A step makes the embedding longer that lies at its class, and the one shorter that is nearer to another:

    >>> import torch
    >>> from peaccel.losses import MagFace
    >>> loss = MagFace(dim=2, classes=2)
    >>> loss.weight.data = torch.eye(2)
    >>> mu = torch.tensor([[20.0, 0.0], [12.0, 16.0]], requires_grad=True)
    >>> loss(pe.Point(mu), torch.tensor([0, 0])).backward()
    >>> (-mu.grad * mu).sum(1).sign().tolist()
    [1.0, -1.0]
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        scale: float = 64.0,
        norms: tuple[float, float] = (10.0, 110.0),
        margins: tuple[float, float] = (0.45, 0.8),
        regulariser: float = 35.0,
        beyond: Beyond = "linear",
    ) -> None:
        super().__init__(dim, classes)
        self._require(scale > 0, "scale", scale, "a number above 0")
        self._require(0 < norms[0] < norms[1], "norms", norms, "two rising numbers above 0")
        self._require(margins[0] <= margins[1], "margins", margins, "two numbers that do not fall")
        self._require_margins(beyond, **{"margins[0]": margins[0], "margins[1]": margins[1]})
        self._require(regulariser >= 0, "regulariser", regulariser, "a number from 0 on")
        self.scale, self.norms, self.margins, self.regulariser = scale, norms, margins, regulariser
        self.beyond = beyond

    def loss(self, d: Point, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ["point"])
        (a_0, a_1), (m_0, m_1) = self.norms, self.margins
        norm = torch.linalg.vector_norm(d.mu, dim=1, keepdim=True).clamp(a_0, a_1)
        margin = m_0 + (m_1 - m_0) * (norm - a_0) / (a_1 - a_0)
        short: Tensor = (norm / a_1**2 + 1 / norm).mean()
        cross_entropy = self.softmax(self.cosines(d), labels, self.scale, lambda cosine: self.turned(cosine, margin))
        return cross_entropy + self.regulariser * short

    def turned(self, cosine: Tensor, margin: Tensor) -> Tensor:
        """The cosines [N, 1] of items with their classes, at angles that are larger by margins [N, 1]."""
        return turned(cosine, margin, self.beyond)


class ScaleFace(ClassDirections[Scaled]):
    """ScaleFace: ArcFace whose logits are multiplied by a scale of each item, which so comes to tell its quality.

    ``logit_c = scale(x) cos(theta_c + margin [c = y])``; its mean cross-entropy. With margin 0 it is `VMFFL` with
    kappa = scale.

    Parameters
    ----------
    dim, classes
        D and C: ``weight`` [C, D] holds the classes' directions, of any length.
    margin, beyond
        As of `ArcFace`.

    Raises
    ------
    TypeError
        d is not Scaled.
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    Notes
    -----
    Nothing but a bound of the head (64 sigmoid in the paper) keeps scales from growing.

    References
    ----------
    Kail et al., ScaleFace: Uncertainty-aware Deep Metric Learning, eqs. 2 and 4.

    Examples
    --------
    An item that lies at another class costs the more, the larger its scale:

    >>> import torch
    >>> from peaccel.losses import ScaleFace
    >>> loss, mu = ScaleFace(dim=2, classes=2, margin=0.0), torch.tensor([[0.0, 1.0]])
    >>> loss.weight.data = torch.eye(2)
    >>> [round(loss(pe.Scaled(mu, torch.tensor([s])), torch.tensor([0])).item(), 2) for s in (0.0, 1.0, 10.0)]
    [0.69, 1.31, 10.0]
    """

    def __init__(self, dim: int, classes: int, *, margin: float = 0.5, beyond: Beyond = "linear") -> None:
        super().__init__(dim, classes)
        self._require_margins(beyond, margin=margin)
        self.margin, self.beyond = margin, beyond

    def loss(self, d: Scaled, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ["scaled"])
        return self.softmax(
            self.cosines(d), labels, d.scale[:, None], lambda cosine: turned(cosine, self.margin, self.beyond)
        )


class VMFFL(ClassDirections[VonMisesFisher | Normal]):
    """vMF-FL: how probable the label's class is, the item's density at each class's direction being its weight.

    ``-log softmax_c log p(w_c)`` at y. What the density has of the item alone is the same for all classes and cancels:
    logits are ``kappa mu.w_c`` for VonMisesFisher and ``mu.w_c / var`` for an isotropic Normal, and no Bessel function
    is evaluated.

    Parameters
    ----------
    dim, classes
        D and C: ``weight`` [C, D] holds the classes' directions, of any length.

    Raises
    ------
    TypeError
        d is of another kind.
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    Notes
    -----
    var > 0. There is no margin and no prior: concentrations overfit. One product of matrices, [N, C] of memory.

    References
    ----------
    Hasnat et al., von Mises-Fisher Mixture Model-based Deep Learning, 2017; "Probabilistic Embeddings Revisited",
    eq. 12.

    Examples
    --------
    An item of concentration 0 is of any of four classes, with loss log 4; a concentrated one at its class is of that:

    >>> import torch
    >>> from peaccel.losses import VMFFL
    >>> loss, mu = VMFFL(dim=4, classes=4), torch.eye(4)[:1]
    >>> loss.weight.data = torch.eye(4)
    >>> [round(loss(pe.VonMisesFisher(mu, torch.tensor([k])), torch.tensor([0])).item(), 3) for k in (0.0, 50.0)]
    [1.386, 0.0]
    """

    def loss(self, d: VonMisesFisher | Normal, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ["vmf", "normal_isotropic"])
        require_labels(self, labels, len(self.weight))
        scale = d.kappa if isinstance(d, VonMisesFisher) else 1 / d.var
        return cross_entropy(self.products(scale[:, None] * d.mu), labels)


def turned(cosine: Tensor, margin: float | Tensor, beyond: Beyond) -> Tensor:
    """cos(theta + margin) from cos(theta), with its continuation where theta + margin exceeds pi."""
    turn, lift = (margin.cos(), margin.sin()) if isinstance(margin, Tensor) else (math.cos(margin), math.sin(margin))
    # The root's slope is infinite at 0. Below the floor, the rounding of a cosine, the root is constant.
    sine = ((1 - cosine) * (1 + cosine)).clamp(min=torch.finfo(cosine.dtype).eps).sqrt()
    away = cosine - margin * lift if beyond == "linear" else cosine
    return torch.where(cosine > -turn, cosine * turn - sine * lift, away)
