"""The plan of a call: what a verb is given, checked, and who computes it from which arrays, decided once on entry."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import (
    HALVES,
    Array,
    as_numpy,
    device_of,
    dtype_name,
    is_torch,
    is_traced,
    quiet,
    widened,
)
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_candidates, plural, require_distribution
from peaccel.ops import Inputs, Kernels, kernels_of
from peaccel.ops._dispatch import differentiates, transformed
from peaccel.retrieval.prepared import LaidOut, Prepared, gallery_inputs
from peaccel.scores import Pair, Score, named
from peaccel.scores._common_variance import common_variance, weighted_pair
from peaccel.scores._inputs import AS_THEY_LIE

__all__ = ["Plan", "plan"]

FEW = 6  # queries that read a gallery of diagonal normals once, as it lies; more of them lay its rows out anew
FRESH = 1 << 25  # bytes above which memory comes as new pages, and a gradient costs more than a copy of few rows


class Plan(NamedTuple):
    """A checked call of a score: the kernels that compute it, their inputs, the candidates, and what a prepared gallery
    has laid out.

    Where `rows` is an array, the inputs hold these rows of the gallery only, in ascending order, and candidates are
    positions in `rows`.
    """

    score: Score
    pair: Pair
    kernels: Kernels
    inputs: Inputs
    candidates: Array = None
    rows: Array = None
    laid_out: LaidOut | None = None

    def scores(self, *, pairwise: bool = False) -> Array:
        """Scores of the candidates; without any, those of all pairs, or of rows i with rows i."""
        try:
            return self.kernels.score(self.pair.op, self.inputs, self.candidates, pairwise)
        except ValueError as error:
            raise self._in_its_name(error) from None

    def best(self, candidates: Array, k: int) -> tuple[Array, Array]:
        """Scores and rows [Q, k] of the best of these candidates, which are rows of the inputs."""
        codes = None if self.laid_out is None else self.laid_out.codes()
        try:
            return self.kernels.rerank(self.pair.op, self.inputs, candidates, k, codes)
        except ValueError as error:
            raise self._in_its_name(error) from None

    def best_of_all(self, k: int, prune: str) -> tuple[Array, Array, float | None]:
        """Scores and rows [Q, k] of the best of all rows, and the share of pairs that were scored, if it is known."""
        inputs, laid_out = self.inputs, self.laid_out
        # A number of queries that is compared would be a condition of a compiled graph.
        apart = None if laid_out is None or is_traced(inputs.mu1) else laid_out.apart
        if apart is not None and len(inputs.mu1) < FEW:
            inputs = inputs._replace(mu2=apart[0], uncertainty2=apart[1])
        panels = None if laid_out is None else laid_out.panels()
        return self.kernels.search(self.pair.op, inputs, k, prune, panels)

    def of_rows(self, *, queries: Array = None, items: Array = None) -> Plan:
        """The same call of some of the queries, or of the items, by their rows or slices; of no use where it draws."""
        x, laid_out = self.inputs, self.laid_out
        if queries is not None:
            x = x._replace(mu1=x.mu1[queries], uncertainty1=x.uncertainty1[queries])
        if items is not None:
            x, laid_out = x._replace(mu2=x.mu2[items], uncertainty2=x.uncertainty2[items]), None
        return self._replace(inputs=x, laid_out=laid_out)

    def _in_its_name(self, error: ValueError) -> ValueError:
        """A kernel's error in the name of the score, which the caller knows."""
        return ValueError(str(error).replace(f"{self.pair.op.name}:", f"{self.score.name}:", 1))


@quiet
def plan(
    queries: Distribution,
    gallery: Distribution | Prepared,
    score: str | Score | None,
    *,
    detach: bool,
    names: tuple[str, str] = ("queries", "gallery"),
    candidates: Array = None,
) -> Plan:
    """Check the arguments of a verb, which errors call by `names`, and compute the inputs of its kernels.

    With `detach`, as for rankings, no gradient is followed, and queries that are not finite are refused: any item would
    be the best for them.
    """
    record = named(score, queries, gallery)
    pair = _checked(record, queries, gallery, names)
    dtype = gallery.home.compute_dtype
    if candidates is not None:
        candidates = checked_candidates(record.name, queries, candidates)
    one_set = gallery is queries and candidates is None and dtype == gallery.home.dtype
    queries.check_rows()
    if isinstance(gallery, Distribution):
        gallery.check_rows()
    if detach:
        queries.check_finite(record.name, names[0])
        if queries.home.device != "numpy":
            queries = queries.detach()
            gallery = gallery.detach() if isinstance(gallery, Distribution) else gallery
    if queries.home.dtype != dtype:
        queries = queries.to(dtype)
    laid_out: LaidOut | None = None
    if isinstance(gallery, Prepared):
        laid_out = _laid_out(pair, queries, gallery, record)
        pair = laid_out.pair
    elif pair.weighted is not None:
        pair = _weighted(pair, queries, gallery, record)
    params = record.params
    if isinstance(gallery, Prepared) and not _learns(record):
        params = gallery.near.params
    mu1, uncertainty1 = pair.query(queries, params)
    rows = None
    if laid_out is not None:
        mu2, uncertainty2 = laid_out.inputs
    elif one_set and pair.query is pair.gallery:
        mu2, uncertainty2 = mu1, uncertainty1
    else:
        assert isinstance(gallery, Distribution)
        if candidates is not None and not _reads_gallery(pair, gallery):
            candidates, rows = _named_rows(pair, gallery.mu, candidates)
        mu2, uncertainty2 = gallery_inputs(pair, gallery if rows is None else gallery[rows], record)
    shared, draws = pair.shared(mu1, params), record.draws(pair, mu1)
    inputs = Inputs(mu1, uncertainty1, mu2, uncertainty2, shared, draws)
    planned = Plan(record, pair, kernels_of(mu1), inputs, candidates, rows, laid_out)
    return planned if detach else _with_few_gradients(planned)


