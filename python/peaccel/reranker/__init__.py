"""FAISS as the first stage of a search whose second is a score of distributions."""

from peaccel.reranker.inner_product_features import FirstStageReference, first_stage_features, first_stage_reference
from peaccel.reranker.reranker import FaissReranker

__all__ = ["FaissReranker", "FirstStageReference", "first_stage_features", "first_stage_reference"]
