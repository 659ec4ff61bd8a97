"""Files of Debian's archive: texts and typefaces that anybody can have."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["MIRROR", "RELEASE", "fetched", "packages", "unpack"]

MIRROR = os.environ.get("DEBIAN_MIRROR", "https://deb.debian.org/debian")
"""Where the archive is read; another mirror by the environment's DEBIAN_MIRROR."""
RELEASE = "dists/bookworm/main"


def fetched(path: str) -> bytes:
    """A file of the archive."""
    if not MIRROR.startswith(("https://", "http://")):
        raise ValueError(f"DEBIAN_MIRROR: expected an address of http or https, got {MIRROR!r}")
    with urllib.request.urlopen(f"{MIRROR}/{path}", timeout=60) as answer:
        found: bytes = answer.read()
    return found


def packages() -> Iterator[dict[str, str]]:
    """The fields of one line that the archive has of each package, by name."""
    listed = lzma.decompress(fetched(f"{RELEASE}/binary-amd64/Packages.xz")).decode()
    return (dict(re.findall(r"^([\w-]+): (.*)$", entry, re.MULTILINE)) for entry in listed.strip().split("\n\n"))


def unpack(names: Iterable[str], folder: Path) -> None:
    """Lay the files of packages into a folder, by dpkg-deb, without which the process ends."""
    if shutil.which("dpkg-deb") is None:
        sys.exit("dpkg-deb, which unpacks Debian's packages, is missing: apt-get install dpkg")
    paths = {package["Package"]: package["Filename"] for package in packages()}
    for name in names:
        with tempfile.NamedTemporaryFile(suffix=".deb") as archive:
            archive.write(fetched(paths[name]))
            archive.flush()
            subprocess.run(["dpkg-deb", "-x", archive.name, str(folder)], check=True)
