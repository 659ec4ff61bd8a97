"""Needs of people who verify speakers, search galleries, train losses and fit thresholds: a case each, by its need.

Each is a small input of which the right answer is known, through public functions and commands alone.
"""

import math
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from items import make
from pytorch_metric_learning import losses as theirs
from pytorch_metric_learning import miners

import peaccel as pe
from peaccel import io, metrics
from peaccel.cli import main
from peaccel.evaluation import evaluate_templates
from peaccel.losses import HIB, MultiSimilarity, NegativeMLS, ProxyAnchor, ProxyNCA, ProxyNCAPP, ScoreNCE, Triplet
from peaccel.losses.score_distance import ScoreDistance

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

INF = math.inf
MU = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]])
ITEMS = make("normal_diagonal", 60, 16, dtype="float32")
QUERIES = make("normal_diagonal", 5, 16, 1, dtype="float32")
RULES = ("best", "mean", "product")
SAME = np.arange(600) % 3 == 0  # pairs, and their log-likelihood ratios
LLR = 4 * np.random.default_rng(0).normal(size=600) + np.where(SAME, 5.0, -5.0)
LABELS = torch.arange(12) % 4
NEEDS = {}


def need(name):
    """Enter a case in the table."""
    assert name not in NEEDS, name
    return lambda case: NEEDS.setdefault(name, case)


def shell(line):
    main(line.split())


# -- search: what is found --------------------------------------------------------------------------------------------


@need("an exact copy is found first, also where its variance is 0")
def _():
    d = pe.Normal(MU, np.zeros(4))
    for score in ("mls", "ppk", "neg_kl", "neg_mahalanobis", "inclusion"):
        found = pe.search(d, d, 4, score)
        assert found.ids[:, 0].tolist() == [0, 1, 2, 3] and not np.isnan(found.scores).any(), score
    assert pe.paired(d, d, "neg_kl").tolist() == [0] * 4


@need("variances that are 0 in float16 rank by means")
def _():
    d = pe.Normal(MU.astype(np.float16), np.full(4, np.exp(-18), np.float16)).validate()
    found = pe.search(pe.Normal(d.mu + np.float16(0.01), np.ones(4, np.float16)), d, 1)
    assert (d.var == 0).all() and found.ids[:, 0].tolist() == [0, 1, 2, 3] and np.isfinite(found.scores).all()


@need("find an item of kappa = inf")
def _():
    gallery = pe.VonMisesFisher(MU, np.array([5.0, INF, INF, 5.0]))
    broad = pe.VonMisesFisher(MU, np.full(4, 20.0))
    found = pe.search(broad, gallery, 4)
    assert found.ids[:, 0].tolist() == [0, 1, 2, 3] and not np.isnan(found.scores).any()
    # The score of a point is the density of the other at it.
    np.testing.assert_allclose(pe.paired(broad, gallery)[1:3], pe.log_prob(broad, MU)[1:3])


@need("find persons who are enrolled with one photograph")
def _():
    queries = pe.VonMisesFisher(MU, np.full(4, 30.0))
    beside_others = pe.fit_vmf(np.concatenate([MU, [[0.8, -0.6]]]), groups=[0, 1, 2, 3, 0])
    alone = pe.fit_vmf(MU, groups=range(4))
    assert np.isfinite(beside_others.kappa).all() and np.isinf(alone.kappa).all()
    for gallery in (beside_others, alone):
        assert pe.search(queries, gallery, 1).ids[:, 0].tolist() == [0, 1, 2, 3]


@need("cosine of very short and very long rows")
def _():
    lengths = np.array([1e-30, 1e30, 1e-22, 1e19])[:, None]
    d = pe.Point((MU * lengths).astype(np.float32))
    found = pe.pairwise(d, d, "cosine")
    np.testing.assert_allclose(found, MU @ MU.T, atol=2e-7)
    assert abs(found).max() <= 1


