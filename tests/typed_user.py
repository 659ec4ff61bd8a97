"""Types that mypy --strict and pyright see: of arrays come arrays, of tensors tensors.

Nothing of it is run. `assert_type` refuses Any, which nothing public is where the kind of array is known.
"""

from typing import Any, Protocol, assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import peaccel as pe
from peaccel.fits.saved_fit import SavedFit

Floats = NDArray[np.float32]
Numpy = np.ndarray[Any, Any]  # shapes and dtypes are not followed


# -- numpy -------------------------------------------------------------------------------------------------------------


def distributions_of_arrays(mu: Floats, one: Floats) -> None:
    d, vmf = pe.Normal(mu, one), pe.VonMisesFisher(mu, kappa=one)
    assert_type(d, pe.Normal[Numpy])
    assert_type(pe.Normal(mu, var=0.5), pe.Normal[Numpy])
    assert_type(vmf, pe.VonMisesFisher[Numpy])
    assert_type(pe.NonIsotropicVonMisesFisher(mu, mu), pe.NonIsotropicVonMisesFisher[Numpy])
    assert_type(pe.Scaled(mu, one), pe.Scaled[Numpy])
    assert_type(pe.Point(mu), pe.Point[Numpy])
    assert_type(pe.concat([d, d]), pe.Normal[Numpy])
    assert_type(d[:3], pe.Normal[Numpy])
    assert_type(d.to("float16").detach().validate(), pe.Normal[Numpy])
    assert_type(d.arrays, tuple[Numpy, ...])
    assert_type(d.mu, Numpy)
    assert_type(d.var, Numpy)
    assert_type(vmf.kappa, Numpy)
    assert_type(pe.Scaled(mu, one).scale, Numpy)


def verbs_of_arrays(d: pe.Normal[Numpy], rows: NDArray[np.int64]) -> None:
    assert_type(pe.paired(d, d), Numpy)
    assert_type(pe.pairwise(d, d), Numpy)
    assert_type(pe.pairwise(pe.Point(d.mu), d, pe.scores.llr(prior_var=0.5)), Numpy)
    assert_type(pe.rescore(d, d, rows), Numpy)
    assert_type(pe.rerank(d, d, rows, k=2), pe.Ranking[Numpy])
    assert_type(pe.search(d, d, k=2), pe.Ranking[Numpy])
    assert_type(pe.search(d, [d, d], k=2), pe.Ranking[Numpy])
    assert_type(pe.search_above(d, d, 0.5), pe.RankingAbove[Numpy])
    exclude = pe.exclude_same({"camera": [1, 2]}, {"camera": [2, 1]})
    assert_type(exclude, pe.Exclusions)
    assert_type(pe.search(d, d, k=2, exclude=exclude, allowed=[0]), pe.Ranking[Numpy])
    assert_type(pe.duplicates(d, 0.5).queries, Numpy)
    prepared = pe.prepare(d, "mls")
    assert_type(prepared, pe.Prepared[Numpy])
    assert_type(prepared.distribution, pe.Distribution[Numpy])
    assert_type(prepared.mu, Numpy)
    assert_type(pe.pairwise(d, prepared), Numpy)
    ranking = pe.search(d, prepared, k=2)
    assert_type(pe.merge([ranking, ranking], k=2, offsets=[0, 3]), pe.Ranking[Numpy])
    assert_type(pe.answer_confidence(ranking, "class_margin", rows), Numpy)
    assert_type(pe.normalise_scores(ranking, queries=d.mu), pe.Ranking[Numpy])
    assert_type(pe.normalise_scores(d.mu, gallery=d.mu), Numpy)
    assert_type(pe.normalise_scores(d.mu, gallery=d.mu, pairs=d.mu), Numpy)
    assert_type(pe.score_trials(d, ["a", "b"], ["a"], ["b"]), NDArray[np.float64])
    scores, ids = ranking
    assert_type(scores, Numpy)
    assert_type(ids, Numpy)
    assert_type(ranking.ids, Numpy)
    assert_type(ranking.scored, float | None)
    reranker = pe.FaissReranker.build(d, "Flat")
    assert_type(reranker, pe.FaissReranker[Numpy])
    assert_type(reranker.search(d, k=2), pe.Ranking[Numpy])
    assert_type(reranker.search_above(d, 0.5), pe.RankingAbove[Numpy])
    assert_type(reranker.gallery, pe.Distribution[Numpy])
    assert_type(reranker.ids, Numpy)


