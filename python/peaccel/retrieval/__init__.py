"""The verbs, which score pairs, rerank candidates and search galleries, and what they stand on."""

from peaccel.retrieval.prepared import Prepared, prepare
from peaccel.retrieval.ranking import Ranking, merge
from peaccel.retrieval.verbs import paired, pairwise, rerank, rescore, search

__all__ = ["Prepared", "Ranking", "merge", "paired", "pairwise", "prepare", "rerank", "rescore", "search"]
