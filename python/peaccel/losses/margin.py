"""Classification losses with a margin between cosines."""

from torch import Tensor
from torch.nn.functional import cross_entropy, linear, normalize, one_hot


def cosface(embeddings: Tensor, centres: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """CosFace: cross-entropy of cosines, where the true class must win by a margin.

    logit_c = scale (cos(z, w_c) - margin [c = y])

    Parameters
    ----------
    embeddings
        [N, D], of any length.
    centres
        [C, D] class centres, of any length.
    labels
        [N] int64 in 0..C-1.
    scale
        Inverse temperature, > 0.
    margin
        In [0, 2); 0 gives the normalised softmax.

    Returns
    -------
    Scalar mean over the batch.

    References
    ----------
    Wang et al., CosFace: Large Margin Cosine Loss, CVPR 2018, eq. 4.
    """
    cosines = linear(normalize(embeddings), normalize(centres))
    return cross_entropy(scale * (cosines - margin * one_hot(labels, len(centres))), labels)
