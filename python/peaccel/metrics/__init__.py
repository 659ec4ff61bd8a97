"""Metrics, in numpy alone: ids, labels, scores and confidences in, numbers and frozen records out.

scikit-learn and scipy compute what they define as the papers do: `nmi`, `spearman` and `Relevance` need them (the extra
`train`).
"""

from peaccel.metrics import (
    baselines,
    calibration,
    clustering,
    error_detection,
    identification,
    novelty,
    pair_rejection,
    precision_recall,
    quality,
    rejection,
    retrieval,
    verification,
)
from peaccel.metrics._ranking import relevance, without_self
from peaccel.metrics._relation import Relevance
from peaccel.metrics.baselines import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.calibration import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.clustering import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.error_detection import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.identification import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.novelty import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.pair_rejection import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.precision_recall import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.quality import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.rejection import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.retrieval import *  # noqa: F403  (a metric is named in its file alone)
from peaccel.metrics.verification import *  # noqa: F403  (a metric is named in its file alone)

__all__ = ["Relevance", "relevance", "without_self"]
__all__ += baselines.__all__
__all__ += calibration.__all__
__all__ += clustering.__all__
__all__ += error_detection.__all__
__all__ += identification.__all__
__all__ += novelty.__all__
__all__ += pair_rejection.__all__
__all__ += precision_recall.__all__
__all__ += quality.__all__
__all__ += rejection.__all__
__all__ += retrieval.__all__
__all__ += verification.__all__
