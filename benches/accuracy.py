"""The largest errors of the Bessel family against arb, beside scipy's: `python -m benches.accuracy [--points N]`.

Golden rows (tests/golden/bessel.csv) and N random points: orders log-uniform to 1e5, a third of them half-integers, x
log-uniform over 1e-6 .. 1e8 and, for a third, around the order. Exit 1 where a bound is exceeded. What errors are
relative to is said in tests/oracle/golden.py; in float32 the truth is that of the float32 argument.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from benches import peers
from benches.data import pe
from benches.table import headed, printed

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "bessel.csv"
OPS = {op.name: op for op in pe.ops.OPS if isinstance(op, pe.ops.Op)}
QUANTITIES = ("log_ive", "vmf_log_norm", "iv_ratio", "log_ive_dx", "log_ive_dxx", "iv_ratio_dx", "iv_ratio_dxx")
SCIPY = {"log_ive": peers.log_ive, "vmf_log_norm": peers.vmf_log_norm, "iv_ratio": peers.iv_ratio}
RANGES = ((0.0, 3.0), (3.0, 20.0), (20.0, 1.1e5))
BOUNDS = {
    ("log_ive", "float64"): 1e-15,
    ("log_ive", "float32"): 5e-7,
    ("iv_ratio", "float64"): 5e-16,
    ("iv_ratio", "float32"): 3e-7,
}
Columns = Mapping[str, np.ndarray]
Function = Callable[[np.ndarray, np.ndarray], np.ndarray]


def columns(rows: Iterable[Mapping[str, str]]) -> Columns:
    """Rows by column; NaN where a field is empty."""
    found = list(rows)
    return {name: np.array([float(row[name] or "nan") for row in found]) for name in ("v", "x", *QUANTITIES)}


def golden() -> Columns:
    """The golden file."""
    with GOLDEN.open() as file:
        return columns(csv.DictReader(file))


def random_points(count: int, seed: int = 0) -> Columns:
    """Random points, with the true values by arb; x is representable in float32."""
    from tests.oracle import golden as oracle

    rng = np.random.default_rng(seed)
    v = np.exp(rng.uniform(np.log(0.01), np.log(1e5), count))
    third = rng.integers(0, 3, count)
    v = np.where(third == 0, np.round(2 * v) / 2, v)
    around = v * np.exp(rng.normal(0, 0.7, count)) + 1e-3
    x = np.where(third == 1, around, 10 ** rng.uniform(-6, 8, count)).astype(np.float32).astype(np.float64)
    lines = (oracle.row(float(a), float(b)).split(",") for a, b in zip(v, x, strict=True))
    return columns(dict(zip(("v", "x", *oracle.QUANTITIES.split()), line, strict=False)) for line in lines)


def floor(name: str, v: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The magnitude below which errors count as absolute."""
    return {
        "log_ive": np.ones_like(x),
        "vmf_log_norm": np.maximum(1, v),
        "log_ive_dx": np.minimum(1, 1 / x),
        "log_ive_dxx": np.minimum(1, 1 / x) ** 2,
    }.get(name, np.full_like(x, np.finfo(float).tiny))


def peaccel(name: str) -> Function:
    """A quantity as peaccel computes it; float32 values one order at a time, so that tables are used."""

    def values(v: np.ndarray, x: np.ndarray) -> np.ndarray:
        op, order = OPS[name], 2 * v + 2 if name == "vmf_log_norm" else v
        if x.dtype == np.float64:
            return pe.ops.elementwise(op, order, x)
        out = np.empty_like(x)
        for value in np.unique(order):
            out[order == value] = pe.ops.elementwise(op, np.asarray(value), x[order == value])
        return out

    return values


@np.errstate(all="ignore")
def errors(name: str, points: Columns, dtype: str, by: Function) -> tuple[np.ndarray, np.ndarray]:
    """The errors at the points that have a value (infinite where there is none), and their orders."""
    limits = np.finfo(dtype)
    v, x, want = points["v"], points["x"], points[name]
    # A subnormal result has fewer digits than the bound asks for.
    usable = (x.astype(dtype) == x) & (np.abs(want) >= limits.tiny) & (np.abs(want) <= limits.max)
    v, x, want = v[usable], x[usable], want[usable]
    error = np.abs(by(v, x.astype(dtype)) - want) / np.maximum(np.abs(want), floor(name, v, x))
    return np.where(np.isfinite(error), error, np.inf), v


def row(name: str, dtype: str, points: Columns) -> bool:
    """Print the errors of one quantity; whether they are within their bound."""
    error, v = errors(name, points, dtype, peaccel(name))
    parts = [error[(low <= v) & (v < high)].max(initial=0) for low, high in RANGES]
    bound = BOUNDS.get((name, dtype))
    kept = bound is None or max(parts) <= bound
    of_bound = ("", "") if bound is None else (f"{bound:.0e}", "yes" if kept else "no")
    peer = ("", "")
    if name in SCIPY:
        other, _ = errors(name, points, dtype, SCIPY[name])
        lost = ~np.isfinite(other)
        peer = (f"{lost.mean():.0%}", f"{other[~lost].max():.1e}")
    printed(name, dtype, *(f"{part:.1e}" for part in parts), *of_bound, *peer)
    return kept


def main() -> int:
    """Print the table; 1 where a bound is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benches.accuracy", description=__doc__)
    parser.add_argument("--points", type=int, default=20_000, help="random points beside the golden rows")
    count = parser.parse_args().points
    fixed, fresh = golden(), random_points(count)
    points = {name: np.concatenate([fixed[name], fresh[name]]) for name in fresh}
    print(f"{len(fixed['v']):,} golden rows and {count:,} random points\n")
    heads = [f"{low:g} <= v < {high:g}" for low, high in RANGES]
    headed("quantity", "dtype", *heads, "bound", "met", "scipy fails", "scipy's largest finite error")
    kept = [row(name, dtype, points) for name in QUANTITIES for dtype in ("float64", "float32")]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
