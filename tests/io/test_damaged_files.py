"""Every reader of files on damaged ones: each file is refused, or read. `python tests/io/test_damaged_files.py` counts.

Files are cut, bytes changed, numbers replaced by extreme ones, pieces left out, doubled and invented, and links put in
their place. Each damaged file has one of these outcomes:

- refused: by a ValueError or an OSError of one line that names the file.
- right: read, with the numbers of the whole file.
- wrong: read, with other numbers. Only formats without a checksum may do so; `UNCHECKED` says why.
- raw: an error of somebody's inside, a wait, or memory that the file has not.
- died: the process ended.

`make test` damages a few thousand files, always in the same way. `make hostile` damages a hundred thousand in fresh
ways and prints the table. Not among them is the list of cars196 as Stanford published it: scipy ends the process
at some damaged forms.
"""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

COUNT = int(os.environ.get("PEACCEL_FUZZ", "0"))
FILES = 8_000  # in `make test`
SECONDS = 20  # that reading one of them may take
MEMORY = 1 << 30  # address space that it may take beyond what the libraries have


class Case(NamedTuple):
    """A file of a reader."""

    file: str
    write: Callable[[Path], object]
    """Writes it, and what else is to be there, to a folder."""
    read: Callable[[Path], object]
    """Reads all of it, given its path."""


# -- the corpus --------------------------------------------------------------------------------------------------------

MU = np.eye(3, 4, dtype=np.float32)
VAR = np.array([0.5, 1.0, 2.0], np.float32)


def cases(folder):
    """A valid small file of each reader; a folder receives what they are made of."""
    yield from of_arrays()
    yield from of_tables()
    yield from of_texts()
    yield from of_plda()
    yield from of_garments()
    yield from of_features()
    yield from of_lists()
    yield from of_images()
    yield from of_torch(folder)
    yield from of_rerankers()
    yield from of_galleries(folder)
    yield from of_watches()


def of_arrays():
    import ml_dtypes
    from safetensors.numpy import save_file

    from peaccel import io

    ids = np.array([[2, 0], [1, -1]])
    for name, arrays, read in (
        ("d.npz", {"mu": MU, "var": VAR}, io.read_distribution),
        ("packed.npz", {"mu": MU, "var": VAR}, io.read_distribution),
        ("c.npz", {"candidates": ids}, io.read_candidates),
        ("r.npz", {"scores": ids / 2, "ids": ids}, io.read_ranking),
        ("p.npz", {"score": VAR, "match": VAR > 1, "group": np.array(["a", "b", "ä"])}, io.read_scored_pairs),
    ):
        save = np.savez_compressed if name == "packed.npz" else np.savez
        yield Case(name, lambda at, name=name, save=save, arrays=arrays: save(at / name, **arrays), read)
    for name, array, read in (
        ("d.npy", MU, io.read_distribution),
        ("c.npy", ids, io.read_candidates),
        ("i.npy", np.array(["b", "a", "ç"]), io.read_ids),
        ("l.npy", np.array([b"b", b"a"]), io.read_labels),
        ("p.npy", np.array([[0.5, 1], [0.25, 0]]), io.read_scored_pairs),
        ("blocks.npy", MU, lambda path: list(io.read_blocks(path, rows=2))),
    ):
        yield Case(name, lambda at, name=name, array=array: np.save(at / name, array), read)
    for name, arrays, read in (
        ("d.safetensors", {"mu": MU, "var": VAR}, io.read_distribution),
        ("halves.safetensors", {"mu": MU.astype(ml_dtypes.bfloat16)}, io.read_distribution),
        ("r.safetensors", {"scores": ids / 2, "ids": ids}, io.read_ranking),
        ("blocks.safetensors", {"mu": MU, "var": VAR}, lambda path: list(io.read_blocks(path, rows=2))),
    ):
        yield Case(name, lambda at, name=name, arrays=arrays: save_file(arrays, at / name), read)


