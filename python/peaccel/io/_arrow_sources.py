"""Tables of any source as pyarrow's tables and batches. The only module that imports pyarrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peaccel._utils.atomic_files import PathLike, check_suffix
from peaccel._utils.reading import reading, require_proportion
from peaccel._utils.table_paths import TABLES, file_of

if TYPE_CHECKING:
    from pyarrow import Table
else:
    Table = object  # pyarrow is imported when it is used

__all__ = ["Table", "TableSource", "arrow", "in_blocks", "opened", "opened_file", "texts_in"]


READ_AHEAD = {"batch_readahead": 2, "fragment_readahead": 1}  # 16 and 4, the defaults, hold gigabytes of wide rows
LANCE_BATCH = 8192  # rows: of more, Lance holds several times what they take
LANCE_BUFFER = {"io_buffer_size": 1 << 26}


class TableSource(NamedTuple):
    """A table that somebody else holds, in memory or not."""

    names: tuple[str, ...]
    """The names of its columns."""
    table: Callable[[Sequence[str]], Any]
    """Some of its columns as a pyarrow table, whose chunks are those of the source."""
    batches: Callable[[Sequence[str], int], Iterable[Any]]
    """Some of its columns as record batches in order, of at most so many rows where the source can choose."""
    once: bool = False
    """Whether it can be read only once."""


def arrow(what: str = "tables") -> Any:
    """pyarrow, or one line that says what needs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{what} need pyarrow: pip install peaccel[arrow]") from None
    return pyarrow


def opened(owner: str, source: Any) -> TableSource:
    """The table that an object holds or leads to; TypeError where it holds none.

    What can read some of its columns alone, or in blocks, comes before what gives a stream of all.
    """
    pa = arrow()
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return _in_memory(source)
    if hasattr(source, "to_lance"):  # a table of LanceDB
        return opened(owner, source.to_lance())
    if hasattr(source, "with_format") and hasattr(source, "iter"):
        return _of_hugging_face(source)
    if hasattr(source, "scanner") and hasattr(source, "to_batches"):
        return _of_dataset(source)
    if hasattr(source, "iter_batches"):  # a ParquetFile
        return TableSource(
            tuple(source.schema_arrow.names),
            lambda columns: source.read(columns=list(columns)),
            lambda columns, rows: (
                batch
                for group in range(source.num_row_groups)  # of all at once it would keep what it has read
                for batch in source.iter_batches(rows, row_groups=[group], columns=list(columns))
            ),
        )
    if hasattr(source, "to_arrow_reader"):  # a relation of DuckDB, which reads ahead by batches of this size
        return _streamed(source.to_arrow_reader, source.columns)
    if hasattr(source, "__arrow_c_stream__"):
        if isinstance(source, pa.RecordBatchReader):
            return _streamed(lambda _: source, source.schema.names, once=True)
        reader = pa.RecordBatchReader.from_stream(source)
        return _streamed(lambda _: pa.RecordBatchReader.from_stream(source), reader.schema.names)
    if hasattr(source, "__arrow_c_array__"):
        return _in_memory(pa.Table.from_batches([pa.record_batch(source)]))
    for name in ("to_reader", "to_arrow", "to_table"):
        if hasattr(source, name):
            return _led_to(owner, source, name)
    hint = "; collect it first" if hasattr(source, "collect") else ""
    expected = "a table of pyarrow, Polars, DuckDB, pandas, Lance, LanceDB or datasets, or what has __arrow_c_stream__"
    raise TypeError(f"{owner}: source must be {expected}, got {type(source).__name__}{hint}")