def measures_of_arrays(
    d: pe.Normal[Numpy], vmf: pe.VonMisesFisher[Numpy], labels: NDArray[np.int64], flags: NDArray[np.int64]
) -> None:
    assert_type(pe.log_prob(d, d.mu), Numpy)
    assert_type(pe.entropy(d), Numpy)
    assert_type(pe.confidence(vmf), Numpy)
    assert_type(pe.kl(vmf, vmf), Numpy)
    assert_type(pe.match_variance(d, d), Numpy)
    assert_type(pe.sample(d, 3), Numpy)
    assert_type(pe.triplet_probability(d, d, d), Numpy)
    assert_type(pe.special.log_iv(3, vmf.kappa), Numpy)
    assert_type(pe.special.log_ive(3, vmf.kappa), Numpy)
    assert_type(pe.special.iv_ratio(3, vmf.kappa), Numpy)
    assert_type(pe.special.vmf_log_norm(3, vmf.kappa), Numpy)
    assert_type(pe.special.log_ndtr(vmf.kappa), Numpy)
    assert_type(pe.fuse(vmf, labels), pe.VonMisesFisher[Numpy])
    assert_type(pe.fuse(vmf, labels, names=True), tuple[pe.VonMisesFisher[Numpy], Numpy])
    assert_type(pe.fit_vmf(vmf.mu, groups=labels), pe.VonMisesFisher[Numpy])
    assert_type(pe.fit_plda(d.mu, labels).transform(d.mu), pe.Normal[Numpy])
    assert_type(pe.fit_plda(pe.Point(d.mu), labels).transform(d), pe.Normal[Numpy])
    prior = pe.fit_prior(d, labels)
    assert_type(prior, pe.Prior[Numpy])
    assert_type(prior.mean, Numpy)
    assert_type(prior.var, float | Numpy)
    assert_type(pe.fit_prior(d, d, labels, labels), pe.Prior[Numpy])
    calibration = pe.calibrate_variance(d, labels, flags)
    assert_type(calibration, pe.Calibration)
    assert_type(calibration(d), pe.Normal[Numpy])
    assert_type(pe.calibrate_variance(d, d, labels, flags), tuple[pe.Calibration, pe.Calibration])
    assert_type(pe.fit_shift(d, labels, flags), float)
    assert_type(pe.fit_quality(pe.confidence(d)), pe.Quality)
    centre = pe.fit_centre(d, d, whiten=True)
    assert_type(centre, pe.Centre)
    assert_type(centre.of_queries(d), pe.Normal[Numpy])
    assert_type(pe.first_stage_reference(d), pe.FirstStageReference)
    assert_type(
        pe.first_stage_features(d, "mls", "query", pe.first_stage_reference(d)), np.ndarray[Any, np.dtype[np.float32]]
    )


def decisions_of_arrays(ranking: pe.Ranking[Numpy], scores: Floats, flags: NDArray[np.int64]) -> None:
    assert_type(pe.fit_match_probability(scores, flags)(scores), Numpy)
    curve = pe.reliability_curve(scores, flags)
    assert_type(curve, pe.ReliabilityCurve)
    assert_type(curve.predicted, Numpy)
    assert_type(curve.observed, Numpy)
    assert_type(curve.count, Numpy)
    selection = pe.learn_then_test(scores, flags, flags, alpha=0.1)
    assert_type(pe.learn_then_test(scores, flags, flags, 0.1, within=flags), dict[str, pe.Selection])
    limit = pe.limit_false_matches(scores, alpha=0.01)
    assert_type(selection.threshold, float)
    assert_type(selection(ranking), pe.Ranking[Numpy])
    assert_type(limit(scores), Numpy)
    assert_type(limit.select(ranking, confidence=scores), pe.Ranking[Numpy])
    assert_type(pe.conformal_sets(scores, flags, flags, alpha=0.1)(ranking), pe.Ranking[Numpy])
    assert_type(pe.choose_pair_threshold(scores, flags), pe.ThresholdChoice)


