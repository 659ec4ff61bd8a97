"""Batches of distributions and what is computed of one item or two: densities, divergences, draws, confidences, fusion.

A file bears the name of its public function; `classes` holds the distributions, `checks` the checks of arguments, and
`torch_distributions` the same laws as `torch.distributions.Distribution`.
"""

from peaccel.distributions.classes import (
    Distribution,
    NonIsotropicVonMisesFisher,
    Normal,
    Point,
    Scaled,
    VonMisesFisher,
    concat,
)

__all__ = ["Distribution", "NonIsotropicVonMisesFisher", "Normal", "Point", "Scaled", "VonMisesFisher", "concat"]