def opened_file(path: PathLike) -> TableSource:
    """The table in a .parquet, .arrow, .feather, .csv or .jsonl file, a folder of .parquet files or a .lance dataset.

    Columns that the path names are for the caller.
    """
    path = file_of(path)
    check_suffix(path, TABLES)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    arrow(f"{path}: {path.suffix} files")
    with reading(path):
        found = FILES[path.suffix](path)
        source = opened(str(path), found)

    # What is read is validated, or offsets of strings and lists beyond the file would be followed.
    def table(columns: Sequence[str]) -> Any:
        with reading(path):
            size = sum(x.stat().st_size for x in (path.rglob("*") if path.is_dir() else [path]))
            if hasattr(found, "count_rows"):  # a few bytes may say that one value fills any number of rows
                count = found.count_rows()
                asked = count * sum(_least_bytes(found.schema.field(name).type) for name in columns)
                require_proportion(path, f"a table of {count:,} rows", asked, size)
            strings = []
            if path.suffix == ".parquet":
                strings = [name for name in columns if str(found.schema.field(name).type) in ("string", "large_string")]
            chosen = source.table([name for name in columns if name not in strings])
            chosen = _with_strings(path, chosen, strings, size).select(list(columns)) if strings else chosen
            chosen.validate(full=True)
            return chosen

    def batches(columns: Sequence[str], rows: int) -> Iterator[Any]:
        with reading(path):
            for batch in source.batches(columns, rows):
                batch.validate(full=True)
                yield batch

    return source._replace(table=table, batches=batches)


def _least_bytes(type: Any) -> int:
    """How many bytes a row of a column takes at least."""
    if hasattr(type, "list_size"):
        return int(type.list_size) * _least_bytes(type.value_type)
    try:
        return int(type.bit_width // 8)
    except ValueError:  # its rows differ in size
        return 4


ORDINARY = bytes(x for x in range(32, 256) if chr(x) not in '"\x7f') + b"\n"


def texts_in(content: bytes, delimiter: str, count: int, skip: int) -> list[Any] | None:
    """The columns of texts in lines of so many, below those to skip, as Arrow's strings; None without pyarrow.

    None too where anything is out of the ordinary, such as quotes, control characters or lines of another number of
    texts: a loop reads these, or says what is wrong.
    """
    if content.translate(None, ORDINARY + delimiter.encode()):
        return None
    try:
        from pyarrow import csv
    except ImportError:
        return None
    names = [str(place) for place in range(count)]
    texts = dict.fromkeys(names, arrow().string())
    try:
        table = csv.read_csv(
            arrow().py_buffer(content),
            read_options=csv.ReadOptions(column_names=names, skip_rows=skip),
            parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False),
            convert_options=csv.ConvertOptions(column_types=texts),
        )
    except (arrow().ArrowException, ValueError):
        return None
    return list(table.columns)