# -- torch -------------------------------------------------------------------------------------------------------------


def distributions_of_tensors(mu: Tensor, one: Tensor) -> None:
    d, vmf = pe.Normal(mu, one), pe.VonMisesFisher(mu, kappa=one)
    assert_type(d, pe.Normal[Tensor])
    assert_type(pe.Normal(mu, var=0.5), pe.Normal[Tensor])
    assert_type(vmf, pe.VonMisesFisher[Tensor])
    assert_type(pe.NonIsotropicVonMisesFisher(mu, mu), pe.NonIsotropicVonMisesFisher[Tensor])
    assert_type(pe.Scaled(mu, one), pe.Scaled[Tensor])
    assert_type(pe.Point(mu), pe.Point[Tensor])
    assert_type(pe.concat([d, d]), pe.Normal[Tensor])
    assert_type(d[:3], pe.Normal[Tensor])
    assert_type(d.to("float16").detach().validate(), pe.Normal[Tensor])
    assert_type(d.arrays, tuple[Tensor, ...])
    assert_type(d.mu, Tensor)
    assert_type(d.var, Tensor)
    assert_type(vmf.kappa, Tensor)
    assert_type(pe.Scaled(mu, one).scale, Tensor)


def verbs_of_tensors(d: pe.Normal[Tensor], rows: Tensor) -> None:
    assert_type(pe.paired(d, d), Tensor)
    assert_type(pe.pairwise(d, d), Tensor)
    assert_type(pe.pairwise(pe.Point(d.mu), d, pe.scores.llr(prior_var=0.5)), Tensor)
    assert_type(pe.rescore(d, d, rows), Tensor)
    assert_type(pe.rerank(d, d, rows, k=2), pe.Ranking[Tensor])
    assert_type(pe.search(d, d, k=2), pe.Ranking[Tensor])
    assert_type(pe.search(d, [d, d], k=2), pe.Ranking[Tensor])
    assert_type(pe.search_above(d, d, 0.5), pe.RankingAbove[Tensor])
    assert_type(pe.duplicates(d, 0.5).queries, Tensor)
    clusters = pe.cluster(d, 0.5)
    assert_type(clusters, pe.Clusters)
    assert_type(clusters.add(d).labels, NDArray[np.int64])
    assert_type(clusters.pairs_to_check(), tuple[NDArray[np.int64], NDArray[np.float64]])
    prepared = pe.prepare(d, "mls")
    assert_type(prepared, pe.Prepared[Tensor])
    assert_type(prepared.distribution, pe.Distribution[Tensor])
    assert_type(prepared.mu, Tensor)
    assert_type(pe.pairwise(d, prepared), Tensor)
    ranking = pe.search(d, prepared, k=2)
    assert_type(pe.merge([ranking, ranking], k=2, offsets=[0, 3]), pe.Ranking[Tensor])
    assert_type(pe.answer_confidence(ranking, "class_margin", rows), Numpy)
    assert_type(pe.normalise_scores(ranking, queries=d.mu), pe.Ranking[Tensor])
    assert_type(pe.normalise_scores(d.mu, gallery=d.mu), Tensor)
    scores, ids = ranking
    assert_type(scores, Tensor)
    assert_type(ids, Tensor)
    assert_type(ranking.ids, Tensor)
    assert_type(ranking.scored, float | None)
    reranker = pe.FaissReranker.build(d, "Flat")
    assert_type(reranker, pe.FaissReranker[Tensor])
    assert_type(reranker.search(d, k=2), pe.Ranking[Tensor])
    assert_type(reranker.search_above(d, 0.5), pe.RankingAbove[Tensor])
    assert_type(reranker.gallery, pe.Distribution[Tensor])
    assert_type(reranker.ids, Numpy)


