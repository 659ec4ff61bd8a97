"""How benches/gpu.py times and reports, on a simulated device."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

# Imported by its path: the package of the benchmarks sets the number of threads of libraries, for other tests too.
ROOT = pathlib.Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("gpu", ROOT / "benches" / "gpu.py")
gpu = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu)


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
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: device.call(0.01, cycles / 2e6), raising=False)
    return device


def machine(rehearse):
    machine = gpu.Machine(True)
    machine.rehearse = rehearse
    return machine


def test_the_hosts_time_is_not_the_devices(imagined):
    """Dispatch takes ten times as long as the work itself; a side that waits for the device is known by that."""

    def waiting():
        imagined.call(0.5, 0.1)
        imagined.synchronize()
        imagined.call(0.5, 0.1)

    sides = [gpu.Side("hidden", lambda: imagined.call(0.5, 0.05)), gpu.Side("waiting", waiting)]
    hidden, waiting = machine(False).timings(sides)
    assert hidden.seconds == pytest.approx(0.05e-3)
    assert not hidden.waits
    assert waiting.seconds > 0.6e-3
    assert waiting.waits


def test_a_side_that_fails_loses_no_other_and_rows_are_kept_as_they_come(tmp_path, capsys):
    def broken():
        raise ValueError("no such kernel\nmore of it")

    goals = [gpu.Goal("faster", 1e-9, "broken"), gpu.Goal("faster", 1e-9, "peer")]
    sides = [gpu.Side("own", lambda: None), gpu.Side("broken", broken), gpu.Side("peer", lambda: None)]
    work = gpu.Work("work", sides, goals)
    rows = list(gpu.judged(work, machine(True).timings(work.sides)))
    assert [row["side"] for row in rows] == ["own", "broken", "peer"]
    assert rows[1] == {"work": "work", "side": "broken", "error": "ValueError: no such kernel"}
    assert [goal["met"] for goal in rows[0]["goals"]] == [True]

    path, facts = tmp_path / "folder" / "gpu.json", {"gpu": "imagined"}
    for more in ([{"work": "other", "side": "", "error": "1"}], rows, [{"work": "other", "side": "", "error": "2"}]):
        gpu.Report(path, facts).add(more)  # each in a process of its own
    kept = json.loads(path.read_text())
    assert kept["gpu"] == "imagined"
    assert [row.get("error") for row in kept["rows"]] == [None, "ValueError: no such kernel", None, "2"]
    gpu.Report(path, {"gpu": "another"}).add(rows)
    assert len(json.loads(path.read_text())["rows"]) == 3
    assert "| work | broken | ValueError: no such kernel |" in capsys.readouterr().out


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
