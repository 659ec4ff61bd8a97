"""Fits in files, and distributions and fits as plain dicts, come back; what is none is refused in one line."""

import io as streams
import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import KINDS, make, to_numpy
from safetensors.torch import save_file

import peaccel as pe
from peaccel import io
from peaccel.fits.plda import Plda
from peaccel.fits.records import (
    Calibration,
    Centre,
    ConformalSets,
    FalseMatchLimit,
    IsotonicProbability,
    LogisticProbability,
    Prior,
    Quality,
    Selection,
    Threshold,
)
from peaccel.fits.saved_fit import SavedFit

D = make("normal_diagonal", 12, 4)
MEAN = np.array([1 / 3, -0.0, 5e-324, 1e308])
FITS = [
    Prior(MEAN, 0.1),
    Prior(MEAN, np.array([0.0, 1e-30, 1 / 7, 2.0])),
    Prior(np.float32([0.1, 1 / 3]), np.float32([0.1, 1 / 3])),
    Prior(torch.tensor([1 / 3, 2.0], requires_grad=True), torch.tensor(0.1)),
    Prior(torch.tensor([1 / 3], dtype=torch.bfloat16), 0.25),
    Prior(0.0, 0.5),
    Calibration(1 / 3, 0.1, "Normal"),
    Calibration(3.0, 0.0, "VonMisesFisher"),
    Calibration(0.5, 0.25, "Normal", (1 / 3, -0.0, 5e-324, 1e308)),
    Centre((1 / 3, -0.0), (5e-324, 1e308)),
    Centre((1 / 3, -0.0), (5e-324, 1e308), ((1 / 3, 0.0), (0.0, 2.0))),
    LogisticProbability(1 / 3, (-1e300, 5e-324)),
    IsotonicProbability((-1 / 3, 0.0, 2.0), (0.0, 1 / 3, 1.0)),
    Selection(-1 / 3, 0.05, 0.1, 300, 200, 7),
    Selection(-1 / 3, 0.05, 0.1, 300, 200, 7, score="ppk:rho=0.5", normalisation="S-norm", fitted_on="300 queries"),
    Selection(0.9, 0.05, 0.1, 300, 200, 7, confidence="probability", weights=(-1 / 3, 2.0, 5.0, 1e-9), dim=384),
    FalseMatchLimit(1 / 3, 0.01, 0.05, 300, 0, of="pairs"),
    FalseMatchLimit(1 / 3, 0.01, 0.05, 300, 0, confidence="class_margin", applied="centre 0a1b2c3d"),
    Selection(float("inf"), 0.05, 0.1, 20, 0, 0),
    FalseMatchLimit(1 / 3, 0.01, 0.05, 300, 0),
    FalseMatchLimit(float("inf"), 0.01, 0.05, 3, 0),
    Threshold(threshold=-1 / 3, of="pairs", fitted_on="300 pairs"),
    Threshold(threshold=float("inf")),
    Quality(tuple((np.arange(100) / 3).tolist())),
    ConformalSets(1 / 3, 0.1, 200, "answerable"),
    ConformalSets(float("inf"), 0.1, 8, "all"),
    -1 / 3,
    pe.fit_prior(D, np.arange(12) % 3),
    pe.calibrate_variance(D, [[0, 3], [1, 4]], [1, 1]),
    pe.fit_shift(D, [[0, 3], [1, 4]], [1, 0]),
    Plda((MEAN,), (np.array([MEAN, 1 / MEAN.clip(0.1)]),), [1 / 3, 5e-324]),
    Plda((MEAN, [1.0]), (MEAN[None], [[1 / 3]]), [0.0]),
]


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: type(fit).__name__)
def test_fits_come_back_from_a_file_to_the_last_bit(tmp_path, fit):
    io.write_fit(tmp_path / "fit.json", fit)
    found = io.read_fit(tmp_path / "fit.json")
    assert type(found) is type(fit)
    if isinstance(fit, Prior):
        for x, y in zip(found, fit, strict=True):
            assert to_numpy(x).tobytes() == to_numpy(y).tobytes()
            assert isinstance(x, np.ndarray if np.ndim(y) else float)
    else:
        assert same(found, fit)


def same(found, fit):
    """Whether two fits are alike to the last bit; those of arrays have no equality."""
    if not isinstance(fit, Plda):
        return found == fit
    pairs = zip((*found.means, *found.matrices, found.psi), (*fit.means, *fit.matrices, fit.psi), strict=True)
    return type(found) is Plda and all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def test_a_fit_in_a_file_is_json_that_others_can_read(tmp_path):
    io.write_fit(tmp_path / "fit.json", Prior(np.float32([0.5, 0.25]), 0.1))
    found = json.loads((tmp_path / "fit.json").read_text())
    assert found == {"peaccel": "prior", "version": 1, "mean": [0.5, 0.25], "var": 0.1}


