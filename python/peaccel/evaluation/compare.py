"""`pe.compare`: several models by a number of each query, paired, with intervals over queries and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host, quiet
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel._utils.suggestions import require_classes
from peaccel.evaluation.columns import Column, table
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text
from peaccel.evaluation.intervals import Interval, Resamples, compared, ends

__all__ = ["ComparedModel", "ModelComparison", "compare"]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedModel:
    """Mean of a model over queries and seeds, and its gain over the first model."""

    model: Annotated[str, Column("model")]
    seeds: Annotated[int, Column("seeds", "number of trainings of the model, each with another seed.", str)]
    mean: Annotated[Interval, Column("mean %", "mean over queries and seeds; higher is better.")]
    gain: Annotated[
        Interval | None,
        Column("gain", "mean less that of the first model, query by query and seed by seed, in points."),
    ]
    """None of the first model."""


@dataclass(frozen=True)
class ModelComparison(Exported):
    """Result of `pe.compare`; prints as sentences and a table.

    Examples
    --------
    >>> found = pe.compare({"one": [0.0, 1.0, 1.0, 0.0], "other": [1.0, 1.0, 1.0, 0.0]}, clusters=[0, 0, 1, 2])
    >>> found.models[1].gain.value
    0.25
    """

    queries: int
    """The number of queries with a number from every model."""
    clusters: int
    """The number of clusters that these queries have."""
    models: tuple[ComparedModel, ...]
    seed: int

    def sentence(self) -> str:
        """Sentence on each model: whether it is better or worse than the first one."""
        first, *others = self.models
        said = [f"{x.model} is {compared(x.gain)} than {first.model}." for x in others if x.gain is not None]
        return " ".join(said)

    def summary(self) -> str:
        """Data of the comparison, in one sentence."""
        return (
            f"{self.queries} queries of {self.clusters} clusters; [95 %, each by itself, over clusters and seeds], "
            f"seed {self.seed}"
        )

    def tables(self) -> dict[str, Table]:
        """Header and rows of the table, by its title."""
        return {f"Models compared with {self.models[0].model}": table(self.models)}

    def __str__(self) -> str:
        """Sentences and the table as text."""
        return as_text(f"{self.sentence()}\n{self.summary()}", self.tables())


@quiet
def compare(values: Mapping[str, ArrayLike], clusters: ArrayLike | None = None, *, seed: int = 0) -> ModelComparison:
    """Compare models by a number of each query, paired by query and by seed.

    The interval of a mean is between percentiles of 2000 draws of whole clusters. Where a model was trained with
    S >= 2 seeds, each draw has a Student's t of S - 1 degrees of freedom times the standard error over seeds beside it.
    Models with equally many seeds are paired by seed. Means of one training say nothing about other seeds.

    Parameters
    ----------
    values
        By the model's name [Q] or [S, Q], a number of each query with each seed, such as
        `peaccel.metrics.hit_at_k` or `peaccel.metrics.average_precision_at_r`. At least two models; the first one is
        the baseline. Queries for which a number is NaN are left out of all.
    clusters
        [Q], the class of each query, or whatever else is drawn whole; None: each query by itself.
    seed
        Seed of the draws.

    Returns
    -------
    ModelComparison
        Means and gains with intervals; ``to_latex()`` writes the table.

    Raises
    ------
    TypeError
        ``values`` is no mapping.
    ValueError
        Fewer than two models, arrays of other shapes or of other queries, infinite numbers, no query that all models
        have, clusters that are missing or of another number of queries.

    Examples
    --------
    Whether each of six queries is answered rightly, by two models with three seeds each:

    >>> cosine = [[1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0]]
    >>> mls = [[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 1], [1, 0, 0, 1, 1, 1]]
    >>> found = pe.compare({"cosine": cosine, "mls": mls}, clusters=["a", "a", "b", "b", "c", "c"])
    >>> str(found.models[0].mean)[:4], round(found.models[1].gain.value, 3)
    ('50.0', 0.278)
    """
    owner = "compare"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    if not isinstance(values, Mapping):
        raise TypeError(f"{owner}: values is {type(values).__name__}, expected a mapping from models to numbers")
    if len(values) < 2:
        raise ValueError(f"{owner}: values has {len(values)} models, expected at least 2")
    arrays = {str(name): _by_query(owner, name, x) for name, x in values.items()}
    first, *others = arrays
    count = len(arrays[first])
    for name in others:
        if len(arrays[name]) != count:
            raise ValueError(f"{owner}: {name} has {len(arrays[name])} queries, expected {count} like {first}")
    if clusters is not None:
        require_classes(owner, "clusters", clusters)
    of = np.arange(count) if clusters is None else on_host(clusters, owner, "clusters")
    if of.shape != (count,):
        raise ValueError(f"{owner}: clusters has shape {of.shape}, expected ({count},)")
    known = ~np.any([np.isnan(x).any(1) for x in arrays.values()], 0)
    if not known.any():
        raise ValueError(f"{owner}: no query has a number from every model")
    resamples = Resamples(of[known], seed)
    rng = np.random.default_rng(seed + 1)
    held = {name: x[known] for name, x in arrays.items()}
    drawn = {name: _drawn(x, resamples, rng) for name, x in held.items()}
    models = []
    for name, x in held.items():
        gain = None
        if name != first:
            if x.shape == held[first].shape:
                gain = ends(*_drawn(x - held[first], resamples, rng))
            else:
                gain = ends(drawn[name][0] - drawn[first][0], drawn[name][1] - drawn[first][1])
        models.append(ComparedModel(name, x.shape[1], ends(*drawn[name]), gain))
    return ModelComparison(int(known.sum()), len(np.unique(of[known])), tuple(models), seed)


def _by_query(owner: str, name: str, x: ArrayLike) -> Values:
    """[Q, S], the numbers of a model."""
    found = on_host(x, owner, f"values of {name}")
    if found.dtype.kind not in "buif" or found.ndim not in (1, 2) or not found.size:
        what = f"shape {found.shape} and dtype {found.dtype}"
        raise ValueError(f"{owner}: values of {name} have {what}, expected numbers [Q] or [S, Q]")
    numbers = np.atleast_2d(found.astype(np.float64)).T
    if np.isinf(numbers).any():
        raise ValueError(f"{owner}: values of {name} are infinite")
    return numbers


def _drawn(x: Values, resamples: Resamples, rng: np.random.Generator) -> tuple[float, Values]:
    """The mean of [Q, S], and its draws."""
    of_seeds, drawn = resamples.drawn_means(x)
    around, seeds = drawn.mean(1), len(of_seeds)
    if seeds > 1:
        error = of_seeds.std(ddof=1) / np.sqrt(seeds)
        around = around + error * rng.standard_t(seeds - 1, len(around))
    return float(of_seeds.mean()), around
