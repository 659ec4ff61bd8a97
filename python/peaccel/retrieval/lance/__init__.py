"""Galleries that are kept: a Lance dataset is the truth, maps of its fragments are searched, FAISS proposes.

A Lance dataset is a list of immutable fragments and, for each version, which rows of these are there. `lance_table` is
the only module that imports Lance. `mapped_rows` keeps a file for each fragment with its items as the kernels read
them, which can be deleted at any time and is made again. `seen_rows` keeps a FAISS index beside the version that it was
built of. `lance_gallery` puts the three together.
"""

from peaccel.retrieval.lance.gallery import Gallery

__all__ = ["Gallery"]
