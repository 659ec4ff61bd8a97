"""A reranker in a folder: FAISS's file of its index, a .safetensors file with its items, and a description."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from peaccel._utils.arrays import FLOATING, Array, as_stored, bfloat16, dtype_name, is_torch, repeated
from peaccel._utils.atomic_files import PathLike, aside, names_within
from peaccel.distributions import Distribution
from peaccel.io._stored_arrays import in_safetensors
from peaccel.retrieval.faiss import index as faiss_index
from peaccel.retrieval.faiss.first_stage_features import FirstStageReference
from peaccel.retrieval.faiss.indexed_items import Indexed
from peaccel.retrieval.faiss.items import StoredItems
from peaccel.retrieval.faiss.linearisation import Typical
from peaccel.retrieval.faiss.vectors import FirstStage, Vectors
from peaccel.retrieval.prepared import Prepared
from peaccel.scores import Score, get, spelled

__all__ = ["about_features", "arrays_of_features", "checksum", "features_of", "read", "verify", "write"]

VERSION = 1  # the version of the folder's format
INDEX, ITEMS, ABOUT = NAMES = "index.faiss", "items.safetensors", "reranker.json"
ENTRIES = {  # kinds of the description's entries; those that are needed are missed where they are
    **dict.fromkeys(("score", "gallery", "library", "dtype", "features"), str),
    **dict.fromkeys(("common", "by_row", "share_ids", "pack", "codes"), bool),
    **dict.fromkeys(("following", "crc32 of index.faiss", "crc32 of items.safetensors"), int),
    "radius": float,
}
OR_NONE = ("following", "radius")
KINDS = {kind.__name__: kind for kind in Distribution.__subclasses__()}


def write(folder: PathLike, indexed: Indexed, vectors: Vectors, prepared: Prepared) -> None:
    """Save the parts of a reranker in a folder; where anything is wrong, what stood there stays."""
    folder = Path(folder)
    _require_replaceable(folder)
    if callable(vectors.features):
        raise TypeError("FaissReranker.save: features are a callable, which no file holds; pickle may keep it")
    try:
        score = spelled(vectors.score)
    except ValueError as error:
        raise ValueError(f"FaissReranker.save: {error}") from None
    safetensors = _safetensors()
    with aside(folder, folder=True) as fresh:
        faiss_index.write(indexed.index, fresh / INDEX)
        items = indexed.items
        assert isinstance(items, StoredItems)  # FAISS writes no index on a GPU
        arrays = {**_arrays_of_items(items), **arrays_of_features(vectors.features)}
        plain = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
        try:
            safetensors.numpy.save_file(plain, fresh / ITEMS)
        except safetensors.SafetensorError as error:
            raise OSError(f"{folder / ITEMS}: cannot be written ({error})") from None
        gallery = items.gallery
        about = {
            "saved": "peaccel.FaissReranker",
            "version": VERSION,
            "score": score,
            "gallery": type(gallery).__name__,
            "library": "torch" if is_torch(gallery.mu) else "numpy",
            "dtype": dtype_name(gallery.mu),
            "common": gallery.common_parameter() is not None,
            "by_row": items.by_row,
            "following": items.next_id,
            "share_ids": items.share_ids,
            **about_features(vectors.features),
            "radius": vectors.radius,
            "pack": prepared.packed,
            "codes": prepared.coded,
            **{f"crc32 of {name}": checksum(fresh / name) for name in (INDEX, ITEMS)},
            **{f"bytes of {name}": (fresh / name).stat().st_size for name in (INDEX, ITEMS)},
        }
        (fresh / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def read(folder: PathLike, *, mmap: bool = False) -> tuple[Indexed, Vectors, bool, bool]:
    """Read the parts that `write` has saved, or map them, which looks at the sizes of the files alone."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    about = _about(folder)
    if mmap:
        _require_sizes(folder, about)
        index, arrays = faiss_index.read(str(folder / INDEX), mmap=True), _mapped(folder / ITEMS, about)
        # Bits do not depend on packing and codes, which would copy the gallery.
        about |= {"pack": False, "codes": False}
    else:
        safetensors = _safetensors()
        verify(folder, about)
        index, arrays = faiss_index.read(str(folder / INDEX)), safetensors.numpy.load_file(folder / ITEMS)
    try:
        items, score = _items(about, arrays), get(about["score"])
        features = features_of(about, arrays, score)
        held = len(items) - (0 if items.by_row else items.removed)
        if index.ntotal != held:
            raise ValueError(f"the index holds {index.ntotal} items, expected {held}")
        indexed = Indexed(index, items, mapped_from=folder.absolute() if mmap else None)
        return indexed, Vectors(features, score, index.d, about["radius"]), about["pack"], about.get("codes", False)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / ABOUT}: does not describe the files beside it: {error}") from None


def verify(folder: Path, about: dict[str, Any] | None = None) -> None:
    """Refuse a folder in which a file is not, to the last bit, the one that was saved."""
    about = _about(folder) if about is None else about
    for name in (INDEX, ITEMS):
        if checksum(_file(folder, name)) != about.get(f"crc32 of {name}"):
            raise ValueError(f"{folder / name}: is damaged, or not the file that was saved here")


