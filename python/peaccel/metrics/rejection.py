"""What confidence is worth: how a metric grows when the least confident queries are rejected."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._arrays import as_array


def rejection_curve(values: ArrayLike, confidence: ArrayLike, shares: ArrayLike) -> NDArray[np.float64]:
    """Mean of a per-query metric over the queries that are kept.

    Parameters are arrays, lists, columns of tables or tensors on the CPU.

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
        Shapes disagree, there is no query, something is no number, or a share lies outside [0, 1).

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022: filter-out curve, with the gallery left whole.
    """
    owner = "rejection_curve"
    values = as_array(owner, "values", values, "(Q,)", np.float64)
    confidence = as_array(owner, "confidence", confidence, "(Q,)", np.float64)
    shares = as_array(owner, "shares", shares, "(S,)", np.float64)
    if len(values) != len(confidence) or not len(values):
        expected = f"expected (Q,) with Q > 0 like values, which has {values.shape}"
        raise ValueError(f"rejection_curve: confidence has shape {confidence.shape}, {expected}")
    if not np.all((shares >= 0) & (shares < 1)):
        raise ValueError(f"rejection_curve: shares span {shares.min()}..{shares.max()}, expected [0, 1)")
    running = np.cumsum(values[np.argsort(-confidence, kind="stable")])
    # rounding first: 10 * (1 - 0.9) is a hair above 1 and must keep one query, not two
    kept = np.ceil(np.round(len(values) * (1 - shares), 9)).astype(np.int64)
    return np.asarray(running[kept - 1] / kept)
