"""Losses that take a score, a second set of items and the pairs or triplets that a miner chose; and a score as a
distance of pytorch-metric-learning."""

import itertools
import re

import pytest
import torch
from own_loss_cases import KINDS
from pytorch_metric_learning import losses as theirs
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices, get_all_triplets_indices

import peaccel as pe
from peaccel.losses import (
    HIB,
    BayesianTriplet,
    Contrastive,
    MultiSimilarity,
    NegativeMLS,
    Triplet,
    TripletRegression,
)
from peaccel.losses.score_distance import ScoreDistance

N, M, DIM = 12, 20, 6
LABELS, OTHERS = torch.arange(N) % 4, torch.arange(M) % 5  # of class 4 there are only others
OF_KIND = [
    (NegativeMLS, {}, "diagonal"),
    (NegativeMLS, {}, "vmf"),
    (HIB, {}, "isotropic"),
    (Triplet, {"margin": 0.3}, "point"),
    (Triplet, {"margin": 0.3, "only_violating": True}, "point"),
    (Triplet, {"margin": 1.0, "score": "mls"}, "diagonal"),
    (Contrastive, {}, "point"),
    (Contrastive, {"positive_margin": 0.2, "negative_margin": 2.0, "score": "neg_w2"}, "isotropic"),
    (MultiSimilarity, {}, "point"),
    (MultiSimilarity, {"score": "mls", "threshold": -8.0, "beta": 2.0}, "diagonal"),
    (MultiSimilarity, {"score": "cosine"}, "vmf"),
    (TripletRegression, {"margin": 0.5}, "isotropic"),
    (BayesianTriplet, {}, "isotropic"),
    (BayesianTriplet, {"only_violating": True}, "diagonal"),
    (BayesianTriplet, {"match_moments": True}, "vmf"),
]
OF_TRIPLETS = (Triplet, TripletRegression, BayesianTriplet)
IDS = [f"{loss.__name__} {kind} {' '.join(options)}" for loss, options, kind in OF_KIND]


def items(kind, n=N, seed=0, dtype=torch.float64):
    draws = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, DIM, generator=draws, dtype=dtype))
    return KINDS[kind](mu.requires_grad_(), 1 + torch.rand(n, generator=draws, dtype=dtype))


def value_and_gradient(loss, d, *args, **named):
    value = loss(d, *args, **named)
    leaf = next(x for x in d.arrays if x.requires_grad)
    return value, torch.autograd.grad(value, leaf, retain_graph=True)[0]


@pytest.mark.parametrize("loss, options, kind", OF_KIND, ids=IDS)
def test_all_pairs_that_are_listed_are_those_of_the_batch(loss, options, kind):
    """The pairs of a miner that chooses everything give the loss of the batch itself."""
    own, d = loss(**options), items(kind)
    if loss is MultiSimilarity:
        own.margin = 99.0  # its own miner, which mined pairs have no need of, is to keep all as well
    expected, gradient = value_and_gradient(own, d, LABELS, 0)
    every = [get_all_pairs_indices(LABELS)]
    if loss is not MultiSimilarity:  # each pair of N is in as many triplets
        every.append(get_all_triplets_indices(LABELS))
    for mined in every:
        found, by_found = value_and_gradient(own, d, LABELS, 0, mined=mined)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(by_found, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss, options, kind", OF_KIND, ids=IDS)
def test_a_reference_is_the_other_side_of_all_pairs(loss, options, kind):
    """Of both sets together a miner that chooses only pairs between them gives the loss of a reference."""
    own, d, other = loss(**options), items(kind), items(kind, M, 1)
    found, gradient = value_and_gradient(own, d, LABELS, 0, reference=(other, OTHERS))
    rows, columns = (LABELS[:, None] == OTHERS).nonzero(as_tuple=True)
    apart, others = (LABELS[:, None] != OTHERS).nonzero(as_tuple=True)
    if loss is MultiSimilarity:
        own.margin = 99.0
        found, gradient = value_and_gradient(own, d, LABELS, 0, reference=(other, OTHERS))
    both = pe.concat([d, other])
    mined = rows, columns + N, apart, others + N
    joined = own(both, torch.cat([LABELS, OTHERS]), 0, mined=mined)
    share = N / (N + M) if loss is MultiSimilarity else 1  # which counts anchors without pairs
    torch.testing.assert_close(found * share, joined, rtol=1e-6, atol=1e-9)
    listed, by_listed = value_and_gradient(
        own, d, LABELS, 0, reference=(other, OTHERS), mined=(rows, columns, apart, others)
    )
    torch.testing.assert_close(listed, found, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(by_listed, gradient, rtol=1e-5, atol=1e-7)
    leaf = next(x for x in other.arrays if x.requires_grad)
    assert torch.autograd.grad(own(d, LABELS, 0, reference=(other, OTHERS)), leaf)[0].any()  # another modality learns


@pytest.mark.parametrize("loss, options, kind", OF_KIND, ids=IDS)
def test_what_is_listed_twice_counts_twice(loss, options, kind):
    """As by pytorch-metric-learning, but for MultiSimilarity, which asks which pairs of an anchor there are."""
    own, d = loss(**options), items(kind)
    anchors, positives, negatives = (torch.tensor(x) for x in ([0, 0, 0, 3], [4, 4, 8, 7], [1, 2, 2, 6]))
    pairs = anchors, positives, anchors, negatives
    found, gradient = value_and_gradient(own, d, LABELS, 0, mined=pairs)
    if loss in OF_TRIPLETS:  # an anchor's positives with all of its negatives
        rows = [(a, p, n) for a, p in zip(*pairs[:2], strict=True) for b, n in zip(*pairs[2:], strict=True) if a == b]
        expected = own(d, LABELS, 0, mined=[torch.stack(x) for x in zip(*rows, strict=True)])
    elif loss is MultiSimilarity:
        expected = own(d, LABELS, 0, mined=[x[1:] for x in pairs[:2]] + [x[[0, 1, 3]] for x in pairs[2:]])
    else:
        expected = sum(own(d, LABELS, 0, mined=[x[i : i + 1] for x in pairs]) for i in range(4)) / 4
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    leaf = next(x for x in d.arrays if x.requires_grad)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, leaf)[0], rtol=1e-5, atol=1e-7)


