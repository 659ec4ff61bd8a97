"""A sharded gallery gives the answers of one machine; actors are objects that fail when told to."""

import itertools
import queue
import re
import threading
import types
from collections import Counter

import numpy as np
import pytest
from conftest import assert_ranking, make, scored
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery
from peaccel.retrieval.ray import sharded_gallery as sharded

CUTS = (0, 0, 3, 40, 41, 90, 120)  # six shards, one of them empty and one of a single item
NAMES = np.array([f"item {i:x}" for i in range(CUTS[-1])])


class Ref:
    """An answer: a value or an error; one that is neither never comes."""

    def __init__(self, value=None, error=None, late=False):
        self.value, self.error, self.late = value, error, late


class Actor:
    """A shard in this process; `faults` are taken one at a call, None for none."""

    def __init__(self, cluster, arguments):
        self.cluster, self.shard, self.faults, self.asked = cluster, sharded._Shard(*arguments), [], Counter()

    def __getattr__(self, name):
        def remote(*arguments):
            self.asked[name] += 1
            fault = self.faults.pop(0) if self.faults else None
            if fault is not None:
                return fault if isinstance(fault, Ref) else Ref(error=fault)
            try:
                return Ref(getattr(self.shard, name)(*arguments))
            except Exception as error:
                return Ref(error=RayTaskError(name, "a page", error).as_instanceof_cause())

        return types.SimpleNamespace(remote=remote)


class Cluster:
    """Calls of Ray by the module, in this process and at once."""

    def __init__(self):
        self.actors, self.killed, self.cancelled, self.options, self.initialised = [], [], [], {}, True

    def is_initialized(self):
        return self.initialised

    def remote(self, cls):
        assert cls is sharded._Shard
        return types.SimpleNamespace(options=self._options)

    def _options(self, **options):
        self.options = options
        return types.SimpleNamespace(remote=self._started)

    def _started(self, *arguments):
        self.actors.append(Actor(self, arguments))
        return self.actors[-1]

    def put(self, x):
        return x

    def wait(self, refs, timeout):
        done = [ref for ref in refs if not ref.late][:1]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref):
        if ref.error is not None:
            raise ref.error
        return ref.value

    def cancel(self, ref):
        self.cancelled.append(ref)

    def kill(self, actor):
        self.killed.append(actor)

    def cluster_resources(self):
        return {"CPU": 2.0}


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(sharded, "ray", made := Cluster())
    monkeypatch.setattr(sharded, "PAUSE", 0)
    return made


def died():
    return ActorDiedError()


def unavailable():
    return ActorUnavailableError("is started again", None)


UNSCORED = (5, 70, 111)
"""Rows of `hostile` items whose means are NaN."""


def hostile(kind, dtype="float32"):
    """Items of which some are equal, also across shards, and some have no score."""
    d = make(kind, CUTS[-1], 6, seed=2, dtype=dtype)
    rows = np.arange(len(d))
    rows[[2, 39, 60, 110]] = rows[[41, 89, 119]] = 0
    mu, *others = (np.array(x[rows]) for x in d.arrays)
    mu[list(UNSCORED)] = np.nan
    return type(d)(mu, *others)


def cut(x):
    return [x[a:b] for a, b in itertools.pairwise(CUTS)]


@pytest.fixture(params=[1024, 3])
def blocks(request, monkeypatch):
    """How many queries go in one call: all of them, or a part."""
    monkeypatch.setattr(sharded, "BLOCK", request.param)


CANDIDATES = np.random.default_rng(0).integers(-1, CUTS[-1], (7, 30))
KINDS = {"normal_isotropic": "mls", "normal_diagonal": "ppk", "vmf": "mls", "nivmf": "nivmf", "scaled": "scale_cosine"}


