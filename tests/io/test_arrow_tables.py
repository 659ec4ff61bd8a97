"""Tables become distributions and come back, whoever holds them; what is wrong is named with its row."""

import itertools
import re
import sys
import tracemalloc

import lance
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from items import KINDS, make

import peaccel as pe
from peaccel import io

MU = np.arange(15, dtype=np.float32).reshape(5, 3)
VAR = np.arange(1, 6, dtype=np.float32)
TABLE = io.to_arrow(pe.Normal(MU, VAR), ids=list("abcde"))


def same(a, b):
    """Whether two distributions are of one kind and dtype, and hold the same bits."""
    assert a.kind == b.kind, (a, b)
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(a.arrays, b.arrays, strict=True))


def lists(rows, kind=None):
    return pa.array(rows, kind or pa.list_(pa.float32()))


# ---- what is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_distributions_come_back_bit_for_bit(kind, dtype, library, count):
    d = make(kind, 7, dtype=dtype, library=library)[:count]
    plain = type(d)(*(np.asarray(x) for x in d.arrays))
    found, ids = io.from_arrow(io.to_arrow(d, ids=np.arange(count) + 5), ids="id")
    assert same(found, plain) and ids.dtype == np.int64 and ids.tolist() == list(range(5, count + 5))


def test_bfloat16_becomes_float32():
    for d in (pe.Normal(MU, VAR).to(ml_dtypes.bfloat16), pe.Normal(torch.tensor(MU), torch.tensor(VAR)).to("bfloat16")):
        assert same(io.from_arrow(io.to_arrow(d)), pe.Normal(MU, VAR))


def test_one_variance_of_all_is_written_in_each_row():
    assert same(io.from_arrow(io.to_arrow(pe.Normal(MU, np.float32(0.5)))), pe.Normal(MU, np.full(5, 0.5, np.float32)))


COMMON = {
    "normal_isotropic": pe.Normal(MU, np.float32(0.5)),
    "normal_diagonal": pe.Normal(MU, VAR[None, :3]),
    "one item": pe.Normal(MU[:1], np.float32(0.5)),
    "vmf": pe.VonMisesFisher(np.eye(3), 7.0),
    "nivmf": pe.NonIsotropicVonMisesFisher(np.eye(3), [[1.0, 2.0, 3.0]]),
    "scaled": pe.Scaled(torch.eye(3), 3.0),
}


@pytest.mark.parametrize("d", COMMON.values(), ids=COMMON)
def test_what_is_one_for_all_items_comes_back_as_one(d, tmp_path):
    table = io.to_arrow(d)
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    lance.write_dataset(table, tmp_path / "t.lance")
    files = [io.read_distribution(tmp_path / name) for name in ("t.parquet", "t.lance")]
    blocks = [*io.arrow_blocks(table, rows=2), *io.arrow_blocks(lance.dataset(tmp_path / "t.lance"), rows=2)]
    for found in (io.from_arrow(table), io.from_arrow(table.to_reader()), *files, *blocks):
        np.testing.assert_array_equal(found.common_parameter(), np.asarray(d.common_parameter()))
    each = type(d)(*(np.asarray(x).copy() for x in d.arrays))
    assert io.from_arrow(io.to_arrow(each)).common_parameter() is None
    assert same(io.from_arrow(table), each)


