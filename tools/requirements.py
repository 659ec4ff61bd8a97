"""Print what pyproject.toml says to install beside the package: for an extra, or to build: requirements.py [EXTRA]."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FILE = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))


def needed(extra: str) -> Iterator[str]:
    """Requirements of an extra, those of the extras that it names among them; "core" is none."""
    if extra == "core":
        return
    for requirement in FILE["project"]["optional-dependencies"][extra]:
        if requirement.startswith("peaccel["):
            for name in requirement.removeprefix("peaccel[").removesuffix("]").split(","):
                yield from needed(name)
        else:
            yield requirement


def beside(extra: str) -> list[str]:
    """All that is installed beside the package."""
    return list(dict.fromkeys([*FILE["project"]["dependencies"], *needed(extra)]))


if __name__ == "__main__":
    print(*FILE["build-system"]["requires"] if len(sys.argv) == 1 else beside(sys.argv[1]), sep="\n")
