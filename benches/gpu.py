"""Peaccel on a GPU beside its peers there: `python -m benches.gpu [--only GROUP] [--rehearse] [--out FOLDER]`.

The rows are those of `benches.rows.gpu`, in the grammar of `benches.table`. How they are timed: the device is put to
sleep, a call goes on the stream between two events, and the time from one to the other is the device's alone, since all
of the call's work was waiting for it. That the first event has not passed when the host is done proves it. Where it
has, since a side asks the device for a value on its way or takes longer to launch, all sides of the row are timed again
with the host, from the call until the device is done. Before each call the caches are filled with other data. Medians
of 15 calls after 3 to warm up, the sides in turn; under five minutes.

Needs torch and numpy only. FOLDER/<gpu>.json is written after each row; what it has of other rows stays, so that each
group can be run in a process of its own. `--rehearse` runs all of it on the CPU in small sizes, which shows that the
code runs, not how fast.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import peaccel as pe
from benches.data import optional
from benches.table import HEADER, Row, Run, cells, headed, judged, printed, sides_of

torch = optional("torch")

SLEEP = 20_000_000  # cycles: some 10 ms, longer than the host takes to launch any call here
GROUPS = ("first", "rerank", "search", "halves", "bessel", "sampling", "all_pairs", "losses")


class Timing(NamedTuple):
    """The median of a side's times, and whether they include the host's."""

    seconds: float
    with_host: bool


class Device:
    """The device, how to time on it, and sizes."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.name = "cpu" if rehearse else "cuda"
        self.generator = torch.Generator(self.name).manual_seed(0)
        self.other = torch.zeros(self.size(2**28), dtype=torch.uint8, device=self.name)

    def size(self, full: int) -> int:
        """A size, or a small one for a rehearsal."""
        return max(2, int(full ** (1 / 3))) if self.rehearse else full

    def normal(self, *shape: int) -> Any:
        """Normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.name)

    def directions(self, n: int, dim: int) -> Any:
        """Rows of unit length."""
        return torch.nn.functional.normalize(self.normal(n, dim))

    def uniform(self, *shape: int) -> Any:
        """Numbers between 0 and 1."""
        return torch.rand(shape, generator=self.generator, device=self.name)

    def choose(self, n: int, *shape: int) -> Any:
        """Whole numbers below n."""
        return torch.randint(n, shape, generator=self.generator, device=self.name)

    def timings(self, calls: Mapping[str, Run]) -> dict[str, Timing | str]:
        """The timings of calls, all of the device alone or all with the host; for one that fails the reason."""
        found = self._in_turn(calls, self._with_host if self.rehearse else self._alone)
        if any(isinstance(timing, Timing) and timing.with_host for timing in found.values()):
            found = self._in_turn(calls, self._with_host)
        return found

    def _in_turn(self, calls: Mapping[str, Run], time_of: Callable[[Run], Timing]) -> dict[str, Timing | str]:
        """The timings of calls by one clock, taken in turn; one that fails lets the others go on."""
        found: dict[str, list[Timing]] = {name: [] for name in calls}
        failed: dict[str, str] = {}
        warm_up, rounds = (1, 2) if self.rehearse else (3, 15)
        for _ in range(warm_up + rounds):
            for name, run in calls.items():
                if name not in failed:
                    try:
                        found[name].append(time_of(run))
                    except Exception as error:
                        failed[name] = reason(error)
        return {name: failed.get(name) or median(own[warm_up:]) for name, own in found.items()}

    def _with_host(self, run: Run) -> Timing:
        """The time from the call until the device is done."""
        self.other.sum()
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        return Timing(time.perf_counter() - start, not self.rehearse)

    def _wait(self) -> None:
        """Wait for the device."""
        if not self.rehearse:
            torch.cuda.synchronize()

    def _alone(self, run: Run) -> Timing:
        """The device's time, where the host had launched everything before it began."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.other.sum()  # read, not written: nothing is left to be written back
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        start.record()
        run()
        end.record()
        waits = start.query()
        torch.cuda.synchronize()
        return Timing(start.elapsed_time(end) / 1e3, waits)


