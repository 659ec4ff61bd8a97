"""Calls of users, timed for the history; bench_kernels.py has every kernel, and `benches.ratios` the peers.

A call is a name and what makes it ready, where names of peaccel are looked up: an older version may lack some. asv
takes NotImplementedError for a call that is not there.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benches import accuracy, peak
from benches.data import candidates, fields, items, log_uniform, optional, pe
from benches.peers import CASES, faiss

Run = Callable[[], Any]
Calls = Iterator[tuple[str, Callable[[], Run]]]
SCORES = ("mls diagonal", "mls isotropic", "mls vmf", "cosine point")
SHAPES = ((20_000, 128), (5_000, 512))  # gallery rows, dimensions
K = 10


# ---- special functions, draws, metrics and fits ----------------------------------------------------------------------


def special() -> Calls:
    """100,000 elements, x log-uniform in [1, 1e4]; orders are those of vMF distributions."""

    def ready(op: str, order: float, dtype: str) -> Run:
        x = log_uniform(1, 1e4, 100_000).astype(dtype)
        return partial(getattr(pe.special, op), 2 * order + 2 if op == "vmf_log_norm" else order, x)

    for op, order, dtype in product(("log_ive", "iv_ratio", "vmf_log_norm"), (1, 63, 1023), ("float32", "float64")):
        yield f"{op} {order} {dtype}", partial(ready, op, order, dtype)


def samplers() -> Calls:
    """4096 items x 5 draws in float32; concentrations log-uniform in [10, 1e4]."""

    def ready(law: str, dim: int, backward: bool) -> Run:
        of, op = {"vmf": pe.VonMisesFisher, "normal": pe.Normal}[law], getattr(pe.ops.samplers, f"sample_{law}")
        kappa = log_uniform(10, 1e4, 4096).astype(np.float32)
        d, weights = of(fields("point", 4096, dim, 1)[0], kappa), np.ones((5, 4096, dim), np.float32)
        if backward:
            return partial(pe.ops._numpy.sample_backward, op, weights, *d.arrays, 1, 0, 2)
        return partial(pe.sample, d, 5, seed=1)

    for law, dim, backward in product(("vmf", "normal"), (2, 16, 128), (False, True)):
        yield f"sample_{law} D={dim}{' backward' if backward else ''}", partial(ready, law, dim, backward)


def metrics() -> Calls:
    """5,000 queries with lists of 50, or 100,000 pairs."""
    count, rng = 5_000, np.random.default_rng(0)
    gallery = np.arange(count) % 500  # ten items of each class
    labels, ids = rng.integers(0, 500, count), rng.integers(0, count, (count, 50))
    right, sure = rng.random(count) < 0.8, rng.random(count)
    scores, same = rng.normal(size=100_000), rng.random(100_000) < 0.1
    for names, arguments in (
        (("recall_at_k", "map_at_r"), (ids, labels, gallery)),
        (("average_precision_at_k",), (ids, labels, gallery, 50)),
        (("rejection_area", "calibration_error"), (right.astype(float), sure)),
        (("ceda", "r_auroc"), (right, sure)),
        (("roc_auc", "equal_error_rate", "verification_accuracy"), (scores, same)),
        (("open_set", "novelty_detection"), (scores[same], scores[~same])),
    ):
        for name in names:
            yield name, lambda name=name, arguments=arguments: partial(getattr(pe.metrics, name), *arguments)


def fits() -> Calls:
    """20,000 diagonal normals of 128 dimensions, and 100,000 pairs of them."""

    def ready(name: str) -> Run:
        first, apart = np.random.default_rng(0).integers(1, 20_000, (2, 100_000))
        pairs, same = np.stack([first, (first + apart) % 20_000], 1), np.arange(100_000) % 2 == 0
        return partial(getattr(pe, name), items("diagonal", 20_000), pairs, same)

    for name in ("calibrate_variance", "fit_shift"):
        yield name, partial(ready, name)


# ---- retrieval -------------------------------------------------------------------------------------------------------


def retrieval() -> Calls:
    """The best ten of 100 random candidates and of the whole gallery for 64 queries; and preparing it."""

    def ready(verb: str, name: str, rows: int, dim: int, prepared: bool) -> Run:
        case = CASES[name]
        queries, gallery = items(case.kind, 64, dim, 1), items(case.kind, rows, dim, 2)
        if verb == "prepare":
            return partial(pe.prepare, gallery, case.score)
        laid_out = pe.prepare(gallery, case.score) if prepared else gallery
        if verb == "search":
            return partial(pe.search, queries, laid_out, K, case.score)
        return partial(pe.rerank, queries, laid_out, candidates(64, 100, rows), K, case.score)

    for name, (rows, dim) in product(SCORES, SHAPES):
        for verb, prepared in (*product(("rerank", "search"), (False, True)), ("prepare", False)):
            work = f"{verb}{', prepared' if prepared else ''}, {name}, {rows} x {dim}"
            yield work, partial(ready, verb, name, rows, dim, prepared)


def main_job() -> Calls:
    """HNSW over 4,000 x 128 for a shortlist of 100, and the best 10 by diagonal MLS on top."""

    def ready(batch: int) -> Run:
        if faiss is None:
            raise NotImplementedError
        queries, gallery = (items("diagonal", n, 128, seed, 20) for n, seed in ((batch, 1), (4_000, 2)))
        index = faiss.IndexHNSWFlat(128, 32)
        index.add(gallery.mu)
        return partial(pe.FaissReranker(index, gallery, score="mls").search, queries, K, shortlist=100)

    for batch in (1, 256):
        yield f"main job, {batch} queries", partial(ready, batch)


@cache
def lance() -> tuple[Any, tempfile.TemporaryDirectory[str], Any]:
    """A gallery on Lance of 20,000 isotropic normals of 64 dimensions, its folder and its items."""
    if optional("lance") is None:
        raise NotImplementedError
    folder, d = tempfile.TemporaryDirectory(), items("isotropic", 20_000, 64, 1)
    gallery = pe.Gallery.create(Path(folder.name, "g.lance"), d, ids=np.arange(len(d)))
    gallery.search(d[:1], K)  # makes the derived files
    return gallery, folder, d


def galleries() -> Calls:
    """Galleries on Lance: written, opened, searched by 64 queries, changed."""
    more, q = items("isotropic", 500, 64, 2), items("isotropic", 64, 64, 3)
    ids = np.arange(100 * len(q)).reshape(len(q), 100)

    def create(gallery: Any, folder: Path, d: Any) -> None:
        shutil.rmtree(folder / "new.lance", ignore_errors=True)
        pe.Gallery.create(folder / "new.lance", d, ids=np.arange(len(d)))

    calls: dict[str, Callable[[Any, Path, Any], object]] = {
        "create": create,
        "open and search": lambda gallery, folder, d: pe.Gallery.open(folder / "g.lance").search(q, K),
        "search": lambda gallery, folder, d: gallery.search(q, K),
        "rerank": lambda gallery, folder, d: gallery.rerank(q, ids, K),
        "upsert": lambda gallery, folder, d: gallery.upsert(more, np.arange(len(more))),
    }

    def ready(call: Callable[[Any, Path, Any], object]) -> Run:
        gallery, folder, d = lance()
        return partial(call, gallery, Path(folder.name), d)

    for name, call in calls.items():
        yield f"gallery: {name}", partial(ready, call)


# ---- suites ----------------------------------------------------------------------------------------------------------

GROUPS = (special, samplers, metrics, fits, retrieval, main_job, galleries)
CALLS = {name: ready for group in GROUPS for name, ready in group()}


@cache  # asv sets up anew for each sample
def made(name: str) -> Run:
    """A call, ready to be made."""
    return CALLS[name]()


class EveryCall:
    """Every call; seconds of the processor."""

    timer = time.process_time
    param_names = ("call",)
    params = (list(CALLS),)

    def setup(self, name: str) -> None:
        """Make the data."""
        self.run = made(name)

    def time_call(self, name: str) -> None:
        """One call."""
        self.run()


class Memory:
    """Bytes of a prepared gallery, and beyond the gallery at a verb's peak: 100,000 x 32, 256 queries."""

    param_names = ("score", "verb")
    params = (SCORES, ("prepared", "prepare", "search", "search prepared", "rerank"))
    unit = "bytes"

    def track_bytes(self, name: str, verb: str) -> int:
        """Memory that is kept, or the peak of a separate process."""
        case = CASES[name]
        if verb == "prepared":
            return int(pe.prepare(items(case.kind, peak.ROWS, peak.DIM), case.score).nbytes)
        if not peak.RESET.exists():
            raise NotImplementedError("peaks of memory are read from /proc, which only Linux has")
        return int(peak.of_process(case.score, case.kind, verb))


class Accuracy:
    """The largest error against the golden rows, so that the history shows a loss of digits as well."""

    param_names = ("function", "dtype")
    params = (accuracy.QUANTITIES, ("float32", "float64"))
    unit = "relative error"

    def track_error(self, name: str, dtype: str) -> float:
        """The largest error."""
        return float(accuracy.errors(name, accuracy.golden(), dtype, accuracy.peaccel(name))[0].max())


def timeraw_import() -> str:
    """A process that imports peaccel."""
    return "import peaccel"


def timeraw_import_numpy() -> str:
    """A process that imports numpy alone."""
    return "import numpy"
