"""Work on tables larger than memory: batches of Arrow go through a step, which actors of Ray Data hold."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peaccel import io
from peaccel._utils.arrays import is_torch, on_host
from peaccel._utils.atomic_files import PathLike, aside
from peaccel._utils.ids import there
from peaccel._utils.runtime import set_num_threads
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_k, require_distribution
from peaccel.io.parquet_parts import map_table, with_columns
from peaccel.retrieval.ray.gallery_parts import GalleryPart, Source
from peaccel.scores import Score, get

try:
    import ray
except ImportError:
    raise ImportError("peaccel.retrieval.ray needs Ray: pip install peaccel[ray]") from None

__all__ = ["EmbedStep", "RescoreStep", "SearchStep", "map_parts"]


class SearchStep:
    """The best k of a gallery for each row of a batch, as the columns ``ids`` and ``scores``.

    A step for `map_parts`, and for ``map_batches(SearchStep, fn_constructor_kwargs={...}, batch_format="pyarrow")`` of
    a dataset of Ray: pyarrow tables in and out, whose lists would be arrays of objects in numpy, which take longer.

    Parameters
    ----------
    gallery
        A source as `ShardedGallery` takes; each actor holds all of it.
    k
        How many to return, >= 1.
    score
        As in `paired`.
    shortlist
        None for the exact best; else how many the index of the gallery proposes, as in `FaissReranker.search`.
    columns
        As `pe.io.from_arrow` takes them: {"mu": "vector", "var": "sigma2"}; by default the columns of its names.
    keep
        Columns that are handed on.
    """

    def __init__(
        self,
        gallery: Source,
        k: int,
        score: str | Score = "mls",
        shortlist: int | None = None,
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        self._shortlist = shortlist
        self._part, self._k = GalleryPart.opened(gallery, get(score)), checked_k("SearchStep", k)
        self._columns: dict[str, Any] = dict(columns or {})
        self._keep = keep

    def __call__(self, batch: Any) -> Any:
        """The columns that are kept, and what was found: a pyarrow table for a pyarrow table."""
        queries: Any = io.from_arrow(batch, **self._columns)
        scores, ids = self._part.search(queries, self._k, self._shortlist)
        return with_columns("SearchStep", batch, self._keep, {"ids": ids, "scores": scores})


class RescoreStep:
    """The scores of each row of a batch with its candidates, as the column ``scores``: a step as `SearchStep`.

    Parameters
    ----------
    gallery, score, columns, keep
        As in `SearchStep`.
    candidates
        The column of lists of K: rows of the gallery, or its ids where it has any; -1, or "", for none scores -inf.
    """

    def __init__(
        self,
        gallery: Source,
        candidates: str = "ids",
        score: str | Score = "mls",
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        self._part, self._candidates = GalleryPart.opened(gallery, get(score)), candidates
        self._columns: dict[str, Any] = dict(columns or {})
        self._keep = keep

    def __call__(self, batch: Any) -> Any:
        """The columns that are kept, and the scores: a pyarrow table for a pyarrow table."""
        queries: Any = io.from_arrow(batch, **self._columns)
        found = batch.column(self._candidates)
        if len(batch):
            candidates = np.array(found.to_pylist()).reshape(len(batch), -1)
        else:  # a batch of nothing, whose lists have a length all the same
            candidates = np.empty((0, max(getattr(found.type, "list_size", 1), 1)), np.int64)
        mine, of_mine = self._part.rescore(queries, candidates)
        lacking = np.flatnonzero((mine != there(candidates)).any(1))
        if len(lacking):
            raise ValueError(f"RescoreStep: column {self._candidates} holds what the gallery lacks in row {lacking[0]}")
        scores = np.full(candidates.shape, -np.inf, of_mine.dtype)
        scores[mine] = of_mine
        return with_columns("RescoreStep", batch, self._keep, {"scores": scores})


class EmbedStep:
    """The distributions that an encoder makes of a batch, as ``mu`` and ``var``, ``kappa`` or ``scale``: a step.

    Parameters
    ----------
    encoder
        Called once in each actor; what it returns is called with each batch, a pyarrow table, and returns a
        distribution with an item for each row: numpy arrays or tensors, on any device.
    keep
        Columns that are handed on.
    """

    def __init__(self, encoder: Callable[[], Callable[[Any], Any]], keep: Sequence[str] = ()) -> None:
        self._encode, self._keep = encoder(), keep

    def __call__(self, batch: Any) -> Any:
        """The columns that are kept, and the distributions: a pyarrow table for a pyarrow table."""
        d = self._encode(batch)
        require_distribution("EmbedStep", "what the encoder returns", d)
        if len(d) != len(batch):
            raise ValueError(f"EmbedStep: the encoder made {len(d)} items of {len(batch)} rows, expected one for each")
        return io.to_arrow(d, **{name: batch.column(name) for name in self._keep})


class _PartFiles:
    """A step that takes whole files: what actors of Ray Data hold."""

    def __init__(self, step: Callable[..., Any], settings: Mapping[str, Any], rows: int, threads: int) -> None:
        set_num_threads(threads)
        self._step, self._rows = step(**settings), rows

    def __call__(self, batch: Any) -> Any:
        for part, target in zip(*(batch.column(name).to_pylist() for name in ("part", "target")), strict=True):
            map_table(part, target, self._step, self._rows)
        return batch


def _as_text(value: Any) -> Any:
    """A setting as it is written down: of distributions and arrays, whose text is their shape, a checksum too."""
    arrays = value.arrays if isinstance(value, Distribution) else (value,)
    if not all(is_torch(x) or isinstance(x, np.ndarray) for x in arrays):
        return value
    sums = [zlib.crc32(np.ascontiguousarray(on_host(x, "map_parts", "settings")).tobytes()) for x in arrays]
    return f"{value!r}, crc32 {' '.join(f'{x:08x}' for x in sums)}"


def map_parts(
    step: Callable[..., Any],
    settings: Mapping[str, Any],
    parts: Sequence[PathLike],
    out: PathLike,
    *,
    rows: int = 65_536,
    concurrency: int = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
) -> list[Path]:
    """Take the parts of a table through a step, each into a Parquet file, by Ray Data.

    A part's file is there once it is whole, and is not made again: a call that was interrupted, or given more parts,
    goes on where it was.

    Parameters
    ----------
    step, settings
        `SearchStep`, `RescoreStep`, `EmbedStep` or any class whose objects make a pyarrow table of one, and what it is
        made with, once in each actor.
    parts
        Files that `pe.io` reads as tables: .parquet, .arrow, .feather or .lance; every node must see them.
    out
        The folder of what is written, for one step with its settings; every node must see it.
    rows
        How many rows the step is given at a time, >= 1.
    concurrency
        How many actors take parts at the same time, >= 1.
    num_cpus, num_gpus
        Of each actor: what Ray reserves; num_cpus rounded down, at least 1, is the number of its threads.

    Returns
    -------
    list of paths
        The files, in the order of the parts.

    Raises
    ------
    ValueError
        Two parts of one name; a folder that holds parts of another step or with other settings.
    RuntimeError
        Ray is not initialised.
    ray.exceptions.RayTaskError
        What reading a part or the step raises; other parts may have been written.

    Examples
    --------
    ::

        ray.init()
        settings = {"gallery": "gallery.npz", "k": 10, "keep": ["id"]}
        map_parts(SearchStep, settings, parts=["part0.parquet", "part1.parquet"], out="found/")
    """
    checked_k("map_parts", rows, "rows")
    if not ray.is_initialized():
        raise RuntimeError("map_parts: Ray is not initialised, call ray.init() first, or with an address")
    folder = Path(out)
    targets = [folder / f"{Path(part).stem}.parquet" for part in parts]
    if len(set(targets)) < len(targets):
        raise ValueError(f"map_parts: two parts have one name among {', '.join(map(str, parts))}")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: _as_text(value) for name, value in settings.items()}
    call, about = folder / "step.txt", f"{getattr(step, '__qualname__', step)} {texts!r}\n"
    if call.exists() and call.read_text() != about:
        raise ValueError(f"map_parts: {folder} holds parts of {call.read_text().strip()}, expected {about.strip()}")
    with aside(call, follow=False) as fresh:
        fresh.write_text(about)
    pairs = zip(parts, targets, strict=True)
    todo = [{"part": str(Path(part).absolute()), "target": str(x.absolute())} for part, x in pairs if not x.exists()]
    if todo:
        made_with = step, dict(settings), rows, max(1, int(num_cpus))
        asked = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
            _PartFiles, fn_constructor_args=made_with, batch_size=1, batch_format="pyarrow",
            concurrency=concurrency, num_cpus=num_cpus, num_gpus=num_gpus,
        )  # fmt: skip
        asked.materialize()
    return targets
