"""Where commands that write several files put them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peaccel import io

__all__ = ["outputs"]


def outputs(folder: Path, task: Any, *names: str) -> list[Path]:
    """Files in a command's folder, made if it is missing; none of them may be one that the command reads."""
    inputs = [x for key, x in vars(task).items() if key != "out" and isinstance(x, Path)]
    if folder.is_file():
        raise ValueError(f"--out is {folder}, a file, expected a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return [io.check_output(folder / name, [Path(name).suffix], inputs) for name in names]
