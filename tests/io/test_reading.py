"""Small files ask for little memory, and every reader's error is one sentence that names its file."""

import json
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from peaccel import io
from peaccel.io import _text_columns

GIB = 1 << 30


def npz(path, **members):
    """An .npz file of these arrays, or of so many zeros where a member is a number of bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for key, x in members.items():
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                if isinstance(x, int):
                    np.lib.format.write_array_header_1_0(
                        member, {"descr": "|u1", "fortran_order": False, "shape": (x,)}
                    )
                    for _ in range(x >> 24):
                        member.write(bytes(1 << 24))
                else:
                    np.lib.format.write_array(member, np.asarray(x))


def zeros_wide(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|S0", "fortran_order": False, "shape": (10**9,)})


def lines(*rows):
    return "query,rank,id,score\n" + "".join(f"{row}\n" for row in rows)


LONG = "x" * 500_000
SMALL_FILES = {
    "rows.csv": (io.read_ranking, lambda p: p.write_text(lines("999999999,1,3,0.5"))),
    "square.csv": (io.read_candidates, lambda p: p.write_text(lines(*(f"{i},{i + 1},3,0.5" for i in range(9000))))),
    "wide.csv": (
        io.read_ranking,
        lambda p: p.write_text(lines(f"0,1,{LONG},1", *(f"{i},1,b,1" for i in range(1, 9000)))),
    ),
    "wide.json": (
        io.read_ranking,
        lambda p: p.write_text(json.dumps({"scores": [[1.0] * 9000], "ids": [[LONG, *"a" * 8999]]})),
    ),
    "wide.parquet": (
        lambda p: io.read_ids(f"{p}:id"),
        lambda p: parquet.write_table(pa.table({"id": [LONG, *map(str, range(9000))]}), p),
    ),
    "pairs.csv": (
        io.read_scored_pairs,
        lambda p: p.write_text(f"score,match,group\n1,0,{LONG}\n" + "1,0,b\n" * 9000),
    ),
    "trials": (io.read_trials, lambda p: p.write_text(f"1 a {LONG}\n" + "1 a b\n" * 9000)),
    "ids.npy": (io.read_ids, zeros_wide),
    "labels.npy": (io.read_labels, zeros_wide),
    "inflated.npz": (io.read_distribution, lambda p: npz(p, mu=GIB)),
    "offsets.npz": (
        io.read_ranking,
        lambda p: np.savez_compressed(
            p, offsets=[0, *[30_000] * 30_000], scores=np.ones(30_000), ids=np.arange(30_000)
        ),
    ),
    "repeated.parquet": (
        lambda p: io.read_labels(f"{p}:label"),
        lambda p: parquet.write_table(pa.table({"label": [LONG] * 4000}), p),
    ),
    "constant.parquet": (
        lambda p: io.read_labels(f"{p}:label"),
        lambda p: parquet.write_table(pa.table({"label": np.zeros(10**8, np.int64)}), p),
    ),
}


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_small_file_asks_for_little(tmp_path, name):
    """In a process that may take a gigabyte more than it has."""
    read, write = SMALL_FILES[name]
    path = tmp_path / name
    write(path)
    assert path.stat().st_size < 3_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"out of all proportion|cannot be read, truncated or damaged\?") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}") and "\n" not in str(caught.value)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 * 1024  # KiB; the least that any file may ask for


def test_members_that_are_not_asked_for_are_not_inflated(tmp_path):
    npz(tmp_path / "d.npz", mu=np.eye(2), other=GIB, ids=np.arange(2))
    assert io.read_distribution(tmp_path / "d.npz").mu.tolist() == [[1, 0], [0, 1]]
    assert io.read_ids(tmp_path / "d.npz").tolist() == [0, 1]


DEEP, HUGE = "[" * 200_000, "1" + "0" * 400
RAW = {
    "deep.json": (io.read_ranking, DEEP),
    "huge.json": (io.read_ranking, f'{{"scores": [[{HUGE}]], "ids": [[1]]}}'),
    "huge id.json": (io.read_ranking, f'{{"scores": [[1]], "ids": [[{HUGE}]]}}'),
    "shapes.json": (io.read_ranking, '{"scores": 3, "ids": [[1]]}'),
    "dict.json": (io.read_ranking, '{"scores": [[1]], "ids": [[{}]]}'),
    "mixed.json": (io.read_ranking, '{"scores": [[1, 2]], "ids": [[1, "a"]]}'),
    "bytes.json": (io.read_ranking, b"\xff\xfe"),
    "field.csv": (io.read_ranking, lines(f'0,1,"{"x" * 200_000}",1')),
    "huge.csv": (io.read_ranking, lines(f"{HUGE},1,3,0.5")),
    "huge score.csv": (io.read_ranking, lines(f"0,1,3,x{HUGE}")),
    "bytes.csv": (io.read_ranking, b"query,rank,id,score\n0,1,\xff,1\n"),
    "zero.csv": (io.read_ranking, b"query,rank,id,score\n0,1\0,1,1\n"),
    "none.csv": (io.read_ranking, b"\n"),
    "bytes pairs.csv": (io.read_scored_pairs, b"score,match\n1,\xff\n"),
    "field pairs.csv": (io.read_scored_pairs, f'score,match\n1,"{"x" * 200_000}"\n'),
    "none pairs.csv": (io.read_scored_pairs, b"\n"),
    "bytes.trials": (io.read_trials, b"1 a \xff\n"),
    "bytes.spk": (io.read_enrolment, b"a \xff\n"),
    "deep.jsonl": (io.read_distribution, f'{{"mu": {DEEP}}}\n'),
    "list.jsonl": (io.read_distribution, "[1, 2]\n"),
    "text.csv": (io.read_distribution, 'mu\n"[0.5, b]"\n'),
    "dots.csv": (io.read_distribution, 'mu\n"[0.5 ... 1.5]"\n'),
    "ragged.csv": (io.read_distribution, 'mu,id\n"[0.5]"\n'),
    "deep.safetensors": (io.read_blocks, (200_000).to_bytes(8, "little") + DEEP.encode()),
    "deep 2.safetensors": (io.read_distribution, (200_000).to_bytes(8, "little") + DEEP.encode()),
    "prior.json": (io.read_fit, f'{{"peaccel": "prior", "version": 1, "mean": [{HUGE}, 0.5], "var": 1}}'),
}


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("name", RAW)
def test_no_raw_error_of_a_parser_is_left(tmp_path, monkeypatch, name, short):
    """By the loop and by pyarrow's reader alike."""
    monkeypatch.setattr(_text_columns, "SHORT", 1 << 30 if short else 0)
    read, content = RAW[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as caught:
        read(path)
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


PAIRS, ODD = (
    "score,match,group\n",
    ("+5", " 5", "1_0", "007", "-0", "nan", "-nan", "NaN(1)", "inf", "1e400", "0x1p3", "5.", ""),
)
BOTH_WAYS = {
    **{f"rank {x!r}.csv": (io.read_ranking, lines(f"0,{x},3,0.5")) for x in ODD},
    **{f"score {x!r}.csv": (io.read_ranking, lines(f"0,1,3,{x}", "0,2,4,0.5")) for x in ODD},
    **{f"id {x!r}.csv": (io.read_ranking, lines(f"0,1,{x},1", "0,2,4,0.5")) for x in (*ODD, 2**63, -(2**63), 10**19)},
    **{f"pair {x!r}.csv": (io.read_scored_pairs, f"{PAIRS}{x},1,a\n") for x in ODD},
    **{f"match {x!r}.csv": (io.read_scored_pairs, f"{PAIRS}1,{x},a\n") for x in ("yes", " Target ", "2", "", "TRUE")},
    **{
        f"group {x!r}.csv": (io.read_scored_pairs, f"{PAIRS}1,1,{x}\n\n2,0,b\n") for x in (" a ", "", " ", "é", '"a,b"')
    },
    "returns.csv": (io.read_ranking, lines("0,1,3,0.5").replace("\n", "\r\n")),
    "old returns.csv": (io.read_ranking, lines("0,1,3,0.5").replace("\n", "\r")),
    "mark.csv": (io.read_ranking, "\ufeff" + lines("0,1,é,0.5")),
    "empty lines.csv": (io.read_ranking, lines("", "0,1,3,0.5", "", "1,1,4,0.5", "")),
    "more.csv": (io.read_ranking, lines("0,1,3,0.5,6")),
    "quotes.csv": (io.read_ranking, lines('0,1,"a ""b""",0.5', '0,2,c"d,0.5')),
    "torn quotes.csv": (io.read_ranking, lines('0,1,"a,0.5')),
    "head.csv": (io.read_ranking, "query,rank,id,score\n"),
    "quoted head.csv": (io.read_ranking, '"query","rank","id","score"\n0,1,a,0.5\n'),
    "tabs.tsv": (io.read_scored_pairs, "score\tmatch\n1\t0\n"),
    "semicolons.csv": (io.read_scored_pairs, "match;score\n1;0.5\n"),
    "twice.csv": (io.read_scored_pairs, "score,score,match\n1,1,1\n"),
    **{
        f"{number}.trials": (io.read_trials, text)
        for number, text in enumerate(
            (
                "1 a b\n0 a c",
                "1  a b\n",
                " 1 a b\n",
                "1 a b \n",
                "1\ta\tb\n",
                "1 a\n",
                "1 a b c\n",
                "\n1 a b\n\n0 c d\n",
                "",
                "1 a é\n",
                "1 a\xa0b c\n",
                '1 "a b"\n',
                "a b target\n",
                "a b maybe\n",
                "1 a 0\n",
                "1 a b\r\n0 c d\r\n",
            )
        )
    },
}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_loop_and_pyarrow_read_and_refuse_alike(tmp_path, monkeypatch, name):
    read, content = BOTH_WAYS[name]
    path = tmp_path / name.replace("'", "_")
    path.write_bytes(content.encode())

    def found(short):
        monkeypatch.setattr(_text_columns, "SHORT", short)
        try:
            return read(path)
        except ValueError as error:
            return str(error)

    loop, arrow = found(1 << 30), found(0)
    assert type(loop) is type(arrow)
    if isinstance(loop, str):
        assert loop == arrow
    else:
        for x, y in zip(loop, arrow, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x is y is None or x.dtype.kind == y.dtype.kind


def test_names_that_would_move_a_terminal_are_quoted(tmp_path):
    np.savez(tmp_path / "d.npz", **{"\x1b[2J": np.eye(2)})
    np.save(tmp_path / "i.npy", ["\x1b[2J", "\x1b[2J"])
    table = pa.table({"\x1b[2J": [1.0], "score": [1.0]})
    parquet.write_table(table, tmp_path / "p.parquet")
    for read, name in (
        (io.read_distribution, "d.npz"),
        (io.read_labels, "d.npz"),
        (io.read_ids, "i.npy"),
        (io.read_scored_pairs, "p.parquet"),
        (io.read_labels, "p.parquet"),
    ):
        with pytest.raises(ValueError, match=r"'\\x1b\[2[Jj]'") as caught:
            read(tmp_path / name)
        assert str(caught.value).isprintable()
