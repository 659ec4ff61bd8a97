"""Results of `pe.evaluate`, as numbers and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from peaccel.evaluation.columns import Column, table
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text, number, percent
from peaccel.evaluation.intervals import Interval, TooFew, compared, plainly
from peaccel.evaluation.pair_rates import PairRates, not_calibrated
from peaccel.metrics.retrieval import average_precision_at_r, hit_at_k

__all__ = ["ConfidenceResult", "Evaluation", "OpenSetResult", "ScoreResult"]

_FPIR = partial(percent, digits=2)


@dataclass(frozen=True)
class ScoreResult(PairRates):
    """How well queries are answered where a score ranks the whole gallery, and the rates of verification pairs.

    Detection costs are at ``Evaluation.p_target``.
    """

    score: Annotated[str, Column("score")]
    recall_at_1: Annotated[
        Interval,
        Column("Recall@1 %", "share of queries whose best item is right; higher is better.", metric=hit_at_k),
    ]
    recall_at_k: Annotated[
        Mapping[str, float],
        Column("R@{} %", "share of queries with a right item among the first k; higher is better.", percent),
    ]
    """Recall by k, which is text, as it must be in JSON."""
    map_at_r: Annotated[
        Interval,
        Column(
            "MAP@R %",
            "average precision among as many items as are right for the query; higher is better.",
            metric=average_precision_at_r,
        ),
    ]
    metrics: Annotated[Mapping[str, Interval], Column("{}", show=plainly)]
    """The means of the metrics that the caller gave, by name."""
    gain_at_1: Annotated[
        Interval,
        Column("gain R@1", "Recall@1 less that of the first score, query by query; above 0 is better than it."),
    ]
    """Gain of Recall@1 over the first score, query by query; 0 for the first score itself."""
    precision_recall_at_1: Annotated[
        float,
        Column(
            "Pr-Re@1",
            "area under precision and recall where queries whose best item scores low are not answered, at most "
            "Recall@1; higher is better.",
            number,
        ),
    ]
    """Area under precision and recall where queries whose best item scores low are not answered."""
    best_auroc: Annotated[
        Interval,
        Column(
            "AUROC of best %",
            "how probably a query that the score answers rightly has a higher best score than one that it answers "
            "wrongly: the confidence that costs nothing; 50: it says nothing, higher is better.",
        ),
    ]
    """Probability that the best item of a query answered rightly scores higher than that of one answered wrongly."""
    best_auroc_gain: Annotated[
        Interval, Column("gain AUROC", "that less the one of the first score, in the same draws; above 0 is better.")
    ]
    """Gain of `best_auroc` over the first score; 0 for the first score itself."""


@dataclass(frozen=True)
class OpenSetResult:
    """How well a score finds the right item for queries that have one, and nothing for novel ones.

    A query finds its best item where the score is at least a threshold: the lowest at which at most a given share of
    the novel queries is returned anything.
    """

    score: Annotated[str, Column("score")]
    fnir_at_1_percent: Annotated[
        Interval,
        Column(
            "FNIR@FPIR=1% %",
            "share of queries with a right item whose best item is wrong, or scores below the threshold at which at "
            "most 1 % of the novel queries are returned anything; lower is better, and 100 less that is the detection "
            "and identification rate; - where 1 % would be fewer than 10 novel queries.",
        ),
    ]
    """FNIR at rank 1; NaN where 1 % of the novel queries are fewer than 10."""
    attained_fpir_at_1_percent: Annotated[
        float, Column("FPIR of 1% %", "share of the novel queries that is returned anything there in fact.", _FPIR)
    ]
    fnir_at_10_percent: Annotated[Interval, Column("FNIR@FPIR=10% %", "the same for 10 %.")]
    attained_fpir_at_10_percent: Annotated[float, Column("FPIR of 10% %", "the same for 10 %.", _FPIR)]
    curve: tuple[tuple[float, float], ...]
    """(FPIR, FNIR) over falling thresholds, of each FPIR the least FNIR; at most 200 points."""


@dataclass(frozen=True)
class ConfidenceResult:
    """Whether a confidence tells which queries are answered rightly by the first score.

    Of ECE and Brier score, the probability of a right answer is a function of the confidence that never falls, fitted
    to the other classes.
    """

    confidence: Annotated[str, Column("confidence")]
    r_auroc: Annotated[
        Interval,
        Column(
            "AUROC %",
            "how probably a query answered rightly has more confidence than one answered wrongly; 50: it says "
            "nothing, higher is better; too few: fewer than ten answers are wrong, or right.",
        ),
    ]
    """Probability that a query answered rightly has more of it than one that was not."""
    gain: Annotated[
        Interval | None,
        Column(
            "over best score",
            "AUROC less that of the score of the best item, in the same draws: above 0 the confidence tells more than "
            "what every score says anyway.",
        ),
    ]
    """Gain of `r_auroc` over that of the best item's score; None for that score itself."""
    ausc: Annotated[
        Interval,
        Column(
            "AUSC %",
            "mean Recall@1 of the queries that are kept while the least confident are rejected; higher is better.",
        ),
    ]
    """Area under `curve`."""
    aurc: Annotated[
        Interval,
        Column(
            "AURC %",
            "mean share of wrong answers among the most confident queries, over all numbers of them; lower is "
            "better, and what random confidence has is the share of wrong answers.",
        ),
    ]
    """Area under the curve of risk and coverage: mean over n of the share of errors of the n most confident queries."""
    brier: Annotated[
        Interval,
        Column(
            "Brier %",
            "mean squared error of the probability of a right answer, fitted to the confidence of other classes; "
            "lower is better, and what confidence that says nothing has is r (1 - r) at Recall@1 of r.",
        ),
    ]
    """Mean squared error of the probability of a right answer."""
    ece: Annotated[
        Interval,
        Column(
            "ECE %",
            "how far that probability is from the share of right answers, in ten bins of equal count; lower is "
            "better, but confidence that says nothing has about 0 too: whether it tells anything is seen by the "
            "others. Noise only raises it, which its interval takes off: it may lie below.",
        ),
    ]
    """Expected calibration error of that probability, in bins of equal count. A confidence that says nothing has about
    0 too, as the share of right answers is a probability that may be believed: what it tells the other numbers say."""
    spearman: Annotated[
        float | None,
        Column(
            "Spearman",
            "rank correlation of confidence and the quality that was given; from -1 to 1, higher is better.",
            number,
        ),
    ]
    """Rank correlation with the quality of the queries, where it is given."""
    novel_auroc: Annotated[
        float | None,
        Column("novel AUROC", "how probably a query has more confidence than a novel one; higher is better.", number),
    ]
    """Probability that a query has more of it than a novel one, where such are given."""
    calibration: tuple[tuple[float, float, int], ...]
    """For each bin of the ECE: mean probability, Recall@1, number of queries."""
    curve: tuple[float, ...]
    """Recall@1 of the queries that are kept, at each share of ``Evaluation.shares`` rejected."""