def test_a_table_with_one_variance_gives_the_scores_of_the_items():
    random = np.random.default_rng(0)
    gallery, queries = (pe.Normal(random.normal(0, 1, (n, 16)).astype("f"), np.float32(0.3)) for n in (500, 20))
    score, table = pe.scores.llr(prior_var=np.exp(random.normal(0, 1, 16))), io.to_arrow(gallery)
    expected = pe.search(queries, gallery, 9, score)
    for source in (io.from_arrow(table), io.arrow_blocks(table, rows=70)):
        for x, y in zip(pe.search(queries, source, 9, score), expected, strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_of_another_variance_leave_none_in_common():
    table = pa.concat_tables([io.to_arrow(pe.Normal(MU, np.float32(var))) for var in (0.5, 0.5, 0.7)])
    assert io.from_arrow(table[:10]).common_parameter() is not None
    assert io.from_arrow(table).common_parameter() is None
    assert all(block.common_parameter() is None for block in io.arrow_blocks(table, rows=4))
    once = io.arrow_blocks(table.to_reader(), rows=4)  # which cannot be looked through before
    assert all(block.common_parameter() is None for block in once)


def test_columns_go_by_any_name_and_the_table_says_what_it_holds():
    vectors = TABLE.rename_columns(["key", "vector", "sigma_sq"])
    assert same(io.from_arrow(vectors, mu="vector", var="sigma_sq"), pe.Normal(MU, VAR))
    assert io.from_arrow(vectors, mu="vector").kind == "point"
    unit = MU / np.linalg.norm(MU, axis=1, keepdims=True)
    directions = io.to_arrow(pe.Point(unit), kappa=VAR, scale=VAR + 1, narrow=np.abs(MU))
    assert same(io.from_arrow(directions, kappa="kappa"), pe.VonMisesFisher(unit, VAR))
    assert same(io.from_arrow(directions, kappa="narrow"), pe.NonIsotropicVonMisesFisher(unit, np.abs(MU)))
    assert same(io.from_arrow(directions, scale="scale"), pe.Scaled(unit, VAR + 1))


COUNTS = st.integers(0, 6)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    rows=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    window=st.tuples(COUNTS, COUNTS),
    kind=st.sampled_from(["fixed", "list", "large_list"]),
    diagonal=st.booleans(),
    words=st.sampled_from(["int64", "uint16", "string", "large_string", "string_view", "dictionary"]),
    size=st.integers(1, 50),
)
def test_chunks_slices_and_types_of_lists_make_no_difference(rows, cuts, window, kind, diagonal, words, size):
    """A table in chunks, and a slice of it whose offsets are not 0, is what its rows are, in blocks too."""
    mu = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    var = np.abs(mu) if diagonal else np.abs(mu[:, 0])
    names = np.arange(rows) * 3 if "int" in words else np.array([f"{i}x" for i in range(rows)])
    types = {
        "fixed": pa.list_(pa.float32(), 3),
        "list": pa.list_(pa.float32()),
        "large_list": pa.large_list(pa.float32()),
    }
    column = pa.array(names).dictionary_encode() if words == "dictionary" else pa.array(names).cast(words)
    table = pa.table(
        {
            "x": pa.array(list(mu), types[kind]),
            "var": pa.array(list(var), types[kind] if diagonal else None),
            "key": column,
        }
    )
    bounds = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    table = pa.concat_tables([table.slice(a, b - a) for a, b in itertools.pairwise(bounds)])
    start, stop = window[0], max(window[0], rows - window[1])
    table = table.slice(start, stop - start)
    if not len(table) and kind != "fixed":
        return  # nothing tells how long lists are
    kept = slice(start, start + len(table))
    found, ids = io.from_arrow(table, mu="x", ids="key")
    assert same(found, pe.Normal(mu[kept], var[kept])) and ids.tolist() == names[kept].tolist()
    blocks = io.arrow_blocks(table, mu="x", ids="key", rows=size)
    for _ in range(2):
        parts = list(blocks)
        assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
        assert not parts or (same(pe.concat(parts), found) and blocks.ids.tolist() == ids.tolist())


def test_lists_of_views_and_tensors_are_taken():
    view = pa.ListViewArray.from_arrays([3, 0], [3, 3], pa.array(MU.ravel()[:6]))
    assert io.from_arrow(pa.table({"mu": view})).mu.tolist() == MU[[1, 0]].tolist()
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(MU)
    assert io.from_arrow(pa.table({"mu": tensors})).mu.tolist() == MU.tolist()


