"""The verbs: score pairs, rerank candidates, search galleries.

All verbs take distributions (or, as gallery, a `Prepared`) and a score by name or record. numpy in, numpy out; torch
in, torch out. `paired`, `pairwise` and `rescore` differentiate in torch (twice); `rerank` and `search` are detached. A
pair has the same score, to the last bit, from every verb but `pairwise`, whose scores of one inner product or squared
distance agree with the others within a few roundings (docs/numerics.md).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from peaccel._utils.arrays import Array, ArrayT, Given, as_numpy, full, is_torch
from peaccel._utils.exclusions import Exclusions
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_candidates, checked_k
from peaccel.retrieval.blocks import Block, BlockPlans, ListedRows, each_block, in_blocks, named_for_blocks
from peaccel.retrieval.findable import ALL, Findable
from peaccel.retrieval.plan import Plan, plan
from peaccel.retrieval.prepared import Prepared
from peaccel.retrieval.ranking import Ranking, known_as, merge, of_score
from peaccel.retrieval.searchable import Searchable, is_searchable
from peaccel.scores import Score, named

if TYPE_CHECKING:
    from peaccel.fits.records import Threshold

__all__ = ["Ranking", "paired", "pairwise", "rerank", "rescore", "search"]


PRUNE = ("auto", "never", "always")


# -- verbs -------------------------------------------------------------------------------------------------------------


def paired(
    a: Distribution[ArrayT], b: Distribution[ArrayT] | Prepared[ArrayT], score: str | Score | None = None
) -> ArrayT:
    """Scores of item i of `a` with item i of `b`.

    Parameters
    ----------
    a, b
        N items each, of one dim, kind of array, dtype and device.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.

    Returns
    -------
    [N], in the compute dtype (float32 for 16-bit floats). Differentiable in torch, twice.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different lengths, dims, dtypes or devices; an unknown score.

    Examples
    --------
    Two pairs of photographs at one angle, sharp ones and blurred ones:

    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> b = pe.Normal([[0.6, 0.8], [0.6, 0.8]], var=[0.1, 0.5])
    >>> pe.paired(a, b, "mls").round(3).tolist()
    [-1.228, -2.038]
    >>> pe.paired(a, b, "cosine").round(3).tolist()
    [0.8, 0.8]
    """
    planned = plan(a, b, score, detach=False, names=("a", "b"))
    if len(a) != len(b):
        raise ValueError(f"{planned.score.name}: b has {len(b)} items, expected {len(a)} like a")
    if a.home.dtype != b.home.dtype:
        raise ValueError(f"{planned.score.name}: b has dtype {b.home.dtype}, expected {a.home.dtype} like a")
    return planned.scores()


def pairwise(
    queries: Distribution[ArrayT], gallery: Distribution[ArrayT] | Prepared[ArrayT], score: str | Score | None = None
) -> ArrayT:
    """Scores of every query with every gallery item.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.

    Returns
    -------
    [Q, G]. Differentiable in torch, twice. On a CPU, inner products and squared distances of all pairs are sums in the
    order of a matrix product: these scores agree with the other verbs' within a stated distance (docs/numerics.md), not
    to the last bit. The number of threads moves no bit.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different dims or devices; an unknown score.

    Examples
    --------
    >>> queries = pe.Normal([[0.0, 1.0]], var=[0.1])
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> pe.pairwise(queries, gallery, "mls").round(3).tolist()
    [[-0.228, -5.228, -1.545]]
    """
    return plan(queries, gallery, score, detach=False).scores(pairwise=True)


def rescore(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT] | Prepared[ArrayT] | Searchable | Iterable[Distribution[ArrayT] | Prepared[ArrayT]],
    candidates: ArrayT | Given,
    score: str | Score | None = None,
) -> ArrayT:
    """Scores of each query with its candidates.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype. The gallery may come in blocks, as in
        `search`; a `FaissReranker`, `Gallery` or `ShardedGallery` has candidates under its ids.
    candidates
        Integers [Q, K]: rows of the gallery; -1 = none.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.

    Returns
    -------
    [Q, K]; -inf for candidate -1. Differentiable in torch, twice; detached where the gallery comes in blocks.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different dims or devices; an unknown score; candidates of another shape or dtype or outside -1 .. G-1; no
        blocks, or one that is not like the first.

    Examples
    --------
    >>> queries = pe.Normal([[0.0, 1.0]], var=[0.1])
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> pe.rescore(queries, gallery, [[2, 0, -1]]).round(3).tolist()
    [[-1.545, -0.228, -inf]]
    """
    if candidates is None:
        raise _without_candidates(score)
    if is_searchable(gallery):
        found: ArrayT = gallery.rescore(queries, candidates, score)
        return found
    if in_blocks(gallery):
        return _rescore_blocks(queries, gallery, candidates, score)
    return plan(queries, gallery, score, detach=False, candidates=candidates).scores()


def rerank(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT] | Prepared[ArrayT] | Searchable,
    candidates: ArrayT | Given,
    k: int,
    score: str | Score | None = None,
    *,
    exclude: Given | Exclusions | None = None,
) -> Ranking[ArrayT]:
    """The best k candidates of each query.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype. A `FaissReranker`, `Gallery` or
        `ShardedGallery` has candidates and results under its ids.
    candidates
        Integers [Q, K]: rows of the gallery; -1 = none.
    k
        How many to return, >= 1; more than K pads.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.
    exclude
        As in `search`: candidates that a query may not find count as none.

    Returns
    -------
    Ranking
        Scores and gallery rows [Q, k], best first. Detached.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different dims or devices; an unknown score; candidates of another shape or dtype or outside -1 .. G-1; k below
        1 or not an integer.

    Examples
    --------
    A first stage by cosine found a blurred item, then two sharp ones; the likelihood ratio ranks a sharp one first:

    >>> queries = pe.Normal([[0.0, 1.0]], var=[0.1])
    >>> gallery = pe.Normal([[0.0, 1.0], [0.5, 0.5], [0.6, 0.8]], var=[0.9, 0.1, 0.1])
    >>> pe.rerank(queries, gallery, [[0, 2, 1]], k=2, score="llr:prior_var=0.5").ids.tolist()
    [[2, 0]]
    """
    if candidates is None:
        raise _without_candidates(score)
    if is_searchable(gallery):
        return gallery.rerank(queries, candidates, k, score, exclude=exclude)
    if exclude is not None:
        owner = named(score, queries, gallery).name
        excluded = Findable.of(owner, None, exclude, len(queries), len(gallery)).excluded
        assert excluded is not None
        candidates = excluded.masked(checked_candidates(owner, queries, candidates))
    planned = plan(queries, gallery, score, detach=True, candidates=candidates)
    scores, ids = planned.best(planned.candidates, checked_k(planned.score.name, k))
    found = Ranking(scores, ids if planned.rows is None else _looked_up(planned.rows, ids))
    return of_score(found, planned.score, dim=queries.dim, gallery_size=len(gallery))


def _without_candidates(score: str | Score | None) -> TypeError:
    """The error of candidates that are None, which `plan` takes for the whole gallery."""
    return TypeError(f"{named(score).name}: candidates is None, expected integers [Q, K]")


def _looked_up(rows: Array, positions: Array) -> Array:
    """The rows at these positions; -1 for -1."""
    ids = np.append(as_numpy(rows), -1)[as_numpy(positions)]
    return sys.modules["torch"].from_numpy(ids) if is_torch(rows) else ids


def search(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT] | Prepared[ArrayT] | Searchable | Iterable[Distribution[ArrayT] | Prepared[ArrayT]],
    k: int,
    score: str | Score | None = None,
    *,
    prune: Literal["auto", "never", "always"] = "auto",
    allowed: Given | None = None,
    exclude: Given | Exclusions | None = None,
    accept: Threshold | None = None,
) -> Ranking[ArrayT]:
    """The exact best k of the whole gallery for each query, without a Q x G matrix.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype. `prepare` a gallery that is searched more
        than once. One that does not fit into memory comes in blocks: any iterable of distributions, alike but for their
        sizes, which hold its rows in their order, such as a list, a generator or `pe.io.read_blocks`. It is passed
        through once for all queries; a thread asks for the next block while one is scored, so that two are in memory.
        Ids and scores equal a search of the whole, to the last bit; blocks of some ten thousand rows cost least. Of
        tensors each block is searched on its device, to which queries are copied, and may be prepared: a list of
        prepared shards, one on each GPU, is searched by all of them at once. A `FaissReranker`, `Gallery` or
        `ShardedGallery` is searched exactly, under its ids.
    k
        How many to return, >= 1; more than G pads.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.
    prune
        Whether mls, llr, ppk and inclusion of diagonal normals first bound all pairs by matrix products and score the
        rest; results are the same to the last bit. "auto": where there are many queries and the bound saves time.
        Scores of one inner product rule items out by 8-bit integers, of a prepared gallery or for 64 queries and more;
        "auto": as long as that saves time; "never": not at all. On a GPU these scores are bounded, of float32 galleries
        and halves: "always", and with "auto" from 4,096 rows on.
    allowed
        The items that may be found by all queries: their rows, those that the gallery lacks find nothing, or a bool for
        each item. The allowed rows are copied for the call.
    exclude
        The items that each query may not find: rows [Q], such as its own where queries are a part of the gallery;
        [Q, E] padded with -1; a list of Q arrays; or what `exclude_same` makes of columns. Rows that the gallery lacks
        exclude nothing.
    accept
        A threshold of the score, such as that of `learn_then_test`: answers below it are left out. One of a class
        margin is applied afterwards, ``accept.select(ranking, labels=labels)``.

    Returns
    -------
    Ranking
        Scores and gallery rows [Q, k], best first. Detached.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different dims or devices; an unknown score; k below 1 or not an integer; an unknown ``prune``; no blocks, or
        one that is not like the first; ``allowed`` or ``exclude`` of other shapes or dtypes; ``accept`` of another
        score. What the iterable itself raises is passed on.

    Examples
    --------
    >>> queries = pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.1])
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> ranking = pe.search(queries, gallery, k=2, score="mls")
    >>> ranking.ids.tolist()
    [[0, 2], [1, 2]]
    >>> ranking.scores.round(3).tolist()
    [[-0.228, -1.545], [-0.228, -1.945]]

    The queries are the first two rows of the gallery, and each is to find others:

    >>> pe.search(queries, gallery, k=2, score="mls", exclude=[0, 1]).ids.tolist()
    [[2, 1], [2, 0]]
    """
    if not isinstance(gallery, Distribution | Prepared):
        if is_searchable(gallery):
            return gallery.search(queries, k, score, shortlist=None, allowed=allowed, exclude=exclude, accept=accept)
        if in_blocks(gallery):
            return _search_blocks(queries, gallery, k, score, prune, allowed, exclude, accept)
        gallery = cast("Distribution[ArrayT]", gallery)  # `plan` refuses what it is
    planned = plan(queries, gallery, score, detach=True)
    if prune not in PRUNE:
        raise _unknown_prune(planned.score, prune)
    k = checked_k(planned.score.name, k)
    if accept is not None:
        accept.check("accept", planned.score, k, dim=queries.dim)
    findable = ALL
    if not (allowed is None and exclude is None):
        findable = Findable.of(planned.score.name, allowed, exclude, len(queries), len(gallery))
    found = _searched(planned, queries.dim, k, prune, findable)
    return found if accept is None else accept.select(found)


def _unknown_prune(score: Score, prune: str) -> ValueError:
    return ValueError(f"{score.name}: prune is {prune!r}, expected 'auto', 'never' or 'always'")


def _searched(planned: Plan, dim: int, k: int, prune: str, findable: Findable) -> Ranking:
    """The best k of the rows that may be found."""
    scores, ids, scored = findable.best(planned, k, prune)
    ranking = of_score(Ranking(scores, ids), planned.score, dim=dim, gallery_size=len(planned.inputs.mu2))
    if scored is not None:  # torch.compile cannot set an attribute of a tuple
        ranking.scored = scored
    return ranking


# -- galleries in blocks -----------------------------------------------------------------------------------------------


def _search_blocks(
    queries: Distribution,
    blocks: Iterable[Block],
    k: int,
    score: str | Score | None,
    prune: str,
    allowed: Given | None,
    exclude: Given | Exclusions | None,
    accept: Threshold | None,
) -> Ranking:
    """`search` of a gallery that passes block by block."""
    record, blocks = named_for_blocks(score, queries, blocks)
    plans = BlockPlans(queries, record)
    k = checked_k(plans.score.name, k)
    if prune not in PRUNE:
        raise _unknown_prune(plans.score, prune)
    if accept is not None:
        accept.check("accept", plans.score, k, dim=queries.dim)
    findable = Findable.of(plans.score.name, allowed, exclude, len(queries), None)
    best: Ranking | None = None
    size, scored = 0, 0.0
    with each_block(plans.score.name, blocks) as read:
        for first_row, block in read:
            added = len(block)
            planned, here = plans.of(first_row, plans.admitted(first_row, block)), findable.within(first_row, added)
            found = _searched(planned, queries.dim, min(k, max(added, 1)), prune, here)
            part = known_as(Ranking(*map(plans.returned, found)), found)
            del block
            best = merge([part], k, [first_row]) if best is None else merge([best, part], k, [0, first_row])
            size = first_row + added
            scored += added * (math.nan if found.scored is None else found.scored)
    assert best is not None  # there is a first block
    best.scored = None if math.isnan(scored) else scored / max(size, 1)
    return best if accept is None else accept.select(best)


def _rescore_blocks(
    queries: Distribution, blocks: Iterable[Block], candidates: Array, score: str | Score | None
) -> Array:
    """`rescore` of a gallery that passes block by block."""
    record, blocks = named_for_blocks(score, queries, blocks)
    plans = BlockPlans(queries, record)
    listed = ListedRows(plans.score.name, queries, candidates)
    scores, size = None, 0
    with each_block(plans.score.name, blocks) as read:
        for first_row, block in read:
            size, items = first_row + len(block), plans.admitted(first_row, block)
            places, block_places, block_rows = listed.within(first_row, len(block))
            if scores is None or len(places[0]):
                found = plans.returned(plans.of(first_row, items, block_rows).scores())
                scores = full(listed.shape, -np.inf, found) if scores is None else scores
                scores[places] = found[block_places]
            del block, items
    listed.require_below(size)
    return scores