def of_tables():
    import pyarrow as pa
    from pyarrow import feather, parquet

    import peaccel as pe
    from peaccel import io

    table = io.to_arrow(pe.Normal(MU, VAR), ids=["a", "b", "ç"])
    pairs = pa.table({"score": VAR, "match": [True, False, True], "group": ["a", None, "c"][:1] * 3})
    found = pa.table({"candidates": pa.array([[1, 0], [2, -1], [0, 1]])})

    def ipc(path, new):
        with new(path, table.schema) as writer:
            writer.write_table(table)

    yield Case("d.parquet", lambda at: parquet.write_table(table, at / "d.parquet"), io.read_distribution)
    yield Case(
        "z.parquet", lambda at: parquet.write_table(table, at / "z.parquet", compression="zstd"), io.read_distribution
    )
    yield Case("p.parquet", lambda at: parquet.write_table(pairs, at / "p.parquet"), io.read_scored_pairs)
    yield Case("c.parquet", lambda at: parquet.write_table(found, at / "c.parquet"), io.read_candidates)
    yield Case("i.parquet", lambda at: parquet.write_table(table, at / "i.parquet"), lambda p: io.read_ids(f"{p}:id"))
    ranked = np.array([[0.5, 0.25], [1.5, 0.125]]), np.array([["a", "ç"], ["b,", "d"]])
    rows = [{"mu": x.tolist(), "var": float(v), "id": name} for x, v, name in zip(MU, VAR, "abç", strict=True)]
    plain = "mu,var\n" + "".join(f'"{x.tolist()}",{v}\n' for x, v in zip(MU, VAR, strict=True))
    yield Case(
        "d.jsonl", lambda at: (at / "d.jsonl").write_text("\n".join(map(json.dumps, rows))), io.read_distribution
    )
    yield Case("d.csv", lambda at: (at / "d.csv").write_text(plain), io.read_distribution)
    for name in ("r.csv", "r.json", "lines.parquet"):
        yield Case(name, lambda at, name=name: io.write_ranking(at / name, ranked), io.read_ranking)
    yield Case("d.arrow", lambda at: ipc(at / "d.arrow", pa.ipc.new_file), io.read_distribution)
    yield Case("i.arrow", lambda at: ipc(at / "i.arrow", pa.ipc.new_file), lambda path: io.read_ids(f"{path}:id"))
    yield Case("stream.arrow", lambda at: ipc(at / "stream.arrow", pa.ipc.new_stream), io.read_distribution)
    yield Case("d.feather", lambda at: feather.write_feather(table, at / "d.feather"), io.read_distribution)


def of_texts():
    import peaccel as pe
    from peaccel import io
    from peaccel._utils import config
    from peaccel.hub import Pretrained
    from peaccel.metrics import Relevance  # noqa: F401  (imported by readers, which is not to be measured)

    yield Case(
        "p.csv", lambda at: (at / "p.csv").write_text("score,match,group\n0.9,1,ann\n0.2,0,bob\n"), io.read_scored_pairs
    )
    yield Case("trials", lambda at: (at / "trials").write_text("1 ann u1\n0 ann u2\n"), io.read_trials)
    yield Case("spk2utt", lambda at: (at / "spk2utt").write_text("ann u1 u2\nbob u3\n"), io.read_enrolment)
    fits = {
        "prior": pe.Prior(np.array([0.5, 0.25]), 0.25),
        "calibration": pe.Calibration(4.0, 0.01, "Normal", (0.5, -1.0)),
        "centre": pe.Centre((0.5, -1.0), (0.0, 2.0), ((1.0, 0.0), (0.5, 2.0))),
        "logistic": pe.LogisticProbability(-1.0, (2.0,)),
        "isotonic": pe.IsotonicProbability((0.0, 1.0), (0.2, 0.6)),
        "selection": pe.Selection(0.4, 0.05, 0.1, 100, 60, 1),
        "limit": pe.FalseMatchLimit(0.5, 0.01, 0.05, 1000, 4),
        "sets": pe.ConformalSets(0.5, 0.1, 200, "all"),
        "plda": pe.Plda((np.zeros(2),), (np.eye(2),), np.ones(2)),
        "shift": 0.25,
    }
    for name, fit in fits.items():
        yield Case(f"{name}.json", lambda at, name=name, fit=fit: io.write_fit(at / f"{name}.json", fit), io.read_fit)
    shared = Pretrained(fitted_on="3 items", fits=fits, score="mls", figures={"a": 0.5, "b": "c"})
    for name in ("shared/config.json", "shared/prior.json"):
        yield Case(
            name, lambda at: shared.save_pretrained(at / "shared"), lambda p: Pretrained.from_pretrained(p.parent)
        )
    text = '[settings]\ndim = 8\nname = "a"\nrates = [0.5, 1e-3]\n'
    yield Case("s.toml", lambda at: (at / "s.toml").write_text(text), config.read_mapping)