def test_a_calibration_without_a_mean_is_kept_as_it_was(tmp_path):
    io.write_fit(tmp_path / "fit.json", Calibration(0.5, 0.25, "Normal"))
    assert json.loads((tmp_path / "fit.json").read_text()) == CALIBRATION | {"a": 0.5, "b": 0.25}
    assert io.to_state(Calibration(0.5, 0.25, "Normal")) == {"a": 0.5, "b": 0.25, "of": "Normal"}


def test_a_prior_is_the_tuple_that_it_was():
    prior = pe.fit_prior(D, np.arange(12) % 3)
    mean, var = prior
    assert mean is prior.mean is prior[0] and var is prior.var is prior[1]


# -- plain dicts -------------------------------------------------------------------------------------------------------


def loaded(state):
    """The file as torch loads it, unpickling nothing but tensors, numbers and strings."""
    file = streams.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_distributions_come_back_through_torch_and_safetensors(tmp_path, kind, dtype):
    d = make(kind, dtype=dtype, library="torch")
    state = io.to_state(type(d)(*[x.requires_grad_() for x in d.arrays]))
    assert not any(x.requires_grad for x in state.values())
    save_file(state, tmp_path / "d.safetensors")
    for found in (io.from_state(loaded(state)), io.read_distribution(tmp_path / "d.safetensors")):
        assert type(found) is type(d) and str(found.mu.dtype).endswith(dtype)
        for x, y in zip(found.arrays, d.arrays, strict=True):
            np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


def test_arrays_in_a_dict_are_those_of_the_distribution():
    d = make("vmf")
    assert io.to_state(d) == {"mu": d.mu, "kappa": d.kappa}
    assert io.from_state(io.to_state(d)).kappa is d.kappa


def test_a_number_for_all_items_stays_one_for_all():
    d = make("vmf")
    assert io.from_state({"mu": d.mu, "kappa": 2.0}).kappa.tolist() == [2.0] * len(d)
    assert isinstance(io.from_state({"mu": d.mu.tolist(), "kappa": d.mu[:, :1].tolist()}), pe.VonMisesFisher)


def test_fits_and_scores_come_back_through_torch():
    d = make("normal_diagonal", 12, 4, library="torch")
    prior, calibration = pe.fit_prior(d, np.arange(12) % 3), pe.calibrate_variance(d, [[0, 3], [1, 4]], [1, 1])
    score = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    states = loaded({"prior": io.to_state(prior), "calibration": io.to_state(calibration), "score": str(score)})
    found = io.from_state(states["prior"])
    assert isinstance(found, Prior) and torch.equal(found.mean, prior.mean) and torch.equal(found.var, prior.var)
    assert io.from_state(states["calibration"]) == calibration
    sided = Calibration(0.5, 0.25, "Normal", (1 / 3, 2.0))
    for fit in (
        sided,
        *(fit for fit in FITS if not isinstance(fit, Prior | Calibration | Plda | float)),
    ):
        assert io.from_state(loaded(io.to_state(fit))) == fit
    plda = FITS[-1]  # of numpy arrays, which torch keeps as tensors
    assert same(io.from_state(io.to_state(plda)), plda)
    tensors = {key: [torch.tensor(x) for x in value] for key, value in io.to_state(plda).items()}
    assert same(io.from_state(loaded(tensors)), plda)
    assert pe.scores.get(states["score"]) == score


# -- what is wrong -----------------------------------------------------------------------------------------------------

