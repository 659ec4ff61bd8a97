"""PLDA models in the files of other projects."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.reading import reading, require_proportion
from peaccel.fits.plda import Plda
from peaccel.io._array_files import read

__all__ = ["read_plda"]

Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # mean, transform and psi, as all of these projects have them

KALDI_BINARY, KALDI_TEXT, HDF5, ZIP = b"\0B<Plda> ", b"<Plda> ", b"\x89HDF\r\n\x1a\n", b"PK"


def read_plda(path: PathLike, before: PathLike | None = None) -> Plda:
    """Read a PLDA model of Kaldi, wespeaker or pyannote.audio, which the first bytes of the file tell apart.

    All three keep a mean, a matrix that makes the covariance within classes the identity and that between them a
    diagonal, and this diagonal, psi; so ``plda.score`` of what ``plda.transform`` returns is their log-likelihood
    ratio. What they do to embeddings besides is not in the file, but for pyannote's, and is for the caller:

    - Kaldi, ``ivector-compute-plda``: text or binary. Recipes subtract a mean, multiply by an LDA and bring embeddings
      to the length sqrt(D) before; ``ivector-plda-scoring`` also rescales the result unless it is called with
      ``--normalize-length=false``.
    - wespeaker, ``TwoCovPLDA.save_model``: HDF5 with ``mu``, ``transform``, ``psi`` and ``offset``, by h5py. It
      subtracts the mean of embeddings and brings them to the length sqrt(D) before, and rescales after.
    - pyannote.audio 4: ``plda.npz`` with ``mu``, ``tr`` and ``psi``; given ``xvec_transform.npz`` too the model takes
      the embeddings themselves, as ``pyannote.audio.core.plda.PLDA`` does.

    No file that one of these projects wrote was seen: layouts follow their sources, and files of the tests are written
    by them.

    Parameters
    ----------
    path : path
        The model; its name does not matter, but for pyannote's, which ends in .npz.
    before : path
        pyannote's ``xvec_transform.npz``, with ``mean1``, ``mean2`` and ``lda``: embeddings less mean1 get unit length,
        are projected by lda, and less mean2 get unit length again.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is none of these, is truncated, or its shapes or values are wrong; before given with another project's.
    ImportError
        If h5py is needed and missing.

    References
    ----------
    github.com/kaldi-asr/kaldi, ``src/ivector/plda.cc``; github.com/wenet-e2e/wespeaker,
    ``wespeaker/utils/plda/two_cov_plda.py``; github.com/pyannote/pyannote-audio, ``src/pyannote/audio/utils/vbx.py``.

    Examples
    --------
    >>> np.savez("plda.npz", mu=np.zeros(2), tr=np.diag([2.0, 1.0]), psi=np.array([8.0, 1.0]))
    >>> plda = pe.io.read_plda("plda.npz")
    >>> d = plda.transform([[0.5, 1.0], [0.5, 0.0]])
    >>> pe.paired(d[:1], d[1:], plda.score).round(2).tolist()
    [0.89]
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    content = path.read_bytes() if path.is_file() else b""
    for magic, reader in READERS.items():
        if content.startswith(magic):
            if before is not None and magic != ZIP:
                raise ValueError(f"{path}: before is given, which goes with pyannote's .npz")
            mean, matrix, psi = reader(path, content)
            break
    else:
        raise ValueError(f"{path}: is no PLDA model: expected one of Kaldi, wespeaker (HDF5) or pyannote (.npz)")
    try:
        plda = Plda((mean,), (matrix,), psi)
        return plda if before is None else _after(plda, before)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _pyannote(path: Path, content: bytes) -> Parts:
    arrays = read(path, ("mu", "tr", "psi"))
    return arrays["mu"], arrays["tr"], arrays["psi"]


def _after(plda: Plda, before: PathLike) -> Plda:
    """The model after pyannote's transformation of embeddings. It brings them to the lengths sqrt(D) and sqrt(K), which
    are factors of the matrices here."""
    arrays = {key: x.astype(np.float64) for key, x in read(before, ("mean1", "mean2", "lda")).items()}
    mean, centre, lda = (arrays[key] for key in ("mean1", "mean2", "lda"))
    if lda.ndim != 2 or mean.shape != lda.shape[:1] or centre.shape != lda.shape[1:]:
        shapes = f"mean1 {mean.shape}, mean2 {centre.shape} and lda {lda.shape}"
        raise ValueError(f"{before} has shapes {shapes}, expected (D,), (K,) and (D, K)")
    project = np.sqrt(len(lda)) * lda.T
    # Subtracting mean2 after the product is to subtract before it what the product takes there.
    shift, _, rank, _ = np.linalg.lstsq(project, centre, rcond=None)
    if rank < len(project):
        raise ValueError(f"{before} has an lda of rank {rank}, expected {len(project)}, all of its columns")
    length = np.sqrt(len(project))
    return Plda((mean, shift, plda.means[0] / length), (np.eye(len(lda)), project, length * plda.matrices[0]), plda.psi)


