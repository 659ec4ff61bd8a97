"""A gallery in shards, each with an actor of Ray, and one exact merge of what they find."""

from __future__ import annotations

import os
import queue as queues
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import dtype_name
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import SortedIds, and_none, are_strings, candidate_ids, checked_allowed, none_like, there
from peaccel._utils.runtime import set_num_threads
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_k, compute_dtype
from peaccel.fits.records import Threshold
from peaccel.retrieval.plan import plan
from peaccel.retrieval.ranking import RankingAbove, merge, of_score
from peaccel.retrieval.ray.gallery_parts import Among, GalleryPart, Items, Source, spelled
from peaccel.retrieval.search_above import MOST, checked_threshold, listed
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score, get

try:
    import ray
    from ray.exceptions import ActorDiedError, RayError, RayTaskError
except ImportError:
    raise ImportError("peaccel.retrieval.ray needs Ray: pip install peaccel[ray]") from None

__all__ = ["ShardedGallery", "ShardedRanking"]

AVOIDED = 5.0  # seconds for which a replica that failed is asked last
PAUSE = 0.05  # seconds before a shard is asked again
BLOCK = 1024  # queries of a call of an actor: what it has not begun when time is up is never done
LARGE = 100 << 10  # bytes from which on arguments go by the object store, once for all shards of a node


class ShardedRanking(Ranking[NDArray[Any]]):
    """A `Ranking` of numpy arrays, and what is missing in it.

    Attributes
    ----------
    missing
        The shards that had not answered in time, by number and source: empty unless a call allowed ``partial=True``.
    """

    missing: tuple[str, ...] = ()


# -- in the actors -----------------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    """Facts of a shard: its size, its items and ids in words, empty ones like them, the parameter that all items have
    in common, if they do, and whether there is an index."""

    size: int
    items: str
    ids: str
    like: Items
    no_ids: NDArray[Any] | None
    common: NDArray[Any] | None
    is_indexed: bool


class _Place(NamedTuple):
    """Where a shard's items begin in the whole gallery, how many they are, and whether they are to be made plain."""

    start: int
    size: int
    plain: bool


class _Shard:
    """A part of the gallery, in the process of an actor.

    Where it cannot be loaded, also when the actor is started again, the actor stays and every call raises the reason:
    Ray would give a page in place of one line.
    """

    def __init__(self, source: Source, score: Score, dtype: str | None, threads: int) -> None:
        set_num_threads(threads)
        try:
            self._loaded: GalleryPart | Exception = GalleryPart.opened(source, score, dtype)
        except Exception as error:
            self._loaded = error.with_traceback(None)

    def facts(self) -> _Facts:
        """Facts of the shard, for the driver."""
        part = self._part()
        like, no_ids = part.like, part.no_ids
        words = f"{like.kind} items of {like.dim} dimensions in {dtype_name(like.mu)}"
        of_ids = "no ids" if no_ids is None else "strings as ids" if are_strings(no_ids) else "integers as ids"
        return _Facts(len(part), words, of_ids, like, no_ids, part.common_parameter, part.is_indexed)

    def ping(self, place: _Place) -> None:
        """Raise what keeps this shard from answering."""
        self._part(place)

    def search(
        self, place: _Place, queries: Items, exclude: Exclusions | None, k: int, shortlist: int | None, allowed: Any
    ) -> tuple[Any, ...]:
        """`GalleryPart.search`."""
        return self._part(place).search(queries, k, shortlist, place.start, Among(allowed, exclude))

    def search_above(
        self, place: _Place, queries: Items, exclude: Exclusions | None, threshold: float, most: int, allowed: Any
    ) -> tuple[Any, ...]:
        """`GalleryPart.search_above`."""
        return self._part(place).search_above(queries, threshold, most, place.start, Among(allowed, exclude))

    def rerank(
        self, place: _Place, queries: Items, candidates: NDArray[Any], exclude: Exclusions | None, k: int
    ) -> tuple[Any, ...]:
        """`GalleryPart.rerank`."""
        return self._part(place).rerank(queries, candidates, k, place.start, exclude)

    def rescore(self, place: _Place, queries: Items, candidates: NDArray[Any]) -> tuple[Any, ...]:
        """`GalleryPart.rescore`."""
        return self._part(place).rescore(queries, candidates, place.start)

    def _part(self, place: _Place | None = None) -> GalleryPart:
        """The part, as it was when the driver first asked."""
        if isinstance(self._loaded, Exception):
            raise self._loaded
        if place is not None:
            if len(self._loaded) != place.size:
                raise ValueError(f"holds {len(self._loaded)} items, expected {place.size} as when it was opened")
            if place.plain:
                self._loaded.make_plain()
        return self._loaded


