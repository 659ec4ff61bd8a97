"""`pe.fit_quality` and `peaccel quality`: quality from 0 to 100 by the quantiles of a reference set."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel import io

RNG = np.random.default_rng(0)
ITEMS = pe.Normal(RNG.normal(size=(500, 4)), RNG.gamma(2, size=500))


@pytest.mark.parametrize("rounded", [9, 1])
def test_quality_is_the_percentage_of_the_reference_that_is_at_most_as_confident(rounded):
    reference, new = RNG.normal(size=730).round(rounded), RNG.normal(size=400).round(rounded)
    found = pe.fit_quality(reference)(new)
    share = (reference <= new[:, None]).sum(1) * 100 // 730
    assert found.tolist() == share.tolist() and found.dtype == np.int64
    assert pe.fit_quality(torch.tensor(reference))(torch.tensor(new)).tolist() == found.tolist()
    assert pe.fit_quality(reference)([[-np.inf, np.inf]]).tolist() == [[0, 100]]
    assert pe.fit_quality(np.exp(reference))(np.exp(new)).tolist() == found.tolist()  # only the order counts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pe.fit_quality(np.zeros(99)), "fit_quality: confidence has 99 numbers, expected at least 100"),
        (lambda: pe.fit_quality([np.inf] * 100), "fit_quality: 100 of the 100 numbers of confidence are "),
        (lambda: pe.fit_quality([np.nan] * 100), "fit_quality: 100 of the 100 numbers of confidence are NaN"),
        (lambda: pe.fit_quality(np.zeros((100, 1))), "fit_quality: confidence has shape (100, 1)"),
        (lambda: pe.fit_quality(np.arange(100))([0, np.nan]), "Quality: 1 of the 2 numbers of confidence are NaN"),
    ],
)
def test_what_has_no_quality_is_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_command_rates_items_and_keeps_the_scale(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    io.write_distribution("reference.npz", ITEMS[:300])
    io.write_distribution("new.npz", ITEMS[300:])
    line = "quality --embeddings new.npz --out o --reference"

    def rated(words):
        code, out, err = run(capsys, f"{line} {words}")
        assert code == 0, err
        rows = [line.split(",") for line in Path("o/quality.csv").read_text().splitlines()]
        assert rows[0] == ["row", "quality"] and [int(row) for row, _ in rows[1:]] == [*range(200)]
        return [int(quality) for _, quality in rows[1:]], out

    scale = pe.fit_quality(pe.confidence(ITEMS[:300]))
    expected = scale(pe.confidence(ITEMS[300:])).tolist()
    found, out = rated("reference.npz")
    assert found == expected and io.read_fit("o/quality.json") == scale
    assert f"quality {int(np.percentile(expected, 50).round())} in the middle" in out
    Path("o/quality.json").rename("scale.json")
    assert rated("scale.json")[0] == expected
    norms = pe.fit_quality(pe.confidence(ITEMS[:300], "norm"))(pe.confidence(ITEMS[300:], "norm"))
    assert rated("reference.npz --kind norm")[0] == norms.tolist() != expected
    for change, message in (("reference.npz --out new.npz", "--out is new.npz, a file"), ("none.json", "none.json: ")):
        code, _, err = run(capsys, f"{line} {change}")
        assert code == 2 and message in err and err.count("\n") == 1, err