def test_pairs_that_a_miner_chose_are_mined_no_more():
    d, mined = items("point"), get_all_pairs_indices(LABELS)
    strict, lax = (MultiSimilarity(margin=margin)(d, LABELS, mined=mined) for margin in (0.0, 99.0))
    assert strict == lax != MultiSimilarity(margin=0.0)(d, LABELS)


@pytest.mark.parametrize(
    "loss",
    [
        Contrastive(score="sampled_cosine"),
        MultiSimilarity(score="sampled_cosine"),
        Triplet(score="sampled_cosine"),
        HIB(),
    ],
)
@pytest.mark.parametrize("with_reference", [False, True])
def test_draws_of_a_score_are_new_at_every_step_or_those_of_the_seed(loss, with_reference):
    d, reference = items("diagonal"), (items("diagonal", M, 1), OTHERS) if with_reference else None

    def value(seed):
        return loss(d, LABELS, seed, reference=reference).item()

    assert value(1) == value(1) and len({value(seed) for seed in (1, 2, None, None, None)}) == 5


def test_mined_triplets_are_those_of_the_bayesian_triplet_loss():
    d, other = items("diagonal"), items("diagonal", M, 1)
    a, p, n = torch.tensor([0, 0, 5]), torch.tensor([4, 19, 2]), torch.tensor([7, 7, 11])
    found = BayesianTriplet(margin=0.3)(d, LABELS, reference=(other, OTHERS), mined=(a, p, n))
    expected = -pe.triplet_probability(d[a], other[p], other[n], 0.3, log=True).mean()
    torch.testing.assert_close(found, expected)


def test_formulas_by_a_score_and_a_reference_pair_by_pair():
    d, other = items("diagonal"), items("diagonal", M, 1)
    s, same = pe.pairwise(d, other, "mls"), LABELS[:, None] == OTHERS
    hinges = []
    for a, p, n in itertools.product(range(N), range(M), range(M)):
        if same[a, p] and not same[a, n]:
            hinges.append((s[a, n] - s[a, p] + 0.7).clamp(min=0))
    expected = torch.stack(hinges)
    given = {"reference": (other, OTHERS)}
    torch.testing.assert_close(Triplet(margin=0.7, score="mls")(d, LABELS, **given), expected.mean())
    violating = Triplet(margin=0.7, score="mls", only_violating=True)(d, LABELS, **given)
    torch.testing.assert_close(violating, expected[expected > 0].mean())
    contrastive = Contrastive(positive_margin=1.0, negative_margin=9.0, score="mls")(d, LABELS, **given)
    near, far = (-s[same] - 1).clamp(min=0).mean(), (9 + s[~same]).clamp(min=0).mean()
    torch.testing.assert_close(contrastive, near + far)
    torch.testing.assert_close(NegativeMLS()(d, LABELS, **given), -s[same].mean())