@dataclass(frozen=True)
class Evaluation(Exported):
    """Result of `pe.evaluate`; prints as two tables.

    Examples
    --------
    >>> d, labels = pe.Normal(np.eye(4).repeat(2, 0), var=0.1), np.arange(4).repeat(2)
    >>> e = pe.evaluate(d, None, labels, scores=["mls"])
    >>> e.queries, e.classes, e.scores[0].recall_at_1.value
    (8, 4, 1.0)
    """

    queries: int
    gallery: int
    dim: int
    classes: int
    """How many classes the queries have, or clusters, which a `peaccel.metrics.Relevance` names."""
    grouping: str
    """Name of the groups that `classes` counts: classes, or that which a `peaccel.metrics.Relevance` gives them."""
    unanswerable: int
    """How many queries have no right item in the gallery; they are left out of all means."""
    kinds: tuple[str, str]
    """The kinds of queries and of gallery."""
    pairs: tuple[int, int]
    """How many pairs of one class and of two were verified."""
    p_target: float
    """The prior of a pair of one class in detection costs."""
    novel: int
    """How many novel queries there are."""
    novel_classes: int | None
    """How many classes these have; None where their labels are not known: each is drawn by itself for intervals."""
    scores: tuple[ScoreResult, ...]
    open_set: tuple[OpenSetResult, ...]
    """Of each score, where there are novel queries."""
    confidences: tuple[ConfidenceResult, ...]
    shares: tuple[float, ...]
    seed: int

    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""
        first = self.scores[0]
        return {
            "Retrieval and verification": table(
                self.scores, lambda s, name: name in ("gain_at_1", "best_auroc_gain") and s is first
            ),
            **({"Open-set identification": table(self.open_set)} if self.open_set else {}),
            f"Confidence of queries answered by {first.score}": table(self.confidences),
        }

    def summary(self) -> str:
        """Data and protocol of the evaluation, in one sentence."""
        left_out = f", {self.unanswerable} of them without an answer in it" if self.unanswerable else ""
        of_classes = "drawn one by one" if self.novel_classes is None else f"of {self.novel_classes} classes"
        novel = f"; {self.novel} novel queries {of_classes}" if self.novel else ""
        return (
            f"{self.queries} queries of {self.classes} {self.grouping}{left_out}, {self.gallery} gallery items, "
            f"{self.dim} dimensions, {' and '.join(dict.fromkeys(self.kinds))}; {self.pairs[0]} right pairs and "
            f"{self.pairs[1]} wrong ones verified, p_target {self.p_target:g}{novel}; [95 % over {self.grouping}], "
            f"seed {self.seed}"
        )

    def sentence(self) -> str:
        """Sentence on the gain of a confidence. It compares the AUROC of right answers with that of the best item's
        score, which costs nothing.
        """
        first, by_name = self.scores[0], {c.confidence: c for c in self.confidences}
        said = [f"As a confidence, the best score by {first.score} has an AUROC of {first.best_auroc} %, at no cost."]
        if isinstance(first.best_auroc, TooFew):
            few = "Too few answers are wrong, or right, to say whether a confidence tells one from the other."
            return " ".join([few, *self._of_calibration()])
        if "learned" in by_name and (learned := by_name["learned"]).gain is not None:
            said.append(f"The learned confidence has {learned.r_auroc} %: {compared(learned.gain)}.")
        for s in self.scores[1:]:
            about = f"The best score by {s.score}, in its own answers, has {s.best_auroc} %"
            said.append(f"{about}: {compared(s.best_auroc_gain)}.")
        return " ".join(said + self._of_calibration())

    def _of_calibration(self) -> list[str]:
        """Sentences on scores that are no calibrated log-likelihood ratios, though they are meant to be."""
        return [
            line
            for s in self.scores
            for line in not_calibrated(s.score, None if s.cllr is None else s.cllr.value, s.min_cllr)
        ]

    def __str__(self) -> str:
        """The tables as text."""
        return as_text(f"{self.summary()}\n{self.sentence()}", self.tables())