def test_a_column_of_one_chunk_is_not_copied_and_one_of_several_is_copied_once():
    mu = np.zeros((4096, 64), np.float32)
    table = io.to_arrow(pe.Normal(mu, np.ones((4096, 64), np.float32)))
    assert np.shares_memory(io.from_arrow(table).mu, mu)  # neither on the way in, nor on the way out
    assert np.shares_memory(io.from_arrow(table.slice(7, 100)).mu, mu)
    assert all(np.shares_memory(block.mu, mu) for block in io.arrow_blocks(table, rows=1000))
    assert not io.from_arrow(table).mu.flags.writeable
    several = pa.concat_tables([table.slice(0, 9), table.slice(9)])
    io.from_arrow(several)
    allocated = []
    for each in (table, several):
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        found = io.from_arrow(each)
        allocated.append((tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes() - before))
        tracemalloc.stop()
    del found
    assert allocated[0][0] < 20_000 and allocated[0][1] == 0
    assert 2 * mu.nbytes < allocated[1][0] < 2 * mu.nbytes + 20_000 and allocated[1][1] == 0


# ---- who holds tables -----------------------------------------------------------------------------------------------


class Stream:
    def __arrow_c_stream__(self, requested_schema=None):
        return TABLE.__arrow_c_stream__(requested_schema)


class Batch:
    def __arrow_c_array__(self, requested_schema=None):
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class Leads:
    def __init__(self, name):
        setattr(self, name, lambda: TABLE.to_reader() if name == "to_reader" else TABLE)


def of_parquet(folder):
    import pyarrow.parquet as pq

    pq.write_table(TABLE, folder / "t.parquet", row_group_size=2)
    return pq.ParquetFile(folder / "t.parquet")


def of_dataset(folder):
    import pyarrow.dataset as ds

    of_parquet(folder).close()
    return ds.dataset(folder / "t.parquet")


def of_polars(_):
    import polars

    return polars.from_arrow(TABLE)


def of_duckdb(_):
    import duckdb

    return duckdb.connect().from_arrow(TABLE).query("t", "select id, mu::FLOAT[] as mu, var from t")


def of_lance(folder):
    import lance

    return lance.write_dataset(TABLE, folder / "t.lance")


def of_lancedb(folder):
    import lancedb

    return lancedb.connect(folder).create_table("t", TABLE)


def of_hugging_face(_):
    import datasets

    rows = TABLE.take([4, 3, 2, 1, 0]).to_pylist()
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "mu": datasets.List(datasets.Value("float32")),
            "var": datasets.Value("float32"),
        }
    )
    return datasets.Dataset.from_list(rows, features).select([4, 3, 2, 1, 0])