def in_blocks(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """Record batches as tables of so many rows each, the last one of those that are left."""
    table = arrow().Table
    parts, count = [], 0
    for batch in batches:
        start = 0
        while start < len(batch):
            part = batch.slice(start, rows - count)
            parts.append(part)
            start, count = start + len(part), count + len(part)
            if count == rows:
                yield table.from_batches(parts)
                parts, count = [], 0
    if parts:
        yield table.from_batches(parts)


def _parquet(path: Path, strings: Sequence[str] = ()) -> Any:
    """The table of a .parquet file, some of whose columns of strings have each value once."""
    format = arrow().dataset.ParquetFileFormat(dictionary_columns=set(strings))
    return arrow().dataset.dataset(path, format=format)


def _with_strings(path: Path, table: Any, names: Sequence[str], size: int) -> Any:
    """A table of a .parquet file of so many bytes and these columns of strings, whose lengths are looked at before."""
    pa = arrow()
    for name, column in zip(names, _parquet(path, names).to_table(columns=list(names)).columns, strict=True):
        lengths = (pa.compute.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
        asked = sum(pa.compute.sum(x).as_py() or 0 for x in lengths)
        require_proportion(path, f"column {name} of {len(column):,} strings", asked, size)
        table = table.append_column(name, column.cast(column.type.value_type))
    return table


def _lance(path: Path) -> Any:
    try:
        import lance
    except ImportError:
        raise ImportError(".lance datasets need pylance: pip install pylance") from None
    return lance.dataset(path)


def _in_file(path: Path) -> Any:
    """The table in a file of Arrow's format, as streams and as files are written, mapped into memory."""
    pa = arrow()
    memory = pa.memory_map(str(path))
    is_file = memory.read(6) == b"ARROW1"
    memory.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(memory).read_all()


def _csv(path: Path) -> Any:
    """The table of a .csv file; texts such as "[0.1, 0.2]", as pandas writes lists, become lists."""
    from pyarrow import csv

    table = csv.read_csv(
        path,
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
    )
    for place, column in enumerate(table.columns):
        first = column.drop_null()[:1].to_pylist() if str(column.type) == "string" else []
        if first and first[0].startswith("["):
            rows = [None if text is None else _numbers_in(text) for text in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], arrow().array(rows))
    return table


def _numbers_in(text: str) -> list[float]:
    if not (text.startswith("[") and text.endswith("]")) or "..." in text:
        raise ValueError(f"{text[:40]!r} is no list of numbers")
    return [float(word) for word in text[1:-1].replace(",", " ").split()]


def _lines(path: Path) -> Any:
    """The table of a .jsonl file, an object in each line; "vector.image" is the column of an object in objects."""
    with path.open(encoding="utf-8-sig") as file:  # pyarrow's reader ends the process where lists are nested deep
        table = arrow().Table.from_pylist([json.loads(line) for line in file if not line.isspace()])
    while any(str(x).startswith("struct<") for x in table.schema.types):
        table = table.flatten()
    return table


FILES: dict[str, Callable[[Path], Any]] = {
    ".parquet": _parquet,
    ".lance": _lance,
    ".arrow": _in_file,
    ".feather": _in_file,
    ".csv": _csv,
    ".jsonl": _lines,
}


def _in_memory(table: Any) -> TableSource:
    return TableSource(
        tuple(table.column_names),
        lambda columns: table.select(list(columns)),
        lambda columns, rows: table.select(list(columns)).to_batches(max_chunksize=rows),
    )


def _streamed(reader: Callable[[int], Any], names: Sequence[str], once: bool = False) -> TableSource:
    """A table that comes as a reader of all columns, given how many rows a batch may have."""
    return TableSource(
        tuple(names),
        lambda columns: reader(1_000_000).read_all().select(list(columns)),
        lambda columns, rows: (batch.select(list(columns)) for batch in reader(rows)),
        once,
    )


def _of_dataset(source: Any) -> TableSource:
    """A dataset of pyarrow or of Lance."""
    ahead: dict[str, Any] = READ_AHEAD
    most: int | None = None
    if type(source).__module__.startswith("lance."):
        ahead, most = READ_AHEAD | LANCE_BUFFER, LANCE_BATCH
    elif getattr(getattr(source, "format", None), "default_extname", "") == "parquet":
        # What is buffered before it is asked for stays until the whole file was read.
        options = arrow().dataset.ParquetFragmentScanOptions(pre_buffer=False)
        ahead = {"batch_readahead": 0, "fragment_readahead": 0, "fragment_scan_options": options}
    return TableSource(
        tuple(source.schema.names),
        lambda columns: source.to_table(columns=list(columns)),
        lambda columns, rows: source.to_batches(columns=list(columns), batch_size=min(rows, most or rows), **ahead),
    )


def _of_hugging_face(source: Any) -> TableSource:
    """A dataset of `datasets`: its iterator obeys select and shuffle, which its table in memory does not."""
    names = source.column_names
    if names is None:  # an iterable dataset that does not know its features looks at its first example
        names = list(next(iter(source), {}))

    def tables(columns: Sequence[str], rows: int) -> Iterator[Any]:
        return source.select_columns(list(columns)).with_format("arrow").iter(rows)  # type: ignore[no-any-return]

    def table(columns: Sequence[str]) -> Any:
        chosen = source.select_columns(list(columns)).with_format("arrow")
        return chosen[:] if hasattr(source, "__len__") else arrow().concat_tables(tables(columns, 65_536))

    return TableSource(
        tuple(names), table, lambda columns, rows: (b for t in tables(columns, rows) for b in t.to_batches())
    )


def _led_to(owner: str, source: Any, name: str) -> TableSource:
    """Table that a method of the source returns, which is called anew each time that it is read."""
    first = opened(owner, getattr(source, name)())
    if not first.once:
        return first
    return TableSource(
        first.names,
        lambda columns: opened(owner, getattr(source, name)()).table(columns),
        lambda columns, rows: opened(owner, getattr(source, name)()).batches(columns, rows),
    )