def of_plda():
    import test_plda_files as plda

    from peaccel import io

    yield Case("text.plda", lambda at: (at / "text.plda").write_bytes(plda.kaldi_text()), io.read_plda)
    yield Case("binary.plda", lambda at: (at / "binary.plda").write_bytes(plda.kaldi_binary()), io.read_plda)
    yield Case("halves.plda", lambda at: (at / "halves.plda").write_bytes(plda.kaldi_binary("f4")), io.read_plda)
    yield Case("plda.h5", lambda at: plda.wespeaker(at / "plda.h5"), io.read_plda)
    arrays = {"mu": np.zeros(2), "tr": np.diag([2.0, 1.0]), "psi": np.array([8.0, 1.0])}
    before = {"mean1": np.zeros(3), "mean2": np.zeros(2), "lda": np.eye(3, 2)}

    def pyannote(at):
        np.savez(at / "plda.npz", **arrays)
        np.savez(at / "before.npz", **before)

    yield Case("plda.npz", pyannote, io.read_plda)
    yield Case("before.npz", pyannote, lambda path: io.read_plda(path.parent / "plda.npz", before=path))


def of_garments():
    from peaccel.data import digits

    def idx(x):
        sizes = np.array(x.shape, ">i4").tobytes()
        return bytes([0, 0, 8, x.ndim]) + sizes + x.astype(np.uint8).tobytes()

    def garments(at):
        for part in ("train", "t10k"):
            images, kinds = np.zeros((4, 28, 28)), np.arange(4)
            (at / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
            (at / f"{part}-labels-idx1-ubyte").write_bytes(idx(kinds))

    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"):
        yield Case(name, garments, lambda path: digits.load_scans("fashion", path.parent))

    def flat(at):
        for part in ("train", "t10k"):
            (at / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((4, 28, 28))))
            (at / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(4)))

    yield Case("t10k-images-idx3-ubyte", flat, lambda path: digits.load_scans("fashion", path.parent))


def of_features():
    from peaccel.data import read

    def features(at):
        np.savez(at / "all.npz", features=np.eye(7), labels=np.arange(7))
        np.save(at / "f.npy", np.eye(7))
        np.save(at / "l.npy", np.array(list("abcdefg")))
        np.save(at / "pairs.npy", np.arange(6).reshape(3, 2))
        np.save(at / "more.npy", np.arange(7))
        np.savez(at / "test.npz", images=np.eye(2), captions=np.ones((3, 5)), image=[0, 1, 1])

    yield Case("all.npz", features, lambda path: read("features", path))
    yield Case("f.npy", features, lambda path: read("features", path, labels=path.parent / "l.npy"))
    yield Case("l.npy", features, lambda path: read("features", path.parent / "f.npy", labels=path))
    yield Case("pairs.npy", features, lambda path: read("features", path.parent / "f.npy", relevance=path))
    yield Case("more.npy", features, lambda path: read("features", path.parent / "all.npz", covariates=[path]))
    yield Case("test.npz", features, lambda path: read("caption-features", path.parent))


