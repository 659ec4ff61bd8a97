"""Distributions from several embeddings of each item."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import Numpy, on_host, quiet
from peaccel.distributions import Normal, VonMisesFisher

__all__ = ["from_ensemble"]

Floats: TypeAlias = NDArray[Any]

FEW = 1000  # items from which it is estimated in how many dimensions embeddings of an item vary


@overload
def from_ensemble(embeddings: Any, kind: Literal["normal"] = "normal", diagonal: bool = False) -> Normal[Numpy]: ...
@overload
def from_ensemble(embeddings: Any, kind: Literal["vmf"], diagonal: bool = False) -> VonMisesFisher[Numpy]: ...
@quiet
def from_ensemble(
    embeddings: Any, kind: Literal["normal", "vmf"] = "normal", diagonal: bool = False
) -> Normal[Numpy] | VonMisesFisher[Numpy]:
    """A distribution for each item out of several embeddings of it, of any encoder, without training.

    The embeddings may be of augmentations, crops or paraphrases of the item, of passes with dropout, or of the members
    of an ensemble. mu is their mean, and the variance s_i that of ONE of them, unbiased: sum |x - mu|^2 / (M - 1).
    As M is small, s_i is noisy, and it is drawn to the variance that items have on average:

        var_i = w s_i + (1 - w) mean(s),  w = Var(true variances) / Var(s),

    the best linear estimate (Buehlmann's credibility). Of normal embeddings s_i has the variance 2 sigma_i^4 / n, n the
    degrees of freedom, and the rest of Var(s) is the variance of the true variances. n is M - 1 times the number of
    dimensions in which embeddings vary, tr(C)^2 / tr(C^2), C the covariance within items, found by inner products.

    Parameters
    ----------
    embeddings
        [M, N, D], or a list of M arrays [N, D]: M >= 2 embeddings of N items, arrays or tensors, which are copied to
        numpy. The more alike the M are to what changes between two sights of one item, the better. If the encoder's
        lengths mean nothing (CLIP), give unit vectors, or take "vmf".
    kind
        "normal", or "vmf": directions, where 1 - mean cosine of two embeddings of an item takes the place of the
        variance; kappa is r (D - r^2) / (1 - r^2) with r^2 = that mean cosine, drawn to the mean as above.
    diagonal
        Of a Normal, a variance for each dimension, each drawn to the mean of its dimension: for M of 20 and more.

    Returns
    -------
    Normal or VonMisesFisher
        As numpy arrays: float64 where embeddings are, else float32. The scale is that of what varied, rarely that of
        what differs between two sights of an item: `pe.calibrate_variance` fits it. Of directions no more alike
        than chance kappa is 0.

    Raises
    ------
    TypeError
        embeddings are no arrays.
    ValueError
        Wrong shapes, M < 2, NaN, another kind, diagonal of "vmf", a mean direction of length 0; embeddings that are
        equal for every item (of a dimension, if diagonal), as a deterministic encoder gives.

    Notes
    -----
    r (D - r^2) / (1 - r^2) is within 0.6 % of the kappa with that r for D >= 32, 2.1 % for D = 8, 7 % for D = 2
    (measured), which is less than the error of r of few embeddings.

    References
    ----------
    Buehlmann, "Experience Rating and Credibility", ASTIN Bulletin 4, 1967; Banerjee et al., "Clustering on the Unit
    Hypersphere using von Mises-Fisher Distributions", 2005, eq. 4.4, for kappa.

    Examples
    --------
    Three crops of two photographs, the second one ambiguous:

    >>> crops = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.1, 1.0], [0.5, 0.5]], [[0.0, 0.9], [0.9, 0.4]]])
    >>> d = pe.io.from_ensemble(crops)
    >>> d.mu.round(2).tolist(), d.var.round(3).tolist()
    ([[0.03, 0.97], [0.8, 0.3]], [0.028, 0.045])
    """
    owner = "from_ensemble"
    if kind not in ("normal", "vmf"):
        raise ValueError(f"{owner}: kind is {kind!r}, expected 'normal' or 'vmf'")
    if kind == "vmf" and diagonal:
        raise ValueError(f"{owner}: diagonal is True, expected False for 'vmf', which has one concentration")
    x = _stacked(owner, embeddings)
    if kind == "vmf":
        x = x / _lengths(owner, x)[..., None]
    members, _, dim = x.shape
    mean = x.mean(0, dtype=np.float64)
    squares = sum(((member - mean) ** 2 for member in x), np.zeros(mean.shape)) / (members - 1)
    if diagonal:
        if (still := np.flatnonzero(squares.max(0) == 0)).size:
            raise ValueError(
                f"{owner}: embeddings of every item are equal in dimension {still[0]}, which has no variance"
            )
        return Normal(mean.astype(x.dtype), _shrunk(squares, members - 1).astype(x.dtype)).validate()
    var = squares.mean(1)
    if not var.any():
        raise ValueError(f"{owner}: embeddings of every item are equal, expected several that differ")
    var = _shrunk(var, (members - 1) * _varying(x))
    if kind == "normal":
        return Normal(mean.astype(x.dtype), var.astype(x.dtype)).validate()
    spread = np.minimum(dim * var, 1.0)  # 1 - r^2
    kappa = np.sqrt(1 - spread) * (dim - 1 + spread) / spread
    return VonMisesFisher((mean / _lengths(owner, mean)[:, None]).astype(x.dtype), kappa.astype(x.dtype)).validate()


def _stacked(owner: str, embeddings: Any) -> Floats:
    """The embeddings stacked as [M, N, D] of finite numbers, float64 or float32."""
    several = embeddings if isinstance(embeddings, (list, tuple)) else [embeddings]
    arrays = [on_host(x, owner, "embeddings") for x in several]
    for x in arrays:
        if x.dtype.kind not in "fiu" and x.dtype.name != "bfloat16":
            raise TypeError(f"{owner}: embeddings must be arrays of floats, got {x.dtype}")
        if x.shape != arrays[0].shape:
            raise ValueError(f"{owner}: embeddings have shapes {arrays[0].shape} and {x.shape}, expected one for all")
    x = np.stack(arrays) if isinstance(embeddings, (list, tuple)) else arrays[0]
    if x.ndim != 3 or x.shape[0] < 2 or x.shape[1] < 1:
        raise ValueError(f"{owner}: embeddings have shape {x.shape}, expected (M, N, D) with M >= 2 of each of N items")
    x = x.astype(np.float64 if x.dtype.itemsize >= 8 else np.float32, copy=False)
    if not np.isfinite(x).all():
        member, row = np.argwhere(~np.isfinite(x).all(2))[0]
        raise ValueError(f"{owner}: embeddings are not finite in row {row} of embedding {member}")
    return x


def _lengths(owner: str, x: Floats) -> Floats:
    length: Floats = np.sqrt(np.einsum("...d,...d->...", x, x, dtype=np.float64))
    if not length.all():
        row = np.argwhere(length == 0)[0][-1]
        raise ValueError(f"{owner}: embeddings of row {row} have length 0, or add up to it, expected directions")
    return length


def _shrunk(s: Floats, freedom: float) -> Floats:
    """Variances [N] or [N, D] shrunk to their mean over items, by as much of their variance as chance explains."""
    mean: Floats = s.mean(0)
    found = s.var(0)
    # E s^2 = (1 + 2 / freedom) E sigma^4, hence the variance of sigma^2 itself.
    true = (found + mean**2) / (1 + 2 / freedom) - mean**2
    w = np.clip(true / np.where(found > 0, found, 1), 0, 1)
    shrunk: Floats = mean + w * (s - mean)
    return shrunk


def _varying(x: Floats) -> float:
    """tr(C)^2 / tr(C^2): in how many dimensions the embeddings of an item vary, 1 .. D.

    By differences of two embeddings of an item: those of different items have the mean squared inner product
    4 tr(C^2), without the covariance of D x D numbers.
    """
    step = -(-x.shape[1] // FEW)
    difference = np.subtract(x[0, ::step], x[1, ::step], dtype=np.float64)
    gram = difference @ difference.T
    squares = np.diag(gram)
    pairs = len(squares) * (len(squares) - 1)
    crossed = (gram**2).sum() - (squares**2).sum()
    if pairs == 0 or crossed <= 0:
        return float(x.shape[2])
    return float(np.clip(squares.mean() ** 2 / (crossed / pairs), 1, x.shape[2]))