@pytest.mark.parametrize("kind", [*KINDS, "point"])
def test_shards_answer_as_one_machine_does(kind, cluster, blocks):
    score, gallery = scored(KINDS.get(kind, "cosine"), kind), hostile(kind)
    queries = make({"nivmf": "point"}.get(kind, kind), 7, 6, seed=4, dtype="float32")
    names = np.append(NAMES, "")
    for ids in (None, NAMES):
        sources = cut(gallery) if ids is None else list(zip(cut(gallery), cut(ids), strict=True))
        with ShardedGallery(sources, score) as shards:
            of = (lambda rows: rows) if ids is None else names.__getitem__
            for k in (1, 5, 200):
                expected = pe.search(queries, gallery, k, score)
                assert_ranking(shards.search(queries, k), (expected.scores, of(expected.ids)), f"{kind} k={k}")
            expected = pe.rerank(queries, gallery, CANDIDATES, 8, score)
            assert_ranking(shards.rerank(queries, of(CANDIDATES), 8), (expected.scores, of(expected.ids)), kind)
            found = shards.rescore(queries, of(CANDIDATES))
            np.testing.assert_array_equal(found, pe.rescore(queries, gallery, CANDIDATES, score))
    assert found.dtype == np.float32 and not np.isfinite(found).all()


def test_ids_are_those_that_were_given(cluster):
    gallery, ids = hostile("normal_isotropic"), 7 * np.arange(CUTS[-1])[::-1]
    shards = ShardedGallery(list(zip(cut(gallery), cut(ids), strict=True)))
    queries = gallery[6:13]
    assert shards.search(queries, 9).ids.tolist() == ids[pe.search(queries, gallery, 9).ids].tolist()
    candidates = np.where(CANDIDATES < 0, -1, ids[CANDIDATES])
    np.testing.assert_array_equal(shards.rescore(queries, candidates), pe.rescore(queries, gallery, CANDIDATES))
    with pytest.raises(ValueError, match=r"^mls: candidates of query 2 are in no shard, expected ids of the gallery$"):
        shards.rescore(queries, np.where(np.arange(7)[:, None] == 2, 1, candidates))


@pytest.mark.parametrize("stored", ["items", "reranker", "gallery"])
@pytest.mark.parametrize("vars_", [(0.5, 0.5), (0.5, 0.2), (0.5, None)])
def test_one_variance_for_all_items_of_a_shard_is_one_only_where_all_shards_have_it(vars_, stored, cluster, tmp_path):
    d = make("normal_diagonal", 60, 6, dtype="float32")
    parts = [
        pe.Normal(x.mu, x.var if var is None else np.full((1, 6), var, np.float32))
        for x, var in zip((d[:20], d[20:]), vars_, strict=True)
    ]
    queries = pe.Normal(d.mu[:5] + 0.1, np.full((1, 6), 0.3, np.float32))
    whole = pe.concat(parts)
    assert (whole.common_parameter() is not None) == (vars_[0] == vars_[1])
    for score in ("mls", "llr:prior_var=1"):
        sources = [*parts, parts[0][:0]]
        if stored != "items":
            sources = [tmp_path / f"{score[:3]}{i}" for i in range(2)]
            for path, part, ids in zip(sources, parts, (np.arange(20), np.arange(20, 60)), strict=True):
                if stored == "reranker":
                    pe.FaissReranker.build(part, "Flat", score=score, ids=ids).save(path)
                else:
                    pe.Gallery.create(path, part, ids)
        shards, expected = ShardedGallery(sources, score), pe.search(queries, whole, 50, score)
        assert_ranking(found := shards.search(queries, 50), expected)
        assert (found.dim, found.gallery_size) == (expected.dim, expected.gallery_size)
        np.testing.assert_array_equal(shards.rescore(queries, expected.ids), expected.scores)
        if stored != "items":
            assert_ranking(shards.search(queries, 50, shortlist=50), expected)


