"""Files give back what was written to them, and damaged files are refused in one line."""

import json
import re
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import peaccel as pe
from peaccel import io
from peaccel.distributions import NonIsotropicVonMisesFisher, Normal, Point, Scaled, VonMisesFisher

MU = np.eye(5, 4, dtype=np.float32)
MU[4, 0] = 1
ROW, FULL = np.arange(1, 6, dtype=np.float32), np.full((5, 4), 2, np.float32)
DISTRIBUTIONS = [
    Normal(MU, ROW),
    Normal(MU, FULL),
    VonMisesFisher(MU, ROW),
    NonIsotropicVonMisesFisher(MU, FULL),
    Scaled(MU, ROW),
    Point(MU),
    Point(MU[:0]),
    Normal(MU, 0.5),
]
IDS = np.array([[2, 0], [1, -1]])
SCORES = np.array([[0.5, 0.25], [-1.0, -np.inf]], np.float32)


def save(path, **arrays):
    """Write any arrays under any names, as somebody else's program would."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".npy":
        np.save(path, *arrays.values())
    else:
        save_file({key: np.ascontiguousarray(x) for key, x in arrays.items()}, path)
    return path


def same(a, b):
    pairs = zip(a.arrays, b.arrays, strict=True)
    return type(a) is type(b) and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


# ---- what is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("d", DISTRIBUTIONS, ids=repr)
def test_distributions_come_back_as_written(tmp_path, d, suffix):
    io.write_distribution(tmp_path / f"d{suffix}", d)
    assert same(io.read_distribution(tmp_path / f"d{suffix}"), d)


def test_a_plain_array_is_a_point(tmp_path):
    path = str(tmp_path / "d.npy")
    io.write_distribution(path, Point(MU))
    assert same(io.read_distribution(path), Point(MU))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_tensors_are_written_whatever_their_gradients_strides_and_dtype(tmp_path, suffix, dtype):
    mu = torch.tensor(MU.T.copy(), dtype=dtype).T.requires_grad_()
    io.write_distribution(tmp_path / f"d{suffix}", Normal(mu, mu[:, 0] + 1))
    kept = "float32" if (suffix, dtype) == (".npz", torch.bfloat16) else str(dtype).removeprefix("torch.")
    assert same(io.read_distribution(tmp_path / f"d{suffix}"), Normal(MU, MU[:, 0] + 1).to(kept))


def test_bfloat16_stays_so_in_safetensors_and_is_widened_elsewhere(tmp_path):
    d = Normal(MU, ROW).to("bfloat16")
    for suffix, expected in ((".safetensors", d), (".npz", Normal(MU, ROW))):
        io.write_distribution(tmp_path / f"d{suffix}", d)
        assert same(io.read_distribution(tmp_path / f"d{suffix}"), expected)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dim", [3, 16, 64])
def test_directions_of_bfloat16_are_read_again(tmp_path, dim, library):
    """Rounding moves their length further from 1 than it may be in float32."""
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(1000, dim))
    mu = torch.tensor(mu / np.linalg.norm(mu, axis=1, keepdims=True)).bfloat16()
    mu = mu if library == "torch" else mu.float().numpy().astype(ml_dtypes.bfloat16)
    d = VonMisesFisher(mu, mu[:, 0] ** 2 + 1).validate()
    assert abs(np.linalg.norm(np.asarray(d.to("float32").mu), axis=1) - 1).max() > 1e-3
    io.write_distribution(tmp_path / "d.npz", d)
    for found in (io.read_distribution(tmp_path / "d.npz"), io.from_arrow(io.to_arrow(d))):
        np.testing.assert_allclose(found.validate().mu, np.asarray(d.to("float32").mu), rtol=1e-2)
        assert abs(np.linalg.norm(found.mu, axis=1) - 1).max() < 1e-6


def test_bfloat16_is_read_by_who_never_imported_ml_dtypes(tmp_path):
    path = save(tmp_path / "d.safetensors", mu=MU.astype(ml_dtypes.bfloat16))
    code = f"from peaccel import io; print(io.read_distribution({str(path)!r}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "Point(N=5, D=4, bfloat16, numpy)\n"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_new_file_has_the_permissions_of_any_other(tmp_path, suffix):
    (tmp_path / "other").touch()
    io.write_distribution(tmp_path / f"d{suffix}", Point(MU))
    assert (tmp_path / f"d{suffix}").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_foreign_byte_order_becomes_native(tmp_path):
    d = io.read_distribution(save(tmp_path / "d.npz", mu=MU.astype(">f4"), var=ROW.astype(">f4")))
    assert d.mu.dtype.isnative and same(d, Normal(MU, ROW))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_candidates_become_int64(tmp_path, suffix, dtype):
    candidates = io.read_candidates(save(tmp_path / f"c{suffix}", candidates=IDS.astype(dtype)))
    assert candidates.dtype == np.int64 and np.array_equal(candidates, IDS)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_rankings_come_back_as_written(tmp_path, suffix, library):
    io.write_ranking(tmp_path / f"r{suffix}", (library(SCORES), library(IDS)))
    scores, ids = io.read_ranking(tmp_path / f"r{suffix}")
    assert np.array_equal(scores, SCORES) and np.array_equal(ids, IDS)
    assert (scores.dtype, ids.dtype) == (np.float32, np.int64)


def test_rankings_for_other_programs(tmp_path):
    """NaN and infinities are null in JSON, padding has no line, and numbers come back to the last bit."""
    scores = np.array([[1 / 3, np.nan], [-np.inf, -np.inf]], np.float32)
    for ranking in ((scores, IDS), (torch.from_numpy(scores), torch.from_numpy(IDS))):
        for name in ("r.json", "r.csv"):
            io.write_ranking(tmp_path / name, ranking)
        found = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
        assert found == {"scores": [[float(scores[0, 0]), None], [None, None]], "ids": IDS.tolist()}
        lines = (tmp_path / "r.csv").read_text().splitlines()
        assert lines == ["query,rank,id,score", f"0,1,2,{float(scores[0, 0])!r}", "0,2,0,nan", "1,1,1,-inf"]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_ids_become_int64(tmp_path, suffix, dtype):
    ids = io.read_ids(save(tmp_path / f"i{suffix}", ids=np.array([7, 0, 3], dtype)))
    assert ids.dtype == np.int64 and ids.tolist() == [7, 0, 3]


# ---- what is wrong --------------------------------------------------------------------------------------------------

READERS = {"d": io.read_distribution, "c": io.read_candidates, "r": io.read_ranking, "i": io.read_ids}


def refuses(path, message, error=ValueError):
    """Reading the file, by the reader its name begins with, gives this one line, the file's name before it."""
    with pytest.raises(error, match="^" + re.escape(f"{path}: {message}")) as caught:
        READERS[path.name[0]](path)
    assert "\n" not in str(caught.value)