# -- against pytorch-metric-learning -----------------------------------------------------------------------------------

PEERS = [
    (
        Contrastive(positive_margin=0.2, negative_margin=1.3),
        theirs.ContrastiveLoss(0.2, 1.3, distance=LpDistance(), reducer=None),
        "mean over pairs above 0",
    ),
    (Triplet(margin=0.2, only_violating=True), theirs.TripletMarginLoss(0.2, distance=LpDistance(power=2)), ""),
    (MultiSimilarity(margin=99.0), theirs.MultiSimilarityLoss(2, 40, 0.5, distance=CosineSimilarity()), ""),
]


@pytest.mark.parametrize("own, peer, differs", PEERS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("with_reference", [False, True])
def test_mined_losses_are_those_of_pytorch_metric_learning(own, peer, differs, with_reference):
    d, other = items("point"), items("point", M, 1)
    given = {"ref_emb": other.mu, "ref_labels": OTHERS} if with_reference else {}
    ours = {"reference": (other, OTHERS)} if with_reference else {}
    miner = miners.TripletMarginMiner(margin=0.5) if isinstance(own, Triplet) else miners.MultiSimilarityMiner(0.3)
    mined = miner(d.mu, LABELS, **given)
    assert len(mined) in (3, 4) and len(mined[0]) > 0
    found = own(d, LABELS, mined=mined, **ours)
    if differs:  # theirs leaves out the pairs whose hinge is 0
        squares = pe.pairwise(
            *(pe.Point(torch.nn.functional.normalize(x)) for x in (d.mu, (other if ours else d).mu)), "neg_sq_l2"
        )
        apart = (-squares).clamp(min=1e-300).sqrt()
        near, far = (apart[mined[0], mined[1]] - 0.2).clamp(min=0), (1.3 - apart[mined[2], mined[3]]).clamp(min=0)
        torch.testing.assert_close(found, near.mean() + far.mean())
        expected = sum(x[x > 0].mean() for x in (near, far))
    else:
        expected = found
    torch.testing.assert_close(peer(d.mu, LABELS, mined, **given), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "kind, score",
    [
        ("isotropic", "mls"),
        ("diagonal", "llr:prior_var=1"),
        ("vmf", "ppk"),
        ("point", "neg_sq_l2"),
        ("scaled", "scale_cosine"),
    ],
)
def test_a_score_is_a_distance_of_pytorch_metric_learning(kind, score):
    d, other = items(kind), items(kind, M, 1)
    distance = ScoreDistance(score, d.kind)
    rows, of_other = distance.rows(d), distance.rows(other)
    again = distance.distributions(rows)
    assert again.kind == d.kind and all(map(torch.equal, again.arrays, d.arrays))
    expected = pe.pairwise(d, other, score)
    torch.testing.assert_close(distance(rows, of_other), expected)
    torch.testing.assert_close(distance.pairwise_distance(rows, of_other[:N]), pe.paired(d, other[:N], score))
    mined = miners.BatchHardMiner(distance=distance)(rows, LABELS)
    for a, p, n in zip(*mined, strict=True):
        s = pe.pairwise(d, d, score)[a]
        same = (LABELS[a] == LABELS) & (torch.arange(N) != a)
        assert s[p] == s[same].min() and s[n] == s[LABELS[a] != LABELS].max()
    loss = theirs.TripletMarginLoss(0.7, distance=distance)(rows, LABELS)
    ours = Triplet(margin=0.7, score=score, only_violating=True)(d, LABELS)
    torch.testing.assert_close(loss, ours, rtol=1e-6, atol=1e-9)
    memory = theirs.CrossBatchMemory(theirs.TripletMarginLoss(0.7, distance=distance), rows.shape[1], 16)
    for step in range(3):
        memory(distance.rows(items(kind, N, step, torch.float32)), LABELS).backward()


def test_what_is_no_distance_is_refused():
    with pytest.raises(ValueError, match=r"ScoreDistance: unknown kind 'normal'; did you mean 'normal_"):
        ScoreDistance("mls", "normal")
    with pytest.raises(TypeError, match="ScoreDistance: nivmf does not take vmf with itself"):
        ScoreDistance("nivmf", "vmf")
    distance = ScoreDistance("mls", "normal_diagonal")
    with pytest.raises(TypeError, match=r"ScoreDistance: d is .*expected a normal_diagonal with tensors"):
        distance.rows(items("isotropic"))
    with pytest.raises(ValueError, match="rows have 7 columns, expected an even number of normal_diagonal"):
        distance(torch.zeros(2, 7))


# -- what is refused, and what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss, options, kind", OF_KIND, ids=IDS)
def test_a_memory_without_pairs_of_a_kind_is_no_error(loss, options, kind):
    """A memory begins with few items, of which none may be of the batch's classes."""
    d, other, own = items(kind), items(kind, M, 1), loss(**options)
    for labels in (OTHERS + 50, torch.zeros_like(OTHERS)):
        value, gradient = value_and_gradient(
            own, d, labels[:N] if labels[0] == 0 else LABELS, 0, reference=(other, labels)
        )
        assert value.isfinite() and gradient.isfinite().all()
    none = torch.zeros(0, dtype=torch.int64)
    for mined in ((none, none, none), (none, none, none, none)):
        value, gradient = value_and_gradient(own, d, LABELS, 0, mined=mined)
        assert value == 0 and not gradient.any()
    half = type(d)(*(x.to(torch.bfloat16) for x in d.arrays))
    kept = type(d)(*(x.detach().float() for x in other.arrays))
    assert own(half, LABELS, 0, reference=(kept, OTHERS)).dtype == torch.float32


@pytest.mark.parametrize(
    "named, error, message",
    [
        ({"reference": 3}, TypeError, "reference is int, expected (distributions, labels)"),
        ({"reference": (torch.zeros(2, 6), OTHERS)}, TypeError, "reference is Tensor, expected a distribution"),
        (
            {"reference": (items("point", M), OTHERS[1:])},
            ValueError,
            "labels of reference are torch.int64 of shape (19,)",
        ),
        ({"reference": (items("isotropic", M), OTHERS)}, TypeError, "expected a point like d"),
        (
            {"reference": (items("point", M).truncate(4), OTHERS)},
            ValueError,
            "dim of reference is 4, expected 6 like d",
        ),
        ({"mined": 3}, ValueError, "mined is int, expected (anchors, positives, negatives) or (anchors, pos"),
        ({"mined": (LABELS,)}, ValueError, "mined is 1 tensors, expected"),
        ({"mined": (LABELS, LABELS, LABELS + 9)}, ValueError, "mined names rows 9 .. 12, expected 0 .. 11"),
        (
            {"mined": (LABELS, LABELS[1:], LABELS)},
            ValueError,
            "mined holds torch.int64 of shape (11,), expected int64 of",
        ),
        ({"mined": (LABELS, LABELS, LABELS.float())}, ValueError, "mined holds torch.float32 of shape (12,), expected"),
    ],
)
def test_what_cannot_be_compared_is_refused(named, error, message):
    with pytest.raises(error, match=re.escape(message)) as raised:
        Contrastive()(items("point"), LABELS, **named)
    assert str(raised.value).startswith("Contrastive: ")


def test_settings_by_a_score():
    with pytest.raises(
        ValueError, match=r"Contrastive: positive_margin is 3.0, negative_margin 1.0, expected positive_"
    ):
        Contrastive(positive_margin=3.0, score="mls")
    with pytest.raises(ValueError, match="MultiSimilarity: threshold is inf, expected a finite number"):
        MultiSimilarity(threshold=float("inf"), score="mls")
    with pytest.raises(ValueError, match="unknown score 'mlx'"):
        Triplet(score="mlx")
    for loss in (Contrastive(score="mls"), MultiSimilarity(score="mls"), Triplet(score="mls")):
        with pytest.raises(ValueError, match="labels are all equal, expected at least two classes"):
            loss(items("diagonal"), LABELS * 0)
        with pytest.raises(TypeError, match="mls"):
            loss(items("point"), LABELS)


@pytest.mark.parametrize("loss, options, kind", OF_KIND, ids=IDS)
def test_losses_of_a_reference_do_not_wait_for_labels_when_compiled(loss, options, kind):
    torch._dynamo.reset()
    own, d, other = loss(**options), items(kind).detach(), items(kind, M, 1).detach()
    compiled = torch.compile(lambda *x: own(d, x[0], 0, reference=(other, x[1])), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(LABELS, OTHERS), own(d, LABELS, 0, reference=(other, OTHERS)))
