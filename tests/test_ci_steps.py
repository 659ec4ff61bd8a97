"""Steps of the workflows are scripts that bash reads, and call targets and files that there are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import ci_steps  # noqa: E402

OURS = """
jobs:
  try:
    strategy: {matrix: {word: [first, second]}}
    steps:
      - uses: actions/checkout@v7
      - run: echo is $WORD
        env: {WORD: '${{ matrix.word }}'}
      - run: exit 3
      - run: echo last
"""

SCRIPTS = [
    pytest.param(script, env, id=f"{name}-{i}")
    for name, job in ci_steps.jobs().items()
    for i, (script, env, reason) in enumerate(ci_steps.steps(job))
    if reason != "an action"
]


@pytest.mark.parametrize(("script", "env"), SCRIPTS)
def test_a_step_is_a_script_whose_targets_and_tools_are_there(script, env):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    values = {f'"${name}"': value for name, value in env.items()}
    called = {values.get(word, word) for word in re.findall(r"\bmake (\S+)", script)}
    assert called <= targets
    assert all((ROOT / path).exists() for path in re.findall(r"\btools/[\w./-]+", script))
    assert "${{" not in script  # which would put others' text into a script


def test_every_value_of_the_nightly_matrix_is_a_target():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(ci_steps.jobs()["nightly/run"]["strategy"]["matrix"]["target"]) <= set(targets)


def test_a_job_runs_its_steps_in_order_and_ends_with_the_first_that_fails(tmp_path, monkeypatch, capfd):
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True)
    (folder / "ours.yml").write_text(OURS)
    monkeypatch.setattr(ci_steps, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["ci_steps.py", "ours/try"])
    assert ci_steps.main() == 3
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("ours/try: actions/checkout@v7 [left out") and "is first" in lines
    assert not any("last" in line for line in lines)