def of_lists():
    from layouts import cars_of_kaggle, coco_by_annotations, cub, ijbc, in_shop, lfw, msls, put

    from peaccel.data import read

    def sop(at):
        header = "image_id class_id super_class_id path\n"
        for name, classes in {"Ebay_train.txt": range(7), "Ebay_test.txt": [9]}.items():
            put(at, {name: header + "".join(f"{c} {c} 1 x/{c}.JPG\n" for c in classes)})

    def cplfw(at):
        put(at, {"pairs_CPLFW.txt": "".join(f"{n}_{i}.jpg 1\n" for n in ("Ann", "Bob", "Cy") for i in (1, 2))})

    def lines_of_coco(at):
        files = {"id_mapping.json": json.dumps({"31": "val2014/a.jpg", "17": "train2014/b.jpg"})}
        for name in ("train", "dev", "testall"):
            files[f"precomp/{name}_caps.txt"] = "".join(f"{name} a{i}\n" for i in range(10))
            files[f"precomp/{name}_ids.txt"] = "".join(f"{image}\n" * 5 for image in (31, 17))
        put(at, files)

    def conceptual(at):
        put(at, {"Train_GCC-training.tsv": "a cat , sitting\timages/0.jpg\nit's a dog\timages/1.jpg\n"})
        put(at, {"Validation_GCC-1.1.0-Validation.tsv": "a tree\timages/v.jpg\n"})

    for data, layout, options, files in (
        ("cub200", cub, {}, ["images.txt", "image_class_labels.txt", "train_test_split.txt"]),
        ("cars196", cars_of_kaggle, {}, ["names.csv", "anno_train.csv"]),
        ("sop", sop, {}, ["Ebay_train.txt"]),
        ("in-shop", in_shop, {}, ["list_eval_partition.txt"]),
        ("lfw", lfw, {}, ["peopleDevTrain.txt", "pairsDevTrain.txt"]),
        ("lfw", lfw, {"view": 2}, ["pairs.txt"]),
        ("cplfw", cplfw, {"test_identities": 2}, ["pairs_CPLFW.txt"]),
        ("ijbc", ijbc, {}, ["protocols/test1/enroll_templates.csv", "protocols/test1/match.csv"]),
        ("coco", coco_by_annotations, {}, ["annotations/captions_train2014.json", "annotations/coco_train_ids.npy"]),
        ("coco", lines_of_coco, {}, ["id_mapping.json", "precomp/train_caps.txt", "precomp/train_ids.txt"]),
        ("conceptual-captions", conceptual, {}, ["Train_GCC-training.tsv"]),
        ("msls", msls, {}, ["train_val/cph/query/postprocessed.csv", "train_val/cph/query/raw.csv"]),
    ):
        for file in files:
            up = file.count("/")
            yield Case(
                file,
                layout,
                lambda path, data=data, options=options, up=up: read(data, path.parents[up], **options),
            )


def of_torch(folder):
    import torch

    from peaccel import cli, train
    from peaccel.hub import Pretrained
    from peaccel.train import backbones, checkpoint

    state = {"a.weight": torch.ones(2, 3), "a.bias": torch.zeros(2)}

    def weights(at):
        torch.save(state, at / "w.pth")
        torch.save(state, at / "old.pth", _use_new_zipfile_serialization=False)
        checkpoint._save(at / "w.safetensors", state, {"method": "a", "seed": 1})

    yield Case("w.pth", weights, backbones.read)
    yield Case("old.pth", weights, backbones.read)
    yield Case("w.safetensors", weights, backbones.read)
    yield Case("w.safetensors", weights, checkpoint.load_tensors)

    run = folder / "run"
    rng, labels = np.random.default_rng(0), np.arange(8).repeat(4)
    np.savez(run.with_name("f.npz"), features=rng.normal(size=(32, 4)).astype(np.float32), labels=labels)
    cli.main(f"fit-head {run.with_name('f.npz')} --threads 1 --match.epochs 1 --out {run}".split())
    shared = Pretrained(fitted_on="32 items", run=run)

    def share(at):
        shared.save_pretrained(at / "shared")

    for name in ("run.json", "model.safetensors", "result.json", "config.json"):
        yield Case(f"shared/{name}", share, lambda path: train.load(Pretrained.from_pretrained(path.parent).run))


def of_images():
    from PIL import Image

    from peaccel.data.images import _faults, _read

    for name in ("a.jpg", "a.png", "a.webp", "a.tif", "a.bmp"):
        pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
        yield Case(
            name,
            lambda at, name=name, pixels=pixels: Image.fromarray(pixels).save(at / name),
            lambda path: (_faults([str(path)], whole=False), np.asarray(_read(str(path)))),
        )