def test_sources_are_files_functions_and_distributions_in_halves_too(cluster, tmp_path):
    gallery = hostile("normal_isotropic")[6:70]
    pe.io.write_distribution(tmp_path / "part.npz", gallery[:20])
    sources = [tmp_path / "part.npz", lambda: gallery[20:50], gallery[50:]]
    shards = ShardedGallery(sources, "mls", replicas=2, dtype="float16", num_cpus=2.5, restarts=1)
    ready = pe.prepare(gallery, "mls", "float16")
    assert_ranking(shards.search(gallery[:4], 9), pe.search(gallery[:4], ready, 9, "mls"))
    assert cluster.options == {"num_cpus": 2.5, "max_restarts": 1, "scheduling_strategy": "SPREAD"}
    assert len(cluster.actors) == 6 and len(shards) == 64 and pe.build_info()["threads"] == 2
    assert repr(shards) == "ShardedGallery(N=64, D=6, normal_isotropic, 3 shards x 2, 'mls')"


@pytest.mark.parametrize("ids", [None, NAMES[:114]])
def test_shards_with_an_index_rerank_what_that_proposes(ids, cluster, tmp_path):
    """Of as many as a shard holds these are the exact best; of fewer, what each reranker finds, merged."""
    gallery = hostile("normal_isotropic")
    gallery = gallery[np.setdiff1d(np.arange(len(gallery)), UNSCORED)][:114]  # an index takes finite vectors alone
    cuts = ((0, 50), (50, 114))
    parts = [pe.FaissReranker.build(gallery[a:b], "Flat", ids=None if ids is None else ids[a:b]) for a, b in cuts]
    parts[0].save(tmp_path / "first")
    shards, queries = ShardedGallery([tmp_path / "first", parts[1]]), gallery[:4]
    names = np.arange(114) if ids is None else ids
    expected = pe.search(queries, gallery, 6)
    for shortlist in (None, 120):
        assert_ranking(
            shards.search(queries, 6, shortlist=shortlist), (expected.scores, names[expected.ids]), f"{shortlist}"
        )
    few = [one.search(queries, 6, shortlist=8) for one in parts]
    scores, places = pe.merge(
        [pe.Ranking(x.scores, np.arange(24).reshape(4, 6) + 24 * i) for i, x in enumerate(few)], 6
    )
    offset = 50 if ids is None else ""
    found = np.concatenate([few[0].ids.ravel(), (few[1].ids + offset).ravel() if ids is None else few[1].ids.ravel()])
    assert_ranking(shards.search(queries, 6, shortlist=8), (scores, found[places]))
    np.testing.assert_array_equal(shards.rescore(queries, names[expected.ids]), expected.scores)
    with pytest.raises(
        ValueError, match=r"^ShardedGallery: shard 1 \(Normal\(N=64.* has no index, expected shortlist=None$"
    ):
        ShardedGallery([parts[0], gallery[50:]] if ids is None else [parts[0], (gallery[50:], ids[50:])]).search(
            queries, 6, shortlist=8
        )
    with pytest.raises(
        ValueError, match=r"^ShardedGallery: shard 0 \(.*first\): is a reranker of score mls in the dtype"
    ):
        ShardedGallery([tmp_path / "first"], "cosine")