MEANS = "expected mu or embeddings or embedding or vectors or vector or features or x, or "
ANY_FLOAT = "expected float16, bfloat16, float32 or float64"
WRONG_CONTENT = [
    ("d", {"var": ROW}, f"no array of means, found var; {MEANS}"),
    ("d", {"embeddings": MU, "x": MU}, f"embeddings and x could both be the means, found embeddings, x; {MEANS}"),
    ("d", {"mu": MU, "sigma": ROW}, "sigma is no parameter, found mu, sigma; expected var (VARIANCE), kappa or scale,"),
    ("d", {"log_var": FULL, "x": MU}, "log_var is no parameter, found log_var, x; expected var (VARIANCE), kappa or "),
    ("d", {"mu": MU, "var": ROW, "kappa": ROW}, "var and kappa are both there, expected one; name it: var=NAME, say"),
    ("d", {"mu": MU[0], "var": ROW}, "Normal: mu has shape (4,), expected (N, D): a single item needs shape (1, 4)"),
    ("d", {"mu": MU, "var": FULL[:3]}, "Normal: var has shape (3, 4), expected (5,) or (5, 4) like mu"),
    ("d", {"mu": MU, "kappa": FULL[:2, :1]}, "VonMisesFisher: kappa has shape (2, 1), expected (5,) like mu"),
    (
        "d",
        {"mu": MU, "kappa": FULL[:, :3]},
        "NonIsotropicVonMisesFisher: kappa has shape (5, 3), expected (5, 4) like mu",
    ),
    ("d", {"mu": MU, "scale": FULL}, "Scaled: scale has shape (5, 4), expected (5,) like mu"),
    ("d", {"mu": MU > 0}, f"Point: mu has dtype bool, {ANY_FLOAT}"),
    ("d", {"mu": MU, "var": ROW > 0}, f"Normal: var has dtype bool, {ANY_FLOAT}"),
    ("d", {"mu": MU * np.nan}, "mu is NaN or null in 5 of 5 rows: 0, 1, 2, ...; skip_bad=True or --skip-bad"),
    ("d", {"mu": MU, "var": ROW * np.inf}, "Normal: var is not finite in row 0"),
    ("d", {"mu": MU, "var": 3 - ROW}, "Normal: var is negative in row 3"),
    ("d", {"mu": MU, "kappa": -ROW}, "VonMisesFisher: kappa is negative in row 0"),
    ("d", {"mu": 2 * MU, "scale": ROW}, "Scaled: mu in row 0 has length 2, expected 1 within 0.001"),
    ("c", {"ids": IDS}, "key candidates is missing, found ids; or name it: "),
    ("c", {"candidates": IDS[0]}, "candidates has shape (2,), expected a row for each query: (Q, K)"),
    ("c", {"candidates": SCORES}, "candidates has dtype float32, expected int"),
    ("c", {"candidates": IDS - 1}, "candidates is -2 in row 1, expected gallery rows, or -1 for none"),
    ("c", {"candidates": IDS.astype("u8") + 2**63}, "candidates is 9223372036854775"),
    ("i", {"ids": IDS}, "ids have shape (2, 2) and dtype int64, expected integers or strings (N,)"),
    ("i", {"ids": ROW}, "ids have shape (5,) and dtype float32, expected integers or strings (N,)"),
    ("i", {"ids": IDS[1]}, "ids hold -1, expected 0 .. 2^63 - 1"),
    ("i", {"ids": np.array([5, 2**63], np.uint64)}, "ids hold 9223372036854775808, expected 0 .. 2^63 - 1"),
    ("i", {"ids": np.array([5, 3, 5])}, "ids hold 5 twice"),
    ("r", {"scores": SCORES, "ids": IDS.astype("u8")}, "ids holds 18446744073709551615, expected at most 2^63 - 1"),
    ("r", {"scores": SCORES}, "key ids is missing, found scores; expected scores and ids"),
    ("r", {"scores": IDS, "ids": IDS}, "scores has dtype int64, expected float"),
    ("r", {"scores": SCORES, "ids": SCORES}, "ids has dtype float32, expected int"),
    ("r", {"scores": SCORES, "ids": IDS[:, :1]}, "ids has shape (2, 1), expected (2, 2) like scores"),
    ("r", {"scores": SCORES, "ids": IDS[0]}, "ids has shape (2,), expected a row for each query: (Q, K)"),
]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(("reader", "arrays", "message"), WRONG_CONTENT)
def test_wrong_content_is_refused_with_file_and_key(tmp_path, reader, arrays, message, suffix):
    refuses(save(tmp_path / f"{reader}{suffix}", **arrays), message)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_missing_files_are_not_found(tmp_path, suffix):
    refuses(tmp_path / f"d{suffix}", "no such file", FileNotFoundError)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_folders_and_empty_files_are_refused(tmp_path, suffix):
    (tmp_path / f"d{suffix}").mkdir()
    refuses(tmp_path / f"d{suffix}", "is not a file")
    (tmp_path / f"c{suffix}").touch()
    refuses(tmp_path / f"c{suffix}", "is empty (0 bytes)")