def measures_of_tensors(d: pe.Normal[Tensor], vmf: pe.VonMisesFisher[Tensor], labels: Tensor, flags: Tensor) -> None:
    assert_type(pe.log_prob(d, d.mu), Tensor)
    assert_type(pe.entropy(d), Tensor)
    assert_type(pe.confidence(vmf), Tensor)
    assert_type(pe.kl(vmf, vmf), Tensor)
    assert_type(pe.match_variance(d, d), Tensor)
    assert_type(pe.sample(d, 3), Tensor)
    assert_type(pe.triplet_probability(d, d, d), Tensor)
    assert_type(pe.special.log_iv(3, vmf.kappa), Tensor)
    assert_type(pe.special.log_ive(3, vmf.kappa), Tensor)
    assert_type(pe.special.iv_ratio(3, vmf.kappa), Tensor)
    assert_type(pe.special.vmf_log_norm(3, vmf.kappa), Tensor)
    assert_type(pe.special.log_ndtr(vmf.kappa), Tensor)
    assert_type(pe.fuse(vmf, labels), pe.VonMisesFisher[Tensor])
    assert_type(pe.fit_vmf(vmf.mu, groups=labels), pe.VonMisesFisher[Tensor])
    assert_type(pe.fit_vmf(vmf.mu, groups=labels, names=True), tuple[pe.VonMisesFisher[Tensor], Numpy])
    assert_type(pe.fit_plda(d.mu, labels).transform(d.mu), pe.Normal[Tensor])
    assert_type(pe.fit_plda(pe.Point(d.mu), labels).transform(d), pe.Normal[Tensor])
    prior = pe.fit_prior(d, labels)
    assert_type(prior, pe.Prior[Tensor])
    assert_type(prior.mean, Tensor)
    assert_type(prior.var, float | Tensor)
    assert_type(pe.fit_prior(d, d, labels, labels), pe.Prior[Tensor])
    calibration = pe.calibrate_variance(d, labels, flags)
    assert_type(calibration, pe.Calibration)
    assert_type(calibration(d), pe.Normal[Tensor])
    assert_type(pe.calibrate_variance(d, d, labels, flags), tuple[pe.Calibration, pe.Calibration])
    assert_type(pe.fit_shift(d, labels, flags), float)
    centre = pe.fit_centre(d, d, whiten=True)
    assert_type(centre, pe.Centre)
    assert_type(centre.of_queries(d), pe.Normal[Tensor])
    assert_type(pe.first_stage_reference(d), pe.FirstStageReference)
    assert_type(
        pe.first_stage_features(d, "mls", "query", pe.first_stage_reference(d)), np.ndarray[Any, np.dtype[np.float32]]
    )


def decisions_of_tensors(ranking: pe.Ranking[Tensor], scores: Tensor, flags: Tensor) -> None:
    assert_type(pe.fit_match_probability(scores, flags)(scores), Numpy)
    curve = pe.reliability_curve(scores, flags)
    assert_type(curve, pe.ReliabilityCurve)
    assert_type(curve.predicted, Numpy)
    assert_type(curve.observed, Numpy)
    assert_type(curve.count, Numpy)
    selection = pe.learn_then_test(scores, flags, flags, alpha=0.1)
    limit = pe.limit_false_matches(scores, alpha=0.01)
    assert_type(selection.threshold, float)
    assert_type(selection(ranking), pe.Ranking[Tensor])
    assert_type(limit(scores), Numpy)
    assert_type(limit.select(ranking, confidence=scores), pe.Ranking[Tensor])
    assert_type(pe.conformal_sets(scores, flags, flags, alpha=0.1)(ranking), pe.Ranking[Tensor])
    assert_type(pe.choose_pair_threshold(scores, flags), pe.ThresholdChoice)


# -- either ------------------------------------------------------------------------------------------------------------


