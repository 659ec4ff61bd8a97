"""Items are read of whatever numpy, pandas, Polars or a database of vectors wrote, under any names, and all alike."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import peaccel as pe
from peaccel import io
from peaccel.io.distribution_files import items_in_file

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
NAMES = np.array([f"é {i}" for i in range(6)])
YEARS = np.arange(2000, 2006)
COLUMNS = {"key": NAMES.tolist(), "vector": X.tolist(), "year": YEARS.tolist()}


def lines(path, columns=COLUMNS):
    rows = zip(*columns.values(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))


def frame(path, columns=COLUMNS):
    pd.DataFrame(columns).to_csv(path, index=False)


def ipc(path):
    pl.DataFrame(COLUMNS | {"vector": X}).write_ipc(path, compression="uncompressed")


WRITERS = {
    "t.npz": lambda p: np.savez(p, vector=X, key=NAMES, year=YEARS),
    "zipped.npz": lambda p: np.savez_compressed(p, vector=X, key=NAMES, year=YEARS),
    "t.parquet": lambda p: pd.DataFrame(COLUMNS | {"vector": list(X)}).to_parquet(p),
    "polars.parquet": lambda p: pl.DataFrame(COLUMNS | {"vector": X}).write_parquet(p),
    "t.arrow": ipc,
    "t.csv": frame,
    "spaces.csv": lambda p: frame(p, COLUMNS | {"vector": [str(np.array(x.tolist())) for x in X]}),
    "t.jsonl": lines,
    "pandas.jsonl": lambda p: pd.DataFrame(COLUMNS).to_json(p, orient="records", lines=True, double_precision=15),
}


@pytest.mark.parametrize("name", WRITERS)
def test_items_and_ids_are_read_of_every_form_under_the_names_behind_the_path(name, tmp_path):
    path = tmp_path / name
    WRITERS[name](path)
    for text in (f"{path}", f"{path}:vector", f"{path}:mu=vector", f"{path}:mu=vector,id=key", f"{path}:id=key"):
        found = io.read_distribution(text)
        # pandas writes numbers of float32 as float64, and numpy prints eight digits
        np.testing.assert_allclose(found.mu, X, rtol=0, atol=1e-8)
    items = items_in_file(f"{path}:mu=vector,id=key")
    assert items.ids.tolist() == io.read_ids(f"{path}:key").tolist() == NAMES.tolist()
    assert io.read_ids(f"{path}:mu=vector,id=key").tolist() == NAMES.tolist()
    assert io.read_labels(f"{path}:year").tolist() == YEARS.tolist()
    with pytest.raises(ValueError, match=r": column nothing is missing, found .*vector"):
        io.read_distribution(f"{path}:mu=nothing")
    with pytest.raises(ValueError, match=r": column nothing is missing, found .*vector"):
        io.read_distribution(f"{path}:mu=vector,id=nothing")


@pytest.mark.parametrize("mean", ["mu", "embeddings", "embedding", "vectors", "vector", "features", "x"])
def test_means_go_by_the_names_of_the_field(mean, tmp_path):
    np.savez(tmp_path / "t.npz", **{mean: X}, var=np.ones(6, np.float32), ids=NAMES, labels=YEARS)
    assert io.read_distribution(tmp_path / "t.npz").kind == "normal_isotropic"
    table = pa.table({mean: list(X), "kappa": np.ones(6, np.float32)})
    assert type(io.from_arrow(table.set_column(0, mean, [list(X / np.linalg.norm(X, axis=1)[:, None])]))).__name__ == (
        "VonMisesFisher"
    )
    np.savez(tmp_path / "t.npz", **{mean: X, "latent": X})
    assert len(io.read_distribution(f"{tmp_path / 't.npz'}:mu=latent")) == 6


def test_what_sentence_transformers_gives_is_read(tmp_path):
    """Its `encode` returns an array of float32, which is saved by numpy, alone or beside the sentences."""
    np.save(tmp_path / "e.npy", X)
    np.savez(tmp_path / "e.npz", embeddings=X, sentences=NAMES)
    for name in ("e.npy", "e.npz"):
        assert (io.read_distribution(tmp_path / name).mu == X).all()


def test_an_export_of_qdrant_is_read(tmp_path):
    """Points as the client's records have them, a line each; vectors of several names are parted by a dot."""
    qdrant = pytest.importorskip("qdrant_client")
    models, client = qdrant.models, qdrant.QdrantClient(":memory:")
    size = models.VectorParams(size=4, distance=models.Distance.DOT)
    for collection, vectors in (("one", size), ("several", {"image": size, "text": size})):
        client.create_collection(collection, vectors_config=vectors)
        points = [
            models.PointStruct(
                id=i, vector=x.tolist() if collection == "one" else {"image": x.tolist(), "text": [1.0] * 4},
                payload={"year": int(year)},
            )
            for i, (x, year) in enumerate(zip(X, YEARS, strict=True))
        ]  # fmt: skip
        client.upsert(collection, points)
        records, _ = client.scroll(collection, with_vectors=True, limit=100)
        path = tmp_path / f"{collection}.jsonl"
        path.write_text("".join(record.model_dump_json() + "\n" for record in records))
        text = f"{path}:id=id" if collection == "one" else f"{path}:mu=vector.image,id=id"
        items = items_in_file(text)
        np.testing.assert_allclose(items.distribution.mu, X, rtol=1e-6)
        assert (
            items.ids.tolist() == list(range(6)) and io.read_labels(f"{path}:payload.year").tolist() == YEARS.tolist()
        )


