"""`pe.PromiseMonitor`: whether the promise of a threshold still holds, by audited answers and by scores alone."""

from __future__ import annotations

import itertools
import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.numbers import as_flags, as_numbers, require_shares
from peaccel._utils.seeds import as_integer
from peaccel.evaluation.evidence import FEWER, MORE, log_evidence, upper_bound
from peaccel.evaluation.formatting import percent, six_digits
from peaccel.evaluation.promises import per_cent, promise_of
from peaccel.fits.answer_confidence import RankedAnswers, answer_confidence
from peaccel.fits.records import FalseMatchLimit, Selection, Threshold
from peaccel.io._array_files import write_text
from peaccel.io.fits import as_record, of_record, read_json

__all__ = ["Moved", "PromiseMonitor", "WatchedDay", "WatchedPromise"]

VERSION = 1
KEYS = ("peaccel", "version", "accept", "delta", "begun", "reference", "audits", "traffic", "sources")
QUANTILES = (0.1, 0.5, 0.9)
"""Where the distribution of each number is looked at."""
RECENT = 7
"""Days whose share is shown of a number that has moved."""
DRAWS = 400
"""Draws of the audits to come."""
NO_ANSWER = "expected the answers that a search without accept finds"

Found = RankedAnswers | Mapping[str, ArrayLike] | ArrayLike


@dataclass(frozen=True)
class Moved:
    """A number whose distribution is not that of the reference."""

    number: str
    """Its name, such as "score" or "margin"."""
    below: float
    """The share of numbers below this has changed."""
    share: float
    """That share in the reference."""
    seen: float
    """That share in the traffic of the last seven days."""
    day: str
    """The day since which this is known."""

    def __str__(self) -> str:
        """The shares before and now."""
        below = f"{percent(self.seen)} % lie below {six_digits(self.below)}"
        return f"{self.number}: {below}, {percent(self.share)} % in the reference (seen on {self.day})"


@dataclass(frozen=True)
class WatchedDay:
    """Audits up to the end of a day."""

    day: str
    audits: int
    wrong: int
    evidence: float
    """Natural logarithm of the evidence against the promise."""
    upper: float
    """Upper confidence bound of the mean risk so far."""


@dataclass(frozen=True)
class WatchedPromise:
    """State of a promise, as a `PromiseMonitor` sees it; prints as sentences.

    Examples
    --------
    >>> accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
    >>> pe.PromiseMonitor(accept, begun="2026-01-01").state().alarm is None
    True
    """

    promise: str
    """The promise as a clause."""
    alpha: float
    delta: float
    begun: str
    days: tuple[WatchedDay, ...]
    """Audits by day; empty where there are none."""
    alarm: str | None
    """The first day at whose end the audits showed that the promise is broken."""
    moved: tuple[Moved, ...]
    """Numbers whose distribution is not that of the reference, those that differ most first."""
    traffic: int
    """Queries whose numbers are counted."""

    def __str__(self) -> str:
        """The alarms, or that there are none."""
        return "\n".join([self._of_audits(), *self._of_traffic()])

    def _of_audits(self) -> str:
        if not self.days:
            return f"No audits yet of this promise: {self.promise}."
        last, certainty = self.days[-1], per_cent(1 - self.delta)
        audits = f"{last.audits} audits since {self.begun}, {last.wrong} of them against it"
        bound = f"Its risk was at most {percent(last.upper)} % on average, with a certainty of {certainty}"
        if self.alarm is None:
            return f"No alarm: {self.promise} ({audits}). {bound}."
        return f"ALARM on {self.alarm}: it no longer holds that {self.promise} ({audits}, {certainty} certain)."

    def _of_traffic(self) -> list[str]:
        if self.moved:
            first = f"ALARM: traffic is not that of the reference ({self.traffic} queries)."
            return [first, *(f"  {moved}" for moved in self.moved)]
        return [f"Traffic does not differ from the reference ({self.traffic} queries)."] if self.traffic else []


