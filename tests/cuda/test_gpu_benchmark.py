"""Times and reports of benches/gpu.py, on a simulated device."""

import json
import os
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from benches import gpu
from benches.rows import gpu as rows
from benches.table import Row, Side, close

ROOT = pathlib.Path(__file__).parents[2]


class Imagined:
    """A device that works asynchronously; the host and the device have a clock each, in milliseconds."""

    def __init__(self):
        self.host = self.device = 0.0

    def call(self, host, device):
        """Work that takes the host and the device so many milliseconds, to launch and to do."""
        self.host += host
        self.device = max(self.device, self.host) + device

    def synchronize(self):
        self.host = max(self.host, self.device)

    def event(self, enable_timing):
        event = SimpleNamespace()

        def record():
            self.host += 0.01
            event.at = max(self.device, self.host)

        event.record, event.query = record, lambda: event.at <= self.host
        event.elapsed_time = lambda end: end.at - event.at
        return event


@pytest.fixture
def imagined(monkeypatch):
    device = Imagined()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: device.host / 1e3)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: device.call(0.01, cycles / 2e6), raising=False)
    return device


def machine(rehearse):
    device = gpu.Device(True)
    device.rehearse = rehearse
    return device


def test_the_hosts_time_is_not_the_devices(imagined):
    """Dispatch takes ten times as long as the work itself."""
    (found,) = machine(False).timings({"hidden": lambda: imagined.call(0.5, 0.05)}).values()
    assert found.seconds == pytest.approx(0.05e-3) and not found.with_host


def test_beside_a_side_that_waits_for_the_device_all_are_timed_with_the_host(imagined):
    def waiting():
        imagined.call(0.5, 0.1)
        imagined.synchronize()
        imagined.call(0.5, 0.1)

    found = machine(False).timings({"hidden": lambda: imagined.call(0.5, 0.05), "waiting": waiting})
    assert found["hidden"].seconds == pytest.approx(0.55e-3) and found["hidden"].with_host
    assert found["waiting"].seconds == pytest.approx(1.2e-3) and found["waiting"].with_host


def test_a_side_that_fails_loses_no_other_and_rows_are_kept_as_they_come(tmp_path, capsys):
    def broken():
        raise ValueError("no such kernel\nmore of it")

    goals = {"broken": 1.0, "peer": 1e9, "the goal": 1e9}
    sides = {"own": Side(lambda: 1.0, goals), "broken": broken, "peer": lambda: 1.0, "the goal": 1e-3}
    records = list(gpu.measured(Row("work", sides, lambda own, none, peer: close(own, peer)), machine(True)))
    assert [record["side"] for record in records] == ["broken", "own"]
    assert records[0] == {"work": "work", "side": "broken", "error": "ValueError: no such kernel"}
    assert list(records[1]["beside"]) == ["peer", "the goal"] and records[1]["shown"][-1] == "yes; yes"
    wrong = Row("wrong", {"own": Side(lambda: 1.0, {"peer": 1.0}), "peer": lambda: 2.0}, close)
    assert next(gpu.measured(wrong, machine(True)))["error"].startswith("AssertionError: Not equal to tolerance")

    path, facts = tmp_path / "folder" / "gpu.json", {"gpu": "imagined"}
    for more in ([{"work": "other", "side": "", "error": "1"}], records, [{"work": "other", "side": "", "error": "2"}]):
        gpu.Report(path, facts).add("group", more)  # each in a process of its own
    kept = json.loads(path.read_text())
    assert kept["gpu"] == "imagined"
    assert [row.get("error") for row in kept["rows"]] == ["ValueError: no such kernel", None, "2"]
    gpu.Report(path, {"gpu": "another"}).add("group", records)
    assert len(json.loads(path.read_text())["rows"]) == 2
    assert "| group | work | broken | ValueError: no such kernel |" in capsys.readouterr().out


def test_a_group_whose_data_cannot_be_made_is_said(tmp_path):
    def rows(device):
        yield Row("work", {"own": Side(lambda: None, {"peer": 1.0}), "peer": lambda: None})
        raise MemoryError("out of memory")

    report = gpu.Report(tmp_path / "gpu.json", {})
    assert gpu.measure(rows, "group", machine(True), report) == ["group"]
    assert [row.get("error") for row in report.rows] == [None, "MemoryError: out of memory"]


@pytest.mark.parametrize("group", ["first", "bessel", "sampling"])
def test_the_rows_run_on_the_cpu_and_every_goal_has_its_side(group):
    device = gpu.Device(True)
    for row in getattr(rows, group)(device):
        records = list(gpu.measured(row, device))
        assert records and not [record for record in records if "error" in record]
        assert all(side.goals.keys() <= row.sides.keys() for side in row.sides.values() if isinstance(side, Side))


def test_every_group_of_the_command_has_rows():
    assert all(callable(getattr(rows, group)) for group in gpu.GROUPS)


def test_the_check_of_a_machine_with_a_gpu_finds_its_tests():
    """As tools/gpu_check.sh calls pytest: without conftest.py, from the paths that it names."""
    script = (ROOT / "tools" / "gpu_check.sh").read_text()
    (paths,) = re.findall(r"^export PYTHONPATH=(\S+)", script, re.MULTILINE)
    (options,) = re.findall(r"^pytest=\(python3 (.*)\)$", script, re.MULTILINE)
    # Where the installed packages are; the folders of tests that pytest has put there are not of the machine to come.
    site = os.pathsep.join(path for path in sys.path if path and not path.startswith(str(ROOT / "tests")))
    env = {**os.environ, "PYTHONPATH": paths.replace("$site", site)}
    command = [sys.executable, *options.split(), "--collect-only", "tests/cuda/test_cuda.py"]
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "test_cuda.py" in found.stdout, found.stdout + found.stderr
