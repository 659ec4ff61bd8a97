"""Models of Kaldi, wespeaker and pyannote.audio, in files written here to the layouts of their sources."""

import re
import struct
import sys

import numpy as np
import pytest
from scipy.linalg import eigh

import peaccel as pe
from peaccel import io

RNG = np.random.default_rng(0)
MEAN, MATRIX, PSI = RNG.normal(size=3), RNG.normal(size=(3, 3)), np.array([4.0, 1 / 3, 0.0])


def kaldi_text():
    rows = "".join("\n  " + "".join(f"{x!r} " for x in row) for row in MATRIX.tolist())
    vectors = ["".join(f"{x!r} " for x in v.tolist()) for v in (MEAN, PSI)]
    return f"<Plda>  [ {vectors[0]}]\n [{rows}]\n [ {vectors[1]}]\n</Plda> ".encode()


def kaldi_binary(dtype="f8"):
    letter = b"D" if dtype == "f8" else b"F"

    def vector(x):
        return letter + b"V " + b"\4" + struct.pack("<i", len(x)) + x.astype(f"<{dtype}").tobytes()

    def matrix(x):
        sizes = b"".join(b"\4" + struct.pack("<i", size) for size in x.shape)
        return letter + b"M " + sizes + x.astype(f"<{dtype}").tobytes()

    return b"\0B<Plda> " + vector(MEAN) + matrix(MATRIX) + vector(PSI) + b"</Plda> "


def wespeaker(path, **changes):
    h5py = pytest.importorskip("h5py")
    arrays = {"mu": MEAN, "transform": MATRIX, "psi": PSI, "offset": -MATRIX @ MEAN} | changes
    with h5py.File(path, "w") as file:
        for key, x in arrays.items():
            if x is not None:
                shape = (None,) * np.ndim(x)
                file.create_dataset(key, data=x, maxshape=shape, compression="gzip", fletcher32=True)


def require_same(plda, mean=MEAN, matrix=MATRIX, psi=PSI):
    for found, expected in ((plda.means, mean), (plda.matrices, matrix), ((plda.psi,), psi)):
        assert len(found) == 1 and found[0].dtype == np.float64
        np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("name", ["plda", "plda.txt", "ivector.plda"])
def test_kaldi_in_text(tmp_path, name):
    (tmp_path / name).write_bytes(kaldi_text())
    require_same(io.read_plda(tmp_path / name))
    (tmp_path / name).write_bytes(kaldi_text().replace(b"\n", b"\r\n"))
    require_same(io.read_plda(str(tmp_path / name)))


def test_kaldi_in_binary(tmp_path):
    (tmp_path / "plda").write_bytes(kaldi_binary())
    require_same(io.read_plda(tmp_path / "plda"))
    (tmp_path / "plda").write_bytes(kaldi_binary("f4"))
    require_same(io.read_plda(tmp_path / "plda"), *(x.astype(np.float32) for x in (MEAN, MATRIX, PSI)))


def test_wespeaker(tmp_path):
    wespeaker(tmp_path / "plda")
    require_same(io.read_plda(tmp_path / "plda"))


def test_what_is_read_scores_as_their_formula_does(tmp_path):
    """The log-likelihood ratio of one enrolled item, as all three write it; a psi of 0 adds nothing."""
    (tmp_path / "plda").write_bytes(kaldi_text())
    plda = io.read_plda(tmp_path / "plda")
    a, b = RNG.normal(size=(2, 5, 3))
    u, v = ((x - MEAN) @ MATRIX.T for x in (a, b))
    variance = 1 + PSI / (PSI + 1)
    given = -(np.log(variance) + (v - PSI / (PSI + 1) * u) ** 2 / variance).sum(1) / 2
    alone = -(np.log(1 + PSI) + v**2 / (1 + PSI)).sum(1) / 2
    found = pe.paired(plda.transform(a), plda.transform(b), plda.score)
    np.testing.assert_allclose(found, given - alone, rtol=1e-11, atol=1e-12)


# -- pyannote ----------------------------------------------------------------------------------------------------------


def pyannote(folder, width=6, dim=3):
    rng = np.random.default_rng(1)
    before = {"mean1": rng.normal(size=width), "mean2": rng.normal(size=dim)}
    before["lda"] = rng.normal(size=(width, dim)).astype(np.float32)
    model = {"mu": rng.normal(size=dim), "tr": rng.normal(size=(dim, dim)), "psi": np.array([0.5, 4.0, 1.0])}
    np.savez(folder / "xvec_transform.npz", **before)
    np.savez(folder / "plda.npz", **model)
    return before, model


def test_pyannote_takes_embeddings_themselves(tmp_path):
    """By the steps of its sources: B and W are recovered from tr and psi and diagonalised once more."""
    before, model = pyannote(tmp_path)
    plda = io.read_plda(tmp_path / "plda.npz", tmp_path / "xvec_transform.npz")
    x = np.random.default_rng(2).normal(size=(7, 6))
    y = x - before["mean1"]
    y *= 6**0.5 / np.linalg.norm(y, axis=1, keepdims=True)
    y = y @ before["lda"].astype(float) - before["mean2"]
    y *= 3**0.5 / np.linalg.norm(y, axis=1, keepdims=True)
    within = np.linalg.inv(model["tr"].T @ model["tr"])
    between = np.linalg.inv(model["tr"].T @ np.diag(1 / model["psi"]) @ model["tr"])
    psi, directions = eigh(between, within)
    expected = (y - model["mu"]) @ directions
    order = np.argsort(plda.psi)
    np.testing.assert_allclose(plda.psi[order], psi, rtol=1e-9)
    np.testing.assert_allclose(abs(plda.transform(x).mu[:, order]), abs(expected), rtol=1e-8, atol=1e-9)