def of_lists() -> None:
    assert_type(pe.Normal([[0.0, 1.0]], var=[0.1]), pe.Normal[Numpy])
    assert_type(pe.Normal([[0.0, 1.0]], var=np.float32(0.1)), pe.Normal[Numpy])
    assert_type(pe.VonMisesFisher([[0.0, 1.0]], kappa=3), pe.VonMisesFisher[Numpy])
    assert_type(pe.NonIsotropicVonMisesFisher([[0.0, 1.0]], kappa=[[1.0, 3.0]]), pe.NonIsotropicVonMisesFisher[Numpy])
    assert_type(pe.Scaled([[0.0, 1.0]], scale=3), pe.Scaled[Numpy])
    assert_type(pe.Point([[0.0, 1.0]]), pe.Point[Numpy])
    assert_type(pe.entropy(pe.Normal([[0.0, 1.0]], var=[0.1])), Numpy)
    assert_type(pe.special.log_ive(3, [1.0, 2.0]), Numpy)
    assert_type(pe.special.log_ive(3, 1.0), np.float64)
    assert_type(pe.fit_vmf([[0.0, 1.0]]), pe.VonMisesFisher[Numpy])
    assert_type(pe.Plda([[0.0]], [[[1.0]]], [1.0]).psi, Numpy)


class Column(Protocol):
    def to_numpy(self) -> NDArray[Any]: ...
    def __array__(self) -> NDArray[Any]: ...


def of_a_data_frame(column: Column) -> None:
    assert_type(pe.Normal(column, var=column), pe.Normal[Numpy])


def of_either(d: pe.Distribution, ranking: pe.Ranking) -> int:
    return len(d) + len(ranking.ids)


def of_what_is_any(x: Any, d: pe.Normal[Tensor]) -> pe.Normal[Tensor]:
    """Such as what a torch module returns."""
    pe.paired(d, pe.Normal(x, 0.5))
    return pe.Normal(x, x)


def mixed(x: Tensor, other: Floats) -> None:
    pe.Normal(x, other)  # type: ignore
    pe.search(pe.Point(x), pe.Point(other), k=5)  # type: ignore


# -- files and results, which are numpy's whatever the items are -------------------------------------------------------


def files(d: pe.Normal[Tensor]) -> None:
    assert_type(pe.io.read_distribution("d.npz"), pe.Distribution[Numpy])
    for block in pe.io.read_blocks("mu.npy", rows=100):
        assert_type(block, pe.Distribution[Numpy])
    for block in pe.io.arrow_blocks("table"):
        assert_type(block, pe.Distribution[Numpy])
    assert_type(pe.io.from_arrow("table"), pe.Distribution[Numpy])
    assert_type(pe.io.from_arrow("table", ids="id"), tuple[pe.Distribution[Numpy], Numpy])
    assert_type(pe.io.from_pfe(d.mu, d.var), pe.Normal[Numpy])
    assert_type(pe.io.from_pcmepp(d.mu, d.var), pe.Normal[Numpy])
    assert_type(pe.io.from_prolip(d.mu, d.var), pe.Normal[Numpy])
    assert_type(pe.io.from_url(d.mu, d.var), pe.VonMisesFisher[Numpy])
    assert_type(pe.io.from_norms(d.mu), pe.VonMisesFisher[Numpy])
    assert_type(pe.io.from_ensemble([d.mu, d.mu]), pe.Normal[Numpy])
    assert_type(pe.io.from_ensemble([d.mu, d.mu], "vmf"), pe.VonMisesFisher[Numpy])
    assert_type(pe.io.read_plda("plda"), pe.Plda)
    assert_type(pe.io.read_plda("plda").matrices, tuple[Numpy, ...])
    assert_type(pe.io.read_fit("prior.json"), pe.Prior[Numpy] | SavedFit | float)
    assert_type(pe.io.read_candidates("candidates.npy"), NDArray[Any])
    assert_type(pe.io.read_ranking("ranking.npz"), tuple[NDArray[Any], NDArray[Any]])


