"""Run the `run:` steps of a job of .github/workflows here: ci_steps.py [WORKFLOW/JOB]; without one, list them.

Steps run in order, each by `bash -e` as GitHub runs it, with the first value of each matrix. Actions (`uses:`) are
named and left out: the clone is there, and dist/ holds what other jobs hand on. A step with a condition of its own is
named and left out too.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent


def jobs() -> dict[str, dict[str, Any]]:
    """The jobs of all workflows, by WORKFLOW/JOB."""
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"] for path in files}
    return {f"{workflow}/{name}": job for workflow, of in found.items() for name, job in of.items()}


def matrix(job: dict[str, Any]) -> dict[str, str]:
    """The first value of each name of a job's matrix."""
    values = job.get("strategy", {}).get("matrix", {})
    first = {name: x[0] for name, x in values.items() if name != "include"} | dict(*values.get("include", [])[:1])
    return {name: str(value) for name, value in first.items()}


def steps(job: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], str]]:
    """The script of each step, its environment, and why it is left out, if it is."""
    values = matrix(job)
    for step in job["steps"]:
        env = {
            name: re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: values[found[1]], str(value))
            for name, value in step.get("env", {}).items()
        }
        reason = "an action" if "run" not in step else f"if: {step['if']}" if "if" in step else ""
        yield step.get("run", step.get("uses", "")), env, reason


def main() -> int:
    """List all steps, or run those of a job."""
    found = jobs()
    parser = argparse.ArgumentParser(prog="ci_steps.py", description=__doc__)
    parser.add_argument("job", nargs="?", choices=found, metavar="WORKFLOW/JOB")
    asked = parser.parse_args().job
    with TemporaryDirectory() as folder:
        base = os.environ | {"GITHUB_WORKSPACE": str(ROOT), "RUNNER_TEMP": folder}
        base["GITHUB_STEP_SUMMARY"] = str(Path(folder, "summary.md"))
        for name, job in found.items():
            for script, env, reason in steps(job) if asked in (None, name) else ():
                print(f"{name}: {script.strip()}{f' [left out: {reason}]' if reason else ''}", flush=True)
                if asked and not reason:
                    code = subprocess.run(["bash", "-ec", script], cwd=ROOT, env=base | env, check=False).returncode
                    if code:
                        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