@need("cosine by any index of FAISS is that of numpy")
def _():
    unit = ITEMS.mu / np.linalg.norm(ITEMS.mu, axis=1, keepdims=True)
    expected = -np.sort(-(QUERIES.mu / np.linalg.norm(QUERIES.mu, axis=1, keepdims=True)) @ unit.T)[:, :3]
    for factory in ("Flat", "HNSW16", "IVF1,Flat", "SQ8", "PCA16,Flat"):
        found = pe.FaissReranker.build(pe.Point(ITEMS.mu), factory, score="cosine")
        np.testing.assert_allclose(found.search(pe.Point(QUERIES.mu), 3, shortlist=60).scores, expected, atol=3e-7)


@need("ties go to the lower row")
def _():
    gallery = pe.Normal(np.ones((6, 3)), np.ones(6))
    assert pe.search(gallery[:1], gallery, 3).ids.tolist() == [[0, 1, 2]]
    assert pe.rerank(gallery[:1], gallery, np.array([[5, 3, 4]]), 2).ids.tolist() == [[3, 4]]


@need("ask for more answers than there are items")
def _():
    scores, ids = pe.search(pe.Point(MU[:1]), pe.Point(MU), 6, "cosine")
    assert ids.tolist() == [[0, 2, 1, 3, -1, -1]] and scores[0, 4:].tolist() == [-INF, -INF]


@need("the name of a score is no name of a first stage")
def _():
    with pytest.raises(TypeError):
        pe.FaissReranker.build(ITEMS, "Flat", "cosine")
    assert pe.FaissReranker.build(ITEMS, "Flat", score="cosine").score.name == "cosine"


# -- search: ids and what is allowed -----------------------------------------------------------------------------------


def index_of(factory, ids):
    index = faiss.index_factory(16, factory)
    index.train(ITEMS.mu)
    index.add_with_ids(ITEMS.mu, ids)
    return index


@need("search an index that has ids of its own")
def _():
    ids = 900 - np.arange(60)
    found = pe.FaissReranker(index_of("IDMap,Flat", ids), ITEMS).search(QUERIES, 4, shortlist=60)
    np.testing.assert_array_equal(found.ids, ids[pe.search(QUERIES, ITEMS, 4).ids])
    with pytest.raises(ValueError, match=r"ids must be those that index returns, such as [89]\d\d"):
        pe.FaissReranker(index_of("IVF1,Flat", ids), ITEMS)


@need("several photographs of a person are one answer")
def _():
    persons = 100 + np.arange(60) // 6
    found = pe.FaissReranker(index_of("IDMap,Flat", persons), ITEMS).search(QUERIES, 10, shortlist=60)
    best = pe.pairwise(QUERIES, ITEMS).reshape(5, 10, 6).max(2)
    np.testing.assert_array_equal(found.ids, 100 + (-best).argsort(1))


@need("remove persons from an index that has ids of its own")
def _():
    ids = 900 - np.arange(60)
    reranker = pe.FaissReranker(index_of("IDMap2,Flat", ids), ITEMS)
    reranker.remove(ids[:30])
    expected = pe.search(QUERIES, ITEMS[30:], 4)
    np.testing.assert_array_equal(reranker.search(QUERIES, 4, shortlist=60).ids, ids[30:][expected.ids])


@need("items that were removed are found in no index")
def _():
    expected = pe.search(QUERIES, ITEMS[20:], 4).ids + 20
    for factory in ("Flat", "HNSW16", "IVF1,Flat", "SQ8", "PCA16,Flat", "PQ4x4"):
        reranker = pe.FaissReranker.build(ITEMS, factory)
        reranker.remove(range(20))
        np.testing.assert_array_equal(reranker.search(QUERIES, 4, shortlist=60).ids, expected, factory)


