"""What confidence is worth: how a metric grows when the least confident queries are rejected."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rejection_curve(values: NDArray[Any], confidence: NDArray[Any], shares: NDArray[Any]) -> NDArray[np.float64]:
    """Mean of a per-query metric over the queries that are kept.

    Parameters
    ----------
    values
        [Q] metric of each query, such as 1 where the first item found is right.
    confidence
        [Q], higher = more confident; among equals the earlier query is kept.
    shares
        [S] shares of queries to reject, least confident first, in [0, 1).

    Returns
    -------
    [S] means over the first ceil(Q (1 - share)) queries, the most confident ones.

    Raises
    ------
    ValueError
        Shapes disagree, there is no query, or a share lies outside [0, 1).

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022: filter-out curve, with the gallery left whole.
    """
    if values.ndim != 1 or values.shape != confidence.shape or not len(values):
        expected = f"expected (Q,) with Q > 0 like values, which has {values.shape}"
        raise ValueError(f"rejection_curve: confidence has shape {confidence.shape}, {expected}")
    if not np.all((shares >= 0) & (shares < 1)):
        raise ValueError(f"rejection_curve: shares span {shares.min()}..{shares.max()}, expected [0, 1)")
    running = np.cumsum(values[np.argsort(-confidence, kind="stable")], dtype=np.float64)
    # rounding first: 10 * (1 - 0.9) is a hair above 1 and must keep one query, not two
    kept = np.ceil(np.round(len(values) * (1 - shares), 9)).astype(np.int64)
    return np.asarray(running[kept - 1] / kept)
