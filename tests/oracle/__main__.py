"""Writes the numerics' coefficient tables and golden values: `python -m tests.oracle [--check] [--golden]`.

It writes rust/special/tables.rs and cuda/numerics/tables.cuh, and with --golden also tests/golden/*.csv (seconds). With
--check nothing is written: the exit status says whether the files are what this code generates, byte for byte.
"""

import sys
from pathlib import Path

from . import golden, tables

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    made = {"rust/special/tables.rs": tables.source, "cuda/numerics/tables.cuh": tables.cuda_source}
    if "--golden" in sys.argv:
        made["tests/golden/bessel.csv"] = golden.bessel
    stale = []
    for name, generate in made.items():
        path, text = ROOT / name, generate()
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    for name in stale:
        print(f"{name} is not what tests/oracle generates")
    return bool(stale)


sys.exit(main())
