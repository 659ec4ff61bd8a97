"""Install what is in dist/ into bare environments and try it there: try_wheel.py [--only EXTRA].

The wheel with the oldest releases that are allowed of what it and its extras name, and with the newest; beside torch
its CUDA images too, under the stand-in of libcuda that tests have (`tests/host_cuda.py`), and without a driver; the
sdist without CUDA. Python is the one that runs this.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
import host_cuda  # noqa: E402
import requirements  # noqa: E402

EXTRAS = ("core", "torch", "cli", "gallery", "train", "all")
"""Extras that are tried; "core" is none."""


def attempt(package: Path, extra: str, resolution: str) -> None:
    """Install a package into a new environment and try it in an empty folder."""
    start = monotonic()
    # Nothing of the clone may be found.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PEACCEL_CUDA": "off"}
    uv = [sys.executable, "-m", "uv"]
    with TemporaryDirectory() as folder:
        python = Path(folder, "environment/bin/python")
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, python.parent.parent], check=True)
        wanted = f"peaccel{'' if extra == 'core' else f'[{extra}]'} @ {package.as_uri()}"
        # Named beside the package, its requirements are direct ones, of which the lowest are taken.
        install = [*uv, "pip", "install", "--quiet", "--python", python, "--resolution", resolution, wanted]
        install += [*requirements.beside(extra), *(["--no-build"] if package.suffix == ".whl" else [])]
        subprocess.run(install, check=True, env=env)
        work = Path(folder, "work")
        work.mkdir()
        cuda = ["--without-cuda"] if package.suffix == ".gz" else []
        subprocess.run([python, ROOT / "tools/check_wheel.py", extra, *cuda], check=True, cwd=work, env=env)
        if extra == "torch" and shutil.which("g++") is None:
            print("CUDA's images were not tried: there is no g++ here, which compiles the stand-in of libcuda")
        elif extra == "torch":
            env |= host_cuda.compiled()
            subprocess.run([python, ROOT / "tools/check_wheel.py", "cuda"], check=True, cwd=work, env=env)
    print(f"{package.name}, {extra}, {resolution}: {monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Try each extra."""
    parser = argparse.ArgumentParser(prog="try_wheel.py", description=__doc__)
    parser.add_argument("--only", choices=EXTRAS, help="one of the extras, and no sdist")
    only = parser.parse_args().only
    (wheel,) = (ROOT / "dist").glob("*.whl")
    for extra in [only] if only else EXTRAS:
        for resolution in ("lowest-direct", "highest"):
            attempt(wheel, extra, resolution)
    if not only:
        (sdist,) = (ROOT / "dist").glob("*.tar.gz")
        attempt(sdist, "core", "highest")


if __name__ == "__main__":
    main()
