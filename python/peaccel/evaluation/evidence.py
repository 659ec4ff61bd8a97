"""Evidence against a share of events, which may be looked at after every event for ever (e-processes)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWER", "MORE", "log_evidence", "upper_bound"]

MORE = (1.5, 2.0, 3.0, 5.0, 10.0)
"""Factors of the odds of an event that are bet on where its share may be greater."""
FEWER = (1 / 10, 1 / 5, 1 / 3, 1 / 2, 1 / 1.5)
"""Factors where its share may be less."""
BOUND = (0.0, 0.25, 0.5, 0.7, 0.85)
"""Factors of the upper bound; 0 bets on no events at all."""


def log_evidence(
    days: NDArray[np.int64],
    cases: NDArray[Any],
    events: NDArray[Any],
    share: float | NDArray[Any],
    factors: tuple[float, ...],
    since: int = -1,
) -> NDArray[np.float64]:
    """Logarithm of the evidence at the end of each day that the share of events has changed.

    A bet that begins on a day grows by f / (1 + share (f - 1)) with each event from then on and by
    1 / (1 + share (f - 1)) with each other case. Its expectation does not grow while the share is as stated, or on the
    other side of that than the factor f. The evidence is the mean over the factors and over all days to begin on, with
    weights that sum to 1 for ever: it starts at 1, and exceeds 1 / delta at any time with a probability of at most
    delta (Ville).

    Parameters
    ----------
    days
        [T] rising numbers of days, from 0 on.
    cases, events
        [..., T] cases of each day, and events among them.
    share
        The share of events as stated, a number or [...].
    factors
        Factors of the odds.
    since
        Bets begin after this day.

    Returns
    -------
    [..., T].
    """
    odds = np.array(factors)
    lost = np.log1p(np.asarray(share)[..., None] * (odds - 1))
    bets = np.full((*cases.shape[:-1], len(odds)), -np.inf)
    found = np.empty(cases.shape)
    before = later(since)
    for t, day in enumerate(days.tolist()):
        left = later(day)
        bets = np.logaddexp(bets, np.log(before - left))
        bets = bets + events[..., t, None] * np.log(odds) - cases[..., t, None] * lost
        found[..., t] = np.logaddexp(np.logaddexp.reduce(bets, -1) - np.log(len(odds)), np.log(left))
        before = left
    return found


def later(day: int) -> float:
    """The weight of all bets that begin after a day: half of it is that of day 0, and it falls slower than any power.

    A change on day d then costs about log(d) of evidence; weights such as 1 / d^2 would cost twice that.
    """
    return float(0.5 / np.log2(day + 2)) if day >= 0 else 1.0


def upper_bound(cases: NDArray[Any], events: NDArray[Any], delta: float) -> NDArray[np.float64]:
    """The share that the mean probability of an event has not exceeded at any time, but for a chance delta.

    The probability may change with time. For each factor f < 1, f^events / (1 - p (1 - f))^cases does not grow in
    expectation if p is the mean probability so far, since the logarithm is concave. The bound is the p at which the
    mean over factors reaches 1 / delta.

    Parameters
    ----------
    cases, events
        [T] counts up to each time.
    delta
        In (0, 1).
    """
    factors = np.array(BOUND)
    with np.errstate(divide="ignore", invalid="ignore"):
        won = np.where(events[:, None] > 0, events[:, None] * np.log(factors), 0.0)
        low, high = np.zeros(len(cases)), np.ones(len(cases))
        for _ in range(50):  # halvings: to the last digit of float64
            middle = (low + high) / 2
            paid = cases[:, None] * np.log1p(-middle[:, None] * (1 - factors))
            refused = np.logaddexp.reduce(won - paid, 1) - np.log(len(factors)) >= -np.log(delta)
            low, high = np.where(refused, low, middle), np.where(refused, middle, high)
    return high