@need("search with ids that are strings, as pandas makes them")
def _():
    names = pd.Series([f"item {i}" for i in range(60)], dtype="string")
    reranker = pe.FaissReranker.build(ITEMS, "Flat", ids=names)
    found = reranker.search(QUERIES, 3, shortlist=60).ids
    assert found.tolist() == names.to_numpy()[pe.search(QUERIES, ITEMS, 3).ids].tolist()


@need("ids are the same after saving and loading")
def _():
    for ids in (np.arange(60)[::-1] + 2**40, [f"é{i}" for i in range(60)], pl.Series(range(7, 67))):
        reranker = pe.FaissReranker.build(ITEMS, "Flat", ids=ids)
        reranker.save("kept")
        loaded = pe.FaissReranker.open("kept")
        assert loaded.ids.tolist() == list(ids)
        assert loaded.search(QUERIES, 3).ids.tolist() == reranker.search(QUERIES, 3).ids.tolist()


@need("a missing id says its row")
def _():
    for ids in (["a", None, "c", "d"], pd.Series([1, None, 3, 4], dtype="Int64")):
        with pytest.raises(ValueError, match=r"1 of the 4 ids are missing .* row 1; expected the id"):
            pe.FaissReranker.build(pe.Point(MU), "Flat", ids=ids)


@need("upsert with doubled ids")
def _():
    reranker = pe.FaissReranker.build(ITEMS, "Flat", ids=np.arange(60) + 100)
    with pytest.raises(ValueError, match="ids hold 7 twice"):
        reranker.upsert(QUERIES[:2], [7, 7])
    reranker.upsert(QUERIES[:2], [100, 7])  # one that is there, and one that is new
    assert len(reranker) == 61 and reranker.search(QUERIES[:2], 1).ids.tolist() == [[100], [7]]


@need("upsert new embeddings without the metadata")
def _():
    gallery = pe.Gallery.create("g.lance", pe.Point(MU), [1, 2, 3, 4], {"year": [2001, 2002, 2003, 2004]})
    gallery.upsert(pe.Point(-MU[1:2]), [2])
    assert gallery.search(pe.Point(-MU[1:2]), 1, filter="year = 2002").ids.tolist() == [[2]]
    assert gallery.search(pe.Point(-MU[1:2]), 1).ids.tolist() == [[2]]


@need("allowed as a set, a single id, a column of pandas or a mask")
def _():
    reranker = pe.FaissReranker.build(pe.Point(MU), "Flat", ids=[10, 20, 30, 40])
    forms = ({20, 40}, [20, 40], pd.Series([20, 40], dtype="Int64"), np.array([20, 40], object))
    for allowed in (*forms, np.array([False, True, False, True])):
        assert reranker.search(pe.Point(MU[:1]), 3, allowed=allowed).ids.tolist() == [[20, 40, -1]]
    assert reranker.search(pe.Point(MU[:1]), 2, allowed=40).ids.tolist() == [[40, -1]]


@need("few items are allowed and all of them are found in an IVF index")
def _():
    rng = np.random.default_rng(0)
    gallery = pe.Point(rng.normal(size=(800, 8)).astype(np.float32))
    queries, allowed = pe.Point(rng.normal(size=(20, 8)).astype(np.float32)), np.sort(rng.permutation(800)[:80])
    reranker = pe.FaissReranker.build(gallery, "IVF16,Flat", recall=None)
    found = reranker.search(queries, 5, shortlist=10, allowed=allowed)
    expected = allowed[pe.search(queries, gallery[allowed], 5).ids]
    assert (found.ids >= 0).all() and np.mean(
        [np.isin(*pair).sum() for pair in zip(found.ids, expected, strict=True)]
    ) > 4.9


@need("embeddings and ids from a table of pandas or Polars")
def _():
    columns = {"id": ["a", "b"], "mu": MU[:2].tolist(), "var": [0.1, 0.5]}
    for table in (pl.DataFrame(columns), pd.DataFrame(columns)):
        d, ids = io.from_arrow(table, ids="id")
        assert isinstance(d, pe.Normal) and d.mu.tolist() == MU[:2].tolist() and d.var.tolist() == [0.1, 0.5]
        assert pe.FaissReranker.build(d, "Flat", ids=ids).search(d, 1).ids.tolist() == [["a"], ["b"]]


