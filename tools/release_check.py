"""Hold what is in dist/ against what a release promises, and print what a person has still to do: release_check.py."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST_WHEEL = 20e6
"""Bytes. Each target's machine code is packed alone, which takes more room, and lets a process unpack no other's."""
LICENCES = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))["licenses"]["allow"]
"""One of which every crate that the wheel holds may be used under, or all of those that it joins by AND."""
IN_SDIST = (
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "Cargo.lock",
    "rust/lib.rs",
    "cuda/common.cuh",
    "tests/conftest.py",
    "python/peaccel/__init__.py",
)
PERSON = """What a person has still to do:
  1. Read CHANGELOG.md and set its date; commit.
  2. At the first release: write the repository's address into [project.urls] of pyproject.toml, and by it README's
     links and picture, since PyPI shows no relative ones; make the project "peaccel" on PyPI, with the repository's
     release.yml as its trusted publisher, and the repository's environment "pypi"; switch on Pages with GitHub Actions
     as its source.
  3. `gh workflow run release.yml` builds everything, the wheels of systems that nothing here has run too, and publishes
     nothing; `git tag v{version} && git push origin v{version}` does it and publishes.
  4. On a machine with a GPU: `tools/gpu_check.sh correctness dist/*.whl`, then `figures`.
  5. conda-forge: write the sdist's address and hash and the repository's into tools/conda/recipe.yaml, and send it to
     staged-recipes.
"""


def wheel(path: Path) -> Iterator[str]:
    """Faults of the wheel."""
    size = path.stat().st_size
    print(f"{path.name}: {size / 1e6:.1f} MB, at most {LARGEST_WHEEL / 1e6:.0f}")
    if size > LARGEST_WHEEL:
        yield f"{path.name} has {size / 1e6:.1f} MB, expected at most {LARGEST_WHEEL / 1e6:.0f}"
    names = zipfile.ZipFile(path).namelist()
    for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
        if not any(name.endswith(f".dist-info/licenses/{licence}") for name in names):
            yield f"{path.name} lacks {licence}"
    command = [sys.executable, "-m", "uv", "tool", "run", "--quiet", "auditwheel", "show", path]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "manylinux_2_28" not in path.name or '"manylinux_2_' not in shown:
        yield f"auditwheel does not call {path.name} manylinux: {shown}"


def sdist(path: Path) -> Iterator[str]:
    """Gaps of the sdist."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(names)} files")
    yield from (f"{path.name} lacks {name}" for name in IN_SDIST if name not in names)


def licences() -> Iterator[str]:
    """Crates that are linked into the library and may not be."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "python"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    print(f"{len(found['packages']) - 1} crates")
    for package in found["packages"]:
        choices = re.split(r"\s+OR\s+|/", package["license"] or "none")
        if not any(all(part.strip("() ") in LICENCES for part in choice.split(" AND ")) for choice in choices):
            yield f"{package['name']} has the licence {package['license']}, expected one of {', '.join(LICENCES)}"


def main() -> int:
    """Check everything that stands in dist/."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["package"]["version"]
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    wrong = []
    if changes is None or changes[1] != version:
        wrong.append(f"CHANGELOG.md begins with {changes and changes[1]}, expected {version}")
    left = sorted(path.name for path in (ROOT / "changes").glob("*.md") if path.name != "README.md")
    wrong += [f"changes/{name} is not in CHANGELOG.md yet" for name in left]
    recipe = (ROOT / "tools/conda/recipe.yaml").read_text(encoding="utf-8")
    if f"  version: {version}\n" not in recipe:
        wrong.append(f"tools/conda/recipe.yaml has another version, expected {version}")
    wrong += wheel(ROOT / f"dist/peaccel-{version}-cp311-abi3-manylinux_2_28_x86_64.whl")
    wrong += sdist(ROOT / f"dist/peaccel-{version}.tar.gz")
    wrong += licences()
    print(*wrong or ["all is as a release wants it"], sep="\n")
    print(PERSON.format(version=version))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