def of_rerankers():
    import peaccel as pe

    def whole(reranker, mmap):
        """Of maps only sizes are checked until somebody asks."""
        return (reranker.verify() if mmap else reranker).search(d[:2], 2, shortlist=4)

    for kind, factory in (("flat", "Flat"), ("graph", "HNSW4"), ("lists", "IVF2,Flat")):
        d = pe.Normal(np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32), 0.5)
        reranker = pe.FaissReranker.build(d, factory)
        for name in ("index.faiss", "items.safetensors", "reranker.json"):
            for mmap in (False, True):
                yield Case(
                    f"{kind}/{name}",
                    lambda at, kind=kind, reranker=reranker: reranker.save(at / kind),
                    lambda path, mmap=mmap: whole(pe.FaissReranker.open(path.parent, mmap=mmap), mmap),
                )


def of_galleries(folder):
    import shutil

    import peaccel as pe

    d = pe.Normal(np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.linspace(0.5, 1, 40, dtype="f4"))
    kept = folder / "g.lance"
    if not kept.exists():
        gallery = pe.Gallery.create(kept, d[:30], np.arange(30))
        gallery.add(d[30:], np.arange(30, 40))
        gallery.remove([3, 35])
        gallery.search(d[:2], 5, "mls")

    def whole(path):
        gallery = pe.Gallery.open(path)
        if found := gallery.verify():
            raise ValueError(f"{path}: {found[0]}")
        return gallery.search(d[:2], 5, "mls")

    for file in sorted(x.relative_to(folder) for x in kept.rglob("*") if x.is_file()):
        yield Case(
            f"{file}", lambda at: shutil.copytree(kept, at / "g.lance"), lambda path: whole(_above(path, "g.lance"))
        )


def _above(path, name):
    return next(x for x in path.parents if x.name == name)


def of_watches():
    import peaccel as pe

    accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
    yield Case(
        "monitor.json",
        lambda at: pe.PromiseMonitor(accept, begun="2026-01-01").save(at / "monitor.json"),
        pe.PromiseMonitor.load,
    )


# -- damage ------------------------------------------------------------------------------------------------------------


def damages(content, count, rng):
    """So many damaged forms of a file's content."""
    cuts = range(len(content)) if len(content) <= count // 4 else rng.choice(len(content), count // 4, replace=False)
    yield from (content[:cut] for cut in cuts)
    for _ in range(count - len(cuts)):
        kind, at = rng.integers(6), int(rng.integers(len(content)))
        changed = bytearray(content)
        if kind <= 1:
            for place in rng.choice(len(content), min(len(content), int(rng.integers(1, 4))), replace=False):
                changed[place] ^= int(rng.choice([0xFF, 0x80, 1, 1 << int(rng.integers(8))]))
        elif kind == 2:
            size = int(rng.choice([1, 2, 4, 8]))
            value = int(rng.choice([0, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), 1 << (4 * size)]))
            changed[at : at + size] = value.to_bytes(size, str(rng.choice(["little", "big"])), signed=True)
        elif kind == 3:
            changed[at : at + int(rng.integers(1, 40))] = b""
        elif kind == 4:
            changed[at:at] = content[(start := int(rng.integers(len(content)))) : start + int(rng.integers(1, 40))]
        else:
            changed[at : at + int(rng.integers(1, 200))] = rng.bytes(int(rng.integers(1, 200)))
        yield bytes(changed)


def links(path, whole):
    """Put links in the place of a file; yield whether each leads to its whole content."""
    path.unlink()
    for target, leads in ((path.name, False), ("nowhere", False), (".", False), (whole, True)):
        path.symlink_to(target)
        yield leads
        path.unlink()


OUTCOMES = ("refused", "right", "wrong", "raw", "died")
# Why a damaged file may be read with other numbers: by suffix, by the file's name, or by what a name begins with.
DIGITS = "a digit or a line that is changed is another one"
UNCHECKED = {
    **dict.fromkeys((".csv", ".json", ".jsonl", ".toml", ".tsv", ".txt", ".plda"), DIGITS),
    **dict.fromkeys(("trials", "spk2utt"), DIGITS),
    **dict.fromkeys((".npy", ".safetensors", ".arrow", ".feather", ".parquet", ".h5"), "the format has no checksum"),
    **dict.fromkeys((".jpg", ".png", ".webp", ".tif", ".bmp"), "pixels have no checksum, or libraries pass over it"),
    **dict.fromkeys((".pth", "old.pth"), "torch does not compare the checksums of its archives"),
    **dict.fromkeys(("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"), "the format has no checksum"),
}