# -- search: all above a threshold -------------------------------------------------------------------------------------


def pairs(found):
    return np.stack([found.queries, found.ids], 1).tolist()


@need("all items above a threshold")
def _():
    for items in (ITEMS, pe.FaissReranker.build(ITEMS, "Flat")):
        scores = pe.pairwise(QUERIES, ITEMS)
        at = float(np.quantile(scores, 0.9))
        found = items.search_above(QUERIES, at) if items is not ITEMS else pe.search_above(QUERIES, ITEMS, at)
        assert found.offsets.tolist() == [0, *(scores >= at).sum(1).cumsum()]
        assert sorted(pairs(found)) == np.argwhere(scores >= at).tolist()


@need("near duplicates of a set")
def _():
    found = pe.duplicates(pe.concat([ITEMS, ITEMS[[7, 3]]]), 0.999, "cosine")
    assert pairs(found) == [[3, 61], [7, 60]]


@need("write all items above a threshold, and near duplicates, from the shell")
def _():
    io.write_distribution("d.npz", pe.Point(np.concatenate([MU, MU[:1]])))
    shell("search --queries d.npz --gallery d.npz --above 0.59 --score cosine --out found.npz")
    assert io.read_ranking("found.npz")[1][0].tolist() == [0, 4, 2, -1]
    shell("duplicates --embeddings d.npz --above 0.9 --score cosine --out pairs.csv")
    assert Path("pairs.csv").read_text().splitlines()[1].startswith("0,4,1")


@need("what a search has written is reranked")
def _():
    io.write_distribution("g.npz", ITEMS)
    io.write_distribution("q.npz", QUERIES)
    for suffix in (".parquet", ".npz", ".csv"):
        shell(f"search --queries q.npz --gallery g.npz --k 6 --out found{suffix}")
        shell(f"rerank --queries q.npz --gallery g.npz --candidates found{suffix} --k 2 --score ppk --out r.npz")
        expected = pe.rerank(QUERIES, ITEMS, pe.search(QUERIES, ITEMS, 6).ids, 2, "ppk")
        np.testing.assert_array_equal(io.read_ranking("r.npz")[1], expected.ids)


# -- items of several photographs or utterances ------------------------------------------------------------------------