@pytest.mark.parametrize("part", [0.1, 0.3, 0.6, 0.97])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_truncated_files_are_refused(tmp_path, suffix, part):
    path = save(tmp_path / f"d{suffix}", mu=MU)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refuses(path, "cannot be read, truncated or damaged? (")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_no_damaged_byte_escapes_as_anything_but_a_line(tmp_path, suffix):
    path = save(tmp_path / f"d{suffix}", mu=MU, var=ROW)
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            io.read_distribution(path)  # a flipped value can be a legal one: .safetensors has no checksum
        except ValueError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_files_that_are_not_what_their_suffix_says_are_refused(tmp_path, suffix):
    (tmp_path / f"d{suffix}").write_text("id,mu\n0,1.5\n")
    refuses(tmp_path / f"d{suffix}", f"is not an {suffix} file")
    save(tmp_path / "x.npz", mu=MU).rename(tmp_path / "c.npy")
    refuses(tmp_path / "c.npy", "is not an .npy file")


def test_text_as_safetensors_is_refused(tmp_path):
    (tmp_path / "d.safetensors").write_text("id,mu\n0,1.5\n")
    refuses(tmp_path / "d.safetensors", "cannot be read, truncated or damaged? (Error while deserializing header")


def test_a_member_that_is_no_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as file:
        file.writestr("mu", "1 2 3")
    refuses(tmp_path / "d.npz", "key mu cannot be read, truncated or damaged? (")


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_object_arrays_are_never_unpickled(tmp_path):
    bomb = np.array([Bomb()], dtype=object)
    reason = "is an object array; save numbers or strings"
    refuses(save(tmp_path / "d.npz", mu=MU, var=bomb), f"key var {reason}")
    names = save(tmp_path / "labels.npy", labels=np.array(["a", "b"], object))
    with pytest.raises(ValueError, match=f"^{re.escape(str(names))}: {reason}$"):
        io.read_labels(names)
    refuses(save(tmp_path / "d.npy", mu=bomb), reason)