def content_of(x):
    """All that a reader returned, as values that can be compared."""
    if isinstance(x, np.ndarray):
        return (x.dtype.str, x.shape, x.tolist() if x.dtype == object else x.tobytes())
    if hasattr(x, "detach") and hasattr(x, "dtype"):
        return (str(x.dtype), tuple(x.shape), x.detach().double().numpy().tobytes())
    if isinstance(x, dict):
        return [(str(key), content_of(value)) for key, value in x.items()]
    if isinstance(x, (list, tuple)):
        return [content_of(value) for value in x]
    if isinstance(x, (str, bytes, int, float, complex, bool, type(None), Path, np.generic)):
        return repr(x)
    if hasattr(x, "state_dict"):
        return content_of(x.state_dict())
    fields = getattr(x, "__dict__", None) or {n: getattr(x, n) for n in getattr(x, "__slots__", ())}
    return (type(x).__name__, [(name, content_of(value)) for name, value in fields.items()])


def outcome(path, folder, read, expected):
    """The outcome of a read, and for raw ones what was seen."""
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        found = content_of(read(path))
    except (ValueError, OSError) as error:
        text = str(error)
        if type(error) not in (ValueError, FileNotFoundError, IsADirectoryError, OSError):
            return "raw", f"{type(error).__name__}: {text!r}"
        if f"{folder}" not in text or "\n" in text.strip():
            return "raw", f"names no file, or in several lines: {text!r}"
        return "refused", ""
    except BaseException as error:
        return "raw", f"{type(error).__name__}: {error!r:.300}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if time.perf_counter() - start > SECONDS:
        return "raw", "took too long"
    return ("right", "") if found == expected else ("wrong", "")


def attack(case, at, count, rng, expected):
    """Read damaged forms of a case's file; print one line of JSON with the outcomes and the first of each fault."""
    path, counts, seen = at / case.file, dict.fromkeys(OUTCOMES, 0), {}
    content = path.read_bytes()

    def enter(kept):
        kind, what = outcome(path, at, case.read, expected)
        if kind == "wrong" and not reason(case.file):
            what = "read with other numbers"
        if what and what[:40] not in seen:
            seen[what[:40]] = what
            if kept is not None:
                path.with_name(f"{path.name}.{len(seen)}").write_bytes(kept)
        counts[kind] += 1

    for damaged in damages(content, count, rng):
        path.write_bytes(damaged)
        enter(damaged)
    whole = at / "whole"
    whole.write_bytes(content)
    for _ in links(path, whole):
        enter(None)
    whole.rename(path)
    print(json.dumps({"file": case.file, "counts": counts, "faults": list(seen.values())}), flush=True)


def reason(file):
    """Why a file may be read with other numbers, or none."""
    path = Path(file)
    return UNCHECKED.get(path.name) or UNCHECKED.get(path.suffix) or ""


