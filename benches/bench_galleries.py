"""Galleries on Lance: written, opened, searched, changed."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from benches.data import distribution, fields, optional, pe

ROWS, MORE, DIM, QUERIES, K = 20_000, 500, 64, 64, 10


class Galleries:
    """20,000 isotropic normals of 64 dimensions; 64 queries; seconds of the processor."""

    timer = time.process_time

    def setup(self) -> None:
        if optional("lance") is None:
            raise NotImplementedError  # which asv takes for one that is not there
        self.folder = Path(tempfile.mkdtemp())
        self.items = distribution("isotropic", fields("isotropic", ROWS, DIM, 1))
        self.more = distribution("isotropic", fields("isotropic", MORE, DIM, 2))
        self.queries = distribution("isotropic", fields("isotropic", QUERIES, DIM, 3))
        self.gallery = pe.Gallery.create(self.folder / "g.lance", self.items, ids=np.arange(ROWS))
        self.gallery.search_exact(self.queries, K)  # makes the derived files

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def time_create(self) -> None:
        shutil.rmtree(self.folder / "new.lance", ignore_errors=True)
        pe.Gallery.create(self.folder / "new.lance", self.items, ids=np.arange(ROWS))

    def time_open_and_search(self) -> None:
        pe.Gallery.open(self.folder / "g.lance").search_exact(self.queries, K)

    def time_search(self) -> None:
        self.gallery.search_exact(self.queries, K)

    def time_rerank(self) -> None:
        ids = np.arange(100 * QUERIES).reshape(QUERIES, 100)
        self.gallery.rerank(self.queries, ids, K)

    def time_upsert(self) -> None:
        self.gallery.upsert(self.more, np.arange(MORE))