def _require_sizes(folder: Path, about: dict[str, Any]) -> None:
    for name in (INDEX, ITEMS):
        size, expected = _file(folder, name).stat().st_size, about.get(f"bytes of {name}")
        if size != expected:
            what = "unknown, since an older version saved it" if expected is None else f"{expected}, as saved"
            raise ValueError(f"{folder / name}: has {size} bytes, expected {what}")


def _mapped(path: Path, about: dict[str, Any]) -> dict[str, Array]:
    """The arrays of the items in the pages of the file, but for those that are read whole."""
    # torch takes none that cannot be written; what is written to such a map stays in memory.
    writable = about.get("library") == "torch"
    arrays = {name: x.mapped(writable=writable) for name, x in in_safetensors(path).items()}
    return {name: x if name.startswith("gallery.") else x.copy() for name, x in arrays.items()}


def _require_replaceable(folder: Path) -> None:
    """Refuse a folder with anything but a saved reranker, so that no other files are lost."""
    names = names_within(folder)
    if names and not (ABOUT in names and names <= set(NAMES)):
        other = min(names - set(NAMES), default=min(names))
        raise ValueError(f"{folder}: holds {other} and is no saved reranker, expected one, or an empty or a new folder")


def _arrays_of_items(items: StoredItems) -> dict[str, Array]:
    gallery, one = items.gallery, items.gallery.common_parameter()
    stored = gallery.arrays if one is None else (gallery.mu, one)
    arrays = {f"gallery.{name}": as_stored(x) for name, x in zip(gallery._names, stored, strict=True)}
    ids = items.table
    if ids is not None and items.are_strings:  # [N, width]: the code points, which safetensors has a dtype for
        ids = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), ids.dtype.itemsize // 4)
    return arrays | {"live": items.live} | ({} if ids is None else {"ids": ids})


def _items(about: dict[str, Any], arrays: dict[str, Array]) -> StoredItems:
    kind = KINDS[about["gallery"]]
    stored = [_as_saved(arrays[f"gallery.{name}"], about["library"], about["dtype"]) for name in kind._names]
    if about.get("common", False):
        stored[1] = repeated(stored[1], len(stored[0]))
    gallery = kind(*stored)
    live, ids = arrays["live"], arrays.get("ids")
    if ids is not None and ids.ndim == 2:
        ids = ids.view(f"U{ids.shape[1]}")[:, 0]
    for name, x in (("live", live), ("ids", ids)):
        if x is not None and x.shape != (len(gallery),):
            raise ValueError(f"{name} has shape {x.shape}, expected ({len(gallery)},) like the gallery")
    return StoredItems(gallery, ids, about["by_row"], live, about["following"], about.get("share_ids", False))


def _as_saved(x: np.ndarray[Any, Any], library: str, dtype: str) -> Array:
    """An array as it was in the gallery; bfloat16 is saved as uint16 words, so that no package is needed to read it."""
    if library == "torch":
        import torch

        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(x)
    if dtype == "bfloat16":
        return x.view(bfloat16())
    return x


def about_features(features: FirstStage) -> dict[str, Any]:
    """The entries of a description that are of features."""
    if isinstance(features, FirstStageReference):
        return {"features": "surrogate", "kinds": features.kinds}
    return {"features": features}


def arrays_of_features(features: FirstStage) -> dict[str, Array]:
    """The arrays of features that have any."""
    if not isinstance(features, FirstStageReference):
        return {}
    rows = {**features.typical._asdict(), "offset": features.offset, "scale": features.scale, "mean": features.mean}
    return {f"reference.{name}": x for name, x in rows.items()}


def features_of(about: dict[str, Any], arrays: dict[str, Array], score: Score) -> FirstStage:
    """The features that a description and arrays beside it tell."""
    features: FirstStage = about["features"]
    if features in ("mu", "unit"):
        return features
    if features != "surrogate":
        raise ValueError(f"features {features!r}, expected 'mu', 'unit' or 'surrogate'")
    rows = {name.removeprefix("reference."): x for name, x in arrays.items() if name.startswith("reference.")}
    typical = Typical(*(rows.pop(name) for name in Typical._fields))
    query, gallery = map(str, about["kinds"])
    return FirstStageReference(score, (query, gallery), typical, **rows)


# -- files -------------------------------------------------------------------------------------------------------------


def _about(folder: Path) -> dict[str, Any]:
    """The description, whose format version must be the one that this code reads."""
    path = _file(folder, ABOUT)
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        version = about["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path}: is damaged, or does not describe a reranker") from None
    if version != VERSION:
        raise ValueError(f"{path}: format version {version!r}, expected {VERSION}")
    for name, kind in ENTRIES.items():
        if name in about and type(about[name]) is not kind and (about[name] is not None or name not in OR_NONE):
            raise ValueError(f"{path}: {name} is {about[name]!r}, expected {kind.__name__}")
    for name, names in (("library", ("numpy", "torch")), ("dtype", FLOATING)):
        if about.get(name) not in names:
            raise ValueError(f"{path}: {name} is {about.get(name)!r}, expected one of {', '.join(names)}")
    return about


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder / name}: no such file")
    return folder / name


def checksum(path: Path) -> int:
    """The checksum of a file; FAISS does not notice that one was changed."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError("FaissReranker.save and load need safetensors: pip install safetensors") from None
    return safetensors
