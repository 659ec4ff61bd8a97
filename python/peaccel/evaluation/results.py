"""What `pe.evaluate` found, as numbers and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from peaccel._utils.atomic_files import PathLike
from peaccel.evaluation.formatting import Table, as_text, number, percent, save_json
from peaccel.evaluation.intervals import Interval

__all__ = ["COLUMNS", "ConfidenceResult", "Evaluation", "ScoreResult"]

COLUMNS = {
    "Recall@1 %": "share of queries whose best item is right; higher is better.",
    "R@k %": "share of queries with a right item among the first k; higher is better.",
    "MAP@R %": "average precision among as many items as are right for the query; higher is better.",
    "gain R@1": "Recall@1 less that of the first score, query by query; above 0 is better than it.",
    "AUC %": "how probably a pair of one class scores above a pair of two; 50: it says nothing, higher is better.",
    "EER %": "error where as large a share of one class is rejected as is accepted of two; lower is better.",
    "TAR@FAR=0.1% %": "share of pairs of one class that is accepted where 0.1 % of the pairs of two are; higher is "
    "better; - where that would be fewer than 10 pairs.",
    "FAR %": "share of the pairs of two classes that is accepted there in fact.",
    "Pr-Re@1": "area under precision and recall where queries whose best item scores low are not answered, at most "
    "Recall@1; higher is better.",
    "AUROC %": "how probably a query answered rightly has more confidence than one answered wrongly; 50: it says "
    "nothing, higher is better.",
    "AUSC %": "mean Recall@1 of the queries that are kept while the least confident are rejected; higher is better.",
    "AURC %": "mean share of wrong answers among the most confident queries, over all numbers of them; lower is "
    "better, and what random confidence has is the share of wrong answers.",
    "Brier %": "mean squared error of the probability of a right answer, fitted to the confidence of other classes; "
    "lower is better, and what confidence that says nothing has is r (1 - r) at Recall@1 of r.",
    "ECE %": "how far that probability is from the share of right answers, in ten bins of equal count; lower is "
    "better, but confidence that says nothing has about 0 too: whether it tells anything is seen by the others.",
    "Spearman": "rank correlation of confidence and the quality that was given; from -1 to 1, higher is better.",
    "novel AUROC": "how probably a query has more confidence than a novel one; higher is better.",
}
"""What the columns of the tables mean."""


@dataclass(frozen=True)
class ScoreResult:
    """How well queries are answered where a score ranks the whole gallery."""

    score: str
    recall_at_1: Interval
    recall_at_k: Mapping[str, float]
    """Recall by k, which is text, as it must be in JSON."""
    map_at_r: Interval
    gain_at_1: Interval
    """Gain of Recall@1 over the first score, query by query; 0 for the first score itself."""
    roc_auc: Interval
    """ROC AUC of verification pairs, of which the next three are too; NaN without pairs of one class or of two."""
    equal_error_rate: Interval
    tar_at_far: Interval
    """TAR at a FAR of 0.001; NaN where that would be fewer than 10 pairs of two classes."""
    attained_far: float
    """The FAR at the threshold of that TAR."""
    precision_recall_at_1: float
    """Area under precision and recall where queries whose best item scores low are not answered."""


@dataclass(frozen=True)
class ConfidenceResult:
    """Whether a confidence tells which queries are answered rightly by the first score.

    Of ECE and Brier score, the probability of a right answer is a function of the confidence that never falls, fitted
    to the other classes.
    """

    confidence: str
    r_auroc: Interval
    """Probability that a query answered rightly has more of it than one that was not."""
    ausc: Interval
    """Area under `curve`."""
    aurc: Interval
    """Area under the curve of risk and coverage: mean over n of the share of errors of the n most confident queries."""
    brier: Interval
    """Mean squared error of the probability of a right answer."""
    ece: Interval
    """Expected calibration error of that probability, in bins of equal count. A confidence that says nothing has about
    0 too, as the share of right answers is a probability that may be believed: what it tells the other numbers say."""
    spearman: float | None
    """Rank correlation with the quality of the queries, where it is given."""
    novel_auroc: float | None
    """Probability that a query has more of it than a novel one, where such are given."""
    calibration: tuple[tuple[float, float, int], ...]
    """For each bin of the ECE: mean probability, Recall@1, number of queries."""
    curve: tuple[float, ...]
    """Recall@1 of the queries that are kept, at each share of `Evaluation.shares` rejected."""


@dataclass(frozen=True)
class Evaluation:
    """What `pe.evaluate` found; prints as two tables.

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
    """What `classes` counts: classes, or the kind of clusters."""
    unanswerable: int
    """How many queries have no right item in the gallery; they are left out of all means."""
    kinds: tuple[str, str]
    """The kinds of queries and of gallery."""
    pairs: tuple[int, int]
    """How many pairs of one class and of two were verified."""
    scores: tuple[ScoreResult, ...]
    confidences: tuple[ConfidenceResult, ...]
    shares: tuple[float, ...]
    seed: int

    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""
        first = self.scores[0]
        of_scores = [
            {
                "score": s.score,
                "Recall@1 %": str(s.recall_at_1),
                **{f"R@{k} %": percent(value) for k, value in s.recall_at_k.items()},
                "MAP@R %": str(s.map_at_r),
                "gain R@1": "" if s is first else str(s.gain_at_1),
                "AUC %": str(s.roc_auc),
                "EER %": str(s.equal_error_rate),
                "TAR@FAR=0.1% %": str(s.tar_at_far),
                "FAR %": "-" if isnan(s.attained_far) else f"{100 * s.attained_far:.3f}",
                "Pr-Re@1": number(s.precision_recall_at_1),
            }
            for s in self.scores
        ]
        of_confidences = [
            {
                "confidence": c.confidence,
                **{"AUROC %": str(c.r_auroc), "AUSC %": str(c.ausc), "AURC %": str(c.aurc)},
                **{"Brier %": str(c.brier), "ECE %": str(c.ece)},
                **({} if c.spearman is None else {"Spearman": number(c.spearman)}),
                **({} if c.novel_auroc is None else {"novel AUROC": number(c.novel_auroc)}),
            }
            for c in self.confidences
        ]
        return {
            "Retrieval and verification": _table(of_scores),
            f"Confidence of queries answered by {first.score}": _table(of_confidences),
        }

    def summary(self) -> str:
        """What was evaluated, in one sentence."""
        left_out = f", {self.unanswerable} of them without an answer in it" if self.unanswerable else ""
        return (
            f"{self.queries} queries of {self.classes} {self.grouping}{left_out}, {self.gallery} gallery items, "
            f"{self.dim} dimensions, {' and '.join(dict.fromkeys(self.kinds))}; {self.pairs[0]} right pairs and "
            f"{self.pairs[1]} wrong ones verified; [95 % over {self.grouping}], seed {self.seed}"
        )

    def __str__(self) -> str:
        """The tables as text."""
        return as_text(self.summary(), self.tables())

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; NaN becomes null."""
        save_json(path, self)


def _table(rows: list[dict[str, str]]) -> Table:
    return tuple(rows[0]), [tuple(row.values()) for row in rows]
