"""Every public function takes tensors on a GPU: those that fit, evaluate or build move what they need to the host
themselves, and verbs stay where the tensors are. On a stand-in, whose tensors say that they are on "cuda:0".
"""

import dataclasses

import numpy as np
import pytest
import torch
from stand_in_gpu import OnGpu, OnSecondGpu, on_gpu, on_second_gpu, stand_in
from test_every_call import CALLS, Hand, outcome

import peaccel as pe

DTYPES = {np.dtype(name) for name in ("float16", "float32", "float64", "int64", "int32", "uint8", "bool")}


class GpuHand(Hand):
    """A hand that gives tensors on the stand-in, where torch has the dtype."""

    def give(self, x):
        x = super().give(x)
        return on_gpu(torch.from_numpy(np.array(x))) if x.dtype in DTYPES else x


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 50)
    with stand_in(monkeypatch):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_tensors_on_a_gpu_give_what_arrays_give(name):
    alike = 0
    for seed in range(6):
        hand = Hand(seed, 7, 5, 3, ("float32", "float64")[seed % 2], "usual", "plain")
        want, _ = outcome(name, hand)
        found, _ = outcome(name, GpuHand(**{f.name: getattr(hand, f.name) for f in dataclasses.fields(hand)}))
        if isinstance(want, Exception):
            assert type(found) is type(want), (want, found)
            continue
        assert not isinstance(found, Exception), found
        for x, y in zip(found, want, strict=True):
            if isinstance(y, np.ndarray) and y.dtype.kind == "f":
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)  # torch's sums and numpy's are in other orders
            elif isinstance(y, np.ndarray):
                np.testing.assert_array_equal(x, y)
        alike += 1
    assert alike, f"{name} raised for every hand: {want}"


def on_the_gpu(kind, n, seed):
    rng = np.random.default_rng(seed)
    mu = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)))
    made = {"normal": pe.Normal, "vmf": pe.VonMisesFisher, "point": lambda mu, _: pe.Point(mu)}[kind]
    return made(on_gpu(mu), on_gpu(torch.from_numpy(rng.uniform(0.5, 2, n).astype(np.float32))))


def test_what_is_computed_of_tensors_stays_where_they_are():
    q, g = on_the_gpu("normal", 3, 0), on_the_gpu("normal", 6, 1)
    labels = on_gpu(torch.tensor([0, 0, 1, 1, 2, 2]))
    candidates = on_gpu(torch.tensor([[0, 1, 2]] * 3))
    plda = pe.fit_plda(g.mu, labels, shrinkage=0.5)
    ranked = pe.search(q, g, 2)
    stay = {
        "paired": pe.paired(q, g[:3]),
        "pairwise": pe.pairwise(q, g),
        "rescore": pe.rescore(q, g, candidates),
        "rerank": pe.rerank(q, g, candidates, 2),
        "search": ranked,
        "search_above": pe.search_above(q, g, -9.0),
        "duplicates": pe.duplicates(g, -9.0),
        "merge": pe.merge([ranked, ranked], 2, offsets=[0, 6]),
        "normalise_scores": pe.normalise_scores(pe.pairwise(q, g), queries=pe.pairwise(q, g)),
        "log_prob": pe.log_prob(q, q.mu),
        "entropy": pe.entropy(q),
        "confidence": pe.confidence(q),
        "kl": pe.kl(q, g[:3]),
        "sample": pe.sample(q, 2, seed=0),
        "fuse": pe.fuse(g, labels).arrays,
        "fit_vmf": pe.fit_vmf(on_the_gpu("vmf", 6, 2).mu, groups=labels).arrays,
        "fit_prior": (pe.fit_prior(g, labels).mean,),
        "calibrate_variance": pe.calibrate_variance(g, [[0, 1], [2, 3]], [True, True])(g).arrays,
        "Plda.transform": plda.transform(g.mu).arrays,
        "triplet_probability": pe.triplet_probability(q, g[:3], g[3:]),
        "match_variance": pe.match_variance(q, g[:3]),
    }
    for name, found in stay.items():
        assert all(isinstance(x, OnGpu) for x in (found if isinstance(found, tuple) else (found,))), name


def test_verbs_copy_nothing_between_devices():
    q = on_the_gpu("point", 3, 0)
    with pytest.raises(ValueError, match=r"^cosine: queries must be torch tensors on cpu like gallery, got torch tens"):
        pe.search(q, pe.Point(torch.ones(2, 4)), 1, "cosine")
    with pytest.raises(TypeError, match=r"^cosine: candidates are torch tensors on cpu, expected torch tensors on"):
        pe.rerank(q, q, torch.zeros(3, 1, dtype=torch.int64), 1, "cosine")


@pytest.mark.parametrize("kind", ["normal", "vmf", "point"])
def test_a_gallery_in_shards_on_two_gpus_gives_the_bits_of_the_whole(kind):
    q, first, second = (on_the_gpu(kind, n, n) for n in (3, 7, 9))
    on_host = [type(d)(*(x.as_subclass(torch.Tensor) for x in d.arrays)) for d in (q, first, second)]
    second = type(second)(*(on_second_gpu(x.as_subclass(torch.Tensor)) for x in second.arrays))
    want = pe.search(on_host[0], on_host[1:], 5)
    for shards in ([first, second], [pe.prepare(first), pe.prepare(second)], [second, first]):
        found = pe.search(q, shards, 5)
        assert all(type(x) is OnGpu for x in found)
        if shards[0] is not second:
            assert [x.tolist() for x in found] == [x.tolist() for x in want]
    moved = type(q)(*(on_second_gpu(x.as_subclass(torch.Tensor)) for x in q.arrays))
    found = pe.search(moved, [first, second], 5)
    assert all(type(x) is OnSecondGpu for x in found)
    assert [x.tolist() for x in found] == [x.tolist() for x in want]
    threshold = float(want.scores[:, 2].min())
    above = [pe.search_above(*given, threshold) for given in ((q, [first, second]), (on_host[0], on_host[1:]))]
    assert all(type(x) is OnGpu for x in above[0])
    assert [x.tolist() for x in above[0]] == [x.tolist() for x in above[1]]
    candidates = torch.tensor([[0, 8, 15, -1]] * 3)
    scores = pe.rescore(q, [first, second], on_gpu(candidates))
    assert type(scores) is OnGpu
    assert scores.tolist() == pe.rescore(on_host[0], on_host[1:], candidates).tolist()