def reason(error: Exception) -> str:
    """The error's type and its first line that says something."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def median(calls: list[Timing]) -> Timing:
    """The median of calls, with the host if any of them was."""
    return Timing(statistics.median(call.seconds for call in calls), any(call.with_host for call in calls))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def measured(row: Row, device: Device) -> Iterator[dict[str, Any]]:
    """A record for each side of a row, after a look whether the sides do the same."""
    sides = sides_of(row)
    calls = {name: side.run for name, side in sides.items() if callable(side.run)}
    found = device.timings(calls)
    try:
        row.same(*(None if isinstance(found[name], str) else run() for name, run in calls.items()))
    except Exception as error:
        yield {"work": row.work, "side": "", "error": reason(error)}
    for name, timing in found.items():
        if isinstance(timing, str):
            yield {"work": row.work, "side": name, "error": timing}
    amounts = {name: float(side.run) for name, side in sides.items() if not callable(side.run)}
    amounts |= {name: timing.seconds for name, timing in found.items() if isinstance(timing, Timing)}
    with_host = any(isinstance(timing, Timing) and timing.with_host for timing in found.values())
    for line in judged(row, amounts):
        _, _, amount, rate, beside, ratio, goal, met = cells(line, row)
        record = {"work": row.work, "side": line.side, "ms": round(1e3 * line.amount, 4), "with_host": with_host}
        others = {name: round(1e3 * value, 4) for name, value in line.beside.items()}
        shown = (amount + (" with the host" if with_host else ""), rate, beside, ratio, goal, met)
        yield {**record, "beside": others, "shown": shown}


class Report:
    """The records so far, printed as they come and kept in a file from the first one on."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        before = json.loads(path.read_text()) if path.exists() else {}
        same = all(before.get(name) == fact for name, fact in facts.items())
        self.rows: list[dict[str, Any]] = before.get("rows", []) if same else []
        headed(*HEADER)

    def add(self, group: str, records: list[dict[str, Any]]) -> None:
        """Replace the records of one row."""
        self.rows = [row for row in self.rows if row["work"] != records[0]["work"]] + records
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.facts, "rows": self.rows}, indent=1) + "\n")
        for row in records:
            printed(group, row["work"], row["side"], *row.get("shown", (row.get("error"), *[""] * 5)))


def measure(rows: Callable[[Device], Iterator[Row]], group: str, device: Device, report: Report) -> list[str]:
    """Measure a group; what of it did not run."""
    failed = []
    try:
        for row in rows(device):
            records = list(measured(row, device))
            report.add(group, records)
            failed += [record["work"] for record in records if "error" in record]
    except Exception as error:  # of making the data
        report.add(group, [{"work": group, "side": "", "error": reason(error)}])
        failed.append(group)
    return failed


def main() -> None:
    """Measure the groups; the exit status is 1 where something did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=GROUPS, help="one group of rows")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes; writes rehearsal.json")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if not (options.rehearse or torch.cuda.is_available()):
        parser.error("torch sees no GPU here; --rehearse runs the code on the CPU")
    device = Device(options.rehearse)
    gpu = "rehearsal" if options.rehearse else torch.cuda.get_device_name()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    report = Report(
        options.out / f"{gpu.replace(' ', '-')}.json", {"gpu": gpu, "versions": versions, "peaccel": pe.build_info()}
    )
    failed, groups = [], import_module("benches.rows.gpu")
    for group in [options.only] if options.only else GROUPS:
        failed += measure(getattr(groups, group), group, device, report)
    if failed:
        sys.exit(f"did not run: {'; '.join(dict.fromkeys(failed))}")


if __name__ == "__main__":
    main()