PRIOR = {"peaccel": "prior", "version": 1, "mean": [0.0, 1.0], "var": 1.0}
CALIBRATION = {"peaccel": "calibration", "version": 1, "a": 1.0, "b": 0.0, "of": "Normal"}
ISOTONIC = {"peaccel": "isotonic", "version": 1, "scores": [1.0, 2.0], "probabilities": [0.0, 1.0]}
LIMIT = {"peaccel": "false_match_limit", "version": 1, "threshold": 0.5, "alpha": 0.01, "delta": 0.1, "number": 300}
LIMIT |= {"allowed": 0, "of": "answers", "score": "", "normalisation": "", "fitted_on": ""}
LIMIT |= {"confidence": "score", "weights": [], "dim": 0, "applied": ""}
CENTRE = {"peaccel": "centre", "version": 1, "query_mean": [0.0, 1.0], "gallery_mean": [2.0, 3.0], "matrix": []}
PLDA = {"peaccel": "plda", "version": 1, "means": [[0.0, 1.0]], "matrices": [[[1.0, 2.0]]], "psi": [1.0]}
NO_FIT = 'is not a fit: expected an object with the key "peaccel", one of prior, shift, calibration, '
LIST = "expected a finite number or a list of them"
NOT_NEGATIVE = "expected a finite number >= 0"
WRONG = [
    ("", "is empty (0 bytes)"),
    ("{", "cannot be read as JSON, truncated or damaged? (Expecting property name"),
    ("[" * 100_000, "cannot be read as JSON, truncated or damaged? ("),
    (b"\xff\xfe", "cannot be read as JSON, truncated or damaged? ("),
    ([1, 2], NO_FIT),
    ({"mean": [0.0], "var": 1.0}, NO_FIT),
    (PRIOR | {"peaccel": ["prior"]}, NO_FIT),
    (PRIOR | {"version": 2}, "has format version 2, expected 1"),
    ({"peaccel": "shift"}, "has format version None, expected 1"),
    ({"peaccel": "shift", "version": 1}, "shift has the keys none; expected value"),
    (PRIOR | {"scale": 1}, "prior has the keys mean, scale, var; expected mean, var"),
    (PRIOR | {"mean": [0.0, float("nan")]}, f"mean is [0.0, nan], {LIST}"),
    (PRIOR | {"mean": [[0.0], [1.0, 2.0]]}, f"mean is [[0.0], [1.0, 2.0]], {LIST}"),
    (PRIOR | {"mean": [[0.0]]}, f"mean is [[0.0]], {LIST}"),
    (PRIOR | {"mean": []}, f"mean is [], {LIST}"),
    (PRIOR | {"mean": "0.5"}, f"mean is '0.5', {LIST}"),
    (PRIOR | {"mean": None}, f"mean is None, {LIST}"),
    (PRIOR | {"var": [1.0, -1.0]}, f"var is [1.0, -1.0], {NOT_NEGATIVE} or a list of them"),
    (PRIOR | {"var": [1.0, 1.0, 1.0]}, "var has 3 numbers, expected 2 like mean"),
    (CALIBRATION | {"a": -1}, f"Calibration: a is -1.0, {NOT_NEGATIVE}"),
    (CALIBRATION | {"b": [1.0]}, f"Calibration: b is (1.0,), {NOT_NEGATIVE}"),
    (CALIBRATION | {"mean": [0.0, None]}, "Calibration: mean is (0.0, None), expected finite numbers"),
    (CALIBRATION | {"mean": 1}, "Calibration: mean is 1.0, expected finite numbers"),
    (PRIOR | {"peaccel": "calibration"}, "calibration has the keys mean, var; expected a, b, of"),
    (ISOTONIC | {"scores": [2.0, 1.0]}, "IsotonicProbability: scores is (2.0, 1.0), expected rising numbers"),
    (ISOTONIC | {"probabilities": [0.5]}, "IsotonicProbability: probabilities has 1 numbers, expected 2 like scores"),
    (
        ISOTONIC | {"probabilities": [-0.5, 1]},
        "IsotonicProbability: probabilities is (-0.5, 1.0), expected finite numbers from",
    ),
    (
        ISOTONIC | {"probabilities": [0.5, 1.5]},
        "IsotonicProbability: probabilities is (0.5, 1.5), expected finite numbers from",
    ),
    (
        ISOTONIC | {"probabilities": [0.5, 0.25]},
        "IsotonicProbability: probabilities is (0.5, 0.25), expected numbers that nev",
    ),
    (ISOTONIC | {"prior": 1}, "IsotonicProbability: prior is 1.0, expected a number between 0 and 1"),
    (
        ISOTONIC | {"weights": [1]},
        "isotonic has the keys probabilities, scores, weights; expected probabilities, scores, and",
    ),
    (LIMIT | {"alpha": 1.5}, "FalseMatchLimit: alpha is 1.5, expected a number between 0 and 1"),
    (LIMIT | {"delta": 0}, "FalseMatchLimit: delta is 0.0, expected a number between 0 and 1"),
    (LIMIT | {"number": 0.5}, "FalseMatchLimit: number is 0.5, expected an integer >= 0"),
    (PLDA | {"means": 1.0}, "Plda: means are 0 and matrices 1, expected one a step"),
    (PLDA | {"means": [[0.0, "a"]]}, "Plda: means[0] "),
    (
        PLDA | {"matrices": [[[1.0], [1.0, 2.0]]]},
        "Plda: matrices[0] ",
    ),
    (PLDA | {"matrices": [[[1.0]]]}, "Plda: matrices[0] has shape (1, 1), expected (K, 2) like means[0]"),
    (PLDA | {"psi": [-1.0]}, "Plda: psi holds -1, expected variances >= 0"),
    (LIMIT | {"of": "Point"}, "FalseMatchLimit: of is 'Point', expected 'answers' or 'pairs'"),
    (LIMIT | {"score": 1}, "FalseMatchLimit: score is 1, expected text"),
    (
        LIMIT | {"confidence": "gap"},
        "FalseMatchLimit: confidence is 'gap', expected 'score' or 'margin' or 'class_margin' or",
    ),
    (LIMIT | {"weights": [1.0]}, "FalseMatchLimit: weights is (1.0,), expected numbers, 3 or 4 of a probability"),
    (LIMIT | {"confidence": "probability"}, "FalseMatchLimit: weights is (), expected numbers, 3 or 4"),
    (LIMIT | {"dim": -1}, "FalseMatchLimit: dim is -1, expected an integer >= 0"),
    (CENTRE | {"gallery_mean": [1.0]}, "Centre: gallery_mean has 1 numbers, expected 2 like query_mean"),
    (CENTRE | {"matrix": [[1.0, 2.0]]}, "Centre: matrix has shape (1, 2), expected (2, 2) like query_mean"),
    (
        CENTRE | {"matrix": [[1.0], [1.0, 2.0]]},
        "Centre: matrix is ((1.0,), (1.0, 2.0)), expected finite numbers (2, 2)",
    ),
    (CENTRE | {"matrix": "no"}, "Centre: matrix is 'no', expected finite numbers (2, 2)"),
    (CALIBRATION | {"of": "Point"}, "Calibration: of is 'Point', expected 'Normal' or 'VonMisesFisher'"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_what_is_no_fit_is_refused(tmp_path, content, message):
    path = tmp_path / "fit.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {message}")) as caught:
        io.read_fit(path)
    assert "\n" not in str(caught.value)