CLIENTS = {
    "table": lambda _: TABLE,
    "batch": lambda _: TABLE.to_batches()[0],
    "stream": lambda _: Stream(),
    "array": lambda _: Batch(),
    "to_reader": lambda _: Leads("to_reader"),
    "to_arrow": lambda _: Leads("to_arrow"),
    "to_table": lambda _: Leads("to_table"),
    "parquet": of_parquet,
    "dataset": of_dataset,
    "scanner": lambda folder: of_dataset(folder).scanner(),
    "polars": of_polars,
    "pandas": lambda _: TABLE.to_pandas(),
    "duckdb": of_duckdb,
    "lance": of_lance,
    "lance scanner": lambda folder: of_lance(folder).scanner(),
    "lancedb": of_lancedb,
    "lancedb query": lambda folder: of_lancedb(folder).search().limit(9),
    "datasets": of_hugging_face,
    "iterable dataset": lambda folder: of_hugging_face(folder).to_iterable_dataset(),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gives_the_same_items(client, tmp_path):
    source = CLIENTS[client](tmp_path)
    found, ids = io.from_arrow(source, ids="id")
    assert same(found, pe.Normal(MU, VAR)) and ids.tolist() == list("abcde")
    blocks = io.arrow_blocks(source, ids="id", rows=2)
    for _ in range(2):
        parts = list(blocks)
        assert [len(part) for part in parts] == [2, 2, 1]
        assert same(pe.concat(parts), found) and blocks.ids.tolist() == list("abcde")
    with pytest.raises(ValueError, match=r"from_arrow: column key is missing, found .*mu"):
        io.from_arrow(source, ids="key")


def test_a_reader_gives_its_blocks_once():
    blocks = io.arrow_blocks(TABLE.to_reader(), ids="id", rows=3)
    with pytest.raises(ValueError, match="arrow_blocks: ids are known once all blocks were read"):
        blocks.ids  # noqa: B018
    assert [len(block) for block in blocks] == [3, 2] and blocks.ids.tolist() == list("abcde")
    with pytest.raises(ValueError, match="arrow_blocks: source is a reader that was read already"):
        iter(blocks)
    assert same(io.from_arrow(TABLE.to_reader()), pe.Normal(MU, VAR))
    with pytest.raises(ValueError, match="arrow_blocks: no column of ids was named"):
        io.arrow_blocks(TABLE).ids  # noqa: B018


def test_blocks_of_a_parquet_file_are_let_go_of(tmp_path):
    """pyarrow keeps what it has read ahead until the end, where one does not ask it to read less."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    path, mu = tmp_path / "t.parquet", np.random.default_rng(0).random((20_000, 128), np.float32)
    pq.write_table(io.to_arrow(pe.Point(mu)), path, row_group_size=500)
    for source in (ds.dataset(path), pq.ParquetFile(path)):
        before = pa.total_allocated_bytes()
        held = [pa.total_allocated_bytes() - before for _ in io.arrow_blocks(source, rows=1000)]
        assert len(held) == 20 and max(held) < mu.nbytes  # by default up to three times as much


# ---- what is wrong --------------------------------------------------------------------------------------------------


def with_column(name, column):
    return TABLE.set_column(TABLE.column_names.index(name), name, column)


FIXED = pa.list_(pa.float32(), 3)
NAN = np.where(np.arange(5) == 3, np.nan, VAR).astype(np.float32)
WRONG = {
    "mu is NaN or null in row 3": with_column("mu", lists([*MU[:3], None, MU[4]], FIXED)),
    "mu is NaN or null in row 2": with_column("mu", lists([*MU[:2], None, *MU[3:]])),
    "is NaN or null in row 3": with_column("mu", lists([*MU[:3].tolist(), [1, None, 3], MU[4].tolist()], FIXED)),
    "mu is NaN or null in row 1": with_column("mu", lists([MU[0].tolist(), [1, None, 3], *MU[2:].tolist()])),
    "var is NaN or null in row 4": with_column("var", lists([*VAR[:4], None], pa.float32())),
    "mu has 2 numbers in row 3, expected 3": with_column("mu", lists([*MU[:3], [1, 2], MU[4]])),
    "mu is list<item: int64>, expected lists of float16, float32 or float64": with_column(
        "mu", lists([[1, 2, 3]] * 5, pa.list_(pa.int64()))
    ),
    "mu is string, expected lists": with_column("mu", pa.array(list("abcde"))),
    "mu is float, expected lists of float16, float32 or float64": with_column("mu", pa.array(VAR)),
    "var is int64, expected lists of float16, float32 or float64, or such numbers": with_column(
        "var", pa.array(np.arange(5))
    ),
    "id is double, expected integers or strings": with_column("id", pa.array(VAR.astype(float))),
    "id is null in row 0": with_column("id", pa.array([None, *"bcde"])),
    "id is 18446744073709551615 in row 4, beyond int64": with_column(
        "id", pa.array([0, 1, 2, 3, 2**64 - 1], pa.uint64())
    ),
    "id ends in a zero character in row 1": with_column("id", pa.array(["a", "b\0", *"cde"])),
    "var is NaN or null in row 3": with_column("var", pa.array(NAN)),
    "Normal: var is negative in row 0": with_column("var", pa.array(VAR - np.float32(1.5))),
    "Normal: var has shape (5, 2), expected (5,) or (5, 3) like mu": with_column("var", lists(MU[:, :2].tolist())),
    "no array of means, found id, var; expected mu or embeddings": TABLE.drop_columns("mu"),
    "column mu is there twice, found id, mu, var, mu": TABLE.append_column("mu", TABLE.column("mu")),
    "var and kappa are both there, expected one; name it": TABLE.append_column("kappa", TABLE.column("var")),
    "mu is list<item: float> without rows": with_column("mu", lists(MU.tolist()))[:0],
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_named_with_its_row(message):
    with pytest.raises(ValueError, match=rf"^from_arrow: .*{re.escape(message)}[^\n]*$"):
        io.from_arrow(WRONG[message], ids="id")
    row = re.search(r"row (\d)", message)
    if row:  # rows are those of the table, in its slices, chunks and blocks too
        right = WRONG[message].take([i for i in range(5) if i != int(row[1])][:2])
        moved = message.replace(row[0], f"row {int(row[1]) + 2}")
        sliced = pa.concat_tables([right, WRONG[message].slice(0, 1), WRONG[message].slice(1)])
        for read in (io.from_arrow, lambda t, ids: list(io.arrow_blocks(t, ids=ids, rows=2))):
            with pytest.raises(ValueError, match=re.escape(moved)):
                read(sliced, ids="id")


def test_sources_and_options_that_are_wrong_are_refused_before_work():
    import polars

    for source, got in ((MU, "ndarray"), ({"mu": MU}, "dict"), (None, "NoneType"), ("t.parquet", "str")):
        with pytest.raises(TypeError, match=rf"^from_arrow: source must be a table of .*, got {got}$"):
            io.from_arrow(source)
    with pytest.raises(TypeError, match=r"LazyFrame; collect it first$"):
        io.from_arrow(polars.from_arrow(TABLE).lazy())
    with pytest.raises(ValueError, match=r"^from_arrow: var and kappa are both there, expected one"):
        io.from_arrow(TABLE, var="var", kappa="var")
    with pytest.raises(ValueError, match=r"^arrow_blocks: column sigma is missing"):
        io.arrow_blocks(TABLE, var="sigma")
    for rows in (0, 1.5, "1"):
        with pytest.raises(ValueError, match=r"^arrow_blocks: rows is "):
            io.arrow_blocks(TABLE, rows=rows)


def test_tables_that_cannot_be_made_are_refused():
    d = pe.Normal(MU, VAR)
    with pytest.raises(TypeError, match=r"^to_arrow: distribution must be a distribution, got ndarray"):
        io.to_arrow(MU)
    with pytest.raises(ValueError, match=r"^to_arrow: id has 2 rows, expected 5 like the distribution"):
        io.to_arrow(d, ids=[1, 2])
    with pytest.raises(ValueError, match=r"^to_arrow: year has 3 rows, expected 5"):
        io.to_arrow(d, year=[1, 2, 3])
    with pytest.raises(ValueError, match=r"^to_arrow: column var is there already"):
        io.to_arrow(d, var=VAR)
    with pytest.raises(ValueError, match=r"^to_arrow: column id is there already"):
        io.to_arrow(d, ids=VAR, id=VAR)
    with pytest.raises(ValueError, match=r"^to_arrow: image has shape \(5, 2, 2\)"):
        io.to_arrow(d, image=np.zeros((5, 2, 2)))
    with pytest.raises(ValueError, match=r"^to_arrow: what is no column"):
        io.to_arrow(d, what=[1, "a", object(), 2, 3])
    assert io.to_arrow(d, image=np.zeros((5, 2))).column("image").type == pa.list_(pa.float64(), 2)


def test_without_pyarrow_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for function, x in ((io.from_arrow, TABLE), (io.to_arrow, pe.Normal(MU, VAR)), (io.arrow_blocks, TABLE)):
        with pytest.raises(ImportError, match=r"^tables need pyarrow: pip install peaccel\[arrow\]$"):
            function(x)


def test_the_other_byte_order_is_turned():
    d = pe.Normal(MU.astype(">f4"), VAR.astype(">f4"))
    table = io.to_arrow(d, ids=np.arange(5).astype(">i8"))
    assert table.equals(io.to_arrow(pe.Normal(MU, VAR), ids=np.arange(5)))