def _wespeaker(path: Path, content: bytes) -> Parts:
    try:
        import h5py
    except ImportError:
        raise ImportError(f"{path}: HDF5 files, as of wespeaker, need h5py: pip install h5py") from None
    keys = ("mu", "transform", "psi", "offset")
    with reading(path), h5py.File(io.BytesIO(content), "r") as file:
        datasets = {key: file[key] for key in keys if key in file}
        require_proportion(path, "what it holds", sum(x.nbytes for x in datasets.values()), len(content))
        found = {key: np.asarray(x[()]) for key, x in datasets.items()}
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"{path}: key {missing[0]} is missing, expected {', '.join(keys)}")
    mean, matrix, psi, offset = (found[key] for key in keys)
    if matrix.ndim == 2 and mean.shape == matrix.shape[1:]:
        expected = -matrix.astype(np.float64) @ mean
        size = abs(matrix) @ abs(mean)
        if offset.shape != expected.shape or (abs(offset - expected) > 1e-5 * size).any():  # float32 has 1e-7
            raise ValueError(f"{path}: offset is not -transform @ mu, as wespeaker writes it")
    return mean, matrix, psi


# -- Kaldi -------------------------------------------------------------------------------------------------------------


def _kaldi_binary(path: Path, content: bytes) -> Parts:
    """Vectors are "DV " or "FV ", a size and numbers, matrices "DM " or "FM ", two sizes and numbers by rows; a size is
    a byte 4, which is its width, and an int32. All is little-endian."""
    place, parts = len(KALDI_BINARY), []
    for kind, rank in (("V", 1), ("M", 2), ("V", 1)):
        header = content[place : place + 3 + 5 * rank]
        dtype = {b"D": "<f8", b"F": "<f4"}.get(header[:1])
        if len(header) < 3 + 5 * rank or dtype is None or header[1:3] != kind.encode() + b" ":
            raise ValueError(
                f"{path}: holds {header[:3]!r} at byte {place}, expected 'D{kind} ' or 'F{kind} ' and a size"
            )
        sizes = [struct.unpack("<bi", header[at : at + 5]) for at in range(3, len(header), 5)]
        shape = tuple(size for _, size in sizes)
        if any(width != 4 or size < 1 for width, size in sizes):
            raise ValueError(f"{path}: has a size at byte {place + 3} that is none, expected int32 above 0")
        place += len(header)
        count = int(np.prod(shape, dtype=np.int64))
        end = place + count * np.dtype(dtype).itemsize
        if end > len(content):
            raise ValueError(f"{path}: ends at byte {len(content)}, expected {end} bytes at least; truncated?")
        parts.append(np.frombuffer(content, dtype, count, place).reshape(shape))
        place = end
    if content[place:].strip() != b"</Plda>":
        raise ValueError(f"{path}: has {content[place:][:8]!r} at byte {place}, expected '</Plda>'")
    return parts[0], parts[1], parts[2]


def _kaldi_text(path: Path, content: bytes) -> Parts:
    """Vectors are " [ 1 2 ]", matrices " [\\n  1 2 \\n  3 4 ]"."""
    found = re.fullmatch(r"<Plda>\s+\[([^]]*)\]\s+\[([^]]*)\]\s+\[([^]]*)\]\s+</Plda>\s*", content.decode("latin-1"))
    if not found:
        raise ValueError(f"{path}: is not a mean, a matrix and psi in brackets between <Plda> and </Plda>; truncated?")
    mean, matrix, psi = found.groups()
    try:
        rows = np.array([[float(x) for x in line.split()] for line in matrix.splitlines() if line.strip()])
        return np.array(mean.split(), float), rows, np.array(psi.split(), float)
    except ValueError as error:
        raise ValueError(f"{path}: holds what is no number, or rows of several lengths ({error})") from None


READERS: dict[bytes, Callable[[Path, bytes], Parts]] = {
    KALDI_BINARY: _kaldi_binary,
    KALDI_TEXT: _kaldi_text,
    HDF5: _wespeaker,
    ZIP: _pyannote,
}
