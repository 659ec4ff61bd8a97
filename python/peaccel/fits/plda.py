"""Probabilistic linear discriminant analysis: classes that differ by one covariance, items of a class by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, Given, KindT, Numpy, as_array, cast, is_torch, namespace, on_host
from peaccel.distributions import Distribution, Normal
from peaccel.distributions._numerics import double
from peaccel.distributions.checks import compute_dtype
from peaccel.distributions.fuse import unit
from peaccel.fits.saved_fit import SavedFit
from peaccel.scores import Score, llr

__all__ = ["Plda"]

BLOCK = 1 << 13  # rows that are converted to float64 at a time, so that temporaries stay small beside the items
ORTHOGONAL = 1e-12  # cosine between directions up to which rounding alone moved them


@dataclass(frozen=True, eq=False, repr=False)
class Plda(SavedFit, kind="plda"):
    """The two-covariance model, as `fit_plda` or `pe.io.read_plda` finds it.

    An item is ``mean + y + e``, with a position y of its class drawn from N(0, B) and e from N(0, W). Directions that
    diagonalise both make W the identity and B a diagonal, psi: there each item is a normal of variance 1 around its
    class's position, whose prior has the variances psi.

    Attributes
    ----------
    means
        The mean that each step subtracts: [D] in the first, [K] after that. Float64, as all of these.
    matrices
        The matrix of each step, [K, D] in the first: a row for each direction. There is one step, or, with lengths
        normalised, two or more. Before each step but the first, rows get unit length.
    psi
        [K], >= 0: the variance between classes along each direction, where that within classes is 1.

    Raises
    ------
    ValueError
        Shapes that do not follow on each other, values that are not finite, a negative psi.

    Examples
    --------
    >>> plda = pe.Plda(means=([1.0, 0.0],), matrices=([[2.0, 0.0], [0.0, 1.0]],), psi=[8.0, 1.0])
    >>> plda
    Plda(2 -> 2 dimensions)
    >>> d = plda.transform([[1.5, 1.0], [1.5, 0.0], [-1.5, 2.0]])
    >>> d.mu.tolist(), d.var.tolist()
    ([[1.0, 1.0], [1.0, 0.0], [-5.0, 2.0]], [1.0, 1.0, 1.0])
    >>> pe.pairwise(d[:1], d, plda.score).round(2).tolist()
    [[1.14, 0.89, -6.62]]
    """

    means: tuple[Numpy, ...]
    matrices: tuple[Numpy, ...]
    psi: Numpy

    if TYPE_CHECKING:

        def __init__(self, means: Sequence[ArrayLike], matrices: Sequence[ArrayLike], psi: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        for name in ("means", "matrices"):
            value = getattr(self, name)
            steps = value if isinstance(value, (tuple, list)) else ()
            rows = tuple(_float64(f"{name}[{i}]", x) for i, x in enumerate(steps))
            object.__setattr__(self, name, rows)
        object.__setattr__(self, "psi", _float64("psi", self.psi))
        if not len(self.means) == len(self.matrices) > 0:
            raise ValueError(
                f"Plda: means are {len(self.means)} and matrices {len(self.matrices)}, expected one a step"
            )
        width = self.means[0].size
        for i, (mean, matrix) in enumerate(zip(self.means, self.matrices, strict=True)):
            if mean.shape != (width,):
                raise ValueError(f"Plda: means[{i}] has shape {mean.shape}, expected ({width},)")
            if matrix.ndim != 2 or matrix.shape[1] != width or not matrix.size:
                raise ValueError(f"Plda: matrices[{i}] has shape {matrix.shape}, expected (K, {width}) like means[{i}]")
            width = len(matrix)
        if self.psi.shape != (width,):
            raise ValueError(f"Plda: psi has shape {self.psi.shape}, expected ({width},) like the last matrix")
        if (self.psi < 0).any():
            raise ValueError(f"Plda: psi holds {self.psi.min():g}, expected variances >= 0")

    def __repr__(self) -> str:
        lengths = ", lengths normalised" if len(self.means) > 1 else ""
        return f"Plda({self.means[0].size} -> {self.psi.size} dimensions{lengths})"

    @property
    def score(self) -> Score:
        """``pe.scores.llr(prior_var=psi)``, for what `transform` returns, fused or not: above 0 where one class is the
        likelier one."""
        return llr(prior_var=self.psi)

    def transform(self, x: KindT | Given | Distribution[KindT]) -> Normal[KindT]:
        """Items in the coordinates of the model, where each has the variance 1; computed in float64.

        Parameters
        ----------
        x
            [N, D] embeddings, arrays of either kind, or a Point. Or an isotropic Normal whose var is what an item is
            unsure of beside the model's W. That is exact where directions are orthogonal, as where W is a multiple of
            the identity or one direction is kept, and refused elsewhere: v I becomes v A A^T, A the directions, a full
            covariance, and normals here are isotropic or diagonal. So does a diagonal one always.

        Returns
        -------
        Normal
            [N, K], of x's kind of array, in its compute dtype (float32 for 16-bit floats); var is 1 for all, or, of a
            Normal, 1 + v |a_k|^2 along the direction a_k. Differentiable in torch. An item's uncertainty as a factor of
            W is exact for every model: ``pe.Normal(plda.transform(x).mu, factor)``.

        Raises
        ------
        TypeError
            x is no array, Point or Normal, or a diagonal Normal.
        ValueError
            Another dimension than the model's; an isotropic Normal where that is not exact.

        References
        ----------
        Silnova et al., "Probabilistic embeddings for speaker diarization", 2020, for a factor of W per item.
        """
        owner = "Plda.transform"
        items: Any = x
        kind = items.kind if isinstance(items, Distribution) else "point"
        if kind not in ("point", "normal_isotropic"):
            raise TypeError(
                f"{owner}: x is {kind}, expected an array, a Point or an isotropic Normal"
                + (": directions turn a variance per dimension into a full covariance" if "normal" in kind else "")
            )
        mu = items.mu if isinstance(items, Distribution) else as_array(items, owner, "x")
        if mu.ndim != 2 or mu.shape[1] != self.means[0].size:
            raise ValueError(f"{owner}: x has shape {tuple(mu.shape)}, expected (N, {self.means[0].size})")
        moved = [self._moved(double(mu[i : i + BLOCK])) for i in range(0, max(len(mu), 1), BLOCK)]
        rows = cast(namespace(mu).concatenate(moved), compute_dtype(mu))
        if kind == "point":
            return Normal(rows, 1.0)
        var = 1 + double(items.var)[:, None] * _like(self._stretches(owner), rows)
        return Normal(rows, cast(var, compute_dtype(mu)))

    def _moved(self, x: Array) -> Array:
        for i, (mean, matrix) in enumerate(zip(self.means, self.matrices, strict=True)):
            x = ((unit(x)[0] if i else x) - _like(mean, x)) @ _like(matrix, x).T
        return x

    def _stretches(self, owner: str) -> Numpy:
        """|a_k|^2 of the directions, by which isotropic variances are multiplied where these are orthogonal."""
        if len(self.matrices) > 1:
            raise ValueError(f"{owner}: x is a Normal, and no normal stays one where its length becomes 1; give x.mu")
        products = self.matrices[0] @ self.matrices[0].T
        squares = np.diagonal(products)
        between = abs(products - np.diag(squares))
        if (between > ORTHOGONAL * np.sqrt(np.outer(squares, squares))).any():
            raise ValueError(
                f"{owner}: x is a Normal, whose covariance becomes a full one, as directions are not orthogonal; "
                "give x.mu, and uncertainties as factors of W: pe.Normal(plda.transform(x.mu).mu, factor)"
            )
        return squares


def _like(x: Array, like: Array) -> Array:
    """Numbers of the model as a float64 array of this kind, on this device."""
    return like.new_tensor(x, dtype=namespace(like).float64) if is_torch(like) else x


def _float64(name: str, x: Any) -> Numpy:
    try:
        found = on_host(x, "Plda", name)
    except ValueError:
        raise ValueError(f"Plda: {name} has rows of different lengths, expected finite numbers") from None
    if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        raise ValueError(f"Plda: {name} are of dtype {found.dtype} or not finite, expected finite numbers")
    return found.astype(np.float64)
