"""Pictures that commands are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustcp.cli.errors import fail
from robustcp.files.writing import make_folder, write_picture

FORMATS = ("png", "svg", "pdf")


def picture_file(name: str, suffix: str) -> str:
    """The file of a picture, in the format that was asked for."""
    if suffix not in FORMATS:
        fail(f"--format {suffix}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return f"{name}.{suffix}"


def draw(path: Path, picture: Callable[[], Any]) -> None:
    """Write what a function draws, Axes or an array of them, without a screen."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    axes = np.ravel(np.asarray(picture(), dtype=object))
    make_folder(path.parent)
    write_picture(path, axes[0].figure)