# -- calls of actors ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Replica:
    """An actor, how many calls wait for it, until when it is asked last, and whether it is gone for good."""

    actor: Any
    waiting: int = 0
    avoided_until: float = 0.0
    dead: bool = False


class _Request(NamedTuple):
    """A call that one of these replicas of a shard is to answer."""

    shard: str
    replicas: Sequence[_Replica]
    arguments: tuple[Any, ...] = ()


class _Calls:
    """One method of several shards, called at once; of a replica that dies, or cannot load its shard, once more."""

    def __init__(self, method: str, requests: Sequence[_Request], lock: threading.Lock) -> None:
        self._method, self._requests, self._lock = method, requests, lock
        self._waiting: dict[Any, tuple[int, _Replica]] = {}
        self._failed: list[set[_Replica]] = [set() for _ in requests]
        self._reasons: dict[int, Exception] = {}
        self.answers: dict[int, Any] = {}
        self.errors: dict[int, Exception] = {}  # of shards that no replica will answer for

    def run(self, seconds: float, partial: bool) -> tuple[str, ...]:
        """Collect the answers until time is up; the names of shards without one, which are an error unless partial."""
        end = time.monotonic() + seconds
        try:
            for i in range(len(self._requests)):
                self._send(i)
            while self._waiting and (partial or not self.errors):
                done, _ = ray.wait(list(self._waiting), timeout=max(0.0, end - time.monotonic()))
                if not done:
                    break
                self._receive(done[0])
        finally:
            for ref in list(self._waiting):
                self._taken(ref)
                ray.cancel(ref)  # what is not begun will not be
        missing = tuple(dict.fromkeys(x.shard for i, x in enumerate(self._requests) if i not in self.answers))
        if missing and not (partial and {x.shard for x in self._requests} - {*missing}):
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            late = TimeoutError(f"ShardedGallery: no answer in {seconds:g} s from {', '.join(missing[:3])}{more}")
            raise next(iter(self.errors.values()), late)
        return missing

    def _send(self, i: int) -> None:
        """Ask one of the replicas that may have an answer, or keep the error why none has."""
        request, now = self._requests[i], time.monotonic()
        with self._lock:
            able = [one for one in request.replicas if not one.dead and one not in self._failed[i]]
            if not able:
                what = "died more often than `restarts` allows, or was closed"
                self.errors[i] = self._reasons.get(i, RuntimeError(f"ShardedGallery: {request.shard} {what}"))
                return
            one = min(able, key=lambda x: (x.avoided_until > now, x.waiting))
            one.waiting += 1
        self._waiting[getattr(one.actor, self._method).remote(*request.arguments)] = i, one

    def _receive(self, ref: Any) -> None:
        """Keep an answer; where there is none, ask again."""
        i, one = self._taken(ref)
        try:
            self.answers[i] = ray.get(ref)
            return
        except RayTaskError as error:  # raised by the shard itself
            self._failed[i].add(one)
            self._reasons[i] = _named(self._requests[i].shard, error.cause)
        except RayError as error:  # the actor has died, or is being started again
            one.dead = isinstance(error, ActorDiedError)
        one.avoided_until = time.monotonic() + AVOIDED
        time.sleep(PAUSE)
        self._send(i)

    def _taken(self, ref: Any) -> tuple[int, _Replica]:
        i, one = self._waiting.pop(ref)
        with self._lock:
            one.waiting -= 1
        return i, one


def _named(shard: str, error: BaseException | None) -> Exception:
    """An error of a shard in one line, which names the shard; of a class that this process has for sure."""
    known = (FileNotFoundError, PermissionError, OSError, ImportError, TypeError, ValueError)
    kind = next((x for x in known if isinstance(error, x)), RuntimeError)
    reason = str(error).partition("\n")[0].removeprefix(f"{shard.partition('(')[2][:-1]}: ")  # a path is in the name
    return kind(f"ShardedGallery: {shard}: {reason or type(error).__name__}")


# -- in the driver -----------------------------------------------------------------------------------------------------