def main(folder, count, seed, first):
    """Read damaged files of all readers from one on; each reader's line begins before it is called."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="PIL")  # which says in several ways what it read nevertheless
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("it waits")))
    listed = list(cases(folder))
    expected = []
    for number, case in enumerate(listed):  # whole, before memory is bounded, since libraries are loaded by it
        at = folder / f"{number}"
        at.mkdir()
        case.write(at)
        expected.append(content_of(case.read(at / case.file)))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    for number, case in list(enumerate(listed))[first:]:
        print(f"CASE {number} {case.file}", flush=True)
        rng = np.random.default_rng([seed, number])
        attack(case, folder / f"{number}", count // len(listed), rng, expected[number])


def run(folder, count, seed):
    """The outcomes of all cases, in a process of their own that is begun anew behind the case at which it ended."""
    paths = os.pathsep.join([f"{Path(__file__).parent.parent}", *filter(None, [os.environ.get("PYTHONPATH")])])
    first, found = 0, []
    while True:
        at = folder / f"from-{first}"
        at.mkdir()
        command = [sys.executable, __file__, "--from", f"{first}", f"{at}", f"{count}", f"{seed}"]
        env = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        lines = done.stdout.splitlines()
        found += [json.loads(line) for line in lines if line.startswith("{")]
        if done.returncode == 0:
            return found
        assert lines[-1:] and lines[-1].startswith("CASE "), done.stderr[-2000:]
        number, file = lines[-1].split(" ", 2)[1:]
        counts = dict.fromkeys(OUTCOMES, 0) | {"died": 1}
        found.append({"file": file, "counts": counts, "faults": [f"ended by {done.returncode}: {done.stderr[-300:]}"]})
        first = int(number) + 1


def table(found):
    """The counts by file, with the reason of wrong ones."""
    rows = {}
    for row in found:
        kept = rows.setdefault(row["file"], dict.fromkeys(OUTCOMES, 0))
        for name, number in row["counts"].items():
            kept[name] += number
    total = {name: sum(row[name] for row in rows.values()) for name in OUTCOMES}
    print("| file | " + " | ".join(OUTCOMES) + " | why wrong |\n|---|" + "---|" * 6)
    for file, row in [*rows.items(), ("all", total)]:
        why = reason(file) if row["wrong"] else ""
        print(f"| {file} | " + " | ".join(str(row[name]) for name in OUTCOMES) + f" | {why} |")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as Linux bounds it")
def test_no_damaged_file_is_anything_but_read_or_refused(tmp_path):
    seed = int(np.random.default_rng().integers(2**31)) if COUNT else 0
    found = run(tmp_path, COUNT or FILES, seed)
    wrong = [f"{row['file']}: {fault}" for row in found for fault in row["faults"]]
    assert not wrong, f"seed {seed}, {tmp_path}:\n" + "\n".join(wrong)
    assert len(found) > 90
    assert sum(row["counts"]["refused"] for row in found) > (COUNT or FILES) / 2


def test_outcomes_are_told_from_one_another(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, MU)
    expected = content_of(MU)
    assert outcome(path, tmp_path, np.load, expected) == ("right", "")
    assert outcome(path, tmp_path, lambda path: -np.load(path), expected) == ("wrong", "")
    refused = ValueError(f"{path}: is cut")
    for error, kind in ((refused, "refused"), (ValueError("is cut"), "raw"), (KeyError(1), "raw")):

        def read(path, error=error):
            raise error

        assert outcome(path, tmp_path, read, expected)[0] == kind


def test_a_member_that_is_lost_or_renamed_is_no_other_kind_of_item(tmp_path):
    from peaccel import io

    path = tmp_path / "d.npz"
    np.savez(path, mu=MU, var=VAR)
    content = path.read_bytes()
    name, length = content.rindex(b"var.npy"), content.rindex(b"mu.npy") - 15  # in the list of members; of a comment
    size = content.rindex(b"mu.npy") - 22  # of the member, and its compressed one: a checksum is compared at the end
    mean = content.index(MU.tobytes()) + 3
    for changes in ({name: ord("w")}, {length: 1}, {size + 1: 128, size - 3: 128, mean: 1}):
        path.write_bytes(bytes(changes.get(place, value) for place, value in enumerate(content)))
        with pytest.raises(ValueError, match=r"d\.npz: (key mu )?cannot be read, truncated or damaged"):
            io.read_distribution(path)


def test_columns_of_lines_that_have_lost_rows_are_refused(tmp_path, monkeypatch):
    """As pyarrow reads a file in which one column's number of rows is damaged."""
    from peaccel import io
    from peaccel.io import rankings

    path = tmp_path / "r.parquet"
    io.write_ranking(path, (np.ones((1, 2)), np.array([[3, 4]])))
    whole = rankings.column_of_file
    monkeypatch.setattr(rankings, "column_of_file", lambda at, name: whole(at, name)[: 0 if name == "score" else 2])
    with pytest.raises(ValueError, match=r"r\.parquet: columns have \[0, 2\] rows, expected as many in each$"):
        io.read_ranking(path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--from"]:
        main(Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = run(Path(folder), COUNT or 100_000, int(np.random.default_rng().integers(2**31)))
        table(outcomes)
        faults = [f"{row['file']}: {fault}" for row in outcomes for fault in row["faults"]]
        print(*faults, sep="\n")
        sys.exit(bool(faults))
