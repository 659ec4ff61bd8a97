"""Whether memory stays flat: python tools/soak.py, for PEACCEL_SOAK seconds, an hour unless said.

Rounds of all that a service or a training does again and again: search, rescore, an index of FAISS before a score, a
step of training, a Lance gallery that is opened, searched and changed. It fails where resident memory rises.
"""

import gc
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

import peaccel as pe
from peaccel.heads import MeanHead, NormalHead, UncertaintyHead
from peaccel.losses import ScoreNCE

SECONDS = float(os.environ.get("PEACCEL_SOAK", "3600"))
WARM = 0.3  # share of the time in which caches fill, of allocators, torch and Lance
BOUND = 16 << 20  # bytes that memory may rise by in the rest of it, by the straight line through what was read
DIM, ROWS = 32, 2000


def resident() -> int:
    """Bytes of this process that are in memory."""
    return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])


class Work:
    """Work of a round."""

    def __init__(self, folder: Path) -> None:
        self.rng = np.random.default_rng(0)
        self.folder, self.ids = folder / "g.lance", np.arange(ROWS)
        self.gallery = self.items(ROWS)
        self.prepared = pe.prepare(self.gallery, "mls")
        self.reranker = pe.FaissReranker.build(self.gallery, "IVF8,Flat")
        self.head = NormalHead(MeanHead(DIM, DIM), UncertaintyHead(DIM, out=DIM, start=0.01))
        self.loss = ScoreNCE("llr", prior_var=torch.full((DIM,), 1 / DIM))
        self.optimizer = torch.optim.Adam([*self.head.parameters(), *self.loss.parameters()], 1e-3)
        pe.Gallery.create(self.folder, self.gallery, ids=self.ids)

    def items(self, rows: int) -> pe.Normal:
        """So many random ones."""
        mu, var = self.rng.normal(size=(rows, DIM)), self.rng.uniform(0.1, 1, (rows, DIM))
        return pe.Normal(mu.astype(np.float32), var.astype(np.float32))

    def retrieve(self) -> None:
        queries = self.items(16)
        found = pe.search(queries, self.prepared, 10)
        pe.rescore(queries, self.gallery, found.ids)
        pe.search(queries, self.items(300), 5, "hib:n=4")
        self.reranker.search(queries, 10)
        self.reranker.upsert(self.items(4), self.rng.permutation(ROWS)[:4])
        with suppress(TypeError, ValueError, IndexError):
            pe.search(queries, self.items(5)[:, None], 5)  # what is refused leaves nothing either

    def train(self) -> None:
        x, labels = torch.randn(64, DIM), torch.arange(16).repeat(4)
        self.loss(self.head(x), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def keep(self, number: int) -> None:
        gallery = pe.Gallery.open(self.folder)
        gallery.search(self.items(4), 5)
        if number % 50 == 49:
            gallery.upsert(self.items(20), self.rng.permutation(ROWS)[:20])
        if number % 500 == 499:
            gallery.compact(keep_days=0)
            self.reranker.compact()  # else it keeps the rows of the items that were replaced


def main() -> int:
    """The exit code."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        work, start, number = Work(Path(folder)), time.monotonic(), 0
        times, sizes, rounds = [], [], []
        while (spent := time.monotonic() - start) < SECONDS:
            work.retrieve()
            work.train()
            if number % 5 == 0:
                work.keep(number // 5)
            number += 1
            if not times or spent - times[-1] > SECONDS / 200:
                gc.collect()
                times.append(spent)
                sizes.append(resident())
                rounds.append(number)
    kept = np.array(times) > WARM * SECONDS
    x, y = np.array(rounds)[kept], np.array(sizes)[kept]
    slope = np.polyfit(x, y, 1)[0]
    rise = slope * (x[-1] - x[0])
    print(
        f"{number} rounds in {SECONDS:.0f} s; resident {sizes[0] >> 20} MiB at first, {y[0] >> 20} once warm, ", end=""
    )
    print(f"{sizes[-1] >> 20} at the end; by the line {rise / 2**20:+.1f} MiB, {slope:+.0f} bytes a round", end="")
    print(f"; expected at most {BOUND >> 20} MiB")
    return int(rise > BOUND)


if __name__ == "__main__":
    sys.exit(main())
