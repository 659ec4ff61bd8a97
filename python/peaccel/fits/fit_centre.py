"""The mean of each side of searches, over items that need no labels, and the covariance that both have around it."""

from __future__ import annotations

import numpy as np

from peaccel._utils.arrays import Array, on_host, quiet, require_finite
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double
from peaccel.distributions.checks import require_kind
from peaccel.fits.plda import BLOCK
from peaccel.fits.records import CENTRED, Centre

__all__ = ["fit_centre"]

NEGLIGIBLE = 1e-10  # share of the greatest variance below which a direction is rounding, and gets the weight 0


@quiet
def fit_centre(queries: Distribution, gallery: Distribution | None = None, *, whiten: bool = False) -> Centre:
    """Fit the mean of the queries and the mean of the gallery, to be subtracted before cosine; no labels are needed.

    Encoders give each language, prompt or camera another mean, which all cosines share. To subtract it often helps
    as much as what labels could tell (`choose_score` tries it).

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim, points or normals, such as will be searched for and searched in. None for the gallery:
        both sides are of one kind and have one mean.
    whiten
        Whether to multiply by the inverse square root of the covariance around the means as well, so that no direction
        counts more than another: of points alone, and of more items than dimensions.

    Returns
    -------
    Centre
        ``centre.of_queries(d)`` and ``centre.of_gallery(d)`` are the items less their mean. ``pe.io.write_fit`` keeps
        it, for ``peaccel search --centre FILE``.

    Raises
    ------
    TypeError
        Something else than points and normals; whiten of normals.
    ValueError
        No items, other dims, values that are not finite, or, to whiten, as few items as dimensions.

    Examples
    --------
    Questions and answers; until the means are subtracted, all questions are most like the second answer:

    >>> queries, gallery = pe.Point([[5.0, 1.0], [5.0, -1.0]]), pe.Point([[1.0, 1.0], [4.0, -1.0]])
    >>> pe.search(queries, gallery, 1, "cosine").ids.ravel().tolist()
    [1, 1]
    >>> centre = pe.fit_centre(queries, gallery)
    >>> pe.search(centre.of_queries(queries), centre.of_gallery(gallery), 1, "cosine").ids.ravel().tolist()
    [0, 1]
    """
    owner = "fit_centre"
    sides = {"queries": queries} if gallery is None else {"queries": queries, "gallery": gallery}
    kinds = ("point",) if whiten else CENTRED
    rows = []
    for name, d in sides.items():
        require_kind(owner, name, d, kinds, "that can be whitened" if whiten else "that has a mean to subtract")
        rows.append(on_host(d.mu, owner, name))
        if not len(rows[-1]) or rows[-1].shape[1] != rows[0].shape[1]:
            raise ValueError(f"{owner}: {name} has shape {rows[-1].shape}, expected (N, {rows[0].shape[1]}), N > 0")
        require_finite(owner, name, rows[-1])
    means = [x.mean(0, dtype=np.float64) for x in rows]
    matrix = _whitening(owner, rows, means) if whiten else ()
    return Centre(tuple(means[0].tolist()), tuple(means[-1].tolist()), matrix)


def _whitening(owner: str, rows: list[Array], means: list[Array]) -> tuple[tuple[float, ...], ...]:
    """The inverse square root of the covariance of all items around the mean of their side."""
    number, dim = sum(map(len, rows)), rows[0].shape[1]
    if number - len(rows) < dim:
        raise ValueError(f"{owner}: {number} items of {dim} dimensions, expected more items than dimensions to whiten")
    covariance = np.zeros((dim, dim))
    for x, mean in zip(rows, means, strict=True):
        for start in range(0, len(x), BLOCK):
            left = double(x[start : start + BLOCK]) - mean
            covariance += left.T @ left
    variances, directions = np.linalg.eigh(covariance / number)
    kept = variances > NEGLIGIBLE * variances[-1]
    root = (directions[:, kept] / np.sqrt(variances[kept])) @ directions[:, kept].T
    return tuple(map(tuple, root.tolist()))
