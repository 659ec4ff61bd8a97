"""Pictures of evaluations and thresholds on axes of matplotlib; reports are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host
from peaccel.evaluation.pair_rates import FEWEST
from peaccel.evaluation.results import Evaluation
from peaccel.evaluation.threshold_results import ThresholdChoice
from peaccel.fits.reliability_curve import ReliabilityCurve
from peaccel.metrics.open_set import OpenSet, bin_edges
from peaccel.metrics.reject_verification import RejectVerification

try:
    from matplotlib.axes import Axes
    from matplotlib.ticker import LogLocator, NullFormatter
except ImportError:
    raise ImportError("peaccel.plot needs matplotlib: pip install peaccel[report]") from None

__all__ = ["det", "error_discard", "reliability", "risk_coverage", "roc", "score_histogram"]

Errors: TypeAlias = OpenSet | ThresholdChoice | Evaluation | Mapping[str, OpenSet]
"""Two kinds of errors over all thresholds."""

STYLES = ("-", "--", ":", "-.")
MARK = "#c0392b"
SURE = 0.05
"""The share of what is accepted from which on the curve of risk decides how high its axis goes."""
BINS = 40


def risk_coverage(found: ThresholdChoice, ax: Axes | None = None) -> Axes:
    """Plot the share of wrong answers among the accepted ones against the share that is accepted.

    Parameters
    ----------
    found
        The result of `peaccel.choose_threshold` or `peaccel.choose_pair_threshold`: its confidence bound is dashed, and
        the promise and the threshold that was asked for are marked.
    ax
        Axes of matplotlib; None: new ones.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> scores = np.linspace(0, 1, 400)
    >>> found = pe.choose_pair_threshold(scores, match=scores > 0.3, wrong=0.05)
    >>> pe.plot.risk_coverage(found).get_xlabel()
    'accepted pairs %'
    """
    ax = _axes("risk_coverage", found, ThresholdChoice, ax)
    (coverage, risk), (tested, upper) = np.array(found.coverage).T, np.array(found.bound).T
    ax.plot(100 * coverage, 100 * risk, linewidth=2, label="wrong on these data", drawstyle="steps-pre")
    ax.plot(100 * tested, 100 * upper, linewidth=1, linestyle="--", color="C0", label="upper confidence bound")
    chosen, highest = found.chosen, max(risk[coverage >= SURE].max(), upper[tested >= SURE].min())
    if chosen is not None and chosen.promise == "wrong":
        ax.axhline(100 * chosen.alpha, color="#999", linewidth=1, label="promised at most")
        highest = max(highest, chosen.alpha)
    if chosen is not None and not math.isinf(chosen.threshold) and chosen.accepted:
        wrong = chosen.wrong if chosen.wrong_by_class is None else chosen.wrong_by_class
        _mark(ax, 100 * chosen.accepted, 100 * wrong)
        highest = max(highest, wrong)
    accepted = "pairs" if found.of_pairs else "queries"
    ax.set(xlabel=f"accepted {accepted} %", ylabel="wrong of these %", xlim=(0, 100))
    ax.set_ylim(0, min(105 * highest, 102) or 1)
    return _finished(ax)


def det(found: Errors, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
    """Plot the detection error trade-off: misses against false positives, on logarithmic axes.

    Parameters
    ----------
    found
        The result of `peaccel.metrics.open_set`, several of them by name, the result of `peaccel.evaluate` with novel
        queries, or that of `peaccel.choose_threshold`, whose threshold is marked. Pairs are mated and non-mated
        searches in it.
    ax
        Axes of matplotlib; None: new ones.
    threshold
        A score that is marked on each curve of `open_set`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        The result has no errors of both kinds.

    Notes
    -----
    In grey fewer than ten false positives are counted, which may be chance. A share of 0 is drawn as half a search.

    Examples
    --------
    >>> errors = pe.metrics.open_set(mated=[0.9, 0.6], non_mated=[0.7, 0.2])
    >>> pe.plot.det(errors, threshold=0.65).get_ylabel()
    'FNIR %'
    """
    both = _errors("det", found, threshold)
    ax = _axes("det", None, type(None), ax)
    for i, (name, curve) in enumerate(both.curves.items()):
        x, y = np.maximum(curve, both.least).T
        ax.step(x, y, STYLES[i % len(STYLES)], where="post", label=name or None, linewidth=2)
    for point in both.marked:
        _mark(ax, *np.maximum(point, both.least))
    least = both.least[0]
    ax.axvspan(least, min(2 * FEWEST * least, 1), color="#ddd", zorder=0)
    ax.set(xlabel=both.labels[0], ylabel=both.labels[1], xscale="log", yscale="log", xlim=(least, 1))
    lowest, highest = ax.get_ylim()
    steps_of_y = (1, 2, 3, 5, 7) if highest < 30 * lowest else (1, 3) if highest < 1e3 * lowest else (1,)
    for axis, steps in ((ax.xaxis, (1,)), (ax.yaxis, steps_of_y)):
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(lambda rate, place: f"{100 * rate:g}")
        axis.set_minor_formatter(NullFormatter())
    return _finished(ax)


def roc(found: Errors, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
    """Plot the receiver operating characteristic: right matches that are found against false positives.

    Parameters
    ----------
    found, ax, threshold
        As of `det`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        As of `det`.

    Examples
    --------
    >>> errors = pe.metrics.open_set(mated=[0.9, 0.6], non_mated=[0.7, 0.2])
    >>> pe.plot.roc({"cosine": errors}).get_lines()[0].get_ydata().tolist()
    [0.0, 50.0, 50.0, 100.0, 100.0]
    """
    both = _errors("roc", found, threshold)
    ax = _axes("roc", None, type(None), ax)
    for i, (name, curve) in enumerate(both.curves.items()):
        x, y = curve.T
        ax.step(100 * x, 100 * (1 - y), STYLES[i % len(STYLES)], where="post", label=name or None, linewidth=2)
    for false, missed in both.marked:
        _mark(ax, 100 * false, 100 * (1 - missed))
    ax.plot([0, 100], [0, 100], color="#999", linewidth=1)
    ax.set(
        xlabel=both.labels[0],
        ylabel="TAR %" if both.labels[1] == "FRR %" else "right items found %",
        xlim=(0, 100),
        ylim=(0, 102),
    )
    return _finished(ax)


def reliability(
    found: ReliabilityCurve | Mapping[str, ReliabilityCurve], ax: Axes | None = None, *, threshold: float | None = None
) -> Axes:
    """Plot the share of right pairs or answers against the probability that was predicted, in bins.

    Parameters
    ----------
    found
        The result of `peaccel.reliability_curve`, or several by name. Points on the grey line may be believed.
    ax
        Axes of matplotlib; None: new ones.
    threshold
        A probability that is marked.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> curve = pe.reliability_curve([0.1, 0.2, 0.8, 0.9], labels=[0, 1, 1, 1], bins=2)
    >>> pe.plot.reliability(curve).get_ylabel()
    'share that is right'
    """
    ax = _axes("reliability", found, ReliabilityCurve | Mapping, ax)
    curves = {"": found} if isinstance(found, ReliabilityCurve) else found
    every = np.concatenate([curve.predicted for curve in curves.values()])
    ends = [every.min(), every.max()]
    ax.plot(ends, ends, color="#999", linewidth=1)
    for name, curve in curves.items():
        ax.plot(curve.predicted, curve.observed, "o", markersize=4, label=name or None)
    _line(ax, threshold)
    ax.set(xlabel="predicted probability", ylabel="share that is right")
    return _finished(ax)


def error_discard(
    found: Evaluation | RejectVerification | Mapping[str, RejectVerification], ax: Axes | None = None
) -> Axes:
    """Plot the error of what is kept against the share that is discarded, least confident first.

    Parameters
    ----------
    found
        The result of `peaccel.evaluate`: wrong answers, a line for each confidence. Or that of
        `peaccel.metrics.reject_verification`, or several by name: missed matches at its FAR.
    ax
        Axes of matplotlib; None: new ones.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> scores, same, uncertainty = [0.9, 0.3, 0.5, 0.1], [1, 1, 0, 0], [9, 1, 2, 3]
    >>> found = pe.metrics.reject_verification(scores, same, uncertainty, far=0, shares=[0, 0.25])
    >>> pe.plot.error_discard(found).get_xlabel()
    'pairs discarded %'
    """
    ax = _axes("error_discard", found, Evaluation | RejectVerification | Mapping, ax)
    lines: dict[str, tuple[NDArray[Any], NDArray[Any]]]
    if isinstance(found, Evaluation):
        lines = {c.confidence: (np.array(found.shares), 1 - np.array(c.curve)) for c in found.confidences}
        labels = "queries discarded %", "wrong answers among those kept %"
    else:
        named = {"": found} if isinstance(found, RejectVerification) else found
        lines = {name: (x.shares, 1 - x.tar) for name, x in named.items()}
        labels = "pairs discarded %", "missed matches among those kept %"
    for i, (name, (share, error)) in enumerate(lines.items()):
        ax.plot(100 * share, 100 * error, STYLES[i % len(STYLES)], label=name or None, linewidth=2)
    ax.set(xlabel=labels[0], ylabel=labels[1])
    return _finished(ax)


def score_histogram(
    found: ThresholdChoice | Mapping[str, ArrayLike], ax: Axes | None = None, *, threshold: float | None = None
) -> Axes:
    """Plot where the scores of matches and of others lie, each in shares of its kind.

    Parameters
    ----------
    found
        The result of `peaccel.choose_threshold`, whose threshold is marked, or scores [N] by name.
    ax
        Axes of matplotlib; None: new ones.
    threshold
        A score that is marked.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        No scores, or scores that are not finite.

    Examples
    --------
    >>> ax = pe.plot.score_histogram({"matches": [0.8, 0.9], "others": [0.1, 0.4]}, threshold=0.6)
    >>> ax.get_legend_handles_labels()[1]
    ['matches', 'others', 'the threshold']
    """
    ax = _axes("score_histogram", found, ThresholdChoice | Mapping, ax)
    if isinstance(found, ThresholdChoice):
        edges, counts, chosen = np.array(found.edges), found.counts, found.chosen
        name = found.score or "score"
        threshold = chosen.threshold if threshold is None and chosen is not None else threshold
        name = name if found.confidence == "score" else f"{found.confidence} of {name}"
    else:
        scores = {key: on_host(x, "score_histogram", key).astype(np.float64) for key, x in found.items()}
        every = np.concatenate([np.ravel(x) for x in scores.values()] or [np.empty(0)])
        if not len(every) or not np.isfinite(every).all():
            raise ValueError(f"score_histogram: found holds {len(every)} scores, expected some, all of them finite")
        edges, name = bin_edges(every, BINS), "score"
        counts = {key: tuple(np.histogram(x, edges)[0].tolist()) for key, x in scores.items()}
    for i, (kind, held) in enumerate(counts.items()):
        shares = 100 * np.array(held) / max(sum(held), 1)
        ax.stairs(shares, edges, fill=True, alpha=0.25, color=f"C{i}")
        ax.stairs(shares, edges, linestyle=STYLES[i % len(STYLES)], linewidth=1.5, color=f"C{i}", label=kind)
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        _line(ax, threshold)
    ax.set(xlabel=name, ylabel="share of the kind %", xlim=(edges[0], edges[-1]))
    return _finished(ax)


class _Errors(NamedTuple):
    """Errors of both kinds over falling thresholds."""

    curves: Mapping[str, NDArray[np.float64]]
    """By name, [T, 2]: false positives and misses."""
    least: tuple[float, float]
    """Half a search of each kind."""
    labels: tuple[str, str]
    marked: list[tuple[float, float]]


def _errors(owner: str, found: Errors, threshold: float | None) -> _Errors:
    """Errors of a result in one form."""
    if isinstance(found, ThresholdChoice):
        chosen, curves = found.chosen, {found.score or "score": np.array(found.trade_off)}
        known = chosen is not None and chosen.false is not None and not math.isinf(chosen.threshold)
        marked = [(chosen.false, 1 - chosen.found)] if known and chosen is not None and chosen.false is not None else []
        labels = ("FAR %", "FRR %") if found.of_pairs else ("FPIR %", "FNIR %")
        sizes = found.others, found.matches
    elif isinstance(found, Evaluation):
        curves, labels, marked = {x.score: np.array(x.curve) for x in found.open_set}, ("FPIR %", "FNIR %"), []
        sizes = found.novel, found.queries - found.unanswerable
    elif isinstance(found, OpenSet | Mapping):
        several = {"": found} if isinstance(found, OpenSet) else found
        curves = {name: np.stack([x.fpir, x.fnir], 1) for name, x in several.items()}
        points = [] if threshold is None else [x.at_threshold(threshold) for x in several.values()]
        labels, marked = ("FPIR %", "FNIR %"), [(x.fpir, x.fnir) for x in points]
        steps = [np.concatenate([np.unique(x[:, side]) for x in curves.values()] or [np.ones(1)]) for side in (0, 1)]
        sizes = tuple(round(1 / x[x > 0].min()) for x in steps)
    else:
        raise TypeError(f"{owner}: found is {type(found).__name__}, expected a result of open_set, or of several")
    if not curves or not all(map(len, curves.values())):
        raise ValueError(f"{owner}: found has no errors of both kinds, expected searches with and without a mate")
    return _Errors(curves, (1 / (2 * sizes[0]), 1 / (2 * sizes[1])), labels, marked)


def _axes(owner: str, found: Any, expected: Any, ax: Axes | None) -> Axes:
    """The axes, or new ones; TypeError where the result is of another kind."""
    if not isinstance(found, expected):
        raise TypeError(f"{owner}: found is {type(found).__name__}, expected {getattr(expected, '__name__', expected)}")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _mark(ax: Axes, x: float, y: float) -> None:
    label = None if "the threshold" in ax.get_legend_handles_labels()[1] else "the threshold"
    ax.plot([x], [y], "o", color=MARK, label=label, zorder=3, clip_on=False)


def _line(ax: Axes, threshold: float | None) -> None:
    if threshold is not None:
        ax.axvline(threshold, color=MARK, linewidth=1.5, label="the threshold")


def _finished(ax: Axes) -> Axes:
    """The axes, with names of lines below, where they lie on none of them."""
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)
    return ax