@pytest.mark.parametrize("ids", [np.arange(114) * 3, NAMES[:114]])
def test_galleries_are_shards(ids, cluster, tmp_path):
    """Of ascending ids, where ties go to the lower row and to the lower id alike."""
    gallery, ids = hostile("normal_isotropic")[6:], np.sort(ids)
    gallery = pe.Normal(np.nan_to_num(gallery.mu), gallery.var)
    for name, a, b in (("first", 0, 50), ("second", 50, 114)):
        pe.Gallery.create(tmp_path / f"{name}.lance", gallery[a:b], ids=ids[a:b])
    shards = ShardedGallery([tmp_path / "first.lance", lambda: pe.Gallery.open(tmp_path / "second.lance")])
    queries, expected = gallery[:4], pe.search(gallery[:4], gallery, 60)
    assert_ranking(shards.search(queries, 60), (expected.scores, ids[expected.ids]))
    assert_ranking(shards.search(queries, 9, shortlist=5), (expected.scores[:, :9], ids[expected.ids[:, :9]]))
    rows = np.random.default_rng(0).integers(0, 114, (4, 20))
    np.testing.assert_array_equal(shards.rescore(queries, ids[rows]), pe.rescore(queries, gallery, rows))
    found = pe.rerank(queries, gallery, np.sort(rows), 6)
    assert_ranking(shards.rerank(queries, ids[rows], 6), (found.scores, ids[found.ids]))
    unknown = ids[rows].copy()
    unknown[2, 0] = "nobody" if ids.dtype.kind == "U" else 1
    with pytest.raises(ValueError, match=r"^mls: candidates of query 2 are in no shard, expected ids of the gallery$"):
        shards.rescore(queries, unknown)
    with pytest.raises(
        ValueError, match=r"^ShardedGallery: shard 0 \(.*first\.lance\): is a Gallery, whose items have a"
    ):
        ShardedGallery([tmp_path / "first.lance"], dtype="float16")


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(cluster):
    """Two shards with two replicas each, the actors, and a query with its answer."""
    gallery = hostile("normal_isotropic")[6:60]
    shards = ShardedGallery([gallery[:30], gallery[30:]], replicas=2)
    return shards, cluster.actors, gallery[:3], pe.search(gallery[:3], gallery, 5)


def test_what_a_replica_did_not_answer_another_one_does(pair):
    shards, actors, queries, expected = pair
    for actor in (actors[0], actors[2]):
        actor.faults = [died()]
    assert_ranking(shards.search(queries, 5), expected)
    assert [actor.asked["search"] for actor in actors] == [1, 1, 1, 1]
    assert_ranking(shards.search(queries, 5), expected)
    assert [actor.asked["search"] for actor in actors] == [1, 2, 1, 2]  # the dead are not asked again


def test_a_shard_without_another_replica_is_asked_until_it_is_back(cluster):
    gallery = hostile("normal_isotropic")[6:60]
    shards = ShardedGallery([gallery[:30], gallery[30:]])
    cluster.actors[1].faults = [unavailable() for _ in range(5)]
    assert_ranking(shards.search(gallery[:3], 5), pe.search(gallery[:3], gallery, 5))
    assert cluster.actors[1].asked["search"] == 6


def test_a_replica_that_is_started_again_is_asked_last(pair):
    shards, actors, queries, expected = pair
    actors[0].faults = [unavailable()]
    for _ in range(3):
        assert_ranking(shards.search(queries, 5), expected)
    assert [actor.asked["search"] for actor in actors] == [1, 3, 3, 0]
    shards._shards[0][0].avoided_until = 0
    shards.search(queries, 5)
    assert actors[0].asked["search"] == 2


def test_partial_answers_name_what_is_missing(pair, cluster):
    shards, actors, queries, _ = pair
    actors[0].faults = [Ref(late=True)] * 2
    with pytest.raises(TimeoutError, match=r"^ShardedGallery: no answer in 0\.5 s from shard 0 \(Normal\(N=30"):
        shards.search(queries, 5, timeout=0.5)
    found = shards.search(queries, 5, timeout=0.5, partial=True)
    assert [name.partition(" (")[0] for name in found.missing] == ["shard 0"] and len(cluster.cancelled) == 2
    second = pe.search(queries, hostile("normal_isotropic")[36:60], 5)
    assert_ranking(found, (second.scores, second.ids + 30))
    assert shards.search(queries, 5).missing == () and not any(one.waiting for x in shards._shards for one in x)
    for actor in (actors[0], actors[2]):
        actor.faults = [Ref(late=True)]
    with pytest.raises(TimeoutError, match=r"from shard 0 \(.*\), shard 1 \("):
        shards.search(queries, 5, timeout=0.5, partial=True)


