"""FAISS as the first stage of a search whose second is a score of distributions."""

from peaccel.retrieval.faiss.faiss_reranker import FaissReranker
from peaccel.retrieval.faiss.first_stage_features import (
    FirstStageReference,
    first_stage_features,
    first_stage_reference,
)

__all__ = ["FaissReranker", "FirstStageReference", "first_stage_features", "first_stage_reference"]