class ShardedGallery:
    """A gallery in parts, each with an actor of Ray; answers have the ids, the order and the bits of one machine.

    Queries go to a replica of every shard, and `pe.merge` makes one ranking of what is found: exact, ties to the lower
    row, where rows are numbered through all shards in their order. Any number of threads may call at once.

    An actor that dies is started again, and what it was asked is asked once more, first of the shard's other replicas:
    calls are answered whole or raise TimeoutError.

    Parameters
    ----------
    sources
        The shards, in order, each one of: the path of a file that `pe.io.read_distribution` reads, which every node
        must see, or a folder that `FaissReranker.save` wrote or that `Gallery.open` opens; a distribution or a
        `FaissReranker`, which is kept in Ray's object store; a function without arguments that returns one, or a
        `Gallery`. Also a pair of items and their ids [G], integers >= 0 or strings, all different in all shards; then,
        as of rerankers and galleries with ids, results have these ids, and candidates are these.
    score
        As in `paired`; shards are prepared for it.
    replicas
        Actors for each shard, >= 1: more answer more calls at once, and go on while one is started again.
    dtype
        As in `prepare`: "float16" keeps shards in half the memory.
    num_cpus
        Of each actor: what Ray reserves, and rounded down, at least 1, the number of its threads.
    restarts
        How often each actor is started again, >= 0.
    queue
        How many calls may wait for answers at once, >= 1; one more raises ``queue.Full``.
    timeout
        Seconds within which all shards must be loaded.

    Raises
    ------
    RuntimeError
        Ray is not initialised.
    TimeoutError
        Shards are not loaded in time, as where the cluster has fewer CPUs than actors ask for.
    TypeError, ValueError, FileNotFoundError
        No sources, or shards of different kinds, dims, dtypes or kinds of ids; what reading a source raises, with the
        number of the shard. No actor is left then.

    Examples
    --------
    ::

        ray.init()  # or with the address of a cluster
        with ShardedGallery(["part0.npz", "part1.npz"], score="mls", replicas=2) as gallery:
            ranking = gallery.search(queries, k=10, timeout=5.0)
    """

    def __init__(
        self,
        sources: Sequence[Source],
        score: str | Score = "mls",
        *,
        replicas: int = 1,
        dtype: str | None = None,
        num_cpus: float = 1.0,
        restarts: int = 3,
        queue: int = 64,
        timeout: float = 600.0,
    ) -> None:
        if isinstance(sources, str | os.PathLike | Distribution | tuple) or not (sources := list(sources)):
            raise ValueError(f"ShardedGallery: sources is {sources!r}, expected a list of at least one")
        self.score = get(score).snapshot()
        self.replicas = checked_k("ShardedGallery", replicas, "replicas")
        self.queue = checked_k("ShardedGallery", queue, "queue")
        for name, value in {"num_cpus": num_cpus, "timeout": timeout}.items():
            _require_positive(name, value)
        if not isinstance(restarts, int) or restarts < 0:
            raise ValueError(f"ShardedGallery: restarts is {restarts!r}, expected an integer >= 0")
        if not ray.is_initialized():
            raise RuntimeError("ShardedGallery: Ray is not initialised, call ray.init() first, or with an address")
        self._names = tuple(f"shard {i} ({spelled(source)})" for i, source in enumerate(sources))
        self._places, self._lock = threading.BoundedSemaphore(self.queue), threading.Lock()
        actor = ray.remote(_Shard).options(num_cpus=num_cpus, max_restarts=restarts, scheduling_strategy="SPREAD")
        settings = self.score, dtype, max(1, int(num_cpus))
        # An actor that is started again takes its source once more, from the object store what is large.
        self._sources = [ray.put(x) if _nbytes(x) > LARGE else x for x in sources]
        self._shards = [[_Replica(actor.remote(x, *settings)) for _ in range(self.replicas)] for x in self._sources]
        try:
            self._set_facts(self._loaded(timeout, num_cpus))
        except BaseException:
            self.close()
            raise

    def _loaded(self, timeout: float, num_cpus: float) -> list[_Facts]:
        """The facts of all shards, once all actors have loaded theirs."""
        each = [_Request(name, [one]) for name, shard in zip(self._names, self._shards, strict=True) for one in shard]
        calls = _Calls("facts", each, self._lock)
        try:
            calls.run(timeout, partial=False)
        except TimeoutError as error:
            wanted, cpus = len(each) * num_cpus, ray.cluster_resources().get("CPU", 0)
            raise TimeoutError(f"{error}; actors ask for {wanted:g} CPUs, the cluster has {cpus:g}") from None
        return [calls.answers[i * self.replicas] for i in range(len(self._shards))]

    def _set_facts(self, facts: list[_Facts]) -> None:
        """Keep what is known of the shards, which must be parts of one gallery."""
        first = facts[0]
        for name, other in zip(self._names, facts, strict=True):
            for what in ("items", "ids"):
                got, expected = getattr(other, what), getattr(first, what)
                if got != expected:
                    raise ValueError(f"ShardedGallery: {name} has {got}, expected {expected} like {self._names[0]}")
        self._like, self._no_ids = first.like, first.no_ids
        without = [name for name, one in zip(self._names, facts, strict=True) if not one.is_indexed]
        self._without_index = without[0] if without else None
        common = [one.common for one in facts if one.size]
        plain = any(x is not None for x in common) and any(x is None or (x != common[0]).any() for x in common)
        starts = np.cumsum([0, *(one.size for one in facts)]).tolist()
        self._size: int = starts.pop()
        self._where = [_Place(start, one.size, plain) for start, one in zip(starts, facts, strict=True)]

    # -- the face ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the items of all shards."""
        return self._size

    def __repr__(self) -> str:
        shards = f"{len(self._shards)} shards x {self.replicas}"
        return f"ShardedGallery(N={len(self)}, D={self._like.dim}, {self._like.kind}, {shards}, {self.score.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all actors; what is asked afterwards raises RuntimeError. Twice is once."""
        for one in chain.from_iterable(self._shards):
            one.dead = True
            if ray.is_initialized():
                ray.kill(one.actor)

    def ping(self, *, timeout: float = 60.0) -> None:
        """Ask every shard whether it is there; raises what a `search` would."""
        self._ask("ping", (), (), timeout, partial=False)

    def check(self, queries: Items, score: str | Score | None = None) -> None:
        """Refuse what no shard would take, by the errors of `search`: TypeError or ValueError. Nothing is sent."""
        if score is not None and (record := get(score)) != self.score:
            raise ValueError(f"{record.name}: gallery is prepared for score {self.score.label}, got {record.label}")
        if plan(queries, self._like, self.score, detach=True).pair.op.samplers[1]:
            name = self.score.name
            raise ValueError(f"{name}: draws of an item depend on its row, expected a score that draws none")

    def search(
        self,
        queries: Items,
        k: int,
        score: str | Score | None = None,
        *,
        shortlist: int | None = None,
        allowed: Any = None,
        exclude: Any = None,
        accept: Threshold | None = None,
        timeout: float = 60.0,
        partial: bool = False,
    ) -> ShardedRanking:
        """The best k of the whole gallery for each query: the exact ones, as `pe.search` finds them, or of shortlists.

        Parameters
        ----------
        queries
            Q items that the score takes beside the gallery, as numpy arrays.
        k
            How many to return, >= 1; more than there are items pads.
        score
            The score that shards are prepared for, or None; another one is refused.
        shortlist
            None for the exact best; else how many the index of each shard proposes, >= 1, as in `FaissReranker.search`,
            whose best k are then merged: all shards must have an index.
        allowed, exclude, accept
            As in `pe.search`, by rows of the whole gallery, or by ids where the sources have any.
        timeout
            Seconds within which the answer is there, > 0.
        partial
            Whether to answer from the shards that have answered when time is up, and to name the others in
            ``ShardedRanking.missing``; TimeoutError only where none has.

        Returns
        -------
        ShardedRanking
            Scores [Q, k], and rows of the whole gallery or ids [Q, k], best first; -inf, and -1 or "", where there are
            fewer.

        Raises
        ------
        TypeError, ValueError
            As `pe.search`, before anything is sent; a score that draws gallery items, which depends on their rows.
        TimeoutError
            Shards have not answered in time.
        queue.Full
            As many calls as `queue` allows are waiting.
        RuntimeError
            All replicas of a shard died more often than they may be started again; the gallery is closed.
        """
        k, owner = checked_k(self.score.name, k), "ShardedGallery.search"
        self.check(queries, score)
        if accept is not None:
            accept.check("accept", self.score, k, dim=queries.dim)
        if shortlist is not None:
            shortlist = checked_k(self.score.name, shortlist, "shortlist")
            if self._without_index is not None:
                raise ValueError(f"ShardedGallery: {self._without_index} has no index, expected shortlist=None")
        allowed, excluded = self._allowed(owner, allowed), self._excluded(owner, exclude, queries)
        answers, missing = self._ask("search", (queries, excluded), (k, shortlist, allowed), timeout, partial)
        found = self._merged(answers, k, missing)
        return found if accept is None else _still_missing(accept.select(found), missing)

    def search_above(
        self,
        queries: Items,
        threshold: float,
        score: str | Score | None = None,
        *,
        allowed: Any = None,
        exclude: Any = None,
        most: int = MOST,
        timeout: float = 60.0,
    ) -> RankingAbove[NDArray[Any]]:
        """All items whose score reaches a threshold, exactly, for each query.

        Parameters
        ----------
        queries, score, allowed, exclude, timeout
            As in `search`.
        threshold, most
            As in `pe.search_above`.

        Returns
        -------
        RankingAbove
            Offsets [Q + 1], and rows of the whole gallery or ids, with scores [M], best first for each query.

        Raises
        ------
        TypeError, ValueError, TimeoutError, queue.Full, RuntimeError
            As `search` and `pe.search_above`.
        """
        owner = "ShardedGallery.search_above"
        threshold, most = checked_threshold(owner, threshold, most)
        self.check(queries, score)
        allowed, excluded = self._allowed(owner, allowed), self._excluded(owner, exclude, queries)
        arguments = threshold, most, allowed
        answers, _ = self._ask("search_above", (queries, excluded), arguments, timeout, partial=False)
        pairs = ((np.repeat(np.arange(len(counts)), counts), rows, scores) for counts, rows, _, scores in answers)
        found = listed(owner, pairs, len(queries), most, self.score, self._like.dim, in_parts=True)
        rows, names = (np.concatenate([answer[i] for answer in answers]) for i in (1, 2))
        return found if self._no_ids is None else found.under(names[SortedIds.of(rows).rows_of(found.ids)])

    def rerank(
        self,
        queries: Items,
        candidates: Any,
        k: int,
        score: str | Score | None = None,
        *,
        exclude: Any = None,
        timeout: float = 60.0,
        partial: bool = False,
    ) -> ShardedRanking:
        """The best k candidates of each query, as `pe.rerank` finds them.

        Parameters
        ----------
        queries, k, score, exclude, timeout, partial
            As in `search`.
        candidates
            [Q, K]: rows of the whole gallery, or ids where the sources have any; -1, or "", = none.

        Returns
        -------
        ShardedRanking
            As `search`.

        Raises
        ------
        TypeError, ValueError, TimeoutError, queue.Full, RuntimeError
            As `search`; candidates that no shard has.
        """
        k = checked_k(self.score.name, k)
        self.check(queries, score)
        candidates = candidate_ids(self.score.name, candidates, len(queries), self._no_ids)
        excluded = self._excluded("ShardedGallery.rerank", exclude, queries)
        answers, missing = self._ask("rerank", (queries, candidates, excluded), (k,), timeout, partial)
        if not missing:
            self._require_known(candidates, sum(answer[-1] for answer in answers))
        return self._merged([answer[:-1] for answer in answers], k, missing)

    def rescore(
        self, queries: Items, candidates: Any, score: str | Score | None = None, *, timeout: float = 60.0
    ) -> NDArray[Any]:
        """Scores of each query with its candidates, as `pe.rescore` makes them.

        Parameters
        ----------
        queries, candidates, score, timeout
            As in `rerank`.

        Returns
        -------
        [Q, K]; -inf where there is no candidate.

        Raises
        ------
        TypeError, ValueError, TimeoutError, queue.Full, RuntimeError
            As `rerank`.
        """
        self.check(queries, score)
        candidates = candidate_ids(self.score.name, candidates, len(queries), self._no_ids)
        answers, _ = self._ask("rescore", (queries, candidates), (), timeout, partial=False)
        self._require_known(candidates, sum(mine.sum(1) for mine, _ in answers))
        out = np.full(candidates.shape, -np.inf, compute_dtype(self._like.mu))
        for mine, scores in answers:
            out[mine] = scores
        return out

    # -- checks --------------------------------------------------------------------------------------------------------

    def _allowed(self, owner: str, allowed: Any) -> NDArray[Any] | None:
        """The items that may be found, by rows or ids, or by a mask of all."""
        return (
            None if allowed is None else checked_allowed(owner, allowed, len(self), strings=are_strings(self._no_ids))
        )

    def _excluded(self, owner: str, exclude: Any, queries: Items) -> Exclusions | None:
        """The items that each query may not find, by rows or ids."""
        excluded = Exclusions.checked(owner, exclude, len(queries))
        if excluded is not None:
            excluded.require_like(owner, self._no_ids)
        return excluded

    def _require_known(self, candidates: NDArray[Any], known: Any) -> None:
        """Refuse candidates of which shards know fewer than there are."""
        lacking = np.flatnonzero(there(candidates).sum(1) != known)
        if len(lacking):
            expected = f"rows 0 .. {len(self) - 1}" if self._no_ids is None else "ids of the gallery"
            raise ValueError(
                f"{self.score.name}: candidates of query {lacking[0]} are in no shard, expected {expected}"
            )

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _ask(
        self, method: str, rows: tuple[Any, ...], arguments: tuple[Any, ...], timeout: float, partial: bool
    ) -> tuple[list[tuple[Any, ...]], tuple[str, ...]]:
        """The answers of the shards, in order, and the names of those that have none; rows go by blocks of queries."""
        _require_positive("timeout", timeout)
        if not ray.is_initialized():
            raise RuntimeError("ShardedGallery: Ray was shut down, and the actors with it")
        if not self._places.acquire(blocking=False):
            raise queues.Full(f"ShardedGallery: {self.queue} calls wait for answers, as many as `queue` allows")
        try:
            shards = list(zip(self._names, self._shards, self._where, strict=True))
            requests = []
            for block in self._blocks(rows):
                # What is small goes with each call; a copy in the object store serves all shards of a node.
                sent = tuple(ray.put(x) if len(shards) > 1 and _nbytes(x) > LARGE else x for x in block)
                requests += [_Request(name, shard, (place, *sent, *arguments)) for name, shard, place in shards]
            calls = _Calls(method, requests, self._lock)
            missing = calls.run(timeout, partial)
            there = [i for i, name in enumerate(self._names) if name not in missing]
            blocks = [[calls.answers[j] for j in range(i, len(requests), len(shards))] for i in there]
            return [_joined(of_shard) for of_shard in blocks], missing
        finally:
            self._places.release()

    def _blocks(self, rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Rows in blocks, but those of queries that are drawn by their row are one."""
        if not rows or plan(rows[0], self._like, self.score, detach=True).pair.op.draws:
            return [rows]
        starts = range(0, max(1, len(rows[0])), BLOCK)
        blocks = [slice(start, start + BLOCK) for start in starts]
        return [tuple(None if x is None else x[some] for x in rows) for some in blocks] if len(starts) > 1 else [rows]

    def _merged(self, found: list[tuple[Any, ...]], k: int, missing: tuple[str, ...]) -> ShardedRanking:
        """One ranking of what the shards have found, by the places of the names that they sent."""
        none = none_like(self._no_ids)
        names = and_none(np.concatenate([x.ravel() for _, x in found]))
        rankings, start = [], 0
        for scores, sent in found:
            places = np.arange(start, start + sent.size).reshape(sent.shape)
            rankings.append(Ranking(scores, np.where(sent == none, -1, places)))
            start += sent.size
        scores, places = merge(rankings, k)
        ranking = ShardedRanking(scores, names[places])
        ranking.missing = missing
        return of_score(ranking, self.score, dim=self._like.dim, gallery_size=len(self))


def _still_missing(ranking: ShardedRanking, missing: tuple[str, ...]) -> ShardedRanking:
    ranking.missing = missing
    return ranking


def _require_positive(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"ShardedGallery: {name} is {value!r}, expected a number above 0")


def _joined(blocks: Sequence[Any]) -> Any:
    """One answer of those to blocks of queries."""
    return blocks[0] if len(blocks) == 1 else tuple(map(np.concatenate, zip(*blocks, strict=True)))


def _nbytes(x: Any) -> int:
    """About how many bytes an argument takes when it is sent."""
    if isinstance(x, Distribution | tuple):
        return sum(map(_nbytes, x if isinstance(x, tuple) else x.arrays))
    return int(getattr(x, "nbytes", 0))