@need("fuse photographs by direction")
def _():
    photographs = pe.Point(np.array([[100.0, 0.0], [0.0, 0.01], [0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_allclose(pe.fuse(photographs, [0, 0, 0, 1]).mu, [[0.5**0.5] * 2, [0.6, 0.8]])
    np.testing.assert_allclose(pe.fuse(photographs[:2], [0, 0], "mean").mu, [[50, 0.005]])  # lengths by name
    fused = pe.fuse(pe.Normal(np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([1.0, 4.0])), [0, 0])  # by precision
    np.testing.assert_allclose(fused.mu, [[0.2, 0.4]])


@need("names as groups in fuse and fit_vmf, and who is in which row")
def _():
    groups = ["bob", "ann", "bob", "cy"]
    for form in (groups, np.array(groups, object), pd.Series(groups, dtype="category"), pl.Series(groups)):
        fused, names = pe.fuse(pe.Normal(MU, np.ones(4)), form, names=True)
        assert names.tolist() == ["ann", "bob", "cy"] and fused.mu.tolist() == [[0, 1], [0.8, 0.4], [-1, 0]]
        assert pe.fit_vmf(MU, groups=form, names=True)[1].tolist() == ["ann", "bob", "cy"]


@need("verify templates by the best photograph, the mean and precision in one call")
def _():
    rng, templates = np.random.default_rng(0), np.arange(80).repeat(3)
    mu = rng.normal(size=(20, 8))[templates // 4] + 0.3 * rng.normal(size=(240, 8))
    found = evaluate_templates(pe.Normal(mu, np.full(240, 0.09)), templates, templates // 4, "mls", rule=RULES)
    rates = {result.rule: result.equal_error_rate.value for result in found.results}
    assert list(rates) == ["first item alone", *RULES]
    assert max(rates[rule] for rule in RULES) < min(rates["first item alone"], 0.05)


# -- speakers ----------------------------------------------------------------------------------------------------------


@need("VoxCeleb's trial list")
def _():
    Path("trials").write_text("1 a.wav c.wav\n0 a.wav d.wav\n")
    enrol, test, match = io.read_trials("trials")
    found = pe.score_trials(pe.Point(MU), ["a.wav", "b.wav", "c.wav", "d.wav"], enrol, test)
    np.testing.assert_allclose(found, [0.6, -1])
    assert match.tolist() == [True, False]


@need("Kaldi's trial list, with several utterances of enrolment")
def _():
    Path("trials").write_text("ann c target\nann d nontarget\n")
    Path("spk2utt").write_text("ann a b\n")
    enrol, test, match = io.read_trials("trials")
    found = pe.score_trials(pe.Point(MU), [*"abcd"], enrol, test, enrolment=io.read_enrolment("spk2utt"))
    np.testing.assert_allclose(found, [1.4 * 0.5**0.5, -(0.5**0.5)])
    assert match.tolist() == [True, False]


@need("adaptive S-norm of scored trials")
def _():
    d, cohort = pe.Point(ITEMS.mu), pe.Point(make("point", 40, 16, 3, dtype="float32").mu)
    found = pe.score_trials(d, np.arange(60), [3], [7], cohort=cohort, k=10)
    nearest = -np.sort(-pe.pairwise(d[[3, 7]], cohort).astype(float))[:, :10]
    of_each = (pe.pairwise(d[[3]], d[[7]])[0, 0] - nearest.mean(1)) / nearest.std(1)
    assert found[0] == pytest.approx(of_each.mean(), rel=1e-5)


@need("PLDA from Kaldi")
def _():
    Path("plda").write_text("<Plda>  [ 1 0 ]\n [\n 2 0\n 0 1 ]\n [ 4 0.5 ]\n</Plda> ")
    plda, psi = io.read_plda("plda"), np.array([4, 0.5])
    u, v = (MU[[0, 1]] - [1, 0]) * [2, 1], (MU[[2, 3]] - [1, 0]) * [2, 1]
    wide = 1 + psi / (1 + psi)
    given = -(np.log(wide) + (v - psi / (1 + psi) * u) ** 2 / wide).sum(1) / 2
    alone = -(np.log(1 + psi) + v**2 / (1 + psi)).sum(1) / 2
    found = pe.paired(plda.transform(MU[[2, 3]]), plda.transform(MU[[0, 1]]), plda.score)
    np.testing.assert_allclose(found, given - alone, atol=1e-14)


@need("speakers are enrolled in PLDA by name")
def _():
    rng, names = np.random.default_rng(0), np.array([f"p{i:02}" for i in range(40)]).repeat(5)
    x = 9 * rng.normal(size=(40, 3)).repeat(5, 0) + rng.normal(size=(200, 3))
    plda, first = pe.fit_plda(x, names), np.arange(200) % 5 < 3
    enrolled, who = pe.fuse(plda.transform(x[first]), pd.Series(names[first]), names=True)
    best = pe.search(plda.transform(x[~first]), enrolled, 1, plda.score).ids[:, 0]
    assert (who[best] == names[~first]).mean() > 0.95


# -- verification ------------------------------------------------------------------------------------------------------


@need("minDCF of scored pairs")
def _():
    def dcf(t):
        return (0.05 * 10 * (LLR[SAME] < t).mean() + 0.95 * (LLR[~SAME] >= t).mean()) / 0.5

    cost = metrics.detection_cost(LLR, SAME, p_target=0.05, c_miss=10, c_fa=1)
    assert cost.min_dcf == pytest.approx(min(map(dcf, (*LLR, INF))))
    assert cost.actual_dcf == pytest.approx(dcf(math.log(0.95 / 0.5)))
    assert cost.min_dcf_interval[0] <= cost.min_dcf <= cost.min_dcf_interval[1]


@need("Cllr of scored pairs")
def _():
    targets, others = np.log2(1 + np.exp(-LLR[SAME])), np.log2(1 + np.exp(LLR[~SAME]))
    assert metrics.detection_cost(LLR, SAME).cllr == pytest.approx((targets.mean() + others.mean()) / 2)


@need("the threshold at the equal error rate")
def _():
    found = metrics.equal_error_rate([4.0, 3, 2, 1], [1, 0, 1, 0])
    assert (found.rate, found.threshold) == (0.5, 3)


@need("the threshold of the least cost, from the shell")
def _():
    pd.DataFrame({"Score": LLR[:90], "Match": SAME[:90]}).to_csv("pairs.csv", index=False)
    shell("choose-threshold --pairs pairs.csv --p-target 0.05 --out o")
    assert io.read_fit("o/accept.json") == pe.choose_pair_threshold(LLR[:90], SAME[:90], p_target=0.05).accept


@need("ten folds, as LFW has them")
def _():
    shares, fold = [], np.arange(600) // 60
    for number in range(10):
        threshold = metrics.best_threshold(LLR[fold != number], SAME[fold != number])
        shares.append(((LLR[fold == number] >= threshold) == SAME[fold == number]).mean())
    assert metrics.verification_accuracy(LLR, SAME, folds=10) == pytest.approx(np.mean(shares))


@need("a FAR is never exceeded")
def _():
    for n, far in ((15, 0.1), (400, 0.0019), (29, 0.3)):
        scores = np.random.default_rng(n).normal(size=2 * n)
        found = metrics.tar_at_far(scores, np.arange(2 * n) % 2, far)
        assert far - 1 / n < found.attained_far <= far
        assert (scores[::2] >= found.threshold).mean() == found.attained_far


@need("distances in place of scores are warned of")
def _():
    for call in (
        lambda: pe.choose_pair_threshold(-LLR, SAME, wrong=0.1),
        lambda: metrics.tar_at_far(-LLR, SAME, 0.1),
        lambda: pe.learn_then_test(-LLR, SAME, np.arange(600), 0.1),
    ):
        with pytest.warns(UserWarning, match="look reversed, as distances are"):
            call()


@need("pairs file with Score,Match, with tabs or with semicolons")
def _():
    for between, name in ((",", "a.csv"), ("\t", "b.csv"), (";", "c.csv"), ("\t", "d.tsv")):
        Path(name).write_text("Score,Match\n0.9,yes\n0.1,no\n".replace(",", between))
        assert [x.tolist() for x in io.read_scored_pairs(name)[:2]] == [[0.9, 0.1], [True, False]]


@need("matches as 0.0 and 1.0, yes and no, target and nontarget")
def _():
    for match in ([1.0, 0.0], ["yes", "no"], ["target", "nontarget"], pd.Series([True, False], dtype="boolean")):
        assert metrics.roc_auc([0.9, 0.1], match) == 1


@need("the threshold of a FAR of pairs speaks of pairs alone")
def _():
    text = str(pe.choose_pair_threshold(LLR, SAME, far=0.1))
    assert "pairs" in text and "mate" not in text


# -- labels ------------------------------------------------------------------------------------------------------------


@need("labels with None, NaN or NA are refused with the first row")
def _():
    for missing in ([0, 0, None, 1], [0, 0, np.nan, 1], pd.Series([0, 0, pd.NA, 1], dtype="Int64")):
        for call in (pe.fuse, lambda d, y: pe.evaluate(d, None, y), lambda d, y: metrics.nmi(d.mu, y)):
            with pytest.raises(
                ValueError, match=r"1 of the 4 \w+ are missing .* the first in row 2; expected the class"
            ):
                call(pe.Point(MU), missing)


@need("masked arrays are not taken for plain ones")
def _():
    with pytest.raises(ValueError, match=r"1 of the 4 groups are missing .* row 3"):
        pe.fuse(pe.Point(MU), np.ma.masked_array([0, 0, 1, 1], [0, 0, 0, 1]))
    with pytest.raises(TypeError, match="scores is a masked array, expected a plain one"):
        metrics.roc_auc(np.ma.masked_array([0.9, 0.1], [0, 1]), [1, 0])


@need("labels saved as an array of objects are said to be that")
def _():
    np.save("labels.npy", np.array(["a", "b"], object))
    with pytest.raises(ValueError, match="object") as caught:
        io.read_labels("labels.npy")
    assert "damaged" not in str(caught.value)


# -- training ----------------------------------------------------------------------------------------------------------


def batch(kind, seed=0, n=12):
    d = make(kind, n, 6, seed, library="torch")
    return type(d)(d.mu.requires_grad_(), *d.arrays[1:])


@need("one row of zeros does not spoil a batch")
def _():
    mu = batch("point").mu.detach().clone()
    mu[5] = 0
    mu.requires_grad_()
    loss = ScoreNCE("cosine")(pe.Point(mu), LABELS)
    loss.backward()
    assert loss.isfinite() and mu.grad.isfinite().all() and (mu.grad[5] == 0).all() and mu.grad[0].any()


@need("labels beyond the classes are refused before the GPU sees them")
def _():
    for loss in (ProxyNCA(6, 3), ProxyAnchor(6, 3), ProxyNCAPP(6, 3)):
        with pytest.raises(ValueError, match=r"labels"):
            loss(batch("point"), LABELS)


@need("a memory of past batches")
def _():
    d, past, of_past = batch("normal_diagonal"), batch("normal_diagonal", 1, 20), torch.arange(20) % 5
    s, same = pe.pairwise(d, past, "mls"), LABELS[:, None] == of_past
    torch.testing.assert_close(NegativeMLS()(d, LABELS, reference=(past, of_past)), -s[same].mean())
    hinges = (s[:, None, :] - s[:, :, None] + 0.7).clamp(min=0)[same[:, :, None] & ~same[:, None, :]]
    found = Triplet(margin=0.7, score="mls")(d, LABELS, reference=(past, of_past))
    torch.testing.assert_close(found, hinges.mean())


@need("an accumulation over batches larger than memory")
def _():
    """As docs/training.md shows it: the gradients are those of the whole batch."""
    x, labels = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 6
    head, loss = torch.nn.Linear(5, 7), ScoreNCE("mls")

    def embed(part):
        return pe.Normal(head(part)[:, :6], head(part)[:, 6].exp())

    loss(embed(x), labels).backward()
    expected = [parameter.grad.clone() for parameter in head.parameters()]
    head.zero_grad()
    parts = x.split(8)
    with torch.no_grad():
        seen = pe.concat([embed(part) for part in parts])
    leaves = [array.requires_grad_() for array in seen.arrays]
    loss(type(seen)(*leaves), labels).backward()
    for part, *slopes in zip(parts, *(leaf.grad.split(8) for leaf in leaves), strict=True):
        torch.autograd.backward(embed(part).arrays, slopes)
    for parameter, gradient in zip(head.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)


@need("a log variance for a variance in a loss")
def _():
    d = pe.Normal(torch.randn(12, 6), torch.randn(12, 6) - 3)
    for loss in (NegativeMLS(), ScoreNCE("mls"), HIB()):
        with pytest.raises(ValueError, match="var is negative in row 0: a variance is expected, not its logarithm"):
            loss(d, LABELS)


@need("a miner of pytorch-metric-learning")
def _():
    d = batch("point")
    mined = miners.MultiSimilarityMiner(0.3)(d.mu, LABELS)
    expected = theirs.MultiSimilarityLoss(2, 40, 0.5)(d.mu, LABELS, mined)
    torch.testing.assert_close(MultiSimilarity(margin=99.0)(d, LABELS, mined=mined), expected)


@need("a loss of pytorch-metric-learning on distributions")
def _():
    d, distance = batch("normal_diagonal"), ScoreDistance("mls", "normal_diagonal")
    expected = Triplet(margin=0.7, score="mls", only_violating=True)(d, LABELS)
    found = theirs.TripletMarginLoss(0.7, distance=distance)(distance.rows(d), LABELS)
    torch.testing.assert_close(found, expected)


@need("draws of items without variance have finite gradients")
def _():
    var = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    draws = pe.sample(pe.Normal(torch.tensor(MU[:2]), var), 5, seed=1)
    draws.square().sum().backward()
    assert (draws[:, 0] == torch.tensor(MU[0])).all() and var.grad[0] == 0 and var.grad[1].isfinite()


@need("seeds beyond 2^32 are others")
def _():
    d = pe.Normal(MU, np.ones(4))
    one, again, other = (pe.sample(d, 3, seed=seed) for seed in (5, 5, 2**32 + 5))
    assert (one == again).all() and (one != other).all()


# -- numbers -----------------------------------------------------------------------------------------------------------


@need("llr in float32 of items that are far wider than the prior")
def _():
    q, g = (pe.Normal(d.mu, 100 + d.var) for d in (QUERIES, ITEMS))
    expected = pe.pairwise(*(pe.Normal(d.mu.astype(float), d.var.astype(float)) for d in (q, g)), "llr:prior_var=1")
    np.testing.assert_allclose(pe.pairwise(q, g, "llr:prior_var=1"), expected, rtol=2e-5)


@need("density at D = 100,000")
def _():
    dim, kappa = 100_000, 1000.0
    ratio, term = 1.0, 1.0  # of normalisers at kappa and at 0: 0F1(; D / 2; kappa^2 / 4)
    for k in range(60):
        term *= kappa**2 / 4 / (k + 1) / (dim / 2 + k)
        ratio += term
    expected = math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi) - math.log(ratio)
    axis = np.eye(1, dim)
    found = pe.log_prob(pe.VonMisesFisher(axis, [kappa]), axis)
    np.testing.assert_allclose(found, expected + kappa, rtol=1e-13)


# -- promises ----------------------------------------------------------------------------------------------------------


@need("near-empty conformal sets")
def _():
    scores, right = np.array([[2.0, 1.0]] * 9), np.array([[False, True]] * 9)
    assert pe.conformal_sets(scores, right, np.arange(9), 0.1).gap == 1
    assert pe.conformal_sets(scores[:8], right[:8], np.arange(8), 0.1).gap == INF  # of too few classes: all answers
    found = pe.ConformalSets(0.0, 0.1, 99, "answerable")(pe.Ranking(scores, np.array([[4, 5]] * 9)))
    assert found.ids[:, 0].tolist() == [4] * 9 and (found.ids[:, 1] == -1).all()
    with pytest.raises(TypeError, match=r"ranking is ndarray, expected a pe.Ranking"):
        pe.ConformalSets(0.0, 0.1, 99, "answerable")(scores)


@need("right answers are accepted and at most so many wrong ones")
def _():
    rng = np.random.default_rng(1)
    right = rng.random(2000) < 0.7
    scores = rng.normal(size=2000) + 3 * right
    found = pe.learn_then_test(scores, right, np.arange(2000), alpha=0.05)
    accepted = found(scores)
    assert (~right[accepted]).mean() <= 0.05 and accepted.sum() > 1000


@pytest.mark.parametrize("name", NEEDS)
def test_needs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    NEEDS[name]()