def test_pyannotes_model_alone_takes_what_is_projected(tmp_path):
    _, model = pyannote(tmp_path)
    require_same(io.read_plda(tmp_path / "plda.npz"), model["mu"], model["tr"], model["psi"])


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no PLDA model: expected one of Kaldi, wespeaker (HDF5) or pyannote (.npz)"),
        (b"<Nnet3> ", "is no PLDA model: expected one of Kaldi, wespeaker (HDF5) or pyannote (.npz)"),
        (kaldi_text()[:-9], "is not a mean, a matrix and psi in brackets between <Plda> and </Plda>; truncated?"),
        (kaldi_text().replace(b"4.0", b"four"), "holds what is no number, or rows of several lengths ("),
        (kaldi_text().replace(b"4.0", b"-4.0"), "Plda: psi holds -4, expected variances >= 0"),
        (kaldi_text().replace(b"4.0", b"nan"), "Plda: psi are of dtype float64 or not finite"),
        (kaldi_text().replace(b"4.0", b"4.0 1.0"), "Plda: psi has shape (4,), expected (3,) like the last matrix"),
        (kaldi_text().replace(b"]\n</Plda>", b"]</Plda>"), "is not a mean, a matrix and psi in brackets between"),
        (kaldi_binary()[:60], "ends at byte 60, expected 126 bytes at least; truncated?"),
        (kaldi_binary()[:12], "holds b'DV ' at byte 9, expected 'DV ' or 'FV ' and a size"),
        (kaldi_binary().replace(b"DM ", b"CM "), "holds b'CM ' at byte 41, expected 'DM ' or 'FM ' and a size"),
        (kaldi_binary().replace(b"DV \4", b"DV \2"), "has a size at byte 12 that is none, expected int32 above 0"),
        (kaldi_binary()[:-8] + b"</Nnet> ", "has b'</Nnet> ' at byte "),
        (kaldi_binary() + b"more", "has b'</Plda> ' at byte "),
        (b"PK\3\4", "cannot be read, truncated or damaged? ("),
    ],
    ids=lambda x: x[:24] if isinstance(x, str) else "",
)
def test_what_is_no_model_is_refused(tmp_path, content, message):
    path = tmp_path / "plda.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {message}")) as caught:
        io.read_plda(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'plda'}: no such file")):
        io.read_plda(tmp_path / "plda")
    with pytest.raises(ValueError, match="is no PLDA model"):
        io.read_plda(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"psi": None}, "key psi is missing, expected mu, transform, psi, offset"),
        ({"offset": np.zeros(3)}, "offset is not -transform @ mu, as wespeaker writes it"),
        ({"mu": np.zeros(4)}, "Plda: matrices[0] has shape (3, 3), expected (K, 4) like means[0]"),
    ],
)
def test_what_wespeaker_does_not_write_is_refused(tmp_path, changes, message):
    path = tmp_path / "plda.h5"
    wespeaker(path, **changes)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {message}")):
        io.read_plda(path)


def test_a_truncated_hdf5_file_is_refused(tmp_path):
    path = tmp_path / "plda.h5"
    wespeaker(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: cannot be read, truncated or damaged? (")):
        io.read_plda(path)


def test_without_h5py_its_name_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    path = tmp_path / "plda"
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    message = f"{path}: HDF5 files, as of wespeaker, need h5py: pip install h5py"
    with pytest.raises(ImportError, match="^" + re.escape(message)):
        io.read_plda(path)


def test_before_is_pyannotes_alone_and_whole(tmp_path):
    before, _ = pyannote(tmp_path)
    path, transform = tmp_path / "plda.npz", tmp_path / "xvec_transform.npz"
    (tmp_path / "plda").write_bytes(kaldi_text())
    with pytest.raises(ValueError, match="before is given, which goes with pyannote"):
        io.read_plda(tmp_path / "plda", transform)
    with pytest.raises(
        ValueError, match=re.escape("key mean1 is missing, found mu, psi, tr; expected mean1 and mean2")
    ):
        io.read_plda(path, path)
    for changes, message in (
        ({"mean1": np.zeros(5)}, "has shapes mean1 (5,), mean2 (3,) and lda (6, 3), expected (D,), (K,) and (D, K)"),
        ({"lda": np.ones((6, 3))}, "has an lda of rank 1, expected 3, all of its columns"),
        ({"mean2": np.zeros(2), "lda": before["lda"][:, :2]}, "Plda: means[2] has shape (3,), expected (2,)"),
    ):
        np.savez(transform, **before | changes)
        with pytest.raises(ValueError, match=re.escape(message)):
            io.read_plda(path, transform)
