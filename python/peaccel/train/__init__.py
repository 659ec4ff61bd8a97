"""Training: the loop for every method, what it deals out, what it keeps."""

from peaccel.train.embedding import embed
from peaccel.train.loop import Options, fit

__all__ = ["Options", "embed", "fit"]