def test_only_json_files_hold_fits(tmp_path):
    message = "fit.npz: unsupported suffix '.npz', expected .json"
    with pytest.raises(ValueError, match=re.escape(message)):
        io.write_fit(tmp_path / "fit.npz", FITS[0])
    with pytest.raises(ValueError, match=re.escape(message)):
        io.read_fit(tmp_path / "fit.npz")
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'fit.json'}: no such file")):
        io.read_fit(tmp_path / "fit.json")


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        ((MEAN, 0.1), TypeError, "write_fit: fit must be a fit, such as a Prior, or a float, got tuple"),
        (Prior(MEAN, np.nan), ValueError, f"fit.json: var is nan, {NOT_NEGATIVE}"),
        (float("nan"), ValueError, "fit.json: value is nan, expected a finite number"),
        (Threshold(threshold=float("-inf")), ValueError, "fit.json: Out of range float values are not JSON compliant"),
    ],
)
def test_what_is_no_fit_is_not_written(tmp_path, monkeypatch, fit, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match="^" + re.escape(message)):
        io.write_fit("fit.json", fit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: io.to_state(D.mu), TypeError, "to_state: x must be a distribution or a fit, such as a Prior, got nd"),
        (lambda: io.from_state([D.mu]), TypeError, "from_state: state must be a dict, got list"),
        (lambda: io.from_state({}), ValueError, "from_state: keys are none; expected mu and at most one of var, kappa"),
        (lambda: io.from_state({"mu": D.mu, "a": 1}), ValueError, "from_state: keys are a, mu; expected mu and at mo"),
        (lambda: io.from_state({"mu": D.mu, "var": D.var[:3]}), ValueError, "Normal: var has shape (3, 4), expected"),
    ],
)
def test_what_is_no_state_is_refused(call, error, message):
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Selection(float("nan"), 0.05, 0.1, 20, 0, 0), "Selection: threshold is nan, expected a finite number"),
        (lambda: Calibration(-1.0, 0.0, "Normal"), f"Calibration: a is -1.0, {NOT_NEGATIVE}"),
        (lambda: IsotonicProbability((0.0,), (2.0,)), "IsotonicProbability: probabilities is (2.0,), expected"),
        (
            lambda: Quality((1.0, 0.0) * 50),
            "Quality: quantiles is (1.0, 0.0, 1.0, 0.0, 1.0, 0.0, ...), expected",
        ),
        (lambda: Quality((0.0,)), "Quality: quantiles is (0.0,), expected 100 ascending numbers"),
        (lambda: ConformalSets(0.5, 0.0, 200, "all"), "ConformalSets: alpha is 0.0, expected a number between 0 and 1"),
    ],
)
def test_records_check_themselves(make, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        make()


def test_a_fit_that_is_defined_elsewhere_is_kept(tmp_path):
    @dataclass(frozen=True)
    class Margin(SavedFit, kind="margin"):
        value: float
        weights: tuple[float, ...] = ()

    try:
        io.write_fit(tmp_path / "fit.json", Margin(2.0, (0.5,)))
        assert (
            io.read_fit(tmp_path / "fit.json") == Margin(2.0, (0.5,)) == io.from_state({"value": 2, "weights": [0.5]})
        )
    finally:
        del SavedFit.kinds["margin"]
