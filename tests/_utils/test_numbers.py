"""Numbers and flags are checked alike, whichever function takes them."""

import numpy as np
import pytest

import peaccel as pe

SCORES = np.array([0.9, 0.8, 0.3, 0.2])
TAKEN = {
    "roc_auc": lambda same: pe.metrics.roc_auc(SCORES, same),
    "fit_match_probability": lambda same: pe.fit_match_probability(SCORES, same, method="isotonic"),
}


@pytest.mark.parametrize("function", TAKEN)
@pytest.mark.parametrize(
    "same", [[1, 0, 1, 0], [True, False, True, False], ["yes", "no", "yes", "no"], np.array([1.0, 0.0, 1, 0], object)]
)
def test_flags_are_booleans_zero_and_one_or_words(function, same):
    TAKEN[function](same)


@pytest.mark.parametrize("function", TAKEN)
@pytest.mark.parametrize(
    ("same", "message"),
    [
        ([1, 0, 2, 0], "has 2 in row 2, expected only 0 and 1"),
        ([1, 0, np.nan, 0], "has nan in row 2, expected only 0 and 1"),
        (["yes", "no", "perhaps", "no"], "has perhaps in row 2, expected only 0 and 1"),
        ([1, None, 1, 0], "1 of the 4 (same|labels) are missing"),
        ([[1], [0], [1], [0]], "has shape"),
    ],
)
def test_other_flags_are_refused_in_the_same_words(function, same, message):
    with pytest.raises(ValueError, match=f"^{function}: .*{message}"):
        TAKEN[function](same)
