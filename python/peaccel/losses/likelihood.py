"""Losses that are likelihoods of pairs."""

import torch
from torch import Tensor

import peaccel as pe


def negative_mls(d: pe.Normal, labels: Tensor) -> Tensor:
    """PFE's loss: minus the mean Mutual Likelihood Score of the ordered pairs i != j of one class.

    An image's pair with itself is left out: it has distance 0 and would only pull variances down. Constants are kept,
    so the loss is minus a log density, and negative for concentrated embeddings.

    Parameters
    ----------
    d
        N normal distributions with tensors.
    labels
        [N] int64.

    Returns
    -------
    Scalar.

    Raises
    ------
    ValueError
        No two labels are equal.

    References
    ----------
    Shi & Jain, Probabilistic Face Embeddings, ICCV 2019, eqs. 3 and 6.
    """
    same = labels[:, None] == labels
    same &= ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    if not same.any():
        raise ValueError("negative_mls: labels are all different, expected at least one pair of one class")
    scores: Tensor = pe.pairwise(d, d, score="mls")
    return -scores[same].mean()
