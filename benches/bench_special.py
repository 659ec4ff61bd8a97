"""Bessel functions and the vMF norm, elementwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benches import accuracy
from benches.data import pe
from benches.peers import special, torch


@np.errstate(all="ignore")  # it underflows
def _log_ive(v: float, x: Any) -> Any:
    return np.log(special.ive(v, x))


@np.errstate(all="ignore")
def _iv_ratio(v: float, x: Any) -> Any:
    return special.ive(v, x) / special.ive(v - 1, x)


OPS = ("log_iv", "log_ive", "iv_ratio", "vmf_log_norm")
# Orders are those of vMF distributions: dim = 2 v + 2. torch has order 0 only.
PEERS = {
    ("log_iv", "scipy"): lambda v, x: _log_ive(v, x) + x,
    ("log_ive", "scipy"): _log_ive,
    ("iv_ratio", "scipy"): _iv_ratio,
    ("vmf_log_norm", "scipy"): lambda v, x: v * np.log(x) - (v + 1) * math.log(2 * math.pi) - _log_ive(v, x) - x,
    ("log_iv", "torch eager"): lambda v, x: torch.log(torch.special.i0e(x)) + x,
    ("log_ive", "torch eager"): lambda v, x: torch.log(torch.special.i0e(x)),
    ("log_iv", "peaccel"): lambda v, x: pe.special.log_iv(v, x),
    ("log_ive", "peaccel"): lambda v, x: pe.special.log_ive(v, x),
    ("iv_ratio", "peaccel"): lambda v, x: pe.special.iv_ratio(v, x),
    ("vmf_log_norm", "peaccel"): lambda v, x: pe.special.vmf_log_norm(2 * v + 2, x),
}
MODULES = {"peaccel": pe, "scipy": special, "torch eager": torch}


class Special:
    """100,000 elements, x log-uniform in [1, 1e4]."""

    param_names = ("op", "order", "dtype", "backend")
    params = (OPS, (0, 63, 1023), ("float32", "float64"), tuple(MODULES))

    def setup(self, op: str, order: int, dtype: str, backend: str) -> None:
        self.peer = PEERS.get((op, backend))
        wrong_order = (op == "iv_ratio" and order == 0) or (backend == "torch eager" and order != 0)
        if self.peer is None or MODULES[backend] is None or wrong_order:
            raise NotImplementedError
        x = np.exp(np.random.default_rng(0).uniform(0, math.log(1e4), 100_000)).astype(dtype)
        self.x = torch.from_numpy(x) if backend == "torch eager" else x

    def time_special(self, op: str, order: int, dtype: str, backend: str) -> None:
        self.peer(order, self.x)


class Accuracy:
    """The largest error against the golden rows, so that the history shows a loss of digits as well."""

    param_names = ("op", "dtype")
    params = (accuracy.QUANTITIES, ("float32", "float64"))
    unit = "relative error"

    def track_error(self, op: str, dtype: str) -> float:
        return accuracy.largest(op, dtype, accuracy.golden())