def test_a_shard_whose_replicas_are_all_gone_is_an_error_or_missing(pair):
    shards, actors, queries, _ = pair
    for actor in actors[:2]:
        actor.faults = [died()]
    with pytest.raises(RuntimeError, match=r"^ShardedGallery: shard 0 \(.*\) died more often than `restarts` allows"):
        shards.search(queries, 5)
    assert shards.search(queries, 5, partial=True).missing[0].startswith("shard 0")
    assert shards.rerank(queries, np.zeros((3, 2), int), 5, partial=True).ids.max() == -1


def test_a_shard_that_cannot_be_loaded_again_says_why(cluster, tmp_path):
    path = tmp_path / "part.npz"
    gallery = hostile("normal_isotropic")[6:60]
    pe.io.write_distribution(path, gallery[:30])
    shards = ShardedGallery([path, gallery[30:]])
    settings = shards.score, None, 1
    for text, reason in (
        (b"PK", "cannot be read, truncated"),
        (None, "no such file"),
        (gallery, "holds 54 items, exp"),
    ):
        path.unlink()
        if isinstance(text, bytes):
            path.write_bytes(text)
        elif text is not None:
            pe.io.write_distribution(path, text)
        cluster.actors[0].shard = sharded._Shard(path, *settings)
        with pytest.raises(
            (ValueError, OSError), match=re.escape(f"ShardedGallery: shard 0 ({path}): {reason}")
        ) as caught:
            shards.search(gallery[:3], 5)
        assert "\n" not in str(caught.value)
        assert shards.search(gallery[:3], 5, partial=True).missing == (f"shard 0 ({path})",)
        _ = path.touch() if text is None else None


def test_calls_beyond_the_queue_are_refused(cluster):
    gallery = hostile("normal_isotropic")[6:60]
    shards, begun, go = ShardedGallery([gallery], queue=2), threading.Semaphore(0), threading.Event()
    wait = cluster.wait

    def waiting(refs, timeout):
        begun.release()
        go.wait(60)
        return wait(refs, timeout)

    cluster.wait = waiting
    found = []
    threads = [threading.Thread(target=lambda: found.append(shards.search(gallery[:3], 5))) for _ in range(2)]
    for thread in threads:
        thread.start()
        begun.acquire(timeout=60)
    with pytest.raises(queue.Full, match=r"^ShardedGallery: 2 calls wait for answers, as many as `queue` allows$"):
        shards.search(gallery[:3], 5)
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and shards.search(gallery[:3], 5).ids.shape == (3, 5)


def test_a_closed_gallery_refuses_calls_and_nothing_is_left(pair, cluster):
    shards, actors, queries, _ = pair
    with shards:
        pass
    assert cluster.killed == actors
    with pytest.raises(RuntimeError, match=r"was closed$"):
        shards.search(queries, 5)
    cluster.initialised = False
    with pytest.raises(RuntimeError, match=r"^ShardedGallery: Ray was shut down"):
        shards.search(queries, 5)
    shards.close()
    assert len(cluster.killed) == 4


# -- what is refused ---------------------------------------------------------------------------------------------------