@pytest.mark.parametrize("name", ["d.txt", "d.pt", "d", "r.npy", "r.NPZ"])
def test_other_suffixes_are_refused(tmp_path, name):
    kinds = ".npz or .safetensors" if name[0] == "r" else ".npz or .safetensors or .npy or .parquet or "
    path = tmp_path / name
    what = f"unsupported suffix {path.suffix!r}, expected" if path.suffix else "has no suffix, expected a file,"
    refuses(path, f"{what} {kinds}")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("d.pt", ValueError, "unsupported suffix '.pt', expected .npz or .safetensors"),
        ("d.npy", ValueError, "unsupported suffix '.npy', expected .npz or .safetensors"),
        ("none/d.npz", FileNotFoundError, "there is no folder"),
        ("none/d.safetensors", FileNotFoundError, "there is no folder"),
    ],
)
def test_nothing_is_written_where_it_cannot_be(tmp_path, name, error, message):
    for write, value in ((io.write_distribution, Normal(MU, ROW)), (io.write_ranking, (SCORES, IDS))):
        with pytest.raises(error, match="^" + re.escape(f"{tmp_path / name}: {message}")):
            write(tmp_path / name, value)
    assert not list(tmp_path.iterdir())


def test_only_distributions_are_written_as_such(tmp_path):
    with pytest.raises(TypeError, match=r"^write_distribution: d must be a distribution, got ndarray$"):
        io.write_distribution(tmp_path / "d.npz", MU)


FULL_DISK = """
import resource, sys
import numpy as np
from peaccel import Point, io
from peaccel.fits import records

def write(path, size):
    x = np.ones((size, 8), np.float32)
    if "fit" in path:
        io.write_fit(path, records.Prior(x[:, 0], 1.0))
    elif path.endswith((".csv", ".json")):
        io.write_ranking(path, (x, x.astype(int)))
    else:
        io.write_distribution(path, Point(x))

write(sys.argv[1], 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))  # no file grows further: writing more fails half way
with open(sys.argv[1], "rb") as file:
    good = file.read()
try:
    write(sys.argv[1], 5000)
except OSError as error:
    print(error)
with open(sys.argv[1], "rb") as file:
    assert file.read() == good
"""


@pytest.mark.parametrize("name", ["d.npz", "d.npy", "d.safetensors", "r.json", "r.csv", "fit.json"])
def test_a_full_disk_leaves_what_stood_there(tmp_path, name):
    path = tmp_path / name
    run = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"{path}: cannot be written (") and run.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "d.safetensors", mu=MU)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    message = f"{path}: .safetensors files need safetensors: pip install peaccel[cli]"
    with pytest.raises(ImportError, match="^" + re.escape(message) + "$"):
        io.read_distribution(path)


def test_without_ml_dtypes_the_extra_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "d.safetensors", mu=MU.astype(ml_dtypes.bfloat16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    message = "arrays of bfloat16 need ml_dtypes: pip install peaccel[cli]"
    with pytest.raises(ImportError, match="^" + re.escape(f"{path}: {message}") + "$"):
        io.read_distribution(path)
    with pytest.raises(ImportError, match="^" + re.escape(message) + "$"):
        Point(MU).to("bfloat16")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    "d",
    [
        pe.Normal(np.eye(5), 0.5),
        pe.Normal(np.eye(5), [[1.0, 2.0, 3.0, 4.0, 5.0]]),
        pe.VonMisesFisher(np.eye(5), 7.0),
        pe.NonIsotropicVonMisesFisher(np.eye(5), [[1.0, 2.0, 3.0, 4.0, 5.0]]),
        pe.Scaled(torch.eye(5), 3.0),
    ],
    ids=lambda d: d.kind,
)
def test_what_is_one_for_all_items_is_written_once(d, suffix, tmp_path):
    path = tmp_path / f"items{suffix}"
    pe.io.write_distribution(path, d)
    again = pe.io.read_distribution(path)
    assert again.kind == d.kind and again.common_parameter() is not None
    for x, y in zip(again.arrays, d.arrays, strict=True):
        np.testing.assert_array_equal(x, np.asarray(y))
    pe.io.write_distribution(path, d[:1])  # by its memory, since a single item's shape does not tell
    assert pe.io.read_distribution(path).common_parameter() is not None
    pe.io.write_distribution(path, type(d)(d.mu[:1], *(x[:1] * 1 for x in d.arrays[1:])))
    assert pe.io.read_distribution(path).common_parameter() is None
    large = type(d)(np.tile(np.asarray(d.mu), (2000, 1)), np.asarray(d.common_parameter()))
    pe.io.write_distribution(path, large)
    assert path.stat().st_size < 10_000 * 5 * large.mu.itemsize + 2000