def test_a_table_of_lancedb_is_read(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    lancedb.connect(tmp_path / "db").create_table(
        "t", pa.table(COLUMNS | {"vector": pa.array(list(X), pa.list_(pa.float32(), 4))})
    )
    items = items_in_file(f"{tmp_path}/db/t.lance:id=key")
    assert (items.distribution.mu == X).all() and items.ids.tolist() == NAMES.tolist()


def test_a_bulk_file_of_milvus_is_read(tmp_path):
    """In the form of its bulk writer's Parquet files: lists of float and, beside them, fields as JSON."""
    fields = {"id": pa.array(range(6), pa.int64()), "vector": pa.array(X.tolist(), pa.list_(pa.float32()))}
    parquet.write_table(pa.table(fields | {"$meta": ["{}"] * 6}), tmp_path / "1.parquet")
    items = items_in_file(f"{tmp_path}/1.parquet:id=id")
    assert (items.distribution.mu == X).all() and items.ids.tolist() == list(range(6))


SPOILT = X.astype(float).tolist()
SPOILT[1][2], SPOILT[4] = float("nan"), None
SPOILT_FILES = {
    "s.npz": lambda p: np.savez(p, mu=[[np.nan] * 4 if x is None else x for x in SPOILT], id=NAMES),
    "s.npy": lambda p: np.save(p, np.array([[np.nan] * 4 if x is None else x for x in SPOILT])),
    "s.parquet": lambda p: parquet.write_table(pa.table({"mu": SPOILT, "id": NAMES}), p),
    "fixed.parquet": lambda p: parquet.write_table(
        pa.table({"mu": pa.array(SPOILT, pa.list_(pa.float64(), 4)), "id": NAMES}), p
    ),
    "s.jsonl": lambda p: lines(p, {"mu": SPOILT, "id": NAMES.tolist()}),
    "s.csv": lambda p: frame(p, {"mu": SPOILT, "id": NAMES}),
}


@pytest.mark.parametrize("name", SPOILT_FILES)
def test_rows_that_are_nan_or_null_are_counted_or_left_out(name, tmp_path):
    path = tmp_path / name
    SPOILT_FILES[name](path)
    with pytest.raises(ValueError, match=r"mu is NaN or null in 2 of 6 rows: 1, 4; skip_bad=True or --skip-bad leaves"):
        io.read_distribution(path)
    with pytest.warns(UserWarning, match=rf"{name}.*: left out what is NaN or null in 2 of 6 rows: 1, 4$"):
        items = items_in_file(path if name == "s.npy" else f"{path}:id=id", skip_bad=True)
    assert (items.distribution.mu == X[[0, 2, 3, 5]]).all() and items.kept.tolist() == [1, 0, 1, 1, 0, 1]
    assert name == "s.npy" or items.ids.tolist() == NAMES[[0, 2, 3, 5]].tolist()


def test_parameters_that_are_nan_are_left_out_and_what_is_one_for_all_stays(tmp_path):
    mu = np.array([[1.0, 0.0], [np.nan, 1.0], [0.0, 1.0]])
    np.savez(tmp_path / "d.npz", mu=mu, var=[0.5])
    with pytest.warns(UserWarning, match="row 1$"):
        d = io.read_distribution(tmp_path / "d.npz", skip_bad=True)
    assert len(d) == 2 and d.common_parameter().tolist() == [0.5]
    table = pa.table({"vector": mu[[0, 2, 2, 2]].tolist(), "var": [0.5, None, 0.5, np.nan], "id": [3, 4, 5, 6]})
    with pytest.raises(ValueError, match=r"^from_arrow: var is NaN or null in 2 of 4 rows: 1, 3; skip_bad=True"):
        io.from_arrow(table)
    with pytest.warns(UserWarning, match="^from_arrow: left out"):
        d, ids = io.from_arrow(table, ids="id", skip_bad=True)
    assert ids.tolist() == [3, 5] and d.var.tolist() == [0.5, 0.5] and type(d) is pe.Normal