GOOD = make("normal_isotropic", 9, 6, dtype="float32")
WRONG_SHARDS = {
    "shard 1 (x.npz): no such file": (FileNotFoundError, [GOOD, "x.npz"]),
    "shard 1 (x.txt): ": (ValueError, [GOOD, "x.txt"]),
    "shard 1 (VonMisesFisher(N=9, D=6, float32, numpy)) has vmf items of 6 dimensions in float32, expected "
    "normal_isotropic items of 6": (ValueError, [GOOD, make("vmf", 9, 6, dtype="float32")]),
    "shard 1 (Normal(N=9, D=5, isotropic, float32, numpy)) has normal_isotropic items of 5 d": (
        ValueError,
        [GOOD, make("normal_isotropic", 9, 5, dtype="float32")],
    ),
    "shard 1 (Normal(N=9, D=6, isotropic, float64, numpy)) has normal_isotropic items of 6 dimensions in float64": (
        ValueError,
        [GOOD, make("normal_isotropic", 9, 6)],
    ),
    "shard 1 (Normal(N=9, D=6, isotropic, float32, numpy)) has no ids, expected integers as ids like shard 0": (
        ValueError,
        [(GOOD, np.arange(9)), GOOD],
    ),
    "shard 0 (Normal(N=9, D=6, isotropic, float32, numpy)): ids have shape (8,) and dtype int64, expected": (
        ValueError,
        [(GOOD, np.arange(8))],
    ),
    "shard 0 (Normal(N=9, D=6, isotropic, float32, numpy)): ids hold -1, expected 0 .. 2^63 - 1": (
        ValueError,
        [(GOOD, np.arange(9) - 1)],
    ),
    "shard 0 (Normal(N=9, D=6, isotropic, float32, numpy)): ids hold 'a' twice": (
        ValueError,
        [(GOOD, list("abcdefgha"))],
    ),
    "shard 0 (Normal(N=9, D=6, isotropic, float32, numpy)): ids hold '', exp": (
        ValueError,
        [(GOOD, [*"abcdefgh", ""])],
    ),
    "shard 0 (<lambda>): is int, expected a path, a distribution": (TypeError, [lambda: 3]),
    "sources is [], expected a list": (ValueError, []),
    "sources is 'x.npz', expected a list": (ValueError, "x.npz"),
    "sources is Normal(N=9": (ValueError, GOOD),
}


@pytest.mark.parametrize("message", WRONG_SHARDS)
def test_what_is_no_gallery_is_refused_and_nothing_is_left(message, cluster):
    error, sources = WRONG_SHARDS[message]
    with pytest.raises(error, match="^" + re.escape(f"ShardedGallery: {message}")) as caught:
        ShardedGallery(sources)
    assert "\n" not in str(caught.value) and cluster.killed == cluster.actors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replicas": 0}, "replicas is 0, expected 1 .."),
        ({"queue": 0}, "queue is 0, expected 1 .."),
        ({"restarts": -1}, "restarts is -1, expected an integer >= 0"),
        ({"restarts": 1.5}, "restarts is 1.5, expected an integer >= 0"),
        ({"num_cpus": 0}, "num_cpus is 0, expected a number above 0"),
        ({"timeout": "1"}, "timeout is '1', expected a number above 0"),
    ],
)
def test_settings_are_refused_before_an_actor_is_started(given, message, cluster):
    with pytest.raises(ValueError, match="^" + re.escape(f"ShardedGallery: {message}")):
        ShardedGallery([GOOD], **given)
    assert not cluster.actors


def test_ray_is_started_by_whoever_calls(cluster):
    cluster.initialised = False
    with pytest.raises(RuntimeError, match=r"^ShardedGallery: Ray is not initialised, call ray\.init\(\) first"):
        ShardedGallery([GOOD])


def test_shards_that_do_not_load_in_time_say_what_the_cluster_has(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "wait", lambda refs, timeout: ([], refs))
    expected = r"^ShardedGallery: no answer in 3 s from shard 0 .*; actors ask for 16 CPUs, the cluster has 2$"
    with pytest.raises(TimeoutError, match=expected):
        ShardedGallery([GOOD, GOOD], replicas=2, num_cpus=4, timeout=3)
    assert len(cluster.killed) == 4


