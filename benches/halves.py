"""What rounding to halves costs: `python -m benches.halves`. Lengths of directions, vMF mls, time to prepare."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np

import peaccel as pe

ROWS, QUERIES = 20_000, 256
NEAREST = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def main() -> None:
    rng = np.random.default_rng(0)
    print(
        "| D | dtype | median of the length's error, nearest | kept | rms error of vMF mls, nearest | kept | us a row |"
    )
    print("|---|---|---|---|---|---|---|")
    for dim in (64, 128, 512):
        mu = rng.standard_normal((ROWS, dim)).astype(np.float32)
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
        d = pe.VonMisesFisher(mu, rng.uniform(100, 900, ROWS).astype(np.float32))
        want = pe.pairwise(d[:QUERIES], d)
        for dtype, of in NEAREST.items():
            start = time.perf_counter()
            kept = pe.prepare(d, dtype=dtype).distribution
            seconds, cells = time.perf_counter() - start, []
            for items in (d.to(of), kept):
                length = np.linalg.norm(items.mu.astype(np.float64), axis=1)
                error = pe.pairwise(d[:QUERIES], items) - want
                cells.append((np.median(abs(length - 1)), np.sqrt(np.mean(error.astype(np.float64) ** 2))))
            lengths, scores = zip(*cells, strict=True)
            shown = [f"{x:.1e}" for x in lengths] + [f"{x:.3f}" for x in scores]
            print("| " + " | ".join([str(dim), dtype, *shown, f"{1e6 * seconds / ROWS:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