def _checked(score: Score, queries: Any, gallery: Any, names: tuple[str, str]) -> Pair:
    """How the pair of kinds is scored, after checks of what the arguments are, of their dims and of where they lie."""
    if not isinstance(queries, Distribution):
        require_distribution(score.name, names[0], queries)
    if not isinstance(gallery, Prepared):
        if not isinstance(gallery, Distribution):
            require_distribution(score.name, names[1], gallery)
    elif not gallery.is_for(score):
        raise ValueError(f"{score.name}: {names[1]} is prepared for score {gallery.score.label}, got {score.label}")
    pair = score.pair(queries.kind, gallery.kind)
    if queries.dim != gallery.dim:
        raise ValueError(f"{score.name}: dim of {names[0]} is {queries.dim}, expected {gallery.dim} like {names[1]}")
    device, expected = queries.home.device, gallery.home.device
    if device != expected:
        kind = TypeError if "numpy" in (device, expected) else ValueError
        what = f"{names[0]} must be {plural(expected)} like {names[1]}, got {plural(device)}"
        raise kind(f"{score.name}: {what}")
    if not (device in ("numpy", "cpu") or device.startswith("cuda")):
        raise ValueError(f"{score.name}: {names[0]} and {names[1]} are on {device}, expected cpu or cuda")
    return pair


def _with_few_gradients(planned: Plan) -> Plan:
    """The plan in which gradients are made of named rows alone: kernels write a gradient of every row that they read,
    in float32, to which halves are widened."""
    inputs, candidates, rows = planned.inputs, planned.candidates, planned.rows
    whole = candidates is not None and rows is None
    is_half = dtype_name(inputs.mu2) in HALVES
    costly = is_half or (whole and not is_traced(inputs.mu2) and inputs.mu2.nbytes > FRESH)
    if not (costly and differentiates(inputs)):
        return planned
    if whole:
        candidates, rows = _named_rows(planned.pair, inputs.mu2, candidates)
    taken = rows if whole else None
    mu2, uncertainty2 = (x if taken is None else x[taken] for x in (inputs.mu2, inputs.uncertainty2))
    inputs = inputs._replace(mu2=widened(mu2), uncertainty2=widened(uncertainty2))
    return planned._replace(inputs=inputs, candidates=candidates, rows=rows)


def _learns(score: Score) -> bool:
    """Whether a parameter is trained."""
    return any(is_torch(x) and x.requires_grad for x in score.params.values())


def _laid_out(pair: Pair, queries: Distribution, gallery: Prepared, score: Score) -> LaidOut:
    """Layout of a prepared gallery for these queries; made anew of trained parameters, of which it has copies."""
    if not _learns(score):
        return gallery.laid_out_for(queries)
    if pair.gallery in AS_THEY_LIE:
        return gallery.laid_out(pair)
    return LaidOut(pair, gallery_inputs(pair, gallery.distribution, score), [], pack=False, codes=False)


def _weighted(pair: Pair, queries: Distribution, gallery: Distribution, score: Score) -> Pair:
    """The pair by weighted squares where all queries have one variance, and all items; else the pair itself."""
    var1, var2 = common_variance(queries), common_variance(gallery)
    return pair if var1 is None or var2 is None else weighted_pair(pair, gallery.mu, var1, var2, score.params)


def _reads_gallery(pair: Pair, gallery: Distribution) -> bool:
    """Whether the op reads the gallery's arrays as they lie, so that all of it costs no more than a few rows, or has to
    read all, as torch.compile cannot look at the candidates.
    """
    mu = gallery.mu
    if gallery.home.device != "numpy" and is_traced(mu):
        return True
    is_widened = pair.op.sampled and dtype_name(mu) in HALVES
    return pair.gallery in AS_THEY_LIE and not is_widened and gallery.is_adjacent


def _named_rows(pair: Pair, mu: Array, candidates: Array) -> tuple[Array, Array]:
    """Candidates as positions among the rows that they name, and these rows, ascending.

    The candidates themselves and None where the op needs the whole gallery: draws depend on the number of the row, and
    the values of tensors that are traced, transformed or on a GPU cannot be read here.
    """
    free = device_of(mu) in ("numpy", "cpu") and not is_traced(mu) and not transformed(mu)
    if not free or pair.op.draws or math.prod(candidates.shape) >= len(mu):
        return candidates, None
    ids = as_numpy(candidates)
    rows, numbers = np.unique(ids, return_inverse=True)
    if len(rows) and (rows[0] < -1 or rows[-1] >= len(mu)):
        return candidates, None  # the kernel refuses them, and names the query
    none = int(len(rows) > 0 and rows[0] == -1)
    rows, numbers = rows[none:], numbers.reshape(ids.shape) - none
    from_numpy = sys.modules["torch"].from_numpy if is_torch(mu) else np.asarray
    return from_numpy(numbers), from_numpy(rows)
