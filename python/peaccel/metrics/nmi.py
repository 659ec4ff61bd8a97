"""Whether the clusters of embeddings are the classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import quiet
from peaccel.metrics._numbers import as_classes, as_numbers, require_length

__all__ = ["nmi"]


@quiet
def nmi(embeddings: ArrayLike, labels: ArrayLike, seed: int = 0) -> float:
    """Normalised mutual information of the classes and as many clusters of k-means.

    2 I(classes; clusters) / (H(classes) + H(clusters))

    Parameters
    ----------
    embeddings
        [N, D], such as means, of unit length where the score is a cosine.
    labels
        [N]: numbers or strings.
    seed
        Seed of the first centres (k-means++, one start).

    Returns
    -------
    In [0, 1]; 1 where there is one class, 0 where several have equal embeddings (scikit-learn warns of it).

    Raises
    ------
    ValueError
        Lengths differ, there is no item, or an embedding is not finite.

    References
    ----------
    Kirchhof et al., A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning, ECCV 2022, table 2.

    Examples
    --------
    Two clusters that are the classes, and two that have nothing to do with them. Higher is better:

    >>> embeddings = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]]
    >>> round(pe.metrics.nmi(embeddings, ["cat", "cat", "dog", "dog"]), 2)
    1.0
    >>> round(pe.metrics.nmi(embeddings, ["cat", "dog", "cat", "dog"]), 2)
    0.0
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    x = as_numbers("nmi", "embeddings", embeddings, "(N, D)", finite=True)
    classes = as_classes("nmi", "labels", labels)
    require_length("nmi", "labels", classes, "embeddings", x)
    _, of = np.unique(classes, return_inverse=True)
    clusters = KMeans(int(of.max()) + 1, n_init=1, random_state=seed).fit_predict(x)
    return float(normalized_mutual_info_score(of, clusters))