QUERIES = GOOD[:2]
WRONG_CALLS = {
    "mls: cannot score nivmf": (TypeError, lambda x: x.search(make("nivmf", 2, 6, dtype="float32"), 3)),
    "mls: queries must be a distribution": (TypeError, lambda x: x.search(GOOD.mu, 3)),
    "mls: queries must be numpy arrays": (
        TypeError,
        lambda x: x.search(make("normal_isotropic", 2, 6, dtype="float32", library="torch"), 3),
    ),
    "mls: dim of queries is 5": (ValueError, lambda x: x.search(make("normal_isotropic", 2, 5), 3)),
    "Normal: var is negative in row 0": (ValueError, lambda x: x.search(pe.Normal(QUERIES.mu, -QUERIES.var), 3)),
    "mls: k is 0": (ValueError, lambda x: x.search(QUERIES, 0)),
    "mls: candidates have shape (1, 1)": (ValueError, lambda x: x.rescore(QUERIES, [[1]])),
    "mls: candidates have dtype float64": (ValueError, lambda x: x.rerank(QUERIES, [[1.0], [2.0]], 1)),
    "mls: candidates of query 1 are in no shard, expected rows 0 .. 17": (
        ValueError,
        lambda x: x.rescore(QUERIES, [[1], [18]]),
    ),
    "ShardedGallery: timeout is 0": (ValueError, lambda x: x.search(QUERIES, 3, timeout=0)),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_calls_are_refused_before_they_are_sent(message, cluster):
    error, call = WRONG_CALLS[message]
    shards = ShardedGallery([GOOD, GOOD])
    with pytest.raises(error, match="^" + re.escape(message)):
        call(shards)
    sent = sum(actor.asked["search"] + actor.asked["rerank"] for actor in cluster.actors)
    assert sent == 0 and shards.search(QUERIES, 3).ids.shape == (2, 3)


def test_blocks_of_queries_that_are_not_begun_in_time_are_never_done(pair, cluster, monkeypatch):
    """And a shard without an answer to one block is missing as a whole."""
    shards, actors, _, _ = pair
    monkeypatch.setattr(sharded, "BLOCK", 2)
    queries = hostile("normal_isotropic")[6:16]
    late = [Ref(late=True) for _ in range(3)]
    actors[2].faults, actors[3].faults = [None, *late[:2]], [None, late[2]]
    found = shards.search(queries, 5, timeout=0.1, partial=True)
    assert len(found.missing) == 1 and found.missing[0].startswith("shard 1 ")
    assert {*cluster.cancelled} == {*late}
    assert_ranking(found, pe.search(queries, hostile("normal_isotropic")[6:36], 5))
    actors[2].faults = [Ref(late=True)]
    with pytest.raises(TimeoutError, match=r"^ShardedGallery: no answer in 0.1 s from shard 1 \(Normal\(N=24"):
        shards.search(queries, 5, timeout=0.1)


def test_queries_that_are_drawn_by_their_row_are_not_cut(cluster, monkeypatch):
    monkeypatch.setattr(sharded, "BLOCK", 2)
    queries, gallery = make("vmf", 7, 6, seed=4), make("point", 40, 6)
    gallery = pe.Point(gallery.mu / np.linalg.norm(gallery.mu, axis=1, keepdims=True))
    score = pe.scores.sampled_cosine(seed=3)
    shards = ShardedGallery([gallery[:20], gallery[20:]], score)
    assert_ranking(shards.search(queries, 5), pe.search(queries, gallery, 5, score))


def test_strings_as_candidates_are_strings(cluster):
    shards = ShardedGallery([(GOOD, list("abcdefghi"))])
    with pytest.raises(ValueError, match=r"^mls: candidates have dtype int64, expected strings"):
        shards.rescore(QUERIES, [[1], [2]])


def test_draws_of_items_belong_to_rows_of_one_gallery(cluster):
    gallery = make("vmf", 9, 6, dtype="float32")
    with pytest.raises(ValueError, match=r"^sampled_cosine: draws of an item depend on its row"):
        ShardedGallery([gallery], "sampled_cosine").search(gallery, 2)


def test_nothing_is_asked_of_no_queries_but_shapes(cluster):
    shards = ShardedGallery([GOOD[:0], GOOD])
    assert shards.search(GOOD[:0], 3).ids.shape == (0, 3)
    assert shards.rescore(GOOD[:0], np.zeros((0, 4), int)).shape == (0, 4)
    assert ShardedGallery([GOOD[:0]]).search(QUERIES, 2).ids.tolist() == [[-1, -1]] * 2