class PromiseMonitor:
    """Watch of a threshold's promise: it raises an alarm once audits show that the promise is broken.

    Audited answers are drawn at random among the accepted ones, and a person says which of them are right. The scores
    of traffic need no labels: they tell whether the traffic is still that of the reference.

    Parameters
    ----------
    accept
        The threshold with its promise, as `learn_then_test`, `limit_false_matches`, `choose_threshold` or
        `answers_to_check` gives it.
    reference
        What the promise was found on: the ranking of those queries, whose scores and margins are watched, or [N]
        scores, or names and [N] numbers each, such as {"norm": norms}. None: audits alone are watched.
    delta
        In (0, 1): the probability of any false alarm of the audits, for ever; and likewise of the traffic.
    begun
        The first day, YYYY-MM-DD; by default today (UTC).

    Raises
    ------
    TypeError
        accept promises nothing.
    ValueError
        accept accepts nothing; delta outside (0, 1); a reference of numbers that are NaN; begun is no day.

    Notes
    -----
    Of audits the evidence is an e-process: bets on a share of wrong answers above alpha, which begin on every day, with
    weights that sum to 1 for ever (`docs/watch.md`). So a drift that begins late is seen too. The probability of a
    wrong audit, given all before, is at most alpha while the promise holds; then the evidence ever reaches 1 / delta
    with a probability of at most delta.

    Of traffic the shares below the threshold and below the quantiles 10, 50 and 90 % of each number are watched. The
    reference leaves each of them uncertain (Dvoretzky, Kiefer, Wolfowitz, Massart: half of delta); bets are against all
    shares that it allows (the other half). Queries must be independent: where they come in bursts, take one of each.

    All counts are by day, and monitors of several processes merge by adding them, which gives what one process would
    have given. An alarm is looked for in the merged counts, with days complete up to the last.

    Promises of classes are of one answer of each class; draw audits so.

    Examples
    --------
    Wrong answers become 8 % of the accepted ones, where 2 % are promised:

    >>> accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
    >>> monitor = pe.PromiseMonitor(accept, begun="2026-01-01")
    >>> rng = np.random.default_rng(0)
    >>> for day in range(1, 28):
    ...     monitor.audit(rng.random(40) > (0.01 if day < 14 else 0.08), f"2026-01-{day:02}")
    >>> monitor.state().alarm
    '2026-01-21'
    """

    def __init__(
        self,
        accept: Threshold,
        reference: Found | None = None,
        *,
        delta: float = 0.05,
        begun: str | date | None = None,
    ) -> None:
        owner = "PromiseMonitor"
        if not isinstance(accept, (Selection, FalseMatchLimit)):
            what = f"{type(accept).__name__}, which promises nothing"
            raise TypeError(f"{owner}: accept is {what}, expected a Selection or a FalseMatchLimit")
        if math.isinf(accept.threshold):
            raise ValueError(f"{owner}: accept accepts nothing, so that there is nothing to watch")
        require_shares(owner, delta=delta)
        self.accept = accept
        self.delta = delta
        self.begun = _day(f"{owner}: begun", begun)
        self.reference = None if reference is None else _reference(accept, reference)
        self._audits: dict[date, list[int]] = {}
        self._traffic: dict[date, list[int]] = {}
        self._sources: set[str] = set()

    def audit(self, right: ArrayLike, day: str | date | None = None, source: str = "") -> None:
        """Count audited answers that were drawn at random among the accepted ones.

        Parameters
        ----------
        right
            [N] booleans: whether each is right; of a `FalseMatchLimit` whether a search without a mate, drawn at random
            among such searches, returned nothing, or a pair that does not match was refused.
        day
            The day of the audit, by default today (UTC).
        source
            A name of these audits, such as that of a file; one that was counted already is refused.

        Raises
        ------
        ValueError
            right holds anything else; a day before ``begun``; a source that was counted.
        """
        if np.shape(right) == (0,):
            return
        known = as_flags("audit", "right", right, np.shape(right)[:1] or (1,))
        self._count("audit", self._audits, _day("audit: day", day), [known.size, int((~known).sum())], source)

    def traffic(self, found: Found, day: str | date | None = None, source: str = "") -> None:
        """Count numbers of traffic, without labels.

        Parameters
        ----------
        found
            All answers to N queries, accepted or not, in the form that the reference has.
        day, source
            As of `audit`.

        Raises
        ------
        ValueError
            There is no reference; other numbers than it has, or NaN; a query without an answer; and as `audit`.
        """
        if self.reference is None:
            raise ValueError("traffic: the monitor has no reference, with which numbers of traffic could be compared")
        numbers = _numbers("traffic", self.accept, found)
        if numbers.keys() != self.reference.cuts.keys():
            expected, got = (", ".join(x) for x in (self.reference.cuts, numbers))
            raise ValueError(f"traffic: found has the numbers {got}, expected {expected} like the reference")
        counts = [int((x < cut).sum()) for name, x in numbers.items() for cut in self.reference.cuts[name]]
        queries = len(next(iter(numbers.values())))
        self._count("traffic", self._traffic, _day("traffic: day", day), [queries, *counts], source)

    def merge(self, other: PromiseMonitor) -> None:
        """Add the counts of another process, whose audits and traffic are others than these.

        Raises
        ------
        ValueError
            The other watches another threshold, reference, delta or first day, or has a source that was counted here.
        """
        for name in ("accept", "delta", "begun", "reference"):
            if (one := getattr(self, name)) != (two := getattr(other, name)):
                values = f": {reprlib.repr(str(two))}, expected {reprlib.repr(str(one))}" if name != "reference" else ""
                raise ValueError(f"merge: the other monitor has another {name}{values}")
        if both := sorted(self._sources & other._sources):
            raise ValueError(f"merge: {both[0]} is counted in both monitors")
        for counts, others in ((self._audits, other._audits), (self._traffic, other._traffic)):
            for day, more in others.items():
                self._count("merge", counts, day, more, "")
        self._sources |= other._sources

    def _count(self, owner: str, counts: dict[date, list[int]], day: date, more: list[int], source: str) -> None:
        if day < self.begun:
            raise ValueError(f"{owner}: day is {day}, expected {self.begun}, the first one, or later")
        if source in self._sources:
            raise ValueError(f"{owner}: source is {source!r}, which is counted already")
        counts[day] = [a + b for a, b in zip(counts.get(day, [0] * len(more)), more, strict=True)]
        self._sources |= {source} - {""}

    def state(self) -> WatchedPromise:
        """Alarms so far, the evidence and the upper confidence bound by day; prints as sentences."""
        days, (cases, wrong) = self._by_day(self._audits, 2)
        evidence = log_evidence(self._places(days), cases, wrong, self.accept.alpha, MORE)
        cases, wrong = cases.cumsum(), wrong.cumsum()
        rows = zip(days, cases, wrong, evidence, upper_bound(cases, wrong, self.delta), strict=True)
        reached = np.flatnonzero(evidence >= -math.log(self.delta))
        return WatchedPromise(
            promise=promise_of(self.accept)(self.accept.alpha),
            alpha=self.accept.alpha,
            delta=self.delta,
            begun=str(self.begun),
            days=tuple(WatchedDay(str(day), int(n), int(k), float(e), float(u)) for day, n, k, e, u in rows),
            alarm=str(days[reached[0]]) if len(reached) else None,
            moved=self._moved(),
            traffic=sum(row[0] for row in self._traffic.values()),
        )

    def _moved(self) -> tuple[Moved, ...]:
        """The numbers that are not as in the reference, each by the share that tells most."""
        if self.reference is None or not self._traffic:
            return ()
        events = [(name, cut, share) for name, row in self.reference.cuts.items() for cut, share in row.items()]
        days, (cases, *below) = self._by_day(self._traffic, 1 + len(events))
        # Half of delta for the reference, by numbers; half for the bets, by shares and sides.
        slack = math.sqrt(math.log(4 * len(self.reference.cuts) / self.delta) / (2 * self.reference.count))
        least = math.log(2 * 2 * len(events) / self.delta)
        recent = np.array([day > days[-1] - timedelta(RECENT) for day in days])
        best: dict[str, tuple[float, Moved]] = {}
        for (name, cut, share), count in zip(events, below, strict=True):
            for bound, factors in ((share + slack, MORE), (share - slack, FEWER)):
                if not 0 < bound < 1:
                    continue
                evidence = log_evidence(self._places(days), cases, count, bound, factors)
                if (evidence >= least).any() and evidence.max() > best.get(name, (0.0, None))[0]:
                    seen = float(count[recent].sum() / max(cases[recent].sum(), 1))
                    first = str(days[int((evidence >= least).argmax())])
                    best[name] = float(evidence.max()), Moved(name, cut, share, seen, first)
        return tuple(moved for _, moved in sorted(best.values(), key=lambda x: -x[0]))

    def audits_per_week(self, risk: float, weeks: int = 4, power: float = 0.9) -> int:
        """Number of audits a week that show a risk in time, if it is that from today on.

        Parameters
        ----------
        risk
            The true share of wrong answers, above the promised one and below 1.
        weeks
            Weeks until the alarm.
        power
            In (0, 1): the probability of an alarm within these weeks.

        Returns
        -------
        int
            The number, by 400 simulated courses, all audits of a week on one day. What was audited before is left out,
            and costs nothing but the weights of days that have passed.

        Raises
        ------
        ValueError
            Anything beyond these ranges.

        Examples
        --------
        >>> accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
        >>> monitor = pe.PromiseMonitor(accept)
        >>> monitor.audits_per_week(0.06, weeks=4), monitor.audits_per_week(0.1, weeks=4)
        (81, 26)
        """
        owner = "audits_per_week"
        require_shares(owner, risk=risk, power=power)
        if risk <= self.accept.alpha:
            raise ValueError(f"{owner}: risk is {risk!r}, expected more than the promised {self.accept.alpha}")
        weeks = as_integer(owner, "weeks", weeks, 1, 10_000)
        last = int(self._places([max([self.begun, *self._audits])])[0]) if self._audits else -1
        days = last + 1 + 7 * np.arange(weeks)

        def enough(count: int) -> bool:
            wrong = np.random.default_rng(0).binomial(count, risk, (DRAWS, weeks))
            evidence = log_evidence(days, np.full(wrong.shape, count), wrong, self.accept.alpha, MORE, last)
            return bool(((evidence >= -math.log(self.delta)).any(1)).mean() >= power)

        high = 1
        while not enough(high):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def save(self, path: PathLike) -> None:
        """Write the monitor to a .json file, which replaces an existing one once it is whole.

        Examples
        --------
        >>> accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
        >>> pe.PromiseMonitor(accept, begun="2026-01-01").save("monitor.json")
        >>> pe.PromiseMonitor.load("monitor.json").begun.isoformat()
        '2026-01-01'
        """
        reference = None
        if self.reference is not None:
            cuts = {name: [*map(list, row.items())] for name, row in self.reference.cuts.items()}
            reference = {"count": self.reference.count, "numbers": cuts}
        audits, traffic = ({str(day): row for day, row in sorted(x.items())} for x in (self._audits, self._traffic))
        accept = as_record("save", path, self.accept)
        known = (accept, self.delta, str(self.begun), reference, audits, traffic, sorted(self._sources))
        record = dict(zip(KEYS, ("promise_monitor", VERSION, *known), strict=True))
        write_text(path, (".json",), json.dumps(record, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: PathLike) -> PromiseMonitor:
        """Read a monitor that `save` wrote.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        ValueError
            It holds no monitor, is damaged, or is of a later format.
        """
        record = read_json(path)
        if not isinstance(record, dict) or record.get("peaccel") != "promise_monitor":
            raise ValueError(f'{path}: is no monitor: expected an object whose key "peaccel" is "promise_monitor"')
        if record.get("version") != VERSION or record.keys() != set(KEYS):
            keys = ", ".join(map(str, record))
            raise ValueError(
                f"{path}: has version {record.get('version')!r} and the keys {keys}; expected {VERSION} "
                f"and {', '.join(KEYS)}"
            )
        accept: Any = of_record(path, record["accept"])
        try:
            monitor = cls(accept, delta=record["delta"], begun=record["begun"])
            monitor.reference = _saved_reference(record["reference"])
            length = 0 if monitor.reference is None else 1 + sum(map(len, monitor.reference.cuts.values()))
            monitor._audits = _saved_counts("audits", record["audits"], 2, monitor.begun)
            monitor._traffic = _saved_counts("traffic", record["traffic"], length, monitor.begun)
            monitor._sources = _saved_sources(record["sources"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        return monitor

    def _by_day(self, counts: dict[date, list[int]], width: int) -> tuple[list[date], NDArray[np.int64]]:
        """The days that have counts, and these, [width, T]."""
        days = sorted(counts)
        return days, np.array([counts[day] for day in days], np.int64).reshape(-1, width).T

    def _places(self, days: list[date]) -> NDArray[np.int64]:
        """Numbers of days from the first on."""
        return np.array([(day - self.begun).days for day in days], np.int64)


@dataclass(frozen=True)
class Reference:
    """Distributions of the numbers of labelled queries, at a few values."""

    count: int
    cuts: dict[str, dict[float, float]]
    """By number: the share below each of a few values."""


def _reference(accept: Selection | FalseMatchLimit, found: Found) -> Reference:
    numbers, cuts = _numbers("PromiseMonitor", accept, found), {}
    for name, x in numbers.items():
        at = {*np.quantile(x, QUANTILES, method="inverted_cdf").tolist()}
        at |= {accept.threshold} if name == accept.confidence else set()
        cuts[name] = {cut: float((x < cut).mean()) for cut in sorted(at) if math.isfinite(cut)}
    return Reference(len(x), cuts)


def _numbers(owner: str, accept: Selection | FalseMatchLimit, found: Any) -> dict[str, NDArray[np.float64]]:
    """The numbers of each query by name, [N] each."""
    name = "reference" if owner == "PromiseMonitor" else "found"
    if isinstance(found, Mapping):
        if not found or not all(isinstance(key, str) for key in found):
            raise ValueError(f"{owner}: {name} has the keys {reprlib.repr([*found])}, expected names of numbers")
        numbers = {key: as_numbers(owner, f"{key} of {name}", x, above=NO_ANSWER) for key, x in sorted(found.items())}
    elif hasattr(found, "scores"):
        if len(found.scores) == 0:
            raise ValueError(f"{owner}: {name} has no queries")
        score, norm, dim = (getattr(found, name, None) for name in ("score", "normalisation", "dim"))
        accept.check_score(owner, score, norm or "", dim=dim)
        numbers = {"score": as_numbers(owner, f"best scores of {name}", answer_confidence(found), above=NO_ANSWER)}
        if found.scores.shape[1] > 1:
            numbers["margin"] = answer_confidence(found, "margin")
        if accept.confidence not in numbers:
            numbers[accept.confidence] = accept.confidence_of(found)
    else:
        numbers = {"score": as_numbers(owner, name, found, above=NO_ANSWER)}
    if len({len(x) for x in numbers.values()}) > 1:
        lengths = ", ".join(f"{key} {len(x)}" for key, x in numbers.items())
        raise ValueError(f"{owner}: {name} has numbers of different lengths: {lengths}")
    return numbers


def _day(name: str, day: Any) -> date:
    if isinstance(day, datetime) or not isinstance(day, (date, str, type(None))):
        raise ValueError(f"{name} is {day!r}, expected a day, YYYY-MM-DD")
    if day is None:
        return datetime.now(UTC).date()
    try:
        return day if isinstance(day, date) else date.fromisoformat(day)
    except ValueError:
        raise ValueError(f"{name} is {day!r}, expected a day, YYYY-MM-DD") from None


# -- what a file holds -------------------------------------------------------------------------------------------------


def _saved_reference(x: Any) -> Reference | None:
    if x is None:
        return None
    try:
        found = Reference(as_integer("reference", "count", x["count"], 1, 2**53), {})
        for name, rows in x["numbers"].items():
            found.cuts[name] = {float(cut): float(share) for cut, share in rows}
        numbers = [*itertools.chain(*(row.items() for row in found.cuts.values()))]
        if not numbers or not all(math.isfinite(cut) and 0 <= share <= 1 for cut, share in numbers):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        expected = "null or a count and numbers, lists of a value and the share below it"
        raise ValueError(f"reference is {reprlib.repr(x)}, expected {expected}") from None
    return found


def _saved_counts(name: str, x: Any, width: int, begun: date) -> dict[date, list[int]]:
    if not isinstance(x, dict):
        raise ValueError(f"{name} is {reprlib.repr(x)}, expected counts by day")
    found = {_day(f"a day of {name}", day): row for day, row in x.items()}
    for day, row in found.items():
        whole = isinstance(row, list) and len(row) == width and all(type(n) is int for n in row)
        if not whole or day < begun or not 0 <= min(row) <= max(row) == row[0] < 2**53:
            expected = f"{width} counts, of which the first is the greatest, from {begun} on"
            raise ValueError(f"{name} of {day} is {reprlib.repr(row)}, expected {expected}")
    return found


def _saved_sources(x: Any) -> set[str]:
    if not isinstance(x, list) or not all(isinstance(name, str) for name in x):
        raise ValueError(f"sources is {reprlib.repr(x)}, expected names")
    return set(x)