def fits(
    p: pe.LogisticProbability, q: pe.IsotonicProbability, sets: pe.ConformalSets, limit: pe.FalseMatchLimit
) -> None:
    assert_type(p([0.5], prior=0.01), Numpy)
    assert_type(q.log_likelihood_ratio([0.5]), Numpy)
    assert_type((sets.gap, limit.alpha), tuple[float, float])


def galleries(d: pe.Normal[Numpy]) -> None:
    gallery = pe.Gallery.open("gallery")
    assert_type(gallery.search(d, k=2), pe.Ranking[Numpy])
    assert_type(gallery.search(d, k=2), pe.Ranking[Numpy])
    assert_type(gallery.search_above(d, 0.5), pe.RankingAbove[Numpy])
    assert_type(gallery.rerank(d, [[1]], k=2), pe.Ranking[Numpy])
    assert_type(gallery.rescore(d, [[1]]), Numpy)
    assert_type(gallery.like, pe.Distribution[Numpy])
    assert_type(gallery.info()["items"], int)
    assert_type(pe.build_info()["threads"], int)


def evaluation(d: pe.Normal[Tensor], labels: Tensor) -> None:
    found = pe.evaluate(d, None, labels)
    assert_type(found, pe.Evaluation)
    assert_type(found.scores[0].recall_at_1.value, float)
    assert_type(found.confidences[0].curve, tuple[float, ...])
    assert_type(found.sentence(), str)
    ranked = pe.choose_score(d, labels)
    assert_type(ranked, pe.ScoreChoice)
    assert_type(ranked.best.score, str)
    choice = pe.choose_threshold(d, None, labels)
    assert_type(choice, pe.ThresholdChoice)
    assert_type(choice.accept, pe.Threshold | None)
    pe.plot.risk_coverage(choice)
    models = pe.compare({"one": d.mu[:, 0], "other": [1.0, 0.0]})
    assert_type(models, pe.ModelComparison)
    assert_type(models.to_latex(), str)
    plan = pe.answers_to_check(d.mu[:, 0], {0: True})
    assert_type(plan, pe.AnswersToCheck)
    assert_type(plan.accept, pe.Selection | None)
    if plan.accept is not None:
        monitor = pe.PromiseMonitor(plan.accept, pe.search(d, d, k=2))
        monitor.audit([True, False])
        monitor.traffic({"score": d.mu[:, 0]})
        assert_type(monitor.state(), pe.WatchedPromise)
        assert_type(monitor.audits_per_week(0.06), int)
    assert_type(pe.audit(d, labels), pe.GalleryAudit)
    ids = pe.search(d, d, k=10).ids
    assert_type(pe.metrics.recall_at_k(ids, labels), float)
    assert_type(pe.metrics.hit_at_k(ids, labels), NDArray[np.float64])
    assert_type(pe.metrics.roc_auc(d.var, labels), float)
    assert_type(pe.metrics.tar_at_far(d.var, labels, far=0.01).tar, float)
    assert_type(pe.metrics.rejection_area(d.var, d.var, "nauc"), float)
    assert_type(pe.metrics.novelty_detection(d.var, d.var).known, NDArray[np.int64])
    assert_type(pe.metrics.calibration_error(d.var, d.var).ece, float)


def torch_distributions(x: Tensor) -> None:
    law = pe.torch_distributions.VonMisesFisher(x, x)
    assert_type(law.rsample(), Tensor)
    assert_type(law.log_prob(x), Tensor)
    assert_type(law.entropy(), Tensor)
    assert_type(law.mean, Tensor)
    assert_type(law.expand(x.shape), pe.torch_distributions.VonMisesFisher)


def shared(folder: str) -> None:
    found = pe.hub.Pretrained.from_pretrained(folder)
    assert_type(found, pe.hub.Pretrained)
    assert_type(found.score, str | pe.scores.Score | None)


def scores() -> None:
    assert_type(pe.scores.mls, pe.scores.Score)
    assert_type(pe.scores.ppk(rho=0.5), pe.scores.Score)
    assert_type(pe.scores.get("ppk:rho=0.5").name, str)
